//! Settings: of a region, by its creator, and of a process that attaches.

use crate::error::PoolError;
use crate::region::layout::{NAMESPACES, SKETCH_LINES, SKETCHES};
use crate::region::seal::key_names;
use cenote_base::seal::{KeyId, Seal, SealKeys};
use cenote_base::{Clock, HashSeed, HostId};
use cenote_mem::LINE;
use cenote_policy::Eviction;
use std::time::Duration;

/// How blocks are found and evicted; recorded in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Design {
    /// Ours: readers take no lock.
    #[default]
    Cenote = 0,
    /// TraCT's (TraCT §4.2), for comparison: one lock, reference counts, one LRU list.
    Plain = 1,
}

impl Design {
    /// Every design.
    pub const ALL: [Self; 2] = [Self::Cenote, Self::Plain];

    /// Name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cenote => "cenote",
            Self::Plain => "plain",
        }
    }
}

/// The lock that hosts use between each other; recorded in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum HostsLock {
    /// Lamport's bakery over words that one host writes each: no manager, first come first served.
    #[default]
    Bakery = 0,
    /// TraCT's: a manager thread on one host grants (TraCT §3.3). For comparison: it stops with its
    /// manager, and a waiter that gives up while it is granted leaves the lock taken until its host
    /// asks again.
    Manager = 1,
}

impl HostsLock {
    /// The lock with this number in a superblock.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Bakery),
            1 => Some(Self::Manager),
            _ => None,
        }
    }
}

/// Fewest lines of a host's event log, if it has one.
pub const EVENTS_MIN: u32 = 16;
/// Most lines of a host's event log.
pub const EVENTS_MAX: u32 = 1 << 20;

/// Most lines of a host's ring of removed blocks.
pub const REMOVALS_MAX: u32 = 1 << 16;

/// Fewest lines of a host's record of requests, if it has one.
pub const REQUESTS_MIN: u32 = 16;
/// Most lines of a host's record of requests.
pub const REQUESTS_MAX: u32 = 1 << 16;

/// Most hazard lines of a worker.
const HAZARD_LINES_MAX: u16 = 1024;

/// Settings of a region, fixed at creation and recorded in the superblock. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Unit in which hosts claim space (TraCT §3.5): a power of two, 64 KiB to 512 MiB.
    pub chunk_bytes: u64,
    /// Smallest slot in a chunk; sets the number of descriptors per chunk. A power of two.
    pub min_block_bytes: u64,
    /// Host slots, 1 to 64.
    pub max_hosts: u8,
    /// Worker slots of each host, 1 to 1,024.
    pub workers_per_host: u16,
    /// Hazard lines of each worker; each pins seven blocks.
    pub hazard_lines_per_worker: u16,
    /// Lines of each host's flight recorder, 0 to 4,096 (see [`crate::history`]).
    pub records_per_host: u16,
    /// Lines of each host's event log: 0 (no log) or [`EVENTS_MIN`] to [`EVENTS_MAX`] (see
    /// [`crate::Follower`]).
    pub events_per_host: u32,
    /// Lines of each host's ring of removed blocks, 0 to 65,536 (see [`crate::removals`]).
    pub removals_per_host: u32,
    /// Lines of each host's record of requests: 0 (none, and no windows of distinct blocks) or
    /// [`REQUESTS_MIN`] to [`REQUESTS_MAX`] (see [`crate::requests`]).
    pub requests_per_host: u32,
    /// Rows of the namespace table, 1 to 256: models that workers have open or that have blocks.
    pub namespaces: u16,
    /// How hosts without shared caches exclude each other.
    pub hosts_lock: HostsLock,
    /// How blocks are found and evicted.
    pub design: Design,
    /// The policy that orders evictions.
    pub eviction: Eviction,
    /// How payloads are sealed.
    pub seal: Seal,
    /// Name of the key with which the creator seals; 0 without a seal.
    pub seal_key: u64,
    /// Secret from which all block hashes derive.
    pub seed: HashSeed,
    /// Identity of the region; names its host-local memory.
    pub uuid: [u8; 16],
    /// When the creator made it, in seconds since 1970, for reports; 0: not recorded.
    pub created: u64,
}

impl PoolConfig {
    /// The recommended configuration; `seed` and `uuid` should be random.
    #[must_use]
    pub const fn new(seed: HashSeed, uuid: [u8; 16]) -> Self {
        Self {
            chunk_bytes: 2 << 20,
            min_block_bytes: 16 << 10,
            max_hosts: 16,
            workers_per_host: 64,
            hazard_lines_per_worker: 64,
            records_per_host: 256,
            events_per_host: 0,
            removals_per_host: 0,
            requests_per_host: 0,
            namespaces: NAMESPACES as u16,
            hosts_lock: HostsLock::Bakery,
            design: Design::Cenote,
            eviction: Eviction::Lru,
            seal: Seal::None,
            seal_key: 0,
            seed,
            uuid,
            created: 0,
        }
    }

    /// Hazard lines with which a worker can pin so many blocks.
    #[must_use]
    pub fn hazard_lines_for(pins: u32) -> u16 {
        u16::try_from(pins.div_ceil(crate::region::layout::PINS_PER_LINE)).unwrap_or(u16::MAX)
    }

    /// Hazard lines of a worker in a new region of so many bytes, unless a setting names them: 1,792
    /// pins, or 448 below 256 MiB. A larger region has up to 7,168, as long as those of all workers
    /// take at most a 64th of it.
    #[must_use]
    pub fn hazard_lines_in(&self, region_bytes: u64) -> u16 {
        let least = if region_bytes < 256 << 20 { 64 } else { 256 };
        let line_of_all = u64::from(self.max_hosts) * u64::from(self.workers_per_host) * LINE;
        let lines = region_bytes / 64 / line_of_all.max(1);
        lines.clamp(least, u64::from(HAZARD_LINES_MAX)) as u16
    }

    /// Lines of a host's ring of removed blocks in a new region of so many bytes, unless a setting names
    /// them: those of all hosts take a 1,024th of it, and at most 4 MiB each.
    #[must_use]
    pub fn removals_in(&self, region_bytes: u64) -> u32 {
        let lines = region_bytes / 1024 / LINE / u64::from(self.max_hosts.max(1));
        u32::try_from(lines).unwrap_or(u32::MAX).min(REMOVALS_MAX)
    }

    /// Lines of a host's record of requests in a new region of so many bytes, unless a setting names them:
    /// those of all hosts take a 512th of it, and at most 4 MiB each. None if the sketches that belong to it
    /// would take more than a 32nd.
    #[must_use]
    pub fn requests_in(&self, region_bytes: u64) -> u32 {
        let hosts = u64::from(self.max_hosts.max(1));
        if hosts * SKETCHES * SKETCH_LINES * LINE > region_bytes / 32 {
            return 0;
        }
        let lines = region_bytes / 512 / LINE / hosts;
        u32::try_from(lines).unwrap_or(u32::MAX).clamp(REQUESTS_MIN, REQUESTS_MAX)
    }

    /// The same settings with payloads that are sealed by the first of these keys. Its name depends on the
    /// region's identity.
    #[must_use]
    pub fn sealed(self, seal: Seal, keys: &SealKeys) -> Self {
        let names = key_names(&self.uuid, seal, keys);
        Self { seal, seal_key: names[0].0, ..self }
    }

    /// Rejects settings that the format cannot hold.
    ///
    /// # Errors
    /// Names the field and its bounds.
    pub fn validate(&self) -> Result<(), PoolError> {
        let wrong = |text: String| Err(PoolError::Config(text));
        if !self.chunk_bytes.is_power_of_two() || !(64 << 10..=512 << 20).contains(&self.chunk_bytes) {
            return wrong(format!("chunk size {} is not a power of two between 64 KiB and 512 MiB", self.chunk_bytes));
        }
        if !self.min_block_bytes.is_power_of_two() || !(64..=self.chunk_bytes).contains(&self.min_block_bytes) {
            return wrong(format!(
                "smallest block {} is not a power of two between 64 and the chunk size",
                self.min_block_bytes
            ));
        }
        if self.chunk_bytes / self.min_block_bytes > 1 << 16 {
            return wrong("a chunk would have more than 65,536 descriptors; raise the smallest block".to_owned());
        }
        if !(1..=64).contains(&self.max_hosts) {
            return wrong(format!("{} host slots; a region has 1 to 64", self.max_hosts));
        }
        if !(1..=1024).contains(&self.workers_per_host) {
            return wrong(format!("{} worker slots per host; a host has 1 to 1,024", self.workers_per_host));
        }
        if !(1..=HAZARD_LINES_MAX).contains(&self.hazard_lines_per_worker) {
            return wrong(format!("{} hazard lines per worker; 1 to 1,024 are possible", self.hazard_lines_per_worker));
        }
        if self.records_per_host > 4096 {
            return wrong(format!("{} records per host; 0 to 4,096 are possible", self.records_per_host));
        }
        if self.events_per_host != 0 && !(EVENTS_MIN..=EVENTS_MAX).contains(&self.events_per_host) {
            return wrong(format!(
                "{} events per host; 0, or {EVENTS_MIN} to {EVENTS_MAX} are possible",
                self.events_per_host
            ));
        }
        if self.removals_per_host > REMOVALS_MAX {
            return wrong(format!("{} removals per host; 0 to {REMOVALS_MAX} are possible", self.removals_per_host));
        }
        if self.requests_per_host != 0 && !(REQUESTS_MIN..=REQUESTS_MAX).contains(&self.requests_per_host) {
            return wrong(format!(
                "{} lines per host for the record of requests; 0, or {REQUESTS_MIN} to {REQUESTS_MAX} are possible",
                self.requests_per_host
            ));
        }
        if !(1..=NAMESPACES).contains(&self.namespaces.into()) {
            return wrong(format!("{} namespaces; a region has 1 to {NAMESPACES}", self.namespaces));
        }
        if (self.seal == Seal::None) != (self.seal_key == 0) {
            return wrong(format!("seal `{}` and a key named {}", self.seal, KeyId(self.seal_key)));
        }
        if self.design == Design::Plain && self.eviction != Eviction::Lru {
            return wrong(format!("the plain design evicts by its own list, not by {}", self.eviction));
        }
        Ok(())
    }
}

/// Longest timeout. Sums of a few of them still fit durations and instants.
const TIMEOUT_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// Settings of a process that attaches.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// This operating system's host slot, assigned by the operator; 0 in regions of one host.
    pub host: HostId,
    /// Shown by `pool info`; cut at 16 bytes.
    pub worker_name: String,
    /// If given, the region must have this seed.
    pub expected_seed: Option<HashSeed>,
    /// Longest wait for any lock in the serving path; after it the operation is a miss.
    pub lock_timeout: Duration,
    /// Time without a heartbeat after which this host declares another one dead (see
    /// [`crate::Pool::tick`]).
    pub host_timeout: Duration,
    /// Further time until a dead host's space is reused, in case the host was only suspended.
    pub quarantine: Duration,
    /// The region is anonymous memory of this process; so is its host-local memory.
    pub private: bool,
    /// Keys of a sealed region. A worker needs them; a view of the region reads no payload without them.
    pub keys: Option<SealKeys>,
    /// Clock of all timeouts; `None`: the kernel's monotonic clock, which all processes of a host
    /// share. Memory that [`crate::Pool::attach_on`] is given has its own clock.
    pub clock: Option<Clock>,
}

impl AttachOptions {
    /// Rejects times that overflow.
    ///
    /// # Errors
    /// Names the time and its bound.
    pub(crate) fn validate(&self) -> Result<(), PoolError> {
        let times =
            [("lock timeout", self.lock_timeout), ("host timeout", self.host_timeout), ("quarantine", self.quarantine)];
        match times.into_iter().find(|(_, time)| *time > TIMEOUT_MAX) {
            Some((name, time)) => Err(PoolError::Config(format!(
                "a {name} of {} seconds; at most {} are possible",
                time.as_secs(),
                TIMEOUT_MAX.as_secs()
            ))),
            None => Ok(()),
        }
    }

    /// A worker of host 0 with this name.
    #[must_use]
    pub fn named(worker_name: &str) -> Self {
        Self {
            host: HostId(0),
            worker_name: worker_name.to_owned(),
            expected_seed: None,
            lock_timeout: Duration::from_millis(500),
            host_timeout: Duration::from_secs(10),
            quarantine: Duration::from_secs(30),
            private: false,
            keys: None,
            clock: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_region_has_more_pins_within_a_64th_of_it() {
        let config = PoolConfig::new(HashSeed([0; 32]), [0; 16]);
        let pins = |mib: u64| u32::from(config.hazard_lines_in(mib << 20)) * crate::region::layout::PINS_PER_LINE;
        let expected = [(1, 448), (255, 448), (256, 1792), (1024, 1792), (2048, 3584), (4096, 7168), (1 << 20, 7168)];
        assert_eq!(expected.map(|(mib, _)| (mib, pins(mib))), expected);
        // A prompt of 32,768 tokens in blocks of 16.
        assert!(pins(4096) >= 3 * 2048);
        let alone = PoolConfig { max_hosts: 1, ..config };
        assert_eq!(alone.hazard_lines_in(256 << 20), 1024);
        assert!(PoolConfig { hazard_lines_per_worker: alone.hazard_lines_in(u64::MAX), ..alone }.validate().is_ok());
    }
}
