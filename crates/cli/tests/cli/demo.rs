//! `cenote demo` keeps the README's promises.

use super::support::process::{cenote, cenote_program, lab, own_region, signal};
use super::support::region::Region;
use super::support::{ends, soon, until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::HashSet;
use std::path::Path;

#[tokio::test]
async fn the_demo_keeps_its_promises() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("demo.json");
    let file = file.to_str().expect("the name is UTF-8");
    let outcome = cenote(["demo", "--json", file, "--repeat", "2", "--prompt-tokens", "512"]).ok().await;
    assert!(outcome.out.contains("first token, warm (against cold)") && !outcome.out.contains("met"), "{outcome:?}");
    let last: Vec<&str> = outcome.out.trim_end().lines().rev().take(3).collect();
    let begins = |line: &str, words: &str| assert!(line.starts_with(words), "{outcome:?}");
    begins(last[2], "cenote serve --region shm:kv ");
    begins(last[1], "curl -s localhost:8000/v1/completions ");
    begins(last[0], "cenote pool info --region shm:kv");

    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).expect("the file is there")).expect("JSON");
    assert_eq!(report["outputs_equal"], true, "{report}");
    assert!(!report["output"].as_str().expect("a text").is_empty(), "{report}");
    assert_eq!(report["model"], "demo");
    assert_eq!(report["prompt_tokens"], 512);
    assert!(report["cached_tokens"].as_u64().expect("a count") >= 496, "{report}");

    let time = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
    let [no_pool, cold, warm] = ["ttft_no_pool_ms_p50", "ttft_cold_ms_p50", "ttft_warm_ms_p50"].map(time);
    assert!(no_pool > 0.0 && cold > 0.0 && warm > 0.0, "{report}");
    let rows = report["rows"].as_array().expect("an array");
    assert!(rows.len() == 3 && rows[0]["ratio"].is_null(), "{report}");
    for (row, ratio) in rows[1..].iter().zip([cold / no_pool, warm / cold]) {
        assert!((row["ratio"].as_f64().expect("a number") / ratio - 1.0).abs() < 1e-9, "{report}");
    }

    let pids = report["worker_pids"].as_array().expect("an array").iter().chain([&report["front_pid"]]);
    assert_eq!(pids.map(|pid| pid.as_u64().expect("a number")).collect::<HashSet<_>>().len(), 3, "{report}");

    let region = report["region"].as_str().expect("a text").strip_prefix("shm:").expect("it is in shared memory");
    assert!(!Path::new("/dev/shm").join(region).exists(), "{region} is left");
}

/// Earlier, a command outside of a checkout had no model.
#[tokio::test]
async fn a_command_outside_of_a_checkout_has_the_demo_model() {
    let dir = tempfile::tempdir().expect("a directory");
    // Above a program in the build folder is the checkout.
    let program = dir.path().join("cenote");
    std::fs::copy(cenote_program(), &program).expect("the program can be copied");
    let region = Region::create("64MiB").await;
    let prompt = "The cave lies at the foot of a limestone cliff, and only a boat can reach its entrance at low tide";
    let mut said = Vec::new();
    for _ in 0..2 {
        let mut command = tokio::process::Command::new(&program);
        command.args(["generate", "--max-tokens", "4", "--region", &region.name, "--prompt", prompt]);
        command.current_dir(&dir).env_remove("CENOTE_MODEL").env("XDG_CACHE_HOME", dir.path().join("cache"));
        let output = ends("generate", command.output()).await.expect("the program starts");
        assert!(output.status.success(), "{output:?}");
        said.push(String::from_utf8(output.stdout).expect("the program writes UTF-8"));
    }
    assert!(said[0].contains(", 0 from the region") && !said[1].contains(", 0 from the region"), "{said:?}");
    assert!(dir.path().join("cache/cenote/models/demo/model.safetensors").is_file());
}

/// Earlier, a command that Ctrl-C ended left its region of two gigabytes.
#[tokio::test]
async fn an_interrupted_command_takes_its_region_along() {
    // So many repeats that neither ends by itself.
    let bench = ["bench", "ttft", "--region-size", "64MiB", "--repeat", "100"];
    let demo = ["demo", "--repeat", "100"];
    for (command, purpose, code) in [(cenote(demo), "demo", 130), (lab(bench), "bench", 143)] {
        let mut child = command.spawn();
        let pid = child.id().expect("it was just started");
        let region = own_region(purpose, pid);
        let region = Path::new("/dev/shm").join(region.strip_prefix("shm:").expect("it is in shared memory"));
        until("its region", async || region.exists().then_some(())).await;
        signal(pid, if code == 130 { Signal::INT } else { Signal::TERM });
        let status = soon("its end", child.wait()).await.expect("it is our child");
        assert_eq!(status.code(), Some(code));
        assert!(!region.exists(), "{} is left", region.display());
    }
}
