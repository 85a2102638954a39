//! `/metrics` follows Prometheus' rules, even if workers die.

use super::support::client::greedy;
use super::support::process::{Server, signal};
use super::support::{tokens, until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;

/// A page of metrics: the kind of each family, and the value of each series.
#[derive(Default)]
struct Page {
    kinds: BTreeMap<String, String>,
    values: BTreeMap<String, f64>,
}

impl Page {
    /// Parses a page, and checks its form.
    async fn of(server: &Server) -> Self {
        let text = server.client.metrics().await;
        let mut page = Self::default();
        let mut helped = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').expect("a name and words");
                assert_ne!(words, "A statistic of the engine", "{name} has no help");
                name.clone_into(&mut helped);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a kind");
                assert_eq!(name, helped, "its help stands before its type");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
                assert!(page.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a series and a value");
                page.values.insert(series.to_owned(), value.parse().expect("a number"));
            }
        }
        page
    }

    fn counters(&self) -> impl Iterator<Item = (&String, f64)> {
        let is_counter = |series: &str| {
            let family = series.split('{').next().expect("a name");
            self.kinds.get(family).is_some_and(|kind| kind == "counter")
        };
        self.values.iter().filter(move |(series, _)| is_counter(series)).map(|(series, value)| (series, *value))
    }
}

#[tokio::test]
async fn counters_only_grow_when_workers_are_killed() {
    let server = Server::start(&["--prefill", "1", "--decode", "1", "--region-size", "256MiB"]).await;
    let mut last = Page::of(&server).await;
    for round in 0..3 {
        server.client.complete(&greedy(&tokens(round, 60), 20)).await;
        let tokens = "cenote_generation_tokens_total";
        // An engine publishes its counters periodically.
        until("the counted tokens", async || {
            let now = server.client.metric(tokens).await;
            (now >= 20.0 * (round + 1) as f64).then_some(())
        })
        .await;
        last = Page::of(&server).await;
        let health = server.client.health().await;
        let pids: Vec<u64> =
            health["process_ids"].as_array().expect("an array").iter().filter_map(Value::as_u64).collect();
        assert_eq!(pids.len(), 2, "{health}");
        signal(pids[round as usize % 2] as u32, Signal::KILL);
        until("the next worker", async || {
            let restarts = server.client.metric("cenote_worker_restarts_total").await;
            (restarts > round as f64 && server.client.metric("cenote_workers_alive").await == 2.0).then_some(())
        })
        .await;
        let now = Page::of(&server).await;
        for (series, before) in last.counters() {
            assert!(
                now.values.get(series) >= Some(&before),
                "{series} fell from {before} to {:?}",
                now.values.get(series)
            );
        }
        last = now;
    }
    let names: Vec<&String> = last.counters().map(|(series, _)| series).collect();
    assert!(names.len() > 40, "{names:?}");
    server.stop().await;
}

#[tokio::test]
async fn one_process_has_help_for_all_it_measures() {
    let server = Server::start(&["--region-size", "64MiB"]).await;
    server.client.complete(&greedy(&tokens(1, 40), 4)).await;
    let page = Page::of(&server).await;
    assert!(page.kinds["cenote_kv_blocks"] == "gauge" && page.values["cenote_kv_blocks"] > 0.0);
    server.stop().await;
}
