//! NVIDIA A100 SXM4, of 80 and of 40 GB (data sheet).
//!
//! 312 TFLOPS of dense FP16 and 400 W. The 80 GB part reads 2,039 GB/s, the 40 GB part 1,555 GB/s.
//! SpecKV §4.1.1 names the 80 GB part with 1.6 TB/s, which is the other's.

use super::Gpu;
use super::gpu::device;
use super::nvlink::NVLINK_3;
use super::pcie::GEN4_X16;

/// 80 GB.
pub const A100_80: Gpu = Gpu::new(device("a100", 3_120, 80, 2_039, GEN4_X16), 400.0, NVLINK_3);
/// 40 GB.
pub const A100_40: Gpu = Gpu::new(device("a100-40", 3_120, 40, 1_555, GEN4_X16), 400.0, NVLINK_3);
