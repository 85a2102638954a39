//! A cost model of this machine, fitted to timed steps.
//!
//! On a machine that hardly overlaps arithmetic and memory, a step takes the sum of both. So the
//! fit is linear: a constant, and one rate each for requests, tokens, pairs and context. A pair of
//! a prompt is cheap, because one read of a key serves many tokens. In an answer each token reads
//! the KV that it attends to, which the context counts. Rates are not negative: the most negative
//! rate is set to 0, and the others are fitted again.
//!
//! Each square is weighted by the inverse of the fitted time. Then the fitted total over all timed
//! steps equals the measured total: a load is a sum of steps, and its errors should cancel. This is
//! the quasi-likelihood of a variance proportional to the mean. It takes a few rounds, because the
//! weights come from the fit.

use super::{CostModel, StepWork};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One timed step, or the mean of several similar ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of steps. The other fields are means per step.
    pub count: u64,
    /// Number of requests.
    pub requests: u64,
    /// Number of tokens computed.
    pub tokens: u64,
    /// Number of pairs of a computed token and a token that it attends to.
    pub pairs: u64,
    /// Number of tokens with KV that the step reads.
    pub context: u64,
    /// Measured nanoseconds.
    pub ns: u64,
}

/// An engine on a machine: everything but the durations of its steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Names of the model and the machine.
    pub of: String,
    /// Bytes of K and V of one token.
    pub kv_bytes_per_token: u64,
    /// Capacity of the engine's own blocks (L1), in tokens.
    pub kv_tokens: u64,
    /// Bytes per second of a copy between the engine's blocks and a region.
    pub copy_bytes_per_s: u64,
    /// Nanoseconds from a client to the engine and back, without the steps.
    pub front_ns: u64,
}

/// The content of a calibration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The engine and machine that were timed.
    #[serde(flatten)]
    pub machine: Machine,
    /// Nanoseconds per step.
    pub step_ns: f64,
    /// Nanoseconds per request of a step.
    pub request_ns: f64,
    /// Nanoseconds per token.
    pub token_ns: f64,
    /// Nanoseconds per pair.
    pub pair_ns: f64,
    /// Nanoseconds per token of context.
    pub context_ns: f64,
    /// Sum of the fit's absolute errors divided by the measured total.
    pub mean_error: f64,
    /// The timed steps.
    pub samples: Vec<Sample>,
}

/// A calibration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The file is not a calibration.
    #[error("not a calibration: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A value is out of range.
    #[error("{0}")]
    Senseless(&'static str),
}

const TERMS: usize = 5;
/// Rounds of a fit. After four rounds weights change by less than 0.1 %.
const ROUNDS: usize = 8;
/// A step that takes more than this many times the median of similar steps is an outlier: another
/// process probably used the machine.
const ODD: u64 = 4;

impl Calibration {
    /// Parses a file's text.
    ///
    /// # Errors
    /// The text is not a calibration, or a value is out of range.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let read: Self = serde_json::from_str(text)?;
        let rates = [read.step_ns, read.request_ns, read.token_ns, read.pair_ns, read.context_ns];
        if !rates.iter().all(|rate| (0.0..1e12).contains(rate)) || rates.iter().sum::<f64>() <= 0.0 {
            return Err(CalibrationError::Senseless(
                "each rate must be at least 0 and below 1e12 ns, and their sum above 0",
            ));
        }
        let machine = &read.machine;
        if machine.kv_bytes_per_token == 0 || machine.kv_tokens == 0 || machine.copy_bytes_per_s == 0 {
            return Err(CalibrationError::Senseless(
                "kv_bytes_per_token, kv_tokens and copy_bytes_per_s must be above 0",
            ));
        }
        if machine.kv_bytes_per_token >= 1 << 40 || machine.front_ns >= 1_000_000_000_000 {
            return Err(CalibrationError::Senseless("kv_bytes_per_token must be below 2^40, and front_ns below 1e12"));
        }
        Ok(read)
    }

    /// The fitted cost model.
    #[must_use]
    pub fn cost(&self) -> CostModel {
        CostModel {
            step_ns: self.step_ns as u64,
            request_ns: self.request_ns as u64,
            token_ps: (1e3 * self.token_ns) as u64,
            pair_ps: (1e3 * self.pair_ns) as u64,
            weights_ps: 0,
            context_ps: 0,
            exposed_context_ps: (1e3 * self.context_ns) as u64,
            streamed_ps: 0,
            window_tokens: None,
        }
    }

    /// Fits the rates to timed steps.
    #[must_use]
    pub fn fit(machine: Machine, samples: Vec<Sample>) -> Self {
        let mut kept: Vec<usize> = (0..TERMS).collect();
        let rates = loop {
            let rates = weighted_fit(&samples, &kept);
            let negative = kept.iter().copied().filter(|&term| rates[term] < 0.0);
            match negative.min_by(|&a, &b| rates[a].total_cmp(&rates[b])) {
                Some(worst) => kept.retain(|&term| term != worst),
                None => break rates,
            }
        };
        let [step_ns, request_ns, token_ns, pair_ns, context_ns] = rates;
        let of_all =
            |of: &dyn Fn(&Sample) -> f64| samples.iter().map(|sample| sample.count as f64 * of(sample)).sum::<f64>();
        let off = of_all(&|sample| (said(sample, &rates) - sample.ns as f64).abs());
        let mean_error = off / of_all(&|sample| sample.ns as f64).max(1.0);
        Self { machine, step_ns, request_ns, token_ns, pair_ns, context_ns, mean_error, samples }
    }
}

impl Sample {
    /// A step with this work that took `ns` nanoseconds.
    #[must_use]
    pub const fn new(work: &StepWork, ns: u64) -> Self {
        Self { count: 1, requests: work.requests, tokens: work.tokens, pairs: work.pairs, context: work.context, ns }
    }

    /// Merges similar steps into one sample each: the means of their work and time, without
    /// outliers.
    #[must_use]
    pub fn merged(samples: &[Self]) -> Vec<Self> {
        let size = |count: u64| (8.0 * (count as f64).log2()).round() as u64;
        let mut kinds: BTreeMap<[u64; 4], Vec<Self>> = BTreeMap::new();
        for sample in samples {
            let kind = [sample.requests, size(sample.tokens), size(sample.pairs), size(sample.context)];
            kinds.entry(kind).or_default().push(*sample);
        }
        let merge = |mut alike: Vec<Self>| {
            alike.sort_by_key(|sample| sample.ns);
            let median = alike[alike.len() / 2].ns;
            alike.retain(|sample| sample.ns <= ODD * median);
            let count = alike.iter().map(|sample| sample.count).sum::<u64>();
            let mean = |of: fn(&Self) -> u64| {
                let sum: u128 = alike.iter().map(|sample| u128::from(sample.count) * u128::from(of(sample))).sum();
                (sum / u128::from(count.max(1))) as u64
            };
            Self {
                count,
                requests: mean(|sample| sample.requests),
                tokens: mean(|sample| sample.tokens),
                pairs: mean(|sample| sample.pairs),
                context: mean(|sample| sample.context),
                ns: mean(|sample| sample.ns),
            }
        };
        kinds.into_values().map(merge).collect()
    }
}

fn terms(sample: &Sample) -> [f64; TERMS] {
    [1.0, sample.requests as f64, sample.tokens as f64, sample.pairs as f64, sample.context as f64]
}

/// The fitted nanoseconds of a step.
fn said(sample: &Sample, rates: &[f64; TERMS]) -> f64 {
    terms(sample).iter().zip(rates).map(|(term, rate)| term * rate).sum()
}

/// The kept rates, by iteratively reweighted least squares. The other rates are 0.
fn weighted_fit(samples: &[Sample], kept: &[usize]) -> [f64; TERMS] {
    let counts = || samples.iter().map(|sample| sample.count as f64);
    let mut weights: Vec<f64> = counts().zip(samples).map(|(count, sample)| count / sample.ns.max(1) as f64).collect();
    let mut rates = [0.0; TERMS];
    for _ in 0..ROUNDS {
        rates = least_squares(samples, &weights, kept);
        for ((weight, count), sample) in weights.iter_mut().zip(counts()).zip(samples) {
            let (measured, said) = (sample.ns.max(1) as f64, said(sample, &rates));
            // An intermediate fit may give a step a negative or tiny time.
            let said = said.max(measured / 10.0);
            *weight = if measured > ODD as f64 * said { 0.0 } else { count / said };
        }
    }
    rates
}

/// Solves the normal equations over the kept terms by elimination. The other rates are 0.
fn least_squares(samples: &[Sample], weights: &[f64], kept: &[usize]) -> [f64; TERMS] {
    let size = kept.len();
    let mut rows = vec![vec![0.0; size + 1]; size];
    for (sample, weight) in samples.iter().zip(weights) {
        let terms = terms(sample);
        for (row, &of_row) in rows.iter_mut().zip(kept) {
            for (cell, &of_cell) in row.iter_mut().zip(kept) {
                *cell += weight * terms[of_row] * terms[of_cell];
            }
            row[size] += weight * terms[of_row] * sample.ns as f64;
        }
    }
    for pivot in 0..size {
        let best = (pivot..size).max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()));
        rows.swap(pivot, best.expect("a row is left"));
        let pivot_row = rows[pivot].clone();
        // The samples do not distinguish this term from earlier ones: its rate is 0.
        if pivot_row[pivot].abs() < f64::MIN_POSITIVE {
            continue;
        }
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != pivot) {
            let factor = row[pivot] / pivot_row[pivot];
            row.iter_mut().zip(&pivot_row).for_each(|(cell, pivot)| *cell -= factor * pivot);
        }
    }
    let mut rates = [0.0; TERMS];
    for (at, &term) in kept.iter().enumerate() {
        if rows[at][at].abs() >= f64::MIN_POSITIVE {
            rates[term] = rows[at][size] / rows[at][at];
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine { of: "x".to_owned(), kv_bytes_per_token: 1, kv_tokens: 1, copy_bytes_per_s: 1, front_ns: 0 }
    }

    fn samples(rates: [f64; TERMS]) -> Vec<Sample> {
        let works = [
            (1, 1, 1, 1),
            (1, 1, 400, 400),
            (8, 8, 900, 900),
            (1, 64, 2_080, 64),
            (1, 512, 131_328, 512),
            (3, 200, 50_000, 700),
            (16, 16, 9_000, 9_000),
        ];
        let sample = |(requests, tokens, pairs, context)| {
            let mut sample = Sample { count: 1, requests, tokens, pairs, context, ns: 0 };
            sample.ns = terms(&sample).iter().zip(rates).map(|(term, rate)| term * rate).sum::<f64>() as u64;
            sample
        };
        works.map(sample).to_vec()
    }

    #[test]
    fn a_fit_recovers_the_rates() {
        let rates = [900_000.0, 40_000.0, 75_000.0, 130.0, 700.0];
        let fitted = Calibration::fit(machine(), samples(rates));
        let found = [fitted.step_ns, fitted.request_ns, fitted.token_ns, fitted.pair_ns, fitted.context_ns];
        for (found, rate) in found.iter().zip(rates) {
            assert!((found / rate - 1.0).abs() < 1e-3, "{found} for {rate}");
        }
        assert!(fitted.mean_error < 1e-4);
        let text = serde_json::to_string(&fitted).expect("plain data");
        let read = Calibration::parse(&text).expect("a serialized calibration");
        assert_eq!(read.cost(), fitted.cost());
        // The cost model gives each step its measured time.
        for sample in &fitted.samples {
            let work = StepWork {
                requests: sample.requests,
                tokens: sample.tokens,
                pairs: sample.pairs,
                context: sample.context,
            };
            let said = read.cost().step(&work) as f64;
            assert!((said / sample.ns as f64 - 1.0).abs() < 1e-3, "{said} for {sample:?}");
        }
    }

    #[test]
    fn similar_steps_merge_into_their_mean_without_outliers() {
        let step = |context: u64, ns: u64| Sample { count: 1, requests: 2, tokens: 2, pairs: context, context, ns };
        let mut timed: Vec<Sample> = (0..20).map(|at| step(1_000 + at, 100 + at)).collect();
        timed.push(step(1_000, 1_000_000));
        timed.push(step(50_000, 300));
        // The mean of many steps counts as many.
        let mut means = timed.clone();
        means.iter_mut().for_each(|sample| sample.count = 31);
        assert_eq!(Sample::merged(&means).iter().map(|sample| sample.count).collect::<Vec<_>>(), [620, 31]);
        let merged = Sample::merged(&timed);
        assert_eq!(merged.len(), 2, "{merged:?}");
        assert_eq!((merged[0].count, merged[0].ns, merged[0].context), (20, 109, 1_009));
    }

    /// The total holds for steps that are not linear in the terms, and with outliers.
    #[test]
    fn the_fitted_total_equals_the_measured_total() {
        let mut timed = samples([900_000.0, 40_000.0, 75_000.0, 130.0, 700.0]);
        for (at, sample) in timed.iter_mut().enumerate() {
            sample.count = 1 + at as u64;
            sample.ns += sample.ns / 5 * (at as u64 % 3);
        }
        let measured: f64 = timed.iter().map(|sample| (sample.count * sample.ns) as f64).sum();
        let odd = Sample { ns: 100 * timed[0].ns, ..timed[0] };
        let fitted = Calibration::fit(machine(), timed.iter().copied().chain([odd]).collect());
        let rates = [fitted.step_ns, fitted.request_ns, fitted.token_ns, fitted.pair_ns, fitted.context_ns];
        let said: f64 = timed.iter().map(|sample| sample.count as f64 * said(sample, &rates)).sum();
        assert!((said / measured - 1.0).abs() < 0.01, "{said} for {measured}");
    }

    #[test]
    fn rates_are_not_negative_and_bad_files_are_refused() {
        let fitted = Calibration::fit(machine(), samples([500_000.0, -20_000.0, 70_000.0, 100.0, 10.0]));
        assert_eq!(fitted.request_ns, 0.0);
        assert!(fitted.step_ns >= 0.0 && fitted.token_ns > 0.0);
        assert!(Calibration::parse("{}").is_err());
        for machine in [
            Machine { copy_bytes_per_s: 0, ..machine() },
            Machine { kv_bytes_per_token: 1 << 60, ..machine() },
            Machine { front_ns: u64::MAX, ..machine() },
        ] {
            let nonsense = Calibration { machine, ..fitted.clone() };
            assert!(Calibration::parse(&serde_json::to_string(&nonsense).expect("plain data")).is_err());
        }
    }
}
