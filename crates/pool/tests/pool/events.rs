//! A follower of the event log knows which blocks are there, whichever process stored or evicted
//! them, and whatever part of the log was lost.

use crate::support::*;
use cenote_base::fault::{self, Point};
use cenote_base::testing::ManualTime;
use cenote_base::{BlockHash, HostId};
use cenote_mem::Fabric;
use cenote_pool::{
    AttachOptions, BlockEvent, Follower, Inspector, Names, Namespace, NewBlock, Pool, PoolConfig, Publish, Resync,
};
use std::cell::RefCell;
use std::time::Duration;

/// The time for which a follower waits for a number without a line.
const PATIENCE: Duration = Duration::from_millis(100);

fn names(number: u64) -> Names {
    Names { name: 1000 + number, parent: 999 + number }
}

/// Publishes blocks with names of an engine.
fn publish_named<F: Fabric>(pool: &Pool<F>, ns: &Namespace, hashes: &[BlockHash]) {
    for (number, &hash) in (0..).zip(hashes) {
        let bytes = payload(hash, BLOCK_BYTES);
        assert_eq!(
            pool.publish(&NewBlock { names: names(number), ..NewBlock::new(ns, hash, number as u32) }, &[&bytes]),
            Publish::Published
        );
    }
}

/// Result of a poll, by name: blocks that came and blocks that left.
fn look<F: Fabric>(pool: &Pool<F>, follower: &mut Follower) -> Look {
    let followed = pool.follow(follower).expect("the region keeps events");
    let (mut stored, mut removed) = (Vec::new(), Vec::new());
    for event in followed.events {
        match event {
            BlockEvent::Stored(told) => stored.push(told.names.name),
            BlockEvent::Removed(told) => removed.push(told.names.name),
        }
    }
    (stored, removed, followed.resync)
}

fn all(follower: &Follower) -> Vec<u64> {
    let mut all: Vec<u64> = follower.all().map(|told| told.names.name).collect();
    all.sort_unstable();
    all
}

/// A lookup's hits are the blocks that a follower knows.
fn assert_right<F: Fabric>(pool: &Pool<F>, ns: &Namespace, follower: &Follower, hashes: &[BlockHash]) {
    for &hash in hashes {
        assert_eq!(follower.told(ns.id, hash).is_some(), !pool.peek(&[hash]).is_empty(), "{hash}");
    }
}

#[test]
fn a_follower_sees_stores_and_removals() {
    for config in each_design(51) {
        let (_fabric, pool) = anonymous(2 << 20, &config);
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 6);
        let mut follower = Follower::default();
        assert_eq!(look(&pool, &mut follower), (vec![], vec![], Some(Resync::Begun)));
        publish_named(&pool, &ns, &hashes);
        assert_eq!(look(&pool, &mut follower), ((1000..1006).collect(), vec![], None));
        assert_eq!(follower.told(ns.id, hashes[3]).map(|told| (told.names, told.depth)), Some((names(3), 3)));
        assert_eq!(pool.evict(2), 2);
        let (stored, removed, resync) = look(&pool, &mut follower);
        assert_eq!((stored.len(), removed.len(), resync), (0, 2, None), "{:?}", config.design);
        assert_right(&pool, &ns, &follower, &hashes);
        // A later follower learns the names from the blocks themselves.
        let mut late = Follower::default();
        let (stored, _, resync) = look(&pool, &mut late);
        assert_eq!((stored.len(), resync), (4, Some(Resync::Begun)));
        assert_eq!(all(&late), all(&follower));
        assert_eq!(look(&pool, &mut late), (vec![], vec![], None), "nothing is told twice");
    }
}

#[test]
fn a_forgotten_model_is_reported() {
    let (_fabric, pool) = anonymous(2 << 20, &small_config(52));
    let (ns, other) = (namespace(&pool, 1, BLOCK_BYTES), namespace(&pool, 2, BLOCK_BYTES));
    let hashes = chain(&ns, 1, 4);
    publish_named(&pool, &ns, &hashes);
    publish(&pool, &other, chain(&other, 1, 1)[0], 0);
    let mut follower = Follower::default();
    look(&pool, &mut follower);
    // Pinned: lookups do not find it, and its slot is not free.
    let pin = pool.pin(&pool.lookup(&hashes)[0]).expect("it is there");
    assert_eq!(pool.forget(&ns), 3);
    assert_eq!(look(&pool, &mut follower).1, [1000, 1001, 1002, 1003]);
    assert_eq!(all(&follower), [0], "the other model's, which has no name");
    drop(pin);
    pool.gc().expect("no lock is busy");
    assert_eq!(look(&pool, &mut follower), (vec![], vec![], None));
}

type Look = (Vec<u64>, Vec<u64>, Option<Resync>);

thread_local! {
    /// The follower that begins when this thread has marked victims.
    static LOOKER: RefCell<Option<TestPool>> = const { RefCell::new(None) };
    static SEEN: RefCell<Option<(Look, Follower)>> = const { RefCell::new(None) };
}

/// A victim that is pinned is marked as evicting and restored. A follower that began in between
/// must not take it for gone.
#[test]
fn a_block_that_was_to_leave_and_is_pinned_stays() {
    let (_fabric, pool) = anonymous(2 << 20, &small_config(53));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 1);
    publish_named(&pool, &ns, &hashes);
    let pin = pool.pin(&pool.lookup(&hashes)[0]).expect("it is there");
    let mut follower = Follower::default();
    look(&pool, &mut follower);
    fault::observe(|point| {
        if point == Point::EvictMarked
            && let Some(pool) = LOOKER.take()
        {
            let mut late = Follower::default();
            SEEN.set(Some((look(&pool, &mut late), late)));
        }
    });
    LOOKER.set(Some(pool.clone()));
    assert_eq!(pool.evict(1), 0);
    let (first, mut late) = SEEN.take().expect("it was marked");
    assert_eq!(first, (vec![], vec![], Some(Resync::Begun)), "it was leaving");
    assert_eq!(look(&pool, &mut late).0, [1000], "it stayed");
    assert_eq!(look(&pool, &mut follower), (vec![], vec![], None));
    drop(pin);
    assert_eq!(pool.evict(1), 1);
    assert_eq!((look(&pool, &mut late).1, look(&pool, &mut follower).1), (vec![1000], vec![1000]));
}

#[test]
fn an_overtaken_follower_misses_nothing() {
    let config = PoolConfig { events_per_host: 16, ..small_config(54) };
    let (_fabric, pool) = anonymous(2 << 20, &config);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 40);
    publish_named(&pool, &ns, &hashes[..10]);
    let mut follower = Follower::default();
    look(&pool, &mut follower);
    assert_eq!(pool.evict(5), 5);
    publish_named(&pool, &ns, &hashes[10..]);
    let (stored, removed, resync) = look(&pool, &mut follower);
    assert_eq!(resync, Some(Resync::Overtaken));
    assert_eq!((stored.len(), removed.len()), (30, 5), "what is the same is not told again");
    assert_right(&pool, &ns, &follower, &hashes);
    assert_eq!(look(&pool, &mut follower), (vec![], vec![], None));
}

/// A death at an event leaves a line that is missing or corrupt. It delays no later event, and the
/// follower finds out what it may have logged.
#[test]
fn a_corrupt_event_line_is_detected() {
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let (fabric, pool) = anonymous_for(2 << 20, &small_config(55), &options);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let hashes = chain(&ns, 1, 3);
    let mut follower = Follower::default();
    look(&pool, &mut follower);
    publish_named(&pool, &ns, &hashes);
    let at = line_of(&*fabric, 1001, hashes[1]);
    let mut words = fabric.load_line(at);
    words[4] ^= 1;
    fabric.store_line(at, &words);
    assert_eq!(look(&pool, &mut follower), (vec![1000, 1002], vec![], None), "its writer may be at it");
    assert!(!follower.is_settled());
    let options = AttachOptions { private: true, ..AttachOptions::named("") };
    let report = Inspector::open(&fabric, &options).expect("it is a region").check(true);
    assert!(report.is_clean() && report.events == 3, "two blocks, and that the host began a life: {report:?}");
    assert!(report.pending.iter().any(|finding| finding.what == "event log of host 0"), "{report:?}");
    // The follower's own deadline; it passes without further events.
    time.advance(PATIENCE);
    assert_eq!(look(&pool, &mut follower), (vec![], vec![], None), "its writer may still be at it");
    time.advance(Duration::from_nanos(1));
    assert_eq!(look(&pool, &mut follower), (vec![1001], vec![], Some(Resync::Lost)));
    assert!(follower.is_settled());
    words[4] ^= 1;
    fabric.store_line(at, &words);
    assert_eq!(look(&pool, &mut follower), (vec![], vec![], None), "what comes late is known");
}

/// Offset of a block's event.
fn line_of<F: Fabric>(fabric: &F, name: u64, hash: BlockHash) -> u64 {
    let holds = |at: &u64| {
        let words = fabric.load_line(*at);
        words[1..4] == [hash.words()[0], hash.words()[1], name]
    };
    (4096..fabric.len()).step_by(64).find(holds).expect("it was told")
}

#[test]
fn a_region_without_a_log_says_so() {
    let with = small_config(56);
    let without = PoolConfig { events_per_host: 0, ..small_config(56) };
    let (_fabric, pool) = anonymous(2 << 20, &without);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    publish_named(&pool, &ns, &chain(&ns, 1, 3));
    assert_eq!(pool.evict(3), 3);
    let error = pool.follow(&mut Follower::default()).expect_err("there is none").to_string();
    assert!(error.contains("--events"), "{error}");
    for events in [1, 15, (1 << 20) + 1] {
        let error = PoolConfig { events_per_host: events, ..with.clone() }.validate().expect_err("it cannot be");
        assert!(error.to_string().contains(&format!("{events} events per host")), "{error}");
    }
}

/// A follower on another host sees a host's evictions, and its death.
#[test]
fn hosts_tell_each_other() {
    let (fabric, [first, second]) = two_hosts(&small_config(57));
    let (ns, same) = (namespace(&first, 1, BLOCK_BYTES), namespace(&second, 1, BLOCK_BYTES));
    let (hashes, others) = (chain(&ns, 1, 4), chain(&ns, 2, 4));
    let mut follower = Follower::default();
    look(&first, &mut follower);
    publish_named(&first, &ns, &hashes);
    publish_named(&second, &same, &others[..2]);
    assert_eq!(look(&first, &mut follower).0.len(), 6);
    assert_eq!(second.evict(1), 1);
    let (stored, removed, resync) = look(&first, &mut follower);
    assert_eq!((stored.len(), removed.len(), resync), (0, 1, None));
    assert_right(&first, &ns, &follower, &others);
    let options = AttachOptions { private: true, ..AttachOptions::named("") };
    let inspector = Inspector::open(&fabric, &options).expect("it is a region");
    let mut outside = Follower::default();
    inspector.follow(&mut outside).expect("the region keeps events");
    assert_eq!(all(&outside), all(&follower), "a follower need not join");
    first.fence_host(HostId(1)).expect("it attached");
    let (stored, removed, resync) = look(&first, &mut follower);
    assert_eq!((stored, removed, resync), (vec![], vec![], Some(Resync::Gap)), "its blocks stay readable");
    assert_right(&first, &ns, &follower, &others);
}
