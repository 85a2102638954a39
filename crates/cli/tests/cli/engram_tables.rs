//! `cenote engram load`, `info`, `check` and `drop`: tables of a file in a region.

use super::support::process::cenote;
use super::support::region::Region;
use super::support::repository;
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const ROWS: usize = 4096;
const VALUES: usize = 64;

/// Writes a safetensors file with a bf16 table.
fn table_file(folder: &Path, name: &str) -> PathBuf {
    let bytes = ROWS * VALUES * 2;
    let header = json!({"t": {"dtype": "BF16", "shape": [ROWS, VALUES], "data_offsets": [0, bytes]}}).to_string();
    let mut content = (header.len() as u64).to_le_bytes().to_vec();
    content.extend_from_slice(header.as_bytes());
    content.extend((0..bytes).map(|at| (at * 31 % 251) as u8));
    let path = folder.join(name);
    std::fs::write(&path, content).expect("the folder can be written");
    path
}

fn line<'a>(region: &'a Region, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["engram", command, "--region", &region.name].into_iter().chain(more.iter().copied()).collect()
}

#[tokio::test]
async fn a_table_is_loaded_checked_damaged_and_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = table_file(folder.path(), "t.safetensors");
    let file = file.to_str().expect("UTF-8");
    let region = Region::create("64MiB").await;
    let none = cenote(line(&region, "info", &[])).ok().await;
    assert!(none.out.contains("has no tables"), "{}", none.out);
    let load = line(&region, "load", &["--weights", file, "--tensor", "t", "--table", "words"]);
    let loaded = cenote(load.iter().copied().chain(["--json"])).ok().await.json();
    assert_eq!((&loaded[0]["outcome"], &loaded[0]["rows"]), (&"loaded".into(), &ROWS.into()), "{loaded}");
    let found = cenote(load.iter().copied().chain(["--json"])).ok().await.json();
    assert_eq!((&found[0]["outcome"], &found[0]["digest"]), (&"found".into(), &loaded[0]["digest"]), "{found}");
    let info = cenote(line(&region, "info", &["--json"])).ok().await.json();
    assert_eq!((&info[0]["name"], &info[0]["state"]), (&"words".into(), &"sealed".into()), "{info}");
    cenote(line(&region, "check", &[])).ok().await;

    // Memory of a worker that has ended, but no leak.
    cenote(["pool", "gc", "--region", &region.name, "--free-memory", "dead"]).ok().await;
    let checked = cenote(line(&region, "check", &["words", "--json"])).ok().await.json();
    assert_eq!(checked[0]["is_whole"], true, "{checked}");
    region.expect_clean_and_idle().await;

    // A snapshot has no table, because extents have no meaning elsewhere.
    let snapshot = folder.path().join("snapshot");
    let other = Region::name_only();
    cenote(["pool", "snapshot", "--region", &region.name, snapshot.to_str().expect("UTF-8")]).ok().await;
    cenote(["pool", "restore", "--region", &other.name, snapshot.to_str().expect("UTF-8")]).ok().await;
    assert_eq!(cenote(line(&other, "info", &["--json"])).ok().await.json(), json!([]));

    let another = table_file(folder.path(), "another.safetensors");
    let flags = ["--weights", another.to_str().expect("UTF-8"), "--tensor", "t", "--table", "words"];
    cenote(line(&region, "load", &flags)).fails(&["has another table `words`", "other files", "hint: ", "drop"]).await;

    // One byte of the region's rows changes.
    let bytes = std::fs::read(region.path()).expect("shared memory");
    let start: Vec<u8> = (0..64).map(|at| (at * 31 % 251) as u8).collect();
    let at = bytes.windows(64).position(|window| window == start).expect("the rows are there") + 5;
    let memory = std::fs::File::options().write(true).open(region.path()).expect("shared memory");
    memory.write_all_at(&[bytes[at] ^ 1], at as u64).expect("it can be written");
    let damaged = cenote(line(&region, "check", &[])).run().await;
    assert_eq!(damaged.code, Some(2), "{damaged:?}");

    cenote(line(&region, "drop", &["words"])).ok().await;
    cenote(line(&region, "drop", &["words"])).fails(&["has no table `words`", "hint: "]).await;
    let info = region.info().await;
    assert_eq!((&info["memory"]["pieces"], &info["objects"]), (&0.into(), &0.into()), "{info}");
}

/// `run-1/final` and `run-2/final` had tables of one name, so a server with the second model read the
/// first one's.
#[tokio::test]
async fn folders_of_one_name_have_tables_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let region = Region::create("64MiB").await;
    let demo = repository("models/demo-engram");
    for run in ["run-1", "run-2"] {
        let model = folder.path().join(run).join("final");
        std::fs::create_dir_all(&model).expect("the folder can be written");
        for name in ["config.json", "engram.safetensors", "model.safetensors"] {
            let from = demo.join(name);
            if from.exists() {
                std::fs::copy(from, model.join(name)).expect("the folder can be written");
            }
        }
        let model = model.to_str().expect("UTF-8");
        let loaded = cenote(line(&region, "load", &["--model", model, "--json"])).ok().await.json();
        for table in loaded.as_array().expect("tables") {
            let name = table["table"].as_str().expect("a name");
            assert!(name.starts_with("final-") && table["outcome"] == "loaded", "{run}: {loaded}");
        }
        // Again, with another path to it.
        let again = format!("{model}/../final/.");
        let found = cenote(line(&region, "load", &["--model", &again, "--json"])).ok().await.json();
        assert_eq!((&found[0]["table"], &found[0]["outcome"]), (&loaded[0]["table"], &"found".into()));
    }
}

#[tokio::test]
async fn loads_that_cannot_be_leave_nothing_and_say_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = table_file(folder.path(), "t.safetensors");
    let region = Region::create("64MiB").await;
    let load = |file: &Path, more: &[&str]| {
        let flags = ["--weights", file.to_str().expect("UTF-8"), "--table", "t"];
        cenote(line(&region, "load", &flags).into_iter().chain(more.iter().copied()))
    };
    load(&file, &["--tensor", "u"]).fails(&["there is no tensor `u`"]).await;
    load(&file, &["--tensor", "t", "--scale", "1"]).fails(&["have no table scale"]).await;
    let short = folder.path().join("short.safetensors");
    let whole = std::fs::read(&file).expect("it was written");
    std::fs::write(&short, &whole[..whole.len() - 1]).expect("the folder can be written");
    load(&short, &["--tensor", "t"]).fails(&["truncated or damaged"]).await;
    load(&folder.path().join("none"), &["--tensor", "t"]).fails(&["none"]).await;
    let model = folder.path().to_str().expect("UTF-8");
    cenote(line(&region, "load", &["--model", model])).fails(&["config.json"]).await;
    let small = Region::create("24MiB").await;
    // Its free chunks are fewer than the table needs.
    let large = folder.path().join("large.safetensors");
    let bytes = 30 << 20;
    let header = json!({"t": {"dtype": "BF16", "shape": [bytes / 128, 64], "data_offsets": [0, bytes]}}).to_string();
    let mut content = (header.len() as u64).to_le_bytes().to_vec();
    content.extend_from_slice(header.as_bytes());
    content.resize(content.len() + bytes, 7);
    std::fs::write(&large, content).expect("the folder can be written");
    let flags = ["--weights", large.to_str().expect("UTF-8"), "--tensor", "t", "--table", "t"];
    cenote(line(&small, "load", &flags)).fails(&["make a larger region"]).await;
    for region in [&region, &small] {
        let info = region.info().await;
        assert_eq!((&info["memory"]["pieces"], &info["objects"]), (&0.into(), &0.into()), "{info}");
    }
}

/// The engine reads rows from the region, and its text is that of an engine with rows of its own.
#[tokio::test]
async fn an_engine_reads_its_rows_from_the_region() {
    let model = repository("models/demo-engram");
    let model = model.to_str().expect("UTF-8");
    let region = Region::create("64MiB").await;
    let ask = |more: &[&str]| {
        let words = [
            "generate",
            "--model",
            model,
            "--prompt",
            "The region of the",
            "--max-tokens",
            "24",
            "--ignore-eos",
            "--json",
        ];
        cenote(words.into_iter().chain(more.iter().copied()))
    };
    let alone = ask(&[]).ok().await.json();
    let shared = ["--region", region.name.as_str(), "--engram-tables", "words"];
    ask(&shared).fails(&["has no table `words.L", "hint: "]).await;
    cenote(line(&region, "load", &["--model", model, "--table", "words"])).ok().await;
    let from_region = ask(&shared).ok().await.json();
    assert_eq!(alone["tokens"].as_array().map(Vec::len), Some(24), "{alone}");
    assert_eq!((&alone["tokens"], &alone["text"]), (&from_region["tokens"], &from_region["text"]));
    // Without a region, and for a model without tables, the flag has no meaning.
    ask(&["--engram-tables", "words"]).fails(&["without a region"]).await;
    let demo = repository("models/demo");
    let flags = ["generate", "--model", demo.to_str().expect("UTF-8"), "--prompt", "x", "--max-tokens", "1"];
    cenote(flags.into_iter().chain(shared)).fails(&["reads no n-gram tables"]).await;
}
