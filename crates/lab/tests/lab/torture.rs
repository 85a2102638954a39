//! Short runs of `cenote-lab torture`; long runs are started by hand.

use super::support::process::{Outcome, cenote, cenote_program, lab, own_region, signal};
use super::support::{soon, until};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

async fn torture(flags: &str) -> Outcome {
    lab(["torture", "--json"].into_iter().chain(flags.split(' '))).run().await
}

/// Files that a torture's process leaves in shared memory.
fn leavings(region: &str, uuid: Option<&str>) -> Vec<PathBuf> {
    let region = region.strip_prefix("shm:").expect("it is in shared memory");
    let entries = std::fs::read_dir("/dev/shm").expect("shared memory").map(|entry| entry.expect("an entry").path());
    let ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(region) || uuid.is_some_and(|uuid| name.contains(uuid))
    };
    entries.filter(|path| ours(path)).collect()
}

fn expect_pass(outcome: &Outcome) -> serde_json::Value {
    let report = outcome.json();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(report["pass"], true, "{report}");
    for figure in ["wrong_bytes", "leaked_bytes", "hangs", "damaged", "increments_wrong", "failed_children"] {
        assert_eq!(report[figure], 0, "{figure}: {report}");
    }
    for (figure, least) in [("kills", 20), ("blocks_verified", 1)] {
        assert!(report[figure].as_u64() >= Some(least), "{figure}: {report}");
    }
    assert!(report["operations"]["put"].as_u64() > Some(0), "{report}");
    assert_eq!(leavings(report["region"].as_str().expect("a name"), None), Vec::<PathBuf>::new());
    report
}

#[tokio::test]
async fn nothing_is_wrong_lost_or_stuck_on_one_host() {
    let report = expect_pass(&torture("--processes 3 --kills 20 --operations 20000 --size 8MiB --seed 1").await);
    assert_eq!(report["flush"], "none", "{report}");
}

#[tokio::test]
async fn nor_between_two_hosts() {
    let Some(best) = cenote_mem::Flush::best() else {
        return super::support::say("not tested: this processor has no flush instruction that is known");
    };
    let flags = "--processes 4 --hosts 2 --kills 20 --operations 20000 --size 8MiB --seed 2";
    let report = expect_pass(&torture(flags).await);
    assert_eq!(report["flush"], best.name(), "{report}");
    assert!(report["host_kills"].as_u64() > Some(0), "{report}");
}

/// The command with 1,000 kills is the long version: docs/evidence/testing.md.
#[tokio::test]
async fn killed_writers_of_a_cold_tier_leave_no_wrong_byte() {
    let outcome = torture("--cold 25 --seed 3").await;
    let report = outcome.json();
    assert_eq!((outcome.code, report["pass"].as_bool(), report["kills"].as_u64()), (Some(0), Some(true), Some(25)));
    assert!(!Path::new(report["directory"].as_str().expect("a path")).exists(), "{report}");
}

/// Eviction that ignores pins evicts blocks in use. The run ends as soon as one is found.
#[tokio::test]
async fn a_mistake_is_found() {
    let outcome = torture("--processes 3 --seconds 1000000 --size 8MiB --seed 1 --mistake").await;
    let report = outcome.json();
    assert_eq!(outcome.code, Some(3), "{report}");
    assert!(report["wrong_bytes"].as_u64() > Some(0), "{report}");
    assert!(outcome.err.contains("changed while it was pinned"), "{report}");
    assert_eq!(leavings(report["region"].as_str().expect("a name"), None), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn an_interrupted_torture_leaves_nothing() {
    // It may have to be built, which takes longer than a torture.
    cenote_program();
    let mut child = lab(["torture", "--processes", "2", "--seconds", "1000000", "--size", "8MiB"]).spawn();
    let pid = child.id().expect("it was just started");
    let region = own_region("torture", pid);
    let at_work = async || {
        let info = cenote(["pool", "info", "--json", "--region", &region]).run().await;
        (info.code == Some(0)).then(|| info.json()).filter(|info| info["blocks_ready"].as_u64() > Some(0))
    };
    let info = until("children at work", at_work).await;
    signal(pid, Signal::INT);
    let status = soon("the end of the torture", child.wait()).await.expect("it is our child");
    assert_eq!(status.code(), Some(130));
    assert_eq!(leavings(&region, info["uuid"].as_str()), Vec::<PathBuf>::new());
}
