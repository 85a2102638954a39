//! `cenote plan`: the Engram paper's tables, and any model's KV.

use super::support::process::bare;
use super::support::repository;
use serde_json::{Value, json};

async fn plan(line: &str) -> Value {
    let told = bare(line.split(' ').chain(["--json"])).ok().await;
    serde_json::from_str(&told.out).expect("JSON")
}

#[tokio::test]
async fn the_papers_tables_are_reproduced() {
    let plan = plan("plan engram --preset engram-27b").await;
    assert_eq!((&plan["layer_bytes"], &plan["row_bytes"]), (&json!(5120.0), &json!(320)));
    let figure = |name: &str| {
        let rows = plan["table_1"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row `{name}`"))["ours"].as_f64()
    };
    assert_eq!(figure("average bandwidth"), Some(0.7168));
    assert_eq!(figure("shortest window").map(f64::round), Some(56.0));
    let table_5 = plan["table_5"].as_array().expect("rows");
    assert_eq!(table_5.len(), 8);
    for row in table_5 {
        assert_eq!(row["paper"], row["ours"], "{row}");
    }
    let links = plan["tables"][0]["links"].as_array().expect("links");
    assert_eq!(links.iter().map(|link| link["fits"].clone()).collect::<Vec<_>>(), [json!(true), json!(false)]);
}

#[tokio::test]
async fn prices_links_and_ranks_are_flags() {
    let line = "plan engram --preset engram-40b --dram-price 10.94 --switch-price 5000 --link CXL=32 --tp 4 --dp 2 \
                --priced-nodes 3 --row-format bf16 --layers 36";
    let plan = plan(line).await;
    let gigabytes = plan["table_bytes"].as_f64().expect("a number") / 1e9;
    let cost = &plan["costs"][0];
    assert_eq!(cost["nodes"], json!(3));
    let pool = 5000.0 + 3.0 * 510.0 + gigabytes * 10.94;
    assert!((cost["pool"].as_f64().expect("a number") - pool).abs() < 1e-6, "{cost}");
    assert_eq!(plan["tables"][0]["links"][0]["link"], json!("CXL"));
    assert_eq!(plan["ranks"].as_array().map(Vec::len), Some(2));
    assert_eq!(plan["placements"][0]["copies"], json!(16));
}

#[tokio::test]
async fn plans_are_tables_without_json() {
    let told = bare(["plan", "engram", "--preset", "engram-27b"]).ok().await.out;
    for words in ["Table 1", "Table 3", "Table 5", "-3,820", "166,040", "A pool is"] {
        assert!(told.contains(words), "`{words}` is not said:\n{told}");
    }
    let config = repository("models/demo/config.json");
    let told = bare(["plan", "kv", "--model-config", config.to_str().expect("UTF-8")]).ok().await.out;
    for words in ["K and V of", "one more token", "the pool", "savings $"] {
        assert!(told.contains(words), "`{words}` is not said:\n{told}");
    }
}

#[tokio::test]
async fn the_demo_models_token_has_its_bytes() {
    let path = repository("models/demo/config.json");
    let config: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("it is there")).expect("JSON");
    let number = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("`{key}`"));
    let head = config["head_dim"].as_u64().unwrap_or_else(|| number("hidden_size") / number("num_attention_heads"));
    let bytes = number("num_hidden_layers") * number("num_key_value_heads") * head * 2 * 2;
    let line = format!("plan kv --value-bytes 2 --context 100 --sequences 3 --model-config {}", path.display());
    let plan = plan(&line).await;
    assert_eq!(plan["token_bytes"], json!(bytes as f64));
    assert_eq!(plan["total_bytes"], json!((bytes * 300) as f64));
}

#[tokio::test]
async fn impossible_plans_are_refused() {
    let config = repository("models/demo/config.json");
    let config = config.to_str().expect("UTF-8");
    bare(["plan", "engram", "--model-config", config]).fails(&["config.json: the model has no n-gram tables"]).await;
    for (flags, facts) in [
        ("--dram-price 0", "the price of DRAM is 0"),
        ("--pp 65", "at most 64"),
        ("--step-ms -1", "the time of a step is -0.001"),
        ("--link CXL", "NAME=GB/S"),
        ("--layers 10", "layer 14 has a table"),
        ("--row-format nvfp4", "`nvfp4` is no row format"),
    ] {
        let line = format!("plan engram --preset engram-27b {flags}");
        bare(line.split(' ')).fails(&[facts]).await;
    }
    bare(["plan", "kv", "--model-config", config, "--context", "0"]).fails(&["the context is 0"]).await;
    bare(["plan", "kv", "--model-config", "none.json"]).fails(&["none.json: cannot read the file"]).await;
}

/// The simulator is not linked into the program that serves.
#[tokio::test]
async fn racks_are_planned_by_the_other_program() {
    for flags in ["", " --help", " --rate 60 --ttft-ms 1000 --gpus-per-host 2"] {
        let (line, other) = (format!("plan rack{flags}"), format!("hint: run `cenote-lab plan rack{flags}`"));
        bare(line.split(' ')).fails(&["no simulator", &other]).await;
    }
}
