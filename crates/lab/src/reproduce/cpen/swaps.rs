//! §V-B, Figures 3 and 4, from the study of swap-ins ([`crate::swap`]).

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use crate::swap::{Accuracy, equal_inputs, swap_study};

pub const EXPERIMENT: Experiment = Experiment {
    id: "cpen.swaps",
    title: "predicting the next swap-in",
    covers: &["cpen.s5-b", "cpen.figure4", "cpen.s5-c"],
    is_quick: false,
    run,
};

/// Traces of 400 prompts, one per seed.
const TRACES: u64 = 5;

const NETS: &str = "five traces of opt-2.7b in 150 blocks; the best window of each net; 24 to 32 hidden units";
const CLASSES: &str = "420 predictions of five traces: each share is off by 1.7 points (standard error), so the two do not differ; \
                       with ten traces regression is ahead";
const EQUAL: &str = "both get distances, scaled numbers and last digits";
const SWAPS: &str = "swaps in and out; the paper's count has other accesses too, which it does not name";

fn of<'a>(rows: &'a [Accuracy], predictor: &'a str) -> impl Iterator<Item = &'a Accuracy> {
    rows.iter().filter(move |row| row.predictor == predictor)
}

fn best(rows: &[Accuracy], predictor: &str, value: fn(&Accuracy) -> f64) -> f64 {
    of(rows, predictor).map(value).fold(0.0, f64::max)
}

fn worst(rows: &[Accuracy], predictor: &str, value: fn(&Accuracy) -> f64) -> f64 {
    of(rows, predictor).map(value).fold(f64::MAX, f64::min)
}

/// Right predictions of `a` over those of `b`, for each window of both.
fn by_window(rows: &[Accuracy], a: &str, b: &str) -> (Vec<String>, Vec<Vec<f64>>) {
    let pairs = of(rows, a).filter_map(|one| Some((one, of(rows, b).find(|other| other.window == one.window)?)));
    pairs.map(|(one, other)| (one.window.to_string(), vec![one.exact / other.exact.max(1e-9)])).unzip()
}

fn run(_: &Context) -> Vec<Measured> {
    let study = swap_study(TRACES, &mut || ());
    let equal = equal_inputs(TRACES);
    let (regression, lstm, classes) = ("perceptron, regression", "LSTM, regression", "perceptron, classes modulo 10");
    let exact = |row: &Accuracy| row.exact;
    let near = |row: &Accuracy| row.near;
    let compared = |id: &'static str, rows: &[Accuracy], a: &str, b: &str, why: &'static str| {
        let ours = vec![best(rows, a, exact) / best(rows, b, exact).max(1e-9)];
        let (windows, values) = by_window(rows, a, b);
        let windows = Sensitivity::from("window", &ours, windows, values);
        Measured::new(id, ours, why).sensitive(windows)
    };
    vec![
        Measured::new("cpen.s5-b.accesses", vec![study.accesses], SWAPS),
        Measured::new("cpen.s5-b.regression", vec![100.0 * best(&study.rows, regression, near)], NETS),
        compared("cpen.s5-b.lstm", &study.rows, regression, lstm, NETS),
        Measured::new(
            "cpen.s5-b.window",
            vec![best(&study.rows, regression, exact) / worst(&study.rows, regression, exact).max(1e-9)],
            NETS,
        ),
        compared("cpen.figure4.classes", &study.rows, classes, regression, CLASSES),
        compared("cpen.figure4.equal", &equal, classes, regression, EQUAL),
        Measured::new(
            "cpen.s5-c.order",
            vec![100.0 * study.queue_head],
            "the product's scheduler, as §V-C says of vLLM's",
        ),
    ]
}
