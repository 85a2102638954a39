//! A look as JSON: the shape of `top --once --json`, `stat --json` and the events of `ui`
//! (docs/guides/operate.md). Values have the names that `pool metrics` gives them.

use crate::findings::Finding;
use crate::gauges::{self, Gauge, Labels, counter_name, host_labels, model_labels, state_of};
use crate::observer::Observed;
use crate::rates::{MISSES, Rates, TIERS};
use cenote_pool::{Counter, Record};
use serde::Serialize;
use std::collections::BTreeMap;

type Values = BTreeMap<String, f64>;

#[derive(Serialize)]
pub struct Snapshot<'a> {
    #[serde(flatten)]
    pub summary: Summary<'a>,
    models: Vec<Row>,
    hosts: Vec<Row>,
    workers: Vec<WorkerRow<'a>>,
    findings: &'a [Finding],
    /// The flight recorder, the oldest first.
    events: &'a [Record],
}

/// What `stat --json` has in each line.
#[derive(Serialize)]
pub struct Summary<'a> {
    region: &'a str,
    uuid: &'a str,
    /// Seconds since 1970.
    time: f64,
    /// Gauges of the region.
    gauges: Values,
    /// Counters of this host.
    counters: BTreeMap<String, u64>,
    /// Between this look and the one before; `null` at the first.
    interval: Option<Interval>,
}

#[derive(Serialize)]
struct Interval {
    seconds: f64,
    /// Share of the looked-up blocks that were found; `null`: there were no lookups.
    hit_share: Option<f64>,
    /// Of the looked-up blocks, the share that each tier served; `null`: there were no lookups.
    tiers: Option<BTreeMap<&'static str, f64>>,
    /// Blocks a second that were missed, by reason.
    misses: BTreeMap<&'static str, f64>,
    /// Increase of each counter a second.
    rates: Values,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    labels: BTreeMap<&'static str, String>,
    #[serde(flatten)]
    values: Values,
}

#[derive(Serialize)]
struct WorkerRow<'a> {
    host: u8,
    slot: u16,
    pid: u64,
    name: &'a str,
    state: &'static str,
    /// Seconds since 1970.
    joined: u64,
}

fn values<T>(gauges: &[Gauge<T>], row: &T) -> Values {
    gauges.iter().filter_map(|gauge| Some((gauge.name.to_owned(), (gauge.value)(row)?))).collect()
}

fn row<T>(gauges: &[Gauge<T>], row: &T, labels: Labels) -> Row {
    Row { labels: labels.into_iter().collect(), values: values(gauges, row) }
}

impl Interval {
    fn of(rates: &Rates) -> Self {
        let of = |&counter: &Counter| (counter_name(counter), rates.per_second(counter));
        Self {
            seconds: rates.seconds,
            hit_share: rates.hit_share(),
            tiers: TIERS.iter().map(|tier| Some((tier.name, rates.share(tier.blocks)?))).collect(),
            misses: MISSES.iter().map(|reason| (reason.name, rates.part_per_second(reason.blocks))).collect(),
            rates: Counter::ALL.iter().map(of).collect(),
        }
    }
}

impl<'a> Summary<'a> {
    pub fn of(seen: &'a Observed) -> Self {
        let count = |&counter: &Counter| (counter_name(counter), seen.look.counter(counter));
        Self {
            region: &seen.region,
            uuid: &seen.look.info.uuid,
            time: seen.now_us as f64 / 1e6,
            gauges: values(gauges::REGION, &*seen.look),
            counters: Counter::ALL.iter().map(count).collect(),
            interval: seen.rates.as_ref().map(Interval::of),
        }
    }
}

impl<'a> Snapshot<'a> {
    pub fn of(seen: &'a Observed) -> Self {
        let info = &seen.look.info;
        let workers = info.workers.iter().map(|worker| WorkerRow {
            host: worker.host,
            slot: worker.slot,
            pid: worker.pid,
            name: &worker.name,
            state: state_of(worker.alive),
            joined: worker.joined,
        });
        Self {
            summary: Summary::of(seen),
            models: info.namespaces.iter().map(|of| row(gauges::MODEL, of, model_labels(of))).collect(),
            hosts: info.hosts.iter().map(|of| row(gauges::HOST, of, host_labels(of))).collect(),
            workers: workers.collect(),
            findings: &seen.findings,
            events: &seen.records,
        }
    }
}
