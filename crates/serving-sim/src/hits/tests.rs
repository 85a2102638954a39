use super::*;
use crate::workload::{Request, read_mooncake};
use cenote_base::prng::Prng;
use std::collections::VecDeque;

/// Reference implementation of the counting rule: a linear search in a list from oldest to newest.
fn naive_lru(workload: &Workload, capacity: usize) -> u64 {
    let mut oldest_first: VecDeque<u32> = VecDeque::new();
    let mut hits = 0;
    for request in workload.requests() {
        let blocks = workload.blocks(request);
        for block in blocks {
            if !oldest_first.contains(block) {
                break;
            }
            hits += 1;
        }
        for &block in blocks {
            if let Some(at) = oldest_first.iter().position(|&held| held == block) {
                oldest_first.remove(at);
            } else if oldest_first.len() == capacity {
                oldest_first.pop_front();
            }
            oldest_first.push_back(block);
        }
    }
    hits
}

/// A trace of conversations that return with more blocks, and of prompts that occur once.
fn drawn(seed: u64) -> Workload {
    let mut prng = Prng::new(seed);
    let mut text = String::new();
    let mut conversations: Vec<Vec<u64>> = vec![vec![0]];
    let mut next = 1;
    for at in 0..400 {
        let which = prng.below(conversations.len() as u64 + 4) as usize;
        let mut ids = conversations.get(which).cloned().unwrap_or_else(|| vec![0]);
        for _ in 0..prng.below(6) {
            ids.push(next);
            next += 1;
        }
        if which < conversations.len() {
            conversations[which].clone_from(&ids);
        } else {
            conversations.push(ids.clone());
        }
        let tokens = 512 * ids.len();
        text += &format!("{{\"timestamp\":{at},\"input_length\":{tokens},\"output_length\":1,\"hash_ids\":{ids:?}}}\n");
    }
    read_mooncake(text.as_bytes(), 512, true).expect("a trace").workload
}

#[test]
fn lru_hits_equal_the_reference_implementation() {
    for seed in 0..6 {
        let workload = drawn(seed);
        for capacity in [1, 2, 3, 17, 63, 64, 65, 130, 300, 1_000] {
            let ours = hit_rate(&workload, Eviction::Lru, Some(capacity), Instants::Block);
            assert_eq!(ours.hit_blocks, naive_lru(&workload, capacity), "seed {seed}, {capacity} blocks");
        }
    }
}

#[test]
fn with_unlimited_capacity_every_repeated_prefix_hits() {
    let workload = drawn(9);
    let mut seen: std::collections::BTreeSet<u32> = std::collections::BTreeSet::new();
    let mut expected = 0;
    for request in workload.requests() {
        let blocks = workload.blocks(request);
        expected += blocks.iter().take_while(|&block| seen.contains(block)).count() as u64;
        seen.extend(blocks);
    }
    for eviction in Eviction::ALL {
        for instants in [Instants::Block, Instants::Request] {
            let found = hit_rate(&workload, eviction, None, instants);
            assert_eq!((found.hit_blocks, found.evicted_blocks), (expected, 0), "{eviction}");
            assert_eq!(found.unique_blocks, seen.len() as u64);
        }
    }
}

#[test]
fn a_miss_ends_the_hits_and_later_blocks_are_touched() {
    // When the first prompt returns, block 2 is evicted. Block 3 is cached: it does not count as a
    // hit, but it is touched.
    let text = |ids: &[u64]| {
        let tokens = 512 * ids.len();
        format!("{{\"timestamp\":0,\"input_length\":{tokens},\"output_length\":1,\"hash_ids\":{ids:?}}}\n")
    };
    let trace = [&[1, 2, 3][..], &[3], &[1], &[9], &[1, 2, 3], &[3]].map(text).concat();
    let workload = read_mooncake(trace.as_bytes(), 512, true).expect("a trace").workload;
    let of = |request: &Request| workload.blocks(request).len();
    assert_eq!(workload.requests().iter().map(of).sum::<usize>(), 10);
    let found = hit_rate(&workload, Eviction::Lru, Some(3), Instants::Block);
    // [3] hits, [1] hits, 1 hits again before the miss of 2, [3] hits.
    assert_eq!((found.hit_blocks, found.blocks), (4, 10));
}

/// All ways to choose victims, for tiny caches: the most blocks that any of them finds.
fn most(workload: &Workload, at: usize, cached: &[u32], capacity: usize) -> usize {
    let Some(request) = workload.requests().get(at) else { return 0 };
    let blocks = workload.blocks(request);
    let found = blocks.iter().take_while(|block| cached.contains(block)).count();
    let mut held: Vec<u32> = cached.to_vec();
    held.extend(blocks.iter().filter(|block| !cached.contains(block)));
    if held.len() <= capacity {
        return found + most(workload, at + 1, &held, capacity);
    }
    let subsets = (0..1_u32 << held.len()).filter(|set| set.count_ones() as usize == capacity);
    let kept = |set: u32| (0..held.len()).filter(|nth| set >> nth & 1 == 1).map(|nth| held[nth]).collect::<Vec<_>>();
    found + subsets.map(|set| most(workload, at + 1, &kept(set), capacity)).max().unwrap_or(0)
}

#[test]
fn no_choice_of_victims_finds_more_than_knowledge_of_the_future() {
    let mut prng = Prng::new(8);
    for _ in 0..12 {
        let mut text = String::new();
        for at in 0..7 {
            // Two conversations, each with one or two blocks.
            let (which, length) = (10 * prng.below(3), 1 + prng.below(2));
            let ids: Vec<u64> = (0..length).map(|depth| which + depth).collect();
            text += &format!(
                "{{\"timestamp\":{at},\"input_length\":{},\"output_length\":1,\"hash_ids\":{ids:?}}}\n",
                512 * length
            );
        }
        let workload = read_mooncake(text.as_bytes(), 512, true).expect("a trace").workload;
        let blocks: usize = workload.requests().iter().map(|request| workload.blocks(request).len()).sum();
        let best = best_hit_rate(&workload, 2) * blocks as f64;
        assert_eq!(best.round() as usize, most(&workload, 0, &[], 2), "{text}");
    }
}

#[test]
fn the_future_finds_at_least_as_much_as_every_policy() {
    let workload = drawn(3);
    for capacity in [20, 60, 200] {
        let best = best_hit_rate(&workload, capacity);
        for (eviction, instants) in
            Eviction::ALL.into_iter().flat_map(|one| [(one, Instants::Block), (one, Instants::Request)])
        {
            let found = hit_rate(&workload, eviction, Some(capacity), instants);
            assert!(found.hit_rate <= best + 1e-9, "{eviction} at {capacity}: {} of {best}", found.hit_rate);
            let evicted = evictions(&workload, eviction, capacity, instants);
            assert_eq!(evicted.blocks, found.evicted_blocks, "{eviction}");
            assert!(evicted.wanted_unfound <= evicted.wanted && evicted.wanted <= 1.0, "{evicted:?}");
            assert!((0.0..=1.0).contains(&evicted.dead), "{evicted:?}");
        }
    }
    let all = workload.num_blocks();
    assert_eq!(best_hit_rate(&workload, all), hit_rate(&workload, Eviction::Lru, None, Instants::Block).hit_rate);
}

#[test]
fn returns_and_victims_are_counted_by_hand() {
    let one = |at_s: u64, id: u64| {
        let at = 1000 * at_s;
        format!("{{\"timestamp\":{at},\"input_length\":512,\"output_length\":1,\"hash_ids\":[{id}]}}\n")
    };
    // Block 1 returns after 10 and 40 s, block 2 after 100 s, block 3 never.
    let text = [one(0, 1), one(10, 1), one(20, 2), one(30, 3), one(50, 1), one(120, 2)].concat();
    let workload = read_mooncake(text.as_bytes(), 512, true).expect("a trace").workload;
    let rows = returns(&workload);
    let counts: Vec<(u64, u64)> = rows.iter().map(|row| (row.idle, row.returned)).collect();
    assert_eq!(counts[..4], [(6, 1), (5, 0), (5, 1), (4, 1)]);
    assert_eq!((counts[7].0, counts[7].1, rows[7].to_s), (3, 0, None));
    assert!((rows[0].per_s - 1.0 / (10.0 + 5.0 * 15.0)).abs() < 1e-12, "{:?}", rows[0]);
    // One place: 2 displaces 1 (found, wanted), 3 displaces 2 (not found, wanted), 1 displaces 3 (dead),
    // and 2 displaces 1 (dead by then).
    let evicted = evictions(&workload, Eviction::Lru, 1, Instants::Request);
    assert_eq!((evicted.blocks, evicted.wanted, evicted.wanted_unfound), (4, 0.5, 0.25));
    assert_eq!(evicted.idle_p50_s, 20.0);
}
