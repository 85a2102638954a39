//! Which codec a layer's pages are stored with (CXL-SpecKV §3.6.3, eq. 8).
//!
//! Of a layer's candidates the one with the largest *J = w_r·R + w_q·Q − w_c·L* is taken, among those with *Q ≥ Q_min*. The
//! paper does not say what the terms are measured in. Here each is 1 where it is worth talking about, so that equal weights
//! mean something:
//!
//! - *R* is the compression ratio; 1 is 16 bits a value.
//! - *Q* is 1 less the harm over the harm that the layer may do. Harm is the Kullback-Leibler divergence, in nats a token, from
//!   the model without codecs where only this layer is encoded so. *Q_min* is 0: the floor. Small harms of layers add up, so
//!   [`choose_layers`] gives every layer an equal part of what the whole model may suffer.
//! - *L* is the time to encode and decode over that of copying the page there and back, in tens ([`COPIES`]). A page that stays
//!   as it is is copied anyway: 0.
//!
//! **The floor is never crossed.** No weight buys a candidate that harms more; where none is left the layer stays as it is,
//! which harms nothing, costs nothing and has the ratio 1.
//!
//! Weights change with memory pressure ([`Weights::under`]) and may learn from what comes of them ([`WeightLearner`]).

mod learner;

pub use learner::{Reward, WeightLearner};

/// Copies of a page there and back whose time counts as much as a page's bytes do.
pub const COPIES: f64 = 10.0;

/// What was measured of one codec on one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    ratio: f64,
    harm: f64,
    cost: f64,
}

impl Measured {
    /// `ratio`: 16 bits over what a value takes. `harm`: nats a token. `cost`: encoding and decoding, in
    /// copies there and back.
    ///
    /// `None`: some are no finite numbers, the ratio is not positive, or harm or cost are negative.
    #[must_use]
    pub fn new(ratio: f64, harm: f64, cost: f64) -> Option<Self> {
        let sound = [ratio, harm, cost].iter().all(|number| number.is_finite() && *number >= 0.0) && ratio > 0.0;
        sound.then_some(Self { ratio, harm, cost })
    }

    /// A layer that stays as it is.
    pub const RAW: Self = Self { ratio: 1.0, harm: 0.0, cost: 0.0 };

    /// 16 bits over what a value takes.
    #[must_use]
    pub const fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Divergence in nats a token.
    #[must_use]
    pub const fn harm(&self) -> f64 {
        self.harm
    }

    /// Encoding and decoding, in copies there and back.
    #[must_use]
    pub const fn cost(&self) -> f64 {
        self.cost
    }

    /// *Q*, if it is not below the floor.
    fn quality(&self, harm_max: f64) -> Option<f64> {
        match self.harm <= harm_max {
            true if self.harm == 0.0 => Some(1.0),
            true => Some(1.0 - self.harm / harm_max),
            false => None,
        }
    }
}

/// *w*: what a unit of each term is worth. Not negative, together 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    ratio: f64,
    quality: f64,
    cost: f64,
}

impl Default for Weights {
    /// All terms alike.
    fn default() -> Self {
        Self { ratio: 1.0 / 3.0, quality: 1.0 / 3.0, cost: 1.0 / 3.0 }
    }
}

impl Weights {
    /// Weights in this proportion. `None`: some are negative or no numbers, or all are zero.
    #[must_use]
    pub fn new(ratio: f64, quality: f64, cost: f64) -> Option<Self> {
        let all = [ratio, quality, cost];
        let sum: f64 = all.iter().sum();
        let sound = all.iter().all(|weight| *weight >= 0.0) && sum > 0.0 && sum.is_finite();
        sound.then(|| Self { ratio: ratio / sum, quality: quality / sum, cost: cost / sum })
    }

    /// Of ratio, quality and cost.
    #[must_use]
    pub const fn as_array(&self) -> [f64; 3] {
        [self.ratio, self.quality, self.cost]
    }

    /// These weights where memory is short: 0 leaves them as they are, at 1 only the ratio counts. In between quality and cost
    /// keep their proportion, which is why **more pressure never makes a layer larger**: it moves along one line.
    #[must_use]
    pub fn under(self, pressure: f64) -> Self {
        // What is no number is no pressure.
        let pressure = if pressure > 0.0 { pressure.min(1.0) } else { 0.0 };
        let rest = 1.0 - pressure;
        Self { ratio: self.ratio + pressure * (1.0 - self.ratio), quality: self.quality * rest, cost: self.cost * rest }
    }

    /// *J*.
    fn score(&self, of: &Measured, quality: f64) -> f64 {
        self.ratio * of.ratio + self.quality * quality - self.cost * of.cost / COPIES
    }
}

/// *C\**: the place of the best of a layer's candidates. `None`: the layer stays as it is.
///
/// Of equally good ones that which harms less is taken, then the cheaper one, then the first; to stay as one is comes before
/// all of them.
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

/// The choice of every layer, if the whole model may suffer `harm_max` nats a token.
#[must_use]
pub fn choose_layers(weights: Weights, harm_max: f64, layers: &[Vec<Measured>]) -> Vec<Option<usize>> {
    let share = harm_max / layers.len() as f64;
    layers.iter().map(|candidates| choose(weights, share, candidates)).collect()
}

#[cfg(test)]
mod tests;
