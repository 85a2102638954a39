//! The ring of removed blocks: which block left, when, by which process, and why. It answers the
//! question why a prompt that was computed once is not in the pool (`cenote pool explain`).
//!
//! Each host writes its own ring. Lines are stored and not waited for, and nothing depends on them. A
//! line names a block by its hash, which is salted with the region's seed. Unlike the event log, it
//! says nothing of blocks that are there, and needs no reader.

use super::Log;
use super::ring::RingLine;
use crate::error::PoolError;
use crate::region::cause::Cause;
use crate::region::layout::Layout;
use crate::region::lines::{Descriptor, RemovalLine};
use crate::region::superblock::Superblock;
use cenote_base::{BlockHash, BlockIndex, NamespaceId};
use cenote_mem::{Fabric, HostLocal, Word};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

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

/// The last removals of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removals {
    /// By time.
    pub all: Vec<Removal>,
    /// Microseconds since 1970 from which on no host's ring has overwritten any; `None`: none has.
    pub since_us: Option<u64>,
}

/// Bounds in seconds of the time until a removed block was stored again.
pub const RETURN_SECONDS: [u64; 5] = [10, 60, 300, 900, 3_600];

/// Removed blocks that were stored again: what a larger region would have kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Returns {
    /// Removals for room or by a quota that the rings still have.
    pub removed: u64,
    /// Of these: stored again within each of [`RETURN_SECONDS`].
    pub within: [u64; RETURN_SECONDS.len()],
    /// Stored again at all.
    pub returned: u64,
}

impl Removals {
    /// Which of the removals for room were in vain. `stored` tells, for each of these hashes, the seconds
    /// since 1970 at which the block was stored that the pool has now.
    #[must_use]
    pub fn returns(&self, stored: impl FnOnce(&[BlockHash]) -> Vec<Option<u32>>) -> Returns {
        // From the last to the first, so that a later removal tells when the block had come back.
        let (mut last, mut next) = (HashMap::new(), Vec::with_capacity(self.all.len()));
        for removal in self.all.iter().rev() {
            next.push(last.insert(removal.hash, removal.stored));
        }
        next.reverse();
        let open: Vec<BlockHash> =
            self.all.iter().zip(&next).filter(|(_, next)| next.is_none()).map(|(removal, _)| removal.hash).collect();
        let now: HashMap<BlockHash, u32> =
            open.iter().copied().zip(stored(&open)).filter_map(|(hash, stored)| Some((hash, stored?))).collect();
        let mut returns = Returns::default();
        for (removal, next) in self.all.iter().zip(next) {
            if !matches!(removal.cause, Cause::Evicted | Cause::Quota) {
                continue;
            }
            returns.removed += 1;
            let Some(stored) = next.or_else(|| now.get(&removal.hash).copied()) else { continue };
            // A block that was there all the time, under a copy of the same name, did not return.
            let seconds = stored.wrapping_sub((removal.time_us / 1_000_000) as u32);
            if seconds > u32::MAX / 2 {
                continue;
            }
            returns.returned += 1;
            for (count, bound) in returns.within.iter_mut().zip(RETURN_SECONDS) {
                *count += u64::from(u64::from(seconds) <= bound);
            }
        }
        returns
    }
}

/// The removals in the rings of all hosts. Needs no live process and writes nothing. Empty if the region
/// keeps none.
///
/// # Errors
/// The region is unreadable (see [`Superblock::read`]).
pub fn removals<F: Fabric>(fabric: &F) -> Result<Removals, PoolError> {
    let superblock = Superblock::read(fabric)?;
    let layout = Layout::new(&superblock.config, superblock.region_bytes)?;
    let salt = superblock.salt();
    let lines = layout.removals_per_host;
    let (mut all, mut since_us) = (Vec::new(), None);
    for host in 0..layout.max_hosts {
        let line = |line: RemovalLine| Some((line.sequence, line.removal(host)?));
        let mut of_host: Vec<(u64, Removal)> = RemovalLine::all(fabric, salt, &layout, host).filter_map(line).collect();
        of_host.sort_by_key(|(sequence, _)| *sequence);
        // Lines that are torn or damaged do not hide that the ring is full.
        if let (Some((_, oldest)), Some((last, _))) = (of_host.first(), of_host.last())
            && *last > lines
        {
            since_us = since_us.max(Some(oldest.time_us));
        }
        all.extend(of_host.into_iter().map(|(_, removal)| removal));
    }
    // Stable, so that one host's removals of one time stay in order.
    all.sort_by_key(|removal| removal.time_us);
    Ok(Removals { all, since_us })
}

impl RemovalLine {
    /// The removal in a host's line; `None`: its cause is unknown.
    fn removal(&self, host: u64) -> Option<Removal> {
        Some(Removal {
            hash: BlockHash::from_words(self.hash),
            namespace: NamespaceId((self.what >> 8) as u16),
            depth: (self.which >> 48) as u16,
            cause: Cause::from_number(self.what & 0xff)?,
            time_us: self.time,
            stored: self.which as u32,
            host: host as u8,
            pid: self.pid as u32,
        })
    }
}

impl<F: Fabric, H: HostLocal> Log<F, H> {
    /// Notes that a block leaves, which this descriptor describes.
    pub(crate) fn note_removal(&self, block: BlockIndex, descriptor: &Descriptor, cause: Cause) {
        let now = self.region.area.unix_time();
        let age = (now.as_secs() as u32).wrapping_sub(descriptor.stamp as u32);
        // The publisher's clock may be ahead of this one's.
        self.region.counters().removed(cause, if age > u32::MAX / 2 { 0 } else { age });
        if self.region.layout.removals_per_host == 0 {
            return;
        }
        self.put_unfenced(RemovalLine {
            sequence: self.next_number::<RemovalLine>().fetch_add(1, Relaxed),
            hash: descriptor.hash,
            time: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            what: cause as u64 | u64::from(descriptor.namespace()) << 8 | block.0 << 24,
            which: descriptor.stamp & 0xffff_ffff
                | (self.region.slot() & 0xffff) << 32
                | u64::from(descriptor.depth().min(0xffff)) << 48,
            pid: u64::from(std::process::id()),
            ..RemovalLine::default()
        });
    }
}
