//! The word of the queue policies: touched:31 | place:30 | flags:3.
//!
//! Both stamps are low bits of the lookup clock. They are compared by age, so they may wrap. A
//! stamp stays unchanged for 2^30 lookups only if there is no eviction pressure, or if its block is
//! hit all the time. Then the block changes its place in the queue once, which costs accuracy only.

use super::Candidate;

const TOUCHED_BITS: u32 = 31;
const PLACE_BITS: u32 = 30;
const TOUCHED: u64 = (1 << TOUCHED_BITS) - 1;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

/// Maximum lead of a stamp over the clock: lookups continue while room is made. Without it, a stamp
/// ahead of the clock would count as the oldest.
const AHEAD: u64 = 1 << 20;

/// A policy word with access to its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub u64);

impl Word {
    /// A word that is touched and placed at `clock`, without flags.
    pub const fn new(clock: u64) -> Self {
        Self(0).with_touched(clock).with_place(clock)
    }

    /// Instant of the last hit, or of the publication.
    pub const fn touched(self) -> u64 {
        self.0 & TOUCHED
    }

    pub const fn place(self) -> u64 {
        (self.0 >> TOUCHED_BITS) & PLACE
    }

    pub const fn flags(self) -> u64 {
        self.0 >> (TOUCHED_BITS + PLACE_BITS)
    }

    pub const fn with_touched(self, clock: u64) -> Self {
        Self((self.0 & !TOUCHED) | (clock & TOUCHED))
    }

    pub const fn with_place(self, clock: u64) -> Self {
        Self((self.0 & !(PLACE << TOUCHED_BITS)) | ((clock & PLACE) << TOUCHED_BITS))
    }

    pub const fn with_flags(self, flags: u64) -> Self {
        let kept = self.0 & ((1 << (TOUCHED_BITS + PLACE_BITS)) - 1);
        Self(kept | (flags << (TOUCHED_BITS + PLACE_BITS)))
    }

    pub const fn is_touched_at(self, clock: u64) -> bool {
        self.touched() == clock & TOUCHED
    }

    /// Lookups since the last touch; 0 for a touch ahead of the clock.
    pub const fn idle(self, clock: u64) -> u64 {
        (clock.wrapping_add(AHEAD).wrapping_sub(self.touched()) & TOUCHED).saturating_sub(AHEAD)
    }

    /// A rank that grows with the instant of the last touch.
    pub const fn touched_rank(self, clock: u64) -> u64 {
        TOUCHED - (clock.wrapping_add(AHEAD).wrapping_sub(self.touched()) & TOUCHED)
    }
}

/// A rank that grows with a place's instant, from the back of the queue to its front.
pub(super) const fn place_rank(place: u64, clock: u64) -> u64 {
    PLACE - (clock.wrapping_add(AHEAD).wrapping_sub(place) & PLACE)
}

const DEPTH_MAX: u64 = (1 << 24) - 1;

/// Orders blocks of one instant, the deepest first. Block indices have at most 40 bits; depths are
/// capped at 2^24 - 1.
pub(super) fn deepest_first(candidate: &Candidate) -> u64 {
    let depth = u64::from(candidate.depth).min(DEPTH_MAX);
    ((DEPTH_MAX - depth) << 40) | (candidate.block.0 & ((1 << 40) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_one_part_keeps_the_others() {
        let word = Word::new(5).with_flags(7).with_place(u64::MAX).with_touched(9);
        assert_eq!((word.touched(), word.place(), word.flags()), (9, PLACE, 7));
        assert_eq!(word.with_flags(0), Word::new(u64::MAX).with_touched(9));
    }

    #[test]
    fn ranks_hold_across_a_wrap_and_a_late_clock() {
        let clock = 3 << 40;
        let rank = |at: u64| place_rank(Word::new(at).place(), clock);
        assert!(rank(clock - 500) < rank(clock - 1) && rank(clock - 1) < rank(clock) && rank(clock) < rank(clock + 9));
        let touched = |at: u64| Word::new(at).touched_rank(clock);
        assert!(touched(clock - 500) < touched(clock) && touched(clock) < touched(clock + 9));
        assert_eq!((Word::new(clock - 7).idle(clock), Word::new(clock + 7).idle(clock)), (7, 0));
    }
}
