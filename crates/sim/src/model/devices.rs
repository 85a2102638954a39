//! Devices, links and models that are known, each number with where it comes from.

use super::Link;
use serde::Serialize;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Name on command lines.
    pub name: &'static str,
    /// Dense 16-bit operations a second, of the matrix units (data sheet).
    pub flops: u64,
    /// Of these what prompts reach. Ours: 50 %.
    pub flops_percent: u64,
    /// Bytes of memory (data sheet).
    pub memory_bytes: u64,
    /// Of these what an engine may fill: 90 %, vLLM's `gpu_memory_utilization`.
    pub usable_percent: u64,
    /// Bytes a second to and from it (data sheet).
    pub memory_bytes_per_s: u64,
    /// Of these what the steps of answers reach. Ours: 80 %.
    pub memory_percent: u64,
    /// To host memory: swapping and the instance's own cache.
    pub host: Link,
    /// What any step takes beside. Ours: 1 ms for scheduling, launching and sampling.
    pub step_ns: u64,
    /// What each request of a step takes beside. Ours: 5 µs for sampling and detokenizing.
    pub request_ns: u64,
}

const GB: u64 = 1_000_000_000;
const TFLOPS: u64 = 1_000_000_000_000;
/// PCIe 4.0 x16 carries 31.5 GB/s (16 GT/s, 128b/130b); 80 % of it for copies from pinned memory and 10 µs to start one: ours.
const PCIE_4: Link = Link { bytes_per_s: 25 * GB, latency_ns: 10_000 };
/// PCIe 5.0 x16 carries 63 GB/s (32 GT/s, 128b/130b); 80 % of it for copies from pinned memory and 10 µs to start one: ours.
pub const PCIE_5: Link = Link { bytes_per_s: 50 * GB, latency_ns: 10_000 };
/// SpecKV §4.1.1: CXL 2.0, 64 GB/s for each x16 link, less than 400 ns.
pub const CXL: Link = Link { bytes_per_s: 64 * GB, latency_ns: 400 };
/// TraCT §5.1: Niagara 2.0, 10.1 GB/s and 640 ns, measured there with Intel's Memory Latency Checker.
pub const NIAGARA: Link = Link { bytes_per_s: 10_100_000_000, latency_ns: 640 };
/// TraCT §5.1: a 100 Gb/s card, which is 12.5 GB/s; 5 µs from end to end: ours.
pub const RDMA_100G: Link = Link { bytes_per_s: 12_500_000_000, latency_ns: 5_000 };

const fn gpu(name: &'static str, tenths_of_tflops: u64, gigabytes: u64, gb_per_s: u64, host: Link) -> Device {
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

/// The devices: tenths of TFLOPS without sparsity, gigabytes, gigabytes a second, from the vendor's data sheets.
pub const DEVICES: [Device; 4] = [
    // A100 80GB SXM: 312 TFLOPS (also SpecKV §4.1.1), 2,039 GB/s. SpecKV's 1.6 TB/s are the 40 GB part's.
    gpu("a100", 3_120, 80, 2_039, PCIE_4),
    // H200 SXM: 989.5 TFLOPS, 141 GB, 4.8 TB/s.
    gpu("h200", 9_895, 141, 4_800, PCIE_5),
    // L20: 119.5 TFLOPS, 48 GB, 864 GB/s.
    gpu("l20", 1_195, 48, 864, PCIE_4),
    // RTX A6000: 154.8 TFLOPS, 48 GB, 768 GB/s (TraCT §5.1 serves with it).
    gpu("a6000", 1_548, 48, 768, PCIE_4),
];

impl Device {
    /// The preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        DEVICES.iter().find(|device| device.name == name)
    }
}

/// What is computed: a decoder of the usual kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelShape {
    /// Name on command lines.
    pub name: &'static str,
    /// Weights.
    pub parameters: u64,
    /// Layers.
    pub layers: u64,
    /// Heads of K and V.
    pub kv_heads: u64,
    /// Heads of Q.
    pub heads: u64,
    /// Values of a head.
    pub head_dim: u64,
    /// Bytes of a weight and of a value of K or V.
    pub element_bytes: u64,
}

impl ModelShape {
    /// The preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        MODELS.iter().find(|shape| shape.name == name)
    }

    /// Bytes of K and V of one token, all layers.
    #[must_use]
    pub const fn kv_bytes_per_token(&self) -> u64 {
        2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes
    }

    /// Bytes of all weights.
    #[must_use]
    pub const fn weight_bytes(&self) -> u64 {
        self.parameters * self.element_bytes
    }

    /// Operations of one token's attention to one other: a product and a sum each for Q·K and for the weighted V.
    #[must_use]
    pub const fn flops_per_pair(&self) -> u64 {
        4 * self.layers * self.heads * self.head_dim
    }
}

const fn model(
    name: &'static str,
    parameters: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
) -> ModelShape {
    ModelShape { name, parameters, layers, kv_heads, heads, head_dim, element_bytes: 2 }
}

/// The models, in 16 bits: shapes of the published `config.json`.
pub const MODELS: [ModelShape; 7] = [
    // DeepSeek-R1-Distill-Llama-8B, what TraCT §5.1 serves.
    model("llama-8b", 8_030_000_000, 32, 32, 8, 128),
    model("llama-70b", 70_550_000_000, 80, 64, 8, 128),
    // Qwen3-32B, what the Engram paper's case study serves.
    model("qwen3-32b", 32_760_000_000, 64, 64, 8, 128),
    // CPEN 511 §VII-A: facebook/opt-125m, -1.3b, -2.7b, and DeepSeek-R1-Distill-Qwen-1.5B.
    model("opt-125m", 125_000_000, 12, 12, 12, 64),
    model("opt-1.3b", 1_316_000_000, 24, 32, 32, 64),
    model("opt-2.7b", 2_652_000_000, 32, 32, 32, 80),
    model("r1-qwen-1.5b", 1_777_000_000, 28, 12, 2, 128),
];
