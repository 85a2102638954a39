//! Weights of the learned watermark, as `cenote study watermark --train FILE` writes them: this file is its output.

use super::Weights;

/// In 1024ths: constant, length now, length in the end, length to come, blocks in use, losses lately, swapped, spread.
pub const SHIPPED: Weights = [0, 0, 0, 8192, 0, 0, 0, 0];
