//! §V-B, Figures 3 and 4, from the study of swap-ins ([`crate::swap`]).

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use crate::swap::{Accuracy, equal_inputs, swap_study};
use cenote_serving_sim::workload::{CPEN_PROMPTS, cpen};

pub const EXPERIMENT: Experiment = Experiment {
    id: "cpen.swaps",
    title: "predicting the next swap-in",
    covers: &["cpen.s5-b", "cpen.figure4", "cpen.s5-c"],
    is_quick: false,
    draws: true,
    run,
};

/// Traces of 400 prompts of a run, one per seed.
const TRACES: u64 = 2;

const NETS: &str = "two traces a run of opt-2.7b in 150 blocks; the best window of each net, of 2, 4 and 8 beside the LSTM; perceptrons of 24 and 32 hidden \
                    units, an LSTM of 12";
const WINDOWS: &str = "shares of so few predictions differ by chance: the best of six equal windows is above the worst by more \
                       than 15 %";
const CLASSES: &str =
    "two traces a run, some 170 predictions each: a share of a run is off by 2.7 points (standard error)";
const EQUAL: &str = "both get distances, scaled numbers and last digits";
const ACCESSES: &str = "calls that §V-A lists: allocations, appended blocks, swaps in and out, frees; of prompts of 32 and \
                        answers of 88 tokens, from the report's lengths in blocks";

fn of<'a>(rows: &'a [Accuracy], predictor: &'a str) -> impl Iterator<Item = &'a Accuracy> {
    rows.iter().filter(move |row| row.predictor == predictor)
}

fn best(rows: &[Accuracy], predictor: &str, value: fn(&Accuracy) -> f64) -> f64 {
    of(rows, predictor).map(value).fold(0.0, f64::max)
}

/// Right predictions of `a` over those of `b`, for each window of both.
fn by_window(rows: &[Accuracy], a: &str, b: &str) -> (Vec<String>, Vec<Vec<f64>>) {
    let pairs = of(rows, a).filter_map(|one| Some((one, of(rows, b).find(|other| other.window == one.window)?)));
    pairs.map(|(one, other)| (one.window.to_string(), vec![one.exact / other.exact.max(1e-9)])).unzip()
}

/// Allocations of prompts and blocks appended to them, mean of the traces. Each request is freed once.
fn allocations(first: u64) -> [f64; 2] {
    let (mut allocated, mut appended) = (0, 0);
    for seed in first..first + TRACES {
        let load = cpen(CPEN_PROMPTS, 1.0, seed);
        let blocks = |tokens: u32| tokens.div_ceil(load.block_tokens());
        for request in load.requests() {
            allocated += 1;
            // The last token of an answer is never read back.
            let tokens = request.input_tokens + request.output_tokens - 1;
            appended += blocks(tokens) - blocks(request.input_tokens);
        }
    }
    [allocated, appended].map(|count| f64::from(count) / TRACES as f64)
}

fn run(context: &Context) -> Vec<Measured> {
    let study = swap_study(context.seed, TRACES, &mut || ());
    let equal = equal_inputs(context.seed, TRACES);
    let (regression, lstm, classes) = ("perceptron, regression", "LSTM, regression", "perceptron, classes modulo 10");
    let exact = |row: &Accuracy| row.exact;
    let near = |row: &Accuracy| row.near;
    let compared = |id: &'static str, rows: &[Accuracy], a: &str, b: &str, why: &'static str| {
        // The best window of those that both have: more windows alone give a better best.
        let both = |row: &&Accuracy| [a, b].iter().all(|name| of(rows, name).any(|one| one.window == row.window));
        let shared: Vec<Accuracy> = rows.iter().filter(both).cloned().collect();
        let ours = vec![best(&shared, a, exact) / best(&shared, b, exact).max(1e-9)];
        let (windows, values) = by_window(rows, a, b);
        let windows = Sensitivity::from("window", &ours, windows, values);
        Measured::new(id, ours, why).sensitive(windows)
    };
    let [allocated, appended] = allocations(context.seed);
    let accesses = vec![study.accesses + 2.0 * allocated + appended];
    let others = Sensitivity::from(
        "accesses",
        &accesses,
        vec!["without frees".to_owned(), "swaps only".to_owned()],
        vec![vec![accesses[0] - allocated], vec![study.accesses]],
    );
    let nearest = vec![100.0 * best(&study.rows, regression, near)];
    let (windows, shares) =
        of(&study.rows, regression).map(|row| (row.window.to_string(), vec![100.0 * near(row)])).unzip();
    let windows = Sensitivity::from("window", &nearest, windows, shares);
    vec![
        Measured::new("cpen.s5-b.accesses", accesses, ACCESSES).sensitive(others),
        Measured::new("cpen.s5-b.regression", nearest, NETS).sensitive(windows),
        compared("cpen.s5-b.lstm", &study.rows, regression, lstm, NETS),
        Measured::not_testable("cpen.s5-b.window", WINDOWS),
        compared("cpen.figure4.classes", &study.rows, classes, regression, CLASSES),
        compared("cpen.figure4.equal", &equal, classes, regression, EQUAL),
        Measured::new(
            "cpen.s5-c.order",
            vec![100.0 * study.queue_head],
            "the product's scheduler, as §V-C says of vLLM's",
        )
        .fixed("a rule of the scheduler"),
    ]
}
