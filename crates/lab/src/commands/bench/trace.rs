//! `cenote-lab bench trace`: the value of a codec, and of a cold tier, if the region is too small for
//! the prompts.
//!
//! The prompts of a trace run one after the other through an engine of this process: with raw
//! blocks; with the codec; with the codec and blocks decoded before a step instead of during it;
//! with the codec for cold blocks; and with the cold tier. Each run has a fresh region of the same size. Each block of
//! the trace always stands for the same few tokens, so prompts share prefixes as in the trace. Prompts are
//! clipped to the model's context.

use super::ttft::Bench;
use crate::args::BenchTraceArgs;
use cenote_base::TokenId;
use cenote_base::prng::Prng;
use cenote_base::units::ByteSize;
use cenote_console::args::{CodecArg, EngineArgs, NewRegionArgs, WatchArgs};
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::measure::percentiles;
use cenote_console::output;
use cenote_console::region::ENCODED_MIN_BLOCK;
use cenote_console::region::TemporaryRegion;
use serde::Serialize;
use std::collections::BTreeSet;

/// Bytes of a raw value, the reference of ratios.
const RAW_VALUE_BYTES: u64 = 2;

#[derive(Serialize)]
struct Report {
    model: String,
    dtype: &'static str,
    requests: usize,
    prompt_tokens: u64,
    /// Bytes of all different blocks, at 16 bits per value.
    working_set_bytes: u64,
    region_bytes: u64,
    /// Share of prompt tokens in blocks that occurred before: the hit rate of an unlimited region.
    repeated: f64,
    warm_requests: usize,
    rows: Vec<Run>,
}

/// Results of one encoding of blocks.
#[derive(Serialize)]
struct Run {
    codec: String,
    /// Share of prompt tokens that came from the region.
    hit_rate: f64,
    /// Milliseconds to the first token, over all requests.
    ttft_p50_ms: f64,
    ttft_p99_ms: f64,
    ttft_mean_ms: f64,
    /// The same over requests with at least half of their blocks known: the same requests for every
    /// codec.
    warm_ttft_p50_ms: f64,
    warm_ttft_mean_ms: f64,
    /// Blocks in the region at the end.
    blocks: u64,
    /// Their bytes at 16 bits per value, over those of the region.
    capacity: f64,
}

pub fn run(args: &BenchTraceArgs) -> Result<(), Failure> {
    if !args.engine.encodes() && args.engine.cold.is_none() {
        return Err(Failure::new("no codec and no cold tier was named")
            .hint("give --codec qpack:0.35 --profile FILE or --cold DIR, for example"));
    }
    if !(0.0..=100.0).contains(&args.share) {
        return Err(Failure::new(format!("--share {}: it is between 0 and 100", args.share)));
    }
    let model = engine::load(&args.engine, None)?;
    let (layout, longest) = (*model.layout(), model.max_model_len() - 1);
    let values = 2 * layout.num_layers * layout.num_kv_heads * layout.head_dim * layout.block_tokens;
    let raw_block = RAW_VALUE_BYTES * values as u64;
    let vocabulary = model.llama().config().vocab_size as u64;
    let name = model.name().to_owned();
    drop(model);
    let prompts = prompts(args, longest, vocabulary)?;
    let (repeated, different) = repeated_blocks(&prompts, layout.block_tokens);
    let is_warm: Vec<bool> = (repeated.iter().zip(&prompts))
        .map(|(repeated, prompt)| *repeated > 0 && 2 * repeated * layout.block_tokens >= prompt.len())
        .collect();
    let working_set_bytes = raw_block * different;
    let region_bytes = (working_set_bytes as f64 * args.share) as u64;
    let mut rows = Vec::new();
    let (fresh, cold) = (&args.engine.codec, &args.engine.cold_codec);
    let way = fresh.as_ref().map_or_else(|| "raw".to_owned(), ToString::to_string);
    let with = |codec: &Option<CodecArg>, cold_codec: &Option<CodecArg>, decode_first| EngineArgs {
        codec: codec.clone(),
        cold_codec: cold_codec.clone(),
        decode_first,
        cold: None,
        ..args.engine.clone()
    };
    let mut ways = vec![("raw".to_owned(), with(&None, &None, false))];
    if fresh.is_some() {
        ways.push((way.clone(), with(fresh, &None, false)));
        ways.push((format!("{way}, decoded first"), with(fresh, &None, true)));
    }
    if let Some(cold_codec) = cold {
        ways.push((format!("{way}, cold {cold_codec}"), with(fresh, cold, false)));
    }
    if let Some(tier) = &args.engine.cold {
        ways.push((format!("{way}, L4"), EngineArgs { cold: Some(tier.clone()), ..with(fresh, &None, false) }));
    }
    for (way, engine) in ways {
        rows.push(replay(way, &engine, &prompts, &is_warm, region_bytes, raw_block)?);
    }
    let prompt_tokens: u64 = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    let repeated = repeated.iter().sum::<usize>() * layout.block_tokens;
    let dtype = args.engine.dtype.name();
    let report = Report {
        model: name,
        dtype,
        requests: prompts.len(),
        prompt_tokens,
        working_set_bytes,
        region_bytes,
        repeated: repeated as f64 / prompt_tokens as f64,
        warm_requests: is_warm.iter().filter(|warm| **warm).count(),
        rows,
    };
    args.output.show(&report, || table(&report))
}

/// The prompts of the first requests.
fn prompts(args: &BenchTraceArgs, longest: usize, vocabulary: u64) -> Result<Vec<Vec<TokenId>>, Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", args.trace.display()));
    let file = input::open(&args.trace).map_err(failed)?;
    let format = args.sessions.format(args.format, &args.trace, args.seed);
    let Some(block_tokens) = format.block_tokens() else {
        return Err(failed("its format does not say which blocks prompts have".to_owned())
            .hint("give a trace of --format mooncake or agentic"));
    };
    let read = format.read(file, block_tokens, true).map_err(|error| failed(error.to_string()))?;
    read.remarks().iter().for_each(|line| output::say(&format!("{}: {line}", args.trace.display())));
    let mut load = read.workload;
    load.truncate(args.requests);
    let prompt = |request| {
        let tokens = load.blocks(request).iter().flat_map(|block| {
            let mut prng = Prng::at(u64::from(*block), 0);
            (0..args.tokens_per_id).map(move |_| prng.below(vocabulary) as TokenId)
        });
        tokens.take(longest).collect::<Vec<_>>()
    };
    let mut prompts: Vec<Vec<TokenId>> = load.requests().iter().map(prompt).collect();
    prompts.retain(|prompt| !prompt.is_empty());
    if prompts.is_empty() { Err(failed("it has no requests".to_owned())) } else { Ok(prompts) }
}

/// Per prompt, the number of blocks that occurred before with all their predecessors; and the
/// number of different blocks.
fn repeated_blocks(prompts: &[Vec<TokenId>], block_tokens: usize) -> (Vec<usize>, u64) {
    let mut seen = BTreeSet::new();
    let repeated = prompts.iter().map(|prompt| {
        let mut chain = blake3::Hasher::new();
        let blocks = prompt.chunks_exact(block_tokens).filter(|block| {
            for token in *block {
                chain.update(&token.to_le_bytes());
            }
            !seen.insert(*chain.finalize().as_bytes())
        });
        blocks.count()
    });
    (repeated.collect(), seen.len() as u64)
}

fn replay(
    codec: String,
    args: &EngineArgs,
    prompts: &[Vec<TokenId>],
    is_warm: &[bool],
    bytes: u64,
    raw_block: u64,
) -> Result<Run, Failure> {
    let new = NewRegionArgs { cold: args.cold.clone(), ..NewRegionArgs::of_size(bytes) };
    let new = if args.encodes() { NewRegionArgs { min_block: ENCODED_MIN_BLOCK, ..new } } else { new };
    let region = TemporaryRegion::make("bench", &new)?;
    let mut bench = Bench::new(engine::start(args, Some(region.args()), &WatchArgs::default(), "bench")?);
    let progress = output::progress("replaying", prompts.len() as u64);
    let (mut times, mut warm, mut cached, mut tokens) = (Vec::new(), Vec::new(), 0, 0);
    for (prompt, is_warm) in prompts.iter().zip(is_warm) {
        let (time, usage) = bench.ask(prompt, true)?;
        times.push(time);
        cached += u64::from(usage.cached_tokens);
        tokens += u64::from(usage.prompt_tokens);
        if *is_warm {
            warm.push(time);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let blocks = region.args().inspect()?.info().blocks_ready;
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len().max(1) as f64;
    let (ttft_mean_ms, warm_ttft_mean_ms) = (mean(&times), mean(&warm));
    let (p50, p99) = percentiles(times);
    Ok(Run {
        codec,
        hit_rate: cached as f64 / tokens as f64,
        ttft_p50_ms: p50,
        ttft_p99_ms: p99,
        ttft_mean_ms,
        warm_ttft_p50_ms: if warm.is_empty() { 0.0 } else { percentiles(warm).0 },
        warm_ttft_mean_ms,
        blocks,
        capacity: (blocks * raw_block) as f64 / bytes as f64,
    })
}

fn table(report: &Report) -> String {
    let mut rows = output::table(&[
        "codec",
        "hit rate",
        "TTFT mean",
        "TTFT p50",
        "TTFT p99",
        "warm mean",
        "warm p50",
        "blocks",
        "capacity",
    ]);
    for run in &report.rows {
        rows.add_row([
            run.codec.clone(),
            format!("{:.1} %", 100.0 * run.hit_rate),
            format!("{:.2} ms", run.ttft_mean_ms),
            format!("{:.2} ms", run.ttft_p50_ms),
            format!("{:.2} ms", run.ttft_p99_ms),
            format!("{:.2} ms", run.warm_ttft_mean_ms),
            format!("{:.2} ms", run.warm_ttft_p50_ms),
            run.blocks.to_string(),
            format!("{:.2} × region", run.capacity),
        ]);
    }
    let words = format!(
        "{} ({}): {} requests of {} tokens in all; their blocks take {} with 16 bits a value, the region has {}; {:.1} % of \
         the tokens came before, half or more of those of {} requests (warm)",
        report.model,
        report.dtype,
        report.requests,
        report.prompt_tokens,
        ByteSize(report.working_set_bytes),
        ByteSize(report.region_bytes),
        100.0 * report.repeated,
        report.warm_requests
    );
    format!("{}\n\n{rows}", output::wrapped(&words, ""))
}
