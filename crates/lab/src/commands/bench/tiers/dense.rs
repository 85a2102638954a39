//! Attention that reads every page in each step (CXL-SpecKV §3.3.1, eq. 2).
//!
//! One model runs the same requests with all KV in L1, and with a share of it there; the rest is
//! streamed from the region. Both run in turns, on the same compute threads, while a thread of its
//! own copies. A row's ratio is its speed against the smaller of two limits measured beside it: the
//! engine with everything in L1, and the copies of a step alone, over the same link.

use super::super::rows::{Times, median};
use super::TierRow;
use super::case::Case;
use crate::args::BenchTiersArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engine::stream::Streamer;
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_store::PrefixStore;
use cenote_store::mover::LinkSpeed;
use std::path::Path;
use std::time::Instant;

/// Goal of the ratio.
const GOAL: f64 = 0.9;
/// Requests that run at once, which is fewer than a step's tokens.
const REQUESTS: usize = 4;
/// Passes over the pages of a step, alone.
const PASSES: usize = 12;

/// Where KV lies and how it comes to the computation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    /// Share of the working set in L1.
    l1: f64,
    link: Option<LinkSpeed>,
    prefetch: bool,
}

const ALL_IN_L1: Way = Way { l1: 1.0, link: None, prefetch: true };

fn config(case: &Case, way: &Way) -> EngineConfig {
    EngineConfig { mover_threads: usize::from(way.prefetch), link: way.link, ..case.config(way.l1) }
}

/// Requests whose steps read a quarter more KV than weights, if the context is long enough.
pub fn case(name: &'static str, dir: &Path, args: &BenchTiersArgs, threads: usize) -> Result<Case, Failure> {
    let output_tokens = if args.quick { 16 } else { 64 };
    Case::new(name, dir, threads, REQUESTS, output_tokens, |weight_bytes, token_bytes| {
        let wanted = weight_bytes * 5 / 4 / token_bytes / REQUESTS as u64;
        if args.quick { 512 } else { (wanted as usize).max(2048) }
    })
}

pub fn measure(case: &Case, args: &BenchTiersArgs) -> Result<Vec<TierRow>, Failure> {
    let run = |way: &Way| case.run(&config(case, way));
    let links = [None, Some(LinkSpeed::NIAGARA)];
    let progress = output::progress("measuring", (1 + args.l1.len() * links.len() * 4) as u64);
    // The first run publishes the prompts, so that the others need not compute them.
    let reference = run(&ALL_IN_L1)?;
    progress.inc(1);
    let mut rows = Vec::new();
    for (&l1, link) in args.l1.iter().flat_map(|l1| links.iter().map(move |link| (l1, *link))) {
        let before = run(&ALL_IN_L1)?;
        let copies = copies(case, &Way { l1, link, prefetch: true })?;
        progress.inc(1);
        let mut ways = Vec::new();
        for prefetch in [true, false] {
            ways.push((prefetch, run(&Way { l1, link, prefetch })?));
            progress.inc(1);
        }
        let after = run(&ALL_IN_L1)?;
        progress.inc(1);
        if ways.iter().map(|(_, ran)| ran).chain([&before, &after]).any(|ran| ran.tokens != reference.tokens) {
            return Err(Failure::new("the tokens depend on where KV lies: a bug"));
        }
        let in_l1: Times = [before.steps.clone(), after.steps.clone()].concat();
        let place = if link.is_some() { "10.1 GB/s, 640 ns" } else { "memory" };
        rows.push(TierRow::new(case, "everything in L1", &in_l1, &before, None));
        rows.push(TierRow::new(case, &format!("copies of a step, {place}"), &copies, &before, None));
        let limit = median(&in_l1).max(median(&copies));
        for (prefetch, ran) in &ways {
            let how = if *prefetch { "" } else { ", no prefetch" };
            let name = format!("{l1} in L1, {place}{how}");
            let ratio = limit / median(&ran.steps);
            let goal = (*prefetch && !args.quick).then_some(GOAL);
            rows.push(TierRow::new(case, &name, &ran.steps, ran, Some((ratio, goal))));
        }
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// Nanoseconds in which the spilled pages of a step arrive, without a computation.
fn copies(case: &Case, way: &Way) -> Result<Times, Failure> {
    let config = config(case, way);
    let model = LoadedModel::load(&config)?;
    let (_pool, mut store) = case.store(&model)?;
    let hashes = case.prompts.iter().flat_map(|prompt| store.match_prefix(None, prompt).hashes).collect::<Vec<_>>();
    let (all, first) = (case.working_set(), model.kv_blocks());
    let spilled = all.saturating_sub(first).min(hashes.len());
    let mut streamer = Streamer::start(*model.layout(), 1, first, model.spill_blocks(), 1, way.link)?;
    let blocks: Vec<u32> = (first as u32..).take(spilled).collect();
    for (block, hash) in blocks.iter().zip(&hashes) {
        let far = store.open(*hash, 1).ok_or_else(|| Failure::new("a block of the first run is not in the region"))?;
        streamer.insert(*block, far);
    }
    let passes = (0..PASSES).map(|_| {
        let begin = Instant::now();
        streamer.pass(&blocks);
        begin.elapsed().as_nanos() as f64
    });
    Ok(passes.skip(2).collect())
}
