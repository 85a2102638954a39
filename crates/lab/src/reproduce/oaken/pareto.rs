//! Figure 12(a): ratios of groups against bits and loss, on the demo model and its text.
//!
//! The paper sweeps Llama2-7B on WikiText-2 and prints no numbers. Its text says three things, which
//! are compared here. Loss is the divergence from the unquantized model: on the demo model, rises of
//! perplexity are below their error.

use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};
use cenote_base::Clock;
use cenote_codec::CodecSpec;
use cenote_console::engine::named_dir;
use cenote_console::input;
use cenote_engine::{EngineConfig, LoadedModel};
use cenote_quality::evaluate::{Quality, evaluate};
use cenote_quality::profile::profile;
use cenote_quality::text::Windows;
use cenote_quality::{CodecSubject, StudyError, Subject};
use std::io::BufReader;

pub const EXPERIMENT: Experiment = Experiment {
    id: "oaken.sweep",
    title: "ratios of groups on the demo model",
    covers: &["oaken.figure12.level", "oaken.figure12.tradeoff", "oaken.figure12.pareto"],
    is_quick: false,
    draws: false,
    run,
};

/// Outliers in percent.
const OUTLIERS: [f64; 4] = [2.0, 5.0, 10.0, 20.0];
/// The outer group's part of the outliers.
const OUTER: [f64; 4] = [0.2, 0.4, 0.6, 0.8];
/// The ratio that the paper chooses: 4 % outer and 6 % inner.
const CHOSEN: (usize, usize) = (2, 1);
/// Tokens per window, windows for the profile, and windows for the sweep.
const WINDOW: usize = 128;
const PROFILED: usize = 64;
const SWEPT: usize = 24;
const BLOCK_TOKENS: usize = 32;

const DEMO: &str = "another model than the paper's; beside: the demo model and the beginning of its text, which it was trained \
                    on, mean of two parts; loss is divergence";
/// Standard errors of a difference by which one loss must be lower than another to count.
const ERRORS: f64 = 2.0;
const MISSING: &str = "the demo model (models/demo) is not here";

fn run(_: &Context) -> Vec<Measured> {
    match sweep() {
        Ok([rows, later]) => measured(&rows, &later),
        Err(_) => EXPERIMENT.covers.iter().map(|id| Measured::not_testable(id, MISSING)).collect(),
    }
}

/// Bits and divergence of each ratio, `OUTLIERS` by `OUTER`, on two parts of the text.
fn sweep() -> Result<[Vec<Vec<Quality>>; 2], StudyError> {
    let wrong = |fact: String| StudyError::Model(fact);
    let dir = named_dir(None).map_err(|failure| wrong(failure.to_string()))?;
    let model = LoadedModel::load(&EngineConfig { threads: 1, ..EngineConfig::new(&dir, Clock::stopped()) })
        .map_err(|error| wrong(error.to_string()))?;
    let text = input::open(dir.join("demo.txt")).map_err(wrong)?;
    let mut windows = Windows::new(BufReader::new(text), model.tokenizer(), WINDOW).take_some(PROFILED + 2 * SWEPT)?;
    let mut swept = windows.split_off(PROFILED.min(windows.len()));
    let later = swept.split_off(SWEPT.min(swept.len()));
    let profile = profile(&model, &windows, &mut |_| ())?;
    let subject = |outliers: f64, outer: f64| {
        let name = format!("oaken:{}/{}/{}:5", outliers * outer, 100.0 - outliers, outliers * (1.0 - outer));
        let codec = name.parse::<CodecSpec>().and_then(|spec| spec.build(Some(&profile)));
        codec.map(|codec| CodecSubject::new(name, codec)).map_err(|error| wrong(error.to_string()))
    };
    let pairs = OUTLIERS.iter().flat_map(|outliers| OUTER.map(|outer| (*outliers, outer)));
    let subjects: Vec<CodecSubject> =
        pairs.map(|(outliers, outer)| subject(outliers, outer)).collect::<Result<_, _>>()?;
    let borrowed: Vec<&dyn Subject> = subjects.iter().map(|subject| subject as &dyn Subject).collect();
    let of = |windows: &[Vec<u32>]| -> Result<Vec<Vec<Quality>>, StudyError> {
        let evaluation = evaluate(&model, windows, BLOCK_TOKENS, &borrowed, &mut |_| ())?;
        Ok(evaluation.codecs.chunks(OUTER.len()).map(<[Quality]>::to_vec).collect())
    };
    Ok([of(&swept)?, of(&later)?])
}

/// Values of the three rows.
fn values(rows: &[Vec<Quality>], errors: f64) -> [Vec<f64>; 3] {
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let spread =
        |row: &Vec<Quality>| most(&mut row.iter().map(|one| one.bits)) / least(&mut row.iter().map(|one| one.bits));
    let best = |row: &[Quality]| least(&mut row.iter().map(|one| one.harm.kl));
    let chosen = &rows[CHOSEN.0][CHOSEN.1];
    let is_better = |one: &&Quality| one.harm.kl + errors * one.harm.kl_se.hypot(chosen.harm.kl_se) < chosen.harm.kl;
    // Bits depend on the outliers that a text really has, so the same ratio differs a little.
    let better = rows[..=CHOSEN.0].iter().flatten().filter(is_better).count();
    let tradeoff = best(&rows[rows.len() - 1]) / best(&rows[0]);
    [rows.iter().map(spread).collect(), vec![tradeoff], vec![better as f64]]
}

fn measured(rows: &[Vec<Quality>], later: &[Vec<Quality>]) -> Vec<Measured> {
    let [level, tradeoff, pareto] = values(rows, ERRORS);
    let others = values(later, ERRORS);
    // The rows are compared on another part of the text, too: one part alone could be an exception.
    let mean = |ours: Vec<f64>, other: &Vec<f64>| ours.iter().zip(other).map(|(a, b)| f64::midpoint(*a, *b)).collect();
    let each = [level, tradeoff, pareto].into_iter().zip(&others).map(|(ours, other)| mean(ours, other));
    EXPERIMENT.covers.iter().zip(each).map(|(id, ours)| Measured::beside(id, DEMO, ours)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_compared_by_bits_and_divergence() {
        let quality = |bits: f64, kl: f64| {
            let text = format!(
                "{{\"bits\":{bits},\"kl\":{kl},\"codec\":\"\",\"ratio\":1,\"k_mse\":0,\"v_mse\":0,\"perplexity\":1,\
                 \"perplexity_se\":0,\"loss_percent\":0,\"loss_percent_se\":0,\"kl_se\":0,\"greedy_agreement\":1}}"
            );
            serde_json::from_str::<Quality>(&text).expect("a quality")
        };
        let row = |bits: f64, kls: [f64; 4]| kls.map(|kl| quality(bits, kl)).to_vec();
        let mut rows = vec![row(4.2, [8.0; 4]), row(4.4, [6.0, 6.0, 6.0, 3.0]), row(4.8, [5.0, 4.0, 3.0, 2.0])];
        rows.push(row(5.6, [1.0; 4]));
        rows[1][0].bits = 4.62;
        let measured = measured(&rows, &rows);
        let values: Vec<Vec<f64>> = measured.into_iter().map(|row| row.beside).collect();
        assert!((values[0][1] - 1.05).abs() < 1e-9 && values[0][0] == 1.0);
        assert_eq!(values[1], [0.125]);
        assert_eq!(values[2], [3.0], "3, 3 and 2 are below 4 with no more outliers");
    }
}
