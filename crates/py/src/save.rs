//! Blocks on their way from an engine's memory into the region, layer by layer as the engine fills them.

use crate::errors::wrong;
use crate::memory::Pages;
use crate::namespace::outcome as outcome_name;
use cenote_base::{BlockHash, fault};
use cenote_mem::Mapped;
use cenote_pool::{Filling, HostPool, Names, Namespace, Publish};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that are being published.
#[pyclass(frozen, module = "cenote")]
pub struct Save {
    pages: Arc<Pages>,
    state: Mutex<State>,
}

struct State {
    blocks: Vec<(Filling<Arc<Mapped>>, usize)>,
    /// The layer that comes next.
    next: usize,
    outcomes: BTreeMap<&'static str, u64>,
}

impl Save {
    pub fn begin(
        pool: &HostPool,
        namespace: &Namespace,
        pages: Arc<Pages>,
        hashes: &[BlockHash],
        depths: &[u32],
        blocks: &[usize],
        names: &[Names],
    ) -> Self {
        let mut state = State { blocks: Vec::with_capacity(blocks.len()), next: 0, outcomes: BTreeMap::new() };
        for (((&hash, &depth), &block), &names) in hashes.iter().zip(depths).zip(blocks).zip(names) {
            match pool.begin_named(namespace, hash, depth, names) {
                Ok(filling) => state.blocks.push((filling, block)),
                Err(outcome) => state.count(outcome),
            }
        }
        Self { pages, state: Mutex::new(state) }
    }
}

impl State {
    fn count(&mut self, outcome: Publish) {
        *self.outcomes.entry(outcome_name(outcome)).or_default() += 1;
    }

    /// Copies layers up to this one.
    fn copy_to(&mut self, pages: &Pages, layer: usize) {
        for now in self.next..=layer {
            for (filling, block) in &mut self.blocks {
                // SAFETY: the engine writes a layer's pages before it says that they are done, and not again while the
                // block is being saved (documented on `Save.layer`).
                filling.append(unsafe { pages.page(now, *block) });
                fault::point("save.page");
            }
        }
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
        py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).copy_to(&self.pages, layer));
        Ok(())
    }

    /// Copies what is left and makes the blocks findable; returns how many came to what.
    fn finish(&self, py: Python<'_>) -> BTreeMap<&'static str, u64> {
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.copy_to(&self.pages, self.pages.num_layers() - 1);
            for (filling, _) in std::mem::take(&mut state.blocks) {
                let outcome = filling.publish();
                state.count(outcome);
            }
            state.outcomes.clone()
        })
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
