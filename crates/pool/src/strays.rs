//! Stray writes: what a host that was declared dead may still write into chunks that others have taken over.
//!
//! A program that writes in place (a device, or stores through its own mapping) leaves lines dirty in the caches of its
//! host until they are flushed at publication. If the host is declared dead before that and its machine runs on, its
//! caches write such a line back at any later time, into whatever lies there by then. A payload that was copied in is
//! safe: its checksum is that of its source, so a stray write makes it a miss. A payload that is written in place is
//! summed where it lies, and its sum would vouch for the stray write. So each chunk line lists the hosts that lost the
//! chunk by death, and memory to be written in place comes from chunks without such hosts. A host leaves the lists when
//! it has flushed the chunks and no worker of its earlier lives is left.

use crate::blocks::Hit;
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::lines::{ChunkLine, HostLine, Line};
use cenote_mem::{Fabric, HostLocal};

/// How the memory that is reserved will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// By copying, which sums the source.
    Copied,
    /// In place: summed afterwards, or not at all.
    InPlace,
}

/// Whether hosts that were declared dead write into a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strays {
    /// No host has lost the chunk by death.
    Never,
    /// They may have; their caches are clean by now.
    Past,
    /// They may at any time.
    Possible,
}

/// Entry of a chunk's list: host plus one in the low 8 bits, its life above. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stray {
    host: u64,
    life: u64,
}

/// Stands for hosts that found no place in the list. It stays until the region is made anew.
const OVERFULL: u64 = u64::MAX;

impl Stray {
    fn parse(word: u64) -> Option<Self> {
        Some(Self { host: (word & 0xff).checked_sub(1)?, life: word >> 8 })
    }

    const fn word(self) -> u64 {
        self.life << 8 | (self.host + 1)
    }
}

/// The list with one more entry. Only the last life of each host counts.
fn with_entry(list: [u64; 3], new: Stray) -> [u64; 3] {
    let mut others: Vec<u64> = list.into_iter().filter(|&word| word != 0).collect();
    match others.iter_mut().find(|word| Stray::parse(**word).is_some_and(|known| known.host == new.host)) {
        Some(word) => *word = (*word).max(new.word()),
        None => others.push(new.word()),
    }
    match others[..] {
        [first] => [first, 0, 0],
        [first, second] => [first, second, 0],
        [first, second, third] => [first, second, third],
        _ => [OVERFULL; 3],
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    /// The line with its owner among the hosts that may still write. The caller holds the chunk lock.
    pub(crate) fn with_stray_owner(&self, line: ChunkLine) -> ChunkLine {
        let host = line.owner - 1;
        // The host may be back already. What it had in this chunk then counts to the life that it leads.
        let life = self.read_host(host).map_or(0, |known| known.incarnation).max(self.highest_mark(host));
        let mut kept = line.strays;
        kept.iter_mut().filter(|word| !self.is_unsettled(**word)).for_each(|word| *word = 0);
        ChunkLine { strays: with_entry(kept, Stray { host, life }), ..line }
    }

    /// Whether a host that was declared dead may still write into the chunk of this line.
    pub(crate) fn has_strays(&self, line: &ChunkLine) -> bool {
        !self.is_coherent() && line.strays.iter().any(|&word| self.is_unsettled(word))
    }

    fn is_unsettled(&self, word: u64) -> bool {
        let Some(stray) = Stray::parse(word) else { return false };
        let has_swept = |line: HostLine| line.swept > stray.life;
        stray.host >= self.layout.max_hosts || !self.read_host(stray.host).is_some_and(has_swept)
    }

    /// What the line of any chunk says, as the device has it.
    pub(crate) fn strays(&self, chunk: u64) -> Strays {
        if self.is_coherent() {
            return Strays::Never;
        }
        let at = self.layout.chunk(chunk);
        match self.fresh_line(at) {
            [0, 0, 0, 0, 0, 0, 0, 0] => Strays::Never,
            words => match ChunkLine::open(words, at, self.salt) {
                Some(ChunkLine { strays: [0, 0, 0], .. }) => Strays::Never,
                Some(line) if !self.has_strays(&line) => Strays::Past,
                // A line that does not hold is just being written.
                _ => Strays::Possible,
            },
        }
    }

    /// Whether memory of the chunk may be written so.
    pub(crate) fn takes(&self, chunk: u64, fill: Fill) -> bool {
        fill == Fill::Copied || self.is_coherent() || self.read_chunk(chunk).is_some_and(|line| !self.has_strays(&line))
    }

    /// Writes back what earlier lives of this host left dirty in its caches, and says so. No other worker of this host
    /// lives; the caller holds the membership lock and has registered the host.
    pub(crate) fn sweep_strays(&self) {
        let is_own = |word: &u64| Stray::parse(*word).is_some_and(|stray| stray.host == self.host);
        let chunks: Vec<u64> = {
            let Ok(_chunks) = self.lock(Name::Chunks) else { return };
            let lists_this_host = |&chunk: &u64| {
                // Also where the line does not hold: whoever mends it keeps the list.
                ChunkLine::strays_of(self.fabric.load_line(self.layout.chunk(chunk))).iter().any(is_own)
            };
            (0..self.layout.num_chunks).filter(lists_this_host).collect()
        };
        // A chunk that is lost from here on is listed with this life, which has registered.
        for chunk in chunks {
            self.fabric.refresh_payload(self.layout.chunk_data(chunk), self.layout.chunk_bytes);
            self.beat_in_wait();
        }
        self.note_swept();
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Whether hosts that were declared dead write into the memory of this block. What they do is noticed by reads that copy
    /// it, not by a use in place.
    #[must_use]
    pub fn strays(&self, hit: &Hit) -> Strays {
        self.0.strays(self.0.layout.chunk_of(hit.block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_last_life_of_three_hosts() {
        let entry = |host, life| Stray { host, life };
        let one = with_entry([0; 3], entry(4, 7));
        assert_eq!(one.map(Stray::parse), [Some(entry(4, 7)), None, None]);
        assert_eq!(with_entry(one, entry(4, 9)).map(Stray::parse), [Some(entry(4, 9)), None, None]);
        assert_eq!(with_entry(one, entry(4, 2)), one, "an earlier life is contained in a later one");
        let three = with_entry(with_entry(one, entry(0, 1)), entry(63, 2));
        assert_eq!(three.map(Stray::parse), [Some(entry(4, 7)), Some(entry(0, 1)), Some(entry(63, 2))]);
        assert_eq!(with_entry(three, entry(5, 1)), [OVERFULL; 3]);
        assert_eq!(with_entry([OVERFULL; 3], entry(5, 1)), [OVERFULL; 3]);
        assert_eq!(Stray::parse(OVERFULL).map(|stray| stray.host), Some(254), "no host of a region");
    }
}
