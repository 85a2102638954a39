//! Rows of pinned blocks, gathered into one buffer (docs/internals/protocol.md#gather).

use crate::support::*;
use cenote_base::prng::Prng;
use cenote_base::testing::until;
use cenote_base::{BlockHash, HostId};
use cenote_mem::{Fabric, Offset};
use cenote_pool::{
    Counter, Gathered, Namespace, NewBlock, PinnedRows, Pool, Publish, RowError, RowRef, RowShape, Strays,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Publishes the blocks of a prompt and pins them.
fn pinned<F: Fabric>(pool: &Pool<F>, ns: &Namespace, hashes: &[BlockHash]) -> PinnedRows<F> {
    for (depth, &hash) in (0..).zip(hashes) {
        assert_eq!(publish(pool, ns, hash, depth), Publish::Published);
    }
    pool.pin_rows(&pool.lookup(hashes))
}

/// A random list of rows.
fn list(prng: &mut Prng, blocks: usize, shape: &RowShape, count: usize) -> Vec<RowRef> {
    let rows = shape.rows_in(BLOCK_BYTES);
    let row = |_| RowRef { block: prng.below(blocks as u64) as u32, row: prng.below(rows) as u32 };
    (0..count).map(row).collect()
}

/// A buffer for the rows, with bytes that no payload has in all places.
fn buffer(rows: &[RowRef], shape: &RowShape) -> Vec<u8> {
    vec![0xee; rows.len() * shape.row_bytes() as usize]
}

/// Asserts that each row of a block that is not missed has its bytes.
fn assert_rows(hashes: &[BlockHash], rows: &[RowRef], shape: &RowShape, got: &[u8], missed: &[u32]) {
    let payloads: Vec<Vec<u8>> = hashes.iter().map(|&hash| payload(hash, BLOCK_BYTES)).collect();
    for (row, got) in rows.iter().zip(got.chunks(shape.row_bytes() as usize)) {
        if missed.contains(&row.block) {
            continue;
        }
        let start = shape.offset + u64::from(row.row) * shape.stride;
        let pieces = (0..shape.pieces).map(|piece| (start + piece * shape.piece_stride) as usize);
        let expected = pieces.flat_map(|at| &payloads[row.block as usize][at..at + shape.bytes as usize]);
        assert!(expected.eq(got), "{row:?} of {shape:?}");
    }
}

fn whole() -> Result<Gathered, RowError> {
    Ok(Gathered::default())
}

fn missed(blocks: &[u32]) -> Result<Gathered, RowError> {
    Ok(Gathered { missed: blocks.to_vec() })
}

#[test]
fn rows_of_any_shape_come_in_the_order_of_the_list() {
    let shapes = [
        RowShape::packed(0, 512),
        RowShape::packed(8192, 128),
        RowShape::strided(100, 777, 333),
        RowShape::strided(4096, 1024, 256),
        RowShape::strided(0, 64, 64).in_pieces(8, 2048),
        RowShape::strided(1, 3, 1).in_pieces(5, 7),
        // All rows are the same.
        RowShape::strided(64, 0, 16),
        RowShape::packed(0, BLOCK_BYTES),
    ];
    for config in each_design(51) {
        let (_, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 9);
        let set = pinned(&pool, &ns, &hashes);
        let mut prng = Prng::new(1);
        for (shape, count) in shapes.iter().flat_map(|shape| [0, 1, 7, 511, 513, 1500].map(|count| (shape, count))) {
            let rows = list(&mut prng, hashes.len(), shape, count);
            let mut to = buffer(&rows, shape);
            assert_eq!(set.gather(&rows, shape, &mut to), whole(), "{shape:?}");
            assert_rows(&hashes, &rows, shape, &to, &[]);
        }
        assert_eq!(pool.counter(Counter::RowsMissed), 0);
    }
}

#[test]
fn a_block_is_verified_once_and_its_rows_need_no_sum() {
    let (_, pool) = anonymous(2 << 20, &small_config(52));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 3);
    let set = pinned(&pool, &ns, &hashes);
    let shape = RowShape::packed(0, 256);
    let one = [RowRef { block: 2, row: 5 }];
    for _ in 0..3 {
        assert_eq!(set.gather(&one, &shape, &mut [0; 256]), whole());
        assert_eq!(pool.counter(Counter::Reads), 1, "only the block that has a row in the list");
    }
    assert_eq!((set.verify(), pool.counter(Counter::Reads)), (vec![], 3));
    assert_eq!((set.verify(), pool.counter(Counter::Reads)), (vec![], 3));
    assert_eq!((pool.counter(Counter::RowsGathered), pool.counter(Counter::RowsMissed)), (3, 0));
    assert_eq!((set.len(), set.is_empty()), (3, false));
}

#[test]
fn a_list_that_cannot_be_is_an_error_and_copies_nothing() {
    let (_, pool) = anonymous(2 << 20, &small_config(53));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let set = pinned(&pool, &ns, &chain(&ns, 1, 2));
    let shape = RowShape::packed(1024, 512);
    assert_eq!(shape.rows_in(BLOCK_BYTES), 30);
    let good = RowRef { block: 0, row: 29 };
    let refused = |rows: &[RowRef], shape: &RowShape, bytes: usize| {
        let mut to = vec![0xee; bytes];
        let error = set.gather(rows, shape, &mut to).expect_err("a bug of the caller");
        assert!(to.iter().all(|&byte| byte == 0xee), "{error}");
        error
    };
    let wrong = RowRef { block: 2, row: 0 };
    assert_eq!(refused(&[good, wrong], &shape, 1024), RowError::Block { at: 1, block: 2, blocks: 2 });
    for row in [30, 31, u32::MAX] {
        let wrong = RowRef { block: 1, row };
        assert_eq!(refused(&[good, wrong], &shape, 1024), RowError::Row { at: 1, block: 1, row, rows: 30 });
    }
    for got in [0, 511, 513] {
        assert_eq!(refused(&[good], &shape, got), RowError::Buffer { got, wanted: 512, rows: 1 });
    }
    let no_shapes = [
        RowShape::packed(0, 0),
        RowShape::packed(0, 512).in_pieces(0, 1),
        RowShape::packed(u64::MAX, 512),
        RowShape::strided(0, u64::MAX, 512),
        RowShape::packed(0, u64::MAX),
        RowShape::packed(0, 1 << 20).in_pieces(u64::MAX, 0),
        RowShape::packed(0, 512).in_pieces(1 << 40, u64::MAX),
        RowShape::packed(0, 512).in_pieces(3, 1 << 31),
    ];
    for shape in no_shapes {
        assert_eq!(refused(&[good], &shape, 512), RowError::Shape(shape));
        assert_eq!(shape.rows_in(BLOCK_BYTES), 0, "{shape:?}");
    }
    // The rows behind those of a page are of the next page.
    let page = shape.first(7);
    assert_eq!(refused(&[RowRef { row: 7, ..good }], &page, 512), RowError::Row { at: 0, block: 0, row: 7, rows: 7 });
    assert_eq!(set.gather(&[RowRef { row: 6, ..good }], &page, &mut [0; 512]), whole());
    // A shape of another model: it is possible, and no row of it is in the block.
    let long = RowShape::packed(BLOCK_BYTES - 511, 512);
    assert!(matches!(refused(&[good], &long, 512), RowError::Row { rows: 0, .. }));
    assert_eq!(set.gather(&[good], &shape, &mut [0; 512]), whole(), "the set is as good as before");
    assert_eq!(pool.pin_rows(&[]).gather(&[], &shape, &mut []), whole(), "nothing of nothing");
}

#[test]
fn a_pinned_set_keeps_its_rows_while_threads_evict_and_publish() {
    for config in each_design(54) {
        let (_, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 999, 6);
        let set = pinned(&pool, &ns, &hashes);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (set, hashes, ends) = (&set, &hashes, &ends);
                scope.spawn(move || {
                    let (mut prng, shape) = (Prng::new(seed), RowShape::strided(64, 512, 200));
                    while !ends.load(Ordering::Relaxed) {
                        let rows = list(&mut prng, hashes.len(), &shape, 600);
                        let mut to = buffer(&rows, &shape);
                        assert_eq!(set.gather(&rows, &shape, &mut to), whole());
                        assert_rows(hashes, &rows, &shape, &to, &[]);
                    }
                });
            }
            for prompt in 0..400 {
                publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
                if prompt % 16 == 0 {
                    pool.evict(8);
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert!(pool.counter(Counter::Evicted) > 100);
        drop(set);
        assert!(pool.check(true).expect("no lock is held").is_clean());
    }
}

/// The old generation of a name is a miss. The new one is found under the same number.
#[test]
fn a_block_that_was_evicted_and_published_again_is_found_by_its_new_hit_only() {
    for config in each_design(55) {
        let (_, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 2);
        drop(pinned(&pool, &ns, &hashes));
        let old = pool.lookup(&hashes);
        while pool.evict(usize::MAX) > 0 {}
        let gone = pool.pin_rows(&old);
        assert_eq!((gone.is_there(0), gone.is_there(1), gone.is_there(2)), (false, false, false));
        hashes.iter().zip(0..).for_each(|(&hash, depth)| _ = publish(&pool, &ns, hash, depth));
        let mut set = pool.pin_rows(&[old[0], pool.lookup(&hashes)[1]]);
        let shape = RowShape::packed(0, 512);
        let rows = list(&mut Prng::new(5), 2, &shape, 100);
        let mut to = buffer(&rows, &shape);
        assert_eq!(set.gather(&rows, &shape, &mut to), missed(&[0]));
        assert_rows(&hashes, &rows, &shape, &to, &[0]);
        let of_missed = rows.iter().filter(|row| row.block == 0).count() as u64;
        assert_eq!(pool.counter(Counter::RowsMissed), of_missed);
        assert!(set.replace(0, &pool.lookup(&hashes)[0]));
        assert_eq!(set.gather(&rows, &shape, &mut to), whole());
        assert_rows(&hashes, &rows, &shape, &to, &[]);
        assert!(!set.replace(1, &old[1]), "a hit of an earlier use of the slot");
        assert_eq!(set.verify(), [1]);
    }
}

/// A row says nothing of its block's other bytes, so a torn block is a miss as a whole.
#[test]
fn a_torn_block_is_a_miss_and_leaves_the_pool() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(56));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 3);
    let mut set = pinned(&pool, &ns, &hashes);
    let torn = pool.pin(&pool.lookup(&hashes)[1]).expect("it is there").extent().expect("it is plain").0 + 9 * 64;
    fabric.store(Offset::new(torn), !fabric.load(Offset::new(torn)));
    let shape = RowShape::packed(0, 64);
    // No row of the list is the torn one.
    let rows = [0, 1, 2, 1, 0].map(|block| RowRef { block, row: 3 });
    let mut to = buffer(&rows, &shape);
    for _ in 0..2 {
        assert_eq!(set.gather(&rows, &shape, &mut to), missed(&[1]));
        assert_rows(&hashes, &rows, &shape, &to, &[1]);
    }
    assert_eq!(pool.counter(Counter::ReadsDamaged), 1, "it is not summed again");
    assert!(!set.is_there(1) && set.is_there(0));
    assert_eq!(publish(&pool, &ns, hashes[1], 1), Publish::Published, "it made way for a new one");
    assert!(set.replace(1, &pool.lookup(&hashes)[1]));
    assert_eq!(set.gather(&rows, &shape, &mut to), whole());
    assert_rows(&hashes, &rows, &shape, &to, &[]);
}

/// A worker has only so many pins.
#[test]
fn blocks_beyond_the_pins_are_misses() {
    let (_, pool) = anonymous(4 << 20, &small_config(57));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 40);
    let set = pinned(&pool, &ns, &hashes);
    // Four lines of seven pins.
    assert_eq!(set.verify(), (28..40).collect::<Vec<u32>>());
    drop(set);
    assert_eq!(pool.pin_rows(&pool.lookup(&hashes[12..])).verify(), []);
}

#[test]
fn another_host_reads_no_stale_lines_of_an_earlier_block_in_the_slot() {
    let (_, [first, second]) = two_hosts(&small_config(58));
    let (ns, theirs) = (namespace(&first, 1, BLOCK_BYTES), namespace(&second, 1, BLOCK_BYTES));
    let shape = RowShape::packed(0, 512);
    for prompt in 0..300 {
        let hashes = chain(&ns, prompt, 2);
        // Only lookups advance the clock by which blocks leave.
        assert!(first.lookup(&hashes).is_empty());
        for (depth, &hash) in (0..).zip(&hashes) {
            assert_eq!(publish(&first, &ns, hash, depth), Publish::Published, "{prompt}");
        }
        let set = second.pin_rows(&second.lookup(&hashes));
        assert_eq!(set.len(), 2, "{prompt}");
        let rows = list(&mut Prng::new(prompt.into()), set.len(), &shape, 40);
        let mut to = buffer(&rows, &shape);
        assert_eq!(set.gather(&rows, &shape, &mut to), whole());
        assert_rows(&hashes, &rows, &shape, &to, &[]);
    }
    assert!(first.counter(Counter::Evicted) > 100);
    assert_eq!(chain(&theirs, 1, 1), chain(&ns, 1, 1));
}

/// Other hosts ignore the pins of a host that was declared dead and reuse its slots. No gather of
/// an ended life returns such bytes, not even one that runs meanwhile.
#[test]
fn a_set_of_a_host_that_was_declared_dead_misses_everything() {
    let (_, [first, second]) = two_hosts(&small_config(59));
    let (ns, theirs) = (namespace(&first, 1, BLOCK_BYTES), namespace(&second, 1, BLOCK_BYTES));
    let hashes = chain(&ns, 1, 4);
    let mut set = pinned(&first, &ns, &hashes);
    let hits = first.lookup(&hashes);
    let shape = RowShape::packed(0, 512);
    let rows = list(&mut Prng::new(1), hashes.len(), &shape, 2000);
    let gathers = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (set, gathers) = (&set, &gathers);
        let reader = scope.spawn(|| {
            let mut to = buffer(&rows, &shape);
            while set.gather(&rows, &shape, &mut to).expect("a list of the set").is_whole() {
                assert_rows(&hashes, &rows, &shape, &to, &[]);
                gathers.store(true, Ordering::Release);
            }
        });
        until("the first gather", || gathers.load(Ordering::Acquire).then_some(()));
        second.fence_host(HostId(0)).expect("it attached");
        for prompt in 100..400 {
            publish(&second, &theirs, chain(&theirs, prompt, 1)[0], 0);
        }
        reader.join().expect("no gather returned bytes of others");
    });
    assert!(hits.iter().all(|hit| second.pin(hit).is_none()), "their slots have other blocks");
    while second.evict(usize::MAX) > 0 {}
    second.gc().expect("the locks are free");
    let mut to = buffer(&rows, &shape);
    let all = missed(&[0, 1, 2, 3]);
    assert_eq!((set.protects(), set.gather(&rows, &shape, &mut to)), (false, all.clone()), "it has not noticed");
    first.tick();
    assert_eq!((set.protects(), set.gather(&rows, &shape, &mut to)), (false, all), "in its next life");
    assert!(!set.replace(0, &hits[0]), "a set is of one life");
    let fresh = pinned(&first, &ns, &chain(&ns, 2, 1));
    assert!(fresh.protects() && fresh.is_there(0), "the next set is of the new life");
}

/// Where a dead host may still write, a sum says nothing of the next instant.
#[test]
fn blocks_where_a_dead_host_may_write_are_misses_until_it_has_returned() {
    let (fabric, [first, second]) = two_hosts(&small_config(60));
    let (ns, theirs) = (namespace(&first, 1, BLOCK_BYTES), namespace(&second, 1, BLOCK_BYTES));
    let mut prompts = 1..;
    while first.info().chunks_taken < first.info().num_chunks {
        let hash = chain(&ns, prompts.next().expect("endless"), 1)[0];
        assert_eq!(first.publish(&NewBlock::new(&ns, hash, 0), &[&payload(hash, BLOCK_BYTES)]), Publish::Published);
    }
    second.fence_host(HostId(0)).expect("it attached");
    let hashes = chain(&theirs, 1000, 2);
    let set = pinned(&second, &theirs, &hashes);
    assert_eq!(second.strays(&second.lookup(&hashes)[0]), Strays::Possible);
    let shape = RowShape::packed(0, 512);
    let rows = list(&mut Prng::new(1), 2, &shape, 50);
    let mut to = buffer(&rows, &shape);
    assert_eq!(set.gather(&rows, &shape, &mut to), missed(&[0, 1]));
    assert!(set.is_there(0), "it is no damage");
    drop(first);
    let _rejoined = attach_host(&fabric, 0);
    assert_eq!(second.strays(&second.lookup(&hashes)[0]), Strays::Past);
    assert_eq!(set.gather(&rows, &shape, &mut to), whole(), "its caches are written back");
    assert_rows(&hashes, &rows, &shape, &to, &[]);
}
