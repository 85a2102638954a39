//! NVIDIA H200 SXM (data sheet): 989.5 TFLOPS of dense FP16, 141 GB, 4.8 TB/s, 700 W.

use super::Gpu;
use super::gpu::device;
use super::nvlink::NVLINK_4;
use super::pcie::GEN5_X16;

/// The board.
pub const H200: Gpu = Gpu::new(device("h200", 9_895, 141, 4_800, GEN5_X16), 700.0, NVLINK_4);
