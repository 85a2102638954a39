//! Two hosts that share a region without coherence, in one process.

use crate::support::shared::{Shared, attach_flushed, region_of_process};
use crate::support::*;
use cenote_base::fault::{self, Plan, Point};
use cenote_base::testing::{ManualTime, until};
use cenote_base::{BlockHash, ChainHasher, Health, HostId};
use cenote_mem::{Fabric, Flush, Flushed, MapOptions, Offset};
use cenote_pool::{
    AttachOptions, Counter, Inspector, Namespace, NamespaceRecord, NewBlock, Pin, PinnedRows, Pool, PoolConfig,
    PoolError, Publish, ReadOutcome, RowRef, RowShape, Strays,
};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Timeout of locks that are free or that only the dead hold, which are taken without a wait, and of
/// locks that are never released.
const SOON: Duration = Duration::from_millis(20);

/// Lets time pass when a test ends, so that a wait of another thread ends although the test failed.
struct Ending(&'static ManualTime);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.advance(Duration::from_secs(3600));
    }
}

#[test]
fn a_dead_host_is_reported_once() {
    let (_, [first, second]) = two_hosts(&small_config(21));
    // A dead host never releases its lock.
    std::mem::forget(first.lock_user(0, SOON).expect("it is free"));
    assert!(second.lock_user(0, SOON).is_err(), "a living host has it");
    second.fence_host(HostId(0)).expect("it attached");
    let told: Vec<bool> =
        (0..3).map(|_| second.lock_user(0, SOON).expect("the dead hold nothing").abandoned()).collect();
    assert_eq!(told, [true, false, false], "only the first is to repair");
    assert!(!second.lock_user(1, SOON).expect("it is free").abandoned());
}

/// Of three hosts, the first dies with a lock, the second only waits for it, the third watches.
#[test]
fn a_waiter_for_a_dead_host_is_not_declared_dead() {
    let time = ManualTime::start();
    let fabric = without_coherence(2 << 20, &PoolConfig { max_hosts: 3, ..small_config(24) });
    let host_timeout = Duration::from_secs(1);
    let attach = |host| {
        let options = AttachOptions { host_timeout, clock: Some(time.clock()), ..private(host) };
        Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
    };
    let [first, second, third] = [0, 1, 2].map(attach);
    std::mem::forget(first.lock_user(0, SOON).expect("it is free"));
    third.tick();
    std::thread::scope(|scope| {
        let _ending = Ending(time);
        let waits = scope.spawn(|| second.lock_user(0, 20 * host_timeout).map(|lock| lock.abandoned()));
        // The waiter beats once for each of these steps, and the watcher looks in between.
        let mut steps = 0;
        while !waits.is_finished() {
            time.advance(host_timeout / 4);
            let heard = || third.info().hosts.iter().any(|host| (host.host, host.silent_ms) == (1, Some(0)));
            until("the waiter's heart", || (heard() || waits.is_finished()).then_some(()));
            third.tick();
            steps += 1;
            if third.counter(Counter::HostsDeclaredDead) > 0 {
                break;
            }
        }
        assert_eq!(steps, 5, "the first step after the host timeout");
        assert!(waits.join().expect("no panic").expect("its holder is declared dead"));
    });
    let dead: Vec<u8> = third.info().hosts.iter().filter(|host| host.marked_dead).map(|host| host.host).collect();
    assert_eq!(dead, [0]);
}

/// A suspended host may write for a while, so its space waits. An operator's word that it writes no
/// more ends the wait, also where the clock has just begun.
#[test]
fn the_space_of_a_silent_host_waits_for_the_quarantine_and_that_of_a_fenced_one_does_not() {
    for is_fenced in [false, true] {
        let time = ManualTime::start();
        let fabric = without_coherence(2 << 20, &small_config(26));
        let [host_timeout, quarantine] = [10, 30].map(Duration::from_secs);
        let [first, second] = [0, 1].map(|host| {
            let options = AttachOptions { host_timeout, quarantine, clock: Some(time.clock()), ..private(host) };
            Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
        });
        let ns = model(&first);
        let hash = chain(&ns, 1, 1)[0];
        assert_eq!(first.publish(&NewBlock::new(&ns, hash, 0), &[&payload(hash, BLOCK_BYTES)]), Publish::Published);
        second.tick();
        let adopted = || second.gc().expect("the locks are free").chunks_adopted;
        if is_fenced {
            second.fence_host(HostId(0)).expect("it attached");
        } else {
            let moment = Duration::from_millis(1);
            time.advance(host_timeout + moment);
            second.tick();
            assert_eq!(second.counter(Counter::HostsDeclaredDead), 1);
            time.advance(quarantine - 2 * moment);
            assert_eq!(adopted(), 0, "it may have been suspended");
            time.advance(2 * moment);
        }
        assert_eq!(adopted(), 1, "fenced: {is_fenced}");
    }
}

#[test]
fn a_host_with_a_partial_announcement_is_not_waited_for() {
    let (fabric, [first, second]) = two_hosts(&small_config(23));
    let words = || -> Vec<[u64; 8]> { (0..fabric.len() / 64).map(|line| fabric.load_line(line * 64)).collect() };
    let before = words();
    std::mem::forget(first.lock_user(0, SOON).expect("it is free"));
    let changed: Vec<u64> =
        (0..).zip(words()).filter(|(line, now)| before[*line as usize] != *now).map(|(line, _)| line * 64).collect();
    let [line] = changed[..] else { panic!("one line names the holder: {changed:x?}") };
    let life = fabric.load_line(line)[1];
    assert_ne!(life, 0);
    // The first host is choosing: first without a known life, as after half of a line was written
    // back, then in its own.
    for (ticket, life, waits) in [(1, 0, false), (1, life, true)] {
        fabric.write_word(Offset::new(line), ticket);
        fabric.write_word(Offset::new(line + 8), life);
        assert_eq!(second.lock_user(0, SOON).is_err(), waits, "{ticket} {life}");
    }
}

/// A host that begins a new life records it in the lines of its chunks, and may die meanwhile.
#[test]
fn blocks_outlive_the_death_of_their_host_at_noting_whose_they_are() {
    let (fabric, [first, second]) = two_hosts(&small_config(24));
    let words = || -> Vec<[u64; 8]> { (0..fabric.len() / 64).map(|line| fabric.load_line(line * 64)).collect() };
    let changed_by = |change: &dyn Fn()| -> Vec<u64> {
        let before = words();
        change();
        (0..).zip(words()).filter(|(line, now)| before[*line as usize] != *now).map(|(line, _)| line * 64).collect()
    };
    let lines = changed_by(&|| first.put_object("root", b"bytes").expect("there is room"));
    let is_chunk = |&line: &u64| matches!(fabric.load_line(line), [1, _, slot, 1, 0, 0, 0, _] if slot >= 64);
    let chunk = lines.into_iter().find(is_chunk).expect("host 0 took a chunk");
    let [user] = changed_by(&|| std::mem::forget(first.lock_user(0, SOON).expect("it is free")))[..] else {
        panic!("one line names the holder")
    };
    // The lock of chunks is two before it.
    let lock = user - 2 * 64;
    for (at, word) in [(0, 2), (8, fabric.load_line(user)[1]), (16, 1)] {
        fabric.write_word(Offset::new(lock + at), word);
    }
    let whole = fabric.load_line(chunk);
    fabric.write_word(Offset::new(chunk + 8), whole[1] + 1);
    second.fence_host(HostId(0)).expect("it attached");
    // It needs a chunk of its own, so it takes the lock and repairs what the dead host left.
    second.put_object("leaf", b"others").expect("there is room");
    assert_eq!(fabric.load_line(chunk), whole);
    assert_eq!(second.get_object("root").expect("a key").as_deref(), Some(&b"bytes"[..]));
    let owned = second.info().hosts.iter().map(|host| host.chunks).collect::<Vec<_>>();
    assert_eq!(owned, [1, 1]);
    std::mem::forget(first);
}

#[test]
fn hosts_are_listed_with_their_chunks() {
    let (fabric, [first, second]) = two_hosts(&small_config(22));
    first.put_object("root", b"bytes").expect("there is room");
    let rows = |pool: &Pool<Arc<Flushed>>| -> Vec<_> {
        let hosts = pool.info().hosts;
        hosts.iter().map(|host| (host.host, host.alive, host.marked_dead, host.workers, host.chunks)).collect()
    };
    assert_eq!(rows(&second), [(0, None, false, 1, 1), (1, Some(true), false, 1, 0)], "no heartbeat was read yet");
    second.tick();
    assert_eq!(rows(&second)[0], (0, Some(true), false, 1, 1), "its heart was heard");
    second.fence_host(HostId(0)).expect("it attached");
    assert_eq!(rows(&second)[0], (0, Some(false), true, 1, 1));
    let inspector = Inspector::open(&fabric, &private(1)).expect("it is a region");
    let report = inspector.check(true);
    assert!(report.is_clean(), "{report:#?}");
    let dead = report.pending.iter().find(|finding| finding.what == "host 0").expect("it is told");
    assert!(dead.fact.contains("owns 1 chunk"), "{dead:?}");
    assert_eq!((report.objects, report.chunks), (1, 1), "chunks of all hosts are walked");
    drop(first);
}

/// A worker of host 1, which a test starts. It publishes until it is killed mid-publish.
#[test]
#[ignore = "the process that other tests start"]
fn publisher() {
    let pool = attach_flushed(&region_of_process(), 1);
    let ns = namespace_of(&pool);
    fault::arm(Plan { point: Point::PublishPayload, pass: 3 }, |_| {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("it can");
    });
    for prompt in 500..600 {
        publish_on(&pool, &ns, prompt);
    }
}

fn namespace_of(pool: &FlushedPool) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [1; 32],
        label: "model".to_owned(),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 2,
    };
    pool.namespace(&record).expect("the table has room")
}

fn publish_on(pool: &FlushedPool, ns: &Namespace, prompt: u32) -> Publish {
    let hash = chain(ns, prompt, 1)[0];
    pool.publish(&NewBlock::new(ns, hash, 0), &[&payload(hash, BLOCK_BYTES)])
}

/// A host that is idle offers its chunks, and another one takes them with their blocks and evicts these.
#[test]
fn another_host_heeds_kept_bytes() {
    for kept in [0, 20] {
        let (_, [first, second]) = two_hosts(&small_config(24));
        let (ours, flood) = (namespace(&first, 1, BLOCK_BYTES), namespace(&second, 2, BLOCK_BYTES));
        let blocks: Vec<BlockHash> = (0..20).map(|prompt| chain(&ours, prompt, 1)[0]).collect();
        for (prompt, &hash) in (0..).zip(&blocks) {
            assert!(first.lookup(&[hash]).is_empty());
            assert_eq!(publish_on(&first, &ours, prompt), Publish::Published);
        }
        first.keep(ours.id, kept * BLOCK_BYTES).expect("it is less than half");
        // Both learn of it, and of each other.
        let tick = || [&first, &second].map(FlushedPool::tick);
        (0..12).for_each(|_| assert_eq!(tick().map(|recovered| recovered.workers), [0, 0]));
        let mut refused = 0;
        for prompt in 0..1000 {
            assert!(second.lookup(&[chain(&flood, prompt, 1)[0]]).is_empty());
            refused += u32::from(publish_on(&second, &flood, prompt) != Publish::Published);
            if prompt % 5 == 0 {
                tick();
            }
        }
        let there = blocks.iter().filter(|&&hash| !first.peek(&[hash]).is_empty()).count();
        assert_eq!((there as u64, refused), (kept, 0));
        for pool in [&first, &second] {
            let report = pool.check(true).expect("no lock is held");
            assert!(report.is_clean(), "{report:?}");
        }
    }
}

/// A quota limits the sum over hosts. A host evicts only its own blocks for it. Reservations of a
/// killed worker count until they are recovered.
#[test]
fn hosts_share_a_quota() {
    let region = Shared::make("quota", 4 << 20, small_config(23), Flush::available()[0]);
    let (first, second) = (attach_flushed(&region.source, 0), attach_flushed(&region.source, 1));
    let (ns, same) = (namespace_of(&first), namespace_of(&second));
    first.set_quota(ns.id, 6 * BLOCK_BYTES).expect("the row is there");
    second.tick();
    let used = || first.info().namespaces[0].used_bytes / BLOCK_BYTES;
    let published = |pool: &FlushedPool, prompts: std::ops::Range<u32>| {
        let outcomes = prompts.map(|prompt| publish_on(pool, &ns, prompt));
        outcomes.filter(|outcome| *outcome == Publish::Published).count()
    };
    assert_eq!((published(&first, 0..4), published(&second, 10..12), used()), (4, 2, 6));
    // Each continues within the rest that the other leaves it, by evicting its own blocks.
    assert_eq!((published(&second, 12..20), used(), second.counter(Counter::Evicted)), (8, 6, 8));
    assert_eq!((published(&first, 4..8), used(), first.counter(Counter::Evicted)), (4, 6, 4));
    assert_eq!(second.lookup(&chain(&same, 7, 1)).len(), 1, "the newest of the other host is there");
    // A host without blocks of the namespace is refused as long as the other uses the whole quota.
    assert_eq!(second.evict(100), 2);
    assert_eq!((published(&first, 20..22), used()), (2, 6));
    assert_eq!((publish_on(&second, &same, 30), second.counter(Counter::QuotaRefused)), (Publish::OverQuota, 1));

    // A worker of the second host dies with a slot reserved, which counts until its host recovers
    // it.
    first.evict(3);
    let mut child = region.process("hosts::publisher", None);
    let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("the test starts itself");
    assert_eq!(status.signal(), Some(9), "{status}");
    assert_eq!(used(), 6, "three of the first host, two whole ones and a reservation of the second");
    assert_eq!((published(&first, 40..45), used()), (5, 6), "the living make room among their own");
    assert_eq!(second.tick().reservations, 1);
    assert_eq!(used(), 5);
    for pool in [&first, &second] {
        let report = pool.check(true).expect("no lock is held");
        assert!(report.is_clean(), "{report:#?}");
    }

    // A dead host's blocks do not count. Adopted, they count for their new owner, which returns to
    // the quota with its next publish.
    drop(first.lookup(&chain(&ns, 44, 1)));
    first.fence_host(HostId(1)).expect("it attached");
    assert_eq!(used(), 3);
    assert_eq!((published(&first, 50..60), used()), (10, 6));
    assert!(first.gc().expect("no lock is held").chunks_adopted > 0);
    assert_eq!(used(), 8, "two blocks came with the chunks");
    assert_eq!((published(&first, 60..61), used()), (1, 6));
    // Its memory still lists chunks that another host has adopted; the next life recounts.
    second.tick();
    let report = second.check(true).expect("no lock is held");
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!((publish_on(&second, &same, 70), used()), (Publish::OverQuota, 6));
}

/// Writes a block's payload in place, as a device would.
fn write_in_place(fabric: &Flushed, offset: u64, bytes: &[u8]) {
    for (word, bytes) in bytes.chunks_exact(8).enumerate() {
        let word = Offset::new(offset + 8 * word as u64);
        fabric.write_word(word, u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    }
    fabric.fence();
}

fn model(pool: &Pool<Arc<Flushed>>) -> Namespace {
    let record = NamespaceRecord {
        fingerprint: [5; 32],
        label: "model".to_owned(),
        block_bytes: BLOCK_BYTES,
        block_tokens: 16,
        num_layers: 2,
    };
    pool.namespace(&record).expect("the table has room")
}

/// Publishes blocks until one is at `offset`, and returns its hash and a pin that keeps it there.
fn publish_at(pool: &Pool<Arc<Flushed>>, ns: &Namespace, offset: u64) -> (BlockHash, Pin<Arc<Flushed>>) {
    for prompt in 100..1000 {
        let hash = chain(ns, prompt, 1)[0];
        if !pool.peek(&[hash]).is_empty() {
            continue;
        }
        assert_eq!(pool.publish(&NewBlock::new(ns, hash, 0), &[&payload(hash, BLOCK_BYTES)]), Publish::Published);
        let pin = pool.peek(&[hash]).first().and_then(|hit| pool.pin(hit)).expect("it was just published");
        if pin.extent().expect("it is plain").0 == offset {
            return (hash, pin);
        }
    }
    panic!("no block came to lie at {offset:#x}");
}

/// A host is stopped with a block filled in place (SIGSTOP, a paused machine), declared dead, and
/// continued. By then another host has published a block in the slot. A checksum of the slot would
/// cover that block's bytes under the first one's name.
#[test]
fn a_resumed_host_does_not_vouch_for_bytes_of_others() {
    let (fabric, [first, second]) = two_hosts(&small_config(31));
    let (ns, theirs) = (model(&first), model(&second));
    let hash = chain(&ns, 1, 1)[0];
    let filling = first.begin_in_place(&NewBlock::new(&ns, hash, 0)).expect("there is room");
    let (offset, _) = filling.extent();
    write_in_place(&fabric, offset, &payload(hash, BLOCK_BYTES));
    second.fence_host(HostId(0)).expect("it attached");
    let (other, _pin) = publish_at(&second, &theirs, offset);
    assert_eq!(filling.publish(), Publish::NoRoom);
    assert!(second.lookup(&[hash]).is_empty() && first.lookup(&[hash]).is_empty(), "nothing bears the name");
    let hit = second.lookup(&[other])[0];
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    assert_eq!(second.read(&hit, &mut [&mut bytes]), ReadOutcome::Whole, "the other block is still there");
    assert!(bytes == payload(other, BLOCK_BYTES));
}

/// A host that was declared dead may have dirty lines of in-place writes in its caches, and may
/// write them back at any later time. So its chunks take copies only, in any host's hands, until it
/// has no worker of an earlier life and one joins.
#[test]
fn chunks_of_a_dead_host_take_copies_only() {
    let (fabric, [first, second]) = two_hosts(&small_config(36));
    let (ns, theirs) = (model(&first), model(&second));
    let mut prompts = 1..;
    while first.info().chunks_taken < first.info().num_chunks {
        let hash = chain(&ns, prompts.next().expect("endless"), 1)[0];
        assert_eq!(first.publish(&NewBlock::new(&ns, hash, 0), &[&payload(hash, BLOCK_BYTES)]), Publish::Published);
    }
    assert_eq!(first.info().chunks_with_strays, 0);
    second.fence_host(HostId(0)).expect("it attached");
    let in_place = || second.begin_in_place(&NewBlock::new(&theirs, BlockHash([9; 16]), 0));
    let refused = |when: &str| {
        assert_eq!(in_place().err(), Some(Publish::NoRoom), "{when}");
        assert!(second.allocate(BLOCK_BYTES).is_err(), "{when}: memory of users has no checksum at all");
        assert_eq!(second.info().chunks_with_strays, second.info().num_chunks, "{when}");
    };
    refused("they are adopted now");
    let copied = chain(&theirs, 1000, 1)[0];
    assert_eq!(
        second.publish(&NewBlock::new(&theirs, copied, 0), &[&payload(copied, BLOCK_BYTES)]),
        Publish::Published
    );
    let hit = second.lookup(&[copied])[0];
    assert_eq!(second.strays(&hit), Strays::Possible);
    let pin = second.pin(&hit).expect("it is there");
    assert_eq!((pin.verify(), pin.protects()), (ReadOutcome::Whole, false), "a use in place is not safe there");
    drop(pin);
    second.gc().expect("the locks are free");
    while second.evict(usize::MAX) > 0 {}
    second.gc().expect("the locks are free");
    assert_eq!(second.info().chunks_taken, 0);
    refused("they were given back, and are claimed anew");

    first.tick();
    refused("the host is back, and so are its workers of the time before");
    let rejoined = {
        drop(first);
        attach_host(&fabric, 0)
    };
    assert_eq!(rejoined.info().chunks_with_strays, 0, "it has written back what it had");
    let filling = in_place().expect("there is room");
    write_in_place(&fabric, filling.extent().0, &payload(BlockHash([9; 16]), BLOCK_BYTES));
    assert_eq!(filling.publish(), Publish::Published);
    assert!(second.allocate(BLOCK_BYTES).is_ok());
}

/// The same host drops its unfinished blocks, before and after it learns that it has begun a new
/// life.
#[test]
fn a_resumed_host_frees_no_block_of_others() {
    for notices in [false, true] {
        let (_, [first, second]) = two_hosts(&small_config(32 + u8::from(notices)));
        let (ns, theirs) = (model(&first), model(&second));
        let filling = first.begin_in_place(&NewBlock::new(&ns, chain(&ns, 1, 1)[0], 0)).expect("there is room");
        let memory = first.allocate(BLOCK_BYTES).expect("there is room");
        second.fence_host(HostId(0)).expect("it attached");
        let (hash, pin) = publish_at(&second, &theirs, filling.extent().0);
        if notices {
            first.tick();
        }
        drop(filling);
        assert_eq!(pin.verify(), ReadOutcome::Whole, "{notices}");
        assert_eq!(second.lookup(&[hash]).len(), 1, "{notices}: another host's block went");
        // Memory is the region's, not its maker's.
        assert!(second.allocated_bytes(memory).expect("it outlives its host") >= BLOCK_BYTES);
        second.free(memory).expect("any host frees it");
        assert!(second.free(memory).is_err() && first.free(memory).is_err());
    }
}

/// A worker that finds no free slot changes nothing of its host. If it began the host's new life,
/// the other workers would go on with a heap of the life before.
#[test]
fn a_worker_that_finds_no_slot_begins_no_life() {
    let config = PoolConfig { workers_per_host: 1, ..small_config(37) };
    let region = Shared::make("full", 2 << 20, config, Flush::available()[0]);
    let (first, second) = (attach_flushed(&region.source, 0), attach_flushed(&region.source, 1));
    let life = || second.info().hosts.first().map(|host| (host.incarnation, host.marked_dead));
    second.fence_host(HostId(0)).expect("it attached");
    assert_eq!(life(), Some((1, true)));
    let refused = Pool::attach(Arc::clone(second.fabric()), &patient(0));
    assert!(matches!(refused.err(), Some(PoolError::WorkersFull { .. })));
    assert_eq!(life(), Some((1, true)));
    first.tick();
    assert_eq!(life(), Some((2, false)));
}

/// A host that was declared dead while it waited for a lock must not enter, because others ignore
/// what it holds. No clock decides this, because clocks stop while a machine is suspended or
/// paused.
#[test]
fn a_host_that_was_declared_dead_while_it_waited_does_not_enter() {
    let fabric = without_coherence(2 << 20, &PoolConfig { max_hosts: 3, ..small_config(34) });
    // No time passes, so the wait ends by the lock alone.
    let time = ManualTime::start();
    let attach = |host| {
        let options = AttachOptions { clock: Some(time.clock()), ..private(host) };
        Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
    };
    let [first, second, third] = [0, 1, 2].map(attach);
    let held = first.lock_user(0, SOON).expect("it is free");
    let words = || -> Vec<[u64; 8]> { (0..fabric.len() / 64).map(|line| fabric.load_line(line * 64)).collect() };
    let before = words();
    std::thread::scope(|scope| {
        let _ending = Ending(time);
        let waits = scope.spawn(|| second.lock_user(0, SOON).is_ok());
        until("the waiter announces that it wants the lock", || (words() != before).then_some(()));
        third.fence_host(HostId(1)).expect("it attached");
        drop(held);
        assert!(!waits.join().expect("no panic"), "it entered in a life that is over");
    });
    // In its next life it may enter.
    second.tick();
    assert!(second.lock_user(0, SOON).is_ok());
}

/// A user in place checks after the use whether the bytes were protected all the time.
#[test]
fn a_pin_of_a_host_that_was_declared_dead_protects_nothing() {
    let (_, [first, second]) = two_hosts(&small_config(35));
    let ns = model(&first);
    let hash = chain(&ns, 1, 1)[0];
    assert_eq!(first.publish(&NewBlock::new(&ns, hash, 0), &[&payload(hash, BLOCK_BYTES)]), Publish::Published);
    let pin = first.pin(&first.lookup(&[hash])[0]).expect("it is there");
    assert!(pin.protects());
    second.fence_host(HostId(0)).expect("it attached");
    assert!(!pin.protects(), "before this host has noticed");
    first.tick();
    assert!(!pin.protects(), "in its next life");
    assert!(first.lookup(&[hash]).first().and_then(|hit| first.pin(hit)).is_some_and(|pin| pin.protects()));
}

const PAUSE_AT: &str = "CENOTE_TEST_PAUSE";

/// A host is paused in the chunk lock, and another one takes the chunk that it was about to take. Its
/// late store took the chunk away again, and its next block overwrote a pinned one.
#[test]
fn a_host_that_was_paused_in_the_chunk_lock_takes_no_chunk_of_another() {
    for point in [Point::ChunkFound, Point::ChunkNamed, Point::ChunkClaimed] {
        alone_with_pause("hosts::paused_in_the_chunk_lock", point);
    }
}

#[test]
#[ignore = "the test before starts it, in a process whose fault points are its own"]
fn paused_in_the_chunk_lock() {
    static PAUSED: AtomicBool = AtomicBool::new(false);
    static RESUMED: AtomicBool = AtomicBool::new(false);
    let point: Point = std::env::var(PAUSE_AT).expect("another test starts this one").parse().expect("a point");
    let time = ManualTime::start();
    let fabric = without_coherence(2 << 20, &small_config(71));
    let host_timeout = Duration::from_secs(1);
    let [first, second] = [0, 1].map(|host| {
        let options = AttachOptions { host_timeout, clock: Some(time.clock()), ..private(host) };
        Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
    });
    let (ns, theirs) = (namespace(&first, 1, BLOCK_BYTES), namespace(&second, 1, BLOCK_BYTES));
    let hashes = chain(&theirs, 2, 8);
    let shape = RowShape::packed(0, 512);
    let rows: Vec<RowRef> = (0..8 * 4).map(|at| RowRef { block: at % 8, row: at }).collect();
    let check = |set: &PinnedRows<Arc<Flushed>>| {
        let mut to = vec![0; rows.len() * 512];
        let gathered = set.gather(&rows, &shape, &mut to).expect("rows of the set");
        for (row, got) in rows.iter().zip(to.chunks(512)).filter(|(row, _)| !gathered.missed.contains(&row.block)) {
            let start = row.row as usize * 512;
            let is_right = payload(hashes[row.block as usize], BLOCK_BYTES)[start..start + 512] == *got;
            assert!(is_right, "{row:?} has bytes of another block");
        }
        gathered.missed.len()
    };
    second.tick();
    fault::arm(Plan::first(point), |_| {
        PAUSED.store(true, Ordering::SeqCst);
        until("the end of the pause", || RESUMED.load(Ordering::SeqCst).then_some(()));
    });
    let set = std::thread::scope(|scope| {
        let paused = scope.spawn(|| publish(&first, &ns, chain(&ns, 1, 1)[0], 0));
        until("the pause", || PAUSED.load(Ordering::SeqCst).then_some(()));
        time.advance(2 * host_timeout);
        second.tick();
        assert_eq!(second.counter(Counter::HostsDeclaredDead), 1);
        for (depth, &hash) in (0..).zip(&hashes) {
            assert_eq!(publish(&second, &theirs, hash, depth), Publish::Published);
        }
        let set = second.pin_rows(&second.lookup(&hashes));
        // Until no chunk is left that the first may take.
        for prompt in 100.. {
            let info = second.info();
            if info.chunks_taken + u64::from(point == Point::ChunkNamed) == info.num_chunks {
                break;
            }
            let hash = chain(&theirs, prompt, 1)[0];
            assert_eq!(publish(&second, &theirs, hash, 0), Publish::Published, "of {info:?}");
        }
        assert_eq!(check(&set), 0, "all blocks are there");
        RESUMED.store(true, Ordering::SeqCst);
        paused.join().expect("no panic");
        set
    });
    for round in 0..4 {
        assert_eq!(check(&set), 0, "pinned blocks stay as they are, round {round}");
        for (depth, hash) in (0..).zip(chain(&ns, 10 + round, 8)) {
            let _ = publish(&first, &ns, hash, depth);
        }
        first.tick();
        second.tick();
    }
    for pool in [&first, &second] {
        pool.gc().expect("no lock is held");
        let checked = pool.check(true).expect("no lock is held");
        assert_eq!((checked.damage.len(), checked.leaks.len()), (0, 0), "{checked:?}");
    }
}

/// Runs a test of this program alone, with a pause at a point.
fn alone_with_pause(test: &str, point: Point) {
    let mut alone = std::process::Command::new(std::env::current_exe().expect("this test"));
    alone.args(["--exact", test, "--ignored", "--nocapture"]);
    let ended = alone.env(PAUSE_AT, point.name()).stdin(Stdio::null()).output().expect("it starts");
    assert!(ended.status.success(), "{point}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// A host is paused in the table lock, and another one enters a key whose probe begins at the same
/// row, a namespace, and a lock of users. The late store replaced what it had entered.
#[test]
fn a_host_that_was_paused_in_the_table_lock_replaces_no_record_of_another() {
    for point in [Point::TableFound, Point::TableNamed] {
        alone_with_pause("hosts::paused_in_the_table_lock", point);
    }
}

/// Keys whose probes begin at one row of the table of 1,024.
fn keys_of_one_row(config: &PoolConfig) -> [String; 2] {
    let hasher = ChainHasher::new(&config.seed, &[0xff; 32]);
    let row = |key: &str| {
        let tokens: Vec<u32> = key.bytes().map(u32::from).collect();
        hasher.block(None, &tokens).words()[0] % 1024
    };
    let first = "first".to_owned();
    let other = (0..).map(|number| format!("key {number}")).find(|key| row(key) == row(&first));
    [first, other.expect("one of a thousand")]
}

type Hosted = Pool<Arc<Flushed>>;

/// A change that a host is paused in, one that another host makes meanwhile, and whether the latter
/// stands. Each change returns the number of what it was given.
struct Case {
    late: fn(&Hosted, &[String; 2]) -> Result<u16, PoolError>,
    meanwhile: fn(&Hosted, &[String; 2]) -> u16,
    stands: fn(&Hosted, &[String; 2]) -> bool,
}

fn other_is_there(pool: &Hosted, keys: &[String; 2]) -> bool {
    pool.get_object(&keys[1]).expect("a key") == Some(b"other".to_vec())
}

const CASES: [Case; 4] = [
    // A new key.
    Case {
        late: |pool, keys| pool.put_object(&keys[0], b"late").map(|()| 0),
        meanwhile: |pool, keys| pool.put_object(&keys[1], b"other").map_or(0, |()| 1),
        stands: other_is_there,
    },
    // A row that is cleared, behind which another key is entered.
    Case {
        late: |pool, keys| pool.destroy_object(&keys[0]).map(|_| 0),
        meanwhile: |pool, keys| pool.put_object(&keys[1], b"other").map_or(0, |()| 1),
        stands: other_is_there,
    },
    // A namespace.
    Case {
        late: |pool, _| pool.namespace(&record_of(7)).map(|of| of.id.0),
        meanwhile: |pool, _| pool.namespace(&record_of(8)).expect("rows are free").id.0,
        stands: |pool, _| pool.info().namespaces.iter().any(|of| of.label == record_of(8).label),
    },
    // A user lock.
    Case {
        late: |pool, _| pool.allocate_lock(),
        meanwhile: |pool, _| pool.allocate_lock().expect("locks are free"),
        stands: |_, _| true,
    },
];

fn record_of(model: u8) -> NamespaceRecord {
    let label = format!("model {model}");
    NamespaceRecord { fingerprint: [model; 32], label, block_bytes: BLOCK_BYTES, block_tokens: 16, num_layers: 1 }
}

#[test]
#[ignore = "the test before starts it, in a process whose fault points are its own"]
fn paused_in_the_table_lock() {
    static PAUSED: AtomicBool = AtomicBool::new(false);
    static RESUMED: AtomicBool = AtomicBool::new(false);
    let point: Point = std::env::var(PAUSE_AT).expect("another test starts this one").parse().expect("a point");
    let config = small_config(73);
    let keys = keys_of_one_row(&config);
    for (number, Case { late, meanwhile, stands }) in CASES.into_iter().enumerate() {
        let time = ManualTime::start();
        let fabric = without_coherence(2 << 20, &config);
        let host_timeout = Duration::from_secs(1);
        let [first, second] = [0, 1].map(|host| {
            let options = AttachOptions { host_timeout, clock: Some(time.clock()), ..private(host) };
            Pool::attach(Arc::clone(&fabric), &options).expect("each host has its slot")
        });
        if number == 1 {
            first.put_object(&keys[0], b"before").expect("there is room");
        }
        second.tick();
        [&PAUSED, &RESUMED].iter().for_each(|of| of.store(false, Ordering::SeqCst));
        fault::arm(Plan::first(point), |_| {
            PAUSED.store(true, Ordering::SeqCst);
            until("the end of the pause", || RESUMED.load(Ordering::SeqCst).then_some(()));
        });
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| late(&first, &keys));
            until("the pause", || PAUSED.load(Ordering::SeqCst).then_some(()));
            time.advance(2 * host_timeout);
            second.tick();
            assert_eq!(second.counter(Counter::HostsDeclaredDead), 1);
            let given = meanwhile(&second, &keys);
            RESUMED.store(true, Ordering::SeqCst);
            let done = paused.join().expect("no panic");
            assert_eq!(done.is_ok(), point == Point::TableNamed, "case {number}: {done:?}");
            assert_ne!(done.ok(), Some(given), "case {number}: one thing was given twice");
        });
        assert!(stands(&second, &keys), "{point}, case {number}: right after the late store");
        first.tick();
        second.tick();
        assert!(stands(&second, &keys) && stands(&first, &keys), "{point}, case {number}: after the return");
        assert!(late(&first, &keys).is_ok(), "{point}, case {number}: in its next life it may");
        for pool in [&first, &second] {
            pool.gc().expect("no lock is held");
            let checked = pool.check(true).expect("no lock is held");
            assert_eq!((checked.damage.len(), checked.leaks.len()), (0, 0), "{checked:?}");
        }
    }
}

/// Two machines kept the default slot, containers had a `/dev/shm` of their own, or the file of the
/// host's memory was removed: the newcomer cleared the pins of the first and overwrote its blocks.
#[test]
fn a_host_slot_is_of_one_host_memory() {
    for flush in [Flush::None, Flush::available()[0]] {
        let (region, time) = (Shared::for_flush("slot", flush), ManualTime::start());
        let _ending = Ending(time);
        let host_timeout = Duration::from_secs(1);
        let attach = || {
            let fabric = cenote_pool::open_region(&region.source, &MapOptions::default()).expect("it is there");
            Pool::attach(fabric, &AttachOptions { host_timeout, clock: Some(time.clock()), ..patient(0) })
        };
        let first = attach().expect("the slot is free");
        let ns = namespace(&first, 1, BLOCK_BYTES);
        let hashes = chain(&ns, 1, 2);
        for (depth, &hash) in (0..).zip(&hashes) {
            assert_eq!(publish(&first, &ns, hash, depth), Publish::Published);
        }
        let set = first.pin_rows(&first.lookup(&hashes));
        cenote_pool::remove_host_memory(&region.superblock).expect("it is ours");
        let refused = std::thread::scope(|scope| {
            let joins = scope.spawn(|| attach().map(drop));
            while !joins.is_finished() {
                first.tick();
            }
            joins.join().expect("no panic")
        });
        assert!(matches!(refused, Err(PoolError::HostInUse { host: 0 })), "{refused:?}");
        assert!(set.protects() && first.health() == Health::Ok, "{:?}", first.health());
        // Its heart stands still now.
        let second = std::thread::scope(|scope| {
            let joins = scope.spawn(attach);
            let mut waited = Duration::ZERO;
            while !joins.is_finished() {
                time.advance(host_timeout / 10);
                waited += host_timeout / 10;
                std::thread::yield_now();
            }
            assert!(waited >= host_timeout, "{waited:?}");
            joins.join().expect("no panic")
        });
        let second = second.expect("the first is silent");
        let theirs = namespace(&second, 1, BLOCK_BYTES);
        assert!(second.lookup(&hashes).iter().all(|hit| read(&second, hit) == ReadOutcome::Whole));
        assert!(!set.protects(), "the pins of the first are gone");
        assert_eq!(publish(&first, &ns, chain(&ns, 2, 1)[0], 0), Publish::NoRoom, "its heap is of an ended life");
        first.tick();
        assert!(matches!(first.health(), Health::Degraded { .. }), "{:?}", first.health());
        assert!(attach().is_ok(), "processes with the new memory join at once");
        drop((set, first));
        assert_eq!(publish(&second, &theirs, chain(&theirs, 3, 1)[0], 0), Publish::Published);
        let checked = second.check(true).expect("no lock is held");
        assert_eq!((checked.damage.len(), checked.leaks.len()), (0, 0), "{checked:?}");
        drop(second);
        cenote_pool::remove_host_memory(&region.superblock).expect("it is unused");
        assert!(attach().is_ok(), "all workers have left in order, so new memory need not wait");
    }
}
