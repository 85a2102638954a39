//! One memory budget for several caches, e.g. KV blocks and rows of n-gram tables ("Pooling Engram
//! Conditional Memory in Large Language Models using CXL" §6, which leaves it open).
//!
//! Each cache has a [`HitCurve`]: the time that a cache of any size would save, measured from sampled
//! accesses. The [`Arbiter`] gives the next bytes to the cache that gains more time by them. On concave
//! curves this rule is optimal. Measured curves are not concave: a loop over many blocks gains
//! nothing until all of them fit. So the arbiter compares all splits into [`UNITS`] parts instead
//! ([`best_split`]), which gives the same result on concave curves.
//!
//! A split costs something to change: a cache that shrinks loses content, and one that grows is empty
//! there. So a split moves at most [`STEP_MAX`] units in a period, and not for a gain below
//! one in [`MARGIN`].
//!
//! Time is counted in tokens that the caller reports, computed and reused ones.

mod curve;

pub use curve::{HitCurve, SAMPLES_MAX};

/// Parts into which the budget is divided.
pub const UNITS: usize = 64;
/// Most units that move in one period.
pub const STEP_MAX: usize = 8;
/// A split changes only if another one gains more by one part in so many.
pub const MARGIN: u32 = 64;
/// Share of a curve that a period keeps: accesses of nine periods ago count a tenth.
const KEPT: f64 = 0.775;
/// The first periods decide nothing, because most accesses in them are the first to their key.
const WARM_PERIODS: u32 = 2;

/// A cache that shares the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Bytes of one entry.
    pub entry_bytes: u64,
    /// Units that it has at first.
    pub units: usize,
}

/// Divides a budget between `N` caches.
#[derive(Clone, Debug)]
pub struct Arbiter<const N: usize> {
    bytes: u64,
    period_tokens: u64,
    tokens: u64,
    periods: u32,
    curves: [HitCurve; N],
    units: [usize; N],
    moves: u64,
}

impl<const N: usize> Arbiter<N> {
    /// For a budget of `bytes` bytes. It decides once in `period_tokens` tokens.
    ///
    /// # Panics
    /// The shares are not [`UNITS`] units together, an entry has no bytes, or a period has no tokens.
    #[must_use]
    pub fn new(bytes: u64, period_tokens: u64, shares: [Share; N]) -> Self {
        assert_eq!(shares.iter().map(|share| share.units).sum::<usize>(), UNITS, "the shares are the budget");
        assert!(period_tokens > 0, "a period has tokens");
        let curves = shares.map(|share| HitCurve::new(share.entry_bytes, bytes));
        let units = shares.map(|share| share.units);
        Self { bytes, period_tokens, tokens: 0, periods: 0, curves, units, moves: 0 }
    }

    /// Cache `at` was asked for the entry with this key, whether it had it or not. `saved_ns`: the
    /// time that the entry saves if it is there. Report a prompt's blocks from the last to the first:
    /// the first ones then lie nearest, as a block is useless without those before it.
    pub fn record(&mut self, at: usize, key: u64, saved_ns: u64) {
        self.curves[at].record(key, saved_ns);
    }

    /// So many tokens were served. Returns the bytes of each cache if they change.
    pub fn serve(&mut self, tokens: u64) -> Option<[u64; N]> {
        self.tokens += tokens;
        if self.tokens < self.period_tokens {
            return None;
        }
        self.tokens = 0;
        self.periods = self.periods.saturating_add(1);
        let before = self.units;
        if self.periods > WARM_PERIODS {
            let gains = self.gains();
            self.units = next_split(&gains, self.units);
        }
        self.curves.iter_mut().for_each(|curve| curve.age(KEPT));
        self.moves += u64::from(self.units != before);
        (self.units != before).then(|| self.split())
    }

    /// Bytes of each cache.
    #[must_use]
    pub fn split(&self) -> [u64; N] {
        self.units.map(|units| self.unit_bytes(units))
    }

    /// The curve of a cache.
    #[must_use]
    pub const fn curve(&self, at: usize) -> &HitCurve {
        &self.curves[at]
    }

    /// Number of times that the split changed.
    #[must_use]
    pub const fn moves(&self) -> u64 {
        self.moves
    }

    /// Bytes of so many units, rounded down, so that the shares never exceed the budget.
    fn unit_bytes(&self, units: usize) -> u64 {
        (u128::from(self.bytes) * units as u128 / UNITS as u128) as u64
    }

    /// Time that each cache saves with 0 to [`UNITS`] units.
    fn gains(&self) -> [Vec<f64>; N] {
        std::array::from_fn(|at| (0..=UNITS).map(|units| self.curves[at].saved_ns(self.unit_bytes(units))).collect())
    }
}

/// The units of each cache after one period. `gains[i][u]` is the gain of cache `i` with `u` units.
///
/// # Panics
/// A cache has more units than its gains.
#[must_use]
pub fn next_split<const N: usize>(gains: &[Vec<f64>; N], units: [usize; N]) -> [usize; N] {
    let gain = |units: &[usize; N]| -> f64 { gains.iter().zip(units).map(|(gains, &units)| gains[units]).sum() };
    let best = best_split(gains, units);
    if gain(&best) <= gain(&units) * (1.0 + 1.0 / f64::from(MARGIN)) {
        return units;
    }
    let mut next = units;
    for _ in 0..STEP_MAX {
        let Some(from) = (0..N).find(|&at| next[at] > best[at]) else { break };
        let to = (0..N).find(|&at| next[at] < best[at]).expect("the units are as many before and after");
        next[from] -= 1;
        next[to] += 1;
    }
    next
}

/// The split of the sum of `units` with the highest gain; of several, one near `units`.
///
/// # Panics
/// A cache has fewer gains than all units together and none.
#[must_use]
pub fn best_split<const N: usize>(gains: &[Vec<f64>; N], units: [usize; N]) -> [usize; N] {
    let total: usize = units.iter().sum();
    // For the caches so far: the best gain with `used` units, and the units of the last one in it.
    let mut best = vec![f64::NEG_INFINITY; total + 1];
    best[0] = 0.0;
    let mut choices: Vec<Vec<usize>> = Vec::with_capacity(N);
    for (gains, &now) in gains.iter().zip(&units) {
        let mut next = vec![f64::NEG_INFINITY; total + 1];
        let mut choice = vec![0_usize; total + 1];
        for used in 0..=total {
            for own in 0..=used {
                let gain = best[used - own] + gains[own];
                let nearer = own.abs_diff(now) < choice[used].abs_diff(now);
                if gain > next[used] || (gain == next[used] && nearer) {
                    (next[used], choice[used]) = (gain, own);
                }
            }
        }
        best = next;
        choices.push(choice);
    }
    let (mut split, mut left) = ([0; N], total);
    for at in (0..N).rev() {
        split[at] = choices[at][left];
        left -= split[at];
    }
    split
}

#[cfg(test)]
mod tests;
