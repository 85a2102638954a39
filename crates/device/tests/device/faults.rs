//! Calls of the driver that fail, one after the other.

use crate::orders::{pairs, save};
use crate::rig::{ENGINE, Rig, WAYS};
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
                        rig.mover.begin_step(ENGINE);
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
