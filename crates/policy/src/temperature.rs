//! Hot and cold pages, and what to do with cold ones (CXL-SpecKV §3.3.3).
//!
//! [`Heat`] counts the reads of a page in the last *N* tokens. A page with at least `hot` reads
//! belongs into L1, one with at most `cold` reads into a lower tier ([`Thresholds`], *T_h* and *T_c*).
//! Between them a page stays, so that pages do not move to and fro. Both thresholds follow memory
//! pressure and miss rate.
//!
//! A [`HotSet`] is what L1 keeps for one reader. [`cheapest_rung`] decides what makes room: compress the page, demote it to L4, or evict it.
//! [`MeasuredLadder`] decides it for L4 with measured times, and which blocks return from there.

mod hot_set;
mod ladder;
mod measured;

pub use hot_set::{HotRead, HotSet};
pub use ladder::{LadderCosts, PageFacts, Rung, cheapest_rung};
pub use measured::{ColdBlock, Encoding, MeasuredLadder, StoredPart, leaving_parts};

/// *N*: the largest number of tokens that a history covers.
pub const WINDOW_MAX: u32 = 64;

/// Reads of one page by the last tokens: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    bits: u64,
    token: u64,
}

impl Heat {
    /// A page written or first seen at `token`. Writing counts as a read.
    #[must_use]
    pub const fn new(token: u64) -> Self {
        Self { bits: 1, token }
    }

    /// Records a read at `token`. Reads of one token count once. A token before the last one recorded
    /// counts as that one.
    pub fn read(&mut self, token: u64) {
        self.bits = self.shifted(token) | 1;
        self.token = self.token.max(token);
    }

    /// Number of tokens among the last `window`, `token` included, that read the page. A window above
    /// [`WINDOW_MAX`] counts as that.
    #[must_use]
    pub fn reads(&self, token: u64, window: u32) -> u32 {
        let mask = if window >= WINDOW_MAX { u64::MAX } else { (1 << window) - 1 };
        (self.shifted(token) & mask).count_ones()
    }

    fn shifted(&self, token: u64) -> u64 {
        let age = u32::try_from(token.saturating_sub(self.token)).unwrap_or(u32::MAX);
        self.bits.checked_shl(age).unwrap_or(0)
    }
}

/// Temperature of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Temperature {
    /// Demote it when room is needed.
    Cold,
    /// Leave it where it is.
    Warm,
    /// Promote it to L1.
    Hot,
}

/// Parameters of the thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThresholdConfig {
    /// *N* tokens, from 4 to [`WINDOW_MAX`].
    pub window: u32,
    /// Memory pressure, 0 to 1, at which the thresholds rest.
    pub pressure_target: f64,
    /// Miss rate, 0 to 1, at which they rest.
    pub miss_target: f64,
    /// Change per observation in parts of the window, for a deviation of 1.
    pub gain: f64,
}

impl Default for ThresholdConfig {
    fn default() -> Self {
        Self { window: 32, pressure_target: 0.9, miss_target: 0.05, gain: 0.1 }
    }
}

/// *T_c* and *T_h*, in reads per window. Always *0 ≤ T_c < T_h ≤ N*.
///
/// Pressure raises both: fewer pages are promoted, and more are cold. Misses lower both: more pages
/// are kept near. The paper gives no rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    config: ThresholdConfig,
    cold: f64,
    hot: f64,
}

impl Thresholds {
    /// Starts with *T_c = N/16* and *T_h = N/4*. Parameters outside their range are clamped.
    #[must_use]
    pub fn new(config: ThresholdConfig) -> Self {
        let unit = |value: f64| if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.5 };
        let config = ThresholdConfig {
            window: config.window.clamp(4, WINDOW_MAX),
            pressure_target: unit(config.pressure_target),
            miss_target: unit(config.miss_target),
            gain: unit(config.gain),
        };
        let window = f64::from(config.window);
        Self { config, cold: window / 16.0, hot: window / 4.0 }
    }

    /// Records memory pressure (the used share of L1) and miss rate since the last call, both 0 to 1.
    /// Ignores values that are no numbers.
    pub fn observe(&mut self, pressure: f64, miss_rate: f64) {
        if !(pressure.is_finite() && miss_rate.is_finite()) {
            return;
        }
        let window = f64::from(self.config.window);
        let push = (pressure.clamp(0.0, 1.0) - self.config.pressure_target)
            - (miss_rate.clamp(0.0, 1.0) - self.config.miss_target);
        let step = self.config.gain * window * push;
        // The hot threshold moves first and leaves the cold one at least a read below it.
        self.hot = (self.hot + step).clamp(2.0, window);
        self.cold = (self.cold + step / 4.0).clamp(0.0, self.hot - 1.0);
    }

    /// *T_c*: a page with at most so many reads is cold.
    #[must_use]
    pub fn cold(&self) -> u32 {
        self.cold as u32
    }

    /// *T_h*: a page with at least so many reads is hot.
    #[must_use]
    pub fn hot(&self) -> u32 {
        self.hot.ceil() as u32
    }

    /// Temperature of a page at `token`.
    #[must_use]
    pub fn temperature(&self, heat: &Heat, token: u64) -> Temperature {
        match heat.reads(token, self.config.window) {
            reads if reads >= self.hot() => Temperature::Hot,
            reads if reads <= self.cold() => Temperature::Cold,
            _ => Temperature::Warm,
        }
    }

    /// *N*, in tokens.
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.config.window
    }
}

#[cfg(test)]
mod tests;
