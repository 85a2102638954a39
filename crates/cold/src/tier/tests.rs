use super::*;
use crate::backend::{Refreshed, Sealed};
use crate::disk::{Fault, Faults, FaultyDisk};
use crate::extent::{Extents, ExtentsConfig};
use crate::record::{Aligned, Sums};
use crate::servers::Servers;
use crate::tier::queue::WAITING_MAX;
use crate::tier::writer::{BATCH, LOOK_EVERY, RETRY_AFTER};
use cenote_base::BlockHash;
use cenote_base::testing::redis::Server;
use cenote_base::testing::{ManualTime, until};
use std::collections::HashMap;
use std::path::Path;

const LENGTH: usize = 4096;
/// No test's requests wait for so long, except where it says so.
const DEADLINE: Duration = Duration::from_secs(20);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// A region that is a map.
#[derive(Default)]
struct Map(Arc<Mutex<HashMap<Name, Vec<u8>>>>, Totals);

/// Counts of all processes, by counter.
type Totals = Arc<Mutex<[u64; Count::ALL.len()]>>;

fn head(name: &Name) -> Head {
    Head { name: *name, length: LENGTH as u64, depth: 1, encoding: 0, names: [3, 4] }
}

impl Upper for Map {
    fn describe(&self, name: &Name) -> Option<Head> {
        self.0.lock().expect("no panic").contains_key(name).then(|| head(name))
    }

    fn copy(&self, head: &Head, payload: &mut [u8]) -> bool {
        let map = self.0.lock().expect("no panic");
        map.get(&head.name).map(|bytes| payload.copy_from_slice(bytes)).is_some()
    }

    fn publish(&self, found: &Head, payload: &[u8]) -> bool {
        assert_eq!(*found, head(&found.name));
        self.0.lock().expect("no panic").insert(found.name, payload.to_vec());
        true
    }

    fn coldest(&self) -> Vec<Name> {
        self.0.lock().expect("no panic").keys().copied().collect()
    }

    fn tokens(&self, _: &Name) -> u64 {
        16
    }

    fn length_max(&self, _: &Name) -> u64 {
        LENGTH as u64
    }

    fn count(&self, count: Count, by: u64) {
        self.1.lock().expect("no panic")[count as usize] += by;
    }
}

fn name(number: u64) -> Name {
    let mut hash = [1; 16];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    Name { namespace: [2; 32], hash: BlockHash(hash) }
}

fn payload(number: u64) -> Vec<u8> {
    (0..LENGTH as u64).map(|at| (number * 7 + at * 3) as u8).collect()
}

/// A tier on time that passes only where a test says so.
struct World {
    /// Dropped first, so that a test that fails does not wait for a disk that hangs.
    _healed: Healed,
    map: Arc<Mutex<HashMap<Name, Vec<u8>>>>,
    totals: Totals,
    faults: Arc<Faults>,
    time: &'static ManualTime,
    tier: Tier,
}

struct Healed(Arc<Faults>);

impl Drop for Healed {
    fn drop(&mut self) {
        self.0.heal();
    }
}

fn world(directory: &Path, write: WriteBehind) -> World {
    let time = ManualTime::start();
    let faults = Arc::new(Faults::new(time.clock()));
    let disk = Arc::new(FaultyDisk::new(Arc::clone(&faults)));
    let extents =
        Extents::new(ExtentsConfig { directory: directory.to_owned(), bytes: Some(64 << 20) }, disk, time.clock());
    world_above(Box::new(extents), faults, time, write)
}

fn world_above(backend: Box<dyn Backend>, faults: Arc<Faults>, time: &'static ManualTime, write: WriteBehind) -> World {
    let map = Map::default();
    let config = TierConfig { seed: HashSeed([9; 32]), seal: None, write, deadline: DEADLINE, clock: time.clock() };
    let (entries, totals) = (Arc::clone(&map.0), Arc::clone(&map.1));
    let tier = Tier::start(Box::new(map), backend, config);
    until("it lists", || tier.is_listed().then_some(()));
    World { _healed: Healed(Arc::clone(&faults)), map: entries, totals, faults, time, tier }
}

/// Does work that must end although none of the tier's time passes.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let working = std::thread::spawn(work);
    until(what, || working.is_finished().then_some(()));
    working.join().expect("no panic")
}

/// Waits for a promotion. Returns whether every block was published or failed.
fn arrives(promotion: &Promotion) -> bool {
    until("the reads end", || promotion.is_over().then_some(()));
    promotion.wait()
}

impl World {
    fn put(&self, numbers: std::ops::Range<u64>) {
        self.map.lock().expect("no panic").extend(numbers.clone().map(|number| (name(number), payload(number))));
        self.tier.offer(numbers.map(name));
    }

    /// Waits until all offered blocks are written or dropped.
    fn settle(&self) {
        until("no block waits", || self.tier.settle(self.time.clock().at(0)).then_some(()));
    }

    fn count(&self, numbers: std::ops::Range<u64>) -> usize {
        self.tier.count(&numbers.map(name).collect::<Vec<_>>())
    }

    fn value(&self, counter: &str) -> u64 {
        self.tier.stats()[counter] as u64
    }

    fn promote(&self, numbers: std::ops::Range<u64>) -> Promotion {
        self.tier.promote(&numbers.map(name).collect::<Vec<_>>()).expect("they are listed")
    }
}

#[test]
fn offered_blocks_return_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = world(directory.path(), WriteBehind::Published);
    first.put(0..200);
    ends("the drop writes what is waiting", || drop(first));
    let second = world(directory.path(), WriteBehind::Published);
    let names: Vec<Name> = (0..200).map(name).collect();
    assert_eq!(second.tier.count(&names), 200);
    assert!(arrives(&second.promote(0..200)), "all are read");
    let map = second.map.lock().expect("no panic");
    assert!((0..200).all(|number| map[&name(number)] == payload(number)));
    drop(map);
    assert_eq!((second.value("cold_hits_total"), second.value("cold_misses_total")), (200, 0));
    assert_eq!(second.value("cold_read_bytes_total"), 200 * LENGTH as u64);
    second.tier.offer(names);
    assert_eq!(second.value("cold_duplicates_total"), 200);
}

#[test]
fn cold_blocks_are_written_without_an_offer() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Cold);
    world.put(0..20);
    until("cold blocks are written", || {
        world.time.advance(LOOK_EVERY);
        (world.value("cold_written_total") >= 20).then_some(())
    });
    assert_eq!(world.count(0..20), 20);
}

#[test]
fn a_full_disk_costs_blocks_and_no_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = Arc::new(world(directory.path(), WriteBehind::Published));
    world.put(0..10);
    world.settle();
    world.faults.set(Fault::Full);
    world.put(100..200);
    let value = |counter: &str| world.value(&format!("cold_{counter}"));
    let error = until("a write fails", || world.tier.last_error());
    assert!(error.contains("no space"), "{error}");
    // The writer pauses now, so offers that waited for it would not end.
    let offering = Arc::clone(&world);
    ends("offers do not wait for the writer", move || {
        offering.put(200..1100);
        // The region has none of these when it is their turn.
        (11..1000).for_each(|batch| offering.tier.offer((batch * 100..batch * 100 + 100).map(name)));
    });
    assert_eq!(world.count(0..10), 10, "what is written stays readable");
    let (failed, waiting) = (BATCH as u64, WAITING_MAX as u64);
    assert_eq!((value("dropped_failed_total"), value("errors_full_total")), (failed, 1));
    assert_eq!((value("write_queue"), value("dropped_busy_total")), (waiting, 99_900 - failed - waiting));
    world.faults.heal();
    until("the queue drains when the disk has space", || {
        world.time.advance(RETRY_AFTER);
        world.tier.settle(world.time.clock().at(0)).then_some(())
    });
    let written = 1000 - failed;
    assert_eq!((value("written_total"), value("dropped_gone_total")), (10 + written, waiting - written));
    assert_eq!(value("dropped_failed_total"), failed);
}

#[test]
fn a_stuck_disk_passes_the_deadline_and_refuses_the_next() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.put(0..50);
    world.settle();
    world.faults.set(Fault::Stuck);
    let promotion = world.promote(0..50);
    until("a read hangs", || world.faults.was_hit().then_some(()));
    world.time.advance(DEADLINE - NANOSECOND);
    assert!(!promotion.is_over());
    assert_eq!(world.count(0..50), 50, "the disk is slow, and not too slow");
    world.time.advance(NANOSECOND);
    assert!(promotion.is_over() && !promotion.wait());
    // Reads that hang keep later requests from waiting.
    world.time.advance(NANOSECOND);
    assert_eq!((world.count(0..50), world.value("cold_errors_slow_total")), (0, 1));
    world.faults.heal();
    until("late blocks are counted", || (world.value("cold_late_total") == 50).then_some(()));
    assert_eq!(world.count(0..50), 50, "the disk is used again");
}

#[test]
fn a_damaged_block_is_a_counted_miss_and_leaves_the_list() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = world(directory.path(), WriteBehind::Published);
    first.put(0..3);
    ends("the drop writes what is waiting", || drop(first));
    for entry in std::fs::read_dir(directory.path()).expect("a directory") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|end| end == "extent") {
            let mut bytes = std::fs::read(&path).expect("it is there");
            let last = bytes.len() - 4096;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).expect("it is written");
        }
    }
    let second = world(directory.path(), WriteBehind::Published);
    assert!(arrives(&second.promote(0..3)));
    assert_eq!((second.value("cold_hits_total"), second.value("cold_misses_total")), (2, 1));
    assert_eq!(second.tier.counters().errors(crate::ErrorKind::Damaged), 1);
    assert_eq!(second.count(0..3), 2);
    assert_eq!(second.tier.counters().get(Count::Hits), 2);
}

#[test]
fn two_requests_for_a_block_read_it_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.put(0..1);
    world.settle();
    world.faults.set(Fault::Stuck);
    let first = world.promote(0..1);
    let second = world.promote(0..1);
    world.faults.heal();
    assert!(arrives(&first) && arrives(&second));
    assert_eq!(world.value("cold_hits_total"), 1);
}

/// Everything offered is written, dropped or waiting; a process that dies leaves the difference.
#[test]
fn counters_of_all_processes_outlive_a_tier() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.put(0..100);
    world.tier.offer((50..100).map(name));
    world.tier.offer([name(1000)]);
    world.settle();
    let World { totals, tier, .. } = world;
    ends("the threads end", || drop(tier));
    let of = |count: Count| totals.lock().expect("no panic")[count as usize];
    assert_eq!((of(Count::Offered), of(Count::Written), of(Count::DroppedGone)), (151, 100, 1));
    assert_eq!((of(Count::Duplicates), of(Count::WrittenBytes)), (50, 100 * LENGTH as u64));
}

#[test]
fn computing_that_is_faster_than_the_disk_wins() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.put(0..10);
    world.settle();
    // Some reads take a millisecond.
    world.faults.set(Fault::Stuck);
    let promotion = world.promote(0..10);
    until("a read hangs", || world.faults.was_hit().then_some(()));
    world.time.advance(Duration::from_millis(1));
    world.faults.heal();
    assert!(arrives(&promotion));
    // Sixteen tokens in a nanosecond.
    world.tier.has_computed(16, 1);
    assert!(world.tier.promote(&(0..10).map(name).collect::<Vec<_>>()).is_none());
    assert_eq!(world.value("cold_reads_skipped_total"), 10);
    world.put(10..20);
    world.settle();
    assert_eq!((world.value("cold_skipped_total"), world.count(10..20)), (10, 0));
}

/// A thread that the disk keeps is left behind.
#[test]
fn a_tier_on_a_stuck_disk_ends_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.put(0..10);
    world.settle();
    world.faults.set(Fault::Stuck);
    let promotion = world.promote(0..10);
    until("a read hangs", || world.faults.was_hit().then_some(()));
    world.put(10..100);
    let World { tier, faults, time, .. } = world;
    let shared = Arc::clone(&tier.shared);
    let dropping = std::thread::spawn(move || drop(tier));
    until("the tier ends", || shared.queue.is_closed().then_some(()));
    time.advance(JOIN_TIMEOUT - NANOSECOND);
    assert!(!dropping.is_finished(), "it leaves threads behind too early");
    time.advance(NANOSECOND);
    until("the threads are left behind", || dropping.is_finished().then_some(()));
    assert!(!promotion.is_over());
    faults.heal();
    assert!(arrives(&promotion), "its reads end without the tier");
}

#[test]
fn a_tier_that_ends_drops_what_it_cannot_write_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.faults.set(Fault::Stuck);
    world.put(0..10);
    until("a write hangs", || world.faults.was_hit().then_some(()));
    world.put(10..60);
    let World { tier, faults, time, totals, .. } = world;
    let shared = Arc::clone(&tier.shared);
    let dropping = std::thread::spawn(move || drop(tier));
    until("the tier ends", || shared.queue.is_closed().then_some(()));
    time.advance(FAREWELL);
    faults.heal();
    until("the threads end", || dropping.is_finished().then_some(()));
    let of = |count: Count| totals.lock().expect("no panic")[count as usize];
    assert_eq!((of(Count::Offered), of(Count::Written), of(Count::DroppedBusy)), (60, 10, 50));
}

/// The child inherits locks that a thread of its parent may hold, and none of the threads.
#[test]
fn a_forked_child_never_waits_for_its_parents_tier() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published);
    world.put(0..10);
    world.settle();
    // Held across the fork, as by a thread of the parent.
    let (reads, ladder) = (world.tier.shared.reads.hold(), world.tier.shared.ladder());
    let status = cenote_mem::fork::run_in_child(|| {
        let names: Vec<Name> = (0..10).map(name).collect();
        world.tier.offer(names.iter().copied());
        world.tier.has_computed(16, 1);
        let has_none = world.tier.promote(&names).is_none() && world.tier.count(&names) == 0;
        let later = world.time.clock().after(DEADLINE);
        let is_mute = !world.tier.settle(later) && !world.tier.wait_open(later) && world.tier.last_error().is_none();
        u8::from(!(has_none && is_mute && world.tier.stats()["cold_written_total"] == 10.0))
    });
    drop((reads, ladder));
    assert_eq!(status.expect("it ends before it is killed"), 0);
    assert!(arrives(&world.promote(0..10)));
}

/// A place whose list is read in steps that a test ends.
struct Long {
    extents: Extents,
    has_more: Arc<AtomicBool>,
}

impl Backend for Long {
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError> {
        self.extents.open(seed)
    }

    fn length(&self, name: &Name) -> Option<u64> {
        self.extents.length(name)
    }

    fn used(&self) -> Used {
        self.extents.used()
    }

    fn survey(&self) -> Result<Used, ColdError> {
        self.extents.survey()
    }

    fn read(&self, name: &Name, length_max: u64, record: &mut Aligned) -> Result<Head, ColdError> {
        self.extents.read(name, length_max, record)
    }

    fn write(&self, records: &[Sealed<'_>], bytes: &[u8]) -> Result<(), ColdError> {
        self.extents.write(records, bytes)
    }

    fn refresh(&self) -> Result<Refreshed, ColdError> {
        let has_more = self.has_more.load(Ordering::Acquire);
        Ok(Refreshed { has_more, ..self.extents.refresh()? })
    }

    fn sync(&self) -> Result<(), ColdError> {
        self.extents.sync()
    }

    fn resize(&self, bytes_max: u64) -> Result<(), ColdError> {
        self.extents.resize(bytes_max)
    }
}

/// A place whose list took minutes was not used, and a list that took longer was never complete.
#[test]
fn a_place_is_used_while_its_list_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let (time, map, has_more) = (ManualTime::start(), Map::default(), Arc::new(AtomicBool::new(true)));
    let config = ExtentsConfig { directory: directory.path().to_owned(), bytes: None };
    let extents = Extents::new(config, Arc::new(crate::disk::LocalDisk), time.clock());
    let long = Long { extents, has_more: Arc::clone(&has_more) };
    map.0.lock().expect("no panic").extend((0..100).map(|number| (name(number), payload(number))));
    let config = TierConfig {
        seed: HashSeed([9; 32]),
        seal: None,
        write: WriteBehind::Published,
        deadline: DEADLINE,
        clock: time.clock(),
    };
    let tier = Tier::start(Box::new(map), Box::new(long), config);
    tier.offer((0..100).map(name));
    until("blocks are written", || (tier.stats()["cold_written_total"] == 100.0).then_some(()));
    assert!(tier.is_open() && !tier.is_listed() && !tier.wait_open(time.clock().at(0)));
    let promotion = tier.promote(&(0..100).map(name).collect::<Vec<_>>()).expect("they are listed");
    assert!(arrives(&promotion));
    has_more.store(false, Ordering::Release);
    until("the list is complete", || tier.is_listed().then_some(()));
    assert!(tier.wait_open(time.clock().at(0)));
}

/// A place without a list: it knows what it was asked.
#[derive(Default)]
struct Asked {
    records: Mutex<HashMap<Name, Vec<u8>>>,
    known: Mutex<HashMap<Name, bool>>,
    questions: Mutex<Vec<usize>>,
    is_down: AtomicBool,
}

impl Asked {
    fn slow(&self) -> Result<(), ColdError> {
        let at = "test".to_owned();
        if self.is_down.load(Ordering::SeqCst) { Err(ColdError::Slow { at, ms: 1 }) } else { Ok(()) }
    }
}

impl Backend for Arc<Asked> {
    fn open(&self, _: &HashSeed) -> Result<(), ColdError> {
        Ok(())
    }

    fn length(&self, name: &Name) -> Option<u64> {
        let is_there = self.known.lock().expect("no panic").get(name) == Some(&true);
        is_there.then(|| crate::record::record_bytes(LENGTH as u64))
    }

    fn may_have(&self, name: &Name) -> bool {
        self.known.lock().expect("no panic").get(name) != Some(&false)
    }

    fn ask(&self, names: &[Name], _: bool) -> Result<(), ColdError> {
        self.slow()?;
        self.questions.lock().expect("no panic").push(names.len());
        let records = self.records.lock().expect("no panic");
        self.known.lock().expect("no panic").extend(names.iter().map(|name| (*name, records.contains_key(name))));
        Ok(())
    }

    fn used(&self) -> Used {
        Used::default()
    }

    fn survey(&self) -> Result<Used, ColdError> {
        Ok(Used::default())
    }

    fn read(&self, name: &Name, _: u64, memory: &mut Aligned) -> Result<Head, ColdError> {
        self.slow()?;
        let records = self.records.lock().expect("no panic");
        let bytes = records.get(name).ok_or_else(|| ColdError::Gone("test".to_owned()))?;
        memory.resize(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        Ok(Sums::of(&HashSeed([9; 32])).open(memory.bytes_mut(), Some(name), "test")?.0)
    }

    fn write(&self, records: &[Sealed<'_>], _: &[u8]) -> Result<(), ColdError> {
        self.slow()?;
        let written = records.iter().map(|record| (record.head.name, record.bytes.to_vec()));
        self.records.lock().expect("no panic").extend(written);
        Ok(())
    }

    fn refresh(&self) -> Result<Refreshed, ColdError> {
        Ok(Refreshed::default())
    }

    fn sync(&self) -> Result<(), ColdError> {
        Ok(())
    }

    fn resize(&self, _: u64) -> Result<(), ColdError> {
        Ok(())
    }
}

/// A list of a shared server's keys would need a scan of all of them.
#[test]
fn a_place_without_a_list_is_asked_by_a_reader() {
    let (time, asked) = (ManualTime::start(), Arc::<Asked>::default());
    let start = || {
        let map = Map::default();
        let config = TierConfig {
            seed: HashSeed([9; 32]),
            seal: None,
            write: WriteBehind::Published,
            deadline: DEADLINE,
            clock: time.clock(),
        };
        let entries = Arc::clone(&map.0);
        let tier = Tier::start(Box::new(map), Box::new(Arc::clone(&asked)), config);
        until("it lists", || tier.is_listed().then_some(()));
        (tier, entries)
    };
    let names = |numbers: std::ops::Range<u64>| numbers.map(name).collect::<Vec<_>>();
    let (tier, map) = start();
    map.lock().expect("no panic").extend((0..3).map(|number| (name(number), payload(number))));
    tier.offer(names(0..3));
    until("they are written", || tier.settle(time.clock().at(0)).then_some(()));
    tier.offer(names(0..3));
    until("they are asked for", || tier.settle(time.clock().at(0)).then_some(()));
    let value = |tier: &Tier, count: Count| tier.counters().get(count);
    assert_eq!([Count::Written, Count::Duplicates].map(|count| value(&tier, count)), [3, 3], "another one wrote them");
    drop(tier);
    // The next process knows of none.
    asked.known.lock().expect("no panic").clear();
    let (tier, map) = start();
    assert_eq!((tier.count(&names(0..5)), tier.may_have(&names(0..5))), (0, 5));
    assert!(arrives(&tier.promote(&names(0..5)).expect("the place may have them")));
    assert_eq!(map.lock().expect("no panic").len(), 3);
    let counts =
        |tier: &Tier| [Count::Found, Count::Hits, Count::Misses, Count::Errors].map(|count| value(tier, count));
    assert_eq!(counts(&tier), [3, 3, 0, 0]);
    assert_eq!((tier.count(&names(0..5)), tier.may_have(&names(0..5))), (3, 3));
    assert!(tier.promote(&names(3..5)).is_none(), "it has said that they are not there");
    // Listed blocks are read without a question.
    let questions = asked.questions.lock().expect("no panic").len();
    assert!(arrives(&tier.promote_any(&names(0..5)).expect("three are listed")));
    assert_eq!((asked.questions.lock().expect("no panic").len(), value(&tier, Count::Hits)), (questions, 6));
    assert!(arrives(&tier.promote_any(&names(4..9)).expect("the place may have some")));
    assert_eq!(asked.questions.lock().expect("no panic").last(), Some(&4));
    // One that fails is a counted error, and the request computes.
    asked.is_down.store(true, Ordering::SeqCst);
    assert!(arrives(&tier.promote(&names(20..22)).expect("it may have them")));
    assert_eq!(counts(&tier), [6, 6, 0, 1]);
}

#[test]
fn what_a_server_evicts_is_no_error_and_one_that_is_down_drops_each_block_once() {
    let Some(mut server) = Server::start(&[]) else { return };
    let time = ManualTime::start();
    let address = server.url().parse().expect("a URL");
    let servers = Servers::new(&address, DEADLINE, time.clock()).expect("threads start");
    let faults = Arc::new(Faults::new(time.clock()));
    let world = world_above(Box::new(servers), faults, time, WriteBehind::Published);
    world.put(0..3);
    world.settle();
    assert_eq!((world.value("cold_written_total"), world.count(0..3)), (3, 3));
    assert_eq!(server.ask(&["FLUSHALL"]), "OK");
    assert!(arrives(&world.promote(0..3)), "they fail");
    let values = |names: [&str; 2]| names.map(|name| world.value(name));
    assert_eq!(values(["cold_misses_total", "cold_errors_total"]), [3, 0]);
    assert_eq!((world.tier.recent_error(), world.tier.last_error()), (None, None));
    server.kill();
    world.put(3..8);
    until("they are dropped, and the writer pauses", || {
        (values(["cold_dropped_failed_total", "cold_errors_total"]) == [5, 1]).then_some(())
    });
}
