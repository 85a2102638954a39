//! `cenote-lab plan rack`: the cheapest rack, by simulation.

use super::support::process::bare_lab;
use super::support::repository;
use serde_json::Value;

async fn plan(line: &str) -> Value {
    bare_lab(line.split(' ').chain(["--json"])).ok().await.json()
}

#[tokio::test]
async fn a_rack_is_planned_for_a_load_and_a_goal() {
    let line = "plan rack --rate 60 --requests 500 --ttft-ms 1000 --gpus-per-host 2 --memory 128GiB,1TiB";
    let plan_of = async |more: &str| plan(&format!("{line}{more}")).await;
    let rack = plan_of("").await;
    assert_eq!(rack, plan_of("").await, "the same twice");
    let racks = rack["racks"].as_array().expect("racks").clone();
    let number = |row: &Value, name: &str| row[name].as_f64().expect("a number");
    assert!(racks.is_sorted_by(|a, b| number(a, "cost") <= number(b, "cost")), "{rack}");
    for row in &racks {
        assert!(number(&row["outcome"], "ttft_p99_ms") <= 1000.0, "{row}");
        let machines = number(row, "hosts") * (40_000.0 + 2.0 * 30_000.0);
        assert!((number(row, "cost") - machines - number(row, "memory_cost")).abs() < 1e-3, "{row}");
    }
    // Engines alone have their own prefix caches. A pool also has what other engines computed.
    let of = |memory: &str| racks.iter().find(|row| row["memory"] == memory).expect("it meets the goal");
    let (alone, pool) = (of("none"), of("cxl"));
    assert!(number(&alone["outcome"], "hit_rate") > 0.0, "{alone}");
    assert!(number(&pool["outcome"], "hit_rate") > number(&alone["outcome"], "hit_rate"), "{rack}");
    assert!(number(pool, "hosts") <= number(alone, "hosts"), "{rack}");
    // If GPUs cost nothing, they are not saved.
    let free = plan_of(" --gpu-price 0 --host-price 0").await;
    assert_eq!(free["racks"][0]["memory"], "none", "{free}");
}

#[tokio::test]
async fn a_rack_that_cannot_be_is_explained() {
    let rack = |flags: &'static str| bare_lab("plan rack --requests 50 --rate 10".split(' ').chain(flags.split(' ')));
    rack("--ttft-ms 1").fails(&["no rack of 32 hosts", "the goal is 1.0 ms", "--hosts-max"]).await;
    // The nearest of all hosts, and no advice about a size that does not matter.
    let one = plan("plan rack --requests 50 --rate 10 --ttft-ms 1000 --gpus-per-host 1 --memory 1MiB").await;
    assert_eq!(one["too_small"].as_array().map(Vec::len), Some(5), "{one}");
    rack("--ttft-ms 1 --memory 1MiB,4TiB --hosts-max 2").fails(&["no rack of 2 hosts", "--ttft-ms"]).await;
    rack("--ttft-ms 1 --memory 1MiB --hosts-max 2").fails(&["holds 0 blocks", "--memory"]).await;
    let orders = ["8,1", "1,8"].map(|gpus| format!("--ttft-ms 1 --hosts-max 2 --gpus-per-host {gpus}"));
    let mut said = Vec::new();
    for order in &orders {
        let line = format!("plan rack --requests 50 --rate 10 {order}");
        said.push(bare_lab(line.split(' ')).fails(&["the best one reaches"]).await.err);
    }
    assert_eq!(said[0], said[1], "the order of hosts does not matter");
    let slow = bare_lab("plan rack --ttft-ms 1000 --requests 3 --rate 1e-12".split(' '));
    slow.fails(&["more than a year", "--rate"]).await;
    rack("--ttft-ms 1000 --model llama-70b").fails(&["does not fit 1 of h200", "--tp"]).await;
    rack("--ttft-ms 1000 --gpu x").fails(&["--gpu x", "a100"]).await;
    rack("--ttft-ms 1000 --tp 3").fails(&["--gpus-per-host 8", "--tp 3"]).await;
    let config = repository("crates/lab/Cargo.toml").display().to_string();
    rack("--ttft-ms 1000 --tp 3 --gpus-per-host 6").fails(&["3 GPUs cannot share the 32 heads", "--tp"]).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("config.json");
    let shape = "\"num_hidden_layers\": 32, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"vocab_size\": 32000";
    for (more, fact) in [
        ("\"num_attention_heads\": 32, \"sliding_window\": 4096", "`sliding_window`"),
        ("\"num_attention_heads\": 32, \"memory_layers\": [1]", "`memory_layers`"),
        ("\"num_attention_heads\": 32, \"quantization_config\": {}", "quantization_config"),
        ("\"num_attention_heads\": 32, \"layer_types\": [\"sliding_attention\"]", "layer_types"),
        ("\"num_attention_heads\": 8192", "hidden_size"),
    ] {
        std::fs::write(&file, format!("{{{shape}, {more}}}")).expect("a file");
        let file = file.display().to_string();
        bare_lab(["plan", "rack", "--rate", "1", "--ttft-ms", "9", "--model-config", &file]).fails(&[fact]).await;
    }
    let path = bare_lab(["plan", "rack", "--rate", "1", "--ttft-ms", "9", "--model-config", &config]);
    path.fails(&["Cargo.toml", "JSON"]).await;
    bare_lab(["plan", "rack", "--ttft-ms", "9", "--trace", &config]).fails(&["Cargo.toml", "--format"]).await;
}

#[tokio::test]
async fn a_rack_is_planned_for_traces() {
    let line = "plan rack --gpus-per-host 1,2 --memory 16MiB,64GiB --requests 40 --trace";
    let mooncake = repository("crates/serving-sim/tests/data/conversations.jsonl").display().to_string();
    let shared = plan(&format!("{line} {mooncake} --ttft-ms 4000")).await;
    assert_eq!(shared["requests"], 40);
    let count = |plan: &Value, name: &str| plan[name].as_array().expect("a list").len();
    let all = ["racks", "missing", "too_small"].map(|name| count(&shared, name));
    assert_eq!(all.iter().sum::<usize>(), 6, "{shared}");
    // Blocks of another size would count as other tokens.
    let line = format!("{line} {mooncake} --ttft-ms 4000 --block-tokens 16");
    bare_lab(line.split(' ')).fails(&["have another number of blocks", "--block-tokens"]).await;
    let line = "plan rack --gpus-per-host 1,2 --memory 16MiB,64GiB --requests 40 --trace";
    let dir = tempfile::tempdir().expect("a directory");
    let azure = dir.path().join("azure.csv");
    let lines: String = (0..50).map(|at| format!("2023-11-16 18:00:{at:02}.0000000,900,40\n")).collect();
    std::fs::write(&azure, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}")).expect("a file");
    let azure = azure.display().to_string();
    let slow = plan(&format!("{line} {azure} --ttft-ms 300")).await;
    assert_eq!(slow["racks"][0]["memory"], "none", "{slow}");
    let fast = plan(&format!("{line} {azure} --ttft-ms 300 --speed 1000")).await;
    let hosts = |plan: &Value| plan["racks"][0]["gpus"].as_u64().expect("a number");
    assert!(hosts(&fast) > hosts(&slow), "{fast}");
}
