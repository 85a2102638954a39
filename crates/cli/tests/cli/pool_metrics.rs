//! `cenote pool metrics`: a region's page without an engine.

use super::support::client::greedy;
use super::support::process::{Server, cenote};
use super::support::region::Region;
use super::support::{tokens, until};
use std::collections::BTreeMap;

/// The value of each series of a page in OpenMetrics' form, and the page's families.
fn parsed(page: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let (mut values, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    let mut helped = None;
    assert_eq!(page.lines().last(), Some("# EOF"), "{page}");
    for line in page.lines().take_while(|line| *line != "# EOF") {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a name and words");
            assert!(!words.is_empty() && !words.ends_with('.'), "{line}");
            helped = Some(name);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a kind");
            assert_eq!(helped, Some(name), "its help stands before its type");
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let family = series.split('{').next().expect("a name");
            let suffix = ["_total", "_bucket", "_count", "_sum"].into_iter().find(|suffix| family.ends_with(suffix));
            let base = family.trim_end_matches(suffix.unwrap_or_default());
            assert!(kinds.contains_key(family) || kinds.contains_key(base), "{line} has no type");
            assert!(values.insert(series.to_owned(), value.parse().expect("a number")).is_none(), "{line} comes twice");
        }
    }
    (values, kinds)
}

/// The only series of a family.
fn only(values: &BTreeMap<String, f64>, family: &str) -> f64 {
    let mut found = values.iter().filter(|(series, _)| series.split('{').next() == Some(family));
    let (_, value) = found.next().unwrap_or_else(|| panic!("{family} is not in {values:?}"));
    assert!(found.next().is_none(), "{family} has several series");
    *value
}

#[tokio::test]
async fn a_region_has_a_page_after_its_engine_has_ended() {
    let region = Region::create("256MiB").await;
    let server = Server::start(&["--region", &region.name]).await;
    server.client.complete(&greedy(&tokens(3, 200), 4)).await;
    until("the prompt's blocks", async || (region.info().await["blocks_ready"].as_u64() >= Some(12)).then_some(()))
        .await;
    server.stop().await;
    let info = region.info().await;
    let page = cenote(["pool", "metrics", "--region", &region.name]).ok().await.out;
    let (values, kinds) = parsed(&page);
    let number =
        |at: &str| info.pointer(at).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{at}: {info}"));
    for (family, at) in [
        ("cenote_region_bytes", "/region_bytes"),
        ("cenote_region_blocks", "/blocks_ready"),
        ("cenote_region_block_bytes", "/bytes_ready"),
        ("cenote_region_chunks", "/num_chunks"),
        ("cenote_model_blocks", "/namespaces/0/blocks"),
        ("cenote_model_used_bytes", "/namespaces/0/used_bytes"),
        ("cenote_host_chunks", "/hosts/0/chunks"),
        ("cenote_pool_published_total", "/counters/pool_published_total"),
    ] {
        assert_eq!(only(&values, family), number(at), "{family}");
        assert!(number(at) > 0.0, "{at}");
    }
    let free = number("/num_chunks") - number("/chunks_taken");
    assert_eq!(only(&values, "cenote_region_chunks_free"), free);
    assert_eq!(only(&values, "cenote_host_alive"), 0.0, "its processes have ended");
    assert_eq!(kinds.get("cenote_pool_published").map(String::as_str), Some("counter"));
    let again = cenote(["pool", "metrics", "--region", &region.name]).ok().await.out;
    assert_eq!(parsed(&again).0.keys().collect::<Vec<_>>(), values.keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn an_exporter_follows_the_name_of_a_region() {
    let region = Region::create("16MiB").await;
    let (name, bytes) = (region.name.as_str(), "cenote_region_bytes");
    let exporter = Server::of(cenote(["pool", "metrics", "--region", name, "--listen", "127.0.0.1:0"]), &[]).await;
    let scrape = async || parsed(&exporter.client.metrics().await).0;
    assert_eq!(only(&scrape().await, bytes), f64::from(16 << 20));
    cenote(["pool", "destroy", "--region", name]).ok().await;
    let gone = until("the region's end", async || {
        let values = scrape().await;
        (only(&values, "cenote_region_present") == 0.0).then_some(values)
    });
    assert!(gone.await.keys().all(|series| !series.starts_with(bytes)));
    cenote(["pool", "create", "--region", name, "--size", "32MiB"]).ok().await;
    until("the new region", async || {
        let values = scrape().await;
        (only(&values, "cenote_region_present") == 1.0).then(|| assert_eq!(only(&values, bytes), f64::from(32 << 20)))
    })
    .await;
    exporter.stop().await;
}

/// It counted all later processes as dead, and their counters as 0.
#[tokio::test]
async fn an_exporter_from_before_the_first_process_sees_it() {
    let region = Region::create("64MiB").await;
    let name = region.name.as_str();
    let exporter = Server::of(cenote(["pool", "metrics", "--region", name, "--listen", "127.0.0.1:0"]), &[]).await;
    let scrape = async || parsed(&exporter.client.metrics().await).0;
    assert!(scrape().await.keys().all(|series| !series.starts_with("cenote_workers{")));
    let server = Server::start(&["--region", name]).await;
    server.client.complete(&greedy(&tokens(3, 100), 4)).await;
    until("the server's process and its lookups", async || {
        let values = scrape().await;
        let lives = values.keys().any(|series| series.starts_with("cenote_workers{") && series.contains("alive"));
        (lives && only(&values, "cenote_pool_lookups_total") > 0.0).then_some(())
    })
    .await;
    assert_eq!(only(&scrape().await, "cenote_host_alive"), 1.0);
    server.stop().await;
    exporter.stop().await;
}

#[tokio::test]
async fn a_page_of_no_region_is_an_error() {
    let region = Region::name_only();
    cenote(["pool", "metrics", "--region", &region.name]).fails(&["no such region", "cenote pool create"]).await;
}
