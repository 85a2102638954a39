//! The systems of §6.1 as engines of the simulator: an A100 with several KV formats, LPU, and Oaken
//! with HBM and LPDDR.

use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::hardware::a100::A100_80;
use cenote_serving_sim::hardware::architecture::SPECKV_MODELS;
use cenote_serving_sim::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR, Oaken};
use cenote_serving_sim::hardware::{Architecture, Roofline};
use cenote_serving_sim::{CostModel, Link, Setup, Workload, simulate};

/// A system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum System {
    /// An A100 with this many bits per value of KV. Its kernels cost nothing but their bytes.
    Gpu(f64),
    /// An accelerator.
    Accelerator(Oaken),
}

/// vLLM: 16 bits.
pub const VLLM: System = System::Gpu(16.0);
/// QServe: 4 bits, and a scale and a zero of 16 bits per group of 128 (Table 2's 4.25).
pub const QSERVE: System = System::Gpu(4.25);
/// Oaken with HBM.
pub const HBM: System = System::Accelerator(OAKEN_HBM);
/// Oaken with LPDDR.
pub const LPDDR: System = System::Accelerator(OAKEN_LPDDR);

/// OPT-30B by its `config.json`.
pub const OPT_30B: Architecture = Architecture::dense("opt-30b", [48, 7_168, 28_672, 56, 56], 50_272).gpt();

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

impl System {
    /// Bytes for KV, and bytes of a token and of a request beyond its tokens. On an A100 the larger
    /// models get two cards' memory with the rates of one (§6.1).
    fn memory(&self, model: &Architecture) -> [u64; 3] {
        match self {
            Self::Gpu(bits) => {
                let cards = if model.bytes() * 10 > A100_80.usable_bytes() * 7 { 2 } else { 1 };
                let token = (model.kv_bytes_per_token() as f64 * bits / 16.0) as u64;
                [(A100_80.usable_bytes() * cards).saturating_sub(model.bytes()), token, 0]
            }
            Self::Accelerator(oaken) => [
                (oaken.memory_bytes / 10 * 9).saturating_sub(model.bytes()),
                oaken.kv_bytes_per_token(model),
                oaken.unfilled_bytes(model),
            ],
        }
    }

    /// Requests of `tokens` tokens that fit at once.
    #[must_use]
    pub fn holds(&self, model: &Architecture, tokens: u64) -> u64 {
        let [bytes, token, request] = self.memory(model);
        bytes / (token * tokens + request)
    }

    /// Cost of steps of `batch` requests.
    #[must_use]
    pub fn cost(&self, model: &Architecture, batch: u32) -> CostModel {
        match self {
            Self::Gpu(bits) => {
                let roofline = Roofline { gpu: A100_80, gpus: 1, architecture: *model };
                let cost = roofline.cost_model(f64::from(batch));
                CostModel { context_ps: (cost.context_ps as f64 * bits / 16.0) as u64, ..cost }
            }
            Self::Accelerator(oaken) => oaken.cost_model(model, f64::from(batch)),
        }
    }

    /// Generated tokens per second of `batch` requests at once; `None` if one does not fit.
    #[must_use]
    pub fn tokens_per_s(&self, model: &Architecture, batch: u32, input: u32, output: u32) -> Option<f64> {
        let tokens = u64::from(input + output);
        let holds = self.holds(model, tokens);
        let blocks = holds * tokens.div_ceil(u64::from(BLOCK_TOKENS));
        if holds == 0 {
            return None;
        }
        let setup = Setup {
            instances: 1,
            cost: self.cost(model, batch),
            front_ns: 0,
            kv_bytes_per_token: model.kv_bytes_per_token(),
            l1_blocks: blocks.min(1 << 30) as u32,
            l1_block_tokens: BLOCK_TOKENS,
            max_num_seqs: (holds.min(u64::from(batch))) as usize,
            max_num_batched_tokens: STEP_TOKENS,
            watermark: Watermark::Fixed { share_millionths: 0 },
            swap_blocks: 0,
            swap_link: Link { bytes_per_s: 1, latency_ns: 0 },
            always_swap: false,
            spill: None,
            private: None,
            shared: None,
            hosts: None,
            eviction: Eviction::Lru,
        };
        let load = Workload::alone(BLOCK_TOKENS, (0..batch).map(|_| (0, input, output)));
        Some(simulate(&setup, &load, &mut |_| ()).ok()?.throughput_tokens_per_s)
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
        assert!((OPT_30B.parameters() as f64 / 29.97e9 - 1.0).abs() < 0.01);
    }
}
