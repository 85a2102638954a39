//! Sealed regions from the command line: keys, refusals, rotation, workers and a cold tier below.

use super::support::client::greedy;
use super::support::process::{Server, cenote};
use super::support::region::{Region, remove};
use super::support::{tokens, until};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const ONE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const TWO: &str = "f0e1d2c3b4a5968778695a4b3c2d1e0ff0e1d2c3b4a5968778695a4b3c2d1e0f";

/// A file with these keys.
fn key_file(folder: &Path, keys: &[&str]) -> PathBuf {
    let path = folder.join(format!("keys-{}", keys.iter().map(|key| &key[..2]).collect::<String>()));
    std::fs::write(&path, keys.join("\n")).expect("it is written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    path
}

#[tokio::test]
async fn a_sealed_region_takes_keys_and_changes_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, both, two] = [&[ONE][..], &[TWO, ONE], &[TWO]].map(|keys| key_file(folder.path(), keys));
    let [one, both, two] = [&one, &both, &two].map(|path| path.to_str().expect("its path is text"));
    let region = Region::name_only();
    let name = region.name.as_str();
    let create = ["pool", "create", "--region", name, "--size", "64MiB", "--seal", "encrypt"];
    let refused = cenote(create).run().await;
    assert!(refused.code == Some(1) && refused.err.contains("openssl rand -hex 32"), "{refused:?}");
    let unsealed = ["pool", "create", "--region", name, "--size", "64MiB", "--seal-key-file", one];
    let refused = cenote(unsealed).run().await;
    assert!(refused.code == Some(1) && refused.err.contains("--seal is none"), "{refused:?}");
    cenote([&create[..], &["--seal-key-file", one]].concat()).ok().await;
    let info = region.info().await;
    assert_eq!((&info["seal"], info["seal_keys"].as_array().map(Vec::len)), (&"encrypt".into(), Some(1)), "{info}");
    let gc = async |keys: &[&str]| cenote([&["pool", "gc", "--region", name], keys].concat()).run().await;
    let without = gc(&[]).await;
    assert!(without.code == Some(1) && without.err.contains("--seal-key-file"), "{without:?}");
    assert_eq!(gc(&["--seal-key-file", one]).await.code, Some(0));
    let early = gc(&["--seal-key-file", both]).await;
    assert!(early.code == Some(1) && early.err.contains("cenote pool rotate"), "{early:?}");
    let rotate = ["pool", "rotate", "--region", name, "--seal-key-file"];
    let unknown = cenote([&rotate[..], &[two]].concat()).run().await;
    assert!(unknown.code == Some(1) && unknown.err.contains("none of the keys"), "{unknown:?}");
    cenote([&rotate[..], &[both]].concat()).ok().await;
    for keys in [one, both, two] {
        assert_eq!(gc(&["--seal-key-file", keys]).await.code, Some(0), "{keys}");
    }
    cenote([&rotate[..], &[both, "--only"]].concat()).ok().await;
    let command = format!("cat {two}");
    assert_eq!(gc(&["--seal-key-command", &command]).await.code, Some(0));
    assert_eq!(gc(&["--seal-key-file", one]).await.code, Some(1));
    remove(name);
}

/// A front with workers: the keys reach them, and the cold tier below is sealed, too.
#[tokio::test]
async fn a_server_seals_its_region_and_its_cold_tier() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = key_file(folder.path(), &[ONE]);
    let keys = keys.to_str().expect("its path is text");
    let place = folder.path().join("cold");
    let cold = format!("{},size=256MiB,deadline=60", place.display());
    let region = Region::name_only();
    let flags = [
        "--region",
        &region.name,
        "--region-size",
        "256MiB",
        "--cold",
        &cold,
        "--seal",
        "encrypt",
        "--seal-key-file",
        keys,
        "--prefill",
        "1",
        "--decode",
        "1",
    ];
    let server = Server::start(&flags).await;
    let body = greedy(&tokens(1, 400), 4);
    let first = server.client.complete(&body).await;
    let again = server.client.complete(&body).await;
    assert_eq!((first.cached_tokens, &again.text), (0, &first.text));
    assert!(again.cached_tokens > 0, "the region has the prompt");
    let info = async || {
        let arguments = ["pool", "info", "--json", "--region", &region.name, "--cold", &cold, "--seal-key-file", keys];
        cenote(arguments).ok().await.json()
    };
    until("the blocks are written", async || {
        (info().await["cold"]["blocks"].as_u64() >= Some(again.cached_tokens / 16)).then_some(())
    })
    .await;
    server.stop().await;
    remove(&region.name);
    let server = Server::start(&flags).await;
    let warm = server.client.complete(&body).await;
    assert_eq!(warm.text, first.text);
    assert!(warm.cached_tokens > 0, "the sealed place has the prompt");
    server.stop().await;
    remove(&region.name);
    let unsealed = cenote(["pool", "cold", "--cold", &cold]).run().await;
    assert!(unsealed.code == Some(1) && unsealed.err.contains("seal"), "{unsealed:?}");
    cenote(["pool", "cold", "--cold", &cold, "--seal", "encrypt", "--seal-key-file", keys]).ok().await;
}
