use super::*;
use crate::disk::{Fault, Faults, FaultyDisk};
use crate::extent::{Extents, ExtentsConfig};
use cenote_base::{BlockHash, Clock};
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

const LENGTH: usize = 4096;

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

struct World {
    map: Arc<Mutex<HashMap<Name, Vec<u8>>>>,
    totals: Totals,
    faults: Arc<Faults>,
    tier: Tier,
}

fn world(directory: &Path, write: WriteBehind, deadline: Duration) -> World {
    let (map, faults) = (Map::default(), Arc::new(Faults::default()));
    let disk = Arc::new(FaultyDisk::new(Arc::clone(&faults)));
    let extents = Extents::new(ExtentsConfig::new(directory.to_owned(), 64 << 20), disk);
    let config = TierConfig { seed: HashSeed([9; 32]), write, deadline };
    let (entries, totals) = (Arc::clone(&map.0), Arc::clone(&map.1));
    let tier = Tier::start(Box::new(map), Box::new(extents), config);
    assert!(tier.wait_open(soon()), "it opens");
    World { map: entries, totals, faults, tier }
}

fn soon() -> Deadline {
    Clock::system().after(Duration::from_secs(20))
}

impl World {
    fn put(&self, numbers: std::ops::Range<u64>) {
        self.map.lock().expect("no panic").extend(numbers.clone().map(|number| (name(number), payload(number))));
        self.tier.offer(numbers.map(name));
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
    let first = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    first.put(0..200);
    // The drop writes what is waiting.
    drop(first);
    let second = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    let names: Vec<Name> = (0..200).map(name).collect();
    assert_eq!(second.tier.count(&names), 200);
    assert!(second.promote(0..200).wait(), "all are read");
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
    let world = world(directory.path(), WriteBehind::Cold, Duration::from_secs(20));
    world.put(0..20);
    let end = Instant::now() + Duration::from_secs(20);
    while world.value("cold_written_total") < 20 {
        assert!(Instant::now() < end, "nothing is written");
        world.tier.settle(Clock::system().after(Duration::from_millis(50)));
        std::thread::yield_now();
    }
    assert_eq!(world.count(0..20), 20);
}

#[test]
fn a_full_disk_costs_blocks_and_no_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    world.put(0..10);
    assert!(world.tier.settle(soon()));
    world.faults.set(Fault::Full);
    let begin = Instant::now();
    for batch in 1..1000 {
        world.put(batch * 100..batch * 100 + 100);
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "offers took {:?}", begin.elapsed());
    assert_eq!(world.count(0..10), 10, "what is written stays readable");
    let end = Instant::now() + Duration::from_secs(20);
    while world.value("cold_dropped_failed_total") == 0 || world.value("cold_dropped_busy_total") == 0 {
        assert!(Instant::now() < end, "the drops are not counted: {:?}", world.tier.stats());
        std::thread::yield_now();
    }
    assert!(world.value("cold_errors_full_total") > 0);
    assert!(world.tier.counters().last_error().is_some_and(|error| error.contains("no space")));
    world.faults.heal();
    assert!(world.tier.settle(soon()), "the queue drains when the disk has space");
}

#[test]
fn a_stuck_disk_passes_the_deadline_and_refuses_the_next() {
    let directory = tempfile::tempdir().expect("a directory");
    let deadline = Duration::from_millis(100);
    let world = world(directory.path(), WriteBehind::Published, deadline);
    world.put(0..50);
    assert!(world.tier.settle(soon()));
    world.faults.set(Fault::Stuck);
    let begin = Instant::now();
    let promotion = world.promote(0..50);
    assert!(!promotion.wait() && promotion.is_over());
    assert!(begin.elapsed() >= deadline && begin.elapsed() < Duration::from_secs(10));
    // Reads that hang keep later requests from waiting.
    let end = Instant::now() + Duration::from_secs(20);
    while world.count(0..50) != 0 {
        assert!(Instant::now() < end, "requests wait for a disk that hangs");
        std::thread::yield_now();
    }
    world.faults.heal();
    while world.value("cold_late_total") < 50 {
        assert!(Instant::now() < end, "late blocks are not counted: {:?}", world.tier.stats());
        std::thread::yield_now();
    }
    assert_eq!(world.count(0..50), 50, "the disk is used again");
}

#[test]
fn a_damaged_block_is_a_counted_miss_and_leaves_the_list() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    first.put(0..3);
    drop(first);
    for entry in std::fs::read_dir(directory.path()).expect("a directory") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|end| end == "extent") {
            let mut bytes = std::fs::read(&path).expect("it is there");
            let last = bytes.len() - 4096;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).expect("it is written");
        }
    }
    let second = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    assert!(second.promote(0..3).wait());
    assert_eq!((second.value("cold_hits_total"), second.value("cold_misses_total")), (2, 1));
    assert_eq!(second.tier.counters().errors(crate::ErrorKind::Damaged), 1);
    assert_eq!(second.count(0..3), 2);
    assert_eq!(second.tier.counters().get(Count::Hits), 2);
}

#[test]
fn two_requests_for_a_block_read_it_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    world.put(0..1);
    assert!(world.tier.settle(soon()));
    world.faults.set(Fault::Stuck);
    let first = world.promote(0..1);
    let second = world.promote(0..1);
    world.faults.heal();
    assert!(first.wait() && second.wait());
    assert_eq!(world.value("cold_hits_total"), 1);
}

/// Everything offered is written, dropped or waiting; a process that dies leaves the difference.
#[test]
fn counters_of_all_processes_outlive_a_tier() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    world.put(0..100);
    world.tier.offer((50..100).map(name));
    world.tier.offer([name(1000)]);
    assert!(world.tier.settle(soon()));
    let World { totals, tier, .. } = world;
    drop(tier);
    let of = |count: Count| totals.lock().expect("no panic")[count as usize];
    assert_eq!((of(Count::Offered), of(Count::Written), of(Count::DroppedGone)), (151, 100, 1));
    assert_eq!((of(Count::Duplicates), of(Count::WrittenBytes)), (50, 100 * LENGTH as u64));
}

#[test]
fn computing_that_is_faster_than_the_disk_wins() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    world.put(0..10);
    assert!(world.tier.settle(soon()));
    assert!(world.promote(0..10).wait());
    // Sixteen tokens in a nanosecond.
    world.tier.has_computed(16, 1);
    assert!(world.tier.promote(&(0..10).map(name).collect::<Vec<_>>()).is_none());
    assert_eq!(world.value("cold_reads_skipped_total"), 10);
    world.put(10..20);
    assert!(world.tier.settle(soon()));
    assert_eq!((world.value("cold_skipped_total"), world.count(10..20)), (10, 0));
}

/// A thread that the disk keeps is left behind.
#[test]
fn a_tier_on_a_stuck_disk_ends_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    world.put(0..10);
    assert!(world.tier.settle(soon()));
    world.faults.set(Fault::Stuck);
    let promotion = world.promote(0..10);
    world.put(10..100);
    let end = Instant::now() + Duration::from_secs(20);
    while !world.tier.shared.reads.is_stuck(Duration::ZERO) {
        assert!(Instant::now() < end, "no read begins");
        std::thread::yield_now();
    }
    let World { tier, faults, .. } = world;
    let begin = Instant::now();
    drop(tier);
    assert!(begin.elapsed() < JOIN_TIMEOUT + Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(!promotion.is_over());
    faults.heal();
    assert!(promotion.wait(), "its reads end without the tier");
}

/// The child inherits locks that a thread of its parent may hold, and none of the threads.
#[test]
fn a_forked_child_never_waits_for_its_parents_tier() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = world(directory.path(), WriteBehind::Published, Duration::from_secs(20));
    world.put(0..10);
    assert!(world.tier.settle(soon()));
    // Held across the fork, as by a thread of the parent.
    let (reads, ladder) = (world.tier.shared.reads.hold(), world.tier.shared.ladder());
    let status = cenote_mem::fork::run_in_child(|| {
        let names: Vec<Name> = (0..10).map(name).collect();
        world.tier.offer(names.iter().copied());
        world.tier.has_computed(16, 1);
        let has_none = world.tier.promote(&names).is_none() && world.tier.count(&names) == 0;
        let is_mute = !world.tier.settle(soon()) && !world.tier.wait_open(soon()) && world.tier.last_error().is_none();
        u8::from(!(has_none && is_mute && world.tier.stats()["cold_written_total"] == 10.0))
    });
    drop((reads, ladder));
    assert_eq!(status.expect("it ends before it is killed"), 0);
    assert!(world.promote(0..10).wait());
}
