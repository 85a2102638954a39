//! `cenote-lab sim`: the effect of a pool on a load, in simulated time.
//!
//! The output depends only on the configuration, the load and the seed; running times go to stderr.

pub mod calibrate;
mod hits;
mod load;
mod show;

use crate::args::{CapacityArg, SimArgs, pool_name};
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::model::{
    Calibration, CostModel, DEVICES, Device, MODELS, Machine, ModelShape, NVME_L4, SPECKV_L3, TierLink, cache_engine,
};
use cenote_serving_sim::serving::{Compression, ConfigError, Pool, Prefetch};
use cenote_serving_sim::{
    Cold, ColdOutcome, Hosts, Outcome, Setup, Spill, Workload, simulate, simulate_with_cold_tier,
};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most blocks of an engine that are tracked individually.
const L1_BLOCKS_MAX: u64 = 1 << 26;

/// One configuration and its result.
#[derive(Serialize)]
struct Run {
    load: String,
    engine: String,
    instances: u32,
    l1_blocks: u32,
    /// Bytes of the shared pool; none if there is no pool or no limit.
    pool_bytes: Option<u64>,
    /// `none`, a size, or `infinite`.
    pool: String,
    /// `ideal`, or the number of hosts.
    pool_model: String,
    eviction: String,
    watermark: String,
    #[serde(flatten)]
    outcome: Outcome,
    /// What the cold tier did, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cold: Option<ColdOutcome>,
}

/// Settings that are equal for all configurations of a sweep.
struct Engine {
    name: String,
    setup: Setup,
}

pub fn run(args: &SimArgs) -> Result<(), Failure> {
    if let Some(path) = &args.calibrate {
        return calibrate::run(args, path);
    }
    let load = load::read(args)?;
    if args.hit_rate_only {
        return hits::run(args, &load);
    }
    let engine = engine(args)?;
    let models = args.pools();
    let configurations: Vec<(CapacityArg, Option<Hosts>, Eviction, Watermark)> = (args.pool.iter())
        .flat_map(|&pool| models.iter().map(move |&hosts| (pool, hosts)))
        .flat_map(|(pool, hosts)| args.eviction.iter().map(move |&eviction| (pool, hosts, eviction)))
        .flat_map(|(pool, hosts, evict)| args.watermark.iter().map(move |mark| (pool, hosts, evict, mark.clone())))
        .collect();
    let total = configurations.len() * load.workload.requests().len();
    let bar = output::progress("simulating", total as u64);
    let begin = Begin::now();
    let mut runs = Vec::new();
    for (index, (capacity, hosts, eviction, watermark)) in configurations.into_iter().enumerate() {
        let shared = pool(capacity, args);
        let setup = Setup { shared, hosts, eviction, watermark: watermark.clone(), ..engine.setup.clone() };
        let done = (index * load.workload.requests().len()) as u64;
        let progress = &mut |answered| bar.set_position(done + answered);
        let result = match cold(args) {
            None => simulate(&setup, &load.workload, progress).map(|outcome| (outcome, None)),
            Some(cold) => simulate_with_cold_tier(&setup, &cold, &load.workload, progress)
                .map(|(outcome, cold)| (outcome, Some(cold))),
        };
        let (outcome, cold) = result.map_err(|error| {
            let hint = hint(&error, args);
            Failure::from(error).hint(hint)
        })?;
        runs.push(Run {
            load: load.name.clone(),
            engine: engine.name.clone(),
            instances: args.instances,
            l1_blocks: setup.l1_blocks,
            pool_bytes: shared.and_then(|pool| pool.bytes),
            pool: capacity.to_string(),
            pool_model: pool_name(hosts),
            eviction: eviction.to_string(),
            watermark: watermark.to_string(),
            outcome,
            cold,
        });
    }
    bar.finish_and_clear();
    let events = runs.iter().map(|run| run.outcome.events).sum();
    begin.tell(total as u64, events);
    if let Some(path) = &args.html {
        std::fs::write(path, show::html(&runs))
            .map_err(|error| Failure::new(format!("{}: cannot write the page: {error}", path.display())))?;
    }
    match runs.as_slice() {
        [one] => args.output.show(one, || show::facts(one)),
        _ => args.output.show(&runs, || show::table(&runs)),
    }
}

/// Advice for an impossible configuration.
fn hint(error: &ConfigError, args: &SimArgs) -> &'static str {
    match error {
        ConfigError::TooManyRacks { .. } => "give fewer racks",
        ConfigError::NoHosts => "--hosts and --chunk-blocks must be 1 or more",
        ConfigError::NoPoolAbove => "give a --pool, without --hosts and --private",
        ConfigError::TooLate { .. } => "give a higher --rate or --speed, or fewer --requests",
        ConfigError::NoInstances => "give one or more --instances",
        ConfigError::NoBandwidth(_) => "a link is gigabytes a second and nanoseconds, as in --pool-link 25:640",
        ConfigError::Nothing(_) => {
            "--l1-blocks, --l1-block-tokens, --max-num-seqs and --max-num-batched-tokens must be 1 or more"
        }
        ConfigError::TooSmall { what: "a pool", .. } => "give a larger --pool",
        ConfigError::TooSmall { .. } => "give a larger --private",
        ConfigError::NoRoomToSpill { .. } => {
            "give more --l1-blocks, or a smaller --max-num-seqs or --max-num-batched-tokens"
        }
        ConfigError::EngineTooSmall { .. } if args.l1_blocks.is_some() => "give more --l1-blocks",
        ConfigError::EngineTooSmall { .. } => "give a --device with more memory, or a smaller --model",
    }
}

fn pool(capacity: CapacityArg, args: &SimArgs) -> Option<Pool> {
    store(capacity, args.pool_link)
}

fn store(capacity: CapacityArg, link: cenote_serving_sim::Link) -> Option<Pool> {
    match capacity {
        CapacityArg::None => None,
        CapacityArg::Bytes(bytes) => Some(Pool { bytes: Some(bytes), link }),
        CapacityArg::Infinite => Some(Pool { bytes: None, link }),
    }
}

/// The cold tier, or a codec of cold blocks alone.
fn cold(args: &SimArgs) -> Option<Cold> {
    let bytes = match args.cold {
        CapacityArg::None if !args.cold_compress => return None,
        CapacityArg::None => Some(0),
        CapacityArg::Bytes(bytes) => Some(bytes),
        CapacityArg::Infinite => None,
    };
    let hint_ns = args.cold_hint.map(|seconds| u64::from(seconds) * 1_000_000_000);
    Some(Cold {
        bytes,
        tier: TierLink { link: args.cold_link, ..NVME_L4 },
        write_bytes_per_s: args.cold_write,
        writes_max: args.cold_writes,
        compression: args.cold_compress.then(|| compression(args)),
        prefetch: Prefetch { waiting: args.cold_prefetch, hint_ns, speculate: args.cold_speculate },
    })
}

/// The codec of cold blocks: QPack on a processor, or in hardware at a clock.
fn compression(args: &SimArgs) -> Compression {
    args.cold_engine.map_or(Compression::QPACK, |mhz| {
        let clock_hz = u64::from(mhz) * 1_000_000;
        Compression::by_engines(&cache_engine::QPACK, Compression::QPACK.percent, clock_hz, args.cold_engines)
    })
}

/// The spill space of each engine, if there is any. A calibration has no layers, and clap refuses both.
fn spill(args: &SimArgs, layers: u32, block_bytes: u64) -> Option<Spill> {
    let blocks = (args.spill.0 / block_bytes).min(L1_BLOCKS_MAX) as u32;
    let tier = TierLink { name: "spill", link: args.spill_link, ..SPECKV_L3 };
    (blocks > 0).then_some(Spill { blocks, layers, tier, is_ahead: true })
}

/// The engine of the flags or of a calibration, without a pool.
fn engine(args: &SimArgs) -> Result<Engine, Failure> {
    let (name, cost, front_ns, kv_bytes, host, l1_tokens, layers) = match &args.calibration {
        Some(path) => {
            let read = calibration(path)?;
            let Machine { of, kv_bytes_per_token, kv_tokens, copy_bytes_per_s, front_ns } = read.machine.clone();
            let link = cenote_serving_sim::Link { bytes_per_s: copy_bytes_per_s, latency_ns: 0 };
            (of, read.cost(), front_ns, kv_bytes_per_token, link, kv_tokens, 0)
        }
        None => {
            let device = Device::named(&args.device).ok_or_else(|| {
                let names: Vec<_> = DEVICES.iter().map(|device| device.name).collect();
                Failure::new(format!("--device {}: there are {}", args.device, names.join(", ")))
                    .hint("this machine is --calibration FILE, which --calibrate FILE writes")
            })?;
            let model = args.model.as_deref().unwrap_or("llama-8b");
            let shape = ModelShape::named(model).ok_or_else(|| {
                let names: Vec<_> = MODELS.iter().map(|shape| shape.name).collect();
                Failure::new(format!("--model {model}: there are {}", names.join(", ")))
            })?;
            let usable = device.memory_bytes / 100 * device.usable_percent;
            let Some(free) = usable.checked_sub(shape.weight_bytes()).filter(|free| *free > 0) else {
                return Err(Failure::new(format!(
                    "{} does not fit: its weights take {} bytes, and {} has {usable} of which an engine may use all",
                    shape.name,
                    shape.weight_bytes(),
                    device.name
                )));
            };
            let cost = CostModel::roofline(device, shape);
            let name = format!("{} on {}", shape.name, device.name);
            let (kv_bytes, layers) = (shape.kv_bytes_per_token(), shape.layers as u32);
            (name, cost, 0, kv_bytes, device.host, free / kv_bytes, layers)
        }
    };
    let l1_blocks = match args.l1_blocks {
        Some(blocks) => blocks,
        None => (l1_tokens / u64::from(args.l1_block_tokens.max(1))).min(L1_BLOCKS_MAX) as u32,
    };
    let swap_block = kv_bytes * u64::from(args.l1_block_tokens.max(1));
    let setup = Setup {
        instances: args.instances,
        cost,
        front_ns,
        kv_bytes_per_token: kv_bytes,
        l1_blocks,
        l1_block_tokens: args.l1_block_tokens,
        max_num_seqs: args.max_num_seqs,
        max_num_batched_tokens: args.max_num_batched_tokens,
        watermark: Watermark::DEFAULT,
        swap_blocks: (args.swap.0 / swap_block).min(L1_BLOCKS_MAX) as u32,
        has_prefix_cache: false,
        swap_link: host,
        always_swap: args.always_swap,
        spill: spill(args, layers, swap_block),
        private: store(args.private, host),
        shared: None,
        hosts: None,
        eviction: Eviction::Lru,
    };
    Ok(Engine { name, setup })
}

/// Output of `--calibrate`.
pub fn calibration(path: &Path) -> Result<Calibration, Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let text = input::text(path).map_err(failed)?;
    Calibration::parse(&text).map_err(|error| failed(error.to_string()))
}

/// Start of a run: by wall-clock time, and by processor time, which stops while other programs have
/// the core.
struct Begin {
    wall: Instant,
    processor: Duration,
}

impl Begin {
    fn now() -> Self {
        Self { wall: Instant::now(), processor: processor_time() }
    }

    /// Prints speed and memory use to stderr.
    fn tell(&self, requests: u64, events: u64) {
        let memory = peak_memory_bytes().map_or_else(String::new, |bytes| format!("; {} at most", ByteSize(bytes)));
        let seconds = (processor_time() - self.processor).as_secs_f64();
        output::say(&format!(
            "{requests} requests, {events} events in {:.3} s, {seconds:.3} s of one core: {:.1} million events a second of it{memory}",
            self.wall.elapsed().as_secs_f64(),
            events as f64 / seconds.max(1e-9) / 1e6
        ));
    }
}

/// Processor time of this thread, which does all of the work.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Peak memory of this process, as the kernel counts it.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The load and its name in results.
struct Load {
    name: String,
    workload: Workload,
}
