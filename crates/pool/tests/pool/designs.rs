//! Both designs, with two hosts that share a region without coherence.

use crate::support::*;
use cenote_base::HostId;
use cenote_base::prng::Prng;
use cenote_base::testing::ManualTime;
use cenote_mem::Fabric;
use cenote_pool::{AttachOptions, Counter, Design, Pool, PoolConfig, Publish, ReadOutcome};
use std::time::Duration;

#[test]
fn one_host_reads_blocks_of_another() {
    for config in each_design(22) {
        let (_, pools) = two_hosts(&config);
        let ns = pools.each_ref().map(|pool| namespace(pool, 1, BLOCK_BYTES));
        let hashes = chain(&ns[0], 1, 6);
        for (depth, &hash) in (0..).zip(&hashes) {
            assert_eq!(publish(&pools[depth as usize % 2], &ns[0], hash, depth), Publish::Published);
        }
        for pool in &pools {
            let hits = pool.lookup(&hashes);
            assert_eq!(hits.len(), 6);
            assert!(hits.iter().all(|hit| read(pool, hit) == ReadOutcome::Whole));
            assert_eq!(publish(pool, &ns[0], hashes[0], 0), Publish::Duplicate);
        }
        // Each host evicts from its own chunks.
        assert_eq!(pools.each_ref().map(|pool| pool.evict(10)), [3, 3]);
        assert_eq!(pools[1].lookup(&hashes[..1]), []);
        for pool in &pools {
            let report = pool.check(true).unwrap();
            assert!(report.is_clean() && report.pinned == 0, "{report:?}");
        }
    }
}

/// A pinned or counted block is kept from the other host too, until the last pin or count ends.
#[test]
fn a_block_stays_until_its_last_pin_ends() {
    for config in each_design(23) {
        let (_, [owner, other]) = two_hosts(&config);
        let ns = namespace(&owner, 1, BLOCK_BYTES);
        let hash = chain(&ns, 1, 1)[0];
        publish(&owner, &ns, hash, 0);
        let pin = |pool: &FlushedPool| pool.pin(&pool.lookup(&[hash])[0]).expect("it is there");
        let mut pins = vec![pin(&owner), pin(&other), pin(&other)];
        while let Some(pin) = pins.pop() {
            assert_eq!(owner.check(false).unwrap().pinned, 1);
            assert_eq!(owner.evict(1), 0, "{} more pins", pins.len());
            drop(pin);
            // In the plain design a worker lowers ended counts in its next turn, or here.
            other.tick();
        }
        owner.tick();
        assert_eq!(owner.check(false).unwrap().pinned, 0);
        assert_eq!(owner.evict(1), 1);
    }
}

#[test]
fn hosts_at_work_together_leave_no_count_and_no_pin() {
    for config in each_design(24) {
        let (_, pools) = two_hosts(&config);
        let ns = namespace(&pools[0], 1, BLOCK_BYTES);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (pool, ns) = (pools[seed as usize % 2].clone(), ns.clone());
                scope.spawn(move || {
                    let mut prng = Prng::new(seed);
                    for _ in 0..400 {
                        let hashes = chain(&ns, prng.below(40) as u32, 4);
                        let hits = pool.lookup(&hashes);
                        let pin = hits.first().and_then(|hit| pool.pin(hit));
                        for hit in &hits {
                            assert_ne!(read(&pool, hit), ReadOutcome::Damaged);
                        }
                        for (depth, &hash) in hashes.iter().enumerate().skip(hits.len()) {
                            publish(&pool, &ns, hash, depth as u32);
                        }
                        if let Some(pin) = pin {
                            // Reading it may miss while an eviction finds the pin, but its bytes
                            // stay.
                            let (offset, length) = pin.extent().expect("it is plain");
                            let mut bytes = vec![0; length as usize];
                            pool.fabric().read_payload(offset, &mut [&mut bytes], 0);
                            assert_eq!(bytes, payload(pin.hit().hash, length), "a pinned block went away");
                        }
                    }
                });
            }
        });
        // One host may have got most of the space.
        let sum = |counter| pools.iter().map(|pool| pool.counter(counter)).sum::<u64>();
        assert!(sum(Counter::Evicted) > 20 && sum(Counter::Reads) > 200);
        // Lowers the counts of the last reads.
        for pool in &pools {
            pool.tick();
        }
        for pool in &pools {
            assert_eq!(pool.counter(Counter::LockTimeouts), 0);
            let report = pool.check(true).unwrap();
            assert!(report.is_clean(), "{report:?}");
            assert_eq!((report.pinned, report.reserved), (0, 0));
        }
    }
}

/// An access of the plain design is the read of a prompt. If its blocks moved one by one, the head
/// would leave first and the rest would be of no use.
#[test]
fn the_first_read_of_a_lookup_keeps_and_moves_all_its_blocks() {
    let config = PoolConfig { design: Design::Plain, ..small_config(26) };
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let pool = Pool::attach(without_coherence(2 << 20, &config), &options).expect("its slot is free");
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let [older, newer] = [1, 2].map(|prompt| chain(&ns, prompt, 3));
    for (depth, &hash) in (0..3).chain(0..3).zip(older.iter().chain(&newer)) {
        publish(&pool, &ns, hash, depth);
    }
    let [read_last, read_first] = [&older, &newer].map(|hashes| pool.lookup(hashes));
    for hits in [&read_first, &read_last] {
        assert_eq!(read(&pool, &hits[0]), ReadOutcome::Whole);
    }
    assert_eq!(pool.check(false).unwrap().pinned, 4, "all but the two with ended reads");
    // An unread hit loses its count after a second.
    time.advance(Duration::from_secs(1));
    pool.tick();
    assert_eq!(pool.check(false).unwrap().pinned, 0, "unread hits keep their counts");
    assert_eq!(pool.evict(4), 4);
    assert!(newer.iter().all(|&hash| pool.peek(&[hash]).is_empty()), "it was read first");
    assert_eq!(pool.peek(&older).len(), 2, "a prompt leaves from its end");
    assert!(pool.check(true).unwrap().is_clean());
}

/// Nothing keeps a block between its lookup and its read.
#[test]
fn a_hit_that_left_before_its_read_is_a_miss_and_leaves_no_count() {
    for config in each_design(27) {
        let (_, [owner, other]) = two_hosts(&config);
        let ns = namespace(&owner, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 3);
        (0..).zip(&hashes).for_each(|(depth, &hash)| assert_eq!(publish(&owner, &ns, hash, depth), Publish::Published));
        let hits = other.lookup(&hashes);
        assert_eq!((hits.len(), owner.evict(3)), (3, 3));
        // Two of the slots have other blocks now.
        let later = chain(&ns, 2, 2);
        (0..).zip(&later).for_each(|(depth, &hash)| assert_eq!(publish(&owner, &ns, hash, depth), Publish::Published));
        assert!(hits.iter().all(|hit| read(&other, hit) == ReadOutcome::Stale && other.pin(hit).is_none()));
        assert_eq!(owner.check(true).unwrap().pinned, 0);
        assert_eq!(owner.evict(3), 2);
    }
}

/// In the plain design it is unknown which counts a dead reader raised. A worker that joins and
/// finds no other alive clears all.
#[test]
fn counts_of_dead_workers_are_cleared_when_no_other_lives() {
    let config = PoolConfig { design: Design::Plain, ..small_config(25) };
    let (fabric, [first, second]) = two_hosts(&config);
    let ns = namespace(&first, 1, BLOCK_BYTES);
    let hash = chain(&ns, 1, 1)[0];
    publish(&first, &ns, hash, 0);
    // A process that has ended lowers no count.
    std::mem::forget(second.pin(&second.lookup(&[hash])[0]).expect("it is there"));
    assert_eq!(first.evict(1), 0);
    second.fence_host(HostId(0)).expect("it attached");
    std::mem::forget(second);
    drop(first);
    let early = attach_host(&fabric, 0);
    assert_eq!(early.check(false).unwrap().pinned, 1, "host 1 may live and use it");
    early.fence_host(HostId(1)).expect("it attached");
    drop(early);
    let late = attach_host(&fabric, 0);
    assert_eq!(late.check(false).unwrap().pinned, 0);
    assert_eq!(late.evict(1), 1);
}
