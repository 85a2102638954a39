//! "This machine": a cost model fitted to steps that were timed.
//!
//! A machine that hardly overlaps arithmetic and memory takes the sum of both, so the fit is linear: a constant, and a rate
//! each for requests, tokens and pairs. Rates are not negative: a rate that would be is left out, and the others are fitted anew.

use super::{CostModel, StepWork};
use serde::{Deserialize, Serialize};

/// One step that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Requests in it.
    pub requests: u64,
    /// Tokens computed.
    pub tokens: u64,
    /// Pairs of a token and one that it attends to.
    pub pairs: u64,
    /// What it took.
    pub ns: u64,
}

/// What a calibration file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Which model, on which machine.
    pub of: String,
    /// Bytes of K and V of one token.
    pub kv_bytes_per_token: u64,
    /// Tokens of all the engine's own blocks.
    pub kv_tokens: u64,
    /// Bytes a second of a copy between the engine's blocks and a region.
    pub copy_bytes_per_s: u64,
    /// Of any step.
    pub step_ns: f64,
    /// Of each request in it.
    pub request_ns: f64,
    /// Of each token.
    pub token_ns: f64,
    /// Of each pair.
    pub pair_ns: f64,
    /// Mean of the fit's relative errors, over the steps.
    pub mean_error: f64,
    /// What was timed.
    pub samples: Vec<Sample>,
}

/// A calibration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// It is no calibration.
    #[error("it is no calibration: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A number in it makes no sense.
    #[error("{0}")]
    Senseless(&'static str),
}

const TERMS: usize = 4;

impl Calibration {
    /// Reads a file's text.
    ///
    /// # Errors
    /// It is no calibration, or says what cannot be.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let read: Self = serde_json::from_str(text)?;
        let rates = [read.step_ns, read.request_ns, read.token_ns, read.pair_ns];
        if !rates.iter().all(|rate| (0.0..1e12).contains(rate)) || rates.iter().sum::<f64>() <= 0.0 {
            return Err(CalibrationError::Senseless("a step takes no time, or no sensible time"));
        }
        if read.kv_bytes_per_token == 0 || read.kv_tokens == 0 || read.copy_bytes_per_s == 0 {
            return Err(CalibrationError::Senseless("tokens without KV, or copies without bandwidth"));
        }
        Ok(read)
    }

    /// The cost model.
    #[must_use]
    pub fn cost(&self) -> CostModel {
        CostModel {
            step_ns: self.step_ns as u64,
            request_ns: self.request_ns as u64,
            token_ps: (1e3 * self.token_ns) as u64,
            pair_ps: (1e3 * self.pair_ns) as u64,
            weights_ps: 0,
            context_ps: 0,
        }
    }

    /// Fits the rates to steps that were timed: least squares of relative errors, so that short steps count as long ones do.
    #[must_use]
    pub fn fit(of: &str, kv_bytes_per_token: u64, kv_tokens: u64, copy_bytes_per_s: u64, samples: Vec<Sample>) -> Self {
        let mut kept: Vec<usize> = (0..TERMS).collect();
        let rates = loop {
            let rates = least_squares(&samples, &kept);
            let negative = kept.iter().copied().filter(|&term| rates[term] < 0.0);
            match negative.min_by(|&a, &b| rates[a].total_cmp(&rates[b])) {
                Some(worst) => kept.retain(|&term| term != worst),
                None => break rates,
            }
        };
        let [step_ns, request_ns, token_ns, pair_ns] = rates;
        let error = |sample: &Sample| {
            let fitted: f64 = terms(sample).iter().zip(rates).map(|(term, rate)| term * rate).sum();
            (fitted / sample.ns.max(1) as f64 - 1.0).abs()
        };
        let mean_error = samples.iter().map(error).sum::<f64>() / samples.len().max(1) as f64;
        Self {
            of: of.to_owned(),
            kv_bytes_per_token,
            kv_tokens,
            copy_bytes_per_s,
            step_ns,
            request_ns,
            token_ns,
            pair_ns,
            mean_error,
            samples,
        }
    }
}

impl Sample {
    /// A step of this work that took so long.
    #[must_use]
    pub const fn new(work: &StepWork, ns: u64) -> Self {
        Self { requests: work.requests, tokens: work.tokens, pairs: work.pairs, ns }
    }
}

fn terms(sample: &Sample) -> [f64; TERMS] {
    [1.0, sample.requests as f64, sample.tokens as f64, sample.pairs as f64]
}

/// The normal equations over the kept terms, solved by elimination; the other rates are 0.
fn least_squares(samples: &[Sample], kept: &[usize]) -> [f64; TERMS] {
    let size = kept.len();
    let mut rows = vec![vec![0.0; size + 1]; size];
    for sample in samples {
        let (terms, time) = (terms(sample), sample.ns.max(1) as f64);
        for (row, &of_row) in rows.iter_mut().zip(kept) {
            for (cell, &of_cell) in row.iter_mut().zip(kept) {
                *cell += terms[of_row] * terms[of_cell] / (time * time);
            }
            row[size] += terms[of_row] / time;
        }
    }
    for pivot in 0..size {
        let best = (pivot..size).max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()));
        rows.swap(pivot, best.expect("a row is left"));
        let pivot_row = rows[pivot].clone();
        // Samples that do not tell two terms apart leave nothing here; the second one's rate is then 0.
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

    fn samples(rates: [f64; TERMS]) -> Vec<Sample> {
        let works =
            [(1, 1, 1), (1, 1, 400), (8, 8, 900), (1, 64, 2_080), (1, 512, 131_328), (3, 200, 50_000), (16, 16, 9_000)];
        let sample = |(requests, tokens, pairs)| {
            let mut sample = Sample { requests, tokens, pairs, ns: 0 };
            sample.ns = terms(&sample).iter().zip(rates).map(|(term, rate)| term * rate).sum::<f64>() as u64;
            sample
        };
        works.map(sample).to_vec()
    }

    #[test]
    fn a_fit_finds_the_rates_again() {
        let rates = [900_000.0, 40_000.0, 75_000.0, 130.0];
        let fitted = Calibration::fit("x", 1, 1, 1, samples(rates));
        let found = [fitted.step_ns, fitted.request_ns, fitted.token_ns, fitted.pair_ns];
        for (found, rate) in found.iter().zip(rates) {
            assert!((found / rate - 1.0).abs() < 1e-3, "{found} for {rate}");
        }
        assert!(fitted.mean_error < 1e-4);
        let text = serde_json::to_string(&fitted).expect("plain data");
        assert_eq!(Calibration::parse(&text).expect("its own text").cost(), fitted.cost());
    }

    #[test]
    fn rates_are_not_negative_and_files_are_doubted() {
        let fitted = Calibration::fit("x", 1, 1, 1, samples([500_000.0, -20_000.0, 70_000.0, 100.0]));
        assert_eq!(fitted.request_ns, 0.0);
        assert!(fitted.step_ns >= 0.0 && fitted.token_ns > 0.0);
        assert!(Calibration::parse("{}").is_err());
        let nonsense = Calibration { copy_bytes_per_s: 0, ..fitted };
        assert!(Calibration::parse(&serde_json::to_string(&nonsense).expect("plain data")).is_err());
    }
}
