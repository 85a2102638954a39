//! Several blocks in one call.

use crate::support::shared::{Shared, attach_flushed, region_of_process};
use crate::support::*;
use cenote_base::BlockHash;
use cenote_base::fault::{Plan, Point};
use cenote_mem::{Fabric, Flush};
use cenote_pool::{Counter, Filling, Namespace, NewBlock, Pool, Publish, ReadOutcome};

fn publish_all<F: Fabric>(pool: &Pool<F>, blocks: &[(&Namespace, BlockHash)]) -> Vec<Publish> {
    let payloads: Vec<Vec<u8>> = blocks.iter().map(|&(ns, hash)| payload(hash, ns.block_bytes)).collect();
    let parts: Vec<[&[u8]; 2]> =
        payloads.iter().map(|payload| payload.split_at(64)).map(|(left, right)| [left, right]).collect();
    let blocks = (0..).zip(blocks).zip(&parts);
    let blocks = blocks.map(|((depth, &(ns, hash)), parts)| (NewBlock::new(ns, hash, depth), parts.as_slice()));
    pool.publish_all(&blocks.collect::<Vec<(NewBlock<'_>, &[&[u8]])>>())
}

fn expect_whole<F: Fabric>(pool: &Pool<F>, hashes: &[BlockHash]) {
    let hits = pool.lookup(hashes);
    assert_eq!(hits.len(), hashes.len());
    assert!(hits.iter().all(|hit| read(pool, hit) == ReadOutcome::Whole));
}

fn expect_clean<F: Fabric>(pool: &Pool<F>) {
    let report = pool.check(true).expect("no lock is held");
    assert!(report.is_clean() && report.reserved == 0, "{report:?}");
}

#[test]
fn each_block_has_the_outcome_of_a_call_of_its_own() {
    for config in each_design(41) {
        let (_, pool) = anonymous(4 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 6);
        assert!(publish_all(&pool, &[]).is_empty());
        assert_eq!(publish(&pool, &ns, hashes[1], 1), Publish::Published);
        let repeated = [0, 1, 2, 2, 3, 0, 4, 5].map(|at| (&ns, hashes[at]));
        let [published, duplicate] = [Publish::Published, Publish::Duplicate];
        assert_eq!(
            publish_all(&pool, &repeated),
            [published, duplicate, published, duplicate, published, duplicate, published, published]
        );
        expect_whole(&pool, &hashes);
        expect_clean(&pool);
        let counted = [Counter::Published, Counter::Duplicates, Counter::PublishedBytes].map(|of| pool.counter(of));
        assert_eq!(counted, [6, 3, 6 * BLOCK_BYTES]);
    }
}

#[test]
fn blocks_of_a_large_call_are_found_by_another_host() {
    let (_, [first, second]) = two_hosts(&small_config(42));
    let ns = namespace(&first, 1, 4 << 10);
    let hashes = chain(&ns, 1, 150);
    let blocks: Vec<_> = hashes.iter().map(|&hash| (&ns, hash)).collect();
    assert_eq!(publish_all(&first, &blocks), [Publish::Published; 150]);
    expect_whole(&second, &hashes);
    assert_eq!(publish_all(&second, &blocks), [Publish::Duplicate; 150]);
    expect_clean(&first);
    expect_clean(&second);
}

/// The first blocks of a prompt are worth more than the later ones.
#[test]
fn of_a_call_that_exceeds_the_space_the_first_blocks_are_published() {
    let (_, pool) = anonymous(2 << 20, &small_config(43));
    let ns = namespace(&pool, 1, 64 << 10);
    let old = chain(&ns, 1, 4);
    assert_eq!(publish_all(&pool, &old.iter().map(|&hash| (&ns, hash)).collect::<Vec<_>>()), [Publish::Published; 4]);
    let pinned = pool.pin(&pool.lookup(&old[..1])[0]).expect("it is there");
    let hashes = chain(&ns, 2, 60);
    let outcomes = publish_all(&pool, &hashes.iter().map(|&hash| (&ns, hash)).collect::<Vec<_>>());
    let fitting = outcomes.iter().position(|&outcome| outcome != Publish::Published).expect("60 blocks do not fit");
    assert!((10..60).contains(&fitting), "{fitting}");
    assert!(outcomes[fitting..].iter().all(|&outcome| outcome == Publish::NoRoom), "{outcomes:?}");
    expect_whole(&pool, &hashes[..fitting]);
    assert_eq!(pinned.verify(), ReadOutcome::Whole, "older blocks left, but for the pinned one");
    assert!(pool.lookup(&old[1..2]).is_empty());
    drop(pinned);
    expect_clean(&pool);
}

#[test]
fn a_block_over_its_quota_does_not_keep_others_from_the_pool() {
    let (_, pool) = anonymous(4 << 20, &small_config(44));
    let (limited, free) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    pool.set_quota(limited.id, BLOCK_BYTES).expect("the row is there");
    let (ours, others) = (chain(&limited, 1, 2), chain(&free, 1, 2));
    let blocks = [(&limited, ours[0]), (&free, others[0]), (&limited, ours[1]), (&free, others[1])];
    let [published, over] = [Publish::Published, Publish::OverQuota];
    assert_eq!(publish_all(&pool, &blocks), [published, published, over, published]);
    expect_whole(&pool, &others);
    expect_whole(&pool, &ours[..1]);
    expect_clean(&pool);
}

#[test]
fn blocks_that_are_filled_together_are_published_together() {
    let (_, [first, second]) = two_hosts(&small_config(45));
    let ns = namespace(&first, 1, BLOCK_BYTES);
    // Workers publish only in namespaces that they have opened.
    namespace(&second, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 5);
    let new: Vec<NewBlock<'_>> = (0..).zip(&hashes).map(|(depth, &hash)| NewBlock::new(&ns, hash, depth)).collect();
    let payloads: Vec<Vec<u8>> = hashes.iter().map(|&hash| payload(hash, BLOCK_BYTES)).collect();
    assert_eq!(publish(&first, &ns, hashes[2], 2), Publish::Published);

    let begun = first.begin_all(&new[..4]);
    assert_eq!(begun.iter().map(|filling| filling.as_ref().err()).collect::<Vec<_>>()[2], Some(&Publish::Duplicate));
    let mut fillings: Vec<_> = begun.into_iter().flatten().collect();
    let of_fillings = [0, 1, 3];
    for piece in [0..4096, 4096..BLOCK_BYTES as usize] {
        let pieces = of_fillings.map(|at| &payloads[at][piece.clone()]);
        Filling::append_all(fillings.iter_mut().zip(pieces));
    }
    assert_eq!(second.lookup(&hashes).len(), 0, "no block is found before it is published");
    assert_eq!(publish(&second, &ns, hashes[3], 3), Publish::Published);
    assert_eq!(first.publish_filled(fillings), [Publish::Published, Publish::Published, Publish::Duplicate]);
    expect_whole(&second, &hashes[..4]);

    let in_place: Vec<_> = first.begin_all_in_place(&[new[4], new[4]]).into_iter().flatten().collect();
    for filling in &in_place {
        first.fabric().copy_plain_in(filling.extent().0, &payloads[4]);
    }
    assert_eq!(first.publish_in_place(in_place), [Publish::Published, Publish::Duplicate]);
    expect_whole(&second, &hashes);
    expect_clean(&first);
    expect_clean(&second);
}

/// A namespace and the hashes of forty blocks.
fn forty(pool: &FlushedPool) -> (Namespace, Vec<BlockHash>) {
    let ns = namespace(pool, 1, 4 << 10);
    let hashes = chain(&ns, 1, 40);
    (ns, hashes)
}

/// The process that the next test starts.
#[test]
#[ignore = "the process that another test starts"]
fn publisher() {
    let pool = attach_flushed(&region_of_process(), 0);
    let (ns, hashes) = forty(&pool);
    publish_all(&pool, &hashes.iter().map(|&hash| (&ns, hash)).collect::<Vec<_>>());
}

/// The process that dies holds the locks of several shards.
#[test]
fn locks_that_are_held_together_are_repaired_after_a_death() {
    let region = Shared::make("together", 2 << 20, small_config(46), Flush::available()[0]);
    let pool = attach_flushed(&region.source, 0);
    let death = Plan { point: Point::IndexCounted, pass: 20 };
    let child = region.process("together::publisher", Some(death)).output().expect("the test starts itself");
    assert!(!child.status.success(), "the child dies at the twentieth entry");
    assert_eq!(pool.tick().workers, 1);
    let (ns, hashes) = forty(&pool);
    assert!(pool.counter(Counter::LocksAbandoned) > 5, "{}", pool.counter(Counter::LocksAbandoned));
    // The child had written all descriptors, so recovery finishes what it began.
    expect_whole(&pool, &hashes);
    let other = attach_flushed(&region.source, 1);
    expect_whole(&other, &hashes);
    let all: Vec<_> = hashes.iter().map(|&hash| (&ns, hash)).collect();
    assert_eq!(publish_all(&other, &all), [Publish::Duplicate; 40]);
    expect_clean(&pool);
    assert_eq!((pool.counter(Counter::LockTimeouts), other.counter(Counter::LockTimeouts)), (0, 0));
}
