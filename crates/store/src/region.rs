//! [`PrefixStore`] over a pool in a region.

use crate::{NamespaceSpec, PrefixMatch, PrefixStore};
use cenote_base::{BlockHash, Deadline, TokenId};
use cenote_mem::Fabric;
use cenote_pool::{Counter, Hit, Namespace, NamespaceRecord, Pin, Pool, PoolError, Publish, ReadOutcome};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An engine's blocks in a region: one namespace of one pool.
pub struct RegionStore<F: Fabric> {
    pool: Pool<F>,
    namespace: Namespace,
    block_tokens: usize,
    /// What the last lookups found, so that loading does not look up again.
    found: HashMap<BlockHash, Hit>,
    holds: Holds<F>,
    next_ticket: u64,
}

/// Holds by ticket; shared with whoever lets the expired ones go while the engine sleeps.
type Holds<F> = Arc<Mutex<BTreeMap<u64, Hold<F>>>>;

struct Hold<F: Fabric> {
    until: Deadline,
    /// Dropping a pin lets its block go.
    _pins: Vec<Pin<F>>,
}

/// Lookups remembered at most; then the memory starts anew, which costs a second lookup and nothing else.
const FOUND_MAX: usize = 1 << 16;

impl<F: Fabric> RegionStore<F> {
    /// Opens (or enters) the namespace of `spec`.
    ///
    /// # Errors
    /// Its blocks do not fit into the region's chunks, or the namespace table is full.
    pub fn new(pool: Pool<F>, spec: &NamespaceSpec) -> Result<Self, PoolError> {
        let namespace = pool.namespace(&NamespaceRecord {
            fingerprint: spec.fingerprint(),
            label: spec.label.clone(),
            block_bytes: spec.block_bytes(),
            block_tokens: spec.block_tokens,
            num_layers: spec.num_layers,
        })?;
        Ok(Self {
            pool,
            namespace,
            block_tokens: spec.block_tokens as usize,
            found: HashMap::new(),
            holds: Holds::default(),
            next_ticket: 1,
        })
    }

    /// Lets expired holds go when called, from any thread: call it about once a second.
    pub fn expirer(&self) -> impl Fn() + Send + use<F> {
        let holds = Arc::clone(&self.holds);
        move || lock(&holds).retain(|_, hold| !hold.until.passed())
    }
}

/// A panic elsewhere leaves the map as it is, which is good enough: every entry stands alone.
fn lock<F: Fabric>(holds: &Holds<F>) -> MutexGuard<'_, BTreeMap<u64, Hold<F>>> {
    holds.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Fabric> PrefixStore for RegionStore<F> {
    fn match_prefix(&mut self, tokens: &[TokenId]) -> PrefixMatch {
        let hashes = self.namespace.hasher.chain(tokens, self.block_tokens);
        let hits = self.pool.lookup(&hashes);
        if self.found.len() + hits.len() > FOUND_MAX {
            self.found.clear();
        }
        let num_matched = hits.len();
        self.found.extend(hits.into_iter().map(|hit| (hit.hash, hit)));
        PrefixMatch { hashes, num_matched }
    }

    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> bool {
        let remembered = self.found.remove(&hash);
        if let Some(hit) = remembered
            && self.pool.read(&hit, pages) == ReadOutcome::Whole
        {
            return true;
        }
        // What was remembered may have been evicted and published anew elsewhere: ask once more. The prompt's own lookup
        // was its use.
        let hits = self.pool.peek(&[hash]);
        hits.first().is_some_and(|hit| Some(*hit) != remembered && self.pool.read(hit, pages) == ReadOutcome::Whole)
    }

    fn save(&mut self, hash: BlockHash, depth: u32, pages: &[&[u8]]) -> bool {
        matches!(self.pool.publish(&self.namespace, hash, depth, pages), Publish::Published | Publish::Duplicate)
    }

    fn block_hash(&self, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash {
        self.namespace.hasher.block(parent, tokens)
    }

    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64 {
        let pins = self.pool.peek(hashes).iter().map_while(|hit| self.pool.pin(hit)).collect();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        lock(&self.holds).insert(ticket, Hold { until: Deadline::after(Duration::from_millis(ttl_ms)), _pins: pins });
        ticket
    }

    fn release(&mut self, ticket: u64) {
        lock(&self.holds).remove(&ticket);
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        let mut stats: BTreeMap<String, f64> =
            Counter::ALL.iter().map(|&c| (c.name().to_owned(), self.pool.counter(c) as f64)).collect();
        stats.insert("store_holds".to_owned(), lock(&self.holds).len() as f64);
        stats
    }
}
