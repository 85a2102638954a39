//! Swapped-out blocks: they come back unchanged or not at all, and only their worker has them.

use crate::support::*;
use cenote_mem::{Fabric, Offset};
use cenote_pool::{Counter, Publish, ReadOutcome, SwapSlot};
use std::sync::Arc;

fn bytes(fill: u8) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| fill ^ (at % 251) as u8).collect()
}

/// A block in two parts of different lengths.
fn parts(bytes: &[u8]) -> [&[u8]; 2] {
    let (left, right) = bytes.split_at(4096);
    [left, right]
}

fn read_back<F: Fabric>(kept: &SwapSlot<F>) -> (ReadOutcome, Vec<u8>) {
    let mut back = vec![0; BLOCK_BYTES as usize];
    let (left, right) = back.split_at_mut(4096);
    let outcome = kept.read(&mut [left, right]);
    (outcome, back)
}

#[test]
fn swapped_blocks_come_back_and_their_slots_are_freed() {
    for config in each_design(61) {
        let (_, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let kept: Vec<_> = (1..4)
            .map(|fill| {
                pool.swap_out(&ns, &parts(&bytes(fill))).unwrap_or_else(|refused| panic!("there is room: {refused:?}"))
            })
            .collect();
        assert_eq!(pool.check(true).expect("it checks").reserved, 3);
        // Other traffic evicts published blocks, and no swapped-out ones.
        for prompt in 0..100 {
            for (depth, hash) in (0..).zip(chain(&ns, prompt, 4)) {
                publish(&pool, &ns, hash, depth);
            }
        }
        assert!(pool.counter(Counter::Evicted) > 100);
        for (fill, kept) in (1..).zip(&kept) {
            assert!(read_back(kept) == (ReadOutcome::Whole, bytes(fill)));
        }
        drop(kept);
        let report = pool.check(true).expect("it checks");
        assert!(report.is_clean() && report.reserved == 0, "{report:?}");
    }
}

#[test]
fn a_full_region_reuses_freed_memory() {
    let (_, pool) = anonymous(2 << 20, &small_config(62));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for (depth, hash) in (0..).zip(chain(&ns, 1, 4)) {
        assert_eq!(publish(&pool, &ns, hash, depth), Publish::Published);
    }
    let mut kept = Vec::new();
    let refusal = loop {
        match pool.swap_out(&ns, &parts(&bytes(kept.len() as u8))) {
            Ok(more) => kept.push(more),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Publish::NoRoom);
    assert!(kept.len() > 50 && pool.counter(Counter::NoRoom) == 1);
    assert_eq!(pool.counter(Counter::Evicted), 4, "what was published had to leave");
    for (fill, kept) in kept.iter().enumerate() {
        assert!(read_back(kept) == (ReadOutcome::Whole, bytes(fill as u8)));
    }
    kept.pop();
    assert!(pool.swap_out(&ns, &parts(&bytes(9))).is_ok());
}

#[test]
fn a_corrupt_swap_slot_is_reported() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(63));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let kept = pool.swap_out(&ns, &parts(&bytes(7))).unwrap_or_else(|refused| panic!("there is room: {refused:?}"));
    let first = u64::from_le_bytes(bytes(7)[..8].try_into().expect("eight bytes"));
    let places = (0..fabric.len()).step_by(64).map(Offset::<u64>::new);
    let at = places.into_iter().find(|&at| fabric.load(at) == first).expect("it is somewhere");
    fabric.store(at, first ^ 1);
    assert_eq!(read_back(&kept).0, ReadOutcome::Damaged);
    assert_eq!(pool.counter(Counter::ReadsDamaged), 1);
    fabric.store(at, first);
    assert_eq!(read_back(&kept).0, ReadOutcome::Whole, "nothing but that was wrong");
    drop(kept);
    assert!(Arc::strong_count(&fabric) > 1 && pool.check(true).expect("it checks").is_clean());
}
