//! Counters of one process, and its log lines about failures.

use crate::error::{ColdError, ErrorKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two log lines about errors of one kind.
const QUIET: Duration = Duration::from_secs(30);

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// What one process did with L4.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
            errors: [AtomicU64; ErrorKind::ALL.len()],
            said: Mutex<[Said; ErrorKind::ALL.len()]>,
            last_error: Mutex<Option<String>>,
        }

        impl Counters {
            /// Values by Prometheus name, without prefix.
            #[must_use]
            pub fn values(&self) -> BTreeMap<String, f64> {
                let mut values = BTreeMap::from([$(($text.to_owned(), self.$name.load(Relaxed) as f64)),*]);
                for kind in ErrorKind::ALL {
                    let name = format!("cold_errors_{}_total", kind.name());
                    values.insert(name, self.errors[kind as usize].load(Relaxed) as f64);
                }
                values
            }
        }
    };
}

counters! {
    /// Blocks that lookups missed above and found in L4's list.
    found = "cold_found_total",
    /// Blocks read whole and published above.
    hits = "cold_hits_total",
    /// Blocks that L4's list has and that could not be read or published.
    misses = "cold_misses_total",
    /// Blocks that arrived after their deadline. The reader computed them; they are shared anyway.
    late = "cold_late_total",
    /// Blocks that were not read, because too many reads were waiting.
    reads_refused = "cold_reads_refused_total",
    /// Blocks written.
    written = "cold_written_total",
    /// Blocks not written, because L4 has them.
    duplicates = "cold_duplicates_total",
    /// Blocks not written, because too many were waiting.
    dropped_busy = "cold_dropped_busy_total",
    /// Blocks not written, because they were evicted before their turn.
    dropped_gone = "cold_dropped_gone_total",
    /// Blocks not written, because writing failed.
    dropped_failed = "cold_dropped_failed_total",
    /// Bytes of payload read.
    bytes_in = "cold_read_bytes_total",
    /// Bytes of payload written.
    bytes_out = "cold_written_bytes_total",
    /// Extents or objects removed to keep the limit.
    reclaimed = "cold_reclaimed_total",
}

/// The last log line of a kind, and the errors since.
#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    since: u64,
}

impl Counters {
    /// Counts an error. Logs it, unless another of its kind was logged a moment ago.
    pub fn fail(&self, error: &ColdError) {
        let kind = error.kind();
        self.errors[kind as usize].fetch_add(1, Relaxed);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = &mut said[kind as usize];
        if said.at.is_some_and(|at| at.elapsed() < QUIET) {
            said.since += 1;
            return;
        }
        tracing::warn!(%error, kind = kind.name(), not_logged = said.since, "the cold tier misses a block");
        *said = Said { at: Some(Instant::now()), since: 0 };
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

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}
