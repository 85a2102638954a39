//! Weights of the learned watermark: the output of `cenote-lab study watermark --train FILE`.
//!
//! 20 generations, seed 3: reward -0.3586; fixed 1 % has -1.

use super::Weights;

/// In 1024ths: constant, length now, final length, length to come, blocks in all, recent losses,
/// pending prompts, deviation.
pub const SHIPPED: Weights = [372, -89, 374, -573, 238, 431, 23253, 1172];
