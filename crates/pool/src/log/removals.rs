//! The ring of removed blocks: which block left, when, by which process, and why. It answers the
//! question why a prompt that was computed once is not in the pool (`cenote pool explain`).
//!
//! Each host writes its own ring. Lines are stored and not waited for, and nothing depends on them. A
//! line names a block by its hash, which is salted with the region's seed. Unlike the event log, it
//! says nothing of blocks that are there, and needs no reader.

use super::Log;
use crate::error::PoolError;
use crate::region::layout::Layout;
use crate::region::lines::{Line, RemovalLine};
use crate::region::superblock::Superblock;
use cenote_base::{BlockHash, BlockIndex, NamespaceId};
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// Why a block left the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Cause {
    /// Other blocks needed its space.
    Evicted = 1,
    /// Its model was over its quota.
    Quota = 2,
    /// It did not have its checksum or its seal.
    Damaged = 3,
    /// A caller forgot all blocks of its model.
    Forgotten = 4,
    /// Garbage collection could not use it.
    Collected = 5,
    /// A shorter form took its place, or found no room.
    Repacked = 6,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Evicted, Self::Quota, Self::Damaged, Self::Forgotten, Self::Collected, Self::Repacked];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Quota => "quota",
            Self::Damaged => "damaged",
            Self::Forgotten => "forgotten",
            Self::Collected => "collected",
            Self::Repacked => "repacked",
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u64 == number)
    }
}

/// A block that left the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// Its hash.
    pub hash: BlockHash,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its index in its sequence; 65,535: that or more.
    pub depth: u16,
    /// Why it left.
    pub cause: Cause,
    /// Microseconds since 1970, by the clock of the host that removed it.
    pub time_us: u64,
    /// Seconds since 1970 of its publication.
    pub stored: u32,
    /// The host that removed it.
    pub host: u8,
    /// The process that removed it, in that host's numbering.
    pub pid: u32,
}

/// Limit of sequence numbers that a host can reach; a line above it is forged.
const SEQUENCE_MAX: u64 = 1 << 62;

/// The removals in the rings of all hosts, by time. Needs no live process and writes nothing. Empty if
/// the region keeps none.
///
/// # Errors
/// The region is unreadable (see [`Superblock::read`]).
pub fn removals<F: Fabric>(fabric: &F) -> Result<Vec<Removal>, PoolError> {
    let superblock = Superblock::read(fabric)?;
    let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
    let salt = superblock.salt();
    let mut removals: Vec<(u64, Removal)> = (0..layout.max_hosts)
        .flat_map(|host| (0..layout.removals_per_host).map(move |position| (host, position)))
        .filter_map(|(host, position)| {
            let at = layout.removal(host, position);
            fabric.refresh(&[at]);
            let line = RemovalLine::open(fabric.load_line(at), at, salt)?;
            Some((line.sequence, line.at(host, position, layout.removals_per_host)?))
        })
        .collect();
    removals.sort_by_key(|(sequence, removal)| (removal.time_us, removal.host, *sequence));
    Ok(removals.into_iter().map(|(_, removal)| removal).collect())
}

impl RemovalLine {
    /// Whether a removal with its number belongs at this position of the ring.
    const fn is_at(&self, position: u64, removals: u64) -> bool {
        self.sequence >= 1 && self.sequence <= SEQUENCE_MAX && (self.sequence - 1) % removals == position
    }

    /// The removal in a host's line; `None`: it belongs to another place, or its cause is unknown.
    fn at(&self, host: u64, position: u64, removals: u64) -> Option<Removal> {
        let cause = Cause::from_number(self.what & 0xff)?;
        self.is_at(position, removals).then(|| Removal {
            hash: BlockHash::from_words(self.hash),
            namespace: NamespaceId((self.what >> 8) as u16),
            depth: (self.which >> 48) as u16,
            cause,
            time_us: self.time,
            stored: self.which as u32,
            host: host as u8,
            pid: self.pid as u32,
        })
    }
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// Notes that a block of this host leaves. Its descriptor is still there.
    pub(crate) fn note_removal(&self, block: BlockIndex, cause: Cause) {
        let removals = self.region.layout.removals_per_host;
        if removals == 0 {
            return;
        }
        // Without a descriptor its name is not known.
        let Some(descriptor) = self.region.read_descriptor(block) else { return };
        let next = self.region.next_removal();
        if next.load(Relaxed) == 0 {
            // New host memory does not record the end of the ring.
            let _ = next.compare_exchange(0, self.last_removal() + 1, Relaxed, Relaxed);
        }
        let sequence = next.fetch_add(1, Relaxed);
        let at = self.region.layout.removal(self.region.host, sequence.wrapping_sub(1) % removals);
        let line = RemovalLine {
            sequence,
            hash: descriptor.hash,
            time: u64::try_from(self.region.area.unix_time().as_micros()).unwrap_or(u64::MAX),
            what: cause as u64 | u64::from(descriptor.namespace()) << 8 | block.0 << 24,
            which: descriptor.stamp & 0xffff_ffff
                | (self.region.slot() & 0xffff) << 32
                | u64::from(descriptor.depth().min(0xffff)) << 48,
            pid: u64::from(std::process::id()),
            ..RemovalLine::default()
        };
        self.region.fabric.store_line(at, &line.seal(at, self.region.salt));
        // The next fence of this process completes the flush.
        self.region.fabric.publish_unfenced(at);
    }

    /// Number of the last removal in this host's ring.
    fn last_removal(&self) -> u64 {
        let removals = self.region.layout.removals_per_host;
        let lines = (0..removals).filter_map(|position| {
            let line = self.region.read::<RemovalLine>(self.region.layout.removal(self.region.host, position))?;
            line.is_at(position, removals).then_some(line.sequence)
        });
        lines.max().unwrap_or(0)
    }
}
