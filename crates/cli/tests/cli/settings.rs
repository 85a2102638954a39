//! Sources of settings: a flag beats a variable, a variable beats the file.

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

    // The same file by name, from another directory.
    let file = dir.path().join("cenote.toml");
    let named = cenote(["pool", "info", "--json", "--config", file.to_str().expect("UTF-8")]);
    assert_eq!(uuid(&named.ok().await), uuids[0]);
    assert_eq!(uuid(&cenote(["pool", "info", "--json"]).env("CENOTE_CONFIG", &file).ok().await), uuids[0]);
}

#[tokio::test]
async fn a_wrong_settings_file_is_named() {
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

/// In a folder that others can write, the file may be theirs; its settings open a server to others.
#[tokio::test]
async fn settings_of_others_are_refused() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let dir = tempfile::tempdir().expect("a directory");
    let (file, elsewhere) = (dir.path().join("cenote.toml"), dir.path().join("elsewhere.toml"));
    let doctor = || cenote(["doctor", "--json"]).current_dir(dir.path());
    let chmod = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("our file");
    std::fs::write(&file, "numa-node = \"planted\"\n").expect("it is written");
    for mode in [0o664, 0o646] {
        chmod(mode);
        let words = ["cenote.toml: cannot read the settings file", "other users can write", "chmod go-w", "--config"];
        doctor().fails(&words).await;
        let named = cenote(["doctor", "--config", file.to_str().expect("UTF-8")]);
        named.fails(&["cenote.toml: cannot read the settings file", "other users can write"]).await;
    }
    chmod(0o644);
    if rustix::process::geteuid().is_root() {
        chown(&file, Some(65_534), None).expect("root gives files away");
        doctor().fails(&["belongs to user 65534", "--config"]).await;
        chown(&file, Some(0), None).expect("root takes files");
    }
    std::fs::write(&file, "").expect("it is written");
    let outcome = doctor().ok().await;
    assert!(outcome.err.contains(&format!("note: settings of {}", file.display())), "{outcome:?}");

    // Any user may have made a link in the working directory; one that is named is the caller's choice.
    std::fs::rename(&file, &elsewhere).expect("our file");
    symlink(&elsewhere, &file).expect("a link");
    doctor().fails(&["symbolic link"]).await;
    let outcome = cenote(["doctor", "--json", "--config", file.to_str().expect("UTF-8")]).ok().await;
    assert!(!outcome.err.contains("settings of"), "{outcome:?}");
    std::fs::remove_file(&file).expect("our link");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &file,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a pipe");
    doctor().fails(&["no regular file"]).await;
}

/// Earlier, the parser blamed `--port` although only `CENOTE_PORT` was wrong.
#[tokio::test]
async fn a_wrong_variable_or_setting_is_named_instead_of_the_flag() {
    for (name, value, fact) in [
        ("CENOTE_PORT", "many", "CENOTE_PORT=many: invalid digit"),
        ("CENOTE_DTYPE", "f16", "CENOTE_DTYPE=f16: it must be one of f32, bf16"),
        ("CENOTE_REGION_SIZE", "-1", "CENOTE_REGION_SIZE=-1: `-1` is not a size"),
        ("CENOTE_KV_SIZE", "lots", "CENOTE_KV_SIZE=lots: `lots` is not a size"),
    ] {
        let refused = bare(["serve"]).env(name, value).run().await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.starts_with(&format!("error: {fact}")), "{refused:?}");
        assert!(refused.err.contains(&format!("hint: change or unset {name}, or give --")), "{refused:?}");
    }
    let flag = bare(["serve", "--port", "much"]).env("CENOTE_PORT", "many").run().await;
    assert!(flag.err.contains("'much' for '--port <PORT>'"), "{flag:?}");
    let secret = bare(["pool", "create"]).env("CENOTE_HASH_SEED", "my secret").run().await;
    assert!(secret.err.starts_with("error: CENOTE_HASH_SEED: a hash seed has 64 hex digits"), "{secret:?}");
    assert!(!secret.err.contains("my secret"), "{secret:?}");

    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("cenote.toml"), "[serve]\nport = \"some\"\n").expect("it is written");
    bare(["serve"]).current_dir(dir.path()).fails(&["error: cenote.toml: `port` is `some`: invalid digit"]).await;
}

#[tokio::test]
async fn a_port_in_use_names_the_next_step() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let serve = ["serve", "--no-pool", "--port", &port];
    cenote(serve).fails(&[&format!("127.0.0.1:{port}: the port is in use"), "hint: give another --port"]).await;
}

/// A command in a fresh clone of the repository has a model.
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
