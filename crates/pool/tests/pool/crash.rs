//! Workers die by SIGKILL, at every fault point and at random instants. Survivors must lose only
//! what the dead were writing.

use crate::support::shared::{Shared, attach, region_of_process};
use crate::support::*;
use cenote_base::BlockHash;
use cenote_base::fault::{Plan, Point};
use cenote_base::prng::Prng;
use cenote_base::testing::{PATIENCE, until};
use cenote_base::time::{Clock, TimeSource};
use cenote_mem::{Coherent, Flush, MapOptions, Mapping, ReadMapping, ReadOnly};
use cenote_pool::{
    AttachOptions, Counter, Event, Follower, Inspector, MemoryInfo, NewBlock, Publish, ReadOutcome, Record, history,
};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

const SIGKILL: i32 = 9;
/// A worker writes this byte when it has joined and worked a round. The test harness writes text
/// before it.
const ROUND: u8 = 1;

/// A clock that is slow, so that the half second for which an inspector waits for the end of a
/// change is [`PATIENCE`]: a busy machine may let a worker wait in the middle of one.
struct Slow;

impl TimeSource for Slow {
    fn now_ns(&self) -> u64 {
        Clock::system().now_ns() / (2 * PATIENCE.as_secs())
    }

    fn unix(&self) -> Duration {
        Clock::system().unix()
    }
}

/// A region in shared memory, removed after the test.
struct Region(Shared);

impl Region {
    fn new(test: &str, identity: u8) -> Self {
        Self(Shared::make(test, 2 << 20, small_config(identity), Flush::None))
    }

    fn attach(&self) -> TestPool {
        self.0.attach()
    }

    /// A view from outside, which does not join.
    fn inspector(&self) -> Inspector<Arc<ReadOnly>> {
        let mapping = ReadMapping::open(&self.0.source).expect("the region is there");
        let fabric = Arc::new(ReadOnly::new(mapping, Flush::None).expect("no instruction is needed"));
        let options = AttachOptions { clock: Some(Clock::of(&Slow)), ..AttachOptions::named("") };
        Inspector::open(&fabric, &options).expect("it is a region")
    }

    /// The host's memory, whether it is locked or not.
    fn host_file(&self) -> String {
        let hex: String = self.0.superblock.config.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("/dev/shm/cenote-{hex}-h0")
    }

    /// All bytes of the region and of its host's memory.
    fn bytes(&self) -> [Vec<u8>; 2] {
        let region = self.0.source.path().expect("shared memory has a path").into_os_string().into_string();
        [region.expect("UTF-8"), self.host_file()].map(|file| std::fs::read(file).unwrap_or_default())
    }

    fn worker(&self, fault: Option<Plan>) -> Child {
        let mut command = self.0.process("crash::worker", fault);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("the test starts itself")
    }
}

/// The process that the tests start and kill. It works until it is killed and writes a byte per
/// round.
#[test]
#[ignore = "the process that other tests start"]
fn worker() {
    let pool = attach(&region_of_process());
    let mut prng = Prng::new(u64::from(std::process::id()));
    let mut out = std::io::stdout();
    for round in 0_u64..100_000 {
        let ns = namespace(&pool, 1 + prng.below(2) as u8, BLOCK_BYTES);
        let hashes: Vec<BlockHash> = chain(&ns, prng.below(60) as u32, 4);
        let hits = pool.lookup(&hashes);
        let _pin = hits.first().and_then(|hit| pool.pin(hit));
        hits.iter().for_each(|hit| assert_ne!(read(&pool, hit), ReadOutcome::Damaged));
        if round % 2 == 0 {
            for (depth, &hash) in hashes.iter().enumerate().skip(hits.len()) {
                publish(&pool, &ns, hash, depth as u32);
            }
        } else {
            let payloads: Vec<Vec<u8>> = hashes.iter().map(|&hash| payload(hash, BLOCK_BYTES)).collect();
            let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [payload.as_slice()]).collect();
            let new = |(depth, &hash)| NewBlock::new(&ns, hash, depth);
            let blocks = (0..).zip(&hashes).map(new).zip(parts.iter().map(|parts| parts.as_slice()));
            pool.publish_all(&blocks.collect::<Vec<_>>());
        }
        let kept_bytes = vec![round as u8; BLOCK_BYTES as usize];
        if let Ok(kept) = pool.swap_out(&ns, &[&kept_bytes]) {
            let mut back = vec![0; BLOCK_BYTES as usize];
            assert_eq!(kept.read(&mut [&mut back]), ReadOutcome::Whole);
            assert!(back == kept_bytes);
        }
        if round % 8 == 0 {
            drop(pool.lock_user((round / 8 % 4) as u16, PATIENCE));
            let _ = pool.put_object(&format!("object {}", prng.below(4)), &round.to_le_bytes());
        }
        if round % 8 == 4 {
            use_memory(&pool, &mut prng);
            if let Ok(lock) = pool.allocate_lock() {
                pool.free_lock(lock).expect("this worker alone knows it");
            }
        }
        if round % 32 == 0 {
            pool.tick();
        }
        if out.write_all(&[ROUND]).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Allocates memory in an arena and in a slot, names some of it, and frees the rest.
fn use_memory(pool: &TestPool, prng: &mut Prng) {
    for bytes in [1 + prng.below(500), 5000] {
        let Ok(memory) = pool.allocate(bytes) else { continue };
        if prng.below(2) > 0 || pool.name_memory("memory", memory).is_err() {
            pool.free(memory).expect("this worker alone knows it");
        }
    }
}

/// Waits until a worker has worked `rounds` rounds.
fn await_rounds(worker: &mut Child, rounds: u64) {
    let out = worker.stdout.as_mut().expect("piped");
    let mut seen = 0;
    while seen < rounds {
        let mut byte = [0];
        out.read_exact(&mut byte).expect("it works until it is killed");
        seen += u64::from(byte == [ROUND]);
    }
}

fn expect_clean(pool: &TestPool, when: &str) {
    let report = pool.check(true).unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(report.is_clean(), "{when}: {report:?}");
    assert_eq!((report.reserved, report.pinned), (0, 0), "{when}");
}

/// Points that the worker does not pass: those of other crates, of several hosts (their stale lines
/// and locks), of an older region that is overwritten, of a full table of namespaces, of the plain
/// design and of repacking.
const ELSEWHERE: &[Point] = &[
    Point::ChunkAdopted,
    Point::ChunkMoved,
    Point::ChunkOffered,
    Point::EngineBlockSaved,
    Point::EngineHandOver,
    Point::EngineStep,
    Point::FormatCleared,
    Point::FormatWritten,
    Point::HostAreaAllocated,
    Point::HostAreaEmptied,
    Point::HostAreaHeader,
    Point::HostAreaSweeping,
    Point::HostMarked,
    Point::HostReborn,
    Point::LoadLayer,
    Point::LockLeft,
    Point::NamespaceReclaimed,
    Point::ReadUnseen,
    Point::RepackEmptied,
    Point::RepackReserved,
    Point::SavePage,
    Point::TortureIncrement,
];

/// Points that a worker passes at most once.
const ONCE_A_LIFE: &[Point] = &[
    Point::ChunkClaimed,
    Point::ChunkFound,
    Point::ChunkNamed,
    Point::JoinRebuilt,
    Point::JoinRegistered,
    Point::NamespaceNamed,
    Point::RecoverFreed,
    Point::RecoverScanned,
];

/// Of these, the points that only workers of a fresh region pass.
const ONCE_A_REGION: &[Point] =
    &[Point::ChunkClaimed, Point::ChunkFound, Point::ChunkNamed, Point::JoinRebuilt, Point::NamespaceNamed];

#[test]
fn a_death_at_any_point_leaves_nothing_that_survivors_cannot_use() {
    let region = Region::new("points", 21);
    let pool = region.attach();
    let ns = namespace(&pool, 1, BLOCK_BYTES);
    let mut follower = Follower::default();
    for &point in Point::ALL.iter().filter(|point| !ELSEWHERE.contains(point)) {
        for count in [1, 2, 5] {
            if count > 1 && ONCE_A_LIFE.contains(&point) {
                continue;
            }
            if ONCE_A_REGION.contains(&point) {
                let fresh = Region::new("fresh", 22);
                kill_at(&fresh, Plan { point, pass: count });
                expect_clean(&fresh.attach(), point.name());
                continue;
            }
            kill_at(&region, Plan { point, pass: count });
            let recovered = pool.tick();
            expect_own_memory_freed(&pool, point);
            assert!(recovered.workers <= 1, "{point}: {recovered:?}");
            expect_clean(&pool, &format!("{point}:{count}"));
            for prompt in 100..110 {
                for (depth, hash) in (0..).zip(chain(&ns, prompt, 4)) {
                    publish(&pool, &ns, hash, depth);
                }
                let hits = pool.lookup(&chain(&ns, prompt, 4));
                assert_eq!(hits.len(), 4, "{point}:{count}: survivors publish and find");
                assert!(hits.iter().all(|hit| read(&pool, hit) == ReadOutcome::Whole));
            }
            expect_told(&pool, &mut follower, &format!("{point}:{count}"));
        }
    }
    assert!(pool.counter(Counter::WorkersRecovered) > 10 && pool.counter(Counter::LocksAbandoned) > 3);
}

/// At most the piece that a dead worker was taking is left, and it can be listed and freed.
fn expect_own_memory_freed(pool: &TestPool, point: Point) {
    let left = pool.info().memory;
    assert!(left.pieces <= 1 && left.makers.iter().all(|of| of.alive == Some(false)), "{point}: {left:?}");
    assert_eq!(pool.free_memory_of(None, |_| false).expect("the table is free").pieces, left.pieces, "{point}");
    let _ = pool.destroy_object("memory").expect("a key");
    assert_eq!(pool.info().memory, MemoryInfo::default(), "{point}");
    // An arena may wait for the next collection.
    if point == Point::MemoryCounted || point == Point::MemoryFreed {
        pool.gc().expect("the locks are free");
    }
    assert_eq!(pool.check(false).expect("the locks are free").memory, 0, "{point}: slots are left");
}

/// A follower of the event log knows exactly the blocks that are there.
fn expect_told(pool: &TestPool, follower: &mut Follower, when: &str) {
    until(&format!("{when}: a line for each number"), || {
        pool.follow(follower).expect("the region keeps events");
        follower.is_settled().then_some(())
    });
    let told: Vec<_> = follower.all().collect();
    for block in &told {
        assert!(!pool.peek(&[block.hash]).is_empty(), "{when}: told of {block:?}, which is not there");
    }
    assert_eq!(told.len() as u64, pool.info().blocks_ready, "{when}");
}

fn kill_at(region: &Region, plan: Plan) {
    let mut child = region.worker(Some(plan));
    // Reading to the end drains the pipe and returns when the process is gone.
    let mut progress = Vec::new();
    child.stdout.take().expect("piped").read_to_end(&mut progress).expect("a pipe");
    let status = child.wait().expect("it ran");
    assert_eq!(status.signal(), Some(SIGKILL), "{plan} was never reached: {status}");
}

/// Each death, its place and its detection can be read when no process lives and the hosts' memory
/// is gone too.
#[test]
fn history_outlives_all_processes() {
    let region = Region::new("history", 25);
    let pool = region.attach();
    let mut child = region.worker(None);
    await_rounds(&mut child, 3);
    let victim = child.id();
    child.kill().expect("it can be killed");
    child.wait().expect("it ran");
    assert_eq!(pool.tick().workers, 1);
    kill_at(&region, Plan { point: Point::IndexCounted, pass: 2 });
    // The next holder of a lock of the shard learns that the last one died inside.
    pool.gc().expect("no lock is held");
    drop(pool);
    cenote_pool::remove_host_memory(&region.0.superblock).expect("it is unused");

    let mapping = Mapping::open(&region.0.source, &MapOptions::default()).expect("the region is there");
    let records = history(&Coherent::new(mapping)).expect("it is a region");
    assert!(records.is_sorted_by_key(|record| record.time_us));
    let of = |event| records.iter().filter(move |record| record.event == event);
    assert!(of(Event::Attached).any(|record| record.pid == victim && record.slot == Some(1)), "{records:#?}");
    let found = of(Event::WorkerDead).next().expect("it was found");
    assert_eq!((found.pid, found.operands), (std::process::id(), [1, u64::from(victim)]));
    assert!(found.what.contains(&format!("process {victim}")), "{found:?}");
    let is_ours = |record: &&Record| record.pid == std::process::id();
    // The first victim may have died inside a lock as well.
    let is_shard = |record: &Record| record.what.contains("index shard") && record.what.contains("a probe from bucket");
    assert!(of(Event::LockRepaired).filter(is_ours).any(is_shard), "{records:#?}");
    assert_eq!(of(Event::Collected).count(), 1);
    assert_eq!(records.last().map(|record| (record.event, record.pid)), Some((Event::Left, std::process::id())));
}

/// Earlier, a region that was removed by hand left its host's memory forever: only `destroy` knew
/// its name.
#[test]
fn memory_of_regions_that_are_gone_is_swept() {
    let region = Region::new("swept", 29);
    let other = Region::new("sweeper", 30);
    let exists = || std::path::Path::new(&region.host_file()).exists();
    let mut worker = region.worker(None);
    await_rounds(&mut worker, 2);
    Mapping::remove(&region.0.source).expect("it is ours");
    drop(other.attach());
    assert!(exists(), "a process works with it");
    await_rounds(&mut worker, 1);
    worker.kill().expect("it can be killed");
    worker.wait().expect("it ran");
    // Another test may be sweeping it at this moment.
    until("memory that no process can use any more is swept", || {
        drop(other.attach());
        (!exists()).then_some(())
    });
    assert!(std::path::Path::new(&other.host_file()).exists(), "the region of this one is there");
}

/// A reservation of a dead worker was charged.
#[test]
fn quotas_hold_while_workers_die() {
    let region = Region::new("quotas", 28);
    let pool = region.attach();
    let quota = 12 * BLOCK_BYTES;
    let spaces = [1, 2].map(|model| namespace(&pool, model, BLOCK_BYTES));
    spaces.iter().for_each(|ns| pool.set_quota(ns.id, quota).expect("the row is there"));
    for point in ["publish.reserved:7", "publish.ready:5", "publish.indexed:4", "evict.marked:3", "evict.unlinked:2"] {
        kill_at(&region, point.parse().expect("a plan"));
        let report = region.inspector().check(false);
        assert!(report.is_clean(), "{point}: {report:#?}");
        assert_eq!(pool.tick().workers, 1);
        expect_clean(&pool, point);
        for prompt in 200..220 {
            for ns in &spaces {
                let outcome = publish(&pool, ns, chain(ns, prompt, 1)[0], 0);
                assert_ne!(outcome, Publish::OverQuota, "{point}: it makes room for itself");
                let _ = pool.lookup(&chain(ns, prompt, 1));
            }
        }
        let used: Vec<u64> = pool.info().namespaces.iter().map(|row| row.used_bytes).collect();
        assert_eq!(used, [quota; 2], "{point}");
        pool.evict(24);
    }
    assert_eq!(pool.counter(Counter::QuotaRefused), 0);
}

/// Earlier, a check joined the region, and so changed what it reported.
#[test]
fn a_check_changes_nothing_and_needs_no_process() {
    let region = Region::new("check", 26);
    for point in ["publish.payload:9", "evict.marked:2", "index.counted:3", "object.named:1", "evict.unlinked:3"] {
        kill_at(&region, point.parse().expect("a plan"));
        let before = region.bytes();
        assert!(!before[1].is_empty());
        let report = region.inspector().check(true);
        assert!(report.is_clean() && report.leaked_bytes == 0, "{point}: {report:#?}");
        assert_eq!((report.reserved, report.pinned), (0, 0), "{point}: the dead hold nothing");
        assert!(report.payloads_verified >= report.ready, "{point}: {report:?}");
        let dead = report.pending.iter().find(|finding| finding.what == "worker slot 0 of host 0").expect("it is told");
        assert!(dead.fact.contains("is dead") && dead.repair.contains("next worker that attaches"), "{dead:?}");
        let info = region.inspector().info();
        assert_eq!(info.workers.iter().map(|worker| worker.alive).collect::<Vec<_>>(), [Some(false)], "{point}");
        assert_eq!((info.hosts.len(), info.hosts[0].alive, info.hosts[0].workers), (1, Some(false), 1), "{point}");
        assert!(region.bytes() == before, "{point}: a look changed something");

        // As after a reboot: only the region is left.
        std::fs::remove_file(region.host_file()).expect("it is unused");
        let alone = region.inspector().check(true);
        assert!(alone.is_clean() && alone.pinned == 0, "{point}: {alone:#?}");
        assert!(alone.pending.iter().any(|finding| finding.what == dead.what), "{point}: {alone:#?}");
        // The blocks of the call in which the worker died.
        assert!(alone.slots == report.slots && alone.ready.abs_diff(report.ready) <= 4, "{report:?}, {alone:?}");
        assert_eq!(region.bytes(), [before[0].clone(), Vec::new()], "{point}: a look changed something");
        // The next worker that attaches recovers what was pending. Its memory is new, so it waits until
        // the heart of the dead worker's host has stood still.
        let options = cenote_pool::AttachOptions { host_timeout: std::time::Duration::from_millis(1), ..patient(0) };
        let mapping = Mapping::open(&region.0.source, &MapOptions::default()).expect("the region is there");
        let fabric = std::sync::Arc::new(Coherent::new(mapping));
        let pool = cenote_pool::Pool::attach(fabric, &options).expect("it attaches");
        let settled = region.inspector().check(true);
        assert!(settled.is_clean() && settled.pending.is_empty(), "{point}: {settled:#?}");
        assert_eq!(region.inspector().info().hosts[0].alive, Some(true));
        drop(pool);
    }
}

#[test]
fn a_check_is_clean_while_others_work_and_die() {
    let region = Region::new("checks", 27);
    let mut workers: Vec<Child> = (0..2).map(|_| region.worker(None)).collect();
    workers.iter_mut().for_each(|worker| await_rounds(worker, 1));
    for look in 0..40 {
        let report = region.inspector().check(look % 4 == 0);
        assert!(report.is_clean(), "look {look}: {report:#?}");
        let worker = &mut workers[look % 2];
        await_rounds(worker, 1);
        if look % 8 == 7 {
            worker.kill().expect("it can be killed");
            worker.wait().expect("it ran");
            let report = region.inspector().check(false);
            assert!(report.is_clean(), "after death {look}: {report:#?}");
            workers[look % 2] = region.worker(None);
            await_rounds(&mut workers[look % 2], 1);
        }
    }
    for worker in &mut workers {
        worker.kill().expect("it can be killed");
        worker.wait().expect("it ran");
    }
}

/// Earlier, a recoverer that died had already cleared the dead worker's line, so what both had left
/// was never recovered.
#[test]
fn a_recoverer_may_die_too() {
    let region = Region::new("recoverer", 24);
    let pool = region.attach();
    for point in [Point::RecoverScanned, Point::RecoverFreed] {
        // The first pass is for its own slot when it joins, the second for the first dead worker
        // that it meets.
        let mut recoverer = region.worker(Some(Plan { point, pass: 2 }));
        await_rounds(&mut recoverer, 1);
        kill_at(&region, Plan { point: Point::PublishPayload, pass: 3 });
        recoverer.stdout.take().expect("piped").read_to_end(&mut Vec::new()).expect("a pipe");
        assert_eq!(recoverer.wait().expect("it ran").signal(), Some(SIGKILL), "{point}");
        assert_eq!(pool.tick().workers, 2, "{point}: both are seen");
        expect_clean(&pool, point.name());
    }
}

#[test]
fn deaths_at_random_instants_leak_nothing() {
    let region = Region::new("random", 23);
    let pool = region.attach();
    let mut prng = Prng::new(5);
    let mut workers: Vec<Child> = (0..3).map(|_| region.worker(None)).collect();
    for death in 0..24 {
        let victim = &mut workers[death % 3];
        await_rounds(victim, 1 + prng.below(300));
        victim.kill().expect("it can be killed");
        victim.wait().expect("it ran");
        pool.tick();
        workers[death % 3] = region.worker(None);
    }
    for worker in &mut workers {
        worker.kill().expect("it can be killed");
        worker.wait().expect("it ran");
    }
    pool.tick();
    expect_clean(&pool, "after all deaths");
    assert!(pool.counter(Counter::WorkersRecovered) >= 24);
    assert_eq!(pool.counter(Counter::ReadsDamaged), 0);
    assert_eq!(pool.info().workers.len(), 1, "only this process is left");
}
