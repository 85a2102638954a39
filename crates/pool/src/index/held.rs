//! Reference counts that a worker raised by lookups and has not lowered. They are in its own
//! memory, as in TraCT.

use crate::region::hit::Hit;
use cenote_base::{BlockIndex, Generation};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

type Use = (BlockIndex, Generation);

/// Counts of hits that were not read yet.
#[derive(Debug, Default)]
pub(crate) struct Held {
    unread: HashMap<Use, Unread>,
    /// One notice per count, by the time until which it is held.
    notices: VecDeque<(Duration, Use)>,
}

/// Unread counts of a hit. A read takes the oldest count and leaves its notice, so there may be
/// more notices than counts; the oldest notices are then void.
#[derive(Debug, Default)]
struct Unread {
    counts: u64,
    notices: u64,
}

impl Held {
    /// Adds one count for each hit, held until `until`.
    pub fn add(&mut self, hits: &[Hit], until: Duration) {
        for hit in hits {
            let key = (hit.block, hit.generation);
            let unread = self.unread.entry(key).or_default();
            unread.counts += 1;
            unread.notices += 1;
            self.notices.push_back((until, key));
        }
    }

    /// Adds a count that could not be lowered.
    pub fn owe(&mut self, hit: &Hit) {
        self.add(&[*hit], Duration::ZERO);
        self.notices.rotate_right(1);
    }

    /// Takes the count of a hit for its reader. `false`: there is none.
    pub fn take(&mut self, hit: &Hit) -> bool {
        match self.unread.get_mut(&(hit.block, hit.generation)) {
            Some(unread) if unread.counts > 0 => {
                unread.counts -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether some counts are due to be lowered.
    pub fn owes(&mut self, now: Duration) -> bool {
        while let Some(&(until, key)) = self.notices.front()
            && until <= now
        {
            let unread = self.unread.get_mut(&key).expect("it has notices");
            if unread.counts == unread.notices {
                return true;
            }
            self.end_notice();
        }
        false
    }

    /// Removes the due counts; the caller lowers them.
    pub fn owed(&mut self, now: Duration) -> Vec<BlockIndex> {
        let mut owed = Vec::new();
        while self.owes(now) {
            let (block, _) = self.end_notice();
            owed.push(block);
        }
        owed
    }

    /// Removes the oldest notice, and its count if it has one.
    fn end_notice(&mut self) -> Use {
        let (_, key) = self.notices.pop_front().expect("there is one");
        let unread = self.unread.get_mut(&key).expect("it has notices");
        unread.notices -= 1;
        unread.counts = unread.counts.min(unread.notices);
        if unread.notices == 0 {
            self.unread.remove(&key);
        }
        key
    }

    /// Makes all counts due.
    pub fn end(&mut self) {
        self.notices.iter_mut().for_each(|(until, _)| *until = Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::BlockHash;

    fn hit(block: u64) -> Hit {
        let hash = BlockHash::from_words([block + 1, 1]);
        Hit {
            block: BlockIndex(block),
            generation: Generation(1),
            hash,
            length: 64,
            encoding: 0,
            offset: 0,
            checksum: 0,
        }
    }

    #[test]
    fn each_count_is_read_once_or_owed_once() {
        let mut held = Held::default();
        let [first, second, third] = [1, 2, 3].map(Duration::from_secs);
        held.add(&[hit(1), hit(2)], first);
        held.add(&[hit(1)], second);
        assert!(held.take(&hit(1)) && !held.owes(Duration::ZERO));
        assert_eq!(held.owed(first), [BlockIndex(2)], "the older of two was read");
        assert!(!held.take(&hit(2)) && !held.owes(first));
        held.owe(&hit(7));
        held.add(&[hit(3)], third);
        assert_eq!(held.owed(Duration::ZERO), [BlockIndex(7)]);
        held.end();
        assert_eq!(held.owed(Duration::ZERO), [BlockIndex(1), BlockIndex(3)]);
        assert!(!held.take(&hit(1)) && held.unread.is_empty() && held.notices.is_empty());
    }
}
