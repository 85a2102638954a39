//! Power of a GPU by its use, as a line from idle to board power.

use super::Gpu;

/// Watts of a GPU that uses these shares of its memory's bandwidth and of its arithmetic. Our
/// assumption: the larger share counts, and power follows it linearly.
#[must_use]
pub fn gpu_w(gpu: &Gpu, memory_share: f64, arithmetic_share: f64) -> f64 {
    let share = memory_share.max(arithmetic_share).clamp(0.0, 1.0);
    gpu.idle_w + (gpu.board_w - gpu.idle_w) * share
}

/// Watts of an FPGA card as a cache engine. Our assumption, with a range: a card in a PCIe slot has at
/// most 75 W.
pub const FPGA_W: f64 = 50.0;
/// That range.
pub const FPGA_RANGE_W: [f64; 2] = [25.0, 75.0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::a100::A100_80;

    #[test]
    fn power_is_between_idle_and_board() {
        assert!((gpu_w(&A100_80, 0.0, 0.0) - 50.0).abs() < 1e-9);
        assert!((gpu_w(&A100_80, 0.2, 1.0) - 400.0).abs() < 1e-9);
    }
}
