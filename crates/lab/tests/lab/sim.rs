//! The simulator from the command line: the same bytes for the same flags, invalid traces, and
//! impossible configurations.

use super::support::process::bare_lab;
use super::support::repository;

fn trace() -> String {
    repository("crates/serving-sim/tests/data/conversations.jsonl").display().to_string()
}

#[tokio::test]
async fn hit_rates_are_printed_as_table_and_json() {
    let trace = trace();
    let hits = ["sim", "--trace", &trace, "--hit-rate-only", "--eviction", "lru"];
    let infinite = bare_lab(hits.iter().copied().chain(["--json"])).ok().await.json();
    assert_eq!((infinite["hit_blocks"].as_u64(), infinite["blocks"].as_u64()), (Some(2_283), Some(3_952)));
    assert_eq!(infinite["hit_rate"].as_f64(), Some(2_283.0 / 3_952.0));
    let finite = bare_lab(hits.iter().copied().chain(["--json", "--pool-blocks", "200"])).ok().await.json();
    assert_eq!(finite["hit_rate"].as_f64(), Some(2_162.0 / 3_952.0));
    let table = bare_lab(["sim", "--trace", &trace, "--hit-rate-only", "--eviction", "lru,sieve,s3-fifo,cost-aware"])
        .ok()
        .await;
    assert_eq!(table.out.matches("57.768 %").count(), 4, "{table:?}");
    assert!(table.err.contains("million events a second"), "{table:?}");
}

#[tokio::test]
async fn a_sweep_is_one_table_and_one_page_and_the_same_twice() {
    let (trace, dir) = (trace(), tempfile::tempdir().expect("a directory"));
    let page = dir.path().join("sweep.html").display().to_string();
    let sweep = [
        "sim",
        "--trace",
        &trace,
        "--instances",
        "2",
        "--pool",
        "none,16GiB,infinite",
        "--eviction",
        "lru,sieve",
        "--html",
        &page,
    ];
    let first = bare_lab(sweep).ok().await;
    let drawn = std::fs::read_to_string(&page).expect("a page");
    let second = bare_lab(sweep).ok().await;
    assert_eq!((&first.out, &drawn), (&second.out, &std::fs::read_to_string(&page).expect("a page")), "the same bytes");
    assert!(first.out.contains("TTFT") && first.out.contains("infinite"), "{first:?}");
    assert!(drawn.matches("<svg").count() == 4 && drawn.ends_with("</html>\n"));
    let rows = bare_lab(sweep[..sweep.len() - 2].iter().copied().chain(["--json"])).ok().await.json();
    let rows = rows.as_array().expect("a row for each configuration");
    assert_eq!(rows.len(), 6);
    let rate = |at: usize| rows[at]["hit_rate"].as_f64().expect("a rate");
    assert!(rate(0) == 0.0 && rate(2) > 0.0 && rate(4) > rate(2), "{rows:?}");
    assert!(rows[4]["ttft_mean_ms"].as_f64() < rows[0]["ttft_mean_ms"].as_f64());
}

#[tokio::test]
async fn bad_lines_are_named_and_strict_ends_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("torn.jsonl").display().to_string();
    let text = std::fs::read_to_string(trace()).expect("the trace");
    let lines: Vec<&str> = text.lines().take(20).collect();
    std::fs::write(
        &path,
        format!("{}\n{{\"timestamp\": oops}}\n{}", lines[..10].join("\n"), &lines[10..].join("\n")[..900]),
    )
    .expect("a file");
    let hits = ["sim", "--trace", &path, "--hit-rate-only", "--json"];
    let lenient = bare_lab(hits).ok().await;
    assert!(lenient.err.contains("torn.jsonl: line 11: expected value"), "{lenient:?}");
    assert!(lenient.err.contains("(the file ends within this line)"), "{lenient:?}");
    assert!(lenient.json()["requests"].as_u64().is_some_and(|requests| requests > 10));
    bare_lab(hits.iter().copied().chain(["--strict"]))
        .fails(&["torn.jsonl: line 11: expected value", "--strict"])
        .await;
    bare_lab(["sim", "--trace", &path, "--format", "azure"]).fails(&["line 1: ", "is --format right?"]).await;
}

#[tokio::test]
async fn impossible_settings_are_refused_with_a_reason() {
    let trace = trace();
    for (flags, facts) in [
        (
            &["--pool", "1GiB"][..],
            &["a pool of 1073741824 bytes holds 16 blocks of 512 tokens, but request", "larger --pool"][..],
        ),
        (&["--private", "1GiB"], &["an instance's own cache of 1073741824 bytes holds 16 blocks", "larger --private"]),
        (&["--pool", "infinite", "--pool-link", "0:1"], &["the pool's link has no bandwidth", "--pool-link 25:640"]),
        (&["--instances", "0"], &["no instances", "one or more --instances"]),
        (&["--max-num-seqs", "0"], &["a step is without blocks or tokens", "--max-num-seqs"]),
        (&["--model", "llama-70b"], &["llama-70b does not fit"]),
        (&["--l1-blocks", "10"], &["an engine's own memory holds 160 tokens", "more --l1-blocks"]),
        (&["--hit-rate-only", "--pool-blocks", "102"], &["alone has 103 blocks"]),
        (&["--device", "abacus"], &["there are a100, h200, l20, a6000"]),
        (&["--calibration", "no-such-file"], &["no-such-file: "]),
    ] {
        bare_lab(["sim", "--trace", &trace].into_iter().chain(flags.iter().copied())).fails(facts).await;
    }
}

#[tokio::test]
async fn loads_are_drawn_and_pressure_swaps() {
    let load =
        ["sim", "--load", "cpen", "--model", "opt-1.3b", "--device", "a6000", "--instances", "1", "--l1-blocks", "300"];
    let swapping =
        load.iter().copied().chain(["--swap", "4GiB", "--always-swap", "--watermark", "fixed:0.01,learned", "--json"]);
    let rows = bare_lab(swapping).ok().await.json();
    let swapped = |at: usize| rows[at]["swapped_out_blocks"].as_u64().expect("a count");
    assert!(swapped(0) > 100 && 2 * swapped(1) < swapped(0), "{rows}");
    for load in ["poisson", "tract-b"] {
        let drawn = bare_lab(["sim", "--load", load, "--requests", "50", "--json"]).ok().await.json();
        assert_eq!(drawn["requests"].as_u64(), Some(50), "{drawn}");
    }
}

#[tokio::test]
async fn a_cold_tier_raises_the_hit_rate() {
    let trace = trace();
    let run = |flags: &'static [&'static str]| {
        let fixed = ["sim", "--trace", &trace, "--instances", "1", "--pool", "12GiB"];
        bare_lab(fixed.into_iter().chain(flags.iter().copied()))
    };
    let alone = run(&["--json"]).ok().await.json();
    let all = &["--cold", "infinite", "--cold-prefetch", "--cold-hint", "5", "--cold-speculate", "--json"];
    let cold = run(all).ok().await.json();
    let rate = |run: &serde_json::Value| run["hit_rate"].as_f64().expect("a rate");
    assert!(rate(&cold) > rate(&alone) && alone["cold"].is_null(), "{alone} {cold}");
    assert!(cold["cold"]["demoted"].as_u64().is_some_and(|blocks| blocks > 0), "{cold}");
    let packed = run(&["--cold-compress"]).ok().await;
    assert!(packed.out.contains("compressed in the pool"), "{packed:?}");
    run(&["--cold", "infinite", "--cold-write", "fast"]).fails(&["`fast` is no bandwidth"]).await;
    bare_lab(["sim", "--trace", &trace, "--cold", "infinite"]).fails(&["below one shared pool", "give a --pool"]).await;
}

#[tokio::test]
async fn spilling_replaces_preemption() {
    let load = ["sim", "--load", "poisson", "--requests", "300", "--rate", "0", "--instances", "1", "--json"];
    let limits = ["--l1-blocks", "6000", "--max-num-batched-tokens", "2048"];
    let run = |flags: &'static [&'static str]| bare_lab(load.iter().chain(&limits).chain(flags).copied());
    let preempted = run(&[]).ok().await.json();
    let spilled = run(&["--spill", "40GiB"]).ok().await.json();
    let count = |run: &serde_json::Value, name: &str| run[name].as_u64().expect("a count");
    assert!(count(&preempted, "preemptions") > 0 && count(&preempted, "spilled_blocks") == 0, "{preempted}");
    // Where steps wait, a few requests make room.
    let few = 2 * count(&spilled, "preemptions") < count(&preempted, "preemptions");
    assert!(few && count(&spilled, "streamed_bytes") > 0, "{spilled} {preempted}");
    assert_eq!(count(&preempted, "generated_tokens"), count(&spilled, "generated_tokens"));
    let refused = run(&["--spill", "1GiB", "--max-num-seqs", "6000"]);
    refused.fails(&["too few to spill others: 6128", "more --l1-blocks"]).await;
}

#[tokio::test]
async fn this_machine_can_be_calibrated_and_simulated() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("here.json").display().to_string();
    let model = repository("models/demo").display().to_string();
    bare_lab(["sim", "--calibrate", &path, "--model", &model]).ok().await;
    let simulated = ["sim", "--load", "poisson", "--requests", "20", "--rate", "0.2", "--calibration", &path, "--json"];
    let outcome = bare_lab(simulated.into_iter().chain(["--instances", "1"])).ok().await.json();
    assert_eq!(outcome["requests"].as_u64(), Some(20), "{outcome}");
    assert!(outcome["ttft_mean_ms"].as_f64().is_some_and(|ms| ms > 1.0), "{outcome}");
    // Whether the goal is met depends on the machine's other load; that both results are reported
    // does not.
    let study = ["study", "engine", "--requests", "12", "--rate", "20", "--calibration", &path, "--model", &model];
    let study = bare_lab(study.into_iter().chain(["--json"])).ok().await.json();
    let rows = study["rows"].as_array().expect("a row for each load");
    assert_eq!(rows.len(), 2, "{study}");
    for row in rows {
        let number = |name: String| row[&name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        for (figure, unit) in [("ttft", "_mean_ms"), ("throughput", "_tokens_per_s")] {
            let [real, simulated] = ["", "_simulated"].map(|whose| number(format!("{figure}{unit}{whose}")));
            assert!(real > 0.0 && simulated > 0.0, "{figure}: {row}");
            let deviation = number(format!("{figure}_deviation"));
            assert!((deviation - (simulated / real - 1.0)).abs() < 1e-9, "{figure}: {row}");
        }
    }
    let within = |row: &serde_json::Value| {
        ["ttft_deviation", "throughput_deviation"]
            .iter()
            .all(|name| row[name].as_f64().expect("a number").abs() <= 0.15)
    };
    assert_eq!(study["met"].as_bool(), Some(rows.iter().all(within)), "{study}");
}

#[tokio::test]
async fn studies_report_which_claims_hold() {
    let swap = bare_lab(["study", "swap", "--repeats", "1", "--json"]).ok().await.json();
    assert_eq!(swap["queue_head"].as_f64(), Some(1.0));
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("marks.html").display().to_string();
    let marks = bare_lab(["study", "watermark", "--repeats", "0", "--html", &page]).ok().await;
    assert!(marks.out.contains("held out") && marks.out.contains("learned"), "{marks:?}");
    assert!(std::fs::read_to_string(&page).expect("a page").ends_with("</html>\n"));
}

#[tokio::test]
async fn racks_grow_with_their_hosts() {
    let scale = ["study", "scale", "--hosts", "48,4", "--hosts-per-rack", "4", "--requests", "20", "--json"];
    let rows = bare_lab(scale).ok().await.json();
    let number = |at: usize, name: &str| rows[at][name].as_f64().expect("a number");
    assert_eq!((number(0, "hosts"), number(1, "racks"), number(1, "requests")), (4.0, 12.0, 960.0));
    assert!(number(1, "events") > 8.0 * number(0, "events"), "{rows}");
    // The router sends prompts where their beginnings are: twelve racks find nearly what one does.
    assert!(number(1, "hit_rate") > 0.8 * number(0, "hit_rate"), "{rows}");
    let racks = ["study", "scale", "--hosts", "65535", "--hosts-per-rack", "1", "--requests", "1"];
    bare_lab(racks).fails(&["65535 racks", "--hosts-per-rack"]).await;
}

#[tokio::test]
async fn hosts_without_common_memory_read_each_other_where_that_is_faster() {
    let scale = ["study", "scale", "--hosts", "8", "--memory", "cxl,rdma,tcp,objects,alone", "--json"];
    let rows = bare_lab(scale).ok().await.json();
    let kinds: Vec<&str> = (0..5).filter_map(|at| rows[at]["memory"].as_str()).collect();
    assert_eq!(kinds, ["cxl", "rdma", "tcp", "objects", "alone"]);
    let number = |at: usize, name: &str| rows[at][name].as_f64().expect("a number");
    let read = |at: usize| rows[at]["fetched"]["read"].as_u64().expect("a number");
    assert_eq!((read(0), read(4)), (0, 0), "{rows}");
    assert!(read(1) > 100 && number(1, "hit_rate") > 0.8 * number(0, "hit_rate"), "{rows}");
    // An object store with four connections is slower than an H200.
    assert!(read(3) < read(1) / 10 && number(3, "hit_rate") < number(1, "hit_rate"), "{rows}");
}

/// Twelve sessions of twenty requests: the prompt grows by two blocks, and is rewound once.
fn sessions(folder: &std::path::Path) -> String {
    let session = |session: u32| {
        let request = |nth: u32| {
            let at = f64::from(nth * (10 + session)) + 0.25;
            let (kept, fresh) = if nth < 10 { (20 + 2 * nth, 0) } else { (12, 8 + 2 * (nth - 10)) };
            let fresh_run = if fresh > 0 { format!(", [500, {fresh}]") } else { String::new() };
            format!("[{at}, {}, 20, [[1, {kept}]{fresh_run}], 0, 1.5, null]", 64 * (kept + fresh))
        };
        let requests: Vec<String> = (0..20).map(request).collect();
        format!(
            "{{\"block\": 64, \"tool_tokens\": 640, \"system_tokens\": 64, \"requests\": [{}]}}\n",
            requests.join(", ")
        )
    };
    let path = folder.join("sessions.jsonl");
    std::fs::write(&path, (0..12).map(session).collect::<String>()).expect("a file");
    path.display().to_string()
}

#[tokio::test]
async fn sessions_of_agents_are_a_load_of_each_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = sessions(dir.path());
    let hits = ["sim", "--trace", &path, "--format", "agentic", "--hit-rate-only", "--json"];
    let alone = bare_lab(hits).ok().await;
    assert!(alone.err.contains("12 sessions of 12, one start in 60 s"), "{alone:?}");
    assert!(alone.err.contains("sessions share no blocks; the file records no sharing"), "{alone:?}");
    let (alone, count) = (alone.json(), |found: &serde_json::Value, name: &str| found[name].as_u64().expect("a count"));
    // Each session: 38 blocks that grow to it, and 26 after it was rewound.
    assert_eq!((count(&alone, "requests"), count(&alone, "unique_blocks")), (240, 12 * (38 + 26)));
    let shared = bare_lab(hits.into_iter().chain(["--share-prefix"])).ok().await;
    assert!(shared.err.contains("assumed, as the file does not record it"), "{shared:?}");
    assert_eq!(count(&shared.json(), "unique_blocks"), 12 * (38 + 26) - 11 * 11);
    let drawn = bare_lab(hits.into_iter().chain(["--sessions", "5", "--seed", "3"])).ok().await.json();
    assert_eq!(count(&drawn, "requests"), 100);
    bare_lab(hits.into_iter().chain(["--block-tokens", "16"])).fails(&["line 1: its hash ids have 64 tokens"]).await;

    let rack =
        ["plan", "rack", "--trace", &path, "--format", "agentic", "--ttft-ms", "5000", "--memory", "1TiB", "--json"];
    let rack = bare_lab(rack).ok().await;
    assert!(rack.err.contains("12 sessions of 12"), "{rack:?}");
    assert_eq!(count(&rack.json(), "requests"), 240);

    let scale = ["study", "scale", "--trace", &path, "--hosts", "2,8", "--sessions", "3", "--json"];
    let scale = bare_lab(scale).ok().await.json();
    assert_eq!([0, 1].map(|at| count(&scale[at], "requests")), [2 * 3 * 20, 8 * 3 * 20], "{scale}");
    assert!(scale[0]["hit_rate"].as_f64() > Some(0.5), "{scale}");
}

#[tokio::test]
async fn policies_are_compared_on_sessions_and_on_other_traces() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = sessions(dir.path());
    let study = ["study", "agents", "--trace", &path, "--pool-blocks", "60,150", "--draws", "2"];
    let draws = bare_lab(study.into_iter().chain(["--json"])).ok().await.json();
    let draws = draws.as_array().expect("a draw for each seed");
    assert_eq!(draws.len(), 2);
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for size in draws.iter().flat_map(|draw| draw["sizes"].as_array().expect("sizes")) {
        let best = number(&size["best"]);
        for policy in size["policies"].as_array().expect("policies") {
            assert!(number(&policy["hit_rate"]) <= best + 1e-9, "{size}");
        }
        assert_eq!((&size["policies"][0]["eviction"], number(&size["policies"][0]["gained"])), (&"lru".into(), 0.0));
    }
    // The same figures as from `sim`, whose first seed is the study's.
    let sim = ["sim", "--trace", &path, "--format", "agentic", "--hit-rate-only", "--instant", "request"];
    let sim =
        bare_lab(sim.into_iter().chain(["--pool-blocks", "150", "--eviction", "sieve", "--json"])).ok().await.json();
    assert_eq!(draws[0]["sizes"][1]["policies"][1]["hit_rate"], sim["hit_rate"]);
    let shown = bare_lab(study).ok().await;
    for table in ["Hit rates, with the pool's instants", "What leaves:", "How soon blocks return"] {
        assert!(shown.out.contains(table), "{table}: {shown:?}");
    }
    let chat =
        bare_lab(["study", "agents", "--trace", &trace(), "--format", "mooncake", "--pool-blocks", "200"]).ok().await;
    assert!(chat.out.contains("240 requests of 3952 blocks, 1669 different"), "{chat:?}");
    bare_lab(["study", "agents", "--trace", &path, "--pool-blocks", "20"]).fails(&["--pool-blocks 20", "38"]).await;
}

/// Times in seconds were read as milliseconds, so that a load was a thousand times too high.
#[tokio::test]
async fn every_command_refuses_times_in_seconds() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("seconds.jsonl");
    let line = |at: f64| {
        format!("{{\"timestamp\": {at}, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [1, 2]}}\n")
    };
    std::fs::write(&path, [0.0, 1.0, 2.125].map(line).concat()).expect("a file");
    let path = path.display().to_string();
    for command in [
        &["sim", "--trace", &path][..],
        &["sim", "--trace", &path, "--hit-rate-only"],
        &["plan", "rack", "--trace", &path, "--ttft-ms", "5000"],
        &["study", "agents", "--trace", &path, "--format", "mooncake"],
        &["study", "watermark", "--mooncake", &path],
        &["study", "budget", "--mooncake", &path],
    ] {
        bare_lab(command.iter().copied()).fails(&["line 3: timestamp 2.125 has a fraction", "1000"]).await;
    }
}
