//! The systems of §6.1 as engines of the simulator: an A100 with several KV formats, Tender, LPU, and
//! Oaken with HBM and LPDDR.

use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::hardware::a100::A100_80;
use cenote_serving_sim::hardware::architecture::SPECKV_MODELS;
use cenote_serving_sim::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR, Oaken};
use cenote_serving_sim::hardware::{Architecture, KvKernels, Roofline, kv_kernels, tender};
use cenote_serving_sim::{CostModel, Link, Setup, Workload, simulate};

/// A system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum System {
    /// An A100 with this KV format.
    Gpu(KvKernels),
    /// The same, with kernels that reach so many percent of its memory's bandwidth.
    GpuAt(KvKernels, u64),
    /// An accelerator.
    Accelerator(Oaken),
}

/// vLLM: 16 bits.
pub const VLLM: System = System::Gpu(kv_kernels::FULL);
/// QServe.
pub const QSERVE: System = System::Gpu(kv_kernels::QSERVE);
/// KIVI.
pub const KIVI: System = System::Gpu(kv_kernels::KIVI);
/// KVQuant.
pub const KVQUANT: System = System::Gpu(kv_kernels::KVQUANT);
/// Tender.
pub const TENDER: System = System::Accelerator(tender::TENDER);
/// Oaken with HBM.
pub const HBM: System = System::Accelerator(OAKEN_HBM);
/// Oaken with LPDDR.
pub const LPDDR: System = System::Accelerator(OAKEN_LPDDR);

/// OPT-30B by its `config.json`.
pub const OPT_30B: Architecture = Architecture::dense("opt-30b", [48, 7_168, 28_672, 56, 56], 50_272).gpt();

/// Part of the memory that weights and KV may use, in percent. Our assumption.
pub const USABLE: u64 = 90;
/// Other parts of it.
pub const USABLES: [u64; 2] = [80, 100];
/// Tokens per block of an engine's memory, and of a step.
const BLOCK_TOKENS: u32 = 16;
const STEP_TOKENS: u32 = 8_192;

/// A model of §6.1.
///
/// # Panics
/// Panics if no preset has this name.
#[must_use]
pub fn model(name: &str) -> Architecture {
    *SPECKV_MODELS.iter().chain([&OPT_30B]).find(|model| model.name == name).expect("a preset")
}

/// Percent of the A100's bandwidth that GPU kernels reach.
pub const GPU_PERCENT: u64 = A100_80.device.memory_percent;

impl System {
    /// With GPU kernels that reach `percent` of the bandwidth, and accelerators whose units reach this part of
    /// their peak.
    #[must_use]
    pub const fn reaching(self, percent: u64, flops_share: f64) -> Self {
        match self {
            Self::Gpu(kernels) | Self::GpuAt(kernels, _) => Self::GpuAt(kernels, percent),
            Self::Accelerator(oaken) => Self::Accelerator(Oaken { flops_share, ..oaken }),
        }
    }

    /// Bytes for KV, and bytes of a token and of a request beyond its tokens. On an A100 the larger
    /// models get two cards' memory with the rates of one (§6.1).
    fn memory(&self, model: &Architecture, usable: u64) -> [u64; 3] {
        match self {
            Self::Gpu(kernels) | Self::GpuAt(kernels, _) => {
                let cards = if model.bytes() * 10 > A100_80.usable_bytes() * 7 { 2 } else { 1 };
                let bytes = (A100_80.usable_bytes() / USABLE * usable * cards).saturating_sub(model.bytes());
                [bytes, kernels.bytes_per_token(model), kernels.bytes_per_request(model)]
            }
            Self::Accelerator(oaken) => [
                (oaken.memory_bytes / 100 * usable).saturating_sub(model.bytes()),
                oaken.kv_bytes_per_token(model),
                oaken.unfilled_bytes(model),
            ],
        }
    }

    /// Requests of `tokens` tokens that fit at once. A model with a window keeps its tokens only.
    #[must_use]
    pub fn holds(&self, model: &Architecture, tokens: u64) -> u64 {
        self.holds_in(model, tokens, USABLE)
    }

    /// The same with so many percent of the memory.
    #[must_use]
    pub fn holds_in(&self, model: &Architecture, tokens: u64, usable: u64) -> u64 {
        let [bytes, token, request] = self.memory(model, usable);
        bytes / (token * tokens.min(model.window_tokens.map_or(u64::MAX, u64::from)) + request)
    }

    /// 16-bit values of K and V that its memory holds beside the weights, over those of `other`, with so
    /// many percent of both memories.
    #[must_use]
    pub fn effective_capacity(&self, other: &Self, model: &Architecture, usable: u64) -> f64 {
        let tokens = |system: &Self| {
            let [bytes, token, _] = system.memory(model, usable);
            bytes as f64 / token as f64
        };
        tokens(self) / tokens(other)
    }

    /// Cost of steps of `batch` requests.
    #[must_use]
    pub fn cost(&self, model: &Architecture, batch: u32) -> CostModel {
        match self {
            Self::Gpu(kernels) => Self::GpuAt(*kernels, GPU_PERCENT).cost(model, batch),
            Self::GpuAt(kernels, percent) => {
                let mut gpu = A100_80;
                gpu.device.memory_percent = *percent;
                let roofline = Roofline { gpu, gpus: 1, architecture: *model };
                kernels.cost(&roofline.cost_model(f64::from(batch)), &gpu, model)
            }
            Self::Accelerator(oaken) => oaken.cost_model(model, f64::from(batch)),
        }
    }

    /// Generated tokens per second of `batch` requests at once; `None` if one does not fit.
    #[must_use]
    pub fn tokens_per_s(&self, model: &Architecture, batch: u32, input: u32, output: u32) -> Option<f64> {
        self.tokens_per_s_in(model, batch, [input, output], USABLE)
    }

    /// The same with so many percent of the memory.
    #[must_use]
    pub fn tokens_per_s_in(&self, model: &Architecture, batch: u32, lengths: [u32; 2], usable: u64) -> Option<f64> {
        let [input, output] = lengths;
        let tokens = u64::from(input + output);
        let holds = self.holds_in(model, tokens, usable);
        let blocks = holds * tokens.div_ceil(u64::from(BLOCK_TOKENS));
        let load = Workload::alone(BLOCK_TOKENS, (0..batch).map(|_| (0, input, output)));
        (holds > 0).then(|| self.serve(model, batch, blocks, holds.min(u64::from(batch)), &load))?
    }

    /// Generated tokens per second of requests of any lengths at once; `None` if one does not fit.
    #[must_use]
    pub fn batch_tokens_per_s(&self, model: &Architecture, load: &Workload) -> Option<f64> {
        let [bytes, token, request] = self.memory(model, USABLE);
        let batch = load.requests().len() as u64;
        let blocks = bytes.saturating_sub(batch * request) / (token * u64::from(BLOCK_TOKENS));
        self.serve(model, batch as u32, blocks, batch, load)
    }

    fn serve(&self, model: &Architecture, batch: u32, blocks: u64, requests: u64, load: &Workload) -> Option<f64> {
        let setup = Setup {
            instances: 1,
            cost: self.cost(model, batch),
            front_ns: 0,
            kv_bytes_per_token: model.kv_bytes_per_token(),
            l1_blocks: blocks.min(1 << 30) as u32,
            l1_block_tokens: BLOCK_TOKENS,
            max_num_seqs: requests as usize,
            max_num_batched_tokens: STEP_TOKENS,
            watermark: Watermark::Fixed { share_millionths: 0 },
            swap_blocks: 0,
            has_prefix_cache: false,
            swap_link: Link { bytes_per_s: 1, latency_ns: 0 },
            always_swap: false,
            spill: None,
            private: None,
            shared: None,
            hosts: None,
            eviction: Eviction::Lru,
        };
        Some(simulate(&setup, load, &mut |_| ()).ok()?.throughput_tokens_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limits_the_batch() {
        let llama = model("llama-2-13b");
        // 72 GB less 26 GB of weights, 0.82 MB per token.
        assert_eq!(VLLM.holds(&llama, 2_048), ((72e9 - 26.03e9) / (819_200.0 * 2_048.0)) as u64);
        assert!(LPDDR.holds(&llama, 2_048) > 10 * VLLM.holds(&llama, 2_048));
        let (few, many) = (VLLM.tokens_per_s(&llama, 64, 128, 64), VLLM.tokens_per_s(&llama, 4, 128, 64));
        assert!(few > many && many > Some(0.0));
        let load = Workload::alone(BLOCK_TOKENS, (0..64).map(|_| (0, 128, 64)));
        assert_eq!(VLLM.batch_tokens_per_s(&llama, &load), few, "equal lengths are a batch too");
        // 96 tokens of KIVI's requests have 16 bits instead of 5.
        let tokens = (2_048.0 * 5.0 + 96.0 * 11.0) / 16.0;
        assert_eq!(KIVI.holds(&llama, 2_048), ((72e9 - 26.03e9) / (819_200.0 * tokens)) as u64);
        assert!((LPDDR.effective_capacity(&VLLM, &llama, USABLE) - 204.4 / 46.0 * 16.0 / 4.82).abs() < 0.1);
        let windowed = model("mistral-7b").window(4_096);
        assert_eq!(VLLM.holds(&windowed, 32_768), VLLM.holds(&windowed, 4_096));
        assert!((OPT_30B.parameters() as f64 / 29.97e9 - 1.0).abs() < 0.01);
    }
}
