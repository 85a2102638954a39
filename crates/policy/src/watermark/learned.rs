//! The learned watermark (CPEN 511 §IX).
//!
//! - *State*: how full, how old and how crowded the blocks are, and recent losses.
//! - *Action*: the factor `a` of `a·N/16`, from 0 to [`FACTOR_MAX`].
//! - *Policy*: `a` is a weighted sum of the state's features.
//! - *Reward*, in the simulator in which it learns: throughput minus swaps.
//!
//! Training searches the weights by trial: it evaluates a population, and draws the next one around
//! the best.
//!
//! The features let the sum express a plausible rule. Keep a share of all blocks free, and more of
//! it after losses. Keep free what running requests will still need: their length at the end, minus
//! their length now, plus the rest of partly computed prompts. Add a reserve for random deviation.
//! A linear rule of few weights is readable, stays bounded outside its training data, and costs a
//! dozen multiplications per admission.

use super::{Load, WatermarkController};

/// Number of features of a state.
pub const FEATURES: usize = 8;
/// One, in the fixed-point format of features and weights.
pub const ONE: i64 = 1 << 10;
/// Weight of each feature in the factor, in units of 1/[`ONE`].
pub type Weights = [i32; FEATURES];

/// The largest factor: 16,384 blocks per running request.
const FACTOR_MAX: i64 = 16 << 14;
/// Cap of ratios, so that no sum overflows.
const RATIO_MAX: i64 = ONE << 14;
/// Number of steps over which losses are averaged.
const MEMORY_STEPS: i64 = 64;
/// Prior of the final length: this many finished requests of `PRIOR_BLOCKS` blocks each.
const PRIOR_REQUESTS: u64 = 4;
const PRIOR_BLOCKS: u64 = 8;

/// The learned controller.
#[derive(Clone, Debug)]
pub struct Learned {
    weights: Weights,
    lost_before: u64,
    /// Loss per step as a percentage of all blocks, in units of 1/[`ONE`]: the mean over
    /// [`MEMORY_STEPS`], times that number. An integer mean stops falling when it is below the
    /// number of steps, so the sum is kept.
    lost_sum: i64,
}

impl Learned {
    /// A controller without past observations.
    #[must_use]
    pub const fn new(weights: Weights) -> Self {
        Self { weights, lost_before: 0, lost_sum: 0 }
    }

    /// The state's features. [`WatermarkController::reserve_blocks`] multiplies their sum by the
    /// number of running requests. A feature that is divided by that number here thus stands for a
    /// number of blocks, independent of it.
    fn features(&self, load: &Load) -> [i64; FEATURES] {
        let ratio = |part: u64, whole: u64| {
            let ratio = u128::from(part) * ONE as u128 / u128::from(whole.max(1));
            ratio.min(RATIO_MAX as u128) as i64
        };
        let running = u64::from(load.num_running.max(1));
        let block_tokens = u64::from(load.block_size.max(1));
        // Mean length in blocks of running requests, and of finished ones.
        let length_now = ratio(load.running_tokens, running * block_tokens);
        let ended = load.finished_requests + PRIOR_REQUESTS;
        let length_then =
            ratio(load.finished_tokens + PRIOR_REQUESTS * PRIOR_BLOCKS * block_tokens, ended * block_tokens);
        let to_come = (length_then - length_now).max(0);
        let room = ratio(u64::from(load.num_blocks), running);
        let losses = room * (self.lost_sum / MEMORY_STEPS).min(4 * ONE) / ONE;
        let pending = ratio(load.pending_tokens + load.next_tokens, running * block_tokens);
        // The deviation of many requests from their mean grows with the square root of their total.
        let deviation = ratio((u64::from(load.num_blocks) * (length_then / ONE).max(1) as u64).isqrt(), running);
        [ONE, length_now, length_then, to_come, room, losses, pending, deviation]
    }

    fn factor(&self, load: &Load) -> i64 {
        let sum: i64 =
            self.features(load).iter().zip(self.weights).map(|(feature, weight)| feature * i64::from(weight)).sum();
        (sum / ONE).clamp(0, FACTOR_MAX * ONE)
    }
}

impl WatermarkController for Learned {
    fn observe(&mut self, load: &Load) {
        let lost = load.lost_blocks.saturating_sub(self.lost_before).min(u64::from(load.num_blocks)) as i64;
        self.lost_before = load.lost_blocks;
        // Percentage of all blocks: the loss of one block in a hundred is 1.
        let share = 100 * lost * ONE / i64::from(load.num_blocks.max(1));
        self.lost_sum += share - self.lost_sum / MEMORY_STEPS;
    }

    fn reserve_blocks(&self, load: &Load) -> Option<u32> {
        let blocks = self.factor(load) * i64::from(load.num_running) / (16 * ONE);
        Some(u32::try_from(blocks).unwrap_or(u32::MAX))
    }
}
