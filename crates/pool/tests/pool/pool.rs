//! The pool, used by one process.

use crate::support::*;
use cenote_base::prng::Prng;
use cenote_base::{HashSeed, HostId};
use cenote_mem::{Fabric, LINE, Offset};
use cenote_pool::{
    AttachOptions, Counter, Design, Event, Eviction, Hit, Inspector, NamespaceRecord, NewBlock, Pool, PoolConfig,
    PoolError, Publish, ReadOutcome, Shorter, Superblock, history,
};
use std::sync::Arc;

#[test]
fn published_blocks_are_found_and_whole() {
    for config in each_design(1) {
        let (_, pool) = anonymous(4 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 10);
        for (depth, &hash) in (0..).zip(&hashes[..7]) {
            assert_eq!(publish(&pool, &ns, hash, depth), Publish::Published);
            assert_eq!(publish(&pool, &ns, hash, depth), Publish::Duplicate);
        }
        let hits = pool.lookup(&hashes);
        assert_eq!(hits.len(), 7, "a lookup ends at the first missing block");
        assert!(hits.iter().all(|hit| read(&pool, hit) == ReadOutcome::Whole));
        let report = pool.check(true).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.ready, report.index_entries, report.payloads_verified), (7, 7, 7));
        assert_eq!(pool.info().namespaces[0].blocks, 7);
    }
}

#[test]
fn namespaces_share_nothing() {
    for config in each_design(2) {
        let (_, pool) = anonymous(4 << 20, &config);
        let (left, right) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
        assert_eq!(namespace(&pool, 1, BLOCK_BYTES).id, left.id, "the same fingerprint is the same namespace");
        publish(&pool, &left, chain(&left, 1, 1)[0], 0);
        assert_eq!(pool.lookup(&chain(&right, 1, 1)), []);
        assert_eq!(pool.lookup(&chain(&left, 1, 1)).len(), 1);
    }
}

#[test]
fn the_least_recent_prompt_leaves_first_and_from_its_end() {
    let (_, pool) = anonymous(4 << 20, &small_config(3));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let mut prompt = 0;
    while pool.counter(Counter::Evicted) == 0 {
        assert!(pool.lookup(&chain(&ns, prompt, 4)).is_empty());
        for (depth, hash) in (0..).zip(chain(&ns, prompt, 4)) {
            assert_eq!(publish(&pool, &ns, hash, depth), Publish::Published);
        }
        // The first prompt stays in use; the second is the oldest.
        assert_eq!(pool.lookup(&chain(&ns, 0, 4)).len(), 4);
        prompt += 1;
        assert!(prompt < 200, "a region of 4 MiB must fill");
    }
    let left = |prompt| chain(&ns, prompt, 4).iter().map(|&hash| pool.lookup(&[hash]).len()).collect::<Vec<_>>();
    assert!(left(1).contains(&0), "the oldest prompt lost a block");
    assert_eq!((left(0), left(prompt - 1)), (vec![1; 4], vec![1; 4]));
    for prompt in 0..prompt {
        assert!(left(prompt).is_sorted_by(|a, b| a >= b), "prompt {prompt} has a hole: {:?}", left(prompt));
    }
    assert!(pool.check(true).unwrap().is_clean());
}

/// A scheduler looks a request's blocks up each time it considers it. If that counted as a hit,
/// S3-FIFO and SIEVE would keep unused blocks.
#[test]
fn peeking_keeps_no_block_alive() {
    for eviction in Eviction::ALL {
        let (_, pool) = anonymous(4 << 20, &PoolConfig { eviction, ..small_config(6) });
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let [older, newer] = [1, 2].map(|prompt| chain(&ns, prompt, 1)[0]);
        for hash in [older, newer] {
            assert!(pool.lookup(&[hash]).is_empty());
            publish(&pool, &ns, hash, 0);
        }
        let counted = pool.counter(Counter::Lookups);
        for _ in 0..5 {
            assert_eq!(pool.peek(&[older]).len(), 1);
        }
        assert_eq!(pool.counter(Counter::Lookups), counted);
        assert_eq!(pool.evict(1), 1);
        assert_eq!((pool.peek(&[older]).len(), pool.peek(&[newer]).len()), (0, 1), "{eviction}");
    }
}

#[test]
fn a_pinned_block_survives_any_pressure() {
    for config in each_design(4) {
        let (_, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let kept = chain(&ns, 999, 1)[0];
        publish(&pool, &ns, kept, 0);
        let hit = pool.lookup(&[kept])[0];
        let pin = pool.pin(&hit).expect("it is there");
        for prompt in 0..200 {
            publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
        }
        assert!(pool.counter(Counter::Evicted) > 50);
        assert_eq!(read(&pool, pin.hit()), ReadOutcome::Whole);
        drop(pin);
        for prompt in 200..400 {
            publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
        }
        assert_eq!(read(&pool, &hit), ReadOutcome::Stale, "unpinned, it went the way of all blocks");
        assert!(pool.pin(&hit).is_none());
        assert!(pool.check(true).unwrap().is_clean());
    }
}

#[test]
fn a_busy_model_takes_space_from_an_idle_one() {
    for config in each_design(5) {
        let (_, pool) = anonymous(2 << 20, &config);
        let (small, large) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, 48 << 10));
        for prompt in 0..300 {
            publish(&pool, &small, chain(&small, prompt, 1)[0], 0);
        }
        // A pinned block, older than all blocks of the other model, must not block that model.
        let oldest =
            (0..300).find_map(|prompt| pool.lookup(&chain(&small, prompt, 1)).first().copied()).expect("it is full");
        let pin = pool.pin(&oldest).expect("it is there");
        for prompt in 0..300 {
            let _ = pool.lookup(&chain(&small, prompt + 1000, 1));
        }
        for prompt in 0..40 {
            let hash = chain(&large, prompt, 1)[0];
            assert_eq!(publish(&pool, &large, hash, 0), Publish::Published, "prompt {prompt}");
            assert_eq!(read(&pool, &pool.lookup(&[hash])[0]), ReadOutcome::Whole);
        }
        assert_eq!(read(&pool, pin.hit()), ReadOutcome::Whole);
        let report = pool.check(true).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// Fills a region, and repacks half of its coldest chunk to a quarter of the length.
#[test]
fn cold_blocks_become_shorter_before_any_leaves() {
    let (_, pool) = anonymous(2 << 20, &small_config(40));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hash = |prompt| chain(&ns, prompt, 1)[0];
    let mut count = 0;
    while pool.has_room(&ns, BLOCK_BYTES) {
        assert_eq!(publish(&pool, &ns, hash(count), 3), Publish::Published);
        let _ = pool.lookup(&[hash(count)]);
        count += 1;
    }
    assert_eq!((pool.counter(Counter::Evicted), count % 4), (0, 0), "chunks hold four");
    // The oldest is used again, so the second chunk is the coldest.
    let _ = pool.lookup(&[hash(0)]);
    let cold = pool.coldest(&ns, 1, &|hit| hit.encoding == 0).concat();
    let mut names: Vec<u32> = (0..count).filter(|&at| cold.iter().any(|block| block.hit.hash == hash(at))).collect();
    assert_eq!(names, [4, 5, 6, 7]);
    let bytes: Vec<Vec<u8>> = cold.iter().map(|block| payload(block.hit.hash, 4096)).collect();
    let shorter: Vec<Shorter<'_>> =
        cold.iter().zip(&bytes).map(|(of, bytes)| Shorter { of, encoding: 7, payload: bytes }).collect();
    // One of them is pinned: it stays, and so does its chunk; the others find no free slot.
    let pin = pool.pin(&cold[0].hit).expect("it is there");
    assert_eq!(pool.repack(&ns, &shorter[..2]), 0);
    assert_eq!(pool.counter(Counter::Evicted), 1);
    drop(pin);
    assert_eq!(pool.repack(&ns, &shorter), 3, "one has left for good");
    assert_eq!((pool.counter(Counter::Repacked), pool.counter(Counter::Evicted)), (3, 1));
    names.retain(|&at| pool.peek(&[hash(at)]).first().is_some_and(|hit| (hit.encoding, hit.length) == (7, 4096)));
    assert_eq!(names.len(), 3);
    for hit in names.iter().map(|&at| pool.peek(&[hash(at)])[0]) {
        assert_eq!(read(&pool, &hit), ReadOutcome::Whole);
    }
    // There is room for thirteen more of their size, and they keep their age, so they are the next
    // to be evicted.
    assert!(!pool.has_room(&ns, BLOCK_BYTES) && pool.has_room(&ns, 4096));
    let again = pool.coldest(&ns, 1, &|hit| hit.encoding == 0).concat();
    assert!(again.iter().all(|block| (8..12).any(|at| block.hit.hash == hash(at))), "{again:?}");
    assert_eq!(pool.coldest(&ns, 1, &|hit| hit.encoding == 7).concat().len(), 3);
    // After the neighbours of the one that was used again.
    assert_eq!(pool.evict(6), 6);
    assert!(names.iter().all(|&at| pool.peek(&[hash(at)]).is_empty()));
    let report = pool.check(true).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn warm_chunks_and_those_of_others_are_left_alone() {
    let (_, pool) = anonymous(2 << 20, &small_config(41));
    let (ns, other) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    publish(&pool, &other, chain(&other, 0, 1)[0], 0);
    for prompt in 0..3 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    assert!(pool.coldest(&ns, 9, &|_| true).is_empty(), "another model's block is in the only chunk");
    for prompt in 3..15 {
        let _ = pool.lookup(&[]);
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    let found = pool.coldest(&ns, 9, &|_| true);
    assert_eq!(found.len(), 2, "the oldest of four is mixed, the newest is warm");
    for (cold, of) in found.iter().zip([3..7, 7..11]) {
        let mut of = of.map(|at| chain(&ns, at, 1)[0]);
        assert!(cold.len() == 4 && of.all(|hash| cold.iter().any(|cold| cold.hit.hash == hash)), "{found:?}");
    }
    let newest = |hit: &Hit| (11..15).any(|at| hit.hash == chain(&ns, at, 1)[0]);
    assert!(pool.coldest(&ns, 9, &newest).is_empty(), "the newest quarter of four chunks is warm");
}

/// The plain design's list holds blocks, not prompts: the first published is the first evicted, and
/// the first access of a lookup moves all of a prompt's blocks, its head last.
#[test]
fn the_plain_list_is_in_the_order_of_use() {
    let (_, pool) = anonymous(4 << 20, &PoolConfig { design: Design::Plain, ..small_config(14) });
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for prompt in 0..3 {
        for (depth, hash) in (0..).zip(chain(&ns, prompt, 2)) {
            assert_eq!(publish(&pool, &ns, hash, depth), Publish::Published);
        }
    }
    let first = pool.lookup(&chain(&ns, 0, 2));
    let pin = pool.pin(&first[0]).expect("it is there");
    assert_eq!(pool.evict(10), 4, "what was accessed has counts");
    assert!(pool.counter(Counter::EvictionsPinned) >= 2);
    assert!(first.iter().all(|hit| read(&pool, hit) == ReadOutcome::Whole));
    drop(pin);
    let there = |prompt| chain(&ns, prompt, 2).iter().map(|&hash| pool.lookup(&[hash]).len()).collect::<Vec<_>>();
    assert_eq!((there(1), there(2)), (vec![0; 2], vec![0; 2]));
    assert_eq!(pool.evict(1), 1, "what was read has none");
    assert_eq!(there(0), [1, 0], "the tail leaves before the head");
}

/// Earlier, a torn host line, whose writer is active or died, hid every pin of the host.
#[test]
fn a_torn_host_line_frees_no_pinned_block() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(12));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let kept = chain(&ns, 999, 1)[0];
    publish(&pool, &ns, kept, 0);
    let pin = pool.pin(&pool.lookup(&[kept])[0]).expect("it is there");
    // The first line after the superblock is host 0's; its fourth word is the heartbeat.
    let heartbeat = Offset::new(4096 + 24);
    fabric.store(heartbeat, fabric.load(heartbeat) ^ 0xff);
    for prompt in 0..200 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    assert!(pool.counter(Counter::Evicted) > 50);
    assert_eq!(read(&pool, pin.hit()), ReadOutcome::Whole);
}

#[test]
fn unshareable_settings_are_refused() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(13));
    let other = AttachOptions { private: true, host: HostId(1), ..AttachOptions::named("x") };
    assert!(matches!(Pool::attach(fabric, &other), Err(PoolError::Config(_))));
    let odd = NamespaceRecord {
        fingerprint: [1; 32],
        label: "odd".into(),
        block_bytes: 100,
        block_tokens: 16,
        num_layers: 1,
    };
    assert!(pool.namespace(&odd).is_err());
}

#[test]
fn attaching_refuses_foreign_regions() {
    let config = small_config(6);
    let (fabric, pool) = anonymous(2 << 20, &config);
    drop(pool);
    let attach = |seed| {
        let options = AttachOptions { private: true, expected_seed: seed, ..AttachOptions::named("x") };
        Pool::attach(Arc::clone(&fabric), &options)
    };
    let change = |word: u64, value: u64| {
        let before = fabric.load(Offset::new(word * 8));
        fabric.store(Offset::new(word * 8), value);
        before
    };
    assert!(attach(Some(config.seed)).is_ok());
    assert!(matches!(attach(Some(HashSeed([9; 32]))), Err(PoolError::Seed)));
    for (word, value) in [(0, 77), (0, 0), (1, 2), (2, 5), (3, 1 << 40), (4, 12345)] {
        let before = change(word, value);
        let error = attach(None).err().expect("a changed superblock is refused");
        let expected = match (word, value) {
            (0, 0) => matches!(error, PoolError::Unfinished),
            (0, _) => matches!(error, PoolError::NotARegion { found: 77 }),
            (1, _) => matches!(error, PoolError::Version { found: 2, .. }),
            (2, _) => matches!(error, PoolError::Layout { found: 5, .. }),
            _ => matches!(error, PoolError::Damaged(_)),
        };
        assert!(expected, "word {word}: {error}");
        change(word, before);
    }
    assert!(attach(None).is_ok());
}

#[test]
fn a_region_tells_when_it_was_made() {
    let config = PoolConfig { created: 1_790_000_000, ..small_config(8) };
    let (fabric, pool) = anonymous(2 << 20, &config);
    assert_eq!(pool.info().created, 1_790_000_000);
    assert_eq!(Superblock::read(&fabric).expect("it is a region").config, config);
}

#[test]
fn configurations_that_cannot_work_are_named() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(7));
    drop(pool);
    for (config, word) in [
        (PoolConfig { chunk_bytes: 3 << 20, ..small_config(7) }, "chunk size"),
        (PoolConfig { chunk_bytes: 64 << 20, ..small_config(7) }, "at least"),
        (PoolConfig { max_hosts: 65, ..small_config(7) }, "host slots"),
        (PoolConfig { min_block_bytes: 100, ..small_config(7) }, "smallest block"),
        (PoolConfig { design: Design::Plain, eviction: Eviction::Sieve, ..small_config(7) }, "its own list"),
    ] {
        let message = Superblock::format(&fabric, &config).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn objects_are_found_by_key_until_destroyed() {
    for config in each_design(8) {
        let (_, pool) = anonymous(2 << 20, &config);
        let large: Vec<u8> = (0..50_000_u32).map(|n| n as u8).collect();
        pool.put_object("weights/index", b"one").unwrap();
        pool.put_object("table", &large).unwrap();
        pool.put_object("weights/index", b"another").unwrap();
        assert_eq!(pool.get_object("weights/index").unwrap().as_deref(), Some(b"another".as_slice()));
        assert_eq!(pool.get_object("table").unwrap(), Some(large));
        assert_eq!(pool.get_object("nothing").unwrap(), None);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        for prompt in 0..300 {
            publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
        }
        assert!(pool.get_object("table").unwrap().is_some(), "objects are not evicted");
        assert!(pool.check(true).unwrap().is_clean());
        assert!(pool.destroy_object("table").unwrap() && !pool.destroy_object("table").unwrap());
        assert_eq!(pool.get_object("table").unwrap(), None);
        assert!(matches!(pool.put_object("huge", &vec![0; 1 << 20]), Err(PoolError::BlockTooLarge { .. })));
        assert!(pool.put_object("", b"x").is_err());
        let report = pool.check(true).unwrap();
        assert!(report.is_clean() && report.objects == 1, "{report:?}");
    }
}

#[test]
fn threads_publish_read_and_evict_without_a_wrong_byte() {
    for config in each_design(9) {
        let (_, pool) = anonymous(3 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let whole: u64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|seed| {
                    let (pool, ns) = (pool.clone(), ns.clone());
                    scope.spawn(move || {
                        let mut prng = Prng::new(seed);
                        let mut whole = 0;
                        for _ in 0..1500 {
                            let hashes = chain(&ns, prng.below(80) as u32, 4);
                            let hits = pool.lookup(&hashes);
                            whole += hits.iter().filter(|hit| read(&pool, hit) == ReadOutcome::Whole).count() as u64;
                            let pin = hits.first().and_then(|hit| pool.pin(hit));
                            for (depth, &hash) in hashes.iter().enumerate().skip(hits.len()) {
                                publish(&pool, &ns, hash, depth as u32);
                            }
                            if let Some(pin) = pin {
                                assert_eq!(read(&pool, pin.hit()), ReadOutcome::Whole, "a pinned block went away");
                            }
                        }
                        whole
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert!(whole > 1000 && pool.counter(Counter::Evicted) > 100);
        let report = pool.check(true).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.pinned, report.reserved), (0, 0));
    }
}

#[test]
fn a_flipped_byte_is_a_miss_and_its_reader_or_gc_takes_it_out() {
    for config in each_design(10) {
        let is_plain = config.design == Design::Plain;
        let (fabric, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hash = chain(&ns, 1, 1)[0];
        publish(&pool, &ns, hash, 0);
        let marker = u64::from_le_bytes(payload(hash, 8).try_into().unwrap());
        let at = (0..fabric.len()).step_by(64).find(|&at| fabric.load(Offset::new(at)) == marker).expect("the payload");
        fabric.store(Offset::new(at + 4096), fabric.load(Offset::new(at + 4096)) ^ 1);
        let report = pool.check(true).unwrap();
        assert_eq!(report.damage.len(), 1, "{report:?}");
        let hit = pool.lookup(&[hash])[0];
        assert_eq!(read(&pool, &hit), ReadOutcome::Damaged);
        assert_eq!(
            pool.check(true).unwrap().is_clean(),
            !is_plain,
            "a reader takes it out, but not in the plain design"
        );
        assert_eq!(pool.gc().unwrap().blocks_freed, u64::from(is_plain));
        assert!(pool.check(true).unwrap().is_clean());
        assert_eq!(publish(&pool, &ns, hash, 0), Publish::Published);
        assert_eq!(read(&pool, &pool.lookup(&[hash])[0]), ReadOutcome::Whole);
    }
}

#[test]
fn leaks_are_counted_to_the_byte_and_explained() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(16));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for prompt in 0..20 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    assert_eq!(pool.check(true).unwrap().leaked_bytes, 0);
    // Three blocks lose their index entries.
    for prompt in 0..3 {
        let hash = chain(&ns, prompt, 1)[0];
        let hit = pool.lookup(&[hash])[0];
        let entry = (hit.block.0 + 1) | hash.words()[1] >> 40 << 40;
        let at = (0..fabric.len()).step_by(8).find(|&at| fabric.load(Offset::new(at)) == entry).expect("its entry");
        fabric.store(Offset::new(at), 0);
    }
    let report = pool.check(true).unwrap();
    assert_eq!((report.leaks.len(), report.leaked_bytes), (3, 3 * BLOCK_BYTES), "{report:?}");
    assert!(report.leaks.iter().all(|leak| leak.means.contains("lookups miss") && leak.repair == "cenote pool gc"));
    assert_eq!(pool.gc().unwrap().blocks_freed, 3);
    assert!(pool.check(true).unwrap().is_clean());

    // Two chunk lines become corrupt: one of a chunk in use, which its host's memory lists, and one
    // of a free chunk.
    let chunk_bytes = pool.superblock().config.chunk_bytes;
    let lines: Vec<u64> = (0..fabric.len())
        .step_by(64)
        .filter(|&at| {
            let words = fabric.load_line(at);
            (words[0], words[2], words[4]) == (1, BLOCK_BYTES, 0) && words[7] != 0
        })
        .collect();
    assert_eq!(lines.len() as u64, pool.info().chunks_taken);
    let (used, unused) = (lines[0], lines[0] + (pool.info().num_chunks - 1) * 64);
    fabric.store(Offset::new(used + 24), 99);
    fabric.store(Offset::new(unused + 8), 99);
    let rotten = pool.check(true).unwrap();
    assert_eq!((rotten.damage.len(), rotten.leaked_bytes), (2, 2 * chunk_bytes), "{rotten:?}");
    assert_eq!(Inspector::open(&fabric, &private()).unwrap().check(true).leaked_bytes, 2 * chunk_bytes);
    pool.gc().unwrap();
    let mended = pool.check(true).unwrap();
    assert!(mended.is_clean(), "{mended:?}");
    assert_eq!((mended.ready, mended.leaked_bytes), (17, 0), "the host knew what was in its chunk");
    assert!((3..20).all(|prompt| read(&pool, &pool.lookup(&chain(&ns, prompt, 1))[0]) == ReadOutcome::Whole));
}

#[test]
fn a_namespace_keeps_within_its_quota() {
    let (fabric, pool) = anonymous(4 << 20, &small_config(17));
    let (ours, other) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    pool.set_quota(ours.id, 6 * BLOCK_BYTES).unwrap();
    let used = || -> Vec<u64> { pool.info().namespaces.iter().map(|row| row.used_bytes / BLOCK_BYTES).collect() };
    for prompt in 0..20 {
        assert_eq!(publish(&pool, &other, chain(&other, prompt, 1)[0], 0), Publish::Published);
    }
    for prompt in 0..30 {
        assert!(pool.lookup(&chain(&ours, prompt, 1)).is_empty());
        assert_eq!(publish(&pool, &ours, chain(&ours, prompt, 1)[0], 0), Publish::Published);
        assert!(used()[0] <= 6, "{:?}", used());
        assert_eq!(pool.lookup(&chain(&ours, 0, 1)).len(), 1, "what is in use stays, as the policy has it");
    }
    assert_eq!((used(), pool.counter(Counter::Evicted)), (vec![6, 20], 24));
    assert_eq!(pool.lookup(&chain(&other, 0, 1)).len(), 1, "nothing of another namespace left");

    // Pinned blocks cannot be evicted; that is counted, and no error.
    let pins: Vec<_> = (0..30).filter_map(|prompt| pool.pin(pool.lookup(&chain(&ours, prompt, 1)).first()?)).collect();
    assert_eq!(pins.len(), 6);
    let new = chain(&ours, 77, 1)[0];
    assert_eq!(publish(&pool, &ours, new, 0), Publish::OverQuota);
    assert_eq!((pool.counter(Counter::QuotaRefused), pool.counter(Counter::NoRoom)), (1, 0));
    let last = history(&fabric).unwrap().pop().unwrap();
    assert_eq!((last.event, last.operands), (Event::QuotaRefused, [u64::from(ours.id.0), BLOCK_BYTES]));
    drop(pins);
    assert_eq!(publish(&pool, &ours, new, 0), Publish::Published);
    pool.set_quota(ours.id, BLOCK_BYTES - 1).unwrap();
    assert_eq!(publish(&pool, &ours, chain(&ours, 78, 1)[0], 0), Publish::OverQuota);
    assert_eq!(used()[0], 6, "a limit below a block evicts nothing");
    pool.set_quota(ours.id, 2 * BLOCK_BYTES).unwrap();
    assert_eq!(publish(&pool, &ours, chain(&ours, 78, 1)[0], 0), Publish::Published);
    assert_eq!(used()[0], 2, "a lower limit is kept from the next publish on");
    assert!(pool.set_quota(cenote_base::NamespaceId(9), 1).is_err());

    let report = pool.check(true).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(pool.evict(100), 22);
    assert_eq!(used(), [0, 0], "what leaves is not charged any more");
    pool.set_quota(ours.id, 0).unwrap();
    for prompt in 0..30 {
        assert_eq!(publish(&pool, &ours, chain(&ours, prompt, 1)[0], 0), Publish::Published);
    }
    assert_eq!((used()[0], pool.info().namespaces[0].quota_bytes), (30, 0));
}

#[test]
fn accounts_are_checked_and_counted_anew() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(18));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    pool.set_quota(ns.id, 100 * BLOCK_BYTES).unwrap();
    for prompt in 0..9 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    // No other word of the region has this value.
    let at = (0..fabric.len()).step_by(8).find(|&at| fabric.load(Offset::new(at)) == 9 * BLOCK_BYTES).unwrap();
    fabric.store(Offset::new(at), 5);
    let report = pool.check(true).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    assert!(report.damage[0].fact.contains("publishes 5, and its slots have 147456"), "{report:?}");
    pool.gc().unwrap();
    assert!(pool.check(true).unwrap().is_clean());
    assert_eq!(fabric.load(Offset::new(at)), 9 * BLOCK_BYTES);
    fabric.store(Offset::new(at), 5);
    drop(pool);
    let outside = Inspector::open(&fabric, &private()).unwrap().check(true);
    assert!(outside.is_clean() && outside.pending.iter().any(|finding| finding.what == "namespace 0"), "{outside:?}");
    // A host without its memory recounts.
    let pool = Pool::attach(Arc::clone(&fabric), &private()).unwrap();
    assert_eq!(pool.info().namespaces[0].used_bytes, 9 * BLOCK_BYTES);
    let report = pool.check(true).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(pool.info().namespaces[0].quota_bytes, 100 * BLOCK_BYTES);
}

fn private() -> AttachOptions {
    AttachOptions { private: true, ..AttachOptions::named("test") }
}

#[test]
fn the_flight_recorder_continues_after_a_restart() {
    let config = PoolConfig { records_per_host: 8, ..small_config(14) };
    let (fabric, pool) = anonymous(2 << 20, &config);
    let events = || -> Vec<Event> { history(&fabric).unwrap().iter().map(|record| record.event).collect() };
    assert_eq!(events(), [Event::LifeBegun, Event::Attached]);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for prompt in 0..400 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    let records = history(&fabric).unwrap();
    let [.., taken, evicted] = &records[..] else { panic!("{records:?}") };
    let goes = pool.counter(Counter::Evicted);
    assert!(goes > 200);
    assert_eq!((evicted.event, evicted.operands, evicted.times), (Event::Evicted, [goes, 0], goes), "one line for all");
    assert_eq!((taken.event, taken.operands[1]), (Event::ChunkTaken, BLOCK_BYTES));
    assert_eq!(taken.operands[0] + 1, taken.times, "one line for all chunks");
    drop(pool);
    // Each worker's host has lost its memory, which is the worker's own.
    for _ in 0..10 {
        let options = AttachOptions { private: true, ..AttachOptions::named("test") };
        drop(Pool::attach(Arc::clone(&fabric), &options).unwrap());
    }
    let records = history(&fabric).unwrap();
    assert_eq!(records.len(), 8, "the ring is full: {records:?}");
    assert!(records.is_sorted_by(|a, b| a.sequence + 1 == b.sequence), "no number is used twice: {records:?}");
    assert_eq!(records[7].event, Event::Left);
}

#[test]
fn corrupt_records_are_not_reported() {
    let (fabric, pool) = anonymous(2 << 20, &small_config(15));
    drop(pool);
    let records = history(&fabric).unwrap();
    assert_eq!(records.len(), 3, "{records:?}");
    // Records are found by their times, which no other words have.
    let line = |time_us| (0..fabric.len()).step_by(64).find(|&at| fabric.load(Offset::new(at + 8)) == time_us).unwrap();
    let first = line(records[0].time_us);
    fabric.store(Offset::new(first + 32), 77);
    assert_eq!(history(&fabric).unwrap(), records[1..], "a torn one is left out");
    let copy = fabric.load_line(line(records[1].time_us));
    fabric.store_line(first, &copy);
    assert_eq!(history(&fabric).unwrap(), records[1..], "and so is one in another's place");
}

/// A hostile or corrupt image may cost hits; it must not crash, hang or return wrong bytes.
#[test]
fn a_rotten_region_costs_hits_and_nothing_else() {
    for (seed, config) in (0..60).zip(each_design(11).collect::<Vec<_>>().into_iter().cycle()) {
        let mut prng = Prng::new(seed);
        let (fabric, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        for prompt in 0..60 {
            publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
        }
        pool.put_object("root", b"bytes").unwrap();
        // After the superblock: hosts, workers, hazards, tables, chunks, descriptors, buckets,
        // payload.
        for _ in 0..2000 {
            let at = 4096 + prng.below((fabric.len() - 4096) / 8) * 8;
            let value = match prng.below(3) {
                0 => prng.next_u64(),
                1 => fabric.load(Offset::new(at)) ^ (1 << prng.below(64)),
                _ => fabric.load(Offset::new(at / LINE * LINE)),
            };
            fabric.store(Offset::new(at), value);
        }
        for round in 0..120 {
            let hash = chain(&ns, round, 1)[0];
            for hit in pool.lookup(&[hash]) {
                read(&pool, &hit);
                drop(pool.pin(&hit));
            }
            publish(&pool, &ns, hash, 0);
        }
        let _ = (pool.get_object("root"), pool.info(), pool.tick(), pool.check(true).unwrap());
        pool.gc().unwrap();
        let again = pool.check(true).unwrap();
        assert!(again.leaks.is_empty(), "seed {seed}: {again:?}");
    }
}

#[test]
fn pieces_make_the_block_that_they_are_of() {
    for config in each_design(31) {
        let (fabric, pool) = anonymous(4 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 4);
        let (whole, mut prng) = (payload(hashes[0], BLOCK_BYTES), Prng::new(5));
        let mut filling = pool.begin(&NewBlock::new(&ns, hashes[0], 0)).expect("there is room");
        while filling.missing() > 0 {
            let done = whole.len() - filling.missing() as usize;
            let piece = (1 + prng.below(40) as usize) * LINE as usize;
            assert_eq!(pool.peek(&hashes).len(), 0, "lookups miss it before it is whole");
            filling.append(&whole[done..(done + piece).min(whole.len())]);
        }
        assert_eq!(filling.publish(), Publish::Published);
        assert_eq!(pool.begin(&NewBlock::new(&ns, hashes[0], 0)).err(), Some(Publish::Duplicate));
        let hit = pool.lookup(&hashes)[0];
        assert_eq!(read(&pool, &hit), ReadOutcome::Whole);

        let mut reading = pool.pin(&hit).expect("it is there").read();
        let mut copy = vec![0; whole.len()];
        copy.chunks_mut(192).for_each(|piece| reading.copy(piece));
        assert_eq!((reading.finish(), &copy), (ReadOutcome::Whole, &whole));
        let mut half = pool.pin(&hit).expect("it is there").read();
        half.copy(&mut copy[..64]);
        assert_eq!(half.finish(), ReadOutcome::Damaged, "half a block is none");

        // Bytes that another program writes into its memory.
        let filling = pool.begin_in_place(&NewBlock::new(&ns, hashes[1], 1)).expect("there is room");
        let (offset, _) = filling.extent();
        fabric.copy_plain_in(offset, &payload(hashes[1], BLOCK_BYTES));
        assert_eq!(filling.publish(), Publish::Published);
        assert_eq!(read(&pool, &pool.lookup(&hashes)[1]), ReadOutcome::Whole);

        // An unfinished block leaves nothing behind.
        let mut dropped = pool.begin(&NewBlock::new(&ns, hashes[2], 2)).expect("there is room");
        dropped.append(&whole[..64]);
        drop(dropped);
        let report = pool.check(true).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.ready, report.reserved), (2, 0));
    }
}

#[test]
fn a_forgotten_namespace_has_no_blocks() {
    let (_, pool) = anonymous(4 << 20, &small_config(32));
    let (left, right) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    let prompts = [&left, &right].map(|ns| (ns.clone(), chain(ns, 1, 6)));
    for (ns, hashes) in &prompts {
        for (depth, &hash) in (0..).zip(hashes) {
            assert_eq!(publish(&pool, ns, hash, depth), Publish::Published);
        }
    }
    let pinned = pool.pin(&pool.lookup(&prompts[0].1)[2]).expect("it is there");
    assert_eq!(pool.forget(&left), 5, "one is pinned");
    assert_eq!((pool.peek(&prompts[0].1).len(), pool.peek(&prompts[1].1).len()), (0, 6));
    assert_eq!(pool.peek(&prompts[0].1[2..]).len(), 0, "not even what is pinned");
    assert_eq!(pool.check(true).unwrap().draining, 1);
    drop(pinned);
    pool.gc().unwrap();
    assert_eq!(pool.check(true).unwrap().draining, 0);
    assert_eq!(publish(&pool, &left, prompts[0].1[2], 2), Publish::Published);
    assert!(pool.check(true).unwrap().is_clean());
}

/// Earlier, a block that was restored during its eviction counted as readable, but was not in the
/// index.
#[test]
fn a_mark_that_is_taken_back_brings_no_block_back() {
    let (fabric, pool) = anonymous(4 << 20, &small_config(34));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let names = chain(&ns, 1, 1);
    assert_eq!(publish(&pool, &ns, names[0], 0), Publish::Published);
    let pinned = pool.pin(&pool.lookup(&names)[0]).expect("it is there");
    let lines = || (0..fabric.len()).step_by(64).map(|at| fabric.load_line(at)).collect::<Vec<_>>();
    let before = lines();
    assert_eq!(pool.forget(&ns), 0, "it is pinned");
    let [first, second] = names[0].words();
    for (number, (line, marked)) in before.iter().zip(lines()).enumerate() {
        if *line != marked && line.contains(&first) && line.contains(&second) {
            fabric.write_line(64 * number as u64, line);
        }
    }
    drop(pinned);
    pool.gc().unwrap();
    let report = pool.check(true).unwrap();
    assert!(report.is_clean() && (report.ready, report.draining) == (0, 0), "{report:?}");
    assert_eq!(publish(&pool, &ns, names[0], 0), Publish::Published);
}

#[test]
fn memory_with_a_name_outlives_its_worker() {
    for config in each_design(33) {
        let (fabric, pool) = anonymous(4 << 20, &config);
        let offset = pool.allocate(5000).expect("there is room");
        fabric.copy_plain_in(offset, &[7; 5000]);
        assert_eq!(pool.find_memory("table").unwrap(), None);
        pool.name_memory("table", offset).unwrap();
        let (found, length) = pool.find_memory("table").unwrap().expect("it was named");
        assert!(found == offset && length >= 5000);
        // It changes in place, without effect on the pool.
        fabric.copy_plain_in(offset, &[8; 64]);
        assert_eq!(pool.find_memory("table").unwrap(), Some((offset, length)));
        assert_eq!(pool.get_object("table").unwrap(), None, "what changes in place is no value");
        let report = pool.check(true).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.objects, report.memory, report.reserved), (0, 1, 0));
        assert_eq!((report.memory_of_users.named_pieces, report.memory_of_users.pieces), (1, 0));

        let error = |done: Result<(), PoolError>| done.expect_err("it must be refused").to_string();
        assert!(error(pool.free(offset)).contains("has a name"));
        assert!(error(pool.free(offset + 64)).contains("nothing begins there"));
        assert!(error(pool.free(8)).contains("outside"));
        assert!(error(pool.name_memory("", offset)).contains("key"));

        // A reused name frees the old memory.
        let other = pool.allocate(1).unwrap();
        pool.name_memory("table", other).unwrap();
        assert_eq!(pool.find_memory("table").unwrap().map(|found| found.0), Some(other));
        assert!(error(pool.free(offset)).contains("not allocated"));
        assert!(pool.destroy_object("table").unwrap());
        let unnamed = pool.allocate(1).unwrap();
        pool.free(unnamed).unwrap();
        assert!(error(pool.free(unnamed)).contains("not allocated"));
        let report = pool.check(true).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.objects, report.memory, report.reserved), (0, 0, 0));
        assert!(matches!(pool.allocate(1 << 30), Err(PoolError::BlockTooLarge { .. })));
    }
}

/// Earlier, sizes near 2^64 were rounded up to 0: slots of no bytes, one on the other.
#[test]
fn sizes_of_all_kinds_are_refused_with_the_limit() {
    for config in each_design(34) {
        let (_, pool) = anonymous(4 << 20, &config);
        let chunk = config.chunk_bytes;
        for bytes in [chunk + 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX - 63, u64::MAX] {
            let said = pool.allocate(bytes).expect_err("no chunk has so many").to_string();
            assert!(said.contains("64 KiB"), "{said}");
        }
        assert!(matches!(pool.put_object("key", &vec![0; chunk as usize + 1]), Err(PoolError::BlockTooLarge { .. })));
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        for length in [0, 1, chunk, chunk + 1, (1 << 63) + 1, u64::MAX] {
            // A hint, for any size.
            let _ = pool.has_room(&ns, length);
        }
        pool.set_quota(ns.id, u64::MAX).unwrap();
        assert_eq!(publish(&pool, &ns, chain(&ns, 1, 1)[0], 0), Publish::Published);
        let offsets: Vec<u64> = std::iter::from_fn(|| pool.allocate(chunk).ok()).collect();
        assert!(offsets.array_windows().all(|[left, right]| left.abs_diff(*right) >= chunk), "{offsets:x?}");
        let report = pool.check(true).unwrap();
        assert!(report.is_clean() && report.memory == offsets.len() as u64, "{report:?}");
        for offset in [0, 1, 63, pool.space().start - 64, pool.space().end, (1 << 63) + 1, u64::MAX - 63, u64::MAX] {
            assert!(pool.free(offset).is_err() && pool.allocated_bytes(offset).is_err(), "{offset:#x}");
            assert!(pool.name_memory("key", offset).is_err(), "{offset:#x}");
        }
    }
}

/// Earlier, a slot that was reserved for a block, not allocated as memory, could be freed under its
/// writer.
#[test]
fn only_memory_that_was_allocated_is_freed_or_named() {
    let (_, pool) = anonymous(4 << 20, &small_config(35));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let filling = pool.begin_in_place(&NewBlock::new(&ns, chain(&ns, 1, 1)[0], 0)).expect("there is room");
    let (offset, _) = filling.extent();
    assert!(pool.free(offset).is_err() && pool.name_memory("key", offset).is_err());
    assert_eq!(filling.publish(), Publish::Published);
    for _ in 0..200 {
        let offset = pool.allocate(4096).expect("there is room");
        let start = std::sync::Barrier::new(3);
        let [freed, named, again] = std::thread::scope(|scope| {
            let at_once = |call: &(dyn Fn() -> Result<(), PoolError> + Sync)| {
                start.wait();
                call().is_ok()
            };
            let free = || pool.free(offset);
            let name = || pool.name_memory("key", offset);
            let threads = [
                scope.spawn(move || at_once(&free)),
                scope.spawn(move || at_once(&name)),
                scope.spawn(move || at_once(&free)),
            ];
            threads.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(u8::from(freed) + u8::from(named) + u8::from(again), 1, "one of them has it");
        assert_eq!(pool.destroy_object("key").unwrap(), named);
    }
    let report = pool.check(true).unwrap();
    assert!(report.is_clean() && (report.objects, report.memory, report.reserved) == (0, 0, 0), "{report:?}");
}

#[test]
fn times_that_no_clock_can_wait_for_are_refused() {
    let (fabric, _pool) = anonymous(4 << 20, &small_config(37));
    let options = AttachOptions { private: true, ..AttachOptions::named("late") };
    let forever = std::time::Duration::MAX;
    for (wrong, name) in [
        (AttachOptions { lock_timeout: forever, ..options.clone() }, "lock timeout"),
        (AttachOptions { host_timeout: forever, ..options.clone() }, "host timeout"),
        (AttachOptions { quarantine: forever, ..options }, "quarantine"),
    ] {
        let said = Pool::attach(Arc::clone(&fabric), &wrong).err().expect("it is refused").to_string();
        assert!(said.contains(name), "{said}");
    }
}

/// Earlier, a tenant that published without pause took the room of all others.
#[test]
fn kept_bytes_of_a_model_survive_a_flood_of_another() {
    const BLOCKS: usize = 24;
    let (_fabric, pool) = anonymous(4 << 20, &small_config(19));
    let (ours, flood) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    let prompt = chain(&ours, 1, BLOCKS);
    let publish_all = |hashes: &[cenote_base::BlockHash]| {
        // As an engine: a lookup of the prompt, by which the clock of the policy goes on.
        assert!(pool.lookup(hashes).is_empty());
        for (depth, &hash) in (0..).zip(hashes) {
            assert_eq!(publish(&pool, &ours, hash, depth), Publish::Published);
        }
    };
    let flood_by = |from: u32, blocks: u32| {
        for prompt in from..from + blocks {
            let hash = chain(&flood, prompt, 1)[0];
            assert!(pool.lookup(&[hash]).is_empty());
            assert_eq!(publish(&pool, &flood, hash, 0), Publish::Published);
        }
    };
    let found = || pool.peek(&prompt).len();
    publish_all(&prompt);
    flood_by(0, 1000);
    assert_eq!(found(), 0, "without kept bytes the oldest leave");

    publish_all(&prompt);
    assert_eq!(found(), BLOCKS);
    pool.keep(ours.id, BLOCKS as u64 * BLOCK_BYTES).expect("it is less than half");
    assert_eq!(pool.info().namespaces[0].kept_bytes, BLOCKS as u64 * BLOCK_BYTES);
    flood_by(1000, 1000);
    assert_eq!(found(), BLOCKS, "no lookup has found them meanwhile");
    // What is beyond the kept bytes leaves, and no more.
    let kept = BLOCKS as u64 / 2;
    pool.keep(ours.id, kept * BLOCK_BYTES).expect("it is less than before");
    flood_by(2000, 1000);
    let used = || pool.info().namespaces[0].used_bytes / BLOCK_BYTES;
    assert_eq!((used(), found() as u64), (kept, kept), "the deepest leave first");
    // Its own blocks may leave for its own.
    pool.set_quota(ours.id, kept * BLOCK_BYTES).expect("a row");
    for prompt in 10..40 {
        assert_eq!(publish(&pool, &ours, chain(&ours, prompt, 1)[0], 0), Publish::Published);
    }
    assert_eq!((used(), pool.info().namespaces[0].kept_bytes), (kept, kept * BLOCK_BYTES));

    // Blocks of another size need whole chunks, and objects need room as well.
    let small = namespace(&pool, 3, 4 << 10);
    for prompt in 0..2000 {
        let (hash, bytes) = (chain(&small, prompt, 1)[0], 4 << 10);
        let payload = payload(hash, bytes);
        assert_eq!(pool.publish(&NewBlock::new(&small, hash, 0), &[&payload]), Publish::Published);
    }
    for number in 0..40 {
        pool.put_object(&format!("object {number}"), &[1; 10_000]).expect("others make room");
    }
    assert_eq!(used(), kept);
    let report = pool.check(true).expect("no lock is held");
    assert!(report.is_clean(), "{report:?}");

    pool.keep(ours.id, 0).expect("a row");
    flood_by(3000, 1000);
    assert_eq!(used(), 0);
    let refused = pool.keep(flood.id, 4 << 20).expect_err("nothing would be left").to_string();
    assert!(refused.contains("half of its own"), "{refused}");
    assert!(pool.keep(cenote_base::NamespaceId(9), 1).is_err());
}
