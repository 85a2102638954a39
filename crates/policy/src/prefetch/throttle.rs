//! Aggressiveness of prefetching under load (CXL-SpecKV eq. 7).
//!
//! The paper prints *β ← β·(1 − κ·ReLU(U − θ))*. No factor exceeds 1, so *β* never rises: after one
//! congested period prefetching stays reduced for good. [`Throttle`] adds the opposite term, *β ← β +
//! ρ·ReLU(θ − U)·(1 − β)*, and a floor, so that *β* returns to 1 on an idle link.
//! [`ThrottleConfig::AS_PRINTED`] has *ρ* = 0.
//!
//! The paper learns *κ* and *θ* by gradient ascent on throughput. [`ThrottleLearner`] does this by
//! trials in pairs.

use crate::ascent::Ascent;

/// Parameters of eq. 7.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleConfig {
    /// *κ*: gain of the reduction, not negative.
    pub kappa: f64,
    /// *θ_target*: utilization of the link, 0 to 1, above which prefetching is reduced.
    pub target: f64,
    /// *ρ*: gain of the recovery, 0 to 1. The paper has none.
    pub recovery: f64,
    /// Least aggressiveness, above 0: some prefetches go on, so that their accuracy stays known.
    pub floor: f64,
}

impl ThrottleConfig {
    /// Eq. 7 without recovery.
    pub const AS_PRINTED: Self = Self { recovery: 0.0, floor: 0.0, ..Self::DEFAULT };
    const DEFAULT: Self = Self { kappa: 1.0, target: 0.8, recovery: 0.5, floor: 1.0 / 16.0 };

    fn sound(self) -> Self {
        let unit = |value: f64, otherwise: f64| if value.is_finite() { value.clamp(0.0, 1.0) } else { otherwise };
        let kappa = if self.kappa.is_finite() { self.kappa.max(0.0) } else { Self::DEFAULT.kappa };
        Self {
            kappa,
            target: unit(self.target, Self::DEFAULT.target),
            recovery: unit(self.recovery, Self::DEFAULT.recovery),
            floor: unit(self.floor, Self::DEFAULT.floor),
        }
    }
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// *β* over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    config: ThrottleConfig,
    beta: f64,
}

impl Throttle {
    /// Starts with *β* = 1. Parameters outside their range are clamped.
    #[must_use]
    pub fn new(config: ThrottleConfig) -> Self {
        Self { config: config.sound(), beta: 1.0 }
    }

    /// Replaces the parameters and keeps *β*.
    pub fn configure(&mut self, config: ThrottleConfig) {
        self.config = config.sound();
        self.beta = self.beta.max(self.config.floor);
    }

    /// Records the utilization of the link since the last call, 0 to 1, and returns *β*. Ignores a
    /// utilization that is no number.
    pub fn observe(&mut self, utilization: f64) -> f64 {
        let ThrottleConfig { kappa, target, recovery, floor } = self.config;
        if utilization > target {
            self.beta *= (1.0 - kappa * (utilization - target)).max(0.0);
        } else if utilization < target {
            self.beta += recovery * (target - utilization) * (1.0 - self.beta);
        }
        self.beta = self.beta.clamp(floor, 1.0);
        self.beta
    }

    /// *β*: 1 is full aggressiveness.
    #[must_use]
    pub const fn beta(&self) -> f64 {
        self.beta
    }
}

/// Bounds of ln *κ* and of the logit of *θ*.
const BOUNDS: [(f64, f64); 2] = [(-3.0, 3.0), (-3.0, 4.0)];

/// Learns *κ* and *θ* from measured throughput.
///
/// The caller runs a period (some hundred steps) with [`Self::trial`], and reports its throughput to
/// [`Self::observe`], divided by a usual value.
#[derive(Clone, Debug)]
pub struct ThrottleLearner {
    base: ThrottleConfig,
    ascent: Ascent<2>,
}

impl ThrottleLearner {
    /// Starts from `from`, whose recovery and floor stay.
    #[must_use]
    pub fn new(from: ThrottleConfig, seed: u64) -> Self {
        let base = from.sound();
        let target = base.target.clamp(0.01, 0.99);
        let at = [base.kappa.max(1e-9).ln(), (target / (1.0 - target)).ln()];
        Self { base, ascent: Ascent::new(at, BOUNDS, seed) }
    }

    /// The parameters to use until the next observation.
    #[must_use]
    pub fn trial(&self) -> ThrottleConfig {
        self.config(self.ascent.trial())
    }

    /// The parameters learned so far.
    #[must_use]
    pub fn learned(&self) -> ThrottleConfig {
        self.config(self.ascent.learned())
    }

    /// Records the throughput of a period with [`Self::trial`], relative to a usual value.
    pub fn observe(&mut self, throughput: f64) {
        self.ascent.observe(throughput);
    }

    fn config(&self, [kappa, target]: [f64; 2]) -> ThrottleConfig {
        ThrottleConfig { kappa: kappa.exp(), target: 1.0 / (1.0 + (-target).exp()), ..self.base }
    }
}
