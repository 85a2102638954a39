//! `cenote-lab study agents`: eviction policies on sessions of agents, and why they differ.

use crate::args::StudyAgentsArgs;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_console::output;
use cenote_policy::Eviction;
use cenote_serving_sim::hits::{Evicted, Instants, Returns, best_hit_rate, evictions, returns};
use cenote_serving_sim::workload::MOONCAKE_BLOCK_TOKENS;
use cenote_serving_sim::{Workload, hit_rate};
use serde::Serialize;

#[derive(Serialize)]
struct Draw {
    seed: u64,
    requests: usize,
    blocks: u64,
    unique_blocks: usize,
    /// Hit rate without a limit.
    infinite: f64,
    sizes: Vec<Size>,
    /// By the time since a block's last use.
    returns: Vec<Returns>,
}

#[derive(Serialize)]
struct Size {
    pool_blocks: usize,
    /// LRU with an instant for each block, as in the textbook: the beginning of a prompt leaves first.
    textbook_lru: f64,
    policies: Vec<Policy>,
    /// Hit rate of a cache that knows the future.
    best: f64,
}

#[derive(Serialize)]
struct Policy {
    eviction: String,
    hit_rate: f64,
    /// Distance from LRU to the best, in parts of it.
    gained: f64,
    evicted: Evicted,
}

pub fn run(args: &StudyAgentsArgs) -> Result<(), Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", args.trace.display()));
    let runs = args.draws * args.pool_blocks.len() as u64 * (Eviction::ALL.len() as u64 + 1);
    let mut draws: Vec<Draw> = Vec::new();
    let bar = output::progress("replaying", runs);
    for seed in args.seed..args.seed + args.draws {
        let format = args.sessions.format(Some(args.format), &args.trace, seed);
        let file = input::open(&args.trace).map_err(failed)?;
        let read = format.read(file, format.block_tokens().unwrap_or(MOONCAKE_BLOCK_TOKENS), false);
        let read = read.map_err(|error| failed(error.to_string()).hint("is --format right?"))?;
        read.remarks().iter().for_each(|line| output::say(&format!("{}: {line}", args.trace.display())));
        let load = read.workload;
        let width = load.widest().map_or(0, |(_, width)| width);
        if let Some(small) = args.pool_blocks.iter().find(|blocks| **blocks < width) {
            return Err(Failure::new(format!("--pool-blocks {small}: a request has {width} blocks"))
                .hint(format!("give {width} or more")));
        }
        let unlimited = hit_rate(&load, Eviction::Lru, None, Instants::Request);
        draws.push(Draw {
            seed,
            requests: load.requests().len(),
            blocks: unlimited.blocks,
            unique_blocks: load.num_blocks(),
            infinite: unlimited.hit_rate,
            sizes: args.pool_blocks.iter().map(|&blocks| size(&load, blocks, &mut || bar.inc(1))).collect(),
            returns: returns(&load),
        });
    }
    bar.finish_and_clear();
    args.output.show(&draws, || text(&draws))
}

fn size(load: &Workload, pool_blocks: usize, done: &mut dyn FnMut()) -> Size {
    let rate = |eviction, instants| hit_rate(load, eviction, Some(pool_blocks), instants).hit_rate;
    let textbook_lru = rate(Eviction::Lru, Instants::Block);
    let best = best_hit_rate(load, pool_blocks);
    let lru = rate(Eviction::Lru, Instants::Request);
    done();
    let policies = Eviction::ALL.map(|eviction| {
        let hit_rate = rate(eviction, Instants::Request);
        let gained = if best > lru { (hit_rate - lru) / (best - lru) } else { 0.0 };
        let evicted = evictions(load, eviction, pool_blocks, Instants::Request);
        done();
        Policy { eviction: eviction.to_string(), hit_rate, gained, evicted }
    });
    Size { pool_blocks, textbook_lru, policies: policies.into(), best }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn text(draws: &[Draw]) -> String {
    let names = Eviction::ALL.map(|eviction| eviction.to_string());
    let mut header = vec!["seed", "blocks", "LRU by block"];
    header.extend(names.iter().map(String::as_str));
    header.extend(["knows the future", "infinite"]);
    let mut rates = output::table(&header).keys(2);
    for draw in draws {
        for size in &draw.sizes {
            let mut row = vec![draw.seed.to_string(), size.pool_blocks.to_string(), percent(size.textbook_lru)];
            row.extend(size.policies.iter().map(|policy| percent(policy.hit_rate)));
            row.extend([percent(size.best), percent(draw.infinite)]);
            rates.add_row(row);
        }
    }
    let mut victims = output::table(&[
        "seed",
        "blocks",
        "eviction",
        "LRU to the future",
        "evicted",
        "asked for again",
        "never found before",
        "idle p50",
        "dead in the pool",
    ])
    .keys(3);
    for draw in draws {
        for (size, policy) in draw.sizes.iter().flat_map(|size| size.policies.iter().map(move |one| (size, one))) {
            victims.add_row([
                draw.seed.to_string(),
                size.pool_blocks.to_string(),
                policy.eviction.clone(),
                format!("{:+.0} %", 100.0 * policy.gained),
                policy.evicted.blocks.to_string(),
                percent(policy.evicted.wanted),
                percent(policy.evicted.wanted_unfound),
                format!("{:.0} s", policy.evicted.idle_p50_s),
                percent(policy.evicted.dead),
            ]);
        }
    }
    let mut idle = output::table(&["seed", "idle for", "blocks", "return by its end", "per second"]).keys(2);
    for draw in draws {
        for row in &draw.returns {
            let class = match row.to_s {
                Some(to) => format!("{} to {to} s", row.from_s),
                None => format!("more than {} s", row.from_s),
            };
            let share = if row.idle == 0 { 0.0 } else { row.returned as f64 / row.idle as f64 };
            let rate = if row.to_s.is_some() { format!("{:.3} %", 100.0 * row.per_s) } else { "-".to_owned() };
            idle.add_row([draw.seed.to_string(), class, row.idle.to_string(), percent(share), rate]);
        }
    }
    let loads: Vec<String> = (draws.iter())
        .map(|draw| {
            format!(
                "Seed {}: {} requests of {} blocks, {} different.",
                draw.seed, draw.requests, draw.blocks, draw.unique_blocks
            )
        })
        .collect();
    format!(
        "{}\n\nHit rates, with the pool's instants (a request is one):\n{rates}\n\nWhat leaves:\n{victims}\n\n\
         How soon blocks return, by the time since their last use:\n{idle}",
        loads.join("\n")
    )
}
