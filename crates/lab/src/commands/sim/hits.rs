//! `cenote-lab sim --hit-rate-only`: hit rates of a trace by the number of blocks.

use super::{Begin, Load};
use crate::args::{InstantArg, RoutingArg, SimArgs, pool_name};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_serving_sim::hits::{Instants, Routing};
use cenote_serving_sim::{HitRate, hit_rate, hit_rate_on_hosts};
use serde::Serialize;

#[derive(Serialize)]
struct Run {
    load: String,
    eviction: String,
    /// None: unlimited.
    pool_blocks: Option<usize>,
    /// `ideal`, or the number of hosts.
    pool_model: String,
    #[serde(flatten)]
    found: HitRate,
}

pub fn run(args: &SimArgs, load: &Load) -> Result<(), Failure> {
    let capacities: Vec<Option<usize>> = match args.pool_blocks.as_slice() {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let (widest, width) = load.workload.widest().unwrap_or_default();
    if let Some(too_small) = capacities.iter().flatten().find(|capacity| **capacity < width) {
        return Err(Failure::new(format!(
            "--pool-blocks {too_small}: request {} alone has {width} blocks, so the pool would lose its beginning before its end is in",
            widest + 1
        ))
        .hint(format!("give {width} or more")));
    }
    let instants = match args.instant {
        InstantArg::Block => Instants::Block,
        InstantArg::Request => Instants::Request,
    };
    let routing = match args.routing {
        RoutingArg::RoundRobin => Routing::RoundRobin,
        RoutingArg::Sticky => Routing::Sticky,
        RoutingArg::One => Routing::One,
    };
    let begin = Begin::now();
    let mut runs = Vec::new();
    for &pool_blocks in &capacities {
        for &eviction in &args.eviction {
            for hosts in args.pools() {
                let found = match hosts {
                    None => hit_rate(&load.workload, eviction, pool_blocks, instants),
                    Some(hosts) => hit_rate_on_hosts(&load.workload, eviction, pool_blocks, hosts, routing),
                };
                let (load, eviction, pool_model) = (load.name.clone(), eviction.to_string(), pool_name(hosts));
                runs.push(Run { load, eviction, pool_blocks, pool_model, found });
            }
        }
    }
    let requests = runs.iter().map(|run| run.found.requests).sum();
    begin.tell(requests, runs.iter().map(|run| run.found.blocks).sum());
    match runs.as_slice() {
        [one] => args.output.show(one, || table(&runs)),
        _ => args.output.show(&runs, || table(&runs)),
    }
}

fn table(runs: &[Run]) -> String {
    let header =
        ["pool", "eviction", "model", "hit rate", "blocks found", "of", "different", "evicted", "chunks moved"];
    let mut rows = output::table(&header).keys(3);
    for run in runs {
        rows.add_row([
            run.pool_blocks.map_or_else(|| "infinite".to_owned(), |blocks| format!("{blocks} blocks")),
            run.eviction.clone(),
            run.pool_model.clone(),
            format!("{:.3} %", 100.0 * run.found.hit_rate),
            run.found.hit_blocks.to_string(),
            run.found.blocks.to_string(),
            run.found.unique_blocks.to_string(),
            run.found.evicted_blocks.to_string(),
            run.found.moved_chunks.to_string(),
        ]);
    }
    rows.to_string()
}
