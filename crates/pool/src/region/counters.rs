//! Counters that all processes of a host share, in host-local memory, for `pool info` and metrics.

use crate::region::cause::Cause;
use cenote_mem::Word;
use serde::Serialize;
use std::sync::atomic::Ordering;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal),* $(,)?) => {
        /// A counter of this host.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Counter { $($(#[doc = $doc])* $name),* }

        impl Counter {
            /// All counters.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Prometheus name, without prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// What it counts, in a sentence or two.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),*).trim_start()),* }
            }
        }
    };
}

counters! {
    /// Blocks in lookups.
    Lookups = "pool_lookups_total",
    /// Blocks found in lookups.
    Found = "pool_lookup_hits_total",
    /// Blocks read whole.
    Reads = "pool_reads_total",
    /// Bytes read.
    ReadBytes = "pool_read_bytes_total",
    /// Reads of blocks that were evicted or reused meanwhile.
    ReadsStale = "pool_reads_stale_total",
    /// Reads with a wrong checksum.
    ReadsDamaged = "pool_reads_damaged_total",
    /// Rows copied by gathers.
    RowsGathered = "pool_rows_gathered_total",
    /// Rows that gathers reported as misses.
    RowsMissed = "pool_rows_missed_total",
    /// Blocks published.
    Published = "pool_published_total",
    /// Bytes published.
    PublishedBytes = "pool_published_bytes_total",
    /// Publishes of blocks that were there already.
    Duplicates = "pool_duplicates_total",
    /// Publishes that found no room.
    NoRoom = "pool_no_room_total",
    /// Publishes that exceeded their namespace's quota.
    QuotaRefused = "pool_quota_refused_total",
    /// Blocks evicted.
    Evicted = "pool_evicted_total",
    /// Evictions postponed because the block was pinned.
    EvictionsPinned = "pool_evictions_pinned_total",
    /// Blocks republished in fewer bytes.
    Repacked = "pool_repacked_total",
    /// Lock acquisitions that timed out.
    LockTimeouts = "pool_lock_timeouts_total",
    /// Locks left by a holder that died in the critical section.
    LocksAbandoned = "pool_locks_abandoned_total",
    /// Dead workers recovered.
    WorkersRecovered = "pool_workers_recovered_total",
    /// Reservations of dead workers freed.
    ReservationsRecovered = "pool_reservations_recovered_total",
    /// Hosts that this host declared dead.
    HostsDeclaredDead = "pool_hosts_declared_dead_total",
    /// Chunks that this host took from living hosts, or released for them (the plain design).
    ChunksShared = "pool_chunks_shared_total",
    /// Chunks adopted from dead hosts.
    ChunksAdopted = "pool_chunks_adopted_total",
    /// Corrupt structures found (stale index hints are not among them).
    Damaged = "pool_damaged_total",
    /// Prompt tokens that engines computed in steps that loaded nothing.
    ComputedTokens = "pool_computed_tokens_total",
    /// Nanoseconds of these steps.
    ComputedNs = "pool_computed_ns_total",
    /// Bytes of the blocks that engines loaded as they are, and timed.
    LoadedBytes = "pool_loaded_bytes_total",
    /// Nanoseconds of these loads.
    LoadedNs = "pool_loaded_ns_total",
    /// Blocks that lookups missed here and found in the cold tier's list.
    ColdFound = "pool_cold_found_total",
    /// Of these: blocks that the cold tier published in time.
    ColdHits = "pool_cold_hits_total",
    /// Blocks that could not be read or published.
    ColdMisses = "pool_cold_misses_total",
    /// Blocks that came after their deadline.
    ColdLate = "pool_cold_late_total",
    /// Blocks not read, because too many reads were waiting.
    ColdReadsRefused = "pool_cold_reads_refused_total",
    /// Blocks not read, because computing them takes less time.
    ColdReadsSkipped = "pool_cold_reads_skipped_total",
    /// Blocks offered to the cold tier. Each is also counted below, unless it waits, or its process
    /// died before it was written.
    ColdOffered = "pool_cold_offered_total",
    /// Blocks written.
    ColdWritten = "pool_cold_written_total",
    /// Blocks not written, because the cold tier has them.
    ColdDuplicates = "pool_cold_duplicates_total",
    /// Blocks not written, because computing them again takes less time.
    ColdSkipped = "pool_cold_skipped_total",
    /// Blocks not written, because too many were waiting.
    ColdDroppedBusy = "pool_cold_dropped_busy_total",
    /// Blocks not written, because they were evicted before their turn.
    ColdDroppedGone = "pool_cold_dropped_gone_total",
    /// Blocks not written, because writing failed.
    ColdDroppedFailed = "pool_cold_dropped_failed_total",
    /// Bytes read from the cold tier.
    ColdReadBytes = "pool_cold_read_bytes_total",
    /// Bytes written to the cold tier.
    ColdWrittenBytes = "pool_cold_written_bytes_total",
    /// Extents or objects removed to keep the cold tier's limit.
    ColdReclaimed = "pool_cold_reclaimed_total",
    /// Errors of the cold tier.
    ColdErrors = "pool_cold_errors_total",
}

/// Upper bounds in seconds of the classes of residence. A further class has no bound.
pub const RESIDENCE_SECONDS: [u32; 8] = [1, 10, 60, 300, 900, 3_600, 14_400, 86_400];

/// Words of a set: the counters, removals by cause, and their residence by class and in seconds.
const REMOVED: usize = Counter::ALL.len();
const RESIDENCE: usize = REMOVED + Cause::ALL.len();
const RESIDENCE_SUM: usize = RESIDENCE + RESIDENCE_SECONDS.len() + 1;
/// Words that a set needs.
pub const SET_WORDS: usize = RESIDENCE_SUM + 1;

/// How long blocks were in the pool that this host has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Residence {
    /// Blocks by class: of [`RESIDENCE_SECONDS`], the first bound that is not exceeded, or the last class.
    pub blocks: [u64; RESIDENCE_SECONDS.len() + 1],
    /// Seconds of all of them.
    pub seconds: u64,
}

/// View of the counters' words: several sets, which are summed.
#[derive(Clone, Copy)]
pub struct Counters<'a, W> {
    pub words: &'a [W],
    pub set_words: usize,
    /// The set that this worker counts into.
    pub own_set: usize,
}

impl<W: Word<u64>> Counters<'_, W> {
    pub fn add(&self, counter: Counter, count: u64) {
        self.add_at(counter as usize, count);
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.sum_at(counter as usize)
    }

    /// Counts a block that left after so many seconds.
    pub fn removed(&self, cause: Cause, seconds: u32) {
        self.add_at(REMOVED + cause.place(), 1);
        self.add_at(RESIDENCE + RESIDENCE_SECONDS.partition_point(|&bound| bound < seconds), 1);
        self.add_at(RESIDENCE_SUM, u64::from(seconds));
    }

    /// Blocks that left, by cause.
    pub fn removed_by(&self, cause: Cause) -> u64 {
        self.sum_at(REMOVED + cause.place())
    }

    pub fn residence(&self) -> Residence {
        Residence {
            blocks: std::array::from_fn(|class| self.sum_at(RESIDENCE + class)),
            seconds: self.sum_at(RESIDENCE_SUM),
        }
    }

    fn add_at(&self, word: usize, count: u64) {
        self.words[self.own_set * self.set_words + word].fetch_add(count, Ordering::Relaxed);
    }

    fn sum_at(&self, word: usize) -> u64 {
        let sets = self.words.chunks(self.set_words).map(|set| set[word].load(Ordering::Relaxed));
        // A stranger may write them.
        sets.fold(0, u64::wrapping_add)
    }
}
