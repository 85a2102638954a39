//! Tests whether the next swap-in is predictable: reproduces CPEN 511 §V-B, Figures 3 and 4, in the
//! simulator.
//!
//! Traces come from the simulator, or from an engine that recorded its own ([`swaps_of`]).
//!
//! A run of 400 prompts with little memory gives the sequence of request numbers that were swapped
//! in. Predictors see a window of the last numbers and predict the next one. Regression uses a
//! perceptron with one hidden layer, or an LSTM. Classification predicts the number modulo ten; the
//! tens are the most common ones of the window (the paper takes them from a batch). The first four
//! fifths of a trace are for training, the last fifth for testing. The baseline needs no model: the
//! scheduler swaps in the request that has been out longest, which is the head of its queue (§V-C).

mod nets;

use crate::watermark::cpen_setup;
use cenote_engine::SwapRecord;
use cenote_engine::runtime::Direction;
use cenote_serving_sim::serving::{Swap, swap_trace};
use cenote_serving_sim::workload::{CPEN_PROMPTS, cpen};
use nets::{Lstm, Mlp};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// The paper's model with the fewest blocks, which swaps most.
const MODEL: (&str, u32) = ("opt-2.7b", 150);
/// Windows for the perceptrons, and for the LSTM, which trains much slower.
const WINDOWS: [usize; 6] = [1, 2, 4, 8, 12, 16];
const LSTM_WINDOWS: [usize; 3] = [2, 4, 8];
/// Modulus of the classes.
const MODULUS: u32 = 10;
/// Share of a trace for training.
const TRAINED: f64 = 0.8;
/// Passes over all examples.
const EPOCHS: usize = 150;
/// "Mostly off within ±2" (§V-B).
const NEAR: u32 = 2;

/// Hidden units of the nets. The paper states none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Of the perceptron that regresses.
    pub regression: usize,
    /// Of the perceptron that classifies.
    pub classes: usize,
    /// Of the LSTM.
    pub lstm: usize,
}

impl Sizes {
    /// Those of `reproduce`.
    pub const SMALL: Self = Self { regression: 24, classes: 32, lstm: 12 };
}

/// Accuracy of one predictor with one window, averaged over the traces.
#[derive(Clone, Debug, Serialize)]
pub struct Accuracy {
    /// Name of the predictor.
    pub predictor: &'static str,
    /// Number of past swap-ins in its input.
    pub window: usize,
    /// Share of exact predictions.
    pub exact: f64,
    /// Share of predictions within two of the right number.
    pub near: f64,
}

/// Results of the study.
#[derive(Clone, Debug, Serialize)]
pub struct SwapStudy {
    /// Number of traces, one per seed.
    pub traces: usize,
    /// Mean number of swap-ins per trace.
    pub swap_ins: f64,
    /// Mean number of swaps in and out per trace. The paper counts 3,214 accesses of 400 sequences,
    /// which include allocations.
    pub accesses: f64,
    /// Share of swap-ins that took the head of the queue of swapped requests.
    pub queue_head: f64,
    /// Hidden units of the nets.
    pub sizes: Sizes,
    /// Accuracies by predictor and window.
    pub rows: Vec<Accuracy>,
}

/// Runs the study on `traces` simulated traces, the first drawn with the seed `first`. Calls `progress` after each predictor on each
/// trace.
///
/// # Panics
/// Never: every prompt fits the engine.
#[must_use]
pub fn swap_study(first: u64, traces: u64, progress: &mut dyn FnMut()) -> SwapStudy {
    sized_study(first, traces, Sizes::SMALL, progress)
}

/// As [`swap_study`], with nets of other sizes.
///
/// # Panics
/// Never: every prompt fits the engine.
#[must_use]
pub fn sized_study(first: u64, traces: u64, sizes: Sizes, progress: &mut dyn FnMut()) -> SwapStudy {
    let (model, blocks) = MODEL;
    let setup = cpen_setup(model, blocks);
    let trace = |seed| swap_trace(&setup, &cpen(CPEN_PROMPTS, 1.0, seed)).expect("every prompt fits").1;
    study_traces(&(first..first + traces).map(trace).collect::<Vec<_>>(), sizes, progress)
}

/// Runs the study on existing traces.
#[must_use]
pub fn study_traces(traces: &[Vec<Swap>], sizes: Sizes, progress: &mut dyn FnMut()) -> SwapStudy {
    let (mut swap_ins, mut accesses, mut heads) = (0, 0, 0);
    for swaps in traces {
        accesses += swaps.len();
        heads += queue_heads(swaps);
        swap_ins += swap_ins_of(swaps).len();
    }
    let mean = |sum: f64| sum / traces.len().max(1) as f64;
    SwapStudy {
        traces: traces.len(),
        swap_ins: mean(swap_ins as f64),
        accesses: mean(accesses as f64),
        queue_head: heads as f64 / swap_ins.max(1) as f64,
        sizes,
        rows: accuracies(traces, &PREDICTORS, sizes, progress),
    }
}

/// Accuracies of regression and of classes with equal inputs, on `traces` simulated traces.
///
/// # Panics
/// Never: every prompt fits the engine.
#[must_use]
pub fn equal_inputs(first: u64, traces: u64) -> Vec<Accuracy> {
    let setup = cpen_setup(MODEL.0, MODEL.1);
    let trace = |seed| swap_trace(&setup, &cpen(CPEN_PROMPTS, 1.0, seed)).expect("every prompt fits").1;
    accuracies(&(first..first + traces).map(trace).collect::<Vec<_>>(), &EQUAL, Sizes::SMALL, &mut || ())
}

/// The requests that were swapped in, in order.
fn swap_ins_of(swaps: &[Swap]) -> Vec<u32> {
    let back = |swap: &Swap| if let Swap::In(id) = swap { Some(*id) } else { None };
    swaps.iter().filter_map(back).collect()
}

/// Accuracies of predictors by window, averaged over the traces.
fn accuracies(
    traces: &[Vec<Swap>],
    predictors: &[Predictor],
    sizes: Sizes,
    progress: &mut dyn FnMut(),
) -> Vec<Accuracy> {
    let mut sums: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
    for (seed, swaps) in (1..).zip(traces) {
        let ids = swap_ins_of(swaps);
        for (which, predictor) in predictors.iter().enumerate() {
            for &window in predictor.windows {
                let (exact, near) = asked(&ids, window, (seed, sizes), predictor);
                let sum = sums.entry((which, window)).or_default();
                *sum = (sum.0 + exact, sum.1 + near);
                progress();
            }
        }
    }
    let mean = |sum: f64| sum / traces.len().max(1) as f64;
    let row = |(&(which, window), &(exact, near)): (&(usize, usize), &(f64, f64))| Accuracy {
        predictor: predictors[which].name,
        window,
        exact: mean(exact),
        near: mean(near),
    };
    sums.iter().map(row).collect()
}

/// Converts an engine's records to swaps. A swap-out of a request that ended while it was out is
/// dropped: no predictor could have known that it would not return.
#[must_use]
pub fn swaps_of(records: &[SwapRecord]) -> Vec<Swap> {
    let comes_back = |at: usize, sequence: u64| {
        let next = records[at + 1..].iter().find(|record| record.sequence == sequence);
        next.is_some_and(|record| record.direction == Direction::In)
    };
    let swap = |(at, record): (usize, &SwapRecord)| {
        let id = u32::try_from(record.sequence).ok()?;
        match record.direction {
            Direction::Out if comes_back(at, record.sequence) => Some(Swap::Out(id)),
            Direction::In => Some(Swap::In(id)),
            Direction::Out | Direction::Dropped => None,
        }
    };
    records.iter().enumerate().filter_map(swap).collect()
}

/// Parses a file written with `--swap-trace`.
///
/// # Errors
/// A line is not a record: its number, from 1, and the parser's error.
pub fn read_trace(text: &str) -> Result<Vec<SwapRecord>, (usize, serde_json::Error)> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| serde_json::from_str(line).map_err(|error| (number, error))).collect()
}

/// Number of `progress` calls for a study of `traces` traces.
#[must_use]
pub fn steps(traces: u64) -> u64 {
    traces * PREDICTORS.iter().map(|predictor| predictor.windows.len() as u64).sum::<u64>()
}

/// Number of swap-ins of the request that has been out longest.
fn queue_heads(swaps: &[Swap]) -> usize {
    let mut out = VecDeque::new();
    let mut heads = 0;
    for swap in swaps {
        match *swap {
            Swap::Out(id) => out.push_back(id),
            Swap::In(id) => {
                heads += usize::from(out.front() == Some(&id));
                out.retain(|other| *other != id);
            }
        }
    }
    heads
}

struct Predictor {
    name: &'static str,
    windows: &'static [usize],
    /// Predicts the number after each test window.
    predict: fn(&Task<'_>) -> Vec<u32>,
}

const PREDICTORS: [Predictor; 4] = [
    Predictor { name: "perceptron, regression", windows: &WINDOWS, predict: regression },
    Predictor { name: "LSTM, regression", windows: &LSTM_WINDOWS, predict: recurrent },
    Predictor { name: "perceptron, classes modulo 10", windows: &WINDOWS, predict: classification },
    Predictor {
        name: "the last one again",
        windows: &[1],
        predict: |task| task.asked().map(|(window, _)| window[window.len() - 1]).collect(),
    },
];

/// Regression and classes that see the same: distances, scaled numbers and last digits.
const EQUAL: [Predictor; 2] = [
    Predictor {
        name: "perceptron, regression",
        windows: &WINDOWS,
        predict: |task| regression_on(task, 3 * task.window, &|window| all_inputs(window, task.most())),
    },
    Predictor {
        name: "perceptron, classes modulo 10",
        windows: &WINDOWS,
        predict: |task| classification_on(task, 3 * task.window, &|window| all_inputs(window, task.most())),
    },
];

/// A trace cut into windows.
struct Task<'a> {
    ids: &'a [u32],
    window: usize,
    seed: u64,
    sizes: Sizes,
}

impl Task<'_> {
    fn examples(&self) -> impl Iterator<Item = (&[u32], u32)> {
        self.ids.windows(self.window + 1).map(|window| (&window[..self.window], window[self.window]))
    }

    /// Upper bound for request numbers: at least the number of prompts of a run.
    fn most(&self) -> f64 {
        f64::from(self.ids.iter().copied().max().unwrap_or(0)).max(CPEN_PROMPTS as f64)
    }

    fn num_trained(&self) -> usize {
        (self.ids.len() as f64 * TRAINED) as usize - self.window
    }

    fn trained(&self) -> impl Iterator<Item = (&[u32], u32)> {
        self.examples().take(self.num_trained())
    }

    fn asked(&self) -> impl Iterator<Item = (&[u32], u32)> {
        self.examples().skip(self.num_trained())
    }
}

/// Shares of exact and of near predictions; zero if the trace is too short for training.
fn asked(ids: &[u32], window: usize, (seed, sizes): (u64, Sizes), predictor: &Predictor) -> (f64, f64) {
    if ids.len() < 5 * (window + 2) {
        return (0.0, 0.0);
    }
    let task = Task { ids, window, seed, sizes };
    let predicted = (predictor.predict)(&task);
    let count = predicted.len().max(1) as f64;
    let share = |within: u32| {
        let hits =
            predicted.iter().zip(task.asked()).filter(|(predicted, (_, truth))| predicted.abs_diff(*truth) <= within);
        hits.count() as f64 / count
    };
    (share(0), share(NEAR))
}

/// Input of the classifier: numbers scaled to -0.5 to 0.5.
fn inputs(window: &[u32], most: f64) -> Vec<f64> {
    window.iter().map(|&id| f64::from(id) / most - 0.5).collect()
}

/// Unit of the distances from the last number that regression uses as input and output. Numbers
/// grow over a run, so absolute numbers would lie beyond those in training.
const REACH: f64 = 20.0;

fn distances(window: &[u32]) -> Vec<f64> {
    let last = f64::from(window[window.len() - 1]);
    window.iter().map(|&id| (f64::from(id) - last) / REACH).collect()
}

fn behind(window: &[u32], distance: f64, most: f64) -> u32 {
    (f64::from(window[window.len() - 1]) + REACH * distance).round().clamp(0.0, most) as u32
}

fn regression_examples(task: &Task<'_>) -> Vec<(Vec<f64>, f64)> {
    let distance = |window: &[u32], next: u32| (f64::from(next) - f64::from(window[window.len() - 1])) / REACH;
    task.trained().map(|(window, next)| (distances(window), distance(window, next))).collect()
}

/// What a net sees of a window.
type Sees<'a> = &'a dyn Fn(&[u32]) -> Vec<f64>;

fn regression(task: &Task<'_>) -> Vec<u32> {
    regression_on(task, task.window, &distances)
}

fn regression_on(task: &Task<'_>, width: usize, sees: Sees<'_>) -> Vec<u32> {
    let mut net = Mlp::new(width, task.sizes.regression, 1, task.seed);
    let targets = regression_examples(task).into_iter().map(|(_, target)| target);
    let examples: Vec<(Vec<f64>, f64)> =
        task.trained().zip(targets).map(|((window, _), target)| (sees(window), target)).collect();
    net.fit(&examples, EPOCHS, |out, target| vec![2.0 * (out[0] - target)]);
    let most = task.most();
    task.asked().map(|(window, _)| behind(window, net.predict(&sees(window))[0], most)).collect()
}

fn recurrent(task: &Task<'_>) -> Vec<u32> {
    let mut net = Lstm::new(task.sizes.lstm, task.seed);
    net.fit(&regression_examples(task), EPOCHS);
    let most = task.most();
    task.asked().map(|(window, _)| behind(window, net.predict(&distances(window)), most)).collect()
}

/// Classes modulo ten depend on the last digit, which scaled numbers do not resolve: it gets separate
/// inputs.
fn digits(window: &[u32], most: f64) -> Vec<f64> {
    let last = window.iter().map(|id| f64::from(id % MODULUS) / f64::from(MODULUS) - 0.5);
    inputs(window, most).into_iter().chain(last).collect()
}

fn all_inputs(window: &[u32], most: f64) -> Vec<f64> {
    distances(window).into_iter().chain(digits(window, most)).collect()
}

fn classification(task: &Task<'_>) -> Vec<u32> {
    classification_on(task, 2 * task.window, &|window| digits(window, task.most()))
}

fn classification_on(task: &Task<'_>, width: usize, sees: Sees<'_>) -> Vec<u32> {
    let class = |next: u32| (next % MODULUS) as usize;
    let examples: Vec<(Vec<f64>, usize)> = task.trained().map(|(window, next)| (sees(window), class(next))).collect();
    let mut net = Mlp::new(width, task.sizes.classes, MODULUS as usize, task.seed);
    net.fit(&examples, EPOCHS, |out, &target| {
        let most = out.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let odds: Vec<f64> = out.iter().map(|value| (value - most).exp()).collect();
        let sum: f64 = odds.iter().sum();
        odds.iter().enumerate().map(|(at, odds)| odds / sum - f64::from(u8::from(at == target))).collect()
    });
    let predict = |(window, _): (&[u32], u32)| {
        let out = net.predict(&sees(window));
        let best = out.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
        most_common(window.iter().map(|id| id / MODULUS)) * MODULUS + best as u32
    };
    task.asked().map(predict).collect()
}

/// The most common value; of equals the largest, which is the latest because numbers grow over a
/// run.
fn most_common(values: impl Iterator<Item = u32>) -> u32 {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().max_by_key(|&(value, count)| (count, value)).map_or(0, |(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictors_learn_a_pattern_but_not_noise() {
        let steps: Vec<u32> = (0..200).collect();
        let regular = asked(&steps, 4, (1, Sizes::SMALL), &PREDICTORS[0]);
        assert!(regular.1 > 0.5, "a line continues: {regular:?}");
        let mut prng = cenote_base::prng::Prng::new(7);
        let noise: Vec<u32> = (0..200).map(|_| prng.below(400) as u32).collect();
        for predictor in &PREDICTORS[..3] {
            let found = asked(&noise, 4, (1, Sizes::SMALL), predictor);
            assert!(found.1 < 0.2, "{}: {found:?}", predictor.name);
        }
        // A digit that repeats is a class that repeats.
        let digits: Vec<u32> = (0..200).map(|at| 120 + [3, 1, 4][at % 3]).collect();
        assert_eq!(asked(&digits, 3, (1, Sizes::SMALL), &PREDICTORS[2]).0, 1.0);
        assert_eq!(asked(&steps[..10], 4, (1, Sizes::SMALL), &PREDICTORS[0]), (0.0, 0.0), "too short to train on");
    }

    #[test]
    fn the_lstm_learns_a_repeating_sequence() {
        let repeated: Vec<u32> = (0..120).map(|at| [150, 158, 170][at % 3]).collect();
        let found = asked(&repeated, 2, (1, Sizes::SMALL), &PREDICTORS[1]);
        assert!(found.1 > 0.8, "{found:?}");
    }

    #[test]
    fn an_engines_records_convert_to_swaps() {
        let text = r#"{"step":3,"sequence":4,"blocks":2,"direction":"out","why":"pressure"}

{"step":3,"sequence":5,"blocks":1,"direction":"dropped","why":"refused"}
{"step":4,"sequence":3,"blocks":2,"direction":"out","why":"pressure"}
{"step":5,"sequence":3,"blocks":2,"direction":"dropped","why":"ended"}
{"step":6,"sequence":4,"blocks":1,"direction":"in","why":"room"}
{"step":6,"sequence":4,"blocks":1,"direction":"dropped","why":"damaged"}
"#;
        let swaps = swaps_of(&read_trace(text).expect("records"));
        assert_eq!(swaps, [Swap::Out(4), Swap::In(4)]);
        assert_eq!(queue_heads(&swaps), 1);
        assert_eq!(read_trace(&text.replace("refused", "bored")).expect_err("no such reason").0, 3);
        let study = study_traces(&[swaps], Sizes::SMALL, &mut || ());
        assert_eq!((study.traces, study.swap_ins, study.queue_head), (1, 1.0, 1.0));
    }

    #[test]
    fn every_swap_in_takes_the_head_of_the_queue() {
        let study = swap_study(1, 0, &mut || ());
        assert_eq!(study.rows.len(), 0);
        let (model, blocks) = MODEL;
        let (_, swaps) = swap_trace(&cpen_setup(model, blocks), &cpen(CPEN_PROMPTS, 1.0, 1)).expect("it fits");
        let ins = swaps.iter().filter(|swap| matches!(swap, Swap::In(_))).count();
        assert!(ins > 100);
        assert_eq!(queue_heads(&swaps), ins);
    }
}
