//! Time of a layer and of a step on GPUs that share a model's tensors: each operator takes the longer
//! of its arithmetic and its memory traffic.

use super::{Architecture, Gpu};
use crate::model::{CostModel, StepWork};

/// A model on GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// One of the GPUs.
    pub gpu: Gpu,
    /// How many share each tensor.
    pub gpus: u32,
    /// The model.
    pub architecture: Architecture,
}

/// Nanoseconds of a layer's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTime {
    /// Q, K, V and output projections.
    pub projections_ns: f64,
    /// Attention over the context.
    pub attention_ns: f64,
    /// MLP or experts.
    pub mlp_ns: f64,
    /// Two all-reduces.
    pub reduce_ns: f64,
}

impl LayerTime {
    /// All parts.
    #[must_use]
    pub fn total_ns(&self) -> f64 {
        self.projections_ns + self.attention_ns + self.mlp_ns + self.reduce_ns
    }
}

impl Roofline {
    fn flops_per_s(&self) -> f64 {
        let device = &self.gpu.device;
        device.flops as f64 * device.flops_percent as f64 / 100.0 * f64::from(self.gpus)
    }

    fn bytes_per_s(&self) -> f64 {
        let device = &self.gpu.device;
        device.memory_bytes_per_s as f64 * device.memory_percent as f64 / 100.0 * f64::from(self.gpus)
    }

    fn operator_ns(&self, flops: f64, bytes: f64) -> f64 {
        1e9 * (flops / self.flops_per_s()).max(bytes / self.bytes_per_s())
    }

    /// One layer of a step.
    #[must_use]
    pub fn layer(&self, work: &StepWork) -> LayerTime {
        let Architecture { hidden, heads, head_dim, experts_used, weight_bytes, .. } = self.architecture;
        let tokens = work.tokens as f64;
        let attention = self.architecture.attention_weights() as f64;
        let expert = self.architecture.expert_weights() as f64;
        let weight = weight_bytes as f64;
        let kv = (self.architecture.kv_bytes_per_token() / self.architecture.layers) as f64;
        // Activations have 16 bits.
        let reduced = tokens * hidden as f64 * 2.0;
        LayerTime {
            projections_ns: self.operator_ns(2.0 * tokens * attention, attention * weight),
            attention_ns: self
                .operator_ns(4.0 * (heads * head_dim) as f64 * work.pairs as f64, work.context as f64 * kv),
            mlp_ns: self.operator_ns(
                2.0 * tokens * expert * experts_used as f64,
                expert * weight * self.architecture.experts_read(tokens),
            ),
            reduce_ns: 2.0 * self.gpu.tensor.all_reduce_ns(reduced, self.gpus),
        }
    }

    /// A whole step: its layers, the output matrix for one token of each request, and the host.
    #[must_use]
    pub fn step_ns(&self, work: &StepWork) -> f64 {
        let Architecture { layers, hidden, vocabulary, weight_bytes, .. } = self.architecture;
        let output = (vocabulary * hidden) as f64;
        let output = self.operator_ns(2.0 * work.requests as f64 * output, output * weight_bytes as f64);
        let host = self.gpu.device.step_ns + work.requests * self.gpu.device.request_ns;
        layers as f64 * self.layer(work).total_ns() + output + host as f64
    }

    /// The same as a function for the serving simulator, for steps of about `tokens` tokens, which
    /// decide how many experts are read and how long the all-reduces take.
    #[must_use]
    pub fn cost_model(&self, tokens: f64) -> CostModel {
        let model = &self.architecture;
        let ps = |amount: f64, per_s: f64| (amount * 1e12 / per_s) as u64;
        let read = model.layers as f64
            * (model.attention_weights() as f64 + model.expert_weights() as f64 * model.experts_read(tokens))
            + (model.vocabulary * model.hidden) as f64;
        let reduced = tokens * model.hidden as f64 * 2.0;
        let reduce_ns = 2.0 * model.layers as f64 * self.gpu.tensor.all_reduce_ns(reduced, self.gpus);
        CostModel {
            step_ns: self.gpu.device.step_ns + reduce_ns as u64,
            request_ns: self.gpu.device.request_ns,
            token_ps: ps(2.0 * model.active_parameters() as f64, self.flops_per_s()),
            pair_ps: ps(4.0 * (model.layers * model.heads * model.head_dim) as f64, self.flops_per_s()),
            weights_ps: ps(read * model.weight_bytes as f64, self.bytes_per_s()),
            context_ps: ps(model.kv_bytes_per_token() as f64, self.bytes_per_s()),
            exposed_context_ps: 0,
            streamed_ps: 0,
            window_tokens: model.window_tokens,
        }
    }

    /// Bytes that the GPUs have for KV beside the weights; 0 if the weights do not fit.
    #[must_use]
    pub const fn kv_bytes(&self) -> u64 {
        (self.gpu.usable_bytes() * self.gpus as u64).saturating_sub(self.architecture.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::a100::A100_80;
    use crate::hardware::architecture::{LLAMA_2_70B, SPECKV_MODELS};

    fn decode(requests: u32, context: u32) -> StepWork {
        let mut work = StepWork::default();
        (0..requests).for_each(|_| work.add(context, 1));
        work
    }

    #[test]
    fn both_functions_agree_on_decode_and_on_prompts() {
        for architecture in [LLAMA_2_70B.int8(), SPECKV_MODELS[12].int8(), SPECKV_MODELS[0]] {
            for gpus in [1, 8] {
                let roofline = Roofline { gpu: A100_80, gpus, architecture };
                let mut prompt = StepWork::default();
                prompt.add(0, 2_048);
                for (work, tokens) in [(decode(32, 384), 32.0), (prompt, 2_048.0)] {
                    let by_layer = roofline.step_ns(&work);
                    let linear = roofline.cost_model(tokens).step(&work) as f64;
                    let ratio = linear / by_layer;
                    assert!((0.85..1.15).contains(&ratio), "{} on {gpus}: {ratio}", architecture.name);
                }
            }
        }
    }

    #[test]
    fn decode_of_a_70b_model_reads_its_weights() {
        let roofline = Roofline { gpu: A100_80, gpus: 1, architecture: LLAMA_2_70B.int8() };
        let ms = roofline.step_ns(&decode(1, 128)) / 1e6;
        let weights = 68.7e9 / (2.039e12 * 0.8) * 1e3;
        assert!((ms - weights - 1.0).abs() < 1.0, "{ms} ms, {weights} ms of weights");
    }
}
