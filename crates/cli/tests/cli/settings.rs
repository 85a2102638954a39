//! Where settings come from: a flag beats a variable, a variable beats the file.

use super::support::process::{bare, cenote};
use super::support::region::Region;
use super::support::repository;
use serde_json::Value;

fn uuid(outcome: &super::support::process::Outcome) -> Value {
    outcome.json()["uuid"].clone()
}

#[tokio::test]
async fn a_flag_beats_a_variable_and_a_variable_beats_the_file() {
    let regions = [Region::create("8MiB").await, Region::create("8MiB").await, Region::create("8MiB").await];
    let [in_file, in_variable, in_flag] = regions.each_ref().map(|region| region.name.as_str());
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("cenote.toml"), format!("region = \"{in_file}\"\n")).expect("it is written");
    let mut uuids = Vec::new();
    for region in &regions {
        uuids.push(region.info().await["uuid"].clone());
    }
    let info = || cenote(["pool", "info", "--json"]).current_dir(dir.path());
    assert_eq!(uuid(&info().ok().await), uuids[0]);
    assert_eq!(uuid(&info().env("CENOTE_REGION", in_variable).ok().await), uuids[1]);
    let flag = cenote(["pool", "info", "--json", "--region", in_flag]).current_dir(dir.path());
    assert_eq!(uuid(&flag.env("CENOTE_REGION", in_variable).ok().await), uuids[2]);

    // The same file by name, from elsewhere.
    let file = dir.path().join("cenote.toml");
    let named = cenote(["pool", "info", "--json", "--config", file.to_str().expect("UTF-8")]);
    assert_eq!(uuid(&named.ok().await), uuids[0]);
    assert_eq!(uuid(&cenote(["pool", "info", "--json"]).env("CENOTE_CONFIG", &file).ok().await), uuids[0]);
}

#[tokio::test]
async fn a_wrong_settings_file_is_told_with_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cenote.toml");
    for (text, fact) in [
        ("regiom = \"shm:x\"\n", "`regiom` is not a setting"),
        ("[serve]\nport = [1]\n", "`serve.port` must be"),
        ("region = \n", "TOML parse error"),
    ] {
        std::fs::write(&file, text).expect("it is written");
        cenote(["doctor"]).current_dir(dir.path()).fails(&["cenote.toml", fact]).await;
    }
    cenote(["doctor", "--config", "no-such-file.toml"]).fails(&["no-such-file.toml", "cannot read"]).await;
}

/// Who clones the repository and types a command in it has a model.
#[tokio::test]
async fn the_demo_model_is_found_from_the_repository() {
    let generate = ["generate", "--prompt", "A cenote is", "--max-tokens", "2", "--json"];
    bare(generate).current_dir(repository("")).ok().await.json();
}

#[tokio::test]
async fn the_doctor_speaks_json() {
    let outcome = cenote(["doctor", "--json"]).ok().await;
    let diagnosis = outcome.json();
    assert!(diagnosis["machine"]["architecture"].is_string(), "{diagnosis}");
    assert!(diagnosis["advice"].is_array(), "{diagnosis}");
    assert!(cenote(["doctor"]).ok().await.out.contains("regions to choose from"));
}
