//! What all GPUs share.

use super::GB;
use super::nvlink::TensorLink;
use crate::model::{Device, Link};

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Its rates, memory and host link.
    pub device: Device,
    /// Board power in watts (data sheet).
    pub board_w: f64,
    /// Power of an idle board in watts. Our assumption: an eighth of the board's.
    pub idle_w: f64,
    /// Link between GPUs that share a model's tensors.
    pub tensor: TensorLink,
}

const TFLOPS: u64 = 1_000_000_000_000;

/// A GPU from its data sheet: dense 16-bit tenths of TFLOPS, GB of memory, GB/s, and its host link.
pub(super) const fn device(
    name: &'static str,
    tenths_of_tflops: u64,
    gigabytes: u64,
    gb_per_s: u64,
    host: Link,
) -> Device {
    Device {
        name,
        flops: tenths_of_tflops * TFLOPS / 10,
        flops_percent: 50,
        memory_bytes: gigabytes * GB,
        usable_percent: 90,
        memory_bytes_per_s: gb_per_s * GB,
        memory_percent: 80,
        host,
        step_ns: 1_000_000,
        request_ns: 5_000,
    }
}

impl Gpu {
    pub(super) const fn new(device: Device, board_w: f64, tensor: TensorLink) -> Self {
        Self { device, board_w, idle_w: board_w / 8.0, tensor }
    }

    /// Bytes that an engine may use.
    #[must_use]
    pub const fn usable_bytes(&self) -> u64 {
        self.device.memory_bytes / 100 * self.device.usable_percent
    }
}
