//! `cenote-lab bench tiers`: decode with more KV than L1 holds (CXL-SpecKV §3.3.1, eq. 2).
//!
//! One model runs the same requests with all KV in L1, and with a share of it there; the rest is
//! streamed from the region. Both run in turns, on the same compute threads, while a thread of its
//! own copies. A row's ratio is its speed against the smaller of two limits measured beside it: the
//! engine with everything in L1, and the copies of a step alone, over the same link.

use super::rows::{Row, Times, median};
use crate::args::BenchTiersArgs;
use cenote_base::engine::{Event, Phase, Prompt};
use cenote_base::prng::Prng;
use cenote_base::{Engine, Request, RequestId, SamplingParams, TokenId};
use cenote_console::args::WatchArgs;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::output::{self, table};
use cenote_console::region::{HostPool, TemporaryRegion};
use cenote_engine::stream::Streamer;
use cenote_engine::{EngineConfig, LlmEngine, LoadedModel, Observer, StepRecord};
use cenote_lab::random_model::{self, Shape};
use cenote_store::mover::LinkSpeed;
use cenote_store::{PrefixStore, RegionStore};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Goal of the ratio.
const GOAL: f64 = 0.9;
/// Requests that run at once, which is fewer than a step's tokens.
const REQUESTS: usize = 4;
/// Tokens of a step while prompts are computed.
const STEP_TOKENS: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(600);
/// Passes over the pages of a step, alone.
const PASSES: usize = 12;
const SEED: u64 = 5;

#[derive(Serialize)]
struct Report {
    quick: bool,
    threads: usize,
    rows: Vec<TierRow>,
}

/// A row with the traffic that it stands for.
#[derive(Clone, Debug, Serialize)]
struct TierRow {
    #[serde(flatten)]
    row: Row,
    /// Bytes of weights and of KV that a step reads, and bytes that it streams.
    weight_bytes: u64,
    kv_bytes: u64,
    streamed_bytes: u64,
    /// Generated tokens per second, by the median step.
    tokens_per_s: f64,
    /// Of the streamed pages: the share that arrived late, and was copied by the compute thread.
    late_share: f64,
    by_compute_share: f64,
}

/// Where KV lies and how it comes to the computation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    /// Share of the working set in L1.
    l1: f64,
    link: Option<LinkSpeed>,
    prefetch: bool,
}

const ALL_IN_L1: Way = Way { l1: 1.0, link: None, prefetch: true };

pub fn run(args: &BenchTiersArgs) -> Result<(), Failure> {
    if let Some(wrong) = args.l1.iter().find(|share| !(0.05..1.0).contains(*share)) {
        return Err(Failure::new(format!("--l1 {wrong}: a share of the working set is from 0.05 to less than 1")));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or_else(|| cores.saturating_sub(1).max(1));
    let mut rows = Vec::new();
    let demo = engine::named_dir(None);
    match &args.model {
        Some(dir) => rows.extend(Case::new("model", dir, args, threads)?.measure(args)?),
        None => {
            let demo = demo?;
            rows.extend(Case::new("demo", &demo, args, threads)?.measure(args)?);
            let random = tempfile::tempdir()?;
            random_model::write(&Shape::HUNDRED_MILLION, &demo, random.path(), SEED)?;
            rows.extend(Case::new("100M", random.path(), args, threads)?.measure(args)?);
        }
    }
    let report = Report { quick: args.quick, threads, rows };
    args.output.show(&report, || tiers_table(&report.rows))
}

fn tiers_table(rows: &[TierRow]) -> String {
    let head = ["name", "step p50", "p99", "tokens/s", "streamed", "late", "by compute", "ratio", "goal", "met"];
    let mut out = table(&head).keys(1);
    for TierRow { row, tokens_per_s, streamed_bytes, late_share, by_compute_share, .. } in rows {
        out.add_row([
            row.name.clone(),
            format!("{:.2} {}", row.p50, row.unit),
            format!("{:.2}", row.p99),
            format!("{tokens_per_s:.1}"),
            format!("{:.1} MB", *streamed_bytes as f64 / 1e6),
            format!("{:.1} %", 100.0 * late_share),
            format!("{:.1} %", 100.0 * by_compute_share),
            row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.goal.clone().unwrap_or_default(),
            row.met.map_or_else(String::new, |met| if met { "met" } else { "missed" }.to_owned()),
        ]);
    }
    out.to_string()
}

/// Sends the duration of each step that only decodes.
struct Steps(Sender<StepRecord>);

impl Observer for Steps {
    fn stepped(&mut self, record: &StepRecord) {
        let _ = self.0.send(*record);
    }
}

/// A model and its requests.
struct Case {
    name: &'static str,
    dir: PathBuf,
    threads: usize,
    prompts: Vec<Vec<TokenId>>,
    output_tokens: usize,
    weight_bytes: u64,
    block_bytes: u64,
    block_tokens: usize,
    region: TemporaryRegion,
}

/// A run of all requests.
struct Ran {
    tokens: Vec<Vec<TokenId>>,
    /// Nanoseconds of each step in which all requests decoded.
    steps: Times,
    /// Bytes of KV that such a step reads, on average.
    kv_bytes: u64,
    stats: BTreeMap<String, f64>,
}

impl Case {
    fn new(name: &'static str, dir: &Path, args: &BenchTiersArgs, threads: usize) -> Result<Self, Failure> {
        let config = EngineConfig { threads, ..EngineConfig::new(dir) };
        let model = LoadedModel::load(&config)?;
        let (weight_bytes, layout) = (model.llama().weight_bytes() as u64, *model.layout());
        let token_bytes = (layout.block_bytes() / layout.block_tokens) as u64;
        // A step reads more KV than weights, by a quarter, if the context is long enough.
        let wanted = weight_bytes * 5 / 4 / token_bytes / REQUESTS as u64;
        let output_tokens = if args.quick { 16 } else { 64 };
        let most = model.llama().config().max_position_embeddings - output_tokens;
        let tokens = if args.quick { 512 } else { (wanted as usize).max(2048) }.min(most);
        let mut prng = Prng::new(SEED);
        let mut prompt = || (0..tokens).map(|_| 100 + prng.below(150) as TokenId).collect();
        let prompts: Vec<Vec<TokenId>> = (0..REQUESTS).map(|_| prompt()).collect();
        let working_set = (REQUESTS * (tokens + output_tokens).div_ceil(layout.block_tokens)) as u64;
        let region_bytes = 2 * working_set * layout.block_bytes() as u64 + (64 << 20);
        let region = TemporaryRegion::until_signal("tiers", region_bytes)?;
        Ok(Self {
            name,
            dir: dir.to_owned(),
            threads,
            prompts,
            output_tokens,
            weight_bytes,
            block_bytes: layout.block_bytes() as u64,
            block_tokens: layout.block_tokens,
            region,
        })
    }

    /// Blocks of all requests at their end.
    fn working_set(&self) -> usize {
        let blocks = |prompt: &Vec<TokenId>| (prompt.len() + self.output_tokens).div_ceil(self.block_tokens);
        self.prompts.iter().map(blocks).sum()
    }

    fn config(&self, way: &Way) -> EngineConfig {
        let all = self.working_set();
        let least = REQUESTS + STEP_TOKENS / self.block_tokens;
        let kv_blocks = if way.l1 < 1.0 { ((all as f64 * way.l1) as usize).max(least) } else { all + least };
        EngineConfig {
            threads: self.threads,
            kv_blocks: Some(kv_blocks),
            max_num_seqs: REQUESTS,
            max_num_batched_tokens: STEP_TOKENS,
            spill_bytes: if way.l1 < 1.0 { all as u64 * self.block_bytes } else { 0 },
            mover_threads: usize::from(way.prefetch),
            link: way.link,
            ..EngineConfig::new(&self.dir)
        }
    }

    fn measure(&self, args: &BenchTiersArgs) -> Result<Vec<TierRow>, Failure> {
        let links = [None, Some(LinkSpeed::NIAGARA)];
        let progress = output::progress("measuring", (1 + args.l1.len() * links.len() * 4) as u64);
        // The first run publishes the prompts, so that the others need not compute them.
        let reference = self.run(&ALL_IN_L1)?;
        progress.inc(1);
        let mut rows = Vec::new();
        for (&l1, link) in args.l1.iter().flat_map(|l1| links.iter().map(move |link| (l1, *link))) {
            let before = self.run(&ALL_IN_L1)?;
            let copies = self.copies(&Way { l1, link, prefetch: true })?;
            progress.inc(1);
            let mut ways = Vec::new();
            for prefetch in [true, false] {
                ways.push((prefetch, self.run(&Way { l1, link, prefetch })?));
                progress.inc(1);
            }
            let after = self.run(&ALL_IN_L1)?;
            progress.inc(1);
            if ways.iter().map(|(_, ran)| ran).chain([&before, &after]).any(|ran| ran.tokens != reference.tokens) {
                return Err(Failure::new("the tokens depend on where KV lies: a bug"));
            }
            let in_l1: Times = [before.steps.clone(), after.steps.clone()].concat();
            let place = if link.is_some() { "10.1 GB/s, 640 ns" } else { "memory" };
            rows.push(self.row("everything in L1", &in_l1, &before, None));
            rows.push(self.row(&format!("copies of a step, {place}"), &copies, &before, None));
            let limit = median(&in_l1).max(median(&copies));
            for (prefetch, ran) in &ways {
                let how = if *prefetch { "" } else { ", no prefetch" };
                let name = format!("{l1} in L1, {place}{how}");
                let ratio = limit / median(&ran.steps);
                let goal = (*prefetch && !args.quick).then_some(GOAL);
                rows.push(self.row(&name, &ran.steps, ran, Some((ratio, goal))));
            }
        }
        progress.finish_and_clear();
        Ok(rows)
    }

    fn row(&self, name: &str, times: &Times, ran: &Ran, ratio: Option<(f64, Option<f64>)>) -> TierRow {
        let row = Row::milliseconds(format!("{}: {name}", self.name), times);
        let row = match ratio {
            Some((ratio, Some(goal))) => row.ratio_at_least(ratio, goal),
            Some((ratio, None)) => row.ratio(ratio),
            None => row,
        };
        let stat = |name: &str| ran.stats.get(name).copied().unwrap_or(0.0);
        let share =
            |part: &str| if stat("staged_pages_total") > 0.0 { stat(part) / stat("staged_pages_total") } else { 0.0 };
        let steps = stat("engine_steps_total").max(1.0);
        TierRow {
            row: Row { bench: "tiers", design: "cenote", ..row },
            weight_bytes: self.weight_bytes,
            kv_bytes: ran.kv_bytes,
            streamed_bytes: (stat("staged_bytes_total") / steps) as u64,
            tokens_per_s: REQUESTS as f64 * 1e9 / median(times),
            late_share: share("staged_late_pages_total"),
            by_compute_share: share("staged_by_compute_pages_total"),
        }
    }

    fn store(
        &self,
        model: &LoadedModel,
    ) -> Result<(HostPool, RegionStore<std::sync::Arc<cenote_mem::Mapped>>), Failure> {
        let region = self.region.args();
        let pool = region.attach_watching("tiers", &WatchArgs::default())?;
        let store =
            RegionStore::new(pool.clone(), &model.namespace_spec("")).map_err(|error| region.explain(&error))?;
        Ok((pool, store))
    }

    /// Runs all requests at once.
    fn run(&self, way: &Way) -> Result<Ran, Failure> {
        let model = LoadedModel::load(&self.config(way))?;
        let (_pool, store) = self.store(&model)?;
        let (sender, records) = channel();
        let engine = LlmEngine::start_observed(model, Some(Box::new(store)), Box::new(Steps(sender)))?;
        let events: Vec<Receiver<Event>> =
            (0..).zip(&self.prompts).map(|(id, prompt)| self.submit(&engine, id, prompt)).collect::<Result<_, _>>()?;
        let tokens = events.iter().map(collect).collect::<Result<Vec<_>, _>>()?;
        let stats = engine.stats().values;
        drop(engine);
        // Not the first steps of all requests together: their blocks may still move.
        let all: Vec<StepRecord> = records
            .iter()
            .filter(|step| step.requests == REQUESTS as u64 && step.tokens == step.requests)
            .skip(4)
            .collect();
        if all.is_empty() {
            return Err(Failure::new("no step decoded all requests at once"));
        }
        let context = all.iter().map(|step| step.context).sum::<u64>() / all.len() as u64;
        let kv_bytes = context * self.block_bytes / self.block_tokens as u64;
        Ok(Ran { tokens, steps: all.iter().map(|step| step.ns as f64).collect(), kv_bytes, stats })
    }

    fn submit(&self, engine: &LlmEngine, id: u64, prompt: &[TokenId]) -> Result<Receiver<Event>, Failure> {
        let (sender, events) = channel();
        let request = Request {
            id: RequestId(id + 1),
            prompt: Prompt::Tokens(prompt.to_vec()),
            sampling: SamplingParams {
                temperature: 0.0,
                max_tokens: Some(self.output_tokens as u32),
                ignore_eos: true,
                ..SamplingParams::default()
            },
            phase: Phase::Whole,
            use_pool: true,
            cache_salt: None,
            timeout_ms: TIMEOUT.as_millis() as u64,
        };
        engine.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
        Ok(events)
    }

    /// Nanoseconds in which the spilled pages of a step arrive, without a computation.
    fn copies(&self, way: &Way) -> Result<Times, Failure> {
        let config = self.config(way);
        let model = LoadedModel::load(&config)?;
        let (_pool, mut store) = self.store(&model)?;
        let hashes = self.prompts.iter().flat_map(|prompt| store.match_prefix(None, prompt).hashes).collect::<Vec<_>>();
        let (all, first) = (self.working_set(), model.kv_blocks());
        let spilled = all.saturating_sub(first).min(hashes.len());
        let mut streamer = Streamer::start(*model.layout(), first, model.spill_blocks(), 1, way.link)?;
        let blocks: Vec<u32> = (first as u32..).take(spilled).collect();
        for (block, hash) in blocks.iter().zip(&hashes) {
            let far = store.open(*hash).ok_or_else(|| Failure::new("a block of the first run is not in the region"))?;
            streamer.insert(*block, far);
        }
        let passes = (0..PASSES).map(|_| {
            let begin = Instant::now();
            streamer.pass(&blocks);
            begin.elapsed().as_nanos() as f64
        });
        Ok(passes.skip(2).collect())
    }
}

fn collect(events: &Receiver<Event>) -> Result<Vec<TokenId>, Failure> {
    let mut tokens = Vec::new();
    loop {
        match events.recv_timeout(TIMEOUT).map_err(|_| Failure::new("the engine gave no answer"))? {
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { .. } => return Ok(tokens),
            Event::Failed(error) => return Err(error.into()),
        }
    }
}
