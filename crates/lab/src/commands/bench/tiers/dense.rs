//! Attention that reads every page in each step (CXL-SpecKV §3.3.1, eq. 2).
//!
//! One model runs the same requests with all KV in L1, and with a share of it there; the rest is
//! streamed from the region, where blocks are raw or encoded. Both run in turns, on the same compute
//! threads, while a thread of its own copies and decodes. A row's ratio is its speed against the smaller of two limits measured beside it: the
//! engine with everything in L1, and the copies of a step alone, over the same link.

use super::super::rows::{Times, median};
use super::TierRow;
use super::case::{Case, Ran};
use crate::args::BenchTiersArgs;
use cenote_base::TokenId;
use cenote_console::args::CodecArg;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engine::stream::Streamer;
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_store::PrefixStore;
use cenote_store::mover::{LinkSpeed, MoverConfig, MoverKind};
use std::path::Path;
use std::time::Instant;

/// Goal of the ratio.
const GOAL: f64 = 0.9;
/// Requests that run at once, which is fewer than a step's tokens.
const REQUESTS: usize = 4;
/// Passes over the pages of a step, alone.
const PASSES: usize = 12;

/// Where KV lies and how it comes to the computation.
#[derive(Clone, Copy, Debug)]
struct Way<'a> {
    /// Share of the working set in L1.
    l1: f64,
    link: Option<LinkSpeed>,
    prefetch: bool,
    codec: Option<&'a CodecArg>,
}

fn config(case: &Case, way: &Way<'_>) -> EngineConfig {
    EngineConfig { mover: MoverKind::Threads(usize::from(way.prefetch)), link: way.link, ..case.config(way.l1) }
}

/// Requests whose steps read a quarter more KV than weights, if the context is long enough.
pub fn case(name: &'static str, dir: &Path, args: &BenchTiersArgs, threads: usize) -> Result<Case, Failure> {
    let output_tokens = if args.quick { 16 } else { 64 };
    let mut case = Case::new(name, dir, threads, REQUESTS, output_tokens, |weight_bytes, token_bytes| {
        let wanted = weight_bytes * 5 / 4 / token_bytes / REQUESTS as u64;
        if args.quick { 512 } else { (wanted as usize).max(2048) }
    })?;
    case.profile.clone_from(&args.profile);
    Ok(case)
}

pub fn measure(case: &Case, args: &BenchTiersArgs) -> Result<Vec<TierRow>, Failure> {
    let codecs = [None, Some(&args.codec)];
    let links = [None, Some(LinkSpeed::NIAGARA)];
    let ways: Vec<Way<'_>> = (codecs.iter())
        .flat_map(|codec| args.l1.iter().map(move |l1| (*codec, *l1)))
        .flat_map(|(codec, l1)| links.map(|link| Way { l1, link, prefetch: true, codec }))
        .collect();
    let progress = output::progress("measuring", (2 * codecs.len() + 5 * ways.len()) as u64);
    let run = |way: &Way<'_>| {
        let ran = case.run(&config(case, way), way.codec);
        progress.inc(1);
        ran
    };
    let mut rows = Vec::new();
    let mut reference: Option<(String, Vec<Vec<TokenId>>)> = None;
    for way in &ways {
        let all = Way { l1: 1.0, link: None, prefetch: true, codec: way.codec };
        let kind = way.codec.map_or_else(|| "raw".to_owned(), ToString::to_string);
        if reference.as_ref().is_none_or(|(of, _)| *of != kind) {
            // The first run publishes the prompts. The others find their blocks, encoded if there is a
            // codec, so that all of them read the same values.
            run(&all)?;
            reference = Some((kind.clone(), run(&all)?.tokens));
        }
        let before = run(&all)?;
        let copies = copies(case, way)?;
        progress.inc(1);
        let prefetched = run(way)?;
        let on_demand = run(&Way { prefetch: false, ..*way })?;
        let after = run(&all)?;
        let is_same = |ran: &Ran| reference.as_ref().is_some_and(|(_, tokens)| *tokens == ran.tokens);
        if ![&before, &prefetched, &on_demand, &after].into_iter().all(is_same) {
            return Err(Failure::new("the tokens depend on where KV lies: a bug"));
        }
        let in_l1: Times = [before.steps.clone(), after.steps].concat();
        let place = if way.link.is_some() { "10.1 GB/s, 640 ns" } else { "memory" };
        let place = if way.codec.is_some() { format!("{place}, {kind}") } else { place.to_owned() };
        rows.push(TierRow::new(case, "everything in L1", &in_l1, &before, None));
        rows.push(TierRow::new(case, &format!("copies of a step, {place}"), &copies, &before, None));
        let limit = median(&in_l1).max(median(&copies));
        for (ran, how) in [(&prefetched, ""), (&on_demand, ", no prefetch")] {
            let name = format!("{} in L1, {place}{how}", way.l1);
            let ratio = limit / median(&ran.steps);
            // The goal is for raw blocks, and for the engine's default.
            let goal = (how.is_empty() && way.codec.is_none() && !args.quick).then_some(GOAL);
            rows.push(TierRow::new(case, &name, &ran.steps, ran, Some((ratio, goal))));
        }
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// Nanoseconds in which the spilled pages of a step arrive, without a computation.
fn copies(case: &Case, way: &Way<'_>) -> Result<Times, Failure> {
    let config = config(case, way);
    let model = LoadedModel::load(&config)?;
    let (_pool, mut store) = case.store(&model, way.codec)?;
    let naming = store.naming();
    let hashes: Vec<_> = case.prompts.iter().flat_map(|prompt| naming.names(None, prompt).to_vec()).collect();
    let (all, first) = (case.working_set(), model.kv_blocks());
    let spilled = all.saturating_sub(first).min(hashes.len());
    let parts = model.page_parts(store.is_exact());
    let mover = MoverConfig { kind: MoverKind::Threads(1), link: way.link, clock: config.clock };
    let mut streamer = Streamer::start(*model.layout(), parts, first, model.spill_blocks(), &mover, 2)?;
    let blocks: Vec<u32> = (first as u32..).take(spilled).collect();
    for (block, hash) in blocks.iter().zip(&hashes) {
        let far =
            store.open(*hash, parts).ok_or_else(|| Failure::new("a block of the first run is not in the region"))?;
        streamer.insert(*block, far);
    }
    // Each request has as many of them.
    let sequences: Vec<Vec<u32>> = blocks.chunks(spilled.div_ceil(REQUESTS).max(1)).map(<[u32]>::to_vec).collect();
    let passes = (0..PASSES).map(|_| {
        let begin = Instant::now();
        streamer.pass(&sequences);
        begin.elapsed().as_nanos() as f64
    });
    Ok(passes.skip(2).collect())
}
