//! Doubt about blocks that are there, after a read has met damage.
//!
//! Whatever damaged one block of a prompt has probably damaged its neighbours. A prompt with a damaged
//! block is computed from that block on, so its later blocks are published without having been read. A
//! publisher that counted them as duplicates would heal one block a request. So for a while after a
//! damaged read, a publisher checks the payload of each block that it takes for a duplicate. Otherwise a
//! duplicate costs a lookup and no read.

use super::Blocks;
use crate::region::counters::Counter;
use crate::region::hit::Hit;
use crate::sync::Timeout;
use cenote_base::BlockHash;
use cenote_mem::{Fabric, HostLocal};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long a damaged read makes publishers of this host check their duplicates.
pub const DOUBT: Duration = Duration::from_mins(10);

/// A call checks no further block after so many bytes: some milliseconds at the speed of memory.
const CALL_BYTES: u64 = 32 << 20;

/// What this process knows of its host's damaged reads.
#[derive(Default)]
pub struct Doubt {
    /// The host's damaged reads at the last look.
    reads: AtomicU64,
    /// Nanoseconds of the host's clock until which duplicates are checked.
    until_ns: AtomicU64,
    /// Counts calls that check: each begins at another block.
    next: AtomicU64,
}

impl Doubt {
    /// Whether duplicates are checked now. `reads`: damaged reads of the host. `now`: the host's time.
    fn is_there(&self, reads: u64, now: Duration) -> bool {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        if self.reads.swap(reads, Relaxed) != reads {
            self.until_ns.store(now_ns.saturating_add(DOUBT.as_nanos() as u64), Relaxed);
        }
        now_ns < self.until_ns.load(Relaxed)
    }
}

impl<F: Fabric, H: HostLocal> Blocks<F, H> {
    /// Damaged reads before this worker joined may be of any age, and cause no doubt.
    pub fn begin_without_doubt(&self) {
        self.doubt.reads.store(self.region.counters().get(Counter::ReadsDamaged), Relaxed);
    }

    /// Whether this host has met damage lately.
    pub fn is_in_doubt(&self) -> bool {
        let region = &self.region;
        !region.is_plain() && self.doubt.is_there(region.counters().get(Counter::ReadsDamaged), region.area.now())
    }

    /// In doubt, checks payloads of blocks that are `there`, and clears the marks of those that were
    /// damaged and have left the pool. A call checks some MiB, each from another place on, and waits for no
    /// lock: it may be on an engine's thread. What it leaves is checked by later calls.
    pub fn doubt_some(&self, hashes: &[BlockHash], there: &mut [bool]) {
        let count = there.iter().filter(|there| **there).count();
        if count == 0 || !self.is_in_doubt() {
            return;
        }
        let first = self.doubt.next.fetch_add(1, Relaxed) as usize % count;
        let marked: Vec<usize> = (0..there.len()).filter(|&at| there[at]).collect();
        let mut bytes = 0;
        for &at in marked[first..].iter().chain(&marked[..first]) {
            let Some(hit) = self.peek(&hashes[at..=at]).first().copied() else { continue };
            there[at] = !self.drop_if_damaged(&hit);
            bytes += hit.length;
            if bytes >= CALL_BYTES {
                return;
            }
        }
    }

    /// Takes a damaged block out of the pool, if no lock is busy. Returns whether it left. A block without
    /// damage stays, and so does one with a key that this worker lacks.
    fn drop_if_damaged(&self, hit: &Hit) -> bool {
        let region = &self.region;
        region.refresh_seal(hit.block);
        region.fabric.refresh_payload(hit.offset, hit.length);
        if region.verify(hit) != Some(false) {
            return false;
        }
        region.forget_seen(hit.block);
        self.discard_damaged(hit, Timeout::TRY)
    }
}
