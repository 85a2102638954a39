//! Stray writes: a host that was declared dead may still write into chunks that other hosts
//! adopted.
//!
//! A program that writes in place (a device, or stores through its own mapping) leaves lines dirty
//! in its host's caches until publication flushes them. If the host is declared dead before that
//! and its machine runs on, its caches may write such a line back at any time, over another host's
//! block.
//!
//! A copied payload is safe: its checksum is that of its source, so a stray write makes it a miss.
//! A payload written in place is summed where it lies, and its checksum would include the stray
//! write. So each chunk line lists the hosts that lost the chunk by death, and memory to be written
//! in place comes from chunks without such hosts. A host leaves the lists when it has flushed the
//! chunks and no worker of its earlier lives is left.

use super::Space;
use crate::region::lines::{ChunkLine, HostLine, Line};
use crate::sync::{Chunks, Holds, Membership};
use cenote_mem::{Fabric, HostLocal};

/// How reserved memory will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// By a copy, which sums the source.
    Copied,
    /// In place: summed afterwards, or not at all.
    InPlace,
}

/// Whether hosts that were declared dead may write into a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strays {
    /// No host has lost the chunk by death.
    Never,
    /// They may have written; their caches are clean now.
    Past,
    /// They may write at any time.
    Possible,
}

/// Entry of a chunk's list: host plus one in the low 8 bits, its life above. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stray {
    host: u64,
    life: u64,
}

/// More hosts than the list holds. It stays until the region is made anew.
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

impl<F: Fabric, H: HostLocal> Space<F, H> {
    /// A chunk line that also lists its owner as a host that may still write.
    pub fn with_stray_owner(&self, _: &Holds<Chunks>, line: ChunkLine) -> ChunkLine {
        let region = &self.region;
        let host = line.owner - 1;
        // The host may have returned. Its writes to this chunk then count as those of its current
        // life.
        let life = region.read_host(host).map_or(0, |known| known.incarnation).max(region.highest_mark(host));
        let mut kept = line.strays;
        kept.iter_mut().filter(|word| !self.is_unsettled(**word)).for_each(|word| *word = 0);
        ChunkLine { strays: with_entry(kept, Stray { host, life }), ..line }
    }

    /// Whether a host that was declared dead may still write into the chunk of this line.
    pub fn has_strays(&self, line: &ChunkLine) -> bool {
        !self.region.is_coherent() && line.strays.iter().any(|&word| self.is_unsettled(word))
    }

    fn is_unsettled(&self, word: u64) -> bool {
        let Some(stray) = Stray::parse(word) else { return false };
        let has_swept = |line: HostLine| line.swept > stray.life;
        stray.host >= self.region.layout.max_hosts || !self.region.read_host(stray.host).is_some_and(has_swept)
    }

    /// Stray writes of a chunk, by its line as the device has it.
    pub fn strays(&self, chunk: u64) -> Strays {
        let region = &self.region;
        if region.is_coherent() {
            return Strays::Never;
        }
        let at = region.layout.chunk(chunk);
        match region.fresh_line(at) {
            [0, 0, 0, 0, 0, 0, 0, 0] => Strays::Never,
            words => match ChunkLine::open(words, at, region.salt) {
                Some(ChunkLine { strays: [0, 0, 0], .. }) => Strays::Never,
                Some(line) if !self.has_strays(&line) => Strays::Past,
                // A torn line is being written.
                _ => Strays::Possible,
            },
        }
    }

    /// Whether memory of the chunk may be written by `fill`.
    pub fn takes(&self, chunk: u64, fill: Fill) -> bool {
        let has_none = || self.region.read_chunk(chunk).is_some_and(|line| !self.has_strays(&line));
        fill == Fill::Copied || self.region.is_coherent() || has_none()
    }

    /// Writes back the lines that earlier lives of this host left dirty in its caches. The host has
    /// registered its new life and has no worker. Returns whether all are written back.
    pub fn sweep_strays(&self, _: &Holds<Membership>) -> bool {
        let region = &self.region;
        let is_own = |word: &u64| Stray::parse(*word).is_some_and(|stray| stray.host == region.host);
        let chunks: Vec<u64> = {
            let Ok(_chunks) = self.lock_all_chunks(self.locks.serving()) else { return false };
            // A repair of a torn line keeps its list.
            let list = |chunk| ChunkLine::strays_of(region.fabric.load_line(region.layout.chunk(chunk)));
            (0..region.layout.num_chunks).filter(|&chunk| list(chunk).iter().any(is_own)).collect()
        };
        // A chunk that this host loses from here on is listed with its new life.
        for chunk in chunks {
            region.fabric.refresh_payload(region.layout.chunk_data(chunk), region.layout.chunk_bytes);
            self.locks.beat_in_wait();
        }
        true
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
