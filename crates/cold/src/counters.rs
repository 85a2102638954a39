//! Counters of one process, and its log lines about failures.

use crate::error::{ColdError, ErrorKind};
use cenote_base::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Age up to which an error is recent.
const RECENT: Duration = Duration::from_mins(5);

/// Least time between two log lines about errors of one kind.
const QUIET: Duration = Duration::from_secs(30);

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// What a process counts of L4.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Count { $($(#[$doc])* $name),* }

        impl Count {
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

counts! {
    /// Blocks that lookups missed above and found in L4's list.
    Found = "cold_found_total",
    /// Blocks read whole and published above.
    Hits = "cold_hits_total",
    /// Blocks that L4's list has and that could not be read or published.
    Misses = "cold_misses_total",
    /// Blocks that arrived after their deadline. The reader computed them; they are shared anyway.
    Late = "cold_late_total",
    /// Blocks that were not read, because too many reads were waiting.
    ReadsRefused = "cold_reads_refused_total",
    /// Listed blocks that were not read, because computing them takes less time.
    ReadsSkipped = "cold_reads_skipped_total",
    /// Blocks offered for writing. Each is also counted below, unless it waits or its process died.
    Offered = "cold_offered_total",
    /// Blocks written.
    Written = "cold_written_total",
    /// Blocks not written, because L4 has them or they wait already.
    Duplicates = "cold_duplicates_total",
    /// Blocks not written, because computing them again takes less time.
    Skipped = "cold_skipped_total",
    /// Blocks not written, because too many were waiting.
    DroppedBusy = "cold_dropped_busy_total",
    /// Blocks not written, because they were evicted before their turn.
    DroppedGone = "cold_dropped_gone_total",
    /// Blocks not written, because writing failed.
    DroppedFailed = "cold_dropped_failed_total",
    /// Bytes of payload read.
    ReadBytes = "cold_read_bytes_total",
    /// Bytes of payload written.
    WrittenBytes = "cold_written_bytes_total",
    /// Extents or objects removed to keep the limit.
    Reclaimed = "cold_reclaimed_total",
    /// Errors of all kinds.
    Errors = "cold_errors_total",
}

/// What one process did with L4.
#[derive(Debug, Default)]
pub struct Counters {
    counts: [AtomicU64; Count::ALL.len()],
    errors: [AtomicU64; ErrorKind::ALL.len()],
    said: Mutex<[Said; ErrorKind::ALL.len()]>,
    last_error: Mutex<Option<String>>,
}

/// The last log line of a kind, and the errors since.
#[derive(Debug, Default)]
struct Said {
    /// Nanoseconds of the tier's clock.
    at_ns: Option<u64>,
    since: u64,
    /// When the last error happened, logged or not.
    last_ns: Option<u64>,
}

impl Counters {
    /// Values by Prometheus name, without prefix.
    #[must_use]
    pub fn values(&self) -> BTreeMap<String, f64> {
        let counts = Count::ALL.iter().map(|&count| (count.name().to_owned(), self.get(count) as f64));
        let errors =
            ErrorKind::ALL.map(|kind| (format!("cold_errors_{}_total", kind.name()), self.errors(kind) as f64));
        counts.chain(errors).collect()
    }

    /// Value of a counter.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    pub(crate) fn add(&self, count: Count, by: u64) {
        self.counts[count as usize].fetch_add(by, Relaxed);
    }

    /// Counts an error. Logs it, unless another of its kind was logged a moment ago by `clock`.
    pub(crate) fn fail(&self, error: &ColdError, clock: Clock) {
        let kind = error.kind();
        self.errors[kind as usize].fetch_add(1, Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = &mut said[kind as usize];
        said.last_ns = Some(clock.now_ns());
        if said.at_ns.is_some_and(|at_ns| clock.since(at_ns) < QUIET) {
            said.since += 1;
            return;
        }
        tracing::warn!(%error, kind = kind.name(), not_logged = said.since, "the cold tier failed; serving goes on without it");
        (said.at_ns, said.since) = (said.last_ns, 0);
    }

    /// The kind of the last error, if it happened in the last minutes.
    pub(crate) fn recent_error(&self, clock: Clock) -> Option<ErrorKind> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let last = ErrorKind::ALL.into_iter().filter_map(|kind| Some((said[kind as usize].last_ns?, kind)));
        let (at_ns, kind) = last.max_by_key(|(at_ns, _)| *at_ns)?;
        (clock.since(at_ns) < RECENT).then_some(kind)
    }

    /// Number of errors of a kind.
    #[must_use]
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize].load(Relaxed)
    }

    /// The most recent error of this process.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
