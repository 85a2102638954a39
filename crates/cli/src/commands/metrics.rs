//! `cenote pool metrics`: a region's gauges and counters as OpenMetrics text. It looks from outside, so
//! it needs no engine, and a region without live processes has them, too.

use super::serve::{Signals, cannot_listen};
use crate::args::PoolMetricsArgs;
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
use cenote_console::region::Watched;
use cenote_pool::{Counter, PoolInfo};
use cenote_store::snapshot::Restoring;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
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

/// Digits of a fingerprint in labels, as `cenote pool info` prints it.
const DIGITS: usize = 12;

pub fn run(args: &PoolMetricsArgs) -> Result<ExitCode, Failure> {
    let exporter = Exporter::open(&args.region)?;
    let Some(address) = args.listen else {
        output::print(exporter.page().text.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
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

/// Looks at the region that has the name now: it may be removed and made anew.
struct Exporter {
    region: RegionArgs,
    name: String,
    clock: Clock,
    last: Mutex<Last>,
}

struct Last {
    watched: Option<Watched>,
    page: Option<(Duration, Page)>,
}

impl Exporter {
    fn open(region: &RegionArgs) -> Result<Self, Failure> {
        let last = Last { watched: Some(region.watch()?), page: None };
        let name = region.source()?.to_string();
        Ok(Self { region: region.clone(), name, clock: Clock::system(), last: Mutex::new(last) })
    }

    fn page(&self) -> Page {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Duration::from_nanos(self.clock.now_ns());
        if let Some((at, page)) = &last.page
            && now.saturating_sub(*at) < FRESH
        {
            return page.clone();
        }
        let still = |watched: &Watched| watched.is_current() && watched.inspector.sees_all_hosts();
        last.watched = last.watched.take().filter(still).or_else(|| self.region.watch().ok());
        let seen = last.watched.as_ref().map(|watched| Seen {
            info: watched.inspector.info(),
            is_restoring: Restoring::seen(&watched.inspector).is_some(),
        });
        let is_there = seen.is_some();
        let page = Page { text: page_of(&self.name, seen), is_there };
        last.page = Some((now, page.clone()));
        page
    }
}

/// What a look at a region found.
#[derive(Debug)]
struct Seen {
    info: PoolInfo,
    is_restoring: bool,
}

fn page_of(region: &str, seen: Option<Seen>) -> String {
    let mut registry = Registry::with_labels([("region".into(), region.to_owned().into())].into_iter());
    registry.register_collector(Box::new(Families { seen }));
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("a string takes all");
    page
}

#[derive(Debug)]
struct Families {
    seen: Option<Seen>,
}

type Labels = Vec<(&'static str, String)>;

/// Writes the families of a page.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    /// A gauge without labels.
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauges(name, help, [(Labels::new(), value)])
    }

    fn gauges(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, u64)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn seconds(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, f64)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(&mut self, counter: Counter, value: u64) -> fmt::Result {
        // The encoder adds the suffix.
        let name = format!("cenote_{}", counter.name().trim_end_matches("_total"));
        let help = counter.help().trim_end_matches('.');
        let constant = ConstCounter::new(value);
        constant.encode(self.0.encode_descriptor(&name, help, None, MetricType::Counter)?)
    }
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(encoder);
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        to.gauges("cenote_build_info", "1; the version of this exporter", [(version, 1)])?;
        let present = u64::from(self.seen.is_some());
        to.gauge("cenote_region_present", "1 while the name leads to a region", present)?;
        let Some(Seen { info, is_restoring }) = &self.seen else { return Ok(()) };
        region(&mut to, info, *is_restoring)?;
        models(&mut to, info)?;
        hosts(&mut to, info)?;
        for &counter in Counter::ALL {
            to.counter(counter, info.counters.get(counter.name()).copied().unwrap_or(0))?;
        }
        Ok(())
    }
}

fn region(to: &mut Writer<'_>, info: &PoolInfo, is_restoring: bool) -> fmt::Result {
    let facts = vec![
        ("uuid", info.uuid.clone()),
        ("design", info.design.to_owned()),
        ("eviction", info.eviction.to_owned()),
        ("seal", info.seal.to_owned()),
        ("fabric", info.fabric.to_owned()),
    ];
    to.gauges("cenote_region_info", "1; settings of the region", [(facts, 1)])?;
    let created = info.created as f64;
    to.seconds("cenote_region_created_timestamp_seconds", "When it was made, in Unix time", [(vec![], created)])?;
    let restoring = u64::from(is_restoring);
    let memory = info.memory.bytes + info.memory.named_bytes;
    for (name, help, value) in [
        ("cenote_region_restoring", "1 while a snapshot is being restored into it", restoring),
        ("cenote_region_bytes", "Size of the region", info.region_bytes),
        ("cenote_region_data_bytes", "Of these: for blocks, objects and memory", info.data_bytes),
        ("cenote_region_chunk_bytes", "Size of a chunk, the unit in which hosts take space", info.chunk_bytes),
        ("cenote_region_chunks", "Chunks in all", info.num_chunks),
        ("cenote_region_chunks_free", "Chunks that no host has taken", info.num_chunks - info.chunks_taken),
        ("cenote_region_chunks_lost", "Chunks of which a dead host may have lost content", info.chunks_lost),
        (
            "cenote_region_chunks_with_strays",
            "Chunks that a dead host may still write: they take no blocks in place",
            info.chunks_with_strays,
        ),
        ("cenote_region_blocks", "Readable blocks", info.blocks_ready),
        ("cenote_region_block_bytes", "Payload bytes of readable blocks", info.bytes_ready),
        ("cenote_region_objects", "Objects that programs have published", info.objects),
        ("cenote_region_memory_bytes", "Memory that programs have allocated", memory),
        ("cenote_region_locks_allocated", "Locks that programs have allocated", info.locks_given),
        ("cenote_region_pins_per_worker", "Blocks that one worker can pin at once", info.pins_per_worker),
    ] {
        to.gauge(name, help, value)?;
    }
    Ok(())
}

/// At most as many rows as the region's table of models has.
fn models(to: &mut Writer<'_>, info: &PoolInfo) -> fmt::Result {
    let labels = |at: usize| -> Labels {
        let row = &info.namespaces[at];
        let fingerprint = row.fingerprint.chars().take(DIGITS).collect();
        vec![("model", row.label.clone()), ("fingerprint", fingerprint), ("row", row.id.0.to_string())]
    };
    let all = || 0..info.namespaces.len();
    let of =
        |value: fn(&cenote_pool::NamespaceInfo) -> u64| all().map(move |at| (labels(at), value(&info.namespaces[at])));
    to.gauges("cenote_model_blocks", "Readable blocks of a model", of(|row| row.blocks))?;
    to.gauges("cenote_model_block_bytes", "Their payload bytes", of(|row| row.bytes))?;
    to.gauges("cenote_model_used_bytes", "Bytes of slots that are charged to the model", of(|row| row.used_bytes))?;
    to.gauges("cenote_model_quota_bytes", "Limit of those bytes; 0: none", of(|row| row.quota_bytes))?;
    to.gauges("cenote_model_workers", "Workers that have the model open", of(|row| row.workers))
}

fn hosts(to: &mut Writer<'_>, info: &PoolInfo) -> fmt::Result {
    let labels = |host: u8| -> Labels { vec![("host", host.to_string())] };
    let of =
        |value: fn(&cenote_pool::HostInfo) -> u64| info.hosts.iter().map(move |row| (labels(row.host), value(row)));
    to.gauges("cenote_host_chunks", "Chunks that a host owns", of(|row| row.chunks))?;
    to.gauges("cenote_host_workers", "Processes of a host that have joined and not left", of(|row| row.workers))?;
    to.gauges("cenote_host_life", "Number of a host's life: it grows with each death", of(|row| row.incarnation))?;
    let known = info.hosts.iter().filter_map(|row| Some((labels(row.host), u64::from(row.alive?))));
    to.gauges("cenote_host_alive", "1 if a host lives, 0 if it is dead; none: unknown", known)?;
    let silent = info.hosts.iter().filter_map(|row| Some((labels(row.host), row.silent_ms? as f64 / 1e3)));
    to.seconds("cenote_host_silent_seconds", "Time since a host's heartbeat advanced", silent)?;
    let mut workers: BTreeMap<(u8, &str, &str), u64> = BTreeMap::new();
    for worker in &info.workers {
        let state = worker.alive.map_or("unknown", |alive| if alive { "alive" } else { "dead" });
        *workers.entry((worker.host, &worker.name, state)).or_default() += 1;
    }
    let rows = workers.into_iter().map(|((host, name, state), count)| {
        (vec![("host", host.to_string()), ("name", name.to_owned()), ("state", state.to_owned())], count)
    });
    to.gauges("cenote_workers", "Processes that have joined, by the name that they gave", rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_not_there_has_no_values_of_an_earlier_one() {
        let page = page_of("shm:kv", None);
        assert!(page.contains("cenote_region_present{region=\"shm:kv\"} 0\n"), "{page}");
        assert!(!page.contains("cenote_region_bytes") && page.ends_with("# EOF\n"), "{page}");
    }

    #[test]
    fn labels_are_escaped() {
        let seen = |info| Some(Seen { info, is_restoring: false });
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
