//! CPEN 511's load on the reference engine: 400 prompts at once in little memory, with real swaps.

use crate::commands::client::Answered;
use crate::commands::live::{LIVE_REGION_BYTES, Live};
use cenote_base::units::ByteSize;
use cenote_console::args::EngineArgs;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::region::TemporaryRegion;
use cenote_console::region::own_region_bytes;
use cenote_engine::SwapRecord;
use cenote_policy::Watermark;
use cenote_serving_sim::model::{Calibration, CostModel, Link, NIAGARA_L3, TierLink};
use cenote_serving_sim::workload::{CPEN_PROMPTS, cpen};
use cenote_serving_sim::{Setup, Spill, Workload};
use std::collections::BTreeMap;

/// The engine's own blocks: as few as the paper's smallest models have.
pub const L1_BLOCKS: u64 = 150;
/// Running requests, and tokens per step: vLLM's defaults.
const MAX_NUM_SEQS: usize = 256;
const MAX_NUM_BATCHED_TOKENS: usize = 2_048;
/// Swap space for all of them.
const SWAP: ByteSize = ByteSize(256 << 20);

/// Clients' results of a load.
pub struct Measured {
    pub ttft_mean_ms: f64,
    pub ttft_p50_ms: f64,
    pub throughput_tokens_per_s: f64,
}

/// Times in the simulator's definition: of a request from its arrival (a client's timer is about a
/// millisecond late), of the whole load from the first arrival.
pub fn measured(load: &Workload, answers: &[Answered]) -> Measured {
    let mut waits: Vec<f64> = answers.iter().map(|answer| 1e3 * answer.first.as_secs_f64()).collect();
    waits.sort_by(f64::total_cmp);
    let begin = load.requests().first().map_or(0.0, |request| request.arrival as f64 / 1e9);
    let end = answers.iter().map(|answer| (answer.asked + answer.whole).as_secs_f64()).fold(begin, f64::max);
    let tokens: u64 = load.requests().iter().map(|request| u64::from(request.output_tokens)).sum();
    Measured {
        ttft_mean_ms: waits.iter().sum::<f64>() / waits.len().max(1) as f64,
        ttft_p50_ms: waits.get(waits.len().saturating_sub(1) / 2).copied().unwrap_or(0.0),
        throughput_tokens_per_s: tokens as f64 / (end - begin).max(1e-9),
    }
}

/// The simulator's model of a live engine.
pub fn setup_of(live: &Live, fitted: &Calibration) -> Setup {
    let (model, small) = (live.engine().model(), |value: usize| u32::try_from(value).unwrap_or(u32::MAX));
    let config = model.config();
    Setup {
        instances: 1,
        cost: CostModel { streamed_ps: streamed_ps(live, fitted), ..fitted.cost() },
        front_ns: fitted.machine.front_ns,
        kv_bytes_per_token: fitted.machine.kv_bytes_per_token,
        l1_blocks: small(model.kv_blocks()),
        l1_block_tokens: small(config.block_tokens),
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: small(config.max_num_batched_tokens),
        watermark: config.watermark.clone(),
        swap_blocks: u32::try_from(config.swap_bytes / model.layout().block_bytes() as u64).unwrap_or(u32::MAX),
        has_prefix_cache: false,
        swap_link: Link { bytes_per_s: fitted.machine.copy_bytes_per_s, latency_ns: 0 },
        always_swap: config.always_swap,
        spill: spill_of(live, fitted),
        private: None,
        shared: None,
        hosts: None,
        eviction: cenote_policy::Eviction::Lru,
    }
}

/// The model of its spill space: copies from the region's memory to a staging buffer, each started by a
/// thread of this machine.
fn spill_of(live: &Live, fitted: &Calibration) -> Option<Spill> {
    let model = live.engine().model();
    let (config, layout) = (model.config(), model.layout());
    let blocks = u32::try_from(config.spill_bytes / layout.block_bytes() as u64).unwrap_or(u32::MAX);
    let link = Link { bytes_per_s: fitted.machine.copy_bytes_per_s, latency_ns: 0 };
    let tier = TierLink { name: "region", link, ..NIAGARA_L3 };
    (blocks > 0).then_some(Spill {
        blocks,
        layers: layout.num_layers as u32,
        tier,
        is_ahead: true,
        near_tokens: None,
        fills: false,
    })
}

/// Picoseconds that the copy of a streamed token takes from the computation: nothing if each thread has a
/// processor, else its part of all processors.
fn streamed_ps(live: &Live, fitted: &Calibration) -> u64 {
    let model = live.engine().model();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if model.threads() + model.config().mover.threads() <= processors {
        return 0;
    }
    let bytes = u128::from(fitted.machine.kv_bytes_per_token) * 1_000_000_000_000;
    (bytes / u128::from(fitted.machine.copy_bytes_per_s.max(1)) / processors as u128) as u64
}

/// One run of the load on the engine.
pub struct CpenRun {
    pub measured: Measured,
    pub swaps: Vec<SwapRecord>,
    /// The load as it arrived at the engine: clients that send at once arrive in any order.
    pub taken: Workload,
    /// The engine's counters.
    pub stats: BTreeMap<String, f64>,
}

/// The engine of these runs: the demo model, little memory, always swaps, as CPEN 511 configured
/// vLLM.
pub struct Cpen {
    args: EngineArgs,
    region: TemporaryRegion,
}

impl Cpen {
    pub fn new() -> Result<Self, Failure> {
        let args = EngineArgs::of_model(None)?;
        let block_bytes = engine::load(&args, None)?.layout().block_bytes() as u64;
        let args = EngineArgs {
            kv_size: ByteSize(L1_BLOCKS * block_bytes),
            max_num_seqs: MAX_NUM_SEQS,
            max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS,
            max_waiting: CPEN_PROMPTS,
            swap: SWAP,
            always_swap: true,
            ..args
        };
        let region = TemporaryRegion::until_signal("study", own_region_bytes().min(LIVE_REGION_BYTES))?;
        Ok(Self { args, region })
    }

    pub async fn start(&self, watermark: &Watermark) -> Result<Live, Failure> {
        let args = EngineArgs { watermark: watermark.clone(), ..self.args.clone() };
        Live::start(&args, &self.region).await
    }

    pub async fn run(&self, watermark: &Watermark, seed: u64) -> Result<CpenRun, Failure> {
        let mut live = self.start(watermark).await?;
        let load = cpen(CPEN_PROMPTS, 1.0, seed);
        let bar = output::progress("serving", load.requests().len() as u64);
        let answers = live.replay(&load, &|| bar.inc(1)).await;
        bar.finish_and_clear();
        let (swaps, taken, stats) = (live.take_swaps(), live.take_taken(), live.settled().await);
        live.end().await;
        Ok(CpenRun { measured: measured(&load, &answers?), swaps, taken, stats: stats? })
    }
}
