//! Calls of the driver that fail, one after the other.

use crate::orders::{pairs, save};
use crate::rig::{ENGINE, Rig, WAYS, Way};
use cenote_base::testing::{ManualTime, PATIENCE, until};

const CALLS: [&str; 6] =
    ["cuMemcpyBatchAsync", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuLaunchKernel"];

#[test]
fn a_load_with_a_failed_call_reports_every_block_that_is_not_whole() {
    let mut seen = 0;
    for way in WAYS {
        for call in CALLS {
            for after in 0..5 {
                let mut rig = Rig::new(way, after, ManualTime::start().clock());
                let blocks = pairs(80, after);
                save(&mut rig, &blocks);
                rig.compute(&blocks.iter().map(|&(block, _)| (block, 1000)).collect::<Vec<_>>());
                rig.gpu.fail(call, after);
                let Ok(load) = rig.mover.load(rig.loading(&blocks), ENGINE, PATIENCE) else {
                    seen += 1;
                    continue;
                };
                assert!(load.wait(Some(PATIENCE)), "{way:?}, {call} after {after}");
                let failed = load.failed(ENGINE);
                rig.gpu.fail(call, u64::MAX);
                for (number, &(block, content)) in blocks.iter().enumerate() {
                    let is_reported = failed.contains(&number);
                    assert!(is_reported || rig.holds(block, content), "{way:?}, {call} after {after}, block {number}");
                }
                assert_eq!(failed.is_empty(), rig.mover.take_errors().is_empty(), "{way:?}, {call} after {after}");
                seen += usize::from(!failed.is_empty());
                let lost = call.starts_with("cuEvent") || (call == "cuStreamWaitEvent" && way.has_kernels());
                assert!(rig.mover.close(PATIENCE) || lost, "{way:?}, {call} after {after}");
                assert_eq!(rig.gpu.wrong(), "", "{way:?}, {call} after {after}");
            }
        }
    }
    assert!(seen > 60, "{seen} loads had failed blocks");
}

#[test]
fn a_save_with_a_failed_call_publishes_whole_blocks_only() {
    let mut seen = 0;
    for way in WAYS {
        for call in CALLS {
            for after in 0..5 {
                let mut rig = Rig::new(way, after, ManualTime::start().clock());
                let blocks = pairs(80, after);
                rig.compute(&blocks);
                rig.gpu.fail(call, after);
                let begun = rig.mover.save(rig.saving(&blocks), ENGINE);
                if begun.is_ok() {
                    let mut failed = 0;
                    until("the outcomes of all blocks", || {
                        // What waits for slots that a lost part keeps ends with the step.
                        rig.mover.end_step(ENGINE);
                        let counts = rig.mover.take_counts();
                        failed += (counts.failed + counts.late) as usize;
                        // `publish` compares the bytes.
                        (failed + rig.saved.lock().unwrap().len() == blocks.len()).then_some(())
                    });
                    seen += usize::from(failed > 0);
                }
                rig.gpu.fail(call, u64::MAX);
                let lost = call.starts_with("cuEvent") || (call == "cuStreamWaitEvent" && way.has_kernels());
                assert!(rig.mover.close(PATIENCE) || lost, "{way:?}, {call} after {after}");
                assert_eq!(rig.gpu.wrong(), "", "{way:?}, {call} after {after}");
            }
        }
    }
    assert!(seen > 40, "{seen} saves had failed blocks");
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
