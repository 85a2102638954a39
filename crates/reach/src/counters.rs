//! Counters of one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// What a process counts of its peers.
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
    /// Blocks that the region lacked and that were sought at peers.
    Sought = "remote_sought_total",
    /// Blocks found at a peer.
    Found = "remote_found_total",
    /// Blocks read whole and published in time.
    Hits = "remote_hits_total",
    /// Bytes of payload read.
    ReadBytes = "remote_read_bytes_total",
    /// Blocks that were sought and at no peer that was asked.
    Absent = "remote_absent_total",
    /// Blocks that were evicted or reused at the peer while they were read.
    Stale = "remote_stale_total",
    /// Blocks with a wrong checksum, seal, namespace or length.
    Wrong = "remote_wrong_total",
    /// Blocks in an encoding, codec or profile that this process does not read.
    Unreadable = "remote_unreadable_total",
    /// Blocks that had not arrived at their deadline.
    Late = "remote_late_total",
    /// Blocks that were not read because the peer failed.
    Failed = "remote_failed_total",
    /// Blocks that were not sought, because too many requests were waiting.
    Refused = "remote_refused_total",
    /// Blocks that were not sought, because computing them takes less time.
    Declined = "remote_declined_total",
    /// Blocks that were read and found no room here.
    NoRoom = "remote_no_room_total",
    /// Times that a peer became suspect.
    Suspected = "remote_suspected_total",
    /// Connections made.
    Connections = "remote_connections_total",
}

/// What one process did with its peers.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; Count::ALL.len()]);

impl Counters {
    /// Value of a counter.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Relaxed)
    }

    pub(crate) fn add(&self, count: Count, by: u64) {
        self.0[count as usize].fetch_add(by, Relaxed);
    }

    /// Values by Prometheus name, without prefix.
    #[must_use]
    pub fn values(&self) -> BTreeMap<String, f64> {
        Count::ALL.iter().map(|&count| (count.name().to_owned(), self.get(count) as f64)).collect()
    }
}
