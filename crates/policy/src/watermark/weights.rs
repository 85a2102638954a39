//! Weights of the learned watermark, as `cenote study watermark --train FILE` writes them: this file is its output.
//!
//! 20 generations, seed 3: reward -0.3331, where fixed 1 % has -1.

use super::Weights;

/// In 1024ths: constant, length now, length in the end, length to come, blocks in all, losses lately, prompts in the middle, deviation.
pub const SHIPPED: Weights = [513, 7, 361, 578, 268, 983, 24156, -234];
