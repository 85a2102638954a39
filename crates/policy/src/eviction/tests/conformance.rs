//! What holds for every policy, whatever its words say.

use super::harness::zeroed;
use crate::eviction::{Candidate, Eviction, State};
use cenote_base::BlockIndex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Inserted, depth, hits, or any word instead.
type Row = (u64, u32, Vec<u64>, Option<u64>);

/// Few instants and depths, so that ties are common; a clock that is about to wrap; and sometimes
/// any word at all.
fn words() -> impl Strategy<Value = Vec<Row>> {
    let hits = prop::collection::vec(0_u64..20, 0..4);
    let odd = prop_oneof![8 => Just(None), 1 => any::<u64>().prop_map(Some)];
    prop::collection::vec((0_u64..12, 0_u32..6, hits, odd), 0..60)
}

fn candidates(eviction: Eviction, start: u64, state: &State, rows: &[Row]) -> Vec<Candidate> {
    let policy = eviction.policy();
    let candidate = |(block, (inserted, depth, hits, odd)): (usize, &Row)| {
        let key = super::harness::key(block as u64);
        let mut word = policy.inserted(start + inserted, key, state);
        for hit in hits {
            word = policy.accessed(word, start + inserted.max(hit));
        }
        Candidate { block: BlockIndex(block as u64), word: odd.unwrap_or(word), depth: *depth, key }
    };
    rows.iter().enumerate().map(candidate).collect()
}

fn eviction() -> impl Strategy<Value = Eviction> {
    prop::sample::select(Eviction::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn victims_are_distinct_candidates_and_tails(
        eviction in eviction(),
        rows in words(),
        wants in prop::collection::vec(0_usize..70, 1..6),
        start in prop::sample::select(vec![0, (1_u64 << 30) - 9, (1 << 31) - 9, 1 << 40]),
        state_word in prop_oneof![4 => Just(0), 1 => any::<u64>()],
    ) {
        let policy = eviction.policy();
        let state = zeroed(policy, rows.len() as u64);
        state.iter().for_each(|word| word.store(state_word, Relaxed));
        let clock = start + 20;
        let mut left = candidates(eviction, start, &state, &rows);
        for want in wants {
            let choice = policy.victims(clock, &state, &left, want);
            prop_assert_eq!(choice.victims.len(), want.min(left.len()));
            let mut by_block: BTreeMap<BlockIndex, Candidate> = left.iter().map(|c| (c.block, *c)).collect();
            let mut victims = Vec::new();
            for block in choice.victims {
                let victim = by_block.remove(&block);
                prop_assert!(victim.is_some(), "{} is no candidate, or twice a victim", block);
                victims.extend(victim);
            }
            let mut rewritten = BTreeMap::new();
            for rewrite in choice.rewrites {
                prop_assert!(rewrite.from != rewrite.to);
                let candidate = by_block.get_mut(&rewrite.block);
                prop_assert_eq!(candidate.as_ref().map(|c| c.word), Some(rewrite.from));
                prop_assert!(rewritten.insert(rewrite.block, ()).is_none());
                prop_assert_eq!(policy.idle(rewrite.from, clock), policy.idle(rewrite.to, clock));
                candidate.expect("checked").word = rewrite.to;
            }
            // The prefix property: no block that stays is deeper than a victim of the same instant.
            for victim in &victims {
                for stays in by_block.values() {
                    let together = policy.idle(victim.word, clock) == policy.idle(stays.word, clock);
                    // A word from beyond the clock has no idle time of its own.
                    let known = policy.idle(victim.word, clock) > 0;
                    let in_order = stays.depth <= victim.depth;
                    prop_assert!(!(together && known) || in_order, "{:?} before {:?}", victim, stays);
                }
            }
            left = by_block.into_values().collect();
        }
    }

    #[test]
    fn the_order_of_candidates_does_not_matter(
        eviction in eviction(), rows in words(), want in 0_usize..70, by in 0_usize..60,
    ) {
        let policy = eviction.policy();
        let (one, other) = (zeroed(policy, 60), zeroed(policy, 60));
        let mut candidates = candidates(eviction, 100, &one, &rows);
        let first = policy.victims(120, &one, &candidates, want);
        let middle = by.min(candidates.len());
        candidates.rotate_left(middle);
        let second = policy.victims(120, &other, &candidates, want);
        prop_assert_eq!(first.victims, second.victims);
        let values = |state: &[AtomicU64]| -> Vec<u64> { state.iter().map(|word| word.load(Relaxed)).collect() };
        prop_assert_eq!(values(&one), values(&other));
    }
}

#[test]
fn a_prompt_leaves_from_its_end_even_if_its_head_came_first() {
    for eviction in Eviction::ALL {
        let policy = eviction.policy();
        let state = zeroed(policy, 8);
        // A conversation grows by a block with each turn, and each turn finds all that there was.
        let mut words: Vec<u64> = Vec::new();
        for clock in 1..=6 {
            words.iter_mut().for_each(|word| *word = policy.accessed(*word, clock));
            words.push(policy.inserted(clock, clock, &state));
        }
        let mut left: Vec<Candidate> = (0_u64..)
            .zip(words)
            .map(|(n, word)| Candidate { block: BlockIndex(n), word, depth: n as u32, key: n })
            .collect();
        for expected in (0..6).rev() {
            let choice = policy.victims(7, &state, &left, 1);
            assert_eq!(choice.victims, [BlockIndex(expected)], "{eviction}");
            for rewrite in &choice.rewrites {
                left[rewrite.block.0 as usize].word = rewrite.to;
            }
            left.pop();
        }
        assert_eq!(policy.victims(8, &state, &left, 3).victims, []);
    }
}

#[test]
fn one_instant_is_one_touch() {
    for eviction in Eviction::ALL {
        let policy = eviction.policy();
        let state = zeroed(policy, 8);
        let word = policy.inserted(5, 1, &state);
        assert_eq!(policy.accessed(word, 5), word, "{eviction}");
        let hit = policy.accessed(word, 6);
        assert_ne!(hit, word, "{eviction}");
        assert_eq!(policy.accessed(hit, 6), hit, "{eviction}");
        assert_eq!((policy.idle(word, 9), policy.idle(hit, 9)), (4, 3), "{eviction}");
    }
}

#[test]
fn names_round_trip() {
    for eviction in Eviction::ALL {
        assert_eq!(eviction.to_string().parse(), Ok(eviction));
    }
    assert_eq!(Eviction::ALL.map(|eviction| eviction.to_string()), ["lru", "sieve", "s3-fifo", "cost-aware"]);
    assert_eq!(Eviction::default(), Eviction::Lru);
    let error = "clock".parse::<Eviction>().expect_err("no such policy");
    assert_eq!(error.to_string(), "no eviction policy is called `clock`; there are lru, sieve, s3-fifo, cost-aware");
}
