//! How the hosts of a rack share the space of one pool: which chunks a host offers to the others,
//! and when a host takes an offered chunk instead of evicting from its own.
//!
//! Every host evicts its own blocks in the order of the eviction policy. If a host's oldest blocks
//! are younger than those of another host, the other one's space is worth more in its hands: one
//! pool with one order would evict the other one's blocks first. So chunks move, with the blocks in
//! them, until the ages agree within an eighth. Ages count lookups of the whole rack.

use crate::eviction::{EvictionPolicy, batch};

/// A chunk is as old as this part of its blocks, the oldest: these would leave first.
const OLDEST_PART: usize = 8;

/// A host takes an offered chunk only if it is older than its own by more than one in so many
/// lookups.
const MARGIN: u64 = 8;

/// A busy host offers chunks only if they are older than another host's by more than one in so many
/// lookups, that is twice as old, and its stock. Ages of busy hosts differ by chance, and with a
/// smaller margin they would pass more chunks back and forth.
const BUSY_MARGIN: u64 = 1;

/// A host is idle when it has reserved nothing for so many ticks. Between two requests that need
/// space may lie some that find all.
pub const IDLE_TICKS: u64 = 8;

/// A busy host offers one in so many chunks, at least one, while another host has none: that one
/// gets some at once when it needs them.
const BUSY_PART: usize = 64;

/// While another host evicts by age, a busy host offers one in so many chunks, the oldest: a host
/// that needs space between two ticks then finds the oldest blocks of the rack. With an eighth,
/// hosts evict their younger blocks before they take their offers back.
const STOCK_PART: usize = 16;

/// A host is under pressure for so many ticks after it has evicted: it evicts many blocks at once,
/// and then none for some ticks.
pub const PRESSED_TICKS: u64 = 8;

/// Most chunks that a host takes at once, so that the chunk lock is soon free.
pub const TAKEN_AT_ONCE: usize = 8;

/// Age of a chunk, from the ages of its blocks; `None`: it has no block. Reorders them.
#[must_use]
pub fn chunk_age(ages: &mut [u64]) -> Option<u64> {
    let oldest = ages.len().div_ceil(OLDEST_PART).checked_sub(1)?;
    let (_, age, _) = ages.select_nth_unstable_by(oldest, |left, right| right.cmp(left));
    Some(*age)
}

/// Whether a host takes a chunk of this age. `own` is the age to which its next eviction would reach
/// ([`leaving_age`]); `None`: it has no block. A host takes its own offers back (`is_own`) as soon as
/// they are older.
#[must_use]
pub fn is_worth_taking(offered: u64, own: Option<u64>, is_own: bool) -> bool {
    own.is_none_or(|own| if is_own { offered > own } else { is_older(offered, own, MARGIN) })
}

/// Whether an age is higher than another by more than one part in `margin`.
const fn is_older(age: u64, other: u64, margin: u64) -> bool {
    age > other.saturating_add(other / margin)
}

/// Number of chunks that a host takes at once. Ages grow with the space that a host has, so `owned`
/// chunks of age `own` become as old as the offered ones with that part more of them; the other host
/// loses as much, so half suffices. A host without blocks takes `most`.
#[must_use]
pub fn taken_at_once(owned: usize, offered: u64, own: Option<u64>, most: usize) -> usize {
    let Some(own) = own.filter(|&own| own > 0) else { return most };
    let part = owned as u128 * u128::from(offered.saturating_sub(own)) / (2 * u128::from(own));
    usize::try_from(part).unwrap_or(most).clamp(1, most)
}

/// What the other hosts need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Of the hosts that evicted since the last tick, the lowest age to which a next eviction would
    /// reach: 0 if a host has no block. `None`: none evicted.
    pub rival: Option<u64>,
    /// Another host has no chunk.
    pub has_newcomer: bool,
    /// Another host is under pressure ([`PRESSED_TICKS`]) and evicts by age
    /// ([`EvictionPolicy::evicts_by_age`]).
    pub by_age: bool,
}

/// Number of chunks that a host offers, the oldest ones. `ages` are those of its chunks, the oldest
/// first.
///
/// An idle host offers all. A busy one offers those that a host under pressure needs more, and a
/// stock for needs that arise before the next tick.
#[must_use]
pub fn offers(ages: &[u64], is_busy: bool, need: Need) -> usize {
    if !is_busy {
        return ages.len();
    }
    let wanted = need.rival.map_or(0, |rival| ages.partition_point(|&age| is_older(age, rival, BUSY_MARGIN)));
    let stock = if need.by_age { ages.len().div_ceil(STOCK_PART) } else { 0 };
    wanted.max(stock).max(if need.has_newcomer { ages.len().div_ceil(BUSY_PART) } else { 0 })
}

/// Age to which a host's next eviction would reach, from the ages of its blocks; `None`: it has no
/// block. Reorders them.
#[must_use]
pub fn leaving_age(ages: &mut [u64]) -> Option<u64> {
    let last = batch(ages.len()).min(ages.len()).checked_sub(1)?;
    let (_, age, _) = ages.select_nth_unstable_by(last, |left, right| right.cmp(left));
    Some(*age)
}

/// The word of a block whose chunk moved. `told` is its last owner's word; `known` is its new
/// owner's, which may know of later hits.
#[must_use]
pub fn moved_word(policy: &dyn EvictionPolicy, told: u64, known: u64, clock: u64) -> u64 {
    let idle = policy.idle(known, clock);
    if idle < policy.idle(told, clock) { policy.accessed(told, clock.wrapping_sub(idle)) } else { told }
}

/// Whether a hit of another host's block is reported. `idle` is the time since the last hit that
/// this host knows of, `pace` the time between two reports ([`report_pace`]).
#[must_use]
pub const fn is_due(idle: u64, pace: u64) -> bool {
    idle >= if pace > 1 { pace } else { 1 }
}

/// A block's hits on other hosts reach its owner once in this many lookups, so that a hot block
/// does not fill the ring of hits. `age` is that of the blocks that leave first, on any host: a
/// block that was hit in a small part of it is far from leaving.
#[must_use]
pub const fn report_pace(age: u64) -> u64 {
    age / 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_as_old_as_its_oldest_eighth() {
        assert_eq!(chunk_age(&mut []), None);
        assert_eq!(chunk_age(&mut [3]), Some(3));
        assert_eq!(chunk_age(&mut [1, 9, 2, 3, 4, 5, 6, 7]), Some(9));
        let mut mixed: Vec<u64> = (0..64).collect();
        assert_eq!(chunk_age(&mut mixed), Some(56));
    }

    #[test]
    fn a_host_takes_what_is_older_than_its_own() {
        let takes = |offered, own| is_worth_taking(offered, own, false);
        assert!(takes(0, None) && takes(1, Some(0)));
        assert!(!takes(0, Some(0)) && !takes(112, Some(100)) && takes(113, Some(100)));
        assert!(!takes(u64::MAX, Some(u64::MAX)));
        assert!(is_worth_taking(101, Some(100), true) && !is_worth_taking(100, Some(100), true), "its own offers");
    }

    #[test]
    fn a_host_takes_half_the_difference() {
        assert_eq!(taken_at_once(32, 120, Some(100), 8), 3);
        assert_eq!(taken_at_once(32, 101, Some(100), 8), 1, "at least one");
        assert_eq!(taken_at_once(32, 1000, Some(100), 8), 8, "at most eight");
        assert_eq!(taken_at_once(32, u64::MAX, Some(1), 8), 8);
        assert_eq!([None, Some(0)].map(|own| taken_at_once(32, 100, own, 8)), [8, 8]);
    }

    #[test]
    fn an_idle_host_offers_all_and_a_busy_one_what_others_would_take() {
        let ages: Vec<u64> = (1..=100).rev().collect();
        let busy = |rival, has_newcomer, by_age| offers(&ages, true, Need { rival, has_newcomer, by_age });
        assert_eq!(offers(&ages, false, Need::default()), 100);
        assert_eq!([false, true].map(|newcomer| busy(None, newcomer, false)), [0, 2]);
        assert_eq!(busy(Some(100), false, false), 0, "ages agree");
        assert_eq!(busy(Some(100), false, true), 7, "a stock");
        assert_eq!([false, true].map(|by_age| busy(Some(40), false, by_age)), [20; 2]);
        assert_eq!(busy(Some(0), false, false), 100);
        assert_eq!(offers(&[], true, Need { rival: Some(0), has_newcomer: true, by_age: true }), 0);
    }

    #[test]
    fn two_busy_hosts_never_pass_a_chunk_back_and_forth() {
        for (age, own) in (0..300_u64).flat_map(|age| (0..300).map(move |own| (age, own))) {
            assert!(!(is_worth_taking(age, Some(own), false) && is_worth_taking(own, Some(age), false)));
        }
    }
}
