//! NVIDIA RTX A6000 (data sheet): 154.8 TFLOPS of dense FP16, 48 GB, 768 GB/s, 300 W. TraCT §5.1
//! serves with it.

use super::Gpu;
use super::gpu::device;
use super::nvlink::PCIE_PEERS;
use super::pcie::GEN4_X16;

/// The card.
pub const A6000: Gpu = Gpu::new(device("a6000", 1_548, 48, 768, GEN4_X16), 300.0, PCIE_PEERS);
