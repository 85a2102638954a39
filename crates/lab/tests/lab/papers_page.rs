//! The page of `reproduce all` in a headless Chromium: its height, and that it is legible on phones and wide
//! screens. Its rows have the verdicts and reasons of the committed document, because computing them takes minutes.

use super::browser::{Browser, FAINT};
use super::support::repository;
use cenote_lab::reproduce::report::Report;
use cenote_lab::reproduce::row::{Measured, Printed, Row, Sensitivity, join};
use cenote_lab::reproduce::{Draws, PAPERS, Paper, Reproduction, page};
use serde_json::Value;

/// The greatest height of the page at 1,280 pixels with all rows folded.
const HEIGHT: u64 = 15_000;

/// The reason of a row that the document does not have yet: as long as most.
const REASON: &str = "no table, figure or price in the paper leads to it, so the rate is an assumption, varied below";
/// Begins the reason of a row that could not come out otherwise.
const TIED: &str = "could not come out otherwise";

/// A row's verdict and reason in the document.
fn told(document: &str, paper: &Paper, printed: &Printed) -> Option<(String, String)> {
    let name = printed.id.strip_prefix(paper.id)?.strip_prefix('.')?;
    let section = document.split(&format!("<!-- generated: reproduce {} -->", paper.id)).nth(1)?;
    let section = section.split("<!-- end -->").next()?;
    let line = section.lines().find(|line| line.starts_with(&format!("| `{name}` |")))?;
    let line = line.replace("| |", "|  |").replace("| |", "|  |").replace("\\|", "!");
    let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
    Some(((*cells.get(5)?).to_owned(), cells.get(6)?.trim_end_matches('|').trim().to_owned()))
}

/// A row with that verdict, as far as one value for all can give it, and values of four digits.
fn row(document: &str, paper: &Paper, printed: &Printed) -> Row {
    if printed.is_arithmetic {
        return join(printed, None);
    }
    let told = told(document, paper, printed).unwrap_or_else(|| ("contradicted".to_owned(), REASON.to_owned()));
    let (verdict, reason) = (told.0.as_str(), told.1.split(TIED).next().expect("a part").trim_end_matches("; "));
    let why: &'static str = Box::leak(reason.to_owned().into_boxed_str());
    let of = |factor: f64| -> Vec<f64> { printed.values.iter().map(|value| value * factor).collect() };
    let new = |factor: f64| Measured::new(printed.id, of(factor), why);
    let measured = if verdict.starts_with("not testable") {
        Measured::not_testable(printed.id, why)
    } else if let Some(parameters) = verdict.strip_prefix("depends on ") {
        let flips = |row: Measured, name: &str| {
            row.sensitive(Sensitivity::of(name, &of(1.000_3), &["another"], |_| of(-1.234_5)))
        };
        parameters.split(", ").fold(new(1.000_3), flips)
    } else if verdict.starts_with("undecided") {
        Measured::combine(&[new(0.2), new(1.8)])
    } else if told.1.contains(TIED) {
        new(1.0).tied("an input")
    } else if verdict.starts_with("reproduced") {
        new(1.000_3)
    } else if verdict.starts_with("direction") {
        new(1.234_5)
    } else {
        new(-1.234_5)
    };
    join(printed, Some(&measured))
}

fn whole_page() -> String {
    let document = std::fs::read_to_string(repository("docs/evidence/papers.md")).expect("the document");
    let of = |paper: &&Paper| Reproduction {
        paper: paper.id,
        title: paper.title,
        is_whole: true,
        rows: paper.printed.iter().map(|printed| row(&document, paper, printed)).collect(),
    };
    let draws = Draws { seed: 1, runs: Draws::RUNS };
    let report = Report::new("0".repeat(40), draws, PAPERS.iter().map(of).collect());
    page::html(&report, "target/release/cenote-lab reproduce all --seed 1 --html papers.html")
}

#[tokio::test]
async fn the_page_of_all_papers_is_short_and_legible() {
    let Some(browser) = Browser::start().await else {
        cenote_base::testing::skip("the page of `reproduce`: chromium and chromedriver are not installed");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("papers.html");
    std::fs::write(&file, whole_page()).expect("a file");
    let url = format!("file://{}", file.display());
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        let what = format!("{width} pixels in {scheme}");
        browser.look(width, 900, scheme).await;
        browser.open("about:blank").await;
        browser.open(&url).await;
        browser.wait("the page", &format!("document.readyState === 'complete' && innerWidth === {width}")).await;
        let size = "const page = document.documentElement; return [page.scrollWidth, page.scrollHeight];";
        let size = browser.run(size).await;
        let [wide, high] = [0, 1].map(|at| size[at].as_u64().expect("a number"));
        assert!(wide <= u64::from(width), "{what}: {wide} pixels wide");
        assert!(width < 1280 || high <= HEIGHT, "{what}: {high} pixels high");
        browser.keep_picture(&format!("papers-{width}-{scheme}")).await;
        browser.run("for (const one of document.querySelectorAll('details')) one.open = true;").await;
        assert_eq!(browser.run(FAINT).await, Value::Array(Vec::new()), "{what}");
        let wide = browser.run("return document.documentElement.scrollWidth;").await;
        assert!(wide.as_u64() <= Some(u64::from(width)), "{what}: {wide} pixels wide with all rows open");
    }
    // A number of the first table leads to a folded list, which opens.
    browser.look(1280, 900, "light").await;
    browser.open("about:blank").await;
    browser.open(&url).await;
    let open = "document.getElementById('not-testable').open";
    browser.wait("a folded list", &format!("document.readyState === 'complete' && !{open}")).await;
    browser.run("document.querySelector('.verdicts a[href=\"#not-testable-tract\"]').click();").await;
    browser.wait("the open list", open).await;
    assert!(browser.console().await.is_empty());
    browser.stop().await;
}
