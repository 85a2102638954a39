//! Random times and lengths.

use cenote_base::prng::Prng;

/// A length with a mean and a standard deviation, in tokens, drawn from the log-normal distribution that has both: lengths
/// are positive, and a few are very long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Mean.
    pub mean: f64,
    /// Standard deviation; 0: always the mean.
    pub deviation: f64,
}

impl Length {
    /// Always the same.
    #[must_use]
    pub const fn fixed(tokens: u32) -> Self {
        Self { mean: tokens as f64, deviation: 0.0 }
    }

    /// From 1 to `most` tokens.
    pub(super) fn draw(&self, prng: &mut Prng, most: u32) -> u32 {
        let spread = (1.0 + (self.deviation / self.mean).powi(2)).ln();
        let middle = self.mean.ln() - spread / 2.0;
        let tokens = spread.sqrt().mul_add(normal(prng), middle).exp();
        (tokens.round() as u32).clamp(1, most.max(1))
    }
}

/// Of a process without memory with this mean.
pub(super) fn exponential(prng: &mut Prng, mean: f64) -> f64 {
    -(1.0 - prng.next_f64()).ln() * mean
}

/// Standard normal (Box and Muller).
pub(crate) fn normal(prng: &mut Prng) -> f64 {
    let radius = (-2.0 * (1.0 - prng.next_f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * prng.next_f64()).cos()
}
