//! Weights that learn from their results.
//!
//! The paper says only this: "time-varying weights updated via stochastic gradient descent on
//! reward function *Θ(t) − λ_q·|Q_target − Q(t)|*" (§3.6.3). The reward is known only by trial, and
//! its gradient is unknown. The learner estimates the gradient from two observations, as
//! simultaneous perturbation does (Spall 1992). It shifts all weights a little at once in seeded
//! random directions, first forward, then backward. The difference of the two rewards moves the
//! weights.
//!
//! A choice among codecs is a step function of the weights, so near trials often get equal rewards.
//! Then the next trials are farther apart, until they find an edge.
//!
//! The learner moves the weights' logarithms, so weights stay positive and sum to 1 for all
//! observations. A step changes no logarithm by more than [`STEP_MAX`], for any reward.

use super::Weights;
use cenote_base::prng::Prng;

/// Least and largest distance of a trial from the weights, in logarithms.
const TRIAL: f64 = 0.1;
const TRIAL_MAX: f64 = 2.0;
/// Difference of two rewards that may be noise.
const FLAT: f64 = 0.05;
/// Factor by which the distance grows after rewards that differ by less, and shrinks after others.
const REACH: f64 = 1.5;
/// Initial factor of the gradient; it decreases with the steps.
const RATE: f64 = 0.3;
/// Number of steps after which the factor is halved.
const COOLING: f64 = 50.0;
/// Maximum change of a logarithm per step.
const STEP_MAX: f64 = 0.25;
/// Maximum difference between logarithms, so that each weight can grow again.
const SPREAD_MAX: f64 = 12.0;

/// The reward function to maximize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reward {
    /// *Q_target*.
    pub quality_target: f64,
    /// *λ_q*: cost of one unit of distance from the quality target, in units of throughput.
    pub quality_weight: f64,
}

impl Reward {
    /// The reward. `throughput` should be relative to a usual value, so that it is about 1.
    fn of(&self, throughput: f64, quality: f64) -> f64 {
        throughput - self.quality_weight * (self.quality_target - quality).abs()
    }
}

/// Learns weights by trials in pairs.
#[derive(Clone, Debug)]
pub struct WeightLearner {
    reward: Reward,
    logarithms: [f64; 3],
    prng: Prng,
    /// Direction of the current trial; each component is 1 or -1.
    direction: [f64; 3],
    /// Reward of the forward trial while the backward one runs.
    first: Option<f64>,
    /// Distance of the current trial.
    reach: f64,
    steps: u32,
}

impl WeightLearner {
    /// Starts from these weights. A zero weight starts at the minimum.
    #[must_use]
    pub fn new(from: Weights, reward: Reward, seed: u64) -> Self {
        let logarithms = bounded(from.as_array().map(|weight| weight.max(f64::MIN_POSITIVE).ln()));
        let mut prng = Prng::new(seed);
        let direction = draw(&mut prng);
        Self { reward, logarithms, prng, direction, first: None, reach: TRIAL, steps: 0 }
    }

    /// The weights learned so far.
    #[must_use]
    pub fn learned(&self) -> Weights {
        normal(self.logarithms)
    }

    /// The weights to use until the next observation.
    #[must_use]
    pub fn trial(&self) -> Weights {
        let way = if self.first.is_none() { self.reach } else { -self.reach };
        normal(std::array::from_fn(|at| self.logarithms[at] + way * self.direction[at]))
    }

    /// Records the result of [`Self::trial`]. Ignores a reward that is not finite; the same trial
    /// then repeats.
    pub fn observe(&mut self, throughput: f64, quality: f64) {
        let reward = self.reward.of(throughput, quality);
        if !reward.is_finite() {
            return;
        }
        let Some(first) = self.first.take() else {
            self.first = Some(reward);
            return;
        };
        let slope = (first - reward) / (2.0 * self.reach);
        let rate = RATE / (1.0 + f64::from(self.steps) / COOLING);
        let step = (rate * slope).clamp(-STEP_MAX, STEP_MAX);
        self.logarithms = bounded(std::array::from_fn(|at| self.logarithms[at] + step * self.direction[at]));
        self.steps = self.steps.saturating_add(1);
        let is_flat = (first - reward).abs() < FLAT;
        self.reach = if is_flat { self.reach * REACH } else { self.reach / REACH }.clamp(TRIAL, TRIAL_MAX);
        self.direction = draw(&mut self.prng);
    }
}

/// Draws a direction. Never draws equal components, which would leave the normalized weights
/// unchanged.
fn draw(prng: &mut Prng) -> [f64; 3] {
    let bits = 1 + prng.below(6);
    std::array::from_fn(|at| if bits >> at & 1 == 1 { 1.0 } else { -1.0 })
}

/// Shifts the logarithms so that the largest is 0, and clamps the others to `SPREAD_MAX` below it.
fn bounded(logarithms: [f64; 3]) -> [f64; 3] {
    let most = logarithms.iter().copied().fold(f64::MIN, f64::max);
    logarithms.map(|logarithm| (logarithm - most).max(-SPREAD_MAX))
}

fn normal(logarithms: [f64; 3]) -> Weights {
    let [ratio, quality, cost] = bounded(logarithms).map(f64::exp);
    Weights::new(ratio, quality, cost).expect("the largest is 1, and none is negative")
}
