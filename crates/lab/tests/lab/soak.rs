//! A short run of `cenote-lab soak`; long runs are started by hand (docs/evidence/soak.md).

use super::support::process::{cenote_program, lab};
use std::path::Path;

#[tokio::test]
async fn engines_answer_alike_while_processes_and_a_host_die() {
    if cenote_mem::Flush::best().is_none() {
        return super::support::say("not tested: this processor has no flush instruction that is known");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("the name is UTF-8");
    let program = cenote_program().to_str().expect("the path is UTF-8");
    let flags = ["--kills", "8", "--kill-every", "1", "--size", "64MiB", "--program", program];
    let outcome = lab(["soak", "--json", "--resume", dir].into_iter().chain(flags)).run().await;
    let report = outcome.json();
    assert_eq!((outcome.code, &report["pass"]), (Some(0), &true.into()), "{outcome:?}");
    for figure in ["wrong", "failures", "hangs"] {
        assert_eq!(report[figure], 0, "{figure}: {report}");
    }
    for (figure, least) in [("kills", 8), ("host_restarts", 1), ("answers", 1), ("scrapes", 1), ("explained", 1)] {
        assert!(report[figure].as_u64() >= Some(least), "{figure}: {report}");
    }
    assert_eq!(report["is_clean"], true, "{report}");
    let drawn = std::fs::read_to_string(folder.path().join("report.svg")).expect("the figure");
    assert!(drawn.contains("<polyline"), "{drawn}");
    assert!(std::fs::read_dir(folder.path().join("cold")).expect("the cold tier").count() > 1);

    // A run that has ended has nothing to do, and reports the same.
    let again = lab(["soak", "--json", "--resume", dir].into_iter().chain(flags)).run().await;
    assert!(again.json()["kills"].as_u64() >= report["kills"].as_u64(), "{again:?}");
    let other = lab(["soak", "--resume", dir, "--kills", "8", "--size", "32MiB", "--program", program]);
    other.fails(&["it was begun with", "hint: "]).await;
    assert_eq!(left_regions(folder.path()), 0);
}

/// Regions in shared memory that have the folder's name.
fn left_regions(folder: &Path) -> usize {
    let folder = folder.canonicalize().expect("it is there");
    let name = format!("soak-{}", &blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex()[..12]);
    let entries = std::fs::read_dir("/dev/shm").expect("shared memory").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).count()
}
