//! Chooses the codec of each layer's pages (CXL-SpecKV §3.6.3, eq. 8).
//!
//! Among the candidates of a layer with *Q ≥ Q_min*, the choice is the one with the largest *J =
//! w_r·R + w_q·Q − w_c·L*. The paper does not give the units of the terms. Here each term is scaled
//! so that 1 is a relevant amount, which makes equal weights meaningful:
//!
//! - *R* is the compression ratio; 1 is 16 bits per value.
//! - *Q* is 1 minus the harm divided by the harm that the layer may do. Harm is the
//!   Kullback-Leibler divergence, in nats per token, between the model without codecs and the model
//!   with only this layer encoded. *Q_min* is 0, the floor. Small harms of layers add up, so
//!   [`choose_layers`] gives every layer an equal share of the model's limit.
//! - *L* is the time to encode and decode a page, divided by the time to copy it there and back, in
//!   tens ([`COPIES`]). A raw page is copied anyway, so its *L* is 0.
//!
//! **The floor is never crossed.** No weight selects a candidate with more harm. A layer without an
//! admissible candidate stays raw: it has no harm, no cost and the ratio 1.
//!
//! Weights change with memory pressure ([`Weights::under`]) and may learn from their results
//! ([`WeightLearner`]).

mod learner;

pub use learner::{Reward, WeightLearner};

/// Number of page copies there and back that weigh as much as one unit of ratio or quality.
pub const COPIES: f64 = 10.0;

/// Measurements of one codec on one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    ratio: f64,
    harm: f64,
    cost: f64,
}

impl Measured {
    /// `ratio`: 16 bits divided by the bits per value. `harm`: nats per token. `cost`: encoding and
    /// decoding, in copies there and back.
    ///
    /// Returns `None` if a number is not finite, the ratio is not positive, or harm or cost is
    /// negative.
    #[must_use]
    pub fn new(ratio: f64, harm: f64, cost: f64) -> Option<Self> {
        let sound = [ratio, harm, cost].iter().all(|number| number.is_finite() && *number >= 0.0) && ratio > 0.0;
        sound.then_some(Self { ratio, harm, cost })
    }

    /// A raw layer.
    pub const RAW: Self = Self { ratio: 1.0, harm: 0.0, cost: 0.0 };

    /// 16 bits divided by the bits per value.
    #[must_use]
    pub const fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Divergence in nats per token.
    #[must_use]
    pub const fn harm(&self) -> f64 {
        self.harm
    }

    /// Cost of encoding and decoding, in copies there and back.
    #[must_use]
    pub const fn cost(&self) -> f64 {
        self.cost
    }

    /// *Q*; `None` below the floor.
    fn quality(&self, harm_max: f64) -> Option<f64> {
        match self.harm <= harm_max {
            true if self.harm == 0.0 => Some(1.0),
            true => Some(1.0 - self.harm / harm_max),
            false => None,
        }
    }
}

/// *w*: the weight of one unit of each term. Weights are not negative and sum to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    ratio: f64,
    quality: f64,
    cost: f64,
}

impl Default for Weights {
    /// Equal weights.
    fn default() -> Self {
        Self { ratio: 1.0 / 3.0, quality: 1.0 / 3.0, cost: 1.0 / 3.0 }
    }
}

impl Weights {
    /// Weights in this proportion. Returns `None` if a weight is negative or no number, or all are
    /// zero.
    #[must_use]
    pub fn new(ratio: f64, quality: f64, cost: f64) -> Option<Self> {
        let all = [ratio, quality, cost];
        let sum: f64 = all.iter().sum();
        let sound = all.iter().all(|weight| *weight >= 0.0) && sum > 0.0 && sum.is_finite();
        sound.then(|| Self { ratio: ratio / sum, quality: quality / sum, cost: cost / sum })
    }

    /// Weights of ratio, quality and cost, in this order.
    #[must_use]
    pub const fn as_array(&self) -> [f64; 3] {
        [self.ratio, self.quality, self.cost]
    }

    /// The weights under memory pressure: 0 leaves them unchanged; at 1 only the ratio counts. In
    /// between, quality and cost keep their proportion. Weights thus move along one line, and
    /// **more pressure never makes a layer larger**.
    #[must_use]
    pub fn under(self, pressure: f64) -> Self {
        // NaN counts as no pressure.
        let pressure = if pressure > 0.0 { pressure.min(1.0) } else { 0.0 };
        let rest = 1.0 - pressure;
        Self { ratio: self.ratio + pressure * (1.0 - self.ratio), quality: self.quality * rest, cost: self.cost * rest }
    }

    /// *J* of eq. 8.
    fn score(&self, of: &Measured, quality: f64) -> f64 {
        self.ratio * of.ratio + self.quality * quality - self.cost * of.cost / COPIES
    }
}

/// *C\**: index of the best candidate of a layer; `None` leaves the layer raw.
///
/// Ties go to the candidate with less harm, then less cost, then the lower index. Raw has neither
/// harm nor cost, so it wins all its ties.
#[must_use]
pub fn choose(weights: Weights, harm_max: f64, candidates: &[Measured]) -> Option<usize> {
    let (mut best, mut best_at) = (Measured::RAW, None);
    let mut best_score = weights.score(&best, 1.0);
    for (at, candidate) in candidates.iter().enumerate() {
        let Some(quality) = candidate.quality(harm_max) else { continue };
        let score = weights.score(candidate, quality);
        let order = score
            .total_cmp(&best_score)
            .then(best.harm.total_cmp(&candidate.harm))
            .then(best.cost.total_cmp(&candidate.cost));
        if order.is_gt() {
            (best, best_at, best_score) = (*candidate, Some(at), score);
        }
    }
    best_at
}

/// Chooses for every layer, within a limit of `harm_max` nats per token for the whole model.
#[must_use]
pub fn choose_layers(weights: Weights, harm_max: f64, layers: &[Vec<Measured>]) -> Vec<Option<usize>> {
    let share = harm_max / layers.len() as f64;
    layers.iter().map(|candidates| choose(weights, share, candidates)).collect()
}

#[cfg(test)]
mod tests;
