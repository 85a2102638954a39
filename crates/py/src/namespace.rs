//! The blocks of one model shard: lookup, pin and publish.

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

/// The blocks of one model shard in a region.
#[pyclass(frozen, module = "cenote")]
pub struct Namespace {
    pub open: Arc<Open>,
    pub namespace: cenote_pool::Namespace,
    /// Encoder and decoder of blocks; `None` for raw blocks only.
    pub coding: Option<Arc<Coding>>,
}

/// The name of an outcome in Python.
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

    /// True if this user can read the block.
    ///
    /// Another user of the namespace may have a codec and publish encoded blocks.
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
    /// Hashes of all full blocks of a prompt.
    fn hash_tokens(&self, py: Python<'_>, tokens: Items<u32>, block_tokens: usize) -> PyResult<Hashes> {
        let tokens = tokens.0;
        if block_tokens == 0 {
            return Err(wrong("block_tokens is 0; give at least 1"));
        }
        guarded(|| Ok(py.detach(|| Hashes(self.namespace.hasher.chain(&tokens, block_tokens)))))
    }

    /// Hashes of blocks from another program's keys.
    fn alias(&self, keys: &Bound<'_, PyAny>) -> PyResult<Hashes> {
        let name = |key: &Bound<'_, PyAny>| Ok(self.namespace.hasher.alias(key.cast::<PyBytes>()?.as_bytes()));
        collect(keys, name).map(Hashes)
    }

    /// Number of consecutive blocks present, from the first. Does not touch them.
    fn count(&self, hashes: AnyHashes<'_>) -> PyResult<usize> {
        let pool = self.open.pool()?;
        guarded(|| Ok(pool.peek(hashes.get()).len()))
    }

    /// One byte per block: 1 if the block is present. Does not touch them.
    fn present<'py>(&self, py: Python<'py>, hashes: AnyHashes<'_>) -> PyResult<Bound<'py, PyBytes>> {
        let pool = self.open.pool()?;
        let there = |hash| pool.peek(std::slice::from_ref(hash)).iter().any(|hit| self.usable(hit));
        let all = || Ok(hashes.get().iter().map(|hash| u8::from(there(hash))).collect::<Vec<u8>>());
        Ok(PyBytes::new(py, &guarded(all)?))
    }

    /// Looks blocks up in order, up to the first missing one, and pins those found.
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

    /// Publishes a block from the concatenation of buffers.
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

    /// Reserves memory for a block, for writes in place. None: it is present, or there is no room.
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

    /// Removes all blocks of this host. Returns the number of slots freed now.
    fn forget(&self, py: Python<'_>) -> PyResult<usize> {
        let pool = self.open.pool()?;
        guarded(|| Ok(py.detach(|| pool.forget(&self.namespace))))
    }

    /// Limits the bytes of the blocks over all hosts; 0 removes the limit.
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
