//! The systems of §4.1.3 as engines of the simulator, and the workloads of §4.1.2.
//!
//! The paper does not say how many GPUs a row has. Its tables list the memory, the bandwidth and the
//! power of one, so one is the base, or the fewest that hold the INT8 weights. KV has 16 bits. The systems
//! with far memory allocate all KV there and keep the newest tokens of each request near (§3.2, §3.3.1).
//! [`System::Product`] spills what does not fit, as far as steps hide it.

use cenote_policy::watermark::SHIPPED;
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::hardware::a100::A100_80;
use cenote_serving_sim::hardware::{Architecture, Gpu, Roofline, cxl, nvme, pcie};
use cenote_serving_sim::model::TierLink;
use cenote_serving_sim::serving::Spill;
use cenote_serving_sim::workload::{Length, Synthetic};
use cenote_serving_sim::{Outcome, Setup, Workload, simulate};

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// vLLM: KV in the GPU's memory only.
    GpuOnly,
    /// FlexGen-like: KV in host memory, fetched ahead.
    CpuOffload,
    /// KV on a disk.
    NvmeOffload,
    /// INT8 KV in the GPU's memory only.
    CompressionOnly,
    /// The CXL memory and the codec without prefetch.
    CxlNoSpec,
    /// The CXL memory with prefetch and a codec.
    SpecKv,
    /// Without the codec.
    SpecKvNoComp,
    /// With INT8.
    SpecKvBasic,
    /// The product's policy on the same memory.
    Product,
}

/// What the paper leaves open, and the hardware.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The GPU.
    pub gpu: Gpu,
    /// GPUs; `None`: the fewest that hold the weights.
    pub gpus: Option<u32>,
    /// The link of two GPUs to the CXL memory.
    pub link_bytes_per_s: u64,
    /// Bytes of CXL memory.
    pub far_bytes: u64,
    /// Compression ratio of the system with all optimizations.
    pub ratio: f64,
    /// Decoders of an FPGA, each of [`DECODER_BYTES_PER_S`]; `None`: they keep up with the link.
    pub decoders: Option<u32>,
    /// Most requests that run at once.
    pub batch_max: usize,
    /// Percent of the GPU's memory for weights and KV.
    pub usable_percent: u64,
    /// Newest tokens of a request near the GPU; fewer if its memory does not hold them.
    pub near_tokens: u32,
    /// Share of blocks that admission leaves free, as vLLM's 1 %; `None`: the product's learned
    /// watermark, which preempts less.
    pub watermark: Option<f64>,
}

/// Ratio of INT8 and of the product's `qpack:0.35`, measured on the demo model (docs/evidence/codecs.md).
pub const INT8_RATIO: f64 = 1.99;
const QPACK_RATIO: f64 = 3.91;
/// Host memory (§4.1.1).
pub const HOST_BYTES: u64 = 1_000_000_000_000;
/// Four FPGAs with 64 GB (§4.1.1).
pub const FAR_BYTES: u64 = 4 * 64_000_000_000;
/// The A100's real link to an FPGA: PCIe 4.0 x16 (§4.1.1).
pub const PCIE_4_LINK: u64 = 25_000_000_000;
/// Decoded bytes per second of a pipeline (§3.5.2).
const DECODER_BYTES_PER_S: u64 = 51_200_000_000;
/// Tokens per block, as in vLLM.
const BLOCK_TOKENS: u32 = 16;
/// Tokens of a step: prompts are computed in chunks.
const STEP_TOKENS: u32 = 1_024;
/// Fewest blocks in an engine's own memory.
const BLOCKS_MIN: u64 = 256;

/// The base.
pub const BASE: Machine = Machine {
    gpu: A100_80,
    gpus: None,
    link_bytes_per_s: cxl::SPECKV.link.bytes_per_s,
    far_bytes: FAR_BYTES,
    ratio: QPACK_RATIO,
    decoders: None,
    batch_max: 128,
    usable_percent: 90,
    near_tokens: 256,
    watermark: None,
};

impl Machine {
    /// The GPUs of a model.
    #[must_use]
    pub fn gpus(&self, architecture: &Architecture) -> u32 {
        let fits = |gpus: &u32| {
            let kv = Roofline { gpu: self.gpu(), gpus: *gpus, architecture: *architecture }.kv_bytes();
            kv / (u64::from(BLOCK_TOKENS) * architecture.kv_bytes_per_token()) >= BLOCKS_MIN
        };
        self.gpus.unwrap_or_else(|| [1, 2, 4].into_iter().find(fits).unwrap_or(8))
    }

    /// A model on them.
    #[must_use]
    pub fn roofline(&self, architecture: &Architecture) -> Roofline {
        Roofline { gpu: self.gpu(), gpus: self.gpus(architecture), architecture: *architecture }
    }

    const fn gpu(&self) -> Gpu {
        let mut gpu = self.gpu;
        gpu.device.usable_percent = self.usable_percent;
        gpu
    }

    fn far(&self, gpus: u32, system: System) -> Option<(TierLink, u64, f64)> {
        // One FPGA serves two GPUs (§4.5.1).
        let links = u64::from(gpus.div_ceil(2));
        let mut cxl = cxl::SPECKV_TIER;
        cxl.link.bytes_per_s = self.link_bytes_per_s * links;
        let mut host = pcie::CPU_OFFLOAD;
        host.link.bytes_per_s *= u64::from(gpus);
        Some(match system {
            System::GpuOnly | System::CompressionOnly => return None,
            System::CpuOffload => (host, HOST_BYTES, 1.0),
            System::NvmeOffload => (nvme::PM9A3, HOST_BYTES, 1.0),
            System::SpecKvNoComp => (cxl, self.far_bytes, 1.0),
            System::CxlNoSpec | System::SpecKv | System::Product => (cxl, self.far_bytes, self.ratio),
            System::SpecKvBasic => (cxl, self.far_bytes, INT8_RATIO),
        })
    }

    /// A system with this model. `None` if the weights do not fit.
    #[must_use]
    pub fn setup(&self, system: System, architecture: &Architecture) -> Option<Setup> {
        let roofline = self.roofline(architecture);
        let block_bytes = u64::from(BLOCK_TOKENS) * architecture.kv_bytes_per_token();
        let mut cost = roofline.cost_model(self.batch_max.min(64) as f64);
        let mut l1_blocks = roofline.kv_bytes() / block_bytes;
        if system == System::CompressionOnly {
            l1_blocks = (l1_blocks as f64 * INT8_RATIO) as u64;
            cost.context_ps = (cost.context_ps as f64 / INT8_RATIO) as u64;
        }
        let spill = self.far(roofline.gpus, system).map(|(mut tier, bytes, ratio)| {
            // A frame carries more KV than its bytes, as fast as they are decoded.
            tier.link.bytes_per_s = (tier.link.bytes_per_s as f64 * ratio) as u64;
            if let Some(decoders) = self.decoders.filter(|_| ratio > 1.0) {
                let fpgas = u64::from(roofline.gpus.div_ceil(2));
                tier.link.bytes_per_s = tier.link.bytes_per_s.min(u64::from(decoders) * DECODER_BYTES_PER_S * fpgas);
            }
            let blocks = (bytes as f64 * ratio / block_bytes as f64) as u32;
            let step_blocks = u64::from(STEP_TOKENS / BLOCK_TOKENS);
            let each = l1_blocks.saturating_sub(step_blocks) / self.batch_max as u64;
            let near = self.near_tokens.min(u32::try_from(each).unwrap_or(u32::MAX).saturating_mul(BLOCK_TOKENS));
            Spill {
                blocks,
                layers: architecture.layers as u32,
                tier,
                is_ahead: system != System::CxlNoSpec,
                near_tokens: (system != System::Product).then_some(near),
                fills: false,
            }
        });
        (l1_blocks >= BLOCKS_MIN).then(|| Setup {
            instances: 1,
            cost,
            front_ns: 0,
            kv_bytes_per_token: architecture.kv_bytes_per_token(),
            l1_blocks: u32::try_from(l1_blocks).unwrap_or(u32::MAX),
            l1_block_tokens: BLOCK_TOKENS,
            max_num_seqs: self.batch_max,
            max_num_batched_tokens: STEP_TOKENS,
            watermark: self.watermark.map_or(Watermark::Learned(SHIPPED), Watermark::share),
            swap_blocks: 0,
            has_prefix_cache: false,
            swap_link: self.gpu.device.host,
            always_swap: false,
            spill,
            private: None,
            shared: None,
            hosts: None,
            eviction: Eviction::Lru,
        })
    }

    /// Runs a system on a load. `None` if the weights or a request do not fit.
    #[must_use]
    pub fn run(&self, system: System, architecture: &Architecture, load: &Workload) -> Option<Outcome> {
        simulate(&self.setup(system, architecture)?, load, &mut |_| ()).ok()
    }
}

/// A workload of §4.1.2.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Prompts and answers. Of a range, the middle, with the deviation of even spread.
    lengths: [(f64, f64); 2],
}

const fn even(least: f64, most: f64) -> (f64, f64) {
    ((least + most) / 2.0, (most - least) / 3.464)
}

/// 128 in, 256 out.
pub const CHATBOT: Load = Load { lengths: [(128.0, 0.0), (256.0, 0.0)] };
/// All four: chatbot, summarization, code generation, questions.
pub const LOADS: [Load; 4] = [
    CHATBOT,
    Load { lengths: [even(1_024.0, 2_048.0), even(128.0, 256.0)] },
    Load { lengths: [even(256.0, 512.0), even(512.0, 1_024.0)] },
    Load { lengths: [even(64.0, 128.0), even(32.0, 64.0)] },
];

impl Load {
    /// Requests that arrive by a Poisson process, or all at once if the rate is 0.
    #[must_use]
    pub fn draw(&self, requests: usize, rate: f64, seed: u64) -> Workload {
        let [input, output] = self.lengths.map(|(mean, deviation)| Length { mean, deviation });
        let synthetic = Synthetic { requests, rate, input, output, unique: None, groups: 1, block_tokens: 16 };
        synthetic.draw(seed)
    }
}
