//! Oaken's accelerator (§5.2, §5.3, Table 1): matrix units that stream weights, DMA with quantization
//! engines and a paged memory, and attention of one request overlapped with the engines of another.

mod schedule;

pub use schedule::Attention;

use super::lpddr::LPDDR5X_1024;
use super::{Architecture, GB};
use crate::model::CostModel;

/// An accelerator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Oaken {
    /// Operations per second of the matrix units.
    pub flops_per_s: f64,
    /// Share of them that matrix products reach. Our assumption: as on GPUs.
    pub flops_share: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes per second of memory.
    pub bytes_per_s: f64,
    /// Channels of the memory.
    pub channels: u32,
    /// Bytes of a page, which is read as one burst.
    pub page_bytes: u64,
    /// Nanoseconds between the bursts of a channel.
    pub page_gap_ns: f64,
    /// Cores, each with its engines.
    pub cores: u32,
    /// Bits of a dense value and of the sparse table per value; 16 and 0: KV is not quantized.
    pub kv_bits: [f64; 2],
    /// Values per second that the quantization engines of all cores take.
    pub quantize_per_s: f64,
    /// Values per second that the dequantization engines of all cores give.
    pub dequantize_per_s: f64,
}

/// Values of a cycle and core of both engines, and cores: our assumptions, at Table 1's 1 GHz.
const LANES: f64 = 64.0;
const CORES: f64 = 64.0;
/// Four bits per value, and an entry of eight bits for a tenth of them (§4.5).
const BITS: [f64; 2] = [4.0, 0.8];

/// With HBM (Table 1): 270 TFLOPS, 80 GB, 2 TB/s. Our assumptions: 64 channels, pages of 4 KB, 15 ns
/// between bursts.
pub const OAKEN_HBM: Oaken = Oaken {
    flops_per_s: 270e12,
    flops_share: 0.5,
    memory_bytes: 80 * GB,
    bytes_per_s: 2.0e12,
    channels: 64,
    page_bytes: 4_096,
    page_gap_ns: 15.0,
    cores: CORES as u32,
    kv_bits: BITS,
    quantize_per_s: LANES * CORES * 1e9,
    dequantize_per_s: LANES * CORES * 1e9,
};
/// With LPDDR (Table 1): 256 GB; 1,024 pins give its 1.1 TB/s.
pub const OAKEN_LPDDR: Oaken =
    Oaken { memory_bytes: 256 * GB, bytes_per_s: LPDDR5X_1024.bytes_per_s() as f64, ..OAKEN_HBM };

impl Oaken {
    /// The same accelerator without quantized KV: LPU.
    #[must_use]
    pub const fn unquantized(mut self) -> Self {
        self.kv_bits = [16.0, 0.0];
        self
    }

    /// Bits of a value of K or V, without scales.
    #[must_use]
    pub fn bits(&self) -> f64 {
        self.kv_bits[0] + self.kv_bits[1]
    }

    /// Bytes per second of bursts of pages.
    #[must_use]
    pub fn burst_bytes_per_s(&self) -> f64 {
        let page_ns = self.page_bytes as f64 * 1e9 * f64::from(self.channels) / self.bytes_per_s;
        self.bytes_per_s * page_ns / (page_ns + self.page_gap_ns)
    }

    /// Bytes of K and V of a token, with the scales of three groups (two 16-bit ends each).
    #[must_use]
    pub fn kv_bytes_per_token(&self, model: &Architecture) -> u64 {
        let width = (model.kv_heads * model.head_dim) as f64;
        let scales = if self.kv_bits[1] > 0.0 { 3.0 * 2.0 * 16.0 / width } else { 0.0 };
        (2.0 * model.layers as f64 * width * (self.bits() + scales) / 8.0) as u64
    }

    /// Bytes of pages that a request begins and does not fill: half a page per table, head, layer and
    /// side (§5.2's two tables).
    #[must_use]
    pub fn unfilled_bytes(&self, model: &Architecture) -> u64 {
        let tables = if self.kv_bits[1] > 0.0 { 2 } else { 1 };
        tables * 2 * model.layers * model.kv_heads * self.page_bytes / 2
    }

    /// Nanoseconds to read and dequantize a token of context.
    #[must_use]
    pub fn context_ns(&self, model: &Architecture) -> f64 {
        let values = (2 * model.layers * model.kv_heads * model.head_dim) as f64;
        let read = self.kv_bytes_per_token(model) as f64 * 1e9 / self.burst_bytes_per_s();
        // Engines stream beside the reads (§5.2), so the slower of both counts.
        if self.kv_bits[1] > 0.0 { read.max(values * 1e9 / self.dequantize_per_s) } else { read }
    }

    /// Nanoseconds in which the engines quantize a token, and dequantize a token of context, hidden or
    /// not.
    #[must_use]
    pub fn engine_ns(&self, model: &Architecture) -> [f64; 2] {
        let values = (2 * model.layers * model.kv_heads * model.head_dim) as f64;
        [values * 1e9 / self.quantize_per_s, values * 1e9 / self.dequantize_per_s]
    }

    /// The accelerator as a function for the serving simulator. Our assumption: 100 us per step for
    /// the host, none per request.
    #[must_use]
    pub fn cost_model(&self, model: &Architecture, tokens: f64) -> CostModel {
        let flops = self.flops_per_s * self.flops_share;
        let read = model.layers as f64
            * (model.attention_weights() as f64 + model.expert_weights() as f64 * model.experts_read(tokens))
            + (model.vocabulary * model.hidden) as f64;
        CostModel {
            step_ns: 100_000,
            request_ns: 0,
            token_ps: (2.0 * model.active_parameters() as f64 * 1e12 / flops) as u64,
            pair_ps: (4.0 * (model.layers * model.heads * model.head_dim) as f64 * 1e12 / flops) as u64,
            weights_ps: (read * model.weight_bytes as f64 * 1e12 / self.burst_bytes_per_s()) as u64,
            context_ps: (self.context_ns(model) * 1e3) as u64,
            exposed_context_ps: 0,
            streamed_ps: 0,
            window_tokens: model.window_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};

    #[test]
    fn bursts_lose_their_gaps() {
        // 131 ns of 4 KB per channel and 15 ns of gap.
        assert!((OAKEN_HBM.burst_bytes_per_s() / 2e12 - 131.072 / 146.072).abs() < 1e-6);
        assert!(OAKEN_LPDDR.burst_bytes_per_s() > 0.9 * OAKEN_LPDDR.bytes_per_s);
    }

    #[test]
    fn quantized_kv_is_three_tenths() {
        let llama = &SPECKV_MODELS[0];
        let share = OAKEN_HBM.kv_bytes_per_token(llama) as f64 / llama.kv_bytes_per_token() as f64;
        assert!((share - (4.8 + 96.0 / 4_096.0) / 16.0).abs() < 1e-5, "{share}");
        assert_eq!(OAKEN_HBM.unquantized().kv_bytes_per_token(llama), llama.kv_bytes_per_token());
        assert_eq!(OAKEN_HBM.unfilled_bytes(llama), 2 * OAKEN_HBM.unquantized().unfilled_bytes(llama));
    }

    #[test]
    fn slow_engines_bound_the_context() {
        let slow = Oaken { dequantize_per_s: 1e11, ..OAKEN_LPDDR };
        let values = (2 * 80 * 8 * 128) as f64;
        assert!((slow.context_ns(&LLAMA_2_70B) - values / 100.0).abs() < 1e-6 * values);
        assert!(slow.context_ns(&LLAMA_2_70B) > OAKEN_LPDDR.context_ns(&LLAMA_2_70B));
    }
}
