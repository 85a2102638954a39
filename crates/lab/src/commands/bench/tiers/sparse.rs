//! Attention to the pages that queries choose, beside attention to all pages.
//!
//! All pages lie in the region, except as few as the engine takes; each group of heads reads an eighth
//! of the context. A row's ratio is its speed against an engine with everything in L1 whose attention
//! reads all of it, measured in turns. All predictors must give the same tokens.

use super::super::rows::{Times, median};
use super::TierRow;
use super::case::Case;
use crate::args::BenchTiersArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_engine::{EngineConfig, SparseConfig};
use cenote_policy::choice::ChoiceKind;
use cenote_store::mover::LinkSpeed;
use std::path::Path;
use std::time::Duration;

/// Goal of the ratio, and part of the context that a group of heads reads.
const GOAL: f64 = 1.5;
const PART: usize = 8;
/// A lower tier beyond a network.
const NETWORK: LinkSpeed = LinkSpeed { bytes_per_s: 1e9, latency: Duration::from_micros(20) };
/// The context of the goal, and the requests that run at once.
const CONTEXT: usize = 8192;
const REQUESTS: usize = 1;

pub fn case(name: &'static str, dir: &Path, args: &BenchTiersArgs, threads: usize) -> Result<Case, Failure> {
    let output_tokens = if args.quick { 16 } else { 128 };
    let context = if args.quick { 512 } else { CONTEXT };
    Case::new(name, dir, threads, REQUESTS, output_tokens, |_, _| context - output_tokens)
}

pub fn measure(case: &Case, args: &BenchTiersArgs) -> Result<Vec<TierRow>, Failure> {
    let pages = (case.working_set() / case.requests()).div_ceil(PART);
    let of = |predictor| SparseConfig { predictor, ..SparseConfig::with_pages(pages) };
    let predictors = [None].into_iter().chain(ChoiceKind::ALL.map(Some));
    let links = [None, Some(LinkSpeed::NIAGARA), Some(NETWORK)];
    let ways: Vec<_> =
        links.iter().flat_map(|link| predictors.clone().map(move |predictor| (*link, predictor))).collect();
    let progress = output::progress("measuring", (4 + ways.len()) as u64);
    let run = |config: &EngineConfig| {
        let ran = case.run(config, None);
        progress.inc(1);
        ran
    };
    // The first run publishes the prompts, so that the others need not compute them.
    let all = case.config(1.0);
    let reference = run(&all)?;
    let before = run(&all)?;
    let streamed = run(&case.config(0.0))?;
    let mut chosen = Vec::new();
    for (link, predictor) in ways {
        let config = EngineConfig { link, sparse: Some(of(predictor)), ..case.config(0.0) };
        chosen.push((link, predictor, run(&config)?));
    }
    let after = run(&all)?;
    progress.finish_and_clear();
    if [&before, &streamed, &after].iter().any(|ran| ran.tokens != reference.tokens) {
        return Err(Failure::new("the tokens depend on where KV lies: a bug"));
    }
    if chosen.iter().any(|(.., ran)| ran.tokens != chosen[0].2.tokens) {
        return Err(Failure::new("the tokens depend on what was prefetched: a bug"));
    }
    let dense: Times = [before.steps.clone(), after.steps].concat();
    let mut rows = vec![TierRow::new(case, "all pages, in L1", &dense, &before, None)];
    let against = |ran: &super::Ran| median(&dense) / median(&ran.steps);
    rows.push(TierRow::new(case, "all pages, streamed", &streamed.steps, &streamed, Some((against(&streamed), None))));
    for (link, predictor, ran) in &chosen {
        let place = match link {
            None => "memory",
            Some(NETWORK) => "1 GB/s, 20 µs",
            Some(_) => "10.1 GB/s, 640 ns",
        };
        let how = predictor.map_or_else(|| "no prefetch".to_owned(), |kind| kind.to_string());
        // The goal is the engine's default at memory speed and over the link of the paper.
        let goal = (!args.quick && predictor.is_none() && *link != Some(NETWORK)).then_some(GOAL);
        let name = format!("1/{PART} of the pages, {place}, {how}");
        rows.push(TierRow::new(case, &name, &ran.steps, ran, Some((against(ran), goal))));
    }
    Ok(rows)
}
