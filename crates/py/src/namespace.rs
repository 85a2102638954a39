//! The blocks of one model shard: lookup, pin and publish.

use crate::buffers::Lent;
use crate::clock;
use crate::codec::Coding;
use crate::cold::{Below, Promotion};
use crate::errors::{guarded, of_pool, wrong};
use crate::filling::Filling;
use crate::hashes::{AnyHashes, Hashes, one};
use crate::lease::Lease;
use crate::numbers::{Items, collect};
use crate::region::Open;
use cenote_base::engine::Retain;
use cenote_base::{BlockHash, TenantKey};
use cenote_pool::{Hit, Names, NewBlock, Publish, Removal, Request, removals};
use cenote_store::{Computing, Readable, Wanted, promote, suits};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The blocks of one model shard in a region.
#[pyclass(frozen, module = "cenote")]
pub struct Namespace {
    pub open: Arc<Open>,
    pub namespace: cenote_pool::Namespace,
    /// Encoder and decoder of blocks; `None` for raw blocks only.
    pub coding: Option<Arc<Coding>>,
    readable: Readable,
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

/// The names of `count` blocks of a sequence. The parent of each is its predecessor, of the first
/// one `parent`.
pub fn chain_names(names: Option<Vec<u64>>, count: usize, parent: u64) -> PyResult<Vec<Names>> {
    let names = names.unwrap_or_else(|| vec![0; count]);
    if names.len() != count {
        return Err(wrong(format!("{} names of {count} blocks", names.len())));
    }
    let parents = std::iter::once(parent).chain(names.iter().copied());
    Ok(names.iter().zip(parents).map(|(&name, parent)| Names { name, parent }).collect())
}

impl Namespace {
    pub fn new(open: Arc<Open>, namespace: cenote_pool::Namespace, coding: Option<Arc<Coding>>) -> Self {
        let readable = Coding::readable(coding.as_deref());
        Self { open, namespace, coding, readable }
    }

    /// L4 for the blocks of this namespace.
    pub fn below(&self) -> Option<Below> {
        self.open.below(&self.namespace)
    }

    /// Offers the blocks to L4 that the region has now.
    fn offer(&self, hashes: impl IntoIterator<Item = BlockHash>, outcomes: &[Publish]) {
        if let Some(below) = self.below() {
            let is_there = |outcome: &Publish| matches!(outcome, Publish::Published | Publish::Duplicate);
            below
                .offer(hashes.into_iter().zip(outcomes).filter(|(_, outcome)| is_there(outcome)).map(|(hash, _)| hash));
        }
    }

    /// Blocks of a sequence with their names; the parent of each is its predecessor.
    fn new_blocks(
        &self,
        hashes: &[BlockHash],
        depths: &[u32],
        names: Option<Vec<u64>>,
        parent: u64,
    ) -> PyResult<Vec<NewBlock<'_>>> {
        if depths.len() != hashes.len() {
            return Err(wrong(format!("{} hashes, {} depths: give one of each per block", hashes.len(), depths.len())));
        }
        let names = chain_names(names, hashes.len(), parent)?;
        let new = |((&hash, &depth), names)| NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) };
        Ok(hashes.iter().zip(depths).zip(names).map(new).collect())
    }

    /// The names of these blocks here.
    fn names<'a>(&self, hashes: &'a AnyHashes<'_>) -> Cow<'a, [BlockHash]> {
        hashes.names(&self.namespace.hasher)
    }

    /// Whether the block is of this namespace. Names of another one may have been given.
    fn owns(&self, hit: &Hit) -> bool {
        hit.namespace == self.namespace.id
    }

    /// True if this user can read the block.
    ///
    /// Another user of the namespace may have a codec and publish encoded blocks.
    fn usable(&self, hit: &Hit) -> bool {
        self.owns(hit) && self.readable.may_read(hit.encoding) && suits(&self.namespace, hit.encoding, hit.length)
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
        guarded(|| Ok(pool.peek(&self.names(&hashes)).iter().take_while(|hit| self.owns(hit)).count()))
    }

    /// One byte per block: 1 if the block is present. Does not touch them.
    fn present<'py>(&self, py: Python<'py>, hashes: AnyHashes<'_>) -> PyResult<Bound<'py, PyBytes>> {
        let pool = self.open.pool()?;
        let there = |hash| pool.peek(std::slice::from_ref(hash)).iter().any(|hit| self.usable(hit));
        let hashes = self.names(&hashes);
        let all = || Ok(hashes.iter().map(|hash| u8::from(there(hash))).collect::<Vec<u8>>());
        Ok(PyBytes::new(py, &guarded(all)?))
    }

    /// Per block, its last removal from the region. None: the region keeps none of it.
    fn removed<'py>(&self, py: Python<'py>, hashes: AnyHashes<'_>) -> PyResult<Vec<Option<Bound<'py, PyDict>>>> {
        let pool = self.open.pool()?;
        let hashes = self.names(&hashes);
        let read = || {
            py.detach(|| {
                let removals = removals(&**pool.fabric()).map_err(|error| of_pool(&self.open.name, &error))?;
                // The last one of a name stays.
                let last: HashMap<BlockHash, Removal> =
                    removals.all.into_iter().map(|removal| (removal.hash, removal)).collect();
                Ok(hashes.iter().map(|hash| last.get(hash).copied()).collect::<Vec<_>>())
            })
        };
        let told = |removal: Removal| {
            let facts = PyDict::new(py);
            facts.set_item("cause", removal.cause.name())?;
            facts.set_item("time", removal.time_us as f64 / 1e6)?;
            facts.set_item("stored", removal.stored)?;
            facts.set_item("host", removal.host)?;
            facts.set_item("pid", removal.pid)?;
            Ok(facts)
        };
        guarded(read)?.into_iter().map(|removal| removal.map(told).transpose()).collect()
    }

    /// Begins to copy blocks into the region that it lacks, from L4 and then from peers: in order up to the
    /// first that neither has, or with `all` whichever they have. None: there is nothing to wait for.
    #[pyo3(signature = (hashes, *, all=false))]
    fn promote(&self, hashes: AnyHashes<'_>, all: bool) -> PyResult<Option<Promotion>> {
        let (pool, cold, peers) = (self.open.pool()?, self.open.cold(), self.open.peers());
        if cold.is_none() && peers.is_none() {
            return Ok(None);
        }
        guarded(|| {
            let hashes = &*self.names(&hashes);
            let (missing, wanted) = if all {
                let missing =
                    |hash: &BlockHash| !pool.peek(std::slice::from_ref(hash)).iter().any(|hit| self.owns(hit));
                (Cow::Owned(hashes.iter().copied().filter(missing).collect()), Wanted::All)
            } else {
                let there = pool.peek(hashes).iter().take_while(|hit| self.owns(hit)).count();
                (Cow::Borrowed(&hashes[there..]), Wanted::Leading)
            };
            let (cold, peers) = (cold.as_deref(), peers.as_deref());
            // The engine's times are not known here, so all is sought.
            let computing = Computing::default();
            let begun = promote((cold, peers), &self.namespace, &missing, &self.readable, wanted, &computing);
            Ok(begun.map(Promotion))
        })
    }

    /// Asks that the first blocks of a sequence stay in the region for some seconds from now; 0 ends what was
    /// asked for. Never waits.
    #[pyo3(signature = (hashes, seconds, *, priority=0, session=None, tenant=None))]
    fn retain(
        &self,
        hashes: AnyHashes<'_>,
        seconds: f64,
        priority: u8,
        session: Option<&str>,
        tenant: Option<&str>,
    ) -> PyResult<()> {
        // A day, the most that a client can ask for.
        if !(0.0..=86_400.0).contains(&seconds) {
            return Err(wrong(format!("{seconds} s is not a time to keep blocks; give 0 to 86400")));
        }
        let Some(retained) = self.open.retained() else { return Ok(()) };
        guarded(|| {
            // Conversations of two tenants or models are two, whatever their names.
            let session = session.map(|name| {
                let mut hasher = DefaultHasher::new();
                (self.namespace.id, tenant, name).hash(&mut hasher);
                hasher.finish()
            });
            let retain = Retain { ms: (seconds * 1000.0) as u64, priority, session };
            let tenant = tenant.map(TenantKey::of_salt);
            let (names, bytes) = (self.names(&hashes), self.namespace.block_bytes);
            retained.ask(tenant, &names, bytes, &retain, clock().now_ns());
            Ok(())
        })
    }

    /// Looks blocks up in order, up to the first missing one, and pins those found.
    fn lookup(&self, hashes: AnyHashes<'_>) -> PyResult<Lease> {
        let pool = self.open.pool()?;
        let pins = guarded(|| {
            let mut pins = Vec::new();
            for hit in pool.lookup(&self.names(&hashes)) {
                match self.usable(&hit).then(|| pool.pin(&hit)).flatten() {
                    Some(pin) => pins.push(pin),
                    None => break,
                }
            }
            Ok(pins)
        })?;
        Ok(Lease::new(Arc::clone(&self.open), self.coding.clone(), pins))
    }

    /// Notes an admitted request in the record of requests. Returns its number; None: it is not in the
    /// record.
    #[pyo3(signature = (hashes, *, above=0, tokens=0))]
    fn record(&self, hashes: AnyHashes<'_>, above: u32, tokens: u32) -> PyResult<Option<u64>> {
        let pool = self.open.pool()?;
        guarded(|| {
            let request = Request { names: &self.names(&hashes), above: above as usize, tokens };
            Ok(pool.record_request(&self.namespace, &request))
        })
    }

    /// Notes the end of a recorded request's answer.
    fn record_answer(&self, number: u64, tokens: u32) -> PyResult<()> {
        let pool = self.open.pool()?;
        guarded(|| {
            pool.record_answer(number, tokens);
            Ok(())
        })
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
        let (pool, hash) = (self.open.pool()?, one(hash)?.name(&self.namespace.hasher));
        let lent = Lent::take(parts, false)?;
        lent.fit(self.namespace.block_bytes)?;
        let parts = lent.parts();
        let publish = || {
            let published = pool.publish(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) }, &parts);
            self.offer([hash], &[published]);
            published
        };
        guarded(|| Ok(outcome(py.detach(publish))))
    }

    /// Publishes blocks, each from the concatenation of its buffers.
    #[pyo3(signature = (hashes, depths, parts, *, names=None, parent=0))]
    fn publish_all(
        &self,
        py: Python<'_>,
        hashes: AnyHashes<'_>,
        depths: Items<u32>,
        parts: &Bound<'_, PyAny>,
        names: Option<Items<u64>>,
        parent: u64,
    ) -> PyResult<Vec<&'static str>> {
        let (pool, hashes) = (self.open.pool()?, self.names(&hashes));
        let new = self.new_blocks(&hashes, &depths.0, names.map(|names| names.0), parent)?;
        let lent = collect(parts, |parts| {
            let lent = Lent::take(parts, false)?;
            lent.fit(self.namespace.block_bytes)?;
            Ok(lent)
        })?;
        if lent.len() != new.len() {
            return Err(wrong(format!("{} payloads of {} blocks", lent.len(), new.len())));
        }
        let parts: Vec<Vec<&[u8]>> = lent.iter().map(Lent::parts).collect();
        let blocks: Vec<(NewBlock<'_>, &[&[u8]])> = new.into_iter().zip(parts.iter().map(Vec::as_slice)).collect();
        let publish = || {
            let outcomes = pool.publish_all(&blocks);
            self.offer(hashes.iter().copied(), &outcomes);
            outcomes
        };
        guarded(|| Ok(py.detach(publish).into_iter().map(outcome).collect()))
    }

    /// Reserves memory for blocks, for writes in place. None: a block is present, or there is no
    /// room for it.
    #[pyo3(signature = (hashes, depths, *, names=None, parent=0))]
    fn begin_all(
        &self,
        py: Python<'_>,
        hashes: AnyHashes<'_>,
        depths: Items<u32>,
        names: Option<Items<u64>>,
        parent: u64,
    ) -> PyResult<Vec<Option<Filling>>> {
        let (pool, hashes) = (self.open.pool()?, self.names(&hashes));
        let new = self.new_blocks(&hashes, &depths.0, names.map(|names| names.0), parent)?;
        let begun = guarded(|| Ok(py.detach(|| pool.begin_all_in_place(&new))))?;
        let below = self.below();
        let filling = |(begun, &hash): (Result<_, Publish>, &BlockHash)| {
            begun.ok().map(|filling| Filling::new(pool.clone(), filling, below.clone(), hash))
        };
        Ok(begun.into_iter().zip(&*hashes).map(filling).collect())
    }

    /// Computes the checksums of written blocks and publishes them.
    fn publish_filled(&self, py: Python<'_>, fillings: &Bound<'_, PyAny>) -> PyResult<Vec<&'static str>> {
        let pool = self.open.pool()?;
        let fillings = collect(fillings, |filling| Ok(filling.cast::<Filling>()?.clone().unbind()))?;
        let taken = Filling::take_all(&pool, fillings.iter().map(Py::get))?;
        let hashes: Vec<BlockHash> = fillings.iter().map(|filling| filling.get().hash).collect();
        let publish = || {
            let outcomes = pool.publish_in_place(taken);
            self.offer(hashes, &outcomes);
            outcomes
        };
        guarded(|| Ok(py.detach(publish).into_iter().map(outcome).collect()))
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
        let (pool, hash) = (self.open.pool()?, one(hash)?.name(&self.namespace.hasher));
        let begun = guarded(|| {
            Ok(py.detach(|| pool.begin_in_place(&NewBlock { names, ..NewBlock::new(&self.namespace, hash, depth) })))
        })?;
        Ok(begun.ok().map(|filling| Filling::new(pool, filling, self.below(), hash)))
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

    /// Keeps bytes for the blocks while other namespaces need room; 0: none.
    fn keep(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        let pool = self.open.pool()?;
        let kept = py.detach(|| pool.keep(self.namespace.id, bytes));
        kept.map_err(|error| crate::errors::of_pool(&self.open.name, &error))
    }

    #[getter]
    const fn id(&self) -> u16 {
        self.namespace.id.0
    }

    #[getter]
    const fn block_bytes(&self) -> u64 {
        self.namespace.block_bytes
    }

    #[getter]
    fn hashes_computed(&self) -> u64 {
        self.namespace.hasher.computed()
    }

    fn __repr__(&self) -> String {
        format!("Namespace({} of {:?}, blocks of {} bytes)", self.namespace.id.0, self.open.name, self.block_bytes())
    }
}
