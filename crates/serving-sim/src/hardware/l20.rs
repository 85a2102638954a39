//! NVIDIA L20 (data sheet): 119.5 TFLOPS of dense FP16, 48 GB, 864 GB/s, 275 W.

use super::Gpu;
use super::gpu::device;
use super::nvlink::PCIE_PEERS;
use super::pcie::GEN4_X16;

/// The card.
pub const L20: Gpu = Gpu::new(device("l20", 1_195, 48, 864, GEN4_X16), 275.0, PCIE_PEERS);
