//! A region that is corrupted while it is in use. Whatever is overwritten, no read is wrong, no
//! call takes long, and the pool works again when the corruption ends.

use crate::support::shared::shm;
use crate::support::*;
use cenote_base::prng::Prng;
use cenote_base::testing::{ManualTime, until};
use cenote_base::time::TimeSource;
use cenote_base::{BlockHash, Clock, Health};
use cenote_mem::{Fabric, Flush, MapOptions, Mapped, Mapping, Offset, RegionSource};
use cenote_pool::{
    AttachOptions, Counter, Event, Hit, Namespace, NewBlock, Pool, Publish, ReadOutcome, Superblock, history,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

type MappedPool = Pool<Arc<Mapped>>;

/// Time that passes as it is looked at: a wait ends after a number of looks, at any speed of the
/// machine.
struct Looks(&'static ManualTime);

impl TimeSource for Looks {
    fn now_ns(&self) -> u64 {
        self.0.advance(Duration::from_micros(100));
        self.0.now_ns()
    }

    fn unix(&self) -> Duration {
        self.0.unix()
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        self.0.block_for(ahead)
    }
}

fn flushes() -> [Flush; 2] {
    [Flush::None, Flush::available()[0]]
}

/// A region, its worker, and the time of both.
fn make(source: &RegionSource, flush: Flush, seed: u8) -> (Arc<Mapped>, MappedPool, &'static ManualTime) {
    let time = ManualTime::start();
    let mapping = Mapping::create(source, 8 << 20, 0o600, &MapOptions::default()).expect("memory");
    let fabric = Arc::new(Mapped::new(mapping, flush).expect("it is available"));
    Superblock::format(&fabric, &small_config(seed)).expect("the configuration fits");
    let clock = Clock::of(Box::leak(Box::new(Looks(time))));
    let options = AttachOptions { lock_timeout: Duration::from_millis(20), clock: Some(clock), ..private(0) };
    let pool = Pool::attach(Arc::clone(&fabric), &options).expect("it attaches");
    (fabric, pool, time)
}

/// The longest pause between two attempts to return to a region.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Ticks until the pool's health is so. There is an attempt to return to the region in each tick.
fn tick_until(pool: &MappedPool, time: &ManualTime, what: &str, so: impl Fn(&Health) -> bool) -> Health {
    let mut health = pool.health();
    for _ in 0..100 {
        pool.tick();
        health = pool.health();
        if so(&health) {
            return health;
        }
        time.advance(LONGEST_PAUSE);
    }
    panic!("{what}: {health:?}");
}

fn is_ok(health: &Health) -> bool {
    !health.is_degraded()
}

/// One prompt: reads the blocks that are there and publishes the others. Returns the number of
/// blocks read whole.
fn serve(pool: &MappedPool, ns: &Namespace, prompt: u32) -> usize {
    let hashes = chain(ns, prompt, 4);
    let hits = pool.lookup(&hashes);
    let whole = hits.iter().filter(|hit| hit.length == BLOCK_BYTES && read(pool, hit) == ReadOutcome::Whole).count();
    for (depth, &hash) in hashes.iter().enumerate().skip(hits.len()) {
        publish(pool, ns, hash, depth as u32);
    }
    whole
}

/// Words at random places while four threads work: `read` asserts that whole blocks are right.
#[test]
fn writes_at_random_cost_hits_for_as_long_as_they_last() {
    for flush in flushes() {
        let (fabric, pool, time) = make(&RegionSource::Anon, flush, 51);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let (stop, prompts) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (pool, ns, stop, prompts) = (&pool, &ns, &stop, &prompts);
                scope.spawn(move || {
                    let mut prng = Prng::new(thread);
                    while !stop.load(Ordering::Relaxed) {
                        serve(pool, ns, prng.below(20) as u32);
                        prompts.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut prng = Prng::new(99);
            for round in 0..400 {
                for _ in 0..100 {
                    fabric.write_word(Offset::new(prng.below(fabric.len() / 8) * 8), prng.next_u64());
                }
                pool.tick();
                // In every fourth round the worker tries to return to the region.
                if round % 4 == 0 {
                    time.advance(LONGEST_PAUSE);
                }
                let enough = prompts.load(Ordering::Relaxed) + 4;
                until(&format!("{flush:?}, round {round}: four prompts are served"), || {
                    (prompts.load(Ordering::Relaxed) >= enough).then_some(())
                });
            }
            tick_until(&pool, time, "after the last write", is_ok);
            stop.store(true, Ordering::Relaxed);
        });
        // Reading detects corrupt payloads, from the first block of a prompt on.
        let rounds = (0..10).map(|_| (0..20).map(|prompt| serve(&pool, &ns, prompt)).sum::<usize>());
        let whole: Vec<usize> = rounds.collect();
        // A bucket of garbage, or garbage that looks like a pin, may cost a block or two until the
        // next repair.
        assert!(whole[9] >= 76, "{flush:?}: all 80 blocks fit the region and are found again: {whole:?}");
    }
}

/// Earlier, readers found a corrupt block repeatedly, and publishers took it for a duplicate.
#[test]
fn a_damaged_block_is_published_anew() {
    for flush in flushes() {
        let (fabric, pool, _) = make(&RegionSource::Anon, flush, 52);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        assert_eq!(serve(&pool, &ns, 1), 0);
        assert_eq!(serve(&pool, &ns, 1), 4);
        damage(&fabric, &pool, &pool.lookup(&chain(&ns, 1, 1))[0]);
        assert_eq!(serve(&pool, &ns, 1), 3);
        serve(&pool, &ns, 1);
        assert_eq!(serve(&pool, &ns, 1), 4, "{flush:?}");
    }
}

/// One request of an engine: reads the blocks of a prompt up to the first that is missing or damaged,
/// then computes and publishes the others. Returns the number of blocks that it read whole.
fn compute(pool: &MappedPool, ns: &Namespace, hashes: &[BlockHash]) -> usize {
    let hits = pool.lookup(hashes);
    let whole = hits.iter().take_while(|hit| read(pool, hit) == ReadOutcome::Whole).count();
    let payloads: Vec<_> = hashes[whole..].iter().map(|&hash| payload(hash, BLOCK_BYTES)).collect();
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [payload.as_slice()]).collect();
    let named = (whole as u32..).zip(&hashes[whole..]).zip(&parts);
    let new = named.map(|((depth, &hash), parts)| (NewBlock::new(ns, hash, depth), parts.as_slice()));
    pool.publish_all(&new.collect::<Vec<_>>());
    whole
}

fn damage(fabric: &Mapped, pool: &MappedPool, hit: &Hit) {
    let (offset, _) = pool.pin(hit).expect("it is there").extent().expect("it is plain");
    fabric.write_word(Offset::new(offset + 64), 0xbad);
}

/// Earlier, one request healed one block, because the blocks behind the first damaged one were taken for
/// duplicates: twelve requests found 0, 1, 2, … 11 of 66 blocks.
#[test]
fn one_request_heals_all_damaged_blocks_of_its_prompt() {
    for flush in flushes() {
        let (fabric, pool, _) = make(&RegionSource::Anon, flush, 57);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 66);
        assert_eq!(compute(&pool, &ns, &hashes), 0);
        assert_eq!(compute(&pool, &ns, &hashes), 66);
        let before = pool.peek(&hashes);
        let is_damaged = |at: usize| !at.is_multiple_of(5) || at == 0;
        for (_, hit) in before.iter().enumerate().filter(|(at, _)| is_damaged(*at)) {
            damage(&fabric, &pool, hit);
        }
        // A reader that has pinned a damaged block keeps its slot from being reused.
        let pinned = pool.pin(&before[7]).expect("it is there");
        assert_eq!(compute(&pool, &ns, &hashes), 0, "{flush:?}");
        assert_eq!(compute(&pool, &ns, &hashes), 66, "{flush:?}: the first request has healed all");
        let damaged = (0..66).filter(|&at| is_damaged(at)).count() as u64;
        assert_eq!(pool.counter(Counter::Damaged), damaged);
        // A block without damage is a duplicate, and is never replaced.
        assert_eq!(pool.counter(Counter::Duplicates), 66 - damaged);
        let after = pool.peek(&hashes);
        assert!((0..66).all(|at| is_damaged(at) || after[at] == before[at]), "{flush:?}");
        assert_ne!(after[7].block, before[7].block);
        drop(pinned);
        let history = history(&fabric).expect("the region is readable");
        let records = history.into_iter().filter(|record| record.event == Event::ReadDamaged);
        assert_eq!(records.map(|record| record.times).sum::<u64>(), damaged, "the flight recorder has all");
    }
}

/// Without damage a duplicate costs no read, and after some minutes without damage neither.
#[test]
fn duplicates_are_checked_only_in_doubt() {
    let (fabric, pool, time) = make(&RegionSource::Anon, Flush::None, 58);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 2);
    compute(&pool, &ns, &hashes);
    let damage = |at: usize| damage(&fabric, &pool, &pool.peek(&hashes)[at]);
    damage(1);
    assert_eq!(publish(&pool, &ns, hashes[1], 1), Publish::Duplicate, "no read has met the damage");
    damage(0);
    assert_eq!(compute(&pool, &ns, &hashes), 0);
    assert_eq!(compute(&pool, &ns, &hashes), 2, "both are healed");
    damage(1);
    assert_eq!(publish(&pool, &ns, hashes[1], 1), Publish::Published, "damage was met just now");
    damage(1);
    time.advance(Duration::from_mins(11));
    assert_eq!(publish(&pool, &ns, hashes[1], 1), Publish::Duplicate);
}

#[test]
fn a_region_without_its_name_and_recent_damage_are_troubles_and_no_reason_to_leave() {
    let source = shm("troubles");
    let (fabric, pool, time) = make(&source, Flush::None, 59);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let troubles = || {
        pool.tick();
        assert_eq!(pool.health(), Health::Ok);
        pool.troubles().join("; ")
    };
    assert_eq!(troubles(), "");
    let hashes = chain(&ns, 1, 2);
    compute(&pool, &ns, &hashes);
    damage(&fabric, &pool, &pool.peek(&hashes)[0]);
    assert_eq!(compute(&pool, &ns, &hashes), 0);
    assert!(troubles().contains("damaged in the last ten minutes"));
    time.advance(Duration::from_mins(11));
    assert_eq!(troubles(), "");
    let path = source.path().expect("a file");
    std::fs::remove_file(&path).expect("it is there");
    assert!(troubles().contains("is gone: no other process can join"));
    std::fs::write(&path, "another").expect("it is free");
    assert!(troubles().contains("is another file now"));
    assert_eq!(compute(&pool, &ns, &hashes), 2, "it is used all the same");
    std::fs::remove_file(&path).expect("it is there");
}

/// A lock with a line that says that a living host holds it: each call would wait for its timeout.
#[test]
fn a_worker_with_lock_timeouts_leaves_the_region() {
    let (fabric, pool, time) = make(&RegionSource::Anon, flushes()[1], 53);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let words = || -> Vec<[u64; 8]> { (0..fabric.len() / 64).map(|line| fabric.load_line(line * 64)).collect() };
    let before = words();
    std::mem::forget(pool.lock_user(0, Duration::from_millis(20)).expect("it is free"));
    let user = (0..).zip(words()).find(|(line, now)| before[*line as usize] != *now).expect("a line says so").0 * 64;
    // Each host has a line for each of 1,098 locks; user locks come after 64 shards, chunks and
    // tables. Host 1's line of each lock now says that it is inside, in a living life.
    let first = user - 66 * 64 + 1098 * 64;
    for lock in 0..66 {
        let line = first + lock * 64;
        fabric.write_word(Offset::new(line + 8), 1 << 50);
        fabric.write_word(Offset::new(line), 2);
    }
    for prompt in 0..20 {
        serve(&pool, &ns, prompt);
    }
    assert!(pool.health().is_degraded());
    let waits = pool.counter(Counter::LockTimeouts);
    assert!((4..=20).contains(&waits), "{waits} waits, of which four suffice");
    assert_eq!((0..1000).map(|prompt| serve(&pool, &ns, prompt)).sum::<usize>(), 0);
    assert_eq!(pool.counter(Counter::LockTimeouts), waits, "no call waits for a lock any more");
    for lock in 0..66 {
        fabric.write_word(Offset::new(first + lock * 64), 0);
    }
    tick_until(&pool, time, "the locks are free", is_ok);
    serve(&pool, &ns, 1);
    assert_eq!(serve(&pool, &ns, 1), 4);
}

#[test]
fn a_scribbled_superblock_is_mended_and_another_one_is_left_alone() {
    let (fabric, pool, time) = make(&RegionSource::Anon, Flush::None, 54);
    fabric.write_word(Offset::new(24), 1 << 40);
    fabric.write_word(Offset::new(184), 1);
    tick_until(&pool, time, "it is noticed", Health::is_degraded);
    tick_until(&pool, time, "it is mended", is_ok);
    assert!(Superblock::read(&fabric).is_ok());
    let other = Superblock::format(&fabric, &small_config(55)).expect("the configuration fits");
    let health = tick_until(&pool, time, "it is noticed", Health::is_degraded);
    assert!(health.reasons()[0].contains("formatted again"), "{health:?}");
    for _ in 0..100 {
        pool.tick();
        time.advance(LONGEST_PAUSE);
    }
    assert_eq!(Superblock::read(&fabric).expect("it is whole"), other);
    std::mem::forget(pool);
}

/// Earlier, a truncated file raised SIGBUS in every process.
#[test]
fn a_region_that_is_cut_costs_hits_and_no_process() {
    for flush in flushes() {
        let source = shm("cut");
        let (_, pool, time) = make(&source, flush, 56);
        let path = source.path().expect("a file");
        let file = std::fs::File::options().write(true).open(&path).expect("it is there");
        std::fs::remove_file(&path).expect("it is there");
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        (0..20).for_each(|prompt| _ = serve(&pool, &ns, prompt));
        file.set_len(4 << 20).expect("cut");
        (0..20).for_each(|prompt| _ = serve(&pool, &ns, prompt));
        file.set_len(0).expect("cut");
        (0..20).for_each(|prompt| _ = serve(&pool, &ns, prompt));
        let health = tick_until(&pool, time, "it is noticed", Health::is_degraded);
        assert!(health.reasons()[0].contains("gone"), "{health:?}");
        assert_eq!(serve(&pool, &ns, 1), 0);
    }
}
