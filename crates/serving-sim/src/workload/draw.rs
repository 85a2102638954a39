//! Random intervals and lengths.

use cenote_base::prng::Prng;

/// A random length in tokens with this mean and standard deviation. The distribution is log-normal:
/// lengths are positive, and a few are very long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Mean in tokens.
    pub mean: f64,
    /// Standard deviation in tokens. 0: always the mean.
    pub deviation: f64,
}

impl Length {
    /// A constant length.
    #[must_use]
    pub const fn fixed(tokens: u32) -> Self {
        Self { mean: tokens as f64, deviation: 0.0 }
    }

    /// Draws a length, clamped to 1..=`most` tokens.
    pub(super) fn draw(&self, prng: &mut Prng, most: u32) -> u32 {
        let spread = (1.0 + (self.deviation / self.mean).powi(2)).ln();
        let middle = self.mean.ln() - spread / 2.0;
        let tokens = spread.sqrt().mul_add(normal(prng), middle).exp();
        (tokens.round() as u32).clamp(1, most.max(1))
    }
}

/// Draws from the exponential distribution with this mean.
pub(crate) fn exponential(prng: &mut Prng, mean: f64) -> f64 {
    -(1.0 - prng.next_f64()).ln() * mean
}

/// Draws from the standard normal distribution (Box and Muller).
pub(crate) fn normal(prng: &mut Prng) -> f64 {
    let radius = (-2.0 * (1.0 - prng.next_f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * prng.next_f64()).cos()
}
