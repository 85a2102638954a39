//! Bytes, order and completion under the fake driver's schedules.

use crate::rig::{BLOCKS, ENGINE, Rig, WAYS, Way};
use cenote_base::Clock;
use cenote_base::prng::Prng;
use cenote_base::testing::{ManualTime, PATIENCE, until};
use cenote_base::time::TimeSource;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Distinct blocks of the engine, paired with as many numbers of the region.
pub fn pairs(count: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut prng = Prng::new(seed);
    let mut blocks: Vec<usize> = (0..BLOCKS).collect();
    (1..BLOCKS).rev().for_each(|at| blocks.swap(at, prng.below(at as u64 + 1) as usize));
    blocks.truncate(count);
    blocks.into_iter().zip(0..).collect()
}

/// Saves blocks and waits for their end.
pub fn save(rig: &mut Rig, blocks: &[(usize, usize)]) {
    rig.compute(blocks);
    rig.mover.save(rig.saving(blocks), ENGINE).expect("it is queued");
    rig.await_saved(blocks.len());
}

#[test]
fn blocks_survive_the_way_to_the_region_and_back() {
    for way in WAYS {
        for seed in 0..12 {
            let mut rig = Rig::new(way, seed, ManualTime::start().clock());
            let count = 20 + 6 * seed as usize;
            let kernels = ["cenote_sums", "cenote_move"];
            // One was tried at start.
            let tried = kernels.map(|kernel| rig.gpu.calls(kernel));
            save(&mut rig, &pairs(count, seed));
            let with_sums = rig.saved.lock().unwrap().values().filter(|sums| sums.is_some()).count();
            let direct = (0..count).filter(|&number| rig.is_direct(number)).count();
            assert_eq!(with_sums, if way.has_kernels() { direct } else { 0 }, "{way:?}");
            let elsewhere = pairs(count, seed + 100);
            rig.compute(&(0..BLOCKS).map(|block| (block, 1000)).collect::<Vec<_>>());
            let load = rig.mover.load(rig.loading(&elsewhere), ENGINE, PATIENCE).expect("it begins");
            assert!(load.wait(Some(PATIENCE)));
            assert_eq!(load.failed(ENGINE), [0; 0], "{way:?}, seed {seed}");
            assert!(elsewhere.iter().all(|&(block, number)| rig.holds(block, number)), "{way:?}, seed {seed}");
            let touched: Vec<usize> = elsewhere.iter().map(|&(block, _)| block).collect();
            assert!((0..BLOCKS).all(|block| touched.contains(&block) || rig.holds(block, 1000)), "{way:?}, {seed}");
            for (kernel, tried) in kernels.into_iter().zip(tried) {
                assert_eq!(rig.gpu.calls(kernel) > tried, way.has_kernels(), "{way:?}");
            }
            rig.end(&format!("{way:?}, seed {seed}"));
        }
    }
}

#[test]
fn the_engine_may_overwrite_gathered_blocks_before_they_cross_the_bus() {
    let mut rig = Rig::new(Way::Gathered, 3, ManualTime::start().clock());
    let blocks = pairs(30, 3);
    rig.gpu.hold(1, true);
    rig.compute(&blocks);
    rig.mover.save(rig.saving(&blocks), ENGINE).expect("it is queued");
    // The engine's stream runs, and nothing crosses the bus.
    rig.gpu.run();
    rig.compute(&(0..BLOCKS).map(|block| (block, 1000)).collect::<Vec<_>>());
    assert!(rig.saved.lock().unwrap().is_empty());
    rig.gpu.hold(1, false);
    rig.await_saved(blocks.len());
    rig.end("gathered");
}

#[test]
fn a_save_that_is_larger_than_the_buffer_passes_through_it() {
    for way in [Way::Gathered, Way::Narrow] {
        for seed in 0..8 {
            let mut rig = Rig::new(way, seed, ManualTime::start().clock());
            let blocks = pairs(BLOCKS - 2, seed);
            rig.gpu.hold(1, true);
            rig.compute(&blocks);
            rig.mover.save(rig.saving(&blocks), ENGINE).expect("it is queued");
            rig.mover.end_step(ENGINE);
            // The engine's stream reaches its next step when the last part is gathered.
            rig.queue_compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
            rig.gpu.run();
            assert!(!rig.holds(blocks[0].0, 1000), "{way:?}: nothing crosses the bus, so some parts find no places");
            rig.gpu.hold(1, false);
            rig.await_saved(blocks.len());
            assert!(rig.saved.lock().unwrap().values().all(Option::is_some), "{way:?}: all are summed on the GPU");
            rig.end(&format!("{way:?}, seed {seed}"));
        }
    }
}

#[test]
fn a_save_has_what_the_engine_wrote_before_it_and_nothing_that_it_writes_later() {
    for way in WAYS {
        let rig = Rig::new(way, 4, ManualTime::start().clock());
        let blocks = pairs(20, 4);
        (0..3).for_each(|what| rig.gpu.hold(what, true));
        rig.queue_compute(&blocks);
        rig.mover.save(rig.saving(&blocks), ENGINE).expect("it is queued");
        rig.mover.end_step(ENGINE);
        rig.queue_compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
        (0..3).for_each(|what| rig.gpu.hold(what, false));
        rig.await_saved(blocks.len());
        assert!(blocks.iter().all(|&(block, _)| rig.holds(block, 1000)), "{way:?}");
        rig.end(&format!("{way:?}"));
    }
}

#[test]
fn the_engines_writes_come_after_a_cancelled_load() {
    for way in WAYS {
        let mut rig = Rig::new(way, 5, ManualTime::start().clock());
        let blocks = pairs(40, 5);
        save(&mut rig, &blocks);
        let before = rig.gpu.calls("cuMemcpyBatchAsync");
        rig.gpu.hold(0, true);
        let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
        until("queued copies", || (rig.gpu.calls("cuMemcpyBatchAsync") > before).then_some(()));
        load.cancel(ENGINE);
        assert!(load.is_done() && load.failed(ENGINE).len() == 40);
        // The engine computes the blocks instead.
        let elsewhere: Vec<_> = blocks.iter().map(|&(block, _)| (block, 1000)).collect();
        rig.queue_compute(&elsewhere);
        rig.gpu.run();
        assert!(!rig.holds(elsewhere[0].0, 1000), "{way:?}: its stream waits for the copies");
        assert!(!rig.mover.close(Duration::ZERO), "the device has copies, so their memory is kept");
        assert!(rig.gpu.locked() > 0);
        rig.gpu.hold(0, false);
        rig.gpu.run();
        assert!(elsewhere.iter().all(|&(block, number)| rig.holds(block, number)), "{way:?}");
        rig.end(&format!("{way:?}"));
    }
}

#[test]
fn loads_leave_tables_and_places_to_saves() {
    let mut rig = Rig::new(Way::Scattered, 14, ManualTime::start().clock());
    let blocks = pairs(86, 14);
    save(&mut rig, &blocks);
    rig.gpu.hold(0, true);
    let before = rig.gpu.calls("cuMemcpyBatchAsync");
    let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
    until("queued copies", || (rig.gpu.calls("cuMemcpyBatchAsync") > before).then_some(()));
    let used: Vec<usize> = blocks.iter().map(|&(block, _)| block).collect();
    let others: Vec<_> = (0..BLOCKS).filter(|block| !used.contains(block)).zip(86..).collect();
    save_beside(&mut rig, &others, blocks.len());
    let saved = rig.saved.lock().unwrap().clone();
    assert!(others.iter().all(|(_, number)| saved[number].is_some()), "they are gathered");
    assert!(!load.is_done());
    rig.gpu.hold(0, false);
    assert!(load.wait(Some(PATIENCE)) && load.failed(ENGINE).is_empty());
    rig.end("both");
}

#[test]
fn many_small_loads_leave_tables_to_saves() {
    let mut rig = Rig::new(Way::Scattered, 17, ManualTime::start().clock());
    let blocks = pairs(20, 17);
    save(&mut rig, &blocks);
    (0..2).for_each(|what| rig.gpu.hold(what, true));
    let before = rig.gpu.calls("cuMemcpyBatchAsync");
    let load = |blocks: &[_]| rig.mover.load(rig.loading(blocks), ENGINE, PATIENCE).expect("it begins");
    let loads: Vec<_> = blocks.chunks(1).map(load).collect();
    until("twelve queued loads", || (rig.gpu.calls("cuMemcpyBatchAsync") >= before + 12).then_some(()));
    let used: Vec<usize> = blocks.iter().map(|&(block, _)| block).collect();
    let others: Vec<_> = (0..BLOCKS).filter(|block| !used.contains(block)).zip(20..24).collect();
    rig.compute(&others);
    for other in others.chunks(1) {
        rig.mover.save(rig.saving(other), ENGINE).expect("it is queued");
    }
    rig.gpu.hold(1, false);
    rig.await_saved(blocks.len() + others.len());
    let saved = rig.saved.lock().unwrap().clone();
    assert!(others.iter().all(|(_, number)| saved[number].is_some()), "they are gathered");
    assert!(loads.iter().all(|load| !load.is_done()));
    rig.gpu.hold(0, false);
    assert!(loads.iter().all(|load| load.wait(Some(PATIENCE)) && load.failed(ENGINE).is_empty()));
    rig.end("both");
}

#[test]
fn saves_that_wait_for_slots_go_in_order() {
    let mut rig = Rig::new(Way::Staged, 18, ManualTime::start().clock());
    let blocks = pairs(72, 18);
    rig.gpu.hold(1, true);
    rig.compute(&blocks);
    rig.mover.save(rig.saving(&blocks), ENGINE).expect("it is queued");
    assert_eq!(rig.mover.free_slots(), 0, "two of six parts have all slots");
    rig.gpu.hold(1, false);
    rig.await_saved(blocks.len());
    let order = rig.published.lock().unwrap().order.clone();
    let at = |number| order.iter().position(|&published| published == number);
    assert!(at(24) < at(60), "the first one that waits comes before the last one: {order:?}");
    rig.end("staged");
}

/// As [`save`], beside blocks that are saved already.
fn save_beside(rig: &mut Rig, blocks: &[(usize, usize)], already: usize) {
    rig.compute(blocks);
    rig.mover.save(rig.saving(blocks), ENGINE).expect("it is queued");
    rig.await_saved(already + blocks.len());
}

/// Counts how often it is read. Each part that is tried looks at its deadline.
struct Counting(Clock, AtomicU64);

impl TimeSource for Counting {
    fn now_ns(&self) -> u64 {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.now_ns()
    }

    fn unix(&self) -> Duration {
        self.0.unix()
    }

    fn block_for(&self, _: Duration) -> Duration {
        Duration::from_micros(50)
    }
}

#[test]
fn parts_that_wait_are_not_begun_again_and_again() {
    for way in [Way::Narrow, Way::Staged] {
        let counting: &Counting = Box::leak(Box::new(Counting(ManualTime::start().clock(), AtomicU64::new(0))));
        let mut rig = Rig::new(way, 15, Clock::of(counting));
        let blocks = pairs(90, 15);
        save(&mut rig, &blocks);
        rig.gpu.hold(0, true);
        let load = |blocks: &[_]| rig.mover.load(rig.loading(blocks), ENGINE, PATIENCE).expect("it begins");
        let loads: Vec<_> = blocks.chunks(1).map(load).collect();
        let counts = || (counting.1.load(Ordering::Relaxed), rig.gpu.calls("cuEventQuery"));
        let looks = |since: u64, count| until("looks at the device", || (counts().1 >= since + count).then_some(()));
        // All that have room are on the device.
        looks(counts().1, 1000);
        let before = counts();
        looks(before.1, 1000);
        let (reads, looks) = (counts().0 - before.0, counts().1 - before.1);
        // A sweep of all that wait is once in twenty looks.
        assert!(reads < 12 * looks, "{way:?}: {reads} reads of the clock in {looks} looks");
        rig.gpu.hold(0, false);
        assert!(loads.iter().all(|load| load.wait(Some(PATIENCE)) && load.failed(ENGINE).is_empty()));
        rig.end(&format!("{way:?}"));
    }
}

#[test]
fn a_load_behind_others_that_wait_is_given_up_at_its_deadline() {
    let time = ManualTime::start();
    let mut rig = Rig::new(Way::Staged, 16, time.clock());
    let blocks = pairs(90, 16);
    save(&mut rig, &blocks);
    rig.gpu.hold(0, true);
    let first = rig.mover.load(rig.loading(&blocks[..60]), ENGINE, PATIENCE * 100).expect("it begins");
    until("no free slot", || (rig.mover.free_slots() == 0).then_some(()));
    let second = rig.mover.load(rig.loading(&blocks[60..]), ENGINE, Duration::from_secs(5)).expect("it begins");
    time.advance(Duration::from_secs(6));
    until("the end of the second load", || second.is_done().then_some(()));
    assert!(!first.is_done() && second.failed(ENGINE).len() == 30);
    rig.gpu.hold(0, false);
    until("the end of the first load", || first.is_done().then_some(()));
    assert_eq!(first.failed(ENGINE), [0; 0]);
    until("an end of the mover", || rig.mover.close(Duration::ZERO).then_some(()));
}

#[test]
fn a_load_that_is_not_queued_in_time_fails() {
    let time = ManualTime::start();
    let mut rig = Rig::new(Way::Staged, 6, time.clock());
    let blocks = pairs(90, 6);
    save(&mut rig, &blocks);
    // The first parts keep all slots.
    rig.gpu.hold(0, true);
    let load = rig.mover.load(rig.loading(&blocks), ENGINE, Duration::from_secs(5)).expect("it begins");
    until("no free slot", || (rig.mover.free_slots() == 0).then_some(()));
    time.advance(Duration::from_secs(6));
    rig.gpu.hold(0, false);
    until("the end of the load", || load.is_done().then_some(()));
    assert_eq!(load.failed(ENGINE), (24..90).collect::<Vec<_>>());
    until("an end of the mover", || rig.mover.close(Duration::ZERO).then_some(()));
}
