//! The ring of removed blocks: each that left is there with its cause, until the ring is full.

use crate::support::*;
use cenote_base::BlockHash;
use cenote_base::testing::ManualTime;
use cenote_mem::{Fabric, Offset};
use cenote_pool::{
    AttachOptions, Cause, Counter, Inspector, Pool, PoolConfig, Publish, RESIDENCE_SECONDS, ReadOutcome, Removal,
    Superblock, history, removals,
};
use std::sync::Arc;
use std::time::Duration;

fn config(identity: u8, lines: u32) -> PoolConfig {
    PoolConfig { removals_per_host: lines, ..small_config(identity) }
}

fn kept<F: Fabric>(fabric: &F) -> Vec<Removal> {
    removals(fabric).expect("a region").all
}

fn of(all: &[Removal], hash: BlockHash) -> Option<&Removal> {
    all.iter().rev().find(|removal| removal.hash == hash)
}

#[test]
fn what_was_evicted_is_told_with_its_time_and_process() {
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let (fabric, pool) = anonymous_for(2 << 20, &config(81, 4096), &options);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let names: Vec<BlockHash> = (0..400).map(|prompt| chain(&ns, prompt, 1)[0]).collect();
    for &name in &names {
        assert_eq!(publish(&pool, &ns, name, 3), Publish::Published);
        time.advance(Duration::from_secs(1));
    }
    let all = kept(&fabric);
    assert_eq!(all.len() as u64, pool.counter(Counter::Evicted));
    let seen = Inspector::open(&fabric, &options).expect("a region").look_at(&names);
    for (&name, seen) in names.iter().zip(seen) {
        assert_eq!(seen.is_none(), of(&all, name).is_some(), "{name}: here, or removed");
        if let Some(seen) = seen {
            assert_eq!((seen.namespace, seen.length, seen.encoding, seen.host), (ns.id, BLOCK_BYTES, 0, Some(0)));
        }
    }
    let first = of(&all, names[0]).expect("the oldest has left");
    assert_eq!((first.cause, first.namespace, first.depth, first.host), (Cause::Evicted, ns.id, 3, 0));
    assert_eq!(first.pid, std::process::id());
    let stayed = first.time_us / 1_000_000 - u64::from(first.stored);
    let there = pool.info().blocks_ready;
    assert!((there - 8..=there + 1).contains(&stayed), "a second a block: {stayed} s, and {there} blocks fit");

    let info = pool.info();
    assert_eq!(info.removed["evicted"], all.len() as u64);
    let seconds = |removal: &Removal| removal.time_us / 1_000_000 - u64::from(removal.stored);
    assert_eq!(info.residence.seconds, all.iter().map(seconds).sum::<u64>());
    let classes = RESIDENCE_SECONDS.map(|bound| all.iter().filter(|removal| seconds(removal) <= bound.into()).count());
    let sums = (1..=RESIDENCE_SECONDS.len()).map(|class| info.residence.blocks[..class].iter().sum::<u64>());
    assert!(sums.eq(classes.map(|count| count as u64)), "{:?}", info.residence);
}

#[test]
fn blocks_that_come_back_are_told_from_those_that_do_not() {
    let time = ManualTime::start();
    let options = AttachOptions { clock: Some(time.clock()), ..private(0) };
    let (fabric, pool) = anonymous_for(2 << 20, &config(85, 4096), &options);
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let names: Vec<BlockHash> = (0..400).map(|prompt| chain(&ns, prompt, 1)[0]).collect();
    names.iter().for_each(|&name| assert_eq!(publish(&pool, &ns, name, 0), Publish::Published));
    let returns = || {
        let inspector = Inspector::open(&fabric, &options).expect("a region");
        let stored = |names: &[BlockHash]| {
            inspector.look_at(names).into_iter().map(|seen| seen.map(|seen| seen.stored)).collect()
        };
        removals(&fabric).expect("a region").returns(stored)
    };
    let first = returns();
    assert_eq!((first.removed, first.returned), (pool.counter(Counter::Evicted), 0));

    // Each takes the place of another, which has left by then, too.
    let gone: Vec<BlockHash> = kept(&fabric).iter().take(5).map(|removal| removal.hash).collect();
    time.advance(Duration::from_secs(100));
    for &name in &gone {
        assert_eq!(publish(&pool, &ns, name, 0), Publish::Published);
    }
    let then = returns();
    assert_eq!((then.returned, then.within), (5, [0, 0, 5, 5, 5]));
    // That they leave once more changes nothing of their first return.
    time.advance(Duration::from_secs(1000));
    for prompt in 400..800 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    assert_eq!((returns().returned, returns().within), (5, [0, 0, 5, 5, 5]));
}

#[test]
fn each_cause_has_its_name() {
    let (fabric, pool) = anonymous(2 << 20, &config(82, 64));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let told = |name| of(&kept(&fabric), name).map(|removal| removal.cause);

    let [damaged, over, forgotten] = [0, 1, 2].map(|prompt| chain(&ns, prompt, 1)[0]);
    publish(&pool, &ns, damaged, 0);
    let hit = pool.lookup(&[damaged])[0];
    let (payload, _) = pool.pin(&hit).and_then(|pin| pin.extent()).expect("it is not sealed");
    fabric.store(Offset::new(payload), !fabric.load(Offset::new(payload)));
    let mut to = vec![0; hit.length as usize];
    let outcome = pool.read(&hit, &mut [&mut to]);
    assert_eq!(outcome, ReadOutcome::Damaged);
    assert_eq!(told(damaged), Some(Cause::Damaged));

    publish(&pool, &ns, over, 0);
    pool.set_quota(ns.id, BLOCK_BYTES).expect("a row");
    pool.tick();
    publish(&pool, &ns, forgotten, 0);
    assert_eq!(told(over), Some(Cause::Quota));

    assert_eq!(pool.forget(&ns), 1);
    assert_eq!(told(forgotten), Some(Cause::Forgotten));
    // A duplicate takes nothing away.
    let all = kept(&fabric).len();
    publish(&pool, &ns, over, 0);
    publish(&pool, &ns, over, 0);
    assert_eq!(kept(&fabric).len(), all);
}

#[test]
fn the_ring_goes_on_after_a_restart_and_keeps_the_last() {
    let (fabric, pool) = anonymous(2 << 20, &config(83, 8));
    drop(pool);
    let mut names = Vec::new();
    for start in 0..3 {
        let pool = Pool::attach(Arc::clone(&fabric), &private(0)).expect("it attaches");
        let ns = namespace(&pool, 1, BLOCK_BYTES);
        for prompt in 0..300 {
            names.push(chain(&ns, start * 300 + prompt, 1)[0]);
            publish(&pool, &ns, names[names.len() - 1], 0);
        }
    }
    let all = kept(&fabric);
    assert_eq!(all.len(), 8, "{all:?}");
    assert!(of(&all, names[0]).is_none(), "it left long ago");
    assert_eq!(removals(&fabric).expect("a region").since_us, Some(all[0].time_us), "the ring is full");
    let last = names.iter().position(|name| *name == all[7].hash).expect("it was published");
    for (back, removal) in all.iter().rev().enumerate() {
        assert_eq!(removal.hash, names[last - back], "the last ones, in order");
    }
}

#[test]
fn torn_and_planted_lines_are_none() {
    let (fabric, pool) = anonymous(2 << 20, &config(84, 16));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for prompt in 0..400 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    let all = kept(&fabric);
    assert_eq!(all.len(), 16);
    let line = |removal: &Removal| {
        let words = removal.hash.words();
        let at = |at: &u64| fabric.load_line(*at)[1..3] == words && fabric.load_line(*at)[3] == removal.time_us;
        (0..fabric.len()).step_by(64).find(at).expect("it is in the region")
    };
    let (first, second) = (line(&all[0]), line(&all[1]));
    fabric.store(Offset::new(first + 8), 77);
    assert_eq!(kept(&fabric), all[1..], "a torn one");
    assert_eq!(removals(&fabric).expect("a region").since_us, Some(all[1].time_us), "the ring is full nevertheless");
    fabric.store_line(first, &fabric.load_line(second));
    assert_eq!(kept(&fabric), all[1..], "one in the place of another");
}

#[test]
fn a_region_without_a_ring_keeps_none() {
    let (fabric, pool) = anonymous(2 << 20, &config(85, 0));
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    for prompt in 0..400 {
        publish(&pool, &ns, chain(&ns, prompt, 1)[0], 0);
    }
    assert!(pool.counter(Counter::Evicted) > 0);
    assert_eq!(kept(&fabric), []);
    assert!(!history(&fabric).expect("a region").is_empty());
    // The ring is in the superblock, and too long a one is refused.
    assert_eq!(Superblock::read(&fabric).expect("a region").config.removals_per_host, 0);
    let error = config(86, (1 << 16) + 1).validate().expect_err("it is too long").to_string();
    assert!(error.contains("65537 removals per host"), "{error}");
    let of = |mib: u64, hosts| PoolConfig { max_hosts: hosts, ..config(87, 0) }.removals_in(mib << 20);
    assert_eq!([of(64, 1), of(64, 16), of(1 << 20, 1), of(1 << 30, 16)], [1024, 64, 65536, 65536]);
}
