//! KV formats of GPU systems: bits per value, and the work of their attention kernels beside reading.
//!
//! A kernel takes the longer of its reads and of its instructions on CUDA cores, which unpack a value,
//! convert it, scale it and multiply it. Instructions per value and launches are our assumptions.

use super::{Architecture, Gpu};
use crate::model::CostModel;

/// Instructions of all lanes per second: 108 processors, 64 lanes, 1.41 GHz (A100's white paper, whose
/// 19.5 TFLOPS count a fused multiply-add twice).
pub const A100_LANES_PER_S: f64 = 108.0 * 64.0 * 1.41e9;
/// Nanoseconds of the host per kernel launch. Our assumption.
const LAUNCH_NS: f64 = 5_000.0;

/// A format and its kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvKernels {
    /// Bits of a value with its scales.
    pub bits: f64,
    /// Mean number of a request's latest tokens that stay at 16 bits.
    pub full_tokens: f64,
    /// Instructions of a lane per value that attention reads.
    pub instructions: f64,
    /// Bytes that sparse outliers add to a read of a value: partly used sectors.
    pub sparse_bytes: f64,
    /// Kernels per layer of a step beside those of 16-bit attention.
    pub step_launches: f64,
    /// Kernels per layer that each request needs for itself.
    pub request_launches: f64,
}

/// 16 bits, as in vLLM.
pub const FULL: KvKernels = KvKernels {
    bits: 16.0,
    full_tokens: 0.0,
    instructions: 1.0,
    sparse_bytes: 0.0,
    step_launches: 0.0,
    request_launches: 0.0,
};
/// QServe (MLSys 2025): 4 bits, and a scale and a zero of 16 bits per head of 128. It packs two values
/// per 16-bit instruction, so that its attention is bound by memory.
pub const QSERVE: KvKernels = KvKernels { bits: 4.25, instructions: 3.0, ..FULL };
/// KIVI (ICML 2024): 4 bits, and a scale and a zero of 16 bits per 32 values. The latest 128 tokens stay
/// at 16 bits: V all of them, K on average half, as it is quantized in whole groups of 128. Its kernels
/// serve a batch and are apart from each other: quantize, append, two products, a softmax.
pub const KIVI: KvKernels = KvKernels { bits: 5.0, full_tokens: 96.0, instructions: 6.0, step_launches: 12.0, ..FULL };
/// KVQuant (NeurIPS 2024): 4-bit levels from a table, and 1 % outliers with 16 bits of value and of index.
/// An outlier reads or adds one sector of 32 bytes. K is rotated at each read. The published
/// deployment flattens K of a step, so each request launches kernels: for K and V an append, a search of
/// outliers and a product.
pub const KVQUANT: KvKernels =
    KvKernels { bits: 4.32, instructions: 8.0, sparse_bytes: 0.01 * 32.0, request_launches: 6.0, ..FULL };

impl KvKernels {
    /// Bytes of a token's K and V.
    #[must_use]
    pub fn bytes_per_token(&self, model: &Architecture) -> u64 {
        (values(model) * self.bits / 8.0) as u64
    }

    /// Bytes that a request takes beyond those of its tokens.
    #[must_use]
    pub fn bytes_per_request(&self, model: &Architecture) -> u64 {
        (self.full_tokens * values(model) * (16.0 - self.bits) / 8.0) as u64
    }

    /// The cost of steps with this format, from that with 16 bits on `gpu`.
    #[must_use]
    pub fn cost(&self, cost: &CostModel, gpu: &Gpu, model: &Architecture) -> CostModel {
        let device = &gpu.device;
        let bytes_per_s = device.memory_bytes_per_s as f64 * device.memory_percent as f64 / 100.0;
        let (values, layers) = (values(model), model.layers as f64);
        let read = (self.bits / 8.0 + self.sparse_bytes) / bytes_per_s;
        let context = values * read.max(self.instructions / A100_LANES_PER_S);
        let full = self.bytes_per_request(model) as f64 / bytes_per_s;
        CostModel {
            step_ns: cost.step_ns + (layers * self.step_launches * LAUNCH_NS) as u64,
            request_ns: cost.request_ns + (layers * self.request_launches * LAUNCH_NS + 1e9 * full) as u64,
            context_ps: (1e12 * context) as u64,
            ..*cost
        }
    }
}

/// Values of K and V of a token.
fn values(model: &Architecture) -> f64 {
    (2 * model.layers * model.kv_heads * model.head_dim) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Roofline;
    use crate::hardware::a100::A100_80;
    use crate::hardware::architecture::SPECKV_MODELS;

    fn context_ps(kernels: &KvKernels) -> f64 {
        let architecture = SPECKV_MODELS[1];
        let cost = Roofline { gpu: A100_80, gpus: 1, architecture }.cost_model(64.0);
        kernels.cost(&cost, &A100_80, &architecture).context_ps as f64
    }

    #[test]
    fn reads_bound_qserve_and_instructions_bound_kivi() {
        let full = context_ps(&FULL);
        assert!((context_ps(&QSERVE) / full - 4.25 / 16.0).abs() < 1e-3);
        // Six instructions against two bytes.
        let expected = (6.0 / A100_LANES_PER_S) / (2.0 / (2.039e12 * 0.8));
        assert!((context_ps(&KIVI) / full - expected).abs() < 1e-3);
        // KVQuant's authors report products up to 1.7 times as fast as at 16 bits.
        assert!((1.2..1.8).contains(&(full / context_ps(&KVQUANT))));
    }

    #[test]
    fn the_latest_tokens_stay_whole() {
        let llama = SPECKV_MODELS[1];
        assert_eq!(FULL.bytes_per_token(&llama), llama.kv_bytes_per_token());
        assert_eq!((FULL.bytes_per_request(&llama), KIVI.bytes_per_token(&llama)), (0, 409_600 * 5 / 8));
        assert_eq!(KIVI.bytes_per_request(&llama), 96 * 409_600 * 11 / 8);
    }

    #[test]
    fn launches_count_per_layer() {
        let architecture = SPECKV_MODELS[1];
        let cost = Roofline { gpu: A100_80, gpus: 1, architecture }.cost_model(64.0);
        let kvquant = KVQUANT.cost(&cost, &A100_80, &architecture);
        assert_eq!(kvquant.request_ns - cost.request_ns, 40 * 6 * 5_000);
        assert_eq!(KIVI.cost(&cost, &A100_80, &architecture).step_ns - cost.step_ns, 40 * 12 * 5_000);
    }
}
