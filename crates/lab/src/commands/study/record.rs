//! `cenote-lab study record`: the error of the sampled record of requests against the full trace.
//!
//! The trace goes through a pool's record, as an engine's requests do. What is read back is replayed, and so
//! are the same requests with all their blocks.

use crate::args::StudyRecordArgs;
use cenote_console::args::NewRegionArgs;
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_console::{input, output};
use cenote_policy::eviction::Eviction;
use cenote_policy::whatif::{Sampled, Trace};
use cenote_pool::{NamespaceRecord, Request, requests, windows};
use cenote_serving_sim::Workload;
use cenote_serving_sim::workload::MOONCAKE_BLOCK_TOKENS;
use serde::Serialize;

/// Bytes of a block: so many that a region of as many blocks is small.
const BLOCK_BYTES: u64 = 64;
/// Factors of the pool's size.
const SIZES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
/// Share of the blocks that only fill the caches.
const WARM: f64 = 0.5;
/// The goal, in points.
const GOAL: f64 = 1.0;

#[derive(Serialize)]
struct Study {
    requests: usize,
    blocks: usize,
    unique_blocks: usize,
    runs: Vec<Run>,
    /// Whether all errors are at most one point.
    is_met: bool,
}

#[derive(Serialize)]
struct Run {
    pool_blocks: u64,
    /// Lines of the ring, and their bytes.
    lines: u32,
    bytes: u64,
    draw: u64,
    /// Share of the trace's blocks that the ring reaches back over.
    reach: f64,
    one_in: u64,
    sampled: usize,
    different: usize,
    rows: Vec<Row>,
    /// Ceiling by the sketches, over the window of a day, and the share of repeated blocks.
    ceiling: Option<f64>,
    repeated: f64,
}

#[derive(Serialize)]
struct Row {
    size: f64,
    eviction: &'static str,
    full: f64,
    sampled: f64,
    /// In points.
    error: f64,
    /// Standard error that the sample states, in points.
    stated: f64,
}

pub fn run(args: &StudyRecordArgs) -> Result<(), Failure> {
    let failed = |fact: String| Failure::new(format!("{}: {fact}", args.trace.display()));
    let format = args.sessions.format(Some(args.format), &args.trace, args.seed);
    let file = input::open(&args.trace).map_err(failed)?;
    let read = format.read(file, format.block_tokens().unwrap_or(MOONCAKE_BLOCK_TOKENS), false);
    let read = read.map_err(|error| failed(error.to_string()).hint("is --format right?"))?;
    read.remarks().iter().for_each(|line| output::say(&format!("{}: {line}", args.trace.display())));
    let load = read.workload;
    let total = args.pool_blocks.len() * args.lines.len() * args.draws as usize;
    let bar = output::progress("replaying", total as u64);
    let mut runs = Vec::new();
    for &pool_blocks in &args.pool_blocks {
        for &lines in &args.lines {
            for draw in 0..args.draws {
                runs.push(one(&load, pool_blocks, lines, draw)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let worst = runs.iter().flat_map(|run| &run.rows).map(|row| row.error.abs()).fold(0.0, f64::max);
    let study = Study {
        requests: load.requests().len(),
        blocks: load.requests().iter().map(|request| load.blocks(request).len()).sum(),
        unique_blocks: load.num_blocks(),
        runs,
        is_met: worst <= GOAL,
    };
    args.output.show(&study, || text(&study))
}

fn one(load: &Workload, pool_blocks: u64, lines: u32, draw: u64) -> Result<Run, Failure> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&(draw + 1).to_le_bytes());
    let of = |size: u64| NewRegionArgs {
        chunk_size: cenote_base::units::ByteSize(64 << 10),
        min_block: cenote_base::units::ByteSize(BLOCK_BYTES),
        max_hosts: 1,
        requests: Some(lines),
        hash_seed: Some(seed),
        events: 0,
        ..NewRegionArgs::of_size(size)
    };
    // Blocks, their descriptors and index take less than four times the payload.
    let region = TemporaryRegion::make("record", &of((8 << 20) + pool_blocks * BLOCK_BYTES * 8))?;
    let pool = region.args().attach("study")?;
    // The rate adapts to the blocks that fit, so a block is as large as makes so many fit.
    let data_bytes = pool.info().data_bytes;
    let namespace = pool
        .namespace(&NamespaceRecord {
            fingerprint: [1; 32],
            label: "trace".to_owned(),
            block_bytes: ((data_bytes / pool_blocks) / 64 * 64).min(64 << 10),
            block_tokens: load.block_tokens(),
            num_layers: 1,
        })
        .map_err(|error| region.args().explain(&error))?;
    let names: Vec<_> =
        (0..load.num_blocks() as u64).map(|block| namespace.hasher.alias(&block.to_le_bytes())).collect();
    for request in load.requests() {
        let names: Vec<_> = load.blocks(request).iter().map(|&block| names[block as usize]).collect();
        pool.record_request(&namespace, &Request { names: &names, above: 0, tokens: request.input_tokens });
    }
    let fabric = region.args().map_read_only()?;
    let explain = |error| region.args().explain(&error);
    let found = requests(&*fabric).map_err(explain)?;
    let mut sample = found.trace(|_| 1);
    sample.warm(WARM);
    let mut full = full_of(load, sample.asked());
    full.warm(WARM);
    let mut rows = Vec::new();
    for size in SIZES {
        for eviction in Eviction::ALL {
            let blocks = (pool_blocks as f64 * size) as u64;
            let [full, sample] = [&full, &sample].map(|trace| trace.replay(eviction, blocks, None));
            rows.push(Row {
                size,
                eviction: eviction.policy().name(),
                full: full.hit_rate(),
                sampled: sample.hit_rate(),
                error: 100.0 * (sample.hit_rate() - full.hit_rate()),
                stated: 100.0 * sample.rate_error(),
            });
        }
    }
    let blocks: usize = load.requests().iter().map(|request| load.blocks(request).len()).sum();
    let (sampled, different) = sample.sampled();
    let day = windows(&*fabric).map_err(explain)?.pop();
    Ok(Run {
        pool_blocks,
        lines,
        bytes: u64::from(lines) * 64,
        draw,
        reach: sample.asked() as f64 / blocks.max(1) as f64,
        one_in: 1 << found.shift(),
        sampled,
        different,
        rows,
        ceiling: day.and_then(|day| day.ceiling),
        repeated: 1.0 - load.num_blocks() as f64 / blocks.max(1) as f64,
    })
}

/// The last requests of the load that have so many blocks, with all of them.
fn full_of(load: &Workload, asked: u64) -> Trace {
    let mut sum = 0;
    let is_within = |request: &&cenote_serving_sim::Request| {
        sum += load.blocks(request).len() as u64;
        sum <= asked
    };
    let count = load.requests().iter().rev().take_while(is_within).count();
    let mut trace = Trace::new(1.0);
    for request in &load.requests()[load.requests().len() - count..] {
        let names: Vec<u64> = load.blocks(request).iter().map(|&block| block.into()).collect();
        trace.push(&Sampled { model: 0, units: 1, names: &names, asked: names.len() as u64, requests: 1 });
    }
    trace
}

fn text(study: &Study) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut table = output::table(&[
        "pool blocks",
        "lines",
        "reach",
        "one in",
        "sampled",
        "different",
        "worst error",
        "mean error",
        "stated (2 s.e.)",
        "within it",
    ])
    .keys(2);
    let mut at = 0;
    while let Some(first) = study.runs.get(at) {
        let same =
            study.runs[at..].iter().take_while(|run| (run.pool_blocks, run.lines) == (first.pool_blocks, first.lines));
        let group: Vec<&Run> = same.collect();
        at += group.len();
        let rows: Vec<&Row> = group.iter().flat_map(|run| &run.rows).collect();
        let mean = |of: &dyn Fn(&Row) -> f64| rows.iter().map(|row| of(row)).sum::<f64>() / rows.len() as f64;
        table.add_row([
            first.pool_blocks.to_string(),
            format!("{} ({})", first.lines, cenote_base::units::ByteSize(first.bytes)),
            percent(first.reach),
            first.one_in.to_string(),
            first.sampled.to_string(),
            first.different.to_string(),
            format!("{:.2}", rows.iter().map(|row| row.error.abs()).fold(0.0, f64::max)),
            format!("{:.2}", mean(&|row| row.error.abs())),
            format!("{:.2}", mean(&|row| 2.0 * row.stated)),
            percent(mean(&|row| f64::from(u8::from(row.error.abs() <= 2.0 * row.stated + 1e-9)))),
        ]);
    }
    let mut rates =
        output::table(&["pool blocks", "lines", "size", "eviction", "full", "sampled", "error", "±"]).keys(4);
    for run in study.runs.iter().filter(|run| run.draw == 0) {
        for row in &run.rows {
            rates.add_row([
                run.pool_blocks.to_string(),
                run.lines.to_string(),
                row.size.to_string(),
                row.eviction.to_owned(),
                percent(row.full),
                percent(row.sampled),
                format!("{:+.2}", row.error),
                format!("{:.2}", 2.0 * row.stated),
            ]);
        }
    }
    let ceiling = study.runs.first().and_then(|run| run.ceiling.map(|ceiling| (ceiling, run.repeated)));
    let ceiling = ceiling.map_or_else(String::new, |(ceiling, repeated)| {
        format!("\n\nRepeated blocks: {}; by the sketches: {}.", percent(repeated), percent(ceiling))
    });
    format!(
        "{} requests for {} blocks, {} different. Errors in points, over sizes, policies and draws.\n\n{table}\n\n\
         Of the first draw:\n{rates}{ceiling}",
        study.requests, study.blocks, study.unique_blocks
    )
}
