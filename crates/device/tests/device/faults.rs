//! Calls of the driver that fail, one after the other.

use crate::orders::{pairs, save};
use crate::rig::{ENGINE, Rig, WAYS, Way};
use cenote_base::testing::{ManualTime, PATIENCE, until};
use cenote_device::mover::Load;
use std::sync::Arc;
use std::time::Duration;

const CALLS: [&str; 6] =
    ["cuMemcpyBatchAsync", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuLaunchKernel"];

/// Runs `turn` in each way of blocks with each call failing from some number on; it returns whether blocks
/// failed. When the calls succeed again, all that was lost ends.
fn with_each_fault(mut turn: impl FnMut(&mut Rig, &[(usize, usize)], (&str, u64), &str) -> bool) -> usize {
    let mut failed = 0;
    for way in WAYS {
        for call in CALLS {
            for after in 0..5 {
                let what = format!("{way:?}, {call} after {after}");
                let mut rig = Rig::new(way, after, ManualTime::start().clock());
                let blocks = pairs(80, after);
                failed += usize::from(turn(&mut rig, &blocks, (call, after), &what));
                rig.gpu.fail(call, u64::MAX);
                // The engine goes on.
                rig.mover.end_step(ENGINE);
                rig.end(&what);
            }
        }
    }
    failed
}

#[test]
fn a_load_with_a_failed_call_reports_every_block_that_is_not_whole() {
    let failed = with_each_fault(|rig, blocks, (call, after), what| {
        save(rig, blocks);
        rig.compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
        rig.gpu.fail(call, after);
        let Ok(load) = rig.mover.load(rig.loading(blocks), ENGINE, PATIENCE) else { return true };
        assert!(load.wait(Some(PATIENCE)), "{what}");
        rig.gpu.fail(call, u64::MAX);
        let failed = load.failed(ENGINE);
        for (number, &(block, content)) in blocks.iter().enumerate() {
            assert!(failed.contains(&number) || rig.holds(block, content), "{what}, block {number}");
        }
        assert_eq!(failed.is_empty(), rig.mover.take_errors().is_empty(), "{what}");
        !failed.is_empty()
    });
    assert!(failed > 60, "{failed} loads had failed blocks");
}

#[test]
fn a_save_with_a_failed_call_publishes_whole_blocks_only() {
    let failed = with_each_fault(|rig, blocks, (call, after), _| {
        rig.compute(blocks);
        rig.gpu.fail(call, after);
        if rig.mover.save(rig.saving(blocks), ENGINE).is_err() {
            return false;
        }
        // What comes too late has other bytes.
        rig.mover.end_step(ENGINE);
        rig.queue_compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
        let mut failed = 0;
        until("the outcomes of all blocks", || {
            // What waits for slots that a lost part keeps ends with the step.
            rig.mover.end_step(ENGINE);
            let counts = rig.mover.take_counts();
            failed += (counts.failed + counts.late) as usize;
            (failed + rig.saved.lock().unwrap().len() == blocks.len()).then_some(())
        });
        failed > 0
    });
    assert!(failed > 40, "{failed} saves had failed blocks");
}

#[test]
fn a_device_that_does_not_tell_when_its_copies_end_keeps_their_memory() {
    for way in WAYS {
        let mut rig = Rig::new(way, 21, ManualTime::start().clock());
        let blocks = pairs(20, 21);
        save(&mut rig, &blocks);
        rig.gpu.hold(0, true);
        rig.gpu.fail("cuEventQuery", 0);
        let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
        assert!(load.wait(Some(PATIENCE)), "{way:?}");
        assert!(!rig.mover.close(PATIENCE), "{way:?}");
        assert!(rig.gpu.locked() > 0 && rig.gpu.allocations() > 0, "{way:?}");
        assert_eq!(Arc::strong_count(&rig.threads), 1, "{way:?}: the threads end");
        rig.gpu.hold(0, false);
        drop(rig.mover);
        rig.gpu.run();
        assert_eq!(rig.gpu.wrong(), "", "{way:?}: nothing was freed under a copy");
    }
}

#[test]
fn one_refusal_harms_no_later_load() {
    for way in WAYS {
        for call in ["cuEventCreate", "cuEventRecord", "cuEventQuery"] {
            let time = ManualTime::start();
            let mut rig = Rig::new(way, 22, time.clock());
            let blocks = pairs(90, 22);
            save(&mut rig, &blocks);
            // The first event is the engine's.
            rig.gpu.fail_times(call, 1, 2);
            let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
            assert!(load.wait(Some(PATIENCE)), "{way:?}, {call}");
            assert!(!load.failed(ENGINE).is_empty(), "{way:?}, {call}");
            // The device is asked again after a second.
            time.advance(Duration::from_secs(2));
            until("a load without a failed block", || {
                let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
                assert!(load.wait(Some(PATIENCE)), "{way:?}, {call}");
                load.failed(ENGINE).is_empty().then_some(())
            });
            rig.end(&format!("{way:?}, {call}"));
        }
    }
}

#[test]
fn lost_copies_are_waited_for_if_the_device_cannot_order_them() {
    let time = ManualTime::start();
    let mut rig = Rig::new(Way::Pages, 23, time.clock());
    let blocks = pairs(10, 23);
    save(&mut rig, &blocks);
    let before = rig.gpu.calls("cuEventRecord");
    rig.gpu.hold(0, true);
    // The first event is the engine's. The refused ones: behind the copies, and that of a look at the lost part.
    rig.gpu.fail_times("cuEventRecord", 1, 1 << 20);
    let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
    assert!(load.wait(Some(PATIENCE)));
    std::thread::scope(|scope| {
        let failed = scope.spawn(|| load.failed(ENGINE));
        // And two for the order.
        until("refused events", || (rig.gpu.calls("cuEventRecord") >= before + 5).then_some(()));
        assert!(!failed.is_finished(), "the copies are still to come");
        rig.gpu.fail_times("cuEventRecord", 0, 0);
        rig.gpu.hold(0, false);
        until("the end of the wait", || {
            time.advance(Duration::from_millis(10));
            failed.is_finished().then_some(())
        });
        assert_eq!(failed.join().expect("no panic"), (0..10).collect::<Vec<_>>());
    });
    rig.compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
    rig.gpu.run();
    assert!(blocks.iter().all(|&(block, _)| rig.holds(block, 1000)), "no late copy changes them");
    rig.end("lost");
}

#[test]
fn one_wait_serves_all_loads_whose_copies_the_device_cannot_order() {
    let time = ManualTime::start();
    let mut rig = Rig::new(Way::Pages, 24, time.clock());
    let blocks = pairs(30, 24);
    save(&mut rig, &blocks);
    rig.gpu.hold(0, true);
    rig.gpu.gate("cuMemcpyBatchAsync", true);
    let load = |blocks: &[_]| rig.mover.load(rig.loading(blocks), ENGINE, PATIENCE).expect("it begins");
    let loads: Vec<_> = blocks.chunks(10).map(load).collect();
    rig.gpu.fail_times("cuEventRecord", 0, 1 << 20);
    rig.gpu.gate("cuMemcpyBatchAsync", false);
    assert!(loads.iter().all(|load| load.wait(Some(PATIENCE))));
    // A thread that is not joined: a wait that does not end fails the test.
    let failed = |load: &Arc<Load>| {
        let load = Arc::clone(load);
        std::thread::spawn(move || load.failed(ENGINE).len())
    };
    let first = failed(&loads[0]);
    until("the end of the first wait", || {
        time.advance(Duration::from_millis(10));
        first.is_finished().then_some(())
    });
    for other in &loads[1..] {
        let other = failed(other);
        until("an end without another wait", || other.is_finished().then_some(()));
        assert_eq!(other.join().expect("no panic"), 10);
    }
    // A device that is well again is waited for again.
    rig.gpu.fail_times("cuEventRecord", 0, 0);
    assert_eq!(loads[0].failed(ENGINE).len(), 10);
    rig.gpu.fail_times("cuEventRecord", 0, 1 << 20);
    let before = rig.gpu.calls("cuEventRecord");
    let again = failed(&loads[0]);
    until("refused events", || (rig.gpu.calls("cuEventRecord") >= before + 2).then_some(()));
    rig.gpu.fail_times("cuEventRecord", 0, 0);
    rig.gpu.hold(0, false);
    until("the end of the copies", || {
        time.advance(Duration::from_millis(10));
        again.is_finished().then_some(())
    });
    rig.end("lost");
}

#[test]
fn the_engines_writes_come_after_the_lost_copies_of_a_load_that_is_cancelled_after_its_end() {
    for way in [Way::Pages, Way::Scattered] {
        let mut rig = Rig::new(way, 25, ManualTime::start().clock());
        let blocks = pairs(10, 25);
        save(&mut rig, &blocks);
        rig.gpu.hold(0, true);
        // The first event is the engine's, and the second one the first behind the copies.
        rig.gpu.fail_times("cuEventRecord", 1, 1);
        let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
        assert!(load.wait(Some(PATIENCE)));
        load.cancel(ENGINE);
        let elsewhere: Vec<_> = blocks.iter().map(|&(block, _)| (block, 1000)).collect();
        rig.queue_compute(&elsewhere);
        rig.gpu.run();
        assert!(elsewhere.iter().all(|&(block, number)| !rig.holds(block, number)), "{way:?}: the copies are to come");
        rig.gpu.hold(0, false);
        rig.gpu.run();
        assert!(elsewhere.iter().all(|&(block, number)| rig.holds(block, number)), "{way:?}");
        rig.end(&format!("{way:?}"));
    }
}

#[test]
fn saves_are_not_published_if_the_engine_may_have_written_their_blocks_meanwhile() {
    for (refusals, is_ordered) in [(1, true), (2, false)] {
        let mut rig = Rig::new(Way::Pages, 11, ManualTime::start().clock());
        let blocks = pairs(20, 11);
        rig.compute(&blocks);
        rig.gpu.hold(1, true);
        // The copies' own wait is in order. The engine's is refused, and tried again.
        rig.gpu.fail_times("cuStreamWaitEvent", 1, refusals);
        rig.mover.save(rig.saving(&blocks), ENGINE).expect("it is queued");
        assert_eq!(rig.mover.take_errors().len() as u64, refusals);
        rig.gpu.hold(1, false);
        let mut failed = 0;
        until("the outcomes of all blocks", || {
            rig.gpu.run();
            failed += rig.mover.take_counts().failed as usize;
            (failed + rig.saved.lock().unwrap().len() == blocks.len()).then_some(())
        });
        assert_eq!(failed, if is_ordered { 0 } else { blocks.len() });
        rig.assert_whole("blocks in order");
        // The next step is in order again.
        rig.mover.end_step(ENGINE);
        let others = pairs(10, 12);
        rig.saved.lock().unwrap().clear();
        save(&mut rig, &others);
        assert!(rig.mover.close(PATIENCE));
        assert_eq!(rig.gpu.wrong(), "");
    }
}

#[test]
fn a_cancel_waits_for_copies_that_the_device_cannot_order() {
    for way in [Way::Pages, Way::Scattered, Way::Staged] {
        let mut rig = Rig::new(way, 12, ManualTime::start().clock());
        let blocks = pairs(10, 12);
        save(&mut rig, &blocks);
        let before = rig.gpu.calls("cuMemcpyBatchAsync");
        rig.gpu.hold(0, true);
        let load = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE).expect("it begins");
        until("queued copies", || (rig.gpu.calls("cuMemcpyBatchAsync") > before).then_some(()));
        rig.gpu.fail_times("cuStreamWaitEvent", 0, 64);
        std::thread::scope(|scope| {
            let cancelled = scope.spawn(|| load.cancel(ENGINE));
            until("a refusal", || (!rig.mover.take_errors().is_empty()).then_some(()));
            assert!(!cancelled.is_finished(), "{way:?}");
            rig.gpu.hold(0, false);
            cancelled.join().expect("no panic");
        });
        // The engine computes the blocks itself, and no late copy changes them.
        rig.compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
        rig.gpu.run();
        assert!(blocks.iter().all(|&(block, _)| rig.holds(block, 1000)), "{way:?}");
        assert_eq!(rig.gpu.wrong(), "");
    }
}
