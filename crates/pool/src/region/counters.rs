//! Counters that all processes of a host share, in host-local memory: what `pool info` and metrics show.

use cenote_mem::Word;
use std::sync::atomic::Ordering;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// A counter of this host.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Counter { $($(#[$doc])* $name),* }

        impl Counter {
            /// All counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Prometheus name, without prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

counters! {
    /// Blocks asked for in lookups.
    Lookups = "pool_lookups_total",
    /// Blocks found in lookups.
    Found = "pool_lookup_hits_total",
    /// Blocks read whole.
    Reads = "pool_reads_total",
    /// Bytes read.
    ReadBytes = "pool_read_bytes_total",
    /// Reads that met another generation or state.
    ReadsStale = "pool_reads_stale_total",
    /// Reads whose checksum did not hold.
    ReadsDamaged = "pool_reads_damaged_total",
    /// Blocks published.
    Published = "pool_published_total",
    /// Bytes published.
    PublishedBytes = "pool_published_bytes_total",
    /// Publishes that found the block there already.
    Duplicates = "pool_duplicates_total",
    /// Publishes without room.
    NoRoom = "pool_no_room_total",
    /// Publishes that would have gone over their namespace's quota.
    QuotaRefused = "pool_quota_refused_total",
    /// Blocks evicted.
    Evicted = "pool_evicted_total",
    /// Evictions put off because the block was pinned.
    EvictionsPinned = "pool_evictions_pinned_total",
    /// Blocks published anew in fewer bytes.
    Repacked = "pool_repacked_total",
    /// Locks not got within their deadline.
    LockTimeouts = "pool_lock_timeouts_total",
    /// Locks whose holder died inside.
    LocksAbandoned = "pool_locks_abandoned_total",
    /// Dead workers cleaned up after.
    WorkersRecovered = "pool_workers_recovered_total",
    /// Block reservations of dead workers given back.
    ReservationsRecovered = "pool_reservations_recovered_total",
    /// Hosts that this host declared dead.
    HostsDeclaredDead = "pool_hosts_declared_dead_total",
    /// Chunks given back because another host had too few.
    ChunksShared = "pool_chunks_shared_total",
    /// Chunks taken over from dead hosts.
    ChunksAdopted = "pool_chunks_adopted_total",
    /// Structures that did not hold (index hints that led nowhere are not among them).
    Damaged = "pool_damaged_total",
}

/// View of the counters' words: several sets, which add up.
#[derive(Clone, Copy)]
pub struct Counters<'a, W> {
    pub words: &'a [W],
    pub set_words: usize,
    /// The set that this worker counts into.
    pub own_set: usize,
}

impl<W: Word<u64>> Counters<'_, W> {
    pub fn add(&self, counter: Counter, count: u64) {
        self.words[self.own_set * self.set_words + counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.words.chunks(self.set_words).map(|set| set[counter as usize].load(Ordering::Relaxed)).sum()
    }
}
