//! Weights that learn from what comes of them.
//!
//! The paper: "time-varying weights updated via stochastic gradient descent on reward function *Θ(t) − λ_q·|Q_target −
//! Q(t)|*" (§3.6.3), and no more. The reward is known only by trying, and its gradient not at all; so it is estimated from two
//! observations, as simultaneous perturbation does (Spall 1992): all weights are changed a little at once, in directions that a
//! seed draws, first one way and then the other, and the difference of the two rewards moves the weights.
//!
//! What moves are the weights' logarithms, so weights are positive and together 1 whatever is observed. A step changes no
//! logarithm by more than [`STEP_MAX`], however large a reward is.

use super::Weights;
use cenote_base::prng::Prng;

/// How far a trial is from the weights, in logarithms.
const TRIAL: f64 = 0.1;
/// Of the gradient, at first; later steps are smaller.
const RATE: f64 = 0.3;
/// Steps after which a step is half as large.
const COOLING: f64 = 50.0;
/// The most that a step changes a logarithm.
const STEP_MAX: f64 = 0.25;
/// Logarithms lie this close to each other, so that no weight is ever lost for good.
const SPREAD_MAX: f64 = 12.0;

/// What is to become large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reward {
    /// *Q_target*.
    pub quality_target: f64,
    /// *λ_q*: what a unit of quality beside the target costs, in units of throughput.
    pub quality_weight: f64,
}

impl Reward {
    /// Of a throughput, best relative to a usual one so that it is about 1, and a quality.
    fn of(&self, throughput: f64, quality: f64) -> f64 {
        throughput - self.quality_weight * (self.quality_target - quality).abs()
    }
}

/// Tries weights, hears what came of them, and tries others.
#[derive(Clone, Debug)]
pub struct WeightLearner {
    reward: Reward,
    logarithms: [f64; 3],
    prng: Prng,
    /// Where the trial at hand lies: each 1 or -1.
    direction: [f64; 3],
    /// The reward one way, if the other way is being tried.
    first: Option<f64>,
    steps: u32,
}

impl WeightLearner {
    /// Starts from these weights; of a zero it takes the least there is.
    #[must_use]
    pub fn new(from: Weights, reward: Reward, seed: u64) -> Self {
        let logarithms = bounded(from.as_array().map(|weight| weight.max(f64::MIN_POSITIVE).ln()));
        let mut prng = Prng::new(seed);
        let direction = draw(&mut prng);
        Self { reward, logarithms, prng, direction, first: None, steps: 0 }
    }

    /// What was learned so far.
    #[must_use]
    pub fn learned(&self) -> Weights {
        normal(self.logarithms)
    }

    /// The weights to choose with until the next observation.
    #[must_use]
    pub fn trial(&self) -> Weights {
        let way = if self.first.is_none() { TRIAL } else { -TRIAL };
        normal(std::array::from_fn(|at| self.logarithms[at] + way * self.direction[at]))
    }

    /// What came of [`Self::trial`]. What is no number is not heard: the same weights are tried again.
    pub fn observe(&mut self, throughput: f64, quality: f64) {
        let reward = self.reward.of(throughput, quality);
        if !reward.is_finite() {
            return;
        }
        let Some(first) = self.first.take() else {
            self.first = Some(reward);
            return;
        };
        let slope = (first - reward) / (2.0 * TRIAL);
        let rate = RATE / (1.0 + f64::from(self.steps) / COOLING);
        let step = (rate * slope).clamp(-STEP_MAX, STEP_MAX);
        self.logarithms = bounded(std::array::from_fn(|at| self.logarithms[at] + step * self.direction[at]));
        self.steps = self.steps.saturating_add(1);
        self.direction = draw(&mut self.prng);
    }
}

/// Directions are drawn that are not the same for all: those would change nothing.
fn draw(prng: &mut Prng) -> [f64; 3] {
    let bits = 1 + prng.below(6);
    std::array::from_fn(|at| if bits >> at & 1 == 1 { 1.0 } else { -1.0 })
}

/// The largest is zero, the others not far below.
fn bounded(logarithms: [f64; 3]) -> [f64; 3] {
    let most = logarithms.iter().copied().fold(f64::MIN, f64::max);
    logarithms.map(|logarithm| (logarithm - most).max(-SPREAD_MAX))
}

fn normal(logarithms: [f64; 3]) -> Weights {
    let [ratio, quality, cost] = bounded(logarithms).map(f64::exp);
    Weights::new(ratio, quality, cost).expect("the largest is 1, and none is negative")
}
