//! Presets of devices, links and models, with the source of each number.

use super::Link;
use crate::hardware::{a100, a6000, cxl, h200, l20, niagara, nvme, pcie, rdma};
use cenote_plan::PlanError;
use cenote_plan::serving::Served;
use serde::Serialize;

/// An accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Name on command lines.
    pub name: &'static str,
    /// Dense 16-bit operations per second of the matrix units (data sheet).
    pub flops: u64,
    /// Percentage of `flops` that prompts reach. Our assumption: 50.
    pub flops_percent: u64,
    /// Bytes of memory (data sheet).
    pub memory_bytes: u64,
    /// Percentage of the memory that an engine may use: 90, vLLM's `gpu_memory_utilization`.
    pub usable_percent: u64,
    /// Memory bandwidth in bytes per second (data sheet).
    pub memory_bytes_per_s: u64,
    /// Percentage of the bandwidth that the steps of answers reach. Our assumption: 80.
    pub memory_percent: u64,
    /// Link to host memory, for swapping and the instance's own cache.
    pub host: Link,
    /// Nanoseconds added per step. Our assumption: 1 ms for scheduling, launching and sampling.
    pub step_ns: u64,
    /// Nanoseconds added per request of a step. Our assumption: 5 µs for sampling and detokenizing.
    pub request_ns: u64,
}

/// PCIe 5.0 x16.
pub const PCIE_5: Link = pcie::GEN5_X16;
/// CXL 2.0 after SpecKV.
pub const CXL: Link = cxl::SPECKV.link;
/// Niagara 2.0.
pub const NIAGARA: Link = niagara::NIAGARA_2;
/// A 100 Gb/s card, one message.
pub const RDMA_100G: Link = rdma::CX_100G.link;

/// A tier below L1 as a mover sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierLink {
    /// Name in tables.
    pub name: &'static str,
    /// Bandwidth of all channels together, and the latency of one copy.
    pub link: Link,
    /// *Ω*: the most copies that it takes at once.
    pub outstanding_max: u32,
    /// Nanoseconds of the mover to start a batch of copies.
    pub doorbell_ns: u64,
    /// Parts of the tier that carry one copy at a time each, and share the bandwidth equally.
    pub channels: u32,
}

/// Half of SpecKV's link, for one of two GPUs.
pub const SPECKV_L3: TierLink = cxl::SPECKV_HALF_TIER;
/// The region on TraCT's Niagara 2.0, [`NIAGARA`]. Our assumption: 100 ns for a processor to start a
/// batch of copies.
pub const NIAGARA_L3: TierLink =
    TierLink { name: "niagara-l3", link: NIAGARA, outstanding_max: 16, doorbell_ns: 100, channels: 1 };
/// A data-centre NVMe disk as L4.
pub const NVME_L4: TierLink = nvme::PM9A3;
/// Write bandwidth of that disk, in bytes per second.
pub const NVME_L4_WRITE: u64 = nvme::PM9A3_WRITE;

/// The devices.
pub const DEVICES: [Device; 5] =
    [a100::A100_80.device, h200::H200.device, l20::L20.device, a6000::A6000.device, a100::A100_40.device];

impl Device {
    /// The preset with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        DEVICES.iter().find(|device| device.name == name)
    }
}

/// The shape of a decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelShape {
    /// Name on command lines.
    pub name: &'static str,
    /// Number of weights.
    pub parameters: u64,
    /// Number of weights that a token is multiplied with.
    pub active_parameters: u64,
    /// Number of layers.
    pub layers: u64,
    /// Number of K and V heads.
    pub kv_heads: u64,
    /// Number of Q heads.
    pub heads: u64,
    /// Values per head.
    pub head_dim: u64,
    /// Bytes per weight and per value of the residual stream.
    pub element_bytes: u64,
    /// Bytes of K and V of one token in all layers.
    pub token_bytes: u64,
    /// Operations of one token's attention to another.
    pub pair_flops: u64,
}

impl ModelShape {
    /// The preset with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        MODELS.iter().find(|shape| shape.name == name)
    }

    /// The shape that a `config.json` describes, for sequences of `tokens` tokens: windows make the KV and
    /// the arithmetic of a token smaller. Experts count with those that a token uses.
    ///
    /// # Errors
    /// The text is not such a configuration; the message names the key.
    pub fn of_config(json: &[u8], tokens: u64) -> Result<Self, PlanError> {
        let served = Served::parse(json)?;
        Ok(Self {
            name: "the model",
            parameters: served.parameters,
            active_parameters: served.active_parameters,
            layers: served.model.layers.len() as u64,
            kv_heads: served.kv_heads,
            heads: served.heads,
            head_dim: served.hidden / served.heads,
            element_bytes: served.weight_bytes,
            token_bytes: served.token_bytes(tokens.max(1)),
            pair_flops: served.pair_flops(tokens.max(1)),
        })
    }

    /// Bytes of K and V of one token in all layers.
    #[must_use]
    pub const fn kv_bytes_per_token(&self) -> u64 {
        self.token_bytes
    }

    /// Bytes of all weights.
    #[must_use]
    pub const fn weight_bytes(&self) -> u64 {
        self.parameters * self.element_bytes
    }

    /// Operations of one token's attention to another.
    #[must_use]
    pub const fn flops_per_pair(&self) -> u64 {
        self.pair_flops
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
    const BYTES: u64 = 2;
    ModelShape {
        name,
        parameters,
        active_parameters: parameters,
        layers,
        kv_heads,
        heads,
        head_dim,
        element_bytes: BYTES,
        token_bytes: 2 * layers * kv_heads * head_dim * BYTES,
        // A product and a sum each for Q·K and for the weighted V.
        pair_flops: 4 * layers * heads * head_dim,
    }
}

/// The models with 16-bit weights and KV. Shapes are from the published `config.json`.
pub const MODELS: [ModelShape; 7] = [
    // DeepSeek-R1-Distill-Llama-8B, served in TraCT §5.1.
    model("llama-8b", 8_030_000_000, 32, 32, 8, 128),
    model("llama-70b", 70_550_000_000, 80, 64, 8, 128),
    // Qwen3-32B, served in the Engram paper's case study.
    model("qwen3-32b", 32_760_000_000, 64, 64, 8, 128),
    // CPEN 511 §VII-A: facebook/opt-125m, -1.3b, -2.7b, and DeepSeek-R1-Distill-Qwen-1.5B.
    model("opt-125m", 125_000_000, 12, 12, 12, 64),
    model("opt-1.3b", 1_316_000_000, 24, 32, 32, 64),
    model("opt-2.7b", 2_652_000_000, 32, 32, 32, 80),
    model("r1-qwen-1.5b", 1_777_000_000, 28, 12, 2, 128),
];
