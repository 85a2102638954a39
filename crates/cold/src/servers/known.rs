//! What this process knows of the server's keys: by its own writes, and by answers. It is a hint that
//! ages, because others write and the server evicts.

use crate::record::Name;
use cenote_base::{Clock, Deadline};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Time for which a block that was there counts as there.
const PRESENT_FOR: Duration = Duration::from_secs(30);
/// Time for which a block that was not there counts as absent: engines look again and again, and another
/// one may write it.
const ABSENT_FOR: Duration = Duration::from_secs(1);
/// Time for which a damaged record is not read again, and is written over.
const DAMAGED_FOR: Duration = Duration::from_mins(10);
/// Names of a generation; two are kept.
const GENERATION: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A record of so many bytes.
    Present(u64),
    Absent,
    Damaged,
}

/// Blocks that were there when they were asked for last, and their bytes. Names that leave with their
/// generation count no more. It is read without the lock of [`Known`].
#[derive(Default)]
pub struct Tally {
    blocks: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    /// Blocks and bytes.
    pub fn get(&self) -> (u64, u64) {
        (self.blocks.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// Names, each in one generation alone.
#[derive(Default)]
struct Generation {
    names: HashMap<Name, (State, Deadline)>,
    blocks: u64,
    bytes: u64,
}

impl Generation {
    fn put(&mut self, name: Name, state: State, until: Deadline) {
        self.remove(&name);
        if let State::Present(bytes) = state {
            (self.blocks, self.bytes) = (self.blocks + 1, self.bytes + bytes);
        }
        self.names.insert(name, (state, until));
    }

    fn remove(&mut self, name: &Name) {
        if let Some((State::Present(bytes), _)) = self.names.remove(name) {
            (self.blocks, self.bytes) = (self.blocks - 1, self.bytes - bytes);
        }
    }
}

pub struct Known {
    clock: Clock,
    young: Generation,
    old: Generation,
    tally: Arc<Tally>,
}

impl Known {
    /// Nothing is known yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, young: Generation::default(), old: Generation::default(), tally: Arc::default() }
    }

    /// The sums, which follow every [`Known::enter`].
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// What is known of a block; `None`: the server must be asked.
    pub fn get(&self, name: &Name) -> Option<State> {
        let (state, until) = self.young.names.get(name).or_else(|| self.old.names.get(name))?;
        (!until.passed()).then_some(*state)
    }

    pub fn enter(&mut self, name: Name, state: State) {
        if self.young.names.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        let lasts = match state {
            State::Present(_) => PRESENT_FOR,
            State::Absent => ABSENT_FOR,
            State::Damaged => DAMAGED_FOR,
        };
        self.old.remove(&name);
        self.young.put(name, state, self.clock.after(lasts));
        self.tally.blocks.store(self.young.blocks + self.old.blocks, Relaxed);
        self.tally.bytes.store(self.young.bytes + self.old.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::BlockHash;
    use cenote_base::testing::ManualTime;

    fn name(number: u64) -> Name {
        Name { namespace: [1; 32], hash: BlockHash::from_words([number, 1]) }
    }

    #[test]
    fn what_is_known_ages() {
        let time = ManualTime::start();
        let mut known = Known::new(time.clock());
        for (number, state) in [(0, State::Present(4096)), (1, State::Absent), (2, State::Damaged)] {
            known.enter(name(number), state);
        }
        let states = |known: &Known| [0, 1, 2].map(|number| known.get(&name(number)));
        assert_eq!(states(&known), [Some(State::Present(4096)), Some(State::Absent), Some(State::Damaged)]);
        assert_eq!(known.tally().get(), (1, 4096));
        time.advance(ABSENT_FOR);
        assert_eq!(states(&known), [Some(State::Present(4096)), None, Some(State::Damaged)]);
        time.advance(PRESENT_FOR);
        assert_eq!(states(&known), [None, None, Some(State::Damaged)]);
        time.advance(DAMAGED_FOR);
        assert_eq!(states(&known), [None; 3]);
    }

    #[test]
    fn names_are_bounded_and_the_last_ones_stay() {
        let mut known = Known::new(Clock::stopped());
        let count = 3 * GENERATION as u64;
        (0..count).for_each(|number| known.enter(name(number), State::Present(1)));
        assert!(known.young.names.len() + known.old.names.len() <= 2 * GENERATION);
        assert_eq!((known.get(&name(0)), known.get(&name(count - 1))), (None, Some(State::Present(1))));
    }

    #[test]
    fn the_sums_follow_each_name_through_its_states() {
        let mut known = Known::new(Clock::stopped());
        let tally = known.tally();
        known.enter(name(0), State::Present(4096));
        known.enter(name(1), State::Present(8192));
        known.enter(name(0), State::Present(4096));
        assert_eq!(tally.get(), (2, 12_288), "a name counts once");
        known.enter(name(1), State::Absent);
        assert_eq!(tally.get(), (1, 4096));
        // The names above are in the old generation then, and one of them is asked for again.
        (2..2 + GENERATION as u64).for_each(|number| known.enter(name(number), State::Absent));
        known.enter(name(0), State::Present(8192));
        assert_eq!(tally.get(), (1, 8192), "also in two generations");
        (0..2 * GENERATION as u64).for_each(|number| known.enter(name(9_000_000 + number), State::Damaged));
        assert_eq!(tally.get(), (0, 0), "it has left with its generation");
    }
}
