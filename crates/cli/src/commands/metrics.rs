//! `cenote pool metrics`: a region's gauges and counters as OpenMetrics text. It looks from outside, so
//! it needs no engine, and a region without live processes has them, too.

use super::serve::{Signals, cannot_listen};
use crate::args::PoolMetricsArgs;
use crate::gauges::{self, Gauge, Labels, Look, Unit, counter_name, host_labels, model_labels};
use crate::watcher::Watcher;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cenote_base::Clock;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_pool::{Counter, RESIDENCE_SECONDS, RETURN_SECONDS, Residence};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Scrapes within this time of one another get the same page: each look reads all descriptors.
const FRESH: Duration = Duration::from_secs(1);

pub fn run(args: &PoolMetricsArgs) -> Result<ExitCode, Failure> {
    let exporter = Exporter::open(&args.region)?;
    let Some(address) = args.listen else {
        output::print(exporter.page().text.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| cannot_listen(address, ["--listen", "port of --listen"], &error))?;
        let mut signals = Signals::new()?;
        let url = format!("http://{}", listener.local_addr()?);
        output::say(&format!("metrics of {} on {url}/metrics", args.region.source()?));
        output::print(&url)?;
        let pages = Router::new().route("/metrics", get(metrics)).route("/health", get(health));
        let pages = pages.with_state(Arc::new(exporter));
        cenote_serve::serve_pages(listener, pages, Clock::system(), signals.first()).await;
        Ok(ExitCode::SUCCESS)
    })
}

async fn metrics(State(exporter): State<Arc<Exporter>>) -> Response {
    match tokio::task::spawn_blocking(move || exporter.page()).await {
        Ok(page) => ([(CONTENT_TYPE, OPEN_METRICS)], page.text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the region cannot be read: {error}\n")).into_response()
        }
    }
}

/// 200 while the name leads to a region.
async fn health(State(exporter): State<Arc<Exporter>>) -> Response {
    match tokio::task::spawn_blocking(move || exporter.page().is_there).await {
        Ok(true) => (StatusCode::OK, "ok\n").into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the region is not there\n").into_response(),
    }
}

#[derive(Clone)]
struct Page {
    text: String,
    is_there: bool,
}

/// Pages of the region that has the name now.
struct Exporter {
    name: String,
    clock: Clock,
    last: Mutex<Last>,
}

struct Last {
    watcher: Watcher,
    page: Option<(Duration, Page)>,
}

impl Exporter {
    fn open(region: &RegionArgs) -> Result<Self, Failure> {
        let last = Last { watcher: Watcher::open(region)?, page: None };
        let name = region.source()?.to_string();
        Ok(Self { name, clock: Clock::system(), last: Mutex::new(last) })
    }

    fn page(&self) -> Page {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Duration::from_nanos(self.clock.now_ns());
        if let Some((at, page)) = &last.page
            && now.saturating_sub(*at) < FRESH
        {
            return page.clone();
        }
        let seen = last.watcher.look().ok();
        let is_there = seen.is_some();
        let page = Page { text: page_of(&self.name, seen), is_there };
        last.page = Some((now, page.clone()));
        page
    }
}

fn page_of(region: &str, seen: Option<Look>) -> String {
    let mut registry = Registry::with_labels([("region".into(), region.to_owned().into())].into_iter());
    registry.register_collector(Box::new(Families { seen }));
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("a string takes all");
    page
}

#[derive(Debug)]
struct Families {
    seen: Option<Look>,
}

/// Writes the families of a page.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn counts(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, u64)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// One gauge of each row.
    fn gauge<'a, T: 'a>(
        &mut self,
        gauge: &Gauge<T>,
        rows: impl IntoIterator<Item = &'a T>,
        labels: impl Fn(&T) -> Labels,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(gauge.name, gauge.help, None, MetricType::Gauge)?;
        for row in rows {
            let Some(value) = (gauge.value)(row) else { continue };
            let labels = labels(row);
            let encoder = family.encode_family(&labels)?;
            match gauge.unit {
                Unit::Seconds | Unit::Share => ConstGauge::new(value).encode(encoder)?,
                Unit::Count | Unit::Bytes => ConstGauge::new(value as i64).encode(encoder)?,
            }
        }
        Ok(())
    }

    fn counter(&mut self, counter: Counter, value: u64) -> fmt::Result {
        // The encoder adds the suffix.
        let name = counter_name(counter);
        let help = counter.help().trim_end_matches('.');
        let constant = ConstCounter::new(value);
        constant.encode(self.0.encode_descriptor(name.trim_end_matches("_total"), help, None, MetricType::Counter)?)
    }

    fn removed(&mut self, causes: &BTreeMap<&'static str, u64>) -> fmt::Result {
        let help = "Blocks that left, by cause";
        let mut family = self.0.encode_descriptor("cenote_pool_removed_blocks", help, None, MetricType::Counter)?;
        for (cause, count) in causes {
            ConstCounter::new(*count).encode(family.encode_family(&[("cause", *cause)])?)?;
        }
        Ok(())
    }

    fn residence(&mut self, residence: &Residence) -> fmt::Result {
        let help = "Time that blocks were in the pool, of those that left";
        let name = "cenote_pool_residence_seconds";
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let bounds = RESIDENCE_SECONDS.iter().map(|&bound| f64::from(bound)).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(residence.blocks).collect();
        let count = residence.blocks.iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
        family.encode_histogram::<NoLabelSet>(residence.seconds as f64, count, &buckets, None)
    }
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(encoder);
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        to.counts("cenote_build_info", "1; the version of this exporter", [(version, 1)])?;
        let present = u64::from(self.seen.is_some());
        to.counts("cenote_region_present", "1 while the name leads to a region", [(vec![], present)])?;
        let Some(look) = &self.seen else { return Ok(()) };
        let info = &look.info;
        let facts = vec![
            ("uuid", info.uuid.clone()),
            ("design", info.design.to_owned()),
            ("eviction", info.eviction.to_owned()),
            ("seal", info.seal.to_owned()),
            ("fabric", info.fabric.to_owned()),
        ];
        to.counts("cenote_region_info", "1; settings of the region", [(facts, 1)])?;
        gauges::REGION.iter().try_for_each(|gauge| to.gauge(gauge, [look], |_| Labels::new()))?;
        gauges::MODEL.iter().try_for_each(|gauge| to.gauge(gauge, &info.namespaces, model_labels))?;
        gauges::HOST.iter().try_for_each(|gauge| to.gauge(gauge, &info.hosts, host_labels))?;
        let rows = gauges::workers(info).into_iter().map(|((host, name, state), count)| {
            (vec![("host", host.to_string()), ("name", name.to_owned()), ("state", state.to_owned())], count)
        });
        to.counts("cenote_workers", "Processes that have joined, by the name that they gave", rows)?;
        if let Some(returns) = &look.returns {
            let rows = RETURN_SECONDS.iter().zip(returns.within);
            let rows = rows.map(|(bound, count)| (vec![("within", bound.to_string())], count));
            let help = "Of the removed blocks: stored again within so many seconds";
            to.counts("cenote_region_returned_within_blocks", help, rows)?;
        }
        Counter::ALL.iter().try_for_each(|&counter| to.counter(counter, look.counter(counter)))?;
        to.removed(&info.removed)?;
        to.residence(&info.residence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::PoolInfo;

    #[test]
    fn a_region_that_is_not_there_has_no_values_of_an_earlier_one() {
        let page = page_of("shm:kv", None);
        assert!(page.contains("cenote_region_present{region=\"shm:kv\"} 0\n"), "{page}");
        assert!(!page.contains("cenote_region_bytes") && page.ends_with("# EOF\n"), "{page}");
    }

    #[test]
    fn labels_are_escaped() {
        let seen = |info| Some(Look { info, ..Look::default() });
        let worker = cenote_pool::WorkerInfo {
            host: 3,
            slot: 0,
            pid: 1,
            name: "a \"b\"\n\\".to_owned(),
            joined: 0,
            alive: None,
        };
        let page = page_of("shm:kv", seen(PoolInfo { workers: vec![worker], ..PoolInfo::default() }));
        assert!(page.contains(r#"host="3",name="a \"b\"\n\\",state="unknown"} 1"#), "{page}");
    }
}
