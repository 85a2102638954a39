//! The registry of what is shown of a region: its gauges, and those of models and hosts. `pool metrics`,
//! `top`, `stat`, `ui` and their JSON all read these rows, and counters from [`Counter::ALL`], so a value has one
//! name everywhere.

use cenote_pool::{ChunkInfo, Counter, HostInfo, NamespaceInfo, PoolInfo, Returns};
use std::collections::BTreeMap;

/// What a look at a region from outside found.
#[derive(Debug, Default)]
pub struct Look {
    pub info: PoolInfo,
    /// The chunks in order.
    pub chunks: Vec<ChunkInfo>,
    pub is_restoring: bool,
    /// Blocks that living workers have pinned.
    pub pinned: u64,
    /// Which removals were in vain; `None`: the region keeps none.
    pub returns: Option<Returns>,
}

impl Look {
    pub fn counter(&self, counter: Counter) -> u64 {
        self.info.counters.get(counter.name()).copied().unwrap_or(0)
    }

    pub fn chunks_free(&self) -> u64 {
        self.info.num_chunks.saturating_sub(self.info.chunks_taken)
    }

    /// Most free chunks in a row.
    fn free_run(&self) -> u64 {
        self.chunks.split(|chunk| chunk.slots > 0).map(|run| run.len() as u64).max().unwrap_or(0)
    }

    /// Seconds since the publication of the block that has been there longest.
    fn oldest(&self) -> Option<f64> {
        self.chunks.iter().filter_map(|chunk| chunk.ages).map(|(oldest, _)| f64::from(oldest)).reduce(f64::max)
    }
}

/// How a value is written for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Seconds,
    /// From 0 to 1.
    Share,
}

/// A gauge of a region, a model or a host.
pub struct Gauge<T> {
    pub name: &'static str,
    /// Heading of its column on a terminal.
    pub heading: &'static str,
    pub unit: Unit,
    pub help: &'static str,
    /// `None`: unknown.
    pub value: fn(&T) -> Option<f64>,
}

const fn gauge<T>(
    name: &'static str,
    heading: &'static str,
    unit: Unit,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Gauge<T> {
    Gauge { name, heading, unit, help, value }
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a gauge's function")]
const fn known(value: u64) -> Option<f64> {
    Some(value as f64)
}

use Unit::{Bytes, Count, Seconds, Share};

/// Gauges of a region.
pub const REGION: &[Gauge<Look>] = &[
    gauge(
        "cenote_region_created_timestamp_seconds",
        "created",
        Seconds,
        "When it was made, in Unix time",
        |look: &Look| known(look.info.created),
    ),
    gauge(
        "cenote_region_restoring",
        "restoring",
        Count,
        "1 while a snapshot is being restored into it",
        |look: &Look| known(u64::from(look.is_restoring)),
    ),
    gauge("cenote_region_bytes", "size", Bytes, "Size of the region", |look: &Look| known(look.info.region_bytes)),
    gauge(
        "cenote_region_data_bytes",
        "for blocks",
        Bytes,
        "Of these: for blocks, objects and memory",
        |look: &Look| known(look.info.data_bytes),
    ),
    gauge(
        "cenote_region_chunk_bytes",
        "chunk",
        Bytes,
        "Size of a chunk, the unit in which hosts take space",
        |look: &Look| known(look.info.chunk_bytes),
    ),
    gauge("cenote_region_chunks", "chunks", Count, "Chunks in all", |look: &Look| known(look.info.num_chunks)),
    gauge("cenote_region_chunks_free", "free chunks", Count, "Chunks that no host has taken", |look: &Look| {
        known(look.chunks_free())
    }),
    gauge("cenote_region_free_run_chunks", "free run", Count, "Most free chunks in a row", |look: &Look| {
        known(look.free_run())
    }),
    gauge(
        "cenote_region_chunks_lost",
        "lost chunks",
        Count,
        "Chunks of which a dead host may have lost content",
        |look: &Look| known(look.info.chunks_lost),
    ),
    gauge(
        "cenote_region_chunks_with_strays",
        "strays",
        Count,
        "Chunks that a dead host may still write: they take no blocks in place",
        |look: &Look| known(look.info.chunks_with_strays),
    ),
    gauge("cenote_region_blocks", "blocks", Count, "Readable blocks", |look: &Look| known(look.info.blocks_ready)),
    gauge("cenote_region_block_bytes", "bytes", Bytes, "Payload bytes of readable blocks", |look: &Look| {
        known(look.info.bytes_ready)
    }),
    gauge(
        "cenote_region_oldest_block_seconds",
        "oldest block",
        Seconds,
        "Time since the publication of the block that has been there longest; none: there is no block",
        Look::oldest,
    ),
    gauge(
        "cenote_region_removed_blocks",
        "removed",
        Count,
        "Blocks that left for room or by a quota, of which the region still knows; none: it keeps no removals",
        |look: &Look| look.returns.as_ref().and_then(|returns| known(returns.removed)),
    ),
    gauge(
        "cenote_region_returned_blocks",
        "returned",
        Count,
        "Of the removed blocks: stored again since, so a larger region would have had them",
        |look: &Look| look.returns.as_ref().and_then(|returns| known(returns.returned)),
    ),
    gauge("cenote_region_pinned_blocks", "pins", Count, "Blocks that living workers have pinned", |look: &Look| {
        known(look.pinned)
    }),
    gauge("cenote_region_objects", "objects", Count, "Objects that programs have published", |look: &Look| {
        known(look.info.objects)
    }),
    gauge("cenote_region_memory_bytes", "memory", Bytes, "Memory that programs have allocated", |look: &Look| {
        known(look.info.memory.bytes + look.info.memory.named_bytes)
    }),
    gauge("cenote_region_locks_allocated", "locks", Count, "Locks that programs have allocated", |look: &Look| {
        known(look.info.locks_given)
    }),
    gauge(
        "cenote_region_pins_per_worker",
        "pins a worker",
        Count,
        "Blocks that one worker can pin at once",
        |look: &Look| known(look.info.pins_per_worker),
    ),
    gauge(
        "cenote_region_hit_ceiling_15m",
        "ceiling of 15 min",
        Share,
        "Highest hit rate that the requests of the last 15 minutes allowed, estimated",
        |look: &Look| ceiling(look, 900),
    ),
    gauge(
        "cenote_region_hit_ceiling_1h",
        "ceiling of 1 h",
        Share,
        "Highest hit rate that the requests of the last hour allowed, estimated",
        |look: &Look| ceiling(look, 3600),
    ),
    gauge(
        "cenote_region_hit_ceiling_1d",
        "ceiling of 1 day",
        Share,
        "Highest hit rate that the requests of the last day allowed, estimated",
        |look: &Look| ceiling(look, 86_400),
    ),
];

/// The ceiling of a window of so many seconds; `None`: there were no requests.
fn ceiling(look: &Look, seconds: u64) -> Option<f64> {
    look.info.windows.iter().find(|window| window.seconds == seconds)?.ceiling
}

/// Gauges of a model: each tenant's salt makes a row of its own.
pub const MODEL: &[Gauge<NamespaceInfo>] = &[
    gauge("cenote_model_blocks", "blocks", Count, "Readable blocks of a model", |row: &NamespaceInfo| {
        known(row.blocks)
    }),
    gauge("cenote_model_block_bytes", "bytes", Bytes, "Their payload bytes", |row: &NamespaceInfo| known(row.bytes)),
    gauge(
        "cenote_model_new_block_bytes",
        "last minute",
        Bytes,
        "Of these: published within the last minute",
        |row: &NamespaceInfo| known(row.new_bytes),
    ),
    gauge(
        "cenote_model_used_bytes",
        "takes",
        Bytes,
        "Bytes of slots that are charged to the model",
        |row: &NamespaceInfo| known(row.used_bytes),
    ),
    gauge("cenote_model_quota_bytes", "quota", Bytes, "Limit of those bytes; 0: none", |row: &NamespaceInfo| {
        known(row.quota_bytes)
    }),
    gauge(
        "cenote_model_kept_bytes",
        "kept",
        Bytes,
        "Bytes that stay with the model while others need room",
        |row: &NamespaceInfo| known(row.kept_bytes),
    ),
    gauge("cenote_model_workers", "workers", Count, "Workers that have the model open", |row: &NamespaceInfo| {
        known(row.workers)
    }),
];

/// Gauges of a host.
pub const HOST: &[Gauge<HostInfo>] = &[
    gauge("cenote_host_chunks", "chunks", Count, "Chunks that a host owns", |row: &HostInfo| known(row.chunks)),
    gauge(
        "cenote_host_workers",
        "workers",
        Count,
        "Processes of a host that have joined and not left",
        |row: &HostInfo| known(row.workers),
    ),
    gauge("cenote_host_life", "life", Count, "Number of a host's life: it grows with each death", |row: &HostInfo| {
        known(row.incarnation)
    }),
    gauge(
        "cenote_host_alive",
        "alive",
        Count,
        "1 if a host lives, 0 if it is dead; none: unknown",
        |row: &HostInfo| row.alive.map(|alive| f64::from(u8::from(alive))),
    ),
    gauge(
        "cenote_host_silent_seconds",
        "silent",
        Seconds,
        "Time since a host's heartbeat advanced",
        |row: &HostInfo| row.silent_ms.map(|ms| ms as f64 / 1e3),
    ),
];

/// Labels of a series, in order.
pub type Labels = Vec<(&'static str, String)>;

/// Digits of a fingerprint in labels, as `cenote pool info` prints it.
const DIGITS: usize = 12;

pub fn model_labels(row: &NamespaceInfo) -> Labels {
    let fingerprint = row.fingerprint.chars().take(DIGITS).collect();
    vec![("model", row.label.clone()), ("fingerprint", fingerprint), ("row", row.id.0.to_string())]
}

pub fn host_labels(row: &HostInfo) -> Labels {
    vec![("host", row.host.to_string())]
}

/// `alive`, `dead` or `unknown`.
pub fn state_of(alive: Option<bool>) -> &'static str {
    alive.map_or("unknown", |alive| if alive { "alive" } else { "dead" })
}

/// The name of a counter's series.
pub fn counter_name(counter: Counter) -> String {
    format!("cenote_{}", counter.name())
}

/// Number of processes by host, name and state.
pub fn workers(info: &PoolInfo) -> BTreeMap<(u8, &str, &str), u64> {
    let mut workers = BTreeMap::new();
    for worker in &info.workers {
        *workers.entry((worker.host, worker.name.as_str(), state_of(worker.alive))).or_default() += 1;
    }
    workers
}
