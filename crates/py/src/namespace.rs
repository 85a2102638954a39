//! Blocks of one model shard: find them, keep them, publish them.

use crate::buffers::Lent;
use crate::codec::Coding;
use crate::errors::{guarded, wrong};
use crate::filling::Filling;
use crate::hashes::{AnyHashes, Hashes, one};
use crate::lease::Lease;
use crate::numbers::{Items, collect};
use crate::region::Open;
use cenote_pool::{Hit, Names, NewBlock, Publish};
use cenote_store::FRAMES;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// Blocks of one model shard in a region.
#[pyclass(frozen, module = "cenote")]
pub struct Namespace {
    pub open: Arc<Open>,
    pub namespace: cenote_pool::Namespace,
    /// What blocks may be stored with.
    pub coding: Option<Arc<Coding>>,
}

/// The outcomes' names.
pub const fn outcome(outcome: Publish) -> &'static str {
    match outcome {
        Publish::Published => "published",
        Publish::Duplicate => "duplicate",
        Publish::NoRoom => "no_room",
        Publish::OverQuota => "over_quota",
    }
}

impl Namespace {
    pub const fn new(open: Arc<Open>, namespace: cenote_pool::Namespace, coding: Option<Arc<Coding>>) -> Self {
        Self { open, namespace, coding }
    }

    /// What the engine's pages do not look like is of somebody with a codec.
    fn usable(&self, hit: &Hit) -> bool {
        match hit.encoding {
            0 => hit.length == self.namespace.block_bytes,
            FRAMES => self.coding.is_some() && hit.length <= self.namespace.block_bytes,
            _ => false,
        }
    }
}

#[pymethods]
impl Namespace {
    /// Hashes of every full block of a prompt.
    fn hash_tokens(&self, py: Python<'_>, tokens: Items<u32>, block_tokens: usize) -> PyResult<Hashes> {
        let tokens = tokens.0;
        if block_tokens == 0 {
            return Err(wrong("blocks of no tokens"));
        }
        guarded(|| Ok(py.detach(|| Hashes(self.namespace.hasher.chain(&tokens, block_tokens)))))
    }

    /// Hashes of blocks that another program names by keys of its own.
    fn alias(&self, keys: &Bound<'_, PyAny>) -> PyResult<Hashes> {
        let name = |key: &Bound<'_, PyAny>| Ok(self.namespace.hasher.alias(key.cast::<PyBytes>()?.as_bytes()));
        collect(keys, name).map(Hashes)
    }

    /// How many blocks, from the first on, are there. Nothing is marked as used.
    fn count(&self, hashes: AnyHashes<'_>) -> PyResult<usize> {
        let pool = self.open.pool()?;
        guarded(|| Ok(pool.peek(hashes.get()).len()))
    }

    /// A byte for each block: 1 if it is there. Nothing is marked as used.
    fn present<'py>(&self, py: Python<'py>, hashes: AnyHashes<'_>) -> PyResult<Bound<'py, PyBytes>> {
        let pool = self.open.pool()?;
        let there = |hash| pool.peek(std::slice::from_ref(hash)).iter().any(|hit| self.usable(hit));
        let all = || Ok(hashes.get().iter().map(|hash| u8::from(there(hash))).collect::<Vec<u8>>());
        Ok(PyBytes::new(py, &guarded(all)?))
    }

    /// Looks blocks up, in order, up to the first that is missing, and pins what is found.
    fn lookup(&self, hashes: AnyHashes<'_>) -> PyResult<Lease> {
        let pool = self.open.pool()?;
        let pins = guarded(|| {
            let mut pins = Vec::new();
            for hit in pool.lookup(hashes.get()) {
                match self.usable(&hit).then(|| pool.pin(&hit)).flatten() {
                    Some(pin) => pins.push(pin),
                    None => break,
                }
            }
            Ok(pins)
        })?;
        Ok(Lease::new(Arc::clone(&self.open), self.coding.clone(), pins))
    }

    /// Publishes a block from buffers that lie one after the other in it.
    #[pyo3(signature = (hash, depth, parts, *, name=0, parent=0))]
    fn publish(
        &self,
        py: Python<'_>,
        hash: &Bound<'_, PyAny>,
        depth: u32,
        parts: &Bound<'_, PyAny>,
        name: u64,
        parent: u64,
    ) -> PyResult<&'static str> {
        let names = Names { name, parent };
        let (pool, hash) = (self.open.pool()?, one(hash)?);
        let lent = Lent::take(parts, false)?;
        lent.fit(self.namespace.block_bytes)?;
        let parts = lent.parts();
        let publish = || pool.publish(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) }, &parts);
        guarded(|| Ok(outcome(py.detach(publish))))
    }

    /// Reserves memory for a block, to be written in place. None: it is there, or there is no room.
    #[pyo3(signature = (hash, depth, *, name=0, parent=0))]
    fn begin(
        &self,
        py: Python<'_>,
        hash: &Bound<'_, PyAny>,
        depth: u32,
        name: u64,
        parent: u64,
    ) -> PyResult<Option<Filling>> {
        let names = Names { name, parent };
        let (pool, hash) = (self.open.pool()?, one(hash)?);
        let begun = guarded(|| {
            Ok(py.detach(|| pool.begin_in_place(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) })))
        })?;
        Ok(begun.ok().map(|filling| Filling::new(pool, filling)))
    }

    /// Takes back all blocks that this host has; returns how many slots are free now.
    fn forget(&self, py: Python<'_>) -> PyResult<usize> {
        let pool = self.open.pool()?;
        guarded(|| Ok(py.detach(|| pool.forget(&self.namespace))))
    }

    /// Limits the bytes that the blocks may take, over all hosts; 0 lifts the limit.
    fn set_quota(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        let pool = self.open.pool()?;
        let set = py.detach(|| pool.set_quota(self.namespace.id, bytes));
        set.map_err(|error| crate::errors::of_pool(&self.open.name, &error))
    }

    #[getter]
    const fn id(&self) -> u16 {
        self.namespace.id.0
    }

    #[getter]
    const fn block_bytes(&self) -> u64 {
        self.namespace.block_bytes
    }

    fn __repr__(&self) -> String {
        format!("Namespace({} of {:?}, blocks of {} bytes)", self.namespace.id.0, self.open.name, self.block_bytes())
    }
}
