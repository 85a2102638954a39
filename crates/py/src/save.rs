//! Blocks on their way from an engine's memory into the region, layer by layer as the engine fills them.

use crate::codec::Coding;
use crate::errors::{guarded, wrong};
use crate::memory::Pages;
use crate::namespace::outcome as outcome_name;
use cenote_base::{BlockHash, fault};
use cenote_mem::Mapped;
use cenote_pool::{Filling, HostPool, Names, Namespace, NewBlock, Publish};
use cenote_store::{BlockCodec, FRAMES};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that are being published.
#[pyclass(frozen, module = "cenote")]
pub struct Save {
    to: Target,
    pages: Arc<Pages>,
    state: Mutex<State>,
}

/// Where blocks are published, and as what.
pub struct Target {
    pub pool: HostPool,
    pub namespace: Namespace,
    pub coding: Option<Arc<Coding>>,
}

/// A block on its way.
enum Block {
    /// As the engine has it, in its place in the region.
    Raw(Box<Filling<Arc<Mapped>>>),
    /// Encoded, in memory of its own until it is known how long it becomes.
    Frames { hash: BlockHash, depth: u32, names: Names, frames: Vec<u8> },
}

struct State {
    /// With their numbers in the engine.
    blocks: Vec<(Block, usize)>,
    /// The layer that comes next.
    next: usize,
    outcomes: BTreeMap<&'static str, u64>,
}

impl Save {
    pub fn begin(
        to: Target,
        pages: Arc<Pages>,
        hashes: &[BlockHash],
        depths: &[u32],
        blocks: &[usize],
        names: &[Names],
    ) -> Self {
        let mut state = State { blocks: Vec::with_capacity(blocks.len()), next: 0, outcomes: BTreeMap::new() };
        for (((&hash, &depth), &block), &names) in hashes.iter().zip(depths).zip(blocks).zip(names) {
            match to.begin(hash, depth, names) {
                Ok(begun) => state.blocks.push((begun, block)),
                Err(outcome) => state.count(outcome),
            }
        }
        Self { to, pages, state: Mutex::new(state) }
    }
}

impl Target {
    fn begin(&self, hash: BlockHash, depth: u32, names: Names) -> Result<Block, Publish> {
        if self.coding.is_none() {
            let begun = self.pool.begin(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) });
            return begun.map(|filling| Block::Raw(Box::new(filling)));
        }
        // What is there already is not encoded to find that out.
        if self.pool.peek(&[hash]).is_empty() {
            Ok(Block::Frames { hash, depth, names, frames: Vec::new() })
        } else {
            Err(Publish::Duplicate)
        }
    }

    fn publish(&self, block: Block, pages: &Pages, number: usize) -> Publish {
        let (hash, depth, names, mut frames) = match block {
            Block::Raw(filling) => return filling.publish(),
            Block::Frames { hash, depth, names, frames } => (hash, depth, names, frames),
        };
        BlockCodec::seal(&mut frames);
        // What would not become smaller stays as it is.
        if (frames.len() as u64) < self.namespace.block_bytes {
            return self.pool.publish(
                &NewBlock { encoding: FRAMES, names, ..NewBlock::new(&self.namespace, hash, depth) },
                &[&frames],
            );
        }
        // SAFETY: as in `State::copy_to`; the engine leaves all of a block's pages alone until the save has ended.
        let parts: Vec<&[u8]> = (0..pages.num_layers()).map(|layer| unsafe { pages.page(layer, number) }).collect();
        self.pool.publish(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) }, &parts)
    }
}

impl State {
    fn count(&mut self, outcome: Publish) {
        *self.outcomes.entry(outcome_name(outcome)).or_default() += 1;
    }

    /// Copies layers up to this one.
    fn copy_to(&mut self, to: &Target, pages: &Pages, layer: usize) {
        // Put back when all is copied: after a panic the blocks are given up, because some have a page that others lack.
        let mut blocks = std::mem::take(&mut self.blocks);
        for now in self.next..=layer {
            for (block, number) in &mut blocks {
                // SAFETY: the engine writes a layer's pages before it says that they are done, and not again while the
                // block is being saved (documented on `Save.layer`).
                let page = unsafe { pages.page(now, *number) };
                match (block, &to.coding) {
                    (Block::Raw(filling), _) => filling.append(page),
                    (Block::Frames { frames, .. }, Some(coding)) => coding.encode(now, page, frames),
                    (Block::Frames { .. }, None) => unreachable!("blocks are encoded where there is a codec"),
                }
                fault::point("save.page");
            }
        }
        self.blocks = blocks;
        self.next = self.next.max(layer + 1);
    }
}

#[pymethods]
impl Save {
    /// Copies this layer of all blocks, and those before it that were not.
    fn layer(&self, py: Python<'_>, layer: usize) -> PyResult<()> {
        if layer >= self.pages.num_layers() {
            return Err(wrong(format!("layer {layer} of {}", self.pages.num_layers())));
        }
        guarded(|| {
            let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
            py.detach(|| state().copy_to(&self.to, &self.pages, layer));
            Ok(())
        })
    }

    /// Copies what is left and makes the blocks findable; returns how many came to what.
    fn finish(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        let finish = || {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.copy_to(&self.to, &self.pages, self.pages.num_layers() - 1);
            for (block, number) in std::mem::take(&mut state.blocks) {
                let outcome = self.to.publish(block, &self.pages, number);
                state.count(outcome);
            }
            state.outcomes.clone()
        };
        guarded(|| Ok(py.detach(finish)))
    }

    /// Gives all up.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).blocks.clear());
    }

    /// How many blocks are being written.
    fn __len__(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).blocks.len()
    }
}
