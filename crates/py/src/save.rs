//! Saves from an engine's memory to the region, layer by layer as the engine computes them.

use crate::codec::Coding;
use crate::errors::{guarded, wrong};
use crate::memory::Pages;
use crate::namespace::outcome as outcome_name;
use cenote_base::BlockHash;
use cenote_base::fault::{self, Point};
use cenote_mem::Mapped;
use cenote_pool::{Filling, HostPool, Names, Namespace, NewBlock, Publish};
use cenote_store::{BlockCodec, FRAMES};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A save in progress.
#[pyclass(frozen, module = "cenote")]
pub struct Save {
    to: Target,
    pages: Arc<Pages>,
    state: Mutex<State>,
}

/// Destination of a save: pool, namespace and encoding.
pub struct Target {
    pub pool: HostPool,
    pub namespace: Namespace,
    pub coding: Option<Arc<Coding>>,
}

/// A block of a save.
enum Block {
    /// Unencoded, in reserved memory of the region.
    Raw(Box<Filling<Arc<Mapped>>>),
    /// Encoded, in private memory until its length is known.
    Frames { hash: BlockHash, depth: u32, names: Names, frames: Vec<u8> },
}

struct State {
    /// Blocks with their numbers in the engine's memory.
    blocks: Vec<(Block, usize)>,
    /// Number of the next layer to copy.
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
        // Look up first, to avoid encoding a duplicate.
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
        // Store a block raw if its encoding is not smaller.
        if (frames.len() as u64) < self.namespace.block_bytes {
            return self.pool.publish(
                &NewBlock { encoding: FRAMES, names, ..NewBlock::new(&self.namespace, hash, depth) },
                &[&frames],
            );
        }
        // SAFETY: nothing writes the pages: callers of `Save.layer` guarantee that the engine does
        // not write a block's pages until the save has ended.
        let parts: Vec<&[u8]> = (0..pages.num_layers()).map(|layer| unsafe { pages.page(layer, number) }).collect();
        self.pool.publish(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) }, &parts)
    }
}

impl State {
    fn count(&mut self, outcome: Publish) {
        *self.outcomes.entry(outcome_name(outcome)).or_default() += 1;
    }

    /// Copies the uncopied layers up to this one.
    fn copy_to(&mut self, to: &Target, pages: &Pages, layer: usize) {
        // Put the blocks back only after all copies: a panic drops them, because then some blocks
        // have a page that others lack.
        let mut blocks = std::mem::take(&mut self.blocks);
        for now in self.next..=layer {
            for (block, number) in &mut blocks {
                // SAFETY: nothing writes the page: callers of `Save.layer` guarantee that the
                // engine has written the layer and does not write it until the save has ended.
                let page = unsafe { pages.page(now, *number) };
                match (block, &to.coding) {
                    (Block::Raw(filling), _) => filling.append(page),
                    (Block::Frames { frames, .. }, Some(coding)) => coding.encode(now, page, frames),
                    (Block::Frames { .. }, None) => unreachable!("only a save with a codec encodes blocks"),
                }
                fault::point(Point::SavePage);
            }
        }
        self.blocks = blocks;
        self.next = self.next.max(layer + 1);
    }
}

#[pymethods]
impl Save {
    /// Copies this layer of all blocks, and all uncopied earlier layers.
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

    /// Copies the remaining layers and publishes the blocks. Returns the count per outcome.
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

    /// Drops all blocks of the save.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).blocks.clear());
    }

    /// Number of blocks in progress.
    fn __len__(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).blocks.len()
    }
}
