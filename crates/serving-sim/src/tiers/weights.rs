//! The codec weights of eq. 8, learned from throughput (CXL-SpecKV §3.6.3).
//!
//! An engine whose pages beyond L1 come encoded is bound by its computation, by the copies of encoded
//! bytes, or by decoding. Weights choose the codecs ([`choose_layers`]), codecs decide bytes and
//! decoding time, and [`WeightLearner`] moves the weights by the throughput that results.
//!
//! An engine calls the learner alike: per period of some hundred steps it encodes with
//! [`WeightLearner::trial`], and passes tokens per second divided by a usual value, and the quality of
//! the choice, 1 minus its harm over the limit, to [`WeightLearner::observe`].

use cenote_base::prng::Prng;
use cenote_policy::codec::{Measured, Reward, WeightLearner, Weights, choose_layers};
use serde::Serialize;

/// An engine with encoded pages.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedEngine {
    /// Candidates of each layer.
    pub layers: Vec<Vec<Measured>>,
    /// Limit of harm of the whole model, in nats per token.
    pub harm_max: f64,
    /// Time of a step's computation.
    pub compute: f64,
    /// Time to copy a step's pages unencoded, in the unit of `compute`.
    pub copies: f64,
    /// Part of a codec's cost that lies on the path of a step: decoding, over as many processors as
    /// decode. In units of `copies` per unit of cost.
    pub decode: f64,
    /// Relative deviation of a measured throughput.
    pub noise: f64,
}

impl EncodedEngine {
    /// Steps per unit of time, and quality, of a choice by `weights`. Copies, decoding and computation
    /// overlap, so the longest of them counts.
    #[must_use]
    pub fn run(&self, weights: Weights) -> (f64, f64) {
        let chosen = choose_layers(weights, self.harm_max, &self.layers);
        let of = |(layer, at): (&Vec<Measured>, &Option<usize>)| at.map_or(Measured::RAW, |at| layer[at]);
        let chosen: Vec<Measured> = self.layers.iter().zip(&chosen).map(of).collect();
        let count = chosen.len().max(1) as f64;
        let bytes = chosen.iter().map(|layer| 1.0 / layer.ratio()).sum::<f64>() / count;
        let decoding = chosen.iter().map(Measured::cost).sum::<f64>() / count;
        let harm: f64 = chosen.iter().map(Measured::harm).sum();
        let time = self.compute.max(self.copies * bytes).max(self.copies * self.decode * decoding);
        (1.0 / time, 1.0 - harm / self.harm_max)
    }
}

/// What learning gained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LearnedWeights {
    /// Throughput with equal weights, relative to raw pages.
    pub fixed: f64,
    /// Throughput with the learned weights, relative to raw pages.
    pub learned: f64,
    /// Best throughput of 231 weights on a grid.
    pub best: f64,
    /// Mean throughput of the trials, which is what an engine gets while it learns.
    pub while_learning: f64,
    /// The learned weights of ratio, quality and cost.
    pub weights: [f64; 3],
}

/// Learns for `periods` periods.
#[must_use]
pub fn learn(engine: &EncodedEngine, reward: Reward, periods: u32, seed: u64) -> LearnedWeights {
    let raw = 1.0 / engine.compute.max(engine.copies);
    let of = |weights: Weights| engine.run(weights).0 / raw;
    let mut learner = WeightLearner::new(Weights::default(), reward, seed);
    let mut prng = Prng::new(seed ^ 0x5eed);
    let mut sum = 0.0;
    for _ in 0..periods {
        let (throughput, quality) = engine.run(learner.trial());
        sum += throughput / raw;
        let noisy = throughput * (1.0 + engine.noise * (2.0 * prng.next_f64() - 1.0));
        learner.observe(noisy / raw, quality);
    }
    let grid = (0..=20).flat_map(|a| (0..=20 - a).map(move |b| (a, b, 20 - a - b)));
    let weights = grid.filter_map(|(a, b, c)| Weights::new(f64::from(a), f64::from(b), f64::from(c)));
    LearnedWeights {
        fixed: of(Weights::default()),
        learned: of(learner.learned()),
        best: weights.map(of).fold(0.0, f64::max),
        while_learning: sum / f64::from(periods.max(1)),
        weights: learner.learned().as_array(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(copies: f64, decode: f64) -> EncodedEngine {
        let measured = |ratio, harm, cost| Measured::new(ratio, harm, cost).expect("sound numbers");
        // A light, a middle and a strong codec.
        let layer = vec![measured(2.0, 1e-5, 1.0), measured(4.7, 1e-4, 8.0), measured(8.8, 3e-4, 30.0)];
        EncodedEngine { layers: vec![layer; 4], harm_max: 5e-3, compute: 1.0, copies, decode, noise: 0.02 }
    }

    const REWARD: Reward = Reward { quality_target: 1.0, quality_weight: 0.0 };

    #[test]
    fn learning_finds_the_codec_that_an_expensive_decoder_allows() {
        let learned = learn(&engine(6.0, 0.05), REWARD, 400, 1);
        assert!(learned.best > 1.05 * learned.fixed, "{learned:?}");
        assert!(learned.learned > learned.fixed && learned.learned <= learned.best, "{learned:?}");
    }

    #[test]
    fn nothing_is_lost_where_computation_binds() {
        let learned = learn(&engine(0.5, 1e-3), REWARD, 100, 1);
        assert_eq!((learned.fixed, learned.learned), (1.0, 1.0), "{learned:?}");
    }
}
