//! `cenote-train train --engram` from text to a measured model.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn train(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_cenote-train"))
        .args(arguments)
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints JSON")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("it prints JSON")
}

/// Trains a small model in `out`; returns the summary.
fn small(text: &Path, out: &Path, engram: &[&str]) -> Value {
    let (text, out) = (text.display().to_string(), out.display().to_string());
    let mut arguments = vec!["train", "--text", &text, "--out", &out, "--vocab", "280", "--context", "64"];
    arguments.extend(["--hidden", "64", "--intermediate", "64", "--layers", "2", "--heads", "1", "--kv-heads", "1"]);
    arguments.extend(["--steps", "8", "--step-tokens", "64", "--length", "16", "--length-middle", "32"]);
    arguments.extend(["--length-long", "64", "--warm-up", "1", "--rate", "0.01"]);
    json(&train(&[&arguments[..], engram].concat()))
}

#[test]
fn a_model_with_tables_is_trained_saved_and_measured() {
    let folder = tempfile::tempdir().expect("the folder for temporary files is writable");
    let text = folder.path().join("text");
    // Two letters decide the next one, and no letter alone does.
    let line = "abc bca cab acb bac cba ".repeat(200);
    std::fs::write(&text, line).expect("the folder is writable");
    let (with, without) = (folder.path().join("with"), folder.path().join("without"));
    let tables = ["--engram", "--engram-layers", "1", "--engram-heads", "2", "--engram-rows", "100"];
    let summary = small(&text, &with, &tables);
    let plain = small(&text, &without, &[]);
    let loss = |summary: &Value| summary["held_out"][0]["loss"].as_f64().expect("a number");
    assert!(loss(&summary) < 280_f64.ln(), "{summary}");
    assert_ne!(loss(&summary), loss(&plain));

    let config = json(&std::fs::read_to_string(with.join("config.json")).expect("it was written"));
    let rows = config["engram_num_embeddings"][0].as_u64().expect("a number");
    // Primes from 100 on: 101, 103, 107, 109.
    assert_eq!(rows, 101 + 103 + 107 + 109);
    let table = 16 * rows;
    // A projection to a key and a value, and two norms.
    let module = 2 * 64 * 4 * 16 + 2 * 64;
    let parameters = |summary: &Value| summary["parameters"].as_u64().expect("a number");
    assert_eq!(parameters(&summary), parameters(&plain) + table + module);
    let bytes = std::fs::metadata(with.join("engram.safetensors")).expect("it was written").len();
    assert!((table..table + 1000).contains(&bytes), "{bytes} bytes for a byte each value");
    assert!(!without.join("engram.safetensors").exists());

    // The rounded model is what is measured, so a second measurement gives the same.
    let (model, text) = (with.display().to_string(), text.display().to_string());
    let again = json(&train(&["evaluate", "--model", &model, "--text", &text, "--window", "16"]));
    assert_eq!(again, summary["held_out"][0]);
    // Equal flags give equal weights.
    let third = folder.path().join("third");
    std::fs::create_dir(&third).expect("the folder is writable");
    small(Path::new(&text), &third, &tables);
    let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).expect(name);
    for name in ["model.safetensors", "engram.safetensors", "config.json"] {
        assert_eq!(read(&with, name), read(&third, name), "{name}");
    }
}
