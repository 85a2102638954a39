//! `cenote pool diff`: "why no hits?" has an answer.

use super::support::process::cenote;
use super::support::region::Region;

/// Enters the namespace of an engine with these flags.
async fn engine(region: &Region, flags: &[&str]) {
    let generate = ["generate", "--prompt", "x", "--max-tokens", "1", "--region", &region.name];
    cenote(generate.iter().chain(flags).copied()).ok().await;
}

async fn diff(region: &Region, names: &[&str]) -> String {
    cenote(["pool", "diff", "--region", &region.name].iter().chain(names).copied()).ok().await.out
}

#[tokio::test]
async fn the_facts_that_differ_are_named() {
    let region = Region::create("64MiB").await;
    let alone = ["pool", "diff", "--region", &region.name];
    cenote(alone).fails(&["nothing to compare", "has 0 fingerprints", "hint: "]).await;
    engine(&region, &[]).await;
    cenote(alone).fails(&["nothing to compare", "has 1 fingerprints"]).await;
    engine(&region, &["--block-tokens", "32", "--tenant-salt", "a secret"]).await;
    engine(&region, &["--block-tokens", "32"]).await;

    // The newest is compared with all others, the most alike first.
    let text = diff(&region, &[]).await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("2 demo (") && lines[0].ends_with(" differ in 1 fact"), "{text}");
    assert!(lines[1].starts_with("  tenant salt: none | ") && !text.contains("a secret"), "{text}");
    assert!(lines[2].contains(" and 0 demo (") && lines[2].ends_with(" differ in 2 facts"), "{text}");
    assert_eq!(lines[3], "  block tokens: 32 | 16");
    assert!(lines[4].starts_with("  page bytes: "), "{text}");
    assert_eq!(lines.len(), 5, "{text}");

    let info = region.info().await;
    let fingerprint = info["namespaces"][1]["fingerprint"].as_str().expect("a text");
    let text = diff(&region, &["0", &fingerprint[..12]]).await;
    assert!(text.contains("differ in 3 facts") && text.contains("\n  block tokens: 16 | 32\n"), "{text}");
    assert!(diff(&region, &["1"]).await.starts_with("1 demo ("));
    cenote(["pool", "diff", "--region", &region.name, "7"]).fails(&["`7` does not name one of its models"]).await;

    let json = cenote(["pool", "diff", "--region", &region.name, "2", "0", "--json"]).ok().await.json();
    assert_eq!(json[0]["differences"][0]["fact"], "block tokens");
    assert_eq!((&json[0]["differences"][0]["one"], &json[0]["differences"][0]["other"]), (&"32".into(), &"16".into()));
    region.expect_clean_and_idle().await;
}

#[tokio::test]
async fn a_region_without_room_for_facts_says_that_it_has_none() {
    let region = Region::name_only();
    let create = ["pool", "create", "--region", &region.name, "--size", "24MiB", "--max-hosts", "1"];
    cenote(create).ok().await;
    engine(&region, &[]).await;
    engine(&region, &["--block-tokens", "32"]).await;
    let text = diff(&region, &[]).await;
    assert!(text.contains("no facts are recorded of 1 demo (") && text.contains("fewer than 16 chunks"), "{text}");
    assert_eq!(region.info().await["objects"], 0);
}
