//! Results as text: facts of one run, a table or a page of a sweep.

use super::Run;
use cenote_base::units::ByteSize;
use cenote_console::output;
use cenote_lab::plot::{self, Axis, Scale, Series};
use cenote_serving_sim::Outcome;

pub fn facts(run: &Run) -> String {
    let cold = run.cold.map_or_else(|| "none".to_owned(), |cold| {
        let [fetched, used] = [cold.prefetched, cold.prefetch_hits].map(|counts| counts.iter().sum::<u64>());
        format!(
            "{} blocks demoted, {} compressed in the pool, {} evicted; {} read while a step waited, {fetched} ahead, of \
             which {used} were used",
            cold.demoted, cold.compressed, cold.evicted, cold.read_on_demand
        )
    });
    let Run { load, engine, instances, l1_blocks, pool, pool_model, eviction, watermark, outcome, .. } = run;
    output::facts(&[
        ("load", format!("{load}: {} requests, {} prompt tokens", outcome.requests, outcome.prompt_tokens)),
        ("engines", format!("{instances} × {engine}, {l1_blocks} blocks each, watermark {watermark}")),
        ("pool", format!("{pool}, {pool_model}, {eviction}")),
        ("hit rate", format!("{:.2} %", 100.0 * outcome.hit_rate)),
        ("time to first token", spread(outcome.ttft_mean_ms, outcome.ttft_p50_ms, outcome.ttft_p99_ms)),
        ("time of a token", spread(outcome.token_mean_ms, outcome.token_p50_ms, outcome.token_p99_ms)),
        (
            "throughput",
            format!(
                "{:.1} tokens/s, {:.3} requests/s over {:.1} s",
                outcome.throughput_tokens_per_s, outcome.throughput_requests_per_s, outcome.makespan_s
            ),
        ),
        ("moved", moved(outcome)),
        (
            "swaps",
            format!(
                "{} of {} blocks out and {} in, {}",
                outcome.swaps,
                outcome.swapped_out_blocks,
                outcome.swapped_in_blocks,
                ByteSize(outcome.swapped_bytes)
            ),
        ),
        (
            "spilled",
            format!(
                "{} blocks out and {} back, {} read in steps, which waited {:.1} s for them",
                outcome.spilled_blocks,
                outcome.promoted_blocks,
                ByteSize(outcome.streamed_bytes),
                outcome.streaming_stall_s
            ),
        ),
        ("computed again", format!("{} requests that made room", outcome.preemptions)),
        ("evicted", format!("{} blocks", outcome.evicted_blocks)),
        ("cold tier", cold),
    ])
}

fn spread(mean: f64, p50: f64, p99: f64) -> String {
    format!("{p50:.2} ms median, {p99:.2} ms p99, {mean:.2} ms mean")
}

fn moved(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} from the pool, {} into it",
        ByteSize(outcome.pool_read_bytes),
        ByteSize(outcome.pool_written_bytes)
    );
    if outcome.private_written_bytes > 0 {
        text += &format!(
            "; {} from instances' own caches, {} into them",
            ByteSize(outcome.private_read_bytes),
            ByteSize(outcome.private_written_bytes)
        );
    }
    text
}

const HEADER: [&str; 14] = [
    "pool",
    "model",
    "eviction",
    "watermark",
    "hit rate",
    "TTFT p50",
    "TTFT p99",
    "token p50",
    "token p99",
    "tokens/s",
    "read",
    "written",
    "swapped",
    "computed again",
];

fn cells(run: &Run) -> Vec<String> {
    let Outcome { hit_rate, ttft_p50_ms, ttft_p99_ms, token_p50_ms, token_p99_ms, .. } = run.outcome;
    vec![
        run.pool.clone(),
        run.pool_model.clone(),
        run.eviction.clone(),
        run.watermark.clone(),
        format!("{:.2} %", 100.0 * hit_rate),
        format!("{ttft_p50_ms:.1} ms"),
        format!("{ttft_p99_ms:.1} ms"),
        format!("{token_p50_ms:.2} ms"),
        format!("{token_p99_ms:.2} ms"),
        format!("{:.1}", run.outcome.throughput_tokens_per_s),
        ByteSize(run.outcome.pool_read_bytes + run.outcome.private_read_bytes).to_string(),
        ByteSize(run.outcome.pool_written_bytes + run.outcome.private_written_bytes).to_string(),
        format!("{} blocks", run.outcome.swapped_out_blocks),
        run.outcome.preemptions.to_string(),
    ]
}

pub fn table(runs: &[Run]) -> String {
    let mut rows = output::table(&HEADER).keys(4);
    for run in runs {
        rows.add_row(cells(run));
    }
    rows.to_string()
}

/// The table, and plots over the pool's size: a line for each model, policy and watermark.
pub fn html(runs: &[Run]) -> String {
    let (load, engine, instances) =
        runs.first().map_or(("", "", 0), |run| (run.load.as_str(), run.engine.as_str(), run.instances));
    let what = [
        ("hit rate, %", Scale::Linear),
        ("median time to first token, ms", Scale::Linear),
        ("99th percentile of it, ms", Scale::Linear),
        ("generated tokens a second", Scale::Linear),
    ];
    let value = |run: &Run, which: usize| match which {
        0 => 100.0 * run.outcome.hit_rate,
        1 => run.outcome.ttft_p50_ms,
        2 => run.outcome.ttft_p99_ms,
        _ => run.outcome.throughput_tokens_per_s,
    };
    let mut body = format!(
        "<h1>{}</h1>\n<p>{instances} × {}, simulated by <code>cenote-lab sim</code>. Pools without an end are drawn at four times the \
         largest size.</p>\n",
        plot::escaped(load),
        plot::escaped(engine)
    );
    let largest = runs.iter().filter_map(|run| run.pool_bytes).max().unwrap_or(1 << 30);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let size = |run: &Run| match (run.pool_bytes, run.pool.as_str()) {
        (Some(bytes), _) => gib(bytes),
        (None, "infinite") => 4.0 * gib(largest),
        (None, _) => 0.0,
    };
    let mut names: Vec<String> = Vec::new();
    for name in runs.iter().map(name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for (which, (label, scale)) in what.into_iter().enumerate() {
        let point = |run: &Run| {
            (size(run), value(run, which), format!("{}, pool {}: {:.2}", name(run), run.pool, value(run, which)))
        };
        let series: Vec<Series> = (names.iter())
            .map(|own| Series {
                name: own.clone(),
                points: runs.iter().filter(|run| name(run) == *own).map(point).collect(),
            })
            .collect();
        body += &format!("<h2>{}</h2>\n", plot::escaped(label));
        body += &plot::plot(label, Axis { label: "pool, GiB", scale: Scale::Linear }, Axis { label, scale }, &series);
    }
    body += &plot::table(&HEADER, runs.iter().map(cells));
    plot::page(&format!("{load}: cenote-lab sim"), &body)
}

fn name(run: &Run) -> String {
    format!("{}, {}, {}", run.pool_model, run.eviction, run.watermark)
}
