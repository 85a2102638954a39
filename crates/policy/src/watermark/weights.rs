//! Weights of the learned watermark, as `cenote study watermark --train FILE` writes them: this file is its output.
//!
//! 20 generations, seed 3: reward -0.4770, where fixed 1 % has -1.

use super::Weights;

/// In 1024ths: constant, length now, length in the end, length to come, blocks in all, losses lately, prompts in the middle, deviation.
pub const SHIPPED: Weights = [896, -104, 381, 450, 269, 266, 14917, -24];
