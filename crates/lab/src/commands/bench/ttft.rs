//! `cenote-lab bench ttft`: time to first token over prompt length and share of the prompt in the
//! region.

use crate::args::{BenchTtftArgs, RivalArg};
use crate::commands::greedy::{TIMEOUT, request};
use cenote_base::engine::Usage;
use cenote_base::prng::Prng;
use cenote_base::{Engine, Event, Request, TokenId};
use cenote_console::args::{EngineArgs, WatchArgs};
use cenote_console::engine::{self, Running};
use cenote_console::failure::Failure;
use cenote_console::measure::{BenchRow, COLD_GOAL, bench_table, percentiles};
use cenote_console::output;
use cenote_console::region::TemporaryRegion;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;

/// A fully cached prompt must start within this part of the time that computing it takes, from
/// [`LONG_PROMPT`] tokens on.
const WARM_GOAL: f64 = 0.2;
const LONG_PROMPT: u32 = 1500;
/// Goal against `transformers`.
const RIVAL_GOAL: f64 = 1.5;

#[derive(Serialize)]
struct Report {
    model: String,
    dtype: &'static str,
    threads: usize,
    rows: Vec<BenchRow>,
}

pub fn run(args: &BenchTtftArgs) -> Result<(), Failure> {
    if let Some(wrong) = args.hits.iter().find(|hit| !(0.0..=1.0).contains(*hit)) {
        return Err(Failure::new(format!("--hits {wrong}: a share is between 0 and 1")));
    }
    let region = TemporaryRegion::until_signal("bench", args.region_size.0)?;
    let mut bench = Bench::new(engine::start(&args.engine, Some(region.args()), &WatchArgs::default(), "bench")?);
    let description = bench.running.engine.describe();
    let lengths = lengths(args, description.max_model_len)?;
    let progress = output::progress("measuring", lengths.len() as u64 * args.hits.len() as u64);
    let mut rows = Vec::new();
    bench.first_token(&[0; 32], false)?;
    for &length in &lengths {
        rows.extend(cost_of_publishing(&mut bench, length, args.repeat)?);
        let mut cold = None;
        for &hit in &args.hits {
            let times = (0..args.repeat).map(|_| bench.point(length, hit)).collect::<Result<Vec<_>, _>>()?;
            let (p50, p99) = percentiles(times);
            let cold_p50 = *cold.get_or_insert(p50);
            let ratio = p50 / cold_p50;
            let goal = (hit >= 1.0 && length >= LONG_PROMPT && args.hits[0] == 0.0).then_some(WARM_GOAL);
            rows.push(BenchRow {
                name: format!("ttft tokens={length} hit={hit}"),
                unit: "ms",
                p50,
                p99,
                ratio: Some(ratio),
                goal,
                met: goal.map(|goal| ratio <= goal),
            });
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    if args.against == Some(RivalArg::Transformers) {
        rows.extend(against_transformers(args, &lengths, &mut bench)?);
    }
    let report =
        Report { model: description.model, dtype: args.engine.dtype.name(), threads: threads(&args.engine), rows };
    args.output.show(&report, || bench_table(&report.rows))
}

/// Cold with a region against no region, alternating, so that load from other programs affects
/// both.
fn cost_of_publishing(bench: &mut Bench, length: u32, repeat: u32) -> Result<Vec<BenchRow>, Failure> {
    let (mut without, mut cold) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        let prompt = bench.tokens(length);
        without.push(bench.first_token(&prompt, false)?);
        cold.push(bench.first_token(&prompt, true)?);
    }
    let ((without_p50, without_p99), (cold_p50, cold_p99)) = (percentiles(without), percentiles(cold));
    let ratio = cold_p50 / without_p50;
    let row = |name: &str, p50, p99| BenchRow {
        name: format!("ttft tokens={length} {name}"),
        unit: "ms",
        p50,
        p99,
        ratio: None,
        goal: None,
        met: None,
    };
    let cold = BenchRow {
        ratio: Some(ratio),
        goal: Some(COLD_GOAL),
        met: Some(ratio <= COLD_GOAL),
        ..row("cold / no region", cold_p50, cold_p99)
    };
    Ok(vec![row("no region", without_p50, without_p99), cold])
}

fn lengths(args: &BenchTtftArgs, context: u32) -> Result<Vec<u32>, Failure> {
    // Leave room for the generated token.
    let longest = context - 1;
    if let Some(wrong) = args.lengths.iter().find(|length| !(1..=longest).contains(*length)) {
        return Err(Failure::new(format!("--lengths {wrong}: the model takes prompts of 1 to {longest} tokens")));
    }
    if !args.lengths.is_empty() {
        return Ok(args.lengths.clone());
    }
    let mut lengths: Vec<u32> =
        std::iter::successors(Some(256), |length| Some(length * 2)).take_while(|&l| l < longest).collect();
    lengths.push(longest);
    Ok(lengths)
}

fn threads(args: &EngineArgs) -> usize {
    args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

pub struct Bench {
    pub running: Running,
    prng: Prng,
    next_id: u64,
}

impl Bench {
    pub fn new(running: Running) -> Self {
        Self { running, prng: Prng::new(1), next_id: 1 }
    }

    /// Tokens that no earlier prompt had. Times do not depend on the choice of tokens.
    fn tokens(&mut self, length: u32) -> Vec<TokenId> {
        (0..length).map(|_| 100 + self.prng.below(150) as u32).collect()
    }

    /// One measurement: publishes the share `hit` of a fresh prompt, then times the prompt.
    fn point(&mut self, length: u32, hit: f64) -> Result<f64, Failure> {
        let prompt = self.tokens(length);
        let known = (f64::from(length) * hit).round() as usize;
        if known > 0 {
            // Only whole blocks are published, so the known part is prefilled as a prompt of its
            // own.
            self.first_token(&prompt[..known], true)?;
        }
        self.first_token(&prompt, true)
    }

    /// Milliseconds from submission to the first token.
    fn first_token(&mut self, prompt: &[TokenId], use_pool: bool) -> Result<f64, Failure> {
        self.ask(prompt, use_pool).map(|(milliseconds, _)| milliseconds)
    }

    /// The same, and the number of cached tokens.
    pub fn ask(&mut self, prompt: &[TokenId], use_pool: bool) -> Result<(f64, Usage), Failure> {
        let (events, received) = channel();
        let request = Request { use_pool, ..request(self.next_id, prompt, 1) };
        self.next_id += 1;
        let started = Instant::now();
        self.running.engine.submit(request, Box::new(move |event| events.send((Instant::now(), event)).is_ok()))?;
        let mut first = None;
        loop {
            let (at, event) = received.recv_timeout(TIMEOUT).map_err(|_| Failure::new("the engine gave no answer"))?;
            match event {
                Event::Token { .. } => first = first.or(Some((at - started).as_secs_f64() * 1e3)),
                Event::Finished { usage, .. } => {
                    let first = first.ok_or_else(|| Failure::new("the engine finished without a token"))?;
                    return Ok((first, usage));
                }
                Event::Failed(error) => return Err(error.into()),
            }
        }
    }
}

/// The rival's result for one length.
#[derive(Deserialize)]
struct RivalTimes {
    length: u32,
    times_ms: Vec<f64>,
}

fn against_transformers(args: &BenchTtftArgs, lengths: &[u32], bench: &mut Bench) -> Result<Vec<BenchRow>, Failure> {
    let dir = std::path::absolute(engine::model_dir(&args.engine)?)?;
    let spinner = output::spinner("measuring transformers");
    let theirs = run_transformers(args, &dir, lengths, bench)?;
    spinner.finish_and_clear();
    let mut rows = Vec::new();
    for rival in theirs {
        // Our engine again, next to the rival in time, without a region: only the engines are
        // compared.
        let prompt = bench.tokens(rival.length);
        let ours = (0..args.repeat).map(|_| bench.first_token(&prompt, false)).collect::<Result<Vec<_>, _>>()?;
        let ((ours_p50, ours_p99), (theirs_p50, theirs_p99)) = (percentiles(ours), percentiles(rival.times_ms));
        let ratio = ours_p50 / theirs_p50;
        rows.push(BenchRow {
            name: format!("prefill tokens={} transformers", rival.length),
            unit: "ms",
            p50: theirs_p50,
            p99: theirs_p99,
            ratio: None,
            goal: None,
            met: None,
        });
        rows.push(BenchRow {
            name: format!("prefill tokens={} cenote / transformers", rival.length),
            unit: "ms",
            p50: ours_p50,
            p99: ours_p99,
            ratio: Some(ratio),
            goal: Some(RIVAL_GOAL),
            met: Some(ratio <= RIVAL_GOAL),
        });
    }
    Ok(rows)
}

fn run_transformers(
    args: &BenchTtftArgs,
    dir: &Path,
    lengths: &[u32],
    bench: &mut Bench,
) -> Result<Vec<RivalTimes>, Failure> {
    let prompts: Vec<Vec<TokenId>> = lengths.iter().map(|&length| bench.tokens(length)).collect();
    let job = serde_json::json!({
        "model": dir,
        "dtype": args.engine.dtype.name(),
        "threads": threads(&args.engine),
        "repeat": args.repeat,
        "prompts": prompts,
    });
    let python = args.python.display();
    let mut child = Command::new(&args.python)
        .args(["-c", include_str!("ttft_transformers.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Failure::new(format!("{python}: cannot start: {error}"))
                .hint("--python FILE names a Python with torch and transformers")
        })?;
    child.stdin.take().expect("piped").write_all(job.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(Failure::new(format!("{python}: transformers could not be measured ({})", output.status))
            .hint("it needs `pip install torch transformers`; its own words are above"));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::new(format!("{python}: unexpected answer: {error}")))
}
