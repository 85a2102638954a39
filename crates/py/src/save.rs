//! Saves from an engine's memory to the region, layer by layer as the engine computes them.

use crate::codec::Coding;
use crate::cold::Below;
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
    /// Blocks of the save that L4 gets when it has ended.
    hashes: Vec<BlockHash>,
}

/// Destination of a save: pool, namespace and encoding.
#[derive(Clone)]
pub struct Target {
    pub pool: HostPool,
    pub namespace: Namespace,
    pub coding: Option<Arc<Coding>>,
    /// L4, which gets the saved blocks.
    pub below: Option<Below>,
}

/// The blocks of a save, with their numbers in the engine's memory.
enum Blocks {
    /// Unencoded, in reserved memory of the region.
    Raw(Vec<(Filling<Arc<Mapped>>, usize)>),
    /// Encoded, in private memory until their lengths are known.
    Encoded(Vec<Encoded>),
}

struct Encoded {
    hash: BlockHash,
    depth: u32,
    names: Names,
    frames: Vec<u8>,
    number: usize,
}

struct State {
    blocks: Blocks,
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
        let mut outcomes = BTreeMap::new();
        let all = hashes.iter().zip(depths).zip(names).zip(blocks);
        let all = all.map(|(((&hash, &depth), &names), &number)| (hash, depth, names, number));
        let blocks = if to.coding.is_none() {
            let new = |(hash, depth, names, _)| NewBlock { names, ..NewBlock::new(&to.namespace, hash, depth) };
            let begun = to.pool.begin_all(&all.map(new).collect::<Vec<_>>()).into_iter().zip(blocks);
            let begun = begun.filter_map(|(begun, &number)| match begun {
                Ok(filling) => Some((filling, number)),
                Err(outcome) => {
                    count(&mut outcomes, outcome);
                    None
                }
            });
            Blocks::Raw(begun.collect())
        } else {
            // Look up first, to avoid encoding a duplicate.
            let is_new = |&(hash, ..): &(BlockHash, u32, Names, usize)| {
                let is_new = !to.pool.has(hash);
                if !is_new {
                    count(&mut outcomes, Publish::Duplicate);
                }
                is_new
            };
            let encoded = |(hash, depth, names, number)| Encoded { hash, depth, names, frames: Vec::new(), number };
            Blocks::Encoded(all.filter(is_new).map(encoded).collect())
        };
        Self { to, pages, state: Mutex::new(State { blocks, next: 0, outcomes }), hashes: hashes.to_vec() }
    }

    /// Copies the remaining layers and publishes the blocks. Returns the count per outcome.
    pub fn end(&self) -> BTreeMap<&'static str, u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.copy_to(&self.to, &self.pages, self.pages.num_layers() - 1);
        let blocks = state.take();
        let outcomes = self.to.publish(blocks, &self.pages);
        outcomes.into_iter().for_each(|outcome| count(&mut state.outcomes, outcome));
        // Blocks that found no room are not in the region, and the writer leaves them out.
        self.to.below.iter().for_each(|below| below.offer(self.hashes.iter().copied()));
        state.outcomes.clone()
    }
}

fn count(outcomes: &mut BTreeMap<&'static str, u64>, outcome: Publish) {
    *outcomes.entry(outcome_name(outcome)).or_default() += 1;
}

impl Target {
    fn publish(&self, blocks: Blocks, pages: &Pages) -> Vec<Publish> {
        let mut encoded = match blocks {
            Blocks::Raw(fillings) => {
                return self.pool.publish_filled(fillings.into_iter().map(|(filling, _)| filling).collect());
            }
            Blocks::Encoded(encoded) => encoded,
        };
        encoded.iter_mut().for_each(|block| BlockCodec::seal(&mut block.frames));
        let payloads = encoded.iter().map(|block| {
            // Store a block raw if its encoding is not smaller.
            if (block.frames.len() as u64) < self.namespace.block_bytes {
                return (FRAMES, vec![block.frames.as_slice()]);
            }
            // SAFETY: nothing writes the pages: callers of `Save.layer` guarantee that the engine
            // does not write a block's pages until the save has ended.
            let page = |layer| unsafe { pages.page(layer, block.number) };
            (0, (0..pages.num_layers()).map(page).collect())
        });
        let payloads: Vec<(u8, Vec<&[u8]>)> = payloads.collect();
        let blocks = encoded.iter().zip(&payloads).map(|(block, (encoding, parts))| {
            let new = NewBlock::new(&self.namespace, block.hash, block.depth);
            (NewBlock { encoding: *encoding, names: block.names, ..new }, parts.as_slice())
        });
        self.pool.publish_all(&blocks.collect::<Vec<_>>())
    }
}

impl State {
    /// Takes the blocks out, and leaves none.
    fn take(&mut self) -> Blocks {
        std::mem::replace(&mut self.blocks, Blocks::Raw(Vec::new()))
    }

    /// Copies the uncopied layers up to this one.
    fn copy_to(&mut self, to: &Target, pages: &Pages, layer: usize) {
        // Put the blocks back only after all copies: a panic drops them, because then some blocks
        // have a page that others lack.
        let mut blocks = self.take();
        for now in self.next..=layer {
            // SAFETY: nothing writes the page: callers of `Save.layer` guarantee that the engine
            // has written the layer and does not write it until the save has ended.
            let page = |number: usize| unsafe { pages.page(now, number) };
            let copied = match (&mut blocks, &to.coding) {
                (Blocks::Raw(fillings), _) => {
                    Filling::append_all(fillings.iter_mut().map(|(filling, number)| (filling, page(*number))));
                    fillings.len()
                }
                (Blocks::Encoded(encoded), Some(coding)) => {
                    encoded.iter_mut().for_each(|block| coding.encode(now, page(block.number), &mut block.frames));
                    encoded.len()
                }
                (Blocks::Encoded(_), None) => unreachable!("only a save with a codec encodes blocks"),
            };
            (0..copied).for_each(|_| fault::point(Point::SavePage));
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
        guarded(|| Ok(py.detach(|| self.end())))
    }

    /// Drops all blocks of the save.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| drop(self.state.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// Number of blocks in progress.
    fn __len__(&self) -> usize {
        match &self.state.lock().unwrap_or_else(PoisonError::into_inner).blocks {
            Blocks::Raw(fillings) => fillings.len(),
            Blocks::Encoded(encoded) => encoded.len(),
        }
    }
}
