//! `cenote-lab bench tiers`: decode with more KV than L1 holds. [`dense`] reads all of it in each
//! step, [`sparse`] what its queries choose. [`super::cold`] measures the tier below the region.

mod case;
mod dense;
mod sparse;

use super::regions::Regions;
use super::rows::{Row, Times, median};
use super::{Setting, cold};
use crate::args::{BenchTiersArgs, TiersPart};
use crate::commands::torture::torment_cold;
use case::{Case, Ran};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::output::table;
use cenote_lab::random_model::{self, Shape};
use serde::Serialize;
use std::path::Path;

const SEED: u64 = 5;

#[derive(Serialize)]
struct Report {
    quick: bool,
    threads: usize,
    rows: Vec<TierRow>,
}

/// A row with the traffic that it stands for.
#[derive(Clone, Debug, Default, Serialize)]
struct TierRow {
    #[serde(flatten)]
    row: Row,
    /// Bytes of weights and of KV that a step reads, and bytes that it streams.
    weight_bytes: u64,
    kv_bytes: u64,
    streamed_bytes: u64,
    /// Generated tokens per second, by the median step.
    tokens_per_s: f64,
    /// Of the pages that came from the region: the share that a layer waited for, and, of whole pages,
    /// the share that the compute thread copied.
    late_share: f64,
    by_compute_share: f64,
    /// Of the pages that sparse steps chose: the shares that had stayed in L1, and that a prefetch had
    /// brought. Of the prefetched pages: the share that was not read.
    hot_share: f64,
    prefetched_share: f64,
    wasted_share: f64,
    /// Milliseconds per step in which layers waited for pages, and in which pages were copied while layers
    /// did not wait.
    waited_ms: f64,
    hidden_ms: f64,
}

impl TierRow {
    /// A row with the ratio and the goal that it has.
    fn new(case: &Case, name: &str, times: &Times, ran: &Ran, ratio: Option<(f64, Option<f64>)>) -> Self {
        let row = Row::milliseconds(format!("{}: {name}", case.name), times);
        let row = match ratio {
            Some((ratio, Some(goal))) => row.ratio_at_least(ratio, goal),
            Some((ratio, None)) => row.ratio(ratio),
            None => row,
        };
        let stat = |name: &str| ran.stats.get(name).copied().unwrap_or(0.0);
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let steps = stat("engine_steps_total").max(1.0);
        let [staged, chosen] = [stat("staged_pages_total"), stat("sparse_chosen_pages_total")];
        let waited = stat("sparse_late_pages_total") + stat("sparse_demanded_pages_total");
        let prefetched = stat("sparse_prefetched_pages_total");
        let fetched = prefetched + stat("sparse_wasted_pages_total");
        let late = if chosen > 0.0 {
            share(waited, waited + prefetched)
        } else {
            share(stat("staged_late_pages_total"), staged)
        };
        Self {
            row: Row { bench: "tiers", design: "cenote", ..row },
            weight_bytes: case.weight_bytes,
            kv_bytes: ran.kv_bytes,
            streamed_bytes: ((stat("staged_bytes_total") + stat("sparse_fetched_bytes_total")) / steps) as u64,
            tokens_per_s: case.requests() as f64 * 1e9 / median(times),
            late_share: late,
            by_compute_share: share(stat("staged_by_compute_pages_total"), staged),
            hot_share: share(stat("sparse_hot_pages_total"), chosen),
            prefetched_share: share(prefetched, chosen),
            wasted_share: share(stat("sparse_wasted_pages_total"), fetched),
            waited_ms: (stat("staging_stall_ns_total") + stat("sparse_stall_ns_total")) / steps / 1e6,
            hidden_ms: (stat("staging_hidden_ns_total") + stat("sparse_hidden_ns_total")) / steps / 1e6,
        }
    }
}

pub fn run(args: &BenchTiersArgs) -> Result<(), Failure> {
    if let Some(wrong) = args.l1.iter().find(|share| !(0.05..1.0).contains(*share)) {
        return Err(Failure::new(format!("--l1 {wrong}: a share of the working set is from 0.05 to less than 1")));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or_else(|| cores.saturating_sub(1).max(1));
    let measures = |part| args.only.is_none_or(|only| only == part);
    let mut rows = Vec::new();
    let mut measure = |name, dir: &Path| -> Result<(), Failure> {
        if measures(TiersPart::Dense) {
            rows.extend(dense::measure(&dense::case(name, dir, args, threads)?, args)?);
        }
        if measures(TiersPart::Sparse) {
            rows.extend(sparse::measure(&sparse::case(name, dir, args, threads)?, args)?);
        }
        Ok(())
    };
    let demo = engine::named_dir(None);
    match &args.model {
        _ if args.only == Some(TiersPart::Cold) => {}
        Some(dir) => measure("model", dir)?,
        None => {
            let demo = demo?;
            measure("demo", &demo)?;
            let random = tempfile::tempdir()?;
            random_model::write(&Shape::HUNDRED_MILLION, &demo, random.path(), SEED)?;
            measure("100M", random.path())?;
        }
    }
    if measures(TiersPart::Cold) {
        let setting =
            Setting { regions: Regions::until_signal()?, quick: args.quick, nixl: None, mooncake: None, server: None };
        for part in cold::PARTS {
            let of = |row| TierRow { row: Row { bench: "tiers", design: "cenote", ..row }, ..TierRow::default() };
            rows.extend((part.measure)(&setting)?.into_iter().map(of));
        }
        rows.push(kills(args.quick)?);
    }
    let report = Report { quick: args.quick, threads, rows };
    args.output.show(&report, || tiers_table(&report.rows))
}

/// Killed writers of the cold tier, and the share of the blocks they listed that are read whole, with the
/// right bytes. The time is of a kill.
fn kills(quick: bool) -> Result<TierRow, Failure> {
    let found = torment_cold(SEED, if quick { 25 } else { 1_000 })?;
    let name = format!("kills of a writer to L4: {}, wrong bytes: {}", found.kills, found.wrong_bytes);
    let times = vec![found.seconds * 1e9 / found.kills as f64];
    let row = Row::milliseconds(name, &times).ratio_at_least(found.read as f64 / found.listed as f64, 1.0);
    let row = Row { bench: "tiers", design: "cenote", met: Some(found.pass), ..row };
    Ok(TierRow { row, ..TierRow::default() })
}

fn tiers_table(rows: &[TierRow]) -> String {
    let head = [
        "name",
        "p50",
        "p99",
        "tokens/s",
        "copied",
        "late",
        "waited",
        "hidden",
        "hot",
        "prefetched",
        "wasted",
        "ratio",
        "goal",
        "met",
    ];
    let mut out = table(&head).keys(1);
    let percent = |share: f64| if share > 0.0 { format!("{:.1} %", 100.0 * share) } else { String::new() };
    let milliseconds = |time: f64| if time > 0.0 { format!("{time:.2} ms") } else { String::new() };
    for row @ TierRow { row: figures, .. } in rows {
        out.add_row([
            figures.name.clone(),
            format!("{:.2} {}", figures.p50, figures.unit),
            format!("{:.2}", figures.p99),
            if row.tokens_per_s > 0.0 { format!("{:.1}", row.tokens_per_s) } else { String::new() },
            if row.kv_bytes > 0 { format!("{:.1} MB", row.streamed_bytes as f64 / 1e6) } else { String::new() },
            percent(row.late_share),
            milliseconds(row.waited_ms),
            milliseconds(row.hidden_ms),
            percent(row.hot_share),
            percent(row.prefetched_share),
            percent(row.wasted_share),
            figures.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            figures.goal.clone().unwrap_or_default(),
            figures.met.map_or_else(String::new, |met| if met { "met" } else { "missed" }.to_owned()),
        ]);
    }
    out.to_string()
}
