//! The pending flushes of a process, with constant-time tests whether a line has one.

use crate::machine::LINE;

/// Pending flushes: (line, number of the last store before the flush).
#[derive(Default)]
pub(crate) struct Flushes {
    pending: Vec<(u64, u64)>,
    /// By line of the device: how many of `pending` are of that line. Lines after the last are none.
    counts: Vec<u32>,
}

impl Flushes {
    pub fn push(&mut self, line: u64, after: u64) {
        let index = (line / LINE) as usize;
        if self.counts.len() <= index {
            self.counts.resize((index + 1).next_power_of_two(), 0);
        }
        self.counts[index] += 1;
        self.pending.push((line, after));
    }

    pub const fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn line(&self, place: usize) -> u64 {
        self.pending[place].0
    }

    /// The lines, one for each flush.
    pub fn lines(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|flush| flush.0)
    }

    /// The place of the first flush of a line.
    pub fn place_of(&self, line: u64) -> Option<usize> {
        let count = self.counts.get((line / LINE) as usize).copied().unwrap_or(0);
        (count > 0).then(|| self.pending.iter().position(|flush| flush.0 == line)).flatten()
    }

    /// Removes the flush at a place; the last one takes its place.
    pub fn swap_remove(&mut self, place: usize) -> (u64, u64) {
        let flush = self.pending.swap_remove(place);
        self.counts[(flush.0 / LINE) as usize] -= 1;
        flush
    }

    /// Removes all and returns their lines.
    pub fn take_lines(&mut self) -> Vec<u64> {
        let lines: Vec<u64> = self.pending.drain(..).map(|flush| flush.0).collect();
        lines.iter().for_each(|line| self.counts[(line / LINE) as usize] = 0);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_while_flushes_come_and_go() {
        let mut flushes = Flushes::default();
        for line in [64, 640, 64, 128] {
            flushes.push(line, 7);
        }
        assert_eq!(
            [64, 640, 128, 0, 1 << 20].map(|line| flushes.place_of(line)),
            [Some(0), Some(1), Some(3), None, None]
        );
        assert_eq!(flushes.swap_remove(0), (64, 7));
        assert_eq!((flushes.place_of(64), flushes.place_of(128)), (Some(2), Some(0)));
        assert_eq!(flushes.take_lines(), [128, 640, 64]);
        assert_eq!((flushes.len(), flushes.place_of(64)), (0, None));
    }
}
