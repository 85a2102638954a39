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
