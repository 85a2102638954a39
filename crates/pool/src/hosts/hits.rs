//! Rings of hits: each host lists the blocks of other hosts that it found, and their owners read
//! the lists when they must evict (docs/internals/protocol.md#recency).
//!
//! A ring has entries of one word, eight in a line: a block and the low bits of the number of times
//! the ring has wrapped. So an entry stands alone, and a reader knows old entries from new ones. An
//! entry that its reader never sees costs a hit, which is no more than a block that leaves earlier.

use super::Hosts;
use crate::region::host_layout::Peer;
use crate::region::layout::LINE_WORDS;
use crate::sync::{Heap, Holds};
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal, Offset, Word};
use std::sync::atomic::Ordering::Relaxed;

const BLOCK_BITS: u32 = 40;
const LAPS: u64 = 1 << (64 - BLOCK_BITS);

/// Positions come from lines of the region and from words that other processes write. They end here, so that
/// none overflows.
const POSITIONS: u64 = 1 << 62;

/// The word of an entry in a lap of the ring; laps count from 1.
const fn entry(block: BlockIndex, lap: u64) -> u64 {
    (block.0 & ((1 << BLOCK_BITS) - 1)) | lap << BLOCK_BITS
}

const fn block_of(entry: u64) -> BlockIndex {
    BlockIndex(entry & ((1 << BLOCK_BITS) - 1))
}

/// Laps from `lap` to an entry's, which has the low bits of its own; `None`: it is an older entry.
const fn laps_ahead(entry: u64, lap: u64) -> Option<u64> {
    let ahead = (entry >> BLOCK_BITS).wrapping_sub(lap) % LAPS;
    if ahead < LAPS / 2 { Some(ahead) } else { None }
}

impl<F: Fabric, H: HostLocal> Hosts<F, H> {
    /// Entries of a ring.
    pub(super) fn ring(&self) -> u64 {
        self.region.layout.hit_lines_per_host * LINE_WORDS
    }

    /// Continues this host's ring after the entries of its earlier lives, of which the last may be unknown.
    /// Readers go on where the ring goes on.
    pub(super) fn continue_hits(&self, known: u64) {
        self.region.next_hit().store(known % POSITIONS + self.ring(), Relaxed);
    }

    /// Appends hits to this host's ring. Other hosts see them soon; no one waits for it.
    pub fn report_hits(&self, blocks: &[BlockIndex]) {
        let (region, ring) = (&*self.region, self.ring());
        let first = region.next_hit().fetch_add(blocks.len() as u64, Relaxed) % POSITIONS;
        let mut line = u64::MAX;
        for (position, &block) in (first..).zip(blocks) {
            let at = region.layout.hit_line(region.host, position % ring / LINE_WORDS);
            if line != u64::MAX && at != line {
                region.fabric.publish_unfenced(line);
            }
            line = at;
            region.fabric.store(Offset::new(at + position % LINE_WORDS * 8), entry(block, position / ring + 1));
        }
        if line != u64::MAX {
            region.fabric.publish_unfenced(line);
        }
    }

    /// Calls `used` for the hits that another host has reported since this host last asked.
    pub fn hear_hits(&self, _: &Holds<Heap>, host: u64, mut used: impl FnMut(BlockIndex)) {
        let (region, ring) = (&*self.region, self.ring());
        let peer = region.peer(host);
        let mut next = peer.hits % POSITIONS;
        // A ring that changes as fast as it is read must not hold this host up.
        for _ in 0..=2 * region.layout.hit_lines_per_host {
            let first = next / LINE_WORDS * LINE_WORDS;
            let words = region.fresh_line(region.layout.hit_line(host, first % ring / LINE_WORDS));
            let mut heard = next;
            for (position, &word) in (first..first + LINE_WORDS).zip(&words) {
                match laps_ahead(word, position / ring + 1) {
                    Some(0) if position >= next => {
                        if block_of(word).0 < region.layout.num_descriptors() {
                            used(block_of(word));
                        }
                        heard = position + 1;
                    }
                    Some(0) | None => {}
                    // The ring has overtaken this host: go on with what it holds now.
                    Some(ahead) => {
                        heard = position + ahead * ring;
                        break;
                    }
                }
            }
            if heard == next {
                break;
            }
            next = heard;
        }
        if next != peer.hits {
            region.set_peer(host, Peer { hits: next, ..peer });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_tell_their_lap_from_others() {
        for (block, lap) in [(0, 1), (7, 3), ((1 << 40) - 1, (1 << 30) + 5)] {
            let word = entry(BlockIndex(block), lap);
            assert_eq!(block_of(word), BlockIndex(block));
            assert_eq!([lap - 1, lap, lap + 1].map(|lap| laps_ahead(word, lap)), [Some(1), Some(0), None]);
        }
        assert_eq!(laps_ahead(0, 1), None, "never written");
    }
}
