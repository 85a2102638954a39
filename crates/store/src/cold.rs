//! L4 below a region: which blocks go down and which come back (docs/guides/cold.md).

use crate::beside::{BlockCopy, Readable, publish_copy, suits};
use cenote_base::{BlockHash, Clock, Deadline, HashSeed};
use cenote_cold::disk::LocalDisk;
use cenote_cold::identity::Identity;
use cenote_cold::record::{Head, Name};
use cenote_cold::{Address, Backend, Count, Extents, ExtentsConfig, Objects, Servers, TierConfig, Upper, identity_of};
pub use cenote_cold::{
    ColdError, Counters, DEFAULT_BYTES, ErrorKind, ParseSettingsError, Place, Promotion, Sealing, Settings, Tier, Used,
    WriteBehind, check_size,
};
use cenote_mem::Fabric;
use cenote_policy::fetch::Way;
use cenote_pool::{Counter, Hit, Names, Namespace, Pool, ReadOutcome};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

/// Most chunks with blocks that are written down before they are evicted.
const DEMOTED_CHUNKS_MAX: usize = 32;

/// The namespaces that this process has open, by fingerprint. Blocks of others stay below.
#[derive(Default)]
struct Opened(RwLock<HashMap<[u8; 32], OpenedOne>>);

#[derive(Clone)]
struct OpenedOne {
    namespace: Namespace,
    /// Blocks that its store reads. `None`: all, whatever their encoding is.
    readable: Option<Readable>,
}

impl Opened {
    fn one(&self, fingerprint: &[u8; 32]) -> Option<OpenedOne> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(fingerprint).cloned()
    }

    fn get(&self, fingerprint: &[u8; 32]) -> Option<Namespace> {
        self.one(fingerprint).map(|one| one.namespace)
    }

    fn all(&self) -> Vec<Namespace> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|one| one.namespace.clone()).collect()
    }

    fn add(&self, namespace: &Namespace, readable: Option<Readable>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(namespace.fingerprint(), OpenedOne { namespace: namespace.clone(), readable });
    }
}

/// L4 below one region, for one process. All its stores and connectors share it.
pub struct ColdTier {
    tier: Tier,
    opened: Arc<Opened>,
    settings: Settings,
}

/// The seal of a pool's region with the pool's keys, for a place below it. No worker joins a sealed
/// region without a key, so `None` says that the region has no seal.
#[must_use]
pub fn sealing_of<F: Fabric>(pool: &Pool<F>) -> Sealing {
    pool.seal_keys().map(|keys| (pool.seal(), keys.clone()))
}

/// The hash seed of the regions that share a place. A new place gets `own`, and the seal of the
/// settings.
///
/// # Errors
/// The place cannot be read or made, is another user's, is of another version, or has another seal than
/// the settings.
pub fn seed_of(settings: &Settings, own: &HashSeed, clock: Clock) -> Result<HashSeed, ColdError> {
    let own = Identity { seed: *own, bytes_max: settings.bytes.unwrap_or(DEFAULT_BYTES) };
    let found = match &settings.place {
        Place::Directory(path) => identity_of(&LocalDisk, path, &own, &settings.seal),
        Place::Objects(url) => objects_of(url, settings, clock)?.identity(&own),
        Place::Server(address) => servers_of(address, settings, clock)?.identity(&own),
    };
    Ok(found?.seed)
}

fn objects_of(url: &str, settings: &Settings, clock: Clock) -> Result<Objects, ColdError> {
    let objects = Objects::new(url, settings.bytes, settings.deadline, clock)?;
    Ok(objects.sealed_by(settings.seal.clone()))
}

fn servers_of(address: &Address, settings: &Settings, clock: Clock) -> Result<Servers, ColdError> {
    Ok(Servers::new(address, settings.deadline, clock)?.sealed_by(settings.seal.clone()))
}

fn backend_of(settings: &Settings, clock: Clock) -> Result<Box<dyn Backend>, ColdError> {
    match &settings.place {
        Place::Directory(path) => {
            let config = ExtentsConfig { directory: path.clone(), bytes: settings.bytes };
            Ok(Box::new(Extents::new(config, Arc::new(LocalDisk), clock).sealed_by(settings.seal.clone())))
        }
        Place::Objects(url) => Ok(Box::new(objects_of(url, settings, clock)?)),
        Place::Server(address) => Ok(Box::new(servers_of(address, settings, clock)?)),
    }
}

impl ColdTier {
    /// Starts L4 below the pool's region, with the region's seal. It is opened in the background; until
    /// then lookups miss.
    ///
    /// # Errors
    /// The settings name a place that this program cannot use.
    pub fn start<F: Fabric + 'static>(
        pool: Pool<F>,
        settings: &Settings,
        clock: Clock,
    ) -> Result<Arc<Self>, ColdError> {
        let settings = &Settings { seal: sealing_of(&pool), ..settings.clone() };
        Ok(Self::over(pool, backend_of(settings, clock)?, settings, clock))
    }

    /// As [`ColdTier::start`], over any backend. The place has the seal of the settings.
    #[must_use]
    pub fn over<F: Fabric + 'static>(
        pool: Pool<F>,
        backend: Box<dyn Backend>,
        settings: &Settings,
        clock: Clock,
    ) -> Arc<Self> {
        let opened = Arc::<Opened>::default();
        let seed = pool.superblock().config.seed;
        let config =
            TierConfig { seed, seal: settings.seal.clone(), write: settings.write, deadline: settings.deadline, clock };
        let upper = Region { pool, opened: Arc::clone(&opened) };
        Arc::new(Self { tier: Tier::start(Box::new(upper), backend, config), opened, settings: settings.clone() })
    }

    /// Blocks of this namespace go down and come back from now on.
    pub fn open(&self, namespace: &Namespace) {
        self.opened.add(namespace, None);
    }

    /// As [`ColdTier::open`]. Blocks that are not readable stay below.
    pub fn open_for(&self, namespace: &Namespace, readable: Readable) {
        self.opened.add(namespace, Some(readable));
    }

    /// Queues blocks that the region has for writing. Never waits.
    pub fn offer(&self, namespace: &Namespace, hashes: impl IntoIterator<Item = BlockHash>) {
        let fingerprint = namespace.fingerprint();
        self.tier.offer(hashes.into_iter().map(|hash| Name { namespace: fingerprint, hash }));
    }

    /// Number of leading blocks that L4 lists.
    #[must_use]
    pub fn count(&self, namespace: &Namespace, hashes: &[BlockHash]) -> usize {
        self.tier.count(&names(namespace, hashes))
    }

    /// Number of leading blocks that L4 lists or must ask its place for.
    #[must_use]
    pub fn may_have(&self, namespace: &Namespace, hashes: &[BlockHash]) -> usize {
        self.tier.may_have(&names(namespace, hashes))
    }

    /// Begins to promote the leading blocks that L4 has, as far as it pays. `None`: nothing does.
    #[must_use]
    pub fn promote(&self, namespace: &Namespace, missing: &[BlockHash]) -> Option<Promotion> {
        self.tier.promote(&names(namespace, missing))
    }

    /// As [`ColdTier::promote`], for blocks in any order: all that L4 has.
    #[must_use]
    pub fn promote_any(&self, namespace: &Namespace, missing: &[BlockHash]) -> Option<Promotion> {
        self.tier.promote_any(&names(namespace, missing))
    }

    /// What reading these blocks costs now, all of which L4 lists. `None`: there are none.
    #[must_use]
    pub fn way(&self, namespace: &Namespace, listed: &[BlockHash]) -> Option<Way> {
        self.tier.way(&names(namespace, listed))
    }

    /// KV of so many tokens was computed in `ns`: what a read from L4 saves.
    pub fn has_computed(&self, tokens: u64, ns: u64) {
        self.tier.has_computed(tokens, ns);
    }

    /// Waits until L4 is open and its list is complete.
    pub fn wait_open(&self, deadline: Deadline) -> bool {
        self.tier.wait_open(deadline)
    }

    /// Waits until all offered blocks are written or dropped.
    pub fn settle(&self, deadline: Deadline) -> bool {
        self.tier.settle(deadline)
    }

    /// Counters and gauges by Prometheus name, without prefix.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, f64> {
        self.tier.stats()
    }

    /// The most recent error of this process.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.tier.last_error()
    }

    /// Why it takes or gives no blocks now; `None`: it works.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let place = &self.settings.place;
        if !self.tier.is_open() {
            // At the start it is not open for a moment, without an error.
            let error = self.tier.last_error()?;
            return Some(format!("the cold tier in {place} is closed: {error}"));
        }
        let kind = self.tier.recent_error()?;
        Some(match kind {
            ErrorKind::Full if matches!(place, Place::Server(_)) => {
                format!("the server of the cold tier in {place} is full: blocks are not written")
            }
            ErrorKind::Full => format!("the disk of the cold tier in {place} is full: blocks are not written"),
            _ => format!("the cold tier in {place} had errors of kind `{}` in the last minutes", kind.name()),
        })
    }

    /// The settings that it was started with.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
}

fn names(namespace: &Namespace, hashes: &[BlockHash]) -> Vec<Name> {
    let fingerprint = namespace.fingerprint();
    hashes.iter().map(|&hash| Name { namespace: fingerprint, hash }).collect()
}

/// What a place holds, seen from outside. Nothing is opened or changed.
///
/// # Errors
/// The place is not there or cannot be read.
pub fn survey(settings: &Settings, clock: Clock) -> Result<Used, ColdError> {
    backend_of(settings, clock)?.survey()
}

/// Sets the limit that lies in a place, and removes its oldest blocks until it holds. Returns what the
/// place holds then.
///
/// # Errors
/// There is no place, or it cannot be written.
pub fn resize(settings: &Settings, bytes_max: u64, clock: Clock) -> Result<Used, ColdError> {
    let backend = backend_of(settings, clock)?;
    backend.resize(bytes_max)?;
    backend.survey()
}

/// The counter of the region's host.
const fn counter_of(count: Count) -> Counter {
    match count {
        Count::Found => Counter::ColdFound,
        Count::Hits => Counter::ColdHits,
        Count::Misses => Counter::ColdMisses,
        Count::Late => Counter::ColdLate,
        Count::ReadsRefused => Counter::ColdReadsRefused,
        Count::ReadsSkipped => Counter::ColdReadsSkipped,
        Count::Offered => Counter::ColdOffered,
        Count::Written => Counter::ColdWritten,
        Count::Duplicates => Counter::ColdDuplicates,
        Count::Skipped => Counter::ColdSkipped,
        Count::DroppedBusy => Counter::ColdDroppedBusy,
        Count::DroppedGone => Counter::ColdDroppedGone,
        Count::DroppedFailed => Counter::ColdDroppedFailed,
        Count::ReadBytes => Counter::ColdReadBytes,
        Count::WrittenBytes => Counter::ColdWrittenBytes,
        Count::Reclaimed => Counter::ColdReclaimed,
        Count::Errors => Counter::ColdErrors,
    }
}

/// The region, as L4 sees it.
struct Region<F: Fabric> {
    pool: Pool<F>,
    opened: Arc<Opened>,
}

impl<F: Fabric> Region<F> {
    fn hit(&self, name: &Name) -> Option<Hit> {
        self.pool.peek(&[name.hash]).first().copied()
    }
}

impl<F: Fabric + 'static> Upper for Region<F> {
    fn describe(&self, name: &Name) -> Option<Head> {
        let namespace = self.opened.get(&name.namespace)?;
        let listed = self.pool.describe(&self.hit(name)?)?;
        let head = Head {
            name: *name,
            length: listed.hit.length,
            depth: listed.depth,
            encoding: listed.hit.encoding,
            names: [listed.names.name, listed.names.parent],
        };
        // A block of another namespace under this name is damage; it would be stored misnamed.
        (listed.namespace == namespace.id && suits(&namespace, head.encoding, head.length)).then_some(head)
    }

    fn copy(&self, head: &Head, payload: &mut [u8]) -> bool {
        let same = |hit: &Hit| hit.length == head.length && hit.encoding == head.encoding;
        let hit = self.hit(&head.name).filter(same);
        hit.is_some_and(|hit| self.pool.read(&hit, &mut [payload]) == ReadOutcome::Whole)
    }

    fn publish(&self, head: &Head, payload: &[u8]) -> bool {
        let Some(OpenedOne { namespace, readable }) = self.opened.one(&head.name.namespace) else { return false };
        // Published, it would keep the store's own block out.
        if readable.is_some_and(|readable| !readable.reads(head.encoding, payload)) {
            return false;
        }
        let [name, parent] = head.names;
        let (hash, names) = (head.name.hash, Names { name, parent });
        let copy = BlockCopy { hash, depth: head.depth, encoding: head.encoding, names };
        payload.len() as u64 == head.length && publish_copy(&self.pool, &namespace, &copy, payload)
    }

    fn coldest(&self) -> Vec<Name> {
        let mut names = Vec::new();
        for namespace in self.opened.all() {
            // While the region has room, nothing is about to leave it.
            if !self.pool.has_room(&namespace, namespace.block_bytes) {
                let chunks = self.pool.coldest(&namespace, DEMOTED_CHUNKS_MAX, &|_| true);
                let fingerprint = namespace.fingerprint();
                names.extend(chunks.concat().iter().map(|cold| Name { namespace: fingerprint, hash: cold.hit.hash }));
            }
        }
        names
    }

    fn tokens(&self, name: &Name) -> u64 {
        self.opened.get(&name.namespace).map_or(0, |namespace| namespace.block_tokens.into())
    }

    fn length_max(&self, name: &Name) -> u64 {
        self.opened.get(&name.namespace).map_or(0, |namespace| namespace.block_bytes)
    }

    fn count(&self, count: Count, by: u64) {
        self.pool.count(counter_of(count), by);
    }
}
