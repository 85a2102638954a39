//! The page's file, the requests that are answered, and what charts show of a look.

use super::charts::{self, Point};
use super::guard::is_no_foreign_name;
use crate::gauges::Look;
use crate::observer::Observed;
use crate::rates::Rates;
use cenote_pool::{Counter, PoolInfo};
use std::sync::Arc;

const PAGE: &str = include_str!("page.html");

#[test]
fn a_name_that_may_lead_elsewhere_is_foreign() {
    for host in ["localhost", "LOCALHOST:9471", "127.0.0.1:9471", "[::1]:9471", "[::1]", "192.168.1.7:80", "10.0.0.1"] {
        assert!(is_no_foreign_name(host), "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:9471",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "localhost.",
        "",
        ":9471",
        "[::1",
        "127.1",
        "0x7f000001",
    ] {
        assert!(!is_no_foreign_name(host), "{host}");
    }
}

/// Names in a region are input of others: text may become markup in none of these ways.
#[test]
fn the_page_has_no_way_from_text_to_markup() {
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "createContextualFragment",
        "DOMParser",
        "srcdoc",
        "eval(",
        "Function(",
        "javascript:",
        " onclick",
        " onload",
        " style=\"",
    ] {
        assert!(!PAGE.contains(way), "{way}");
    }
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let addresses = PAGE.match_indices("//").map(|(at, _)| &PAGE[at.saturating_sub(6)..(at + 40).min(PAGE.len())]);
    let elsewhere: Vec<&str> =
        addresses.filter(|around| around.contains("://") && !around.contains("www.w3.org/2000/svg")).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    for reference in [" src=", "@import", "url(", "<link rel=\"stylesheet", "fetch('//"] {
        assert!(!PAGE.contains(reference), "{reference}");
    }
}

#[test]
fn script_and_style_carry_the_word_of_the_policy() {
    for tag in ["<script", "<style"] {
        let tags: Vec<&str> = PAGE.match_indices(tag).map(|(at, _)| &PAGE[at..at + 32]).collect();
        assert_eq!(tags.len(), 1, "{tags:?}");
        assert!(tags[0].starts_with(&format!("{tag} nonce=\"{{{{nonce}}}}\"")), "{tags:?}");
    }
}

fn look(chunks_taken: u64, counts: &[(Counter, u64)]) -> Arc<Look> {
    let counters = counts.iter().map(|(counter, count)| (counter.name(), *count)).collect();
    let info =
        PoolInfo { num_chunks: 8, chunks_taken, data_bytes: 1000, bytes_ready: 250, counters, ..PoolInfo::default() };
    Arc::new(Look { info, ..Look::default() })
}

#[test]
fn a_point_has_the_value_of_each_line() {
    let (before, now) = (
        look(2, &[]),
        look(
            6,
            &[
                (Counter::Lookups, 100),
                (Counter::Found, 90),
                (Counter::ColdHits, 30),
                (Counter::Evicted, 8),
                (Counter::NoRoom, 2),
                (Counter::QuotaRefused, 4),
            ],
        ),
    );
    let charts = charts::all();
    let seen =
        Observed { rates: Rates::between(&before, &now, 2.0), look: now, now_us: 5_000_000, ..Observed::default() };
    let text = serde_json::to_value(&charts).expect("JSON");
    let labels: Vec<String> = text
        .as_array()
        .expect("charts")
        .iter()
        .flat_map(|chart| {
            let name = chart["name"].as_str().expect("a name");
            chart["lines"]
                .as_array()
                .expect("lines")
                .iter()
                .map(move |line| format!("{name}/{}", line["label"].as_str().expect("a text")))
        })
        .collect();
    let point = Point::of(&charts, &seen);
    assert_eq!((point.time, point.values.len()), (5.0, labels.len()));
    let of = |label: &str| point.values[labels.iter().position(|known| known == label).expect(label)];
    for (label, value) in [
        ("fill/chunks taken", 0.75),
        ("fill/readable blocks", 0.25),
        ("hits/region (L3)", 0.6),
        ("hits/cold tier (L4)", 0.3),
        ("misses/in no tier", 5.0),
        ("changes/evicted", 4.0),
        ("changes/refused", 3.0),
    ] {
        assert_eq!(of(label), Some(value), "{label}");
    }
    // At the first look there are no rates, and without lookups there is no share.
    let first = Point::of(&charts, &Observed { look: look(6, &[]), ..Observed::default() });
    assert_eq!(first.values.iter().flatten().count(), 2, "{first:?}");
    assert_eq!(Point::of(&charts, &Observed::default()).values.iter().flatten().count(), 0, "it has no chunks");
}
