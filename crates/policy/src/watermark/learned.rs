//! The watermark that learned (CPEN 511 §IX).
//!
//! *State*: what the load says of how full, how old and how crowded the blocks are, and what was lost lately. *Action*: the factor
//! `a` of `a·N/16`, any number from 0 to [`FACTOR_MAX`]. *Policy*: `a` is a weighted sum of the state's features. *Reward*, in the
//! simulator where it learns: throughput less what was swapped. The weights are found by trial: a population of them is tried,
//! and the next one is drawn around the best.
//!
//! Features are chosen so that the sum can say what a person would: keep a share of all blocks free, more of it after losses; keep as
//! much free as those who run will still need, which is how long requests have been in the end, less how long those who run
//! are now, and the rest of the prompts that are in the middle; and keep what chance adds to that. A linear rule of few weights can be read,
//! cannot run away outside what it was trained on, and costs a dozen multiplications at an admission.

use super::{Load, WatermarkController};

/// Features of a state.
pub const FEATURES: usize = 8;
/// One, in the fixed point of features and weights.
pub const ONE: i64 = 1 << 10;
/// What each feature is worth to the factor, in [`ONE`]ths.
pub type Weights = [i32; FEATURES];

/// The largest factor: 16,384 blocks for each running request.
const FACTOR_MAX: i64 = 16 << 14;
/// Larger ratios count as this one, so that no sum overflows.
const RATIO_MAX: i64 = ONE << 14;
/// Steps over which losses are averaged.
const MEMORY_STEPS: i64 = 64;
/// Requests whose length is assumed before any has ended: as long as `PRIOR_BLOCKS`.
const PRIOR_REQUESTS: u64 = 4;
const PRIOR_BLOCKS: u64 = 8;

/// The controller.
#[derive(Clone, Debug)]
pub struct Learned {
    weights: Weights,
    lost_before: u64,
    /// A hundred times the blocks lost in a step over all blocks, in [`ONE`]ths: the mean over [`MEMORY_STEPS`], times as many, because
    /// a mean that is kept in integers stops falling where what is left is less than the number of steps.
    lost_sum: i64,
}

impl Learned {
    /// A controller that knows nothing of the past.
    #[must_use]
    pub const fn new(weights: Weights) -> Self {
        Self { weights, lost_before: 0, lost_sum: 0 }
    }

    /// The state as features. Each is multiplied by the number of running requests in the end; what is divided by it here is a
    /// number of blocks, whoever runs.
    fn features(&self, load: &Load) -> [i64; FEATURES] {
        let ratio = |part: u64, whole: u64| {
            let ratio = u128::from(part) * ONE as u128 / u128::from(whole.max(1));
            ratio.min(RATIO_MAX as u128) as i64
        };
        let running = u64::from(load.num_running.max(1));
        let block_tokens = u64::from(load.block_size.max(1));
        // Blocks of a running request, and of one that has ended.
        let length_now = ratio(load.running_tokens, running * block_tokens);
        let ended = load.finished_requests + PRIOR_REQUESTS;
        let length_then =
            ratio(load.finished_tokens + PRIOR_REQUESTS * PRIOR_BLOCKS * block_tokens, ended * block_tokens);
        let to_come = (length_then - length_now).max(0);
        let room = ratio(u64::from(load.num_blocks), running);
        let losses = room * (self.lost_sum / MEMORY_STEPS).min(4 * ONE) / ONE;
        let pending = ratio(load.pending_tokens + load.next_tokens, running * block_tokens);
        // What many requests need beyond their mean grows with the root of what they are.
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
        // A hundred times the share, so that a block in a hundred is 1.
        let share = 100 * lost * ONE / i64::from(load.num_blocks.max(1));
        self.lost_sum += share - self.lost_sum / MEMORY_STEPS;
    }

    fn reserve_blocks(&self, load: &Load) -> Option<u32> {
        let blocks = self.factor(load) * i64::from(load.num_running) / (16 * ONE);
        Some(u32::try_from(blocks).unwrap_or(u32::MAX))
    }
}
