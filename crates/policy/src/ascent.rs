//! Gradient ascent on a reward that is known only by trial: simultaneous perturbation (Spall 1992).
//!
//! A trial shifts all parameters at once in a seeded random direction, first forward, then backward.
//! The difference of the two rewards estimates the slope along that direction. A step never exceeds
//! [`STEP_MAX`], for any reward.

use cenote_base::prng::Prng;

/// Distance of a trial from the parameters.
const TRIAL: f64 = 0.2;
/// Initial factor of the gradient; it decreases with the steps.
const RATE: f64 = 1.0;
/// Number of steps after which the factor is halved.
const COOLING: f64 = 50.0;
/// Largest change of a parameter per step.
const STEP_MAX: f64 = 0.3;

/// `N` parameters that climb.
#[derive(Clone, Debug)]
pub(crate) struct Ascent<const N: usize> {
    at: [f64; N],
    bounds: [(f64, f64); N],
    prng: Prng,
    direction: [f64; N],
    /// Reward of the forward trial while the backward one runs.
    first: Option<f64>,
    steps: u32,
}

impl<const N: usize> Ascent<N> {
    /// Starts from `at`, within `bounds` (lowest, highest).
    pub(crate) fn new(at: [f64; N], bounds: [(f64, f64); N], seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let direction = draw(&mut prng);
        let at = std::array::from_fn(|i| at[i].clamp(bounds[i].0, bounds[i].1));
        Self { at, bounds, prng, direction, first: None, steps: 0 }
    }

    /// The parameters learned so far.
    pub(crate) const fn learned(&self) -> [f64; N] {
        self.at
    }

    /// The parameters to use until the next observation.
    pub(crate) fn trial(&self) -> [f64; N] {
        let way = if self.first.is_none() { TRIAL } else { -TRIAL };
        self.shifted(way)
    }

    /// Records the reward of [`Self::trial`], relative to a usual value of about 1. Ignores a reward
    /// that is not finite; the same trial then repeats.
    pub(crate) fn observe(&mut self, reward: f64) {
        if !reward.is_finite() {
            return;
        }
        let Some(first) = self.first.take() else {
            self.first = Some(reward);
            return;
        };
        let slope = (first - reward) / (2.0 * TRIAL);
        let rate = RATE / (1.0 + f64::from(self.steps) / COOLING);
        self.at = self.shifted((rate * slope).clamp(-STEP_MAX, STEP_MAX));
        self.steps = self.steps.saturating_add(1);
        self.direction = draw(&mut self.prng);
    }

    fn shifted(&self, by: f64) -> [f64; N] {
        std::array::from_fn(|i| (self.at[i] + by * self.direction[i]).clamp(self.bounds[i].0, self.bounds[i].1))
    }
}

fn draw<const N: usize>(prng: &mut Prng) -> [f64; N] {
    std::array::from_fn(|_| if prng.below(2) == 0 { 1.0 } else { -1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hill_is_climbed_through_noise_and_bounds_hold() {
        let mut prng = Prng::new(2);
        let mut ascent = Ascent::new([-1.0, 1.5], [(-2.0, 2.0), (-2.0, 2.0)], 5);
        for _ in 0..600 {
            let [x, y] = ascent.trial();
            assert!(x.abs() <= 2.0 && y.abs() <= 2.0);
            ascent.observe(1.0 - (x - 1.0).powi(2) - (y + 0.5).powi(2) + 0.02 * prng.next_f64());
        }
        let [x, y] = ascent.learned();
        assert!((x - 1.0).abs() < 0.25 && (y + 0.5).abs() < 0.25, "({x}, {y}) is not near (1, -0.5)");
        ascent.observe(f64::NAN);
        assert_eq!(ascent.learned(), [x, y]);
    }
}
