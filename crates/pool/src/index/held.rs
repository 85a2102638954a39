//! What a worker of the plain design remembers of lookups and reference counts. It is in the
//! worker's own memory, as in TraCT.

use crate::region::hit::Hit;
use cenote_base::{BlockIndex, Generation};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// One publication of a block.
pub(super) type Use = (BlockIndex, Generation);

pub(super) const fn use_of(hit: &Hit) -> Use {
    (hit.block, hit.generation)
}

/// Lookups that a worker remembers until their blocks are accessed: one for each thread between its
/// lookup and its first read, and some that are never read. Each access searches all of them.
const FOUND_MAX: usize = 32;

/// Ended counts that a worker collects before it takes a turn for nothing else: a prompt of them.
const OWED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Hits of the last lookups of which none was accessed.
    found: VecDeque<Vec<Use>>,
    /// Counts of hits that were not read yet.
    unread: HashMap<Use, Unread>,
    /// One notice per count, by the time until which it is held.
    notices: VecDeque<(Duration, Use)>,
    /// Counts of uses that have ended.
    ended: Vec<BlockIndex>,
}

/// Unread counts of a hit. A read takes the oldest count and leaves its notice, so there may be
/// more notices than counts; the oldest notices are then void.
#[derive(Debug, Default)]
struct Unread {
    counts: u64,
    notices: u64,
}

impl Held {
    /// Remembers the hits of a lookup.
    pub fn find(&mut self, hits: &[Hit]) {
        if hits.is_empty() {
            return;
        }
        if self.found.len() == FOUND_MAX {
            self.found.pop_front();
        }
        self.found.push_back(hits.iter().map(use_of).collect());
    }

    fn lookup_of(&self, hit: &Hit) -> Option<usize> {
        self.found.iter().rposition(|uses| uses.contains(&use_of(hit)))
    }

    /// Whether a lookup found this hit and nothing of it was accessed, so that its blocks must move
    /// in the list.
    pub fn is_found(&self, hit: &Hit) -> bool {
        self.lookup_of(hit).is_some()
    }

    /// Removes the latest such lookup.
    pub fn take_found(&mut self, hit: &Hit) -> Option<Vec<Use>> {
        self.found.remove(self.lookup_of(hit)?)
    }

    /// Adds one count for each use, held until `until`.
    pub fn add(&mut self, uses: &[Use], until: Duration) {
        for &key in uses {
            let unread = self.unread.entry(key).or_default();
            unread.counts += 1;
            unread.notices += 1;
            self.notices.push_back((until, key));
        }
    }

    /// Takes the count of a hit for its reader. `false`: there is none.
    pub fn take(&mut self, hit: &Hit) -> bool {
        match self.unread.get_mut(&use_of(hit)) {
            Some(unread) if unread.counts > 0 => {
                unread.counts -= 1;
                true
            }
            _ => false,
        }
    }

    /// Adds a count of a use that has ended. Returns whether there are so many that the worker
    /// should lower them now.
    pub fn owe(&mut self, hit: &Hit) -> bool {
        self.ended.push(hit.block);
        self.ended.len().is_multiple_of(OWED_MAX)
    }

    /// Whether some counts are due to be lowered.
    pub fn owes(&mut self, now: Duration) -> bool {
        !self.ended.is_empty() || self.has_overdue(now)
    }

    fn has_overdue(&mut self, now: Duration) -> bool {
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
        let mut owed = std::mem::take(&mut self.ended);
        while self.has_overdue(now) {
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
        self.found.clear();
        self.notices.iter_mut().for_each(|(until, _)| *until = Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::{BlockHash, NamespaceId};

    fn hit(block: u64) -> Hit {
        let hash = BlockHash::from_words([block + 1, 1]);
        Hit {
            block: BlockIndex(block),
            generation: Generation(1),
            hash,
            namespace: NamespaceId(0),
            length: 64,
            encoding: 0,
            kind: 0,
            offset: 0,
            checksum: 0,
        }
    }

    fn uses<const N: usize>(blocks: [u64; N]) -> [Use; N] {
        blocks.map(|block| use_of(&hit(block)))
    }

    #[test]
    fn each_count_is_read_once_or_owed_once() {
        let mut held = Held::default();
        let [first, second, third] = [1, 2, 3].map(Duration::from_secs);
        held.add(&uses([1, 2]), first);
        held.add(&uses([1]), second);
        assert!(held.take(&hit(1)) && !held.owes(Duration::ZERO));
        assert_eq!(held.owed(first), [BlockIndex(2)], "the older of two was read");
        assert!(!held.take(&hit(2)) && !held.owes(first));
        assert!(!held.owe(&hit(7)) && held.owes(Duration::ZERO));
        held.add(&uses([3]), third);
        assert_eq!(held.owed(Duration::ZERO), [BlockIndex(7)]);
        held.end();
        assert_eq!(held.owed(Duration::ZERO), [BlockIndex(1), BlockIndex(3)]);
        assert!(!held.take(&hit(1)) && held.unread.is_empty() && held.notices.is_empty());
        let many = (0..OWED_MAX as u64).filter(|&block| held.owe(&hit(block))).count();
        assert_eq!(many, 1, "a worker owes a bounded number of counts");
    }

    #[test]
    fn the_first_access_takes_the_latest_lookup_that_found_the_hit() {
        let mut held = Held::default();
        held.find(&[hit(1), hit(2)]);
        held.find(&[hit(2), hit(3)]);
        held.find(&[]);
        assert!(held.is_found(&hit(2)) && !held.is_found(&hit(4)));
        assert_eq!(held.take_found(&hit(2)), Some(uses([2, 3]).to_vec()));
        assert_eq!(held.take_found(&hit(2)), Some(uses([1, 2]).to_vec()));
        assert_eq!(held.take_found(&hit(2)), None);
        (0..=FOUND_MAX as u64).for_each(|block| held.find(&[hit(block)]));
        assert_eq!(held.take_found(&hit(0)), None, "old lookups are forgotten");
        assert!(held.take_found(&hit(1)).is_some());
    }
}
