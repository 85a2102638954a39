//! Weights of the learned watermark. `cenote-lab study watermark --train FILE` writes this file.
//!
//! 20 generations, seed 3: reward -0.3331; fixed 1 % has -1.

use super::Weights;

/// In 1024ths: constant, length now, final length, length to come, blocks in all, recent losses,
/// pending prompts, deviation.
pub const SHIPPED: Weights = [513, 7, 361, 578, 268, 983, 24156, -234];
