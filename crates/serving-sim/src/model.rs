//! The cost model: durations of engine steps and of transfers.
//!
//! Every step reads all weights once, reads the KV that its tokens attend to, and multiplies. A GPU
//! overlaps memory and arithmetic, so the longer of the two is the step's time (the roofline).
//! Prompts are bound by arithmetic, answers by memory. The host's time to prepare a step is added.

pub mod cache_engine;
mod calibration;
mod devices;

pub use calibration::{Calibration, CalibrationError, Machine, Sample};
pub use devices::{
    CXL, DEVICES, Device, MODELS, ModelShape, NIAGARA, NIAGARA_L3, NVME_L4, NVME_L4_WRITE, PCIE_5, RDMA_100G,
    SPECKV_L3, TierLink,
};

use crate::kernel::Time;
use serde::Serialize;

/// A link that carries one transfer at a time, in the order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Bandwidth in bytes per second.
    pub bytes_per_s: u64,
    /// Nanoseconds from the request to the first byte.
    pub latency_ns: u64,
}

impl Link {
    /// Nanoseconds of a transfer of `bytes` bytes; 0 for 0 bytes.
    ///
    /// # Panics
    /// Panics if the link has no bandwidth.
    #[must_use]
    pub fn time(&self, bytes: u64) -> Time {
        if bytes == 0 {
            return 0;
        }
        self.latency_ns + (u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s)) as u64
    }
}

/// The work of a step, summed over its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Number of requests with a part in the step.
    pub requests: u64,
    /// Number of tokens computed.
    pub tokens: u64,
    /// Number of pairs of a computed token and a token that it attends to.
    pub pairs: u64,
    /// Number of tokens with KV that the step reads: for each request, the tokens that its last
    /// token attends to.
    pub context: u64,
}

impl StepWork {
    /// Adds `new` tokens of a request that has `computed` tokens already.
    #[inline]
    pub fn add(&mut self, computed: u32, new: u32) {
        let (computed, new) = (u64::from(computed), u64::from(new));
        self.requests += 1;
        self.tokens += new;
        self.pairs += new * computed + new * (new + 1) / 2;
        self.context += computed + new;
    }

    /// As [`Self::add`], for a model whose tokens attend to the latest `window` tokens only.
    #[inline]
    pub fn add_within(&mut self, computed: u32, new: u32, window: Option<u32>) {
        let Some(window) = window else { return self.add(computed, new) };
        let (computed, new, window) = (u64::from(computed), u64::from(new), u64::from(window));
        let pairs = |tokens: u64| {
            let short = tokens.min(window);
            short * (short + 1) / 2 + (tokens - short) * window
        };
        self.requests += 1;
        self.tokens += new;
        self.pairs += pairs(computed + new) - pairs(computed);
        self.context += (computed + new).min(window);
    }
}

/// Time of a step as an integer function of its work. Rates are in picoseconds, so that rounding is
/// at most one part in a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CostModel {
    /// Nanoseconds per step.
    pub step_ns: u64,
    /// Nanoseconds per request of the step.
    pub request_ns: u64,
    /// Picoseconds of arithmetic per token, without attention.
    pub token_ps: u64,
    /// Picoseconds of arithmetic per pair.
    pub pair_ps: u64,
    /// Picoseconds to read the weights.
    pub weights_ps: u64,
    /// Picoseconds to read the KV of a token.
    pub context_ps: u64,
    /// Picoseconds to read the KV of a token that arithmetic does not hide. They are added to the
    /// longer of arithmetic and memory.
    pub exposed_context_ps: u64,
    /// Picoseconds that the copy of a streamed token's KV takes from the computation, where both use the
    /// same processors. 0: copies run beside it.
    pub streamed_ps: u64,
    /// Latest tokens that a token attends to. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u32>,
}

impl CostModel {
    /// The roofline of a model on a device.
    #[must_use]
    pub fn roofline(device: &Device, shape: &ModelShape) -> Self {
        let ps = |amount: u64, per_s: u64, percent: u64| {
            (u128::from(amount) * 100 * 1_000_000_000_000 / (u128::from(per_s) * u128::from(percent))) as u64
        };
        Self {
            step_ns: device.step_ns,
            request_ns: device.request_ns,
            token_ps: ps(2 * shape.active_parameters, device.flops, device.flops_percent),
            pair_ps: ps(shape.flops_per_pair(), device.flops, device.flops_percent),
            weights_ps: ps(shape.weight_bytes(), device.memory_bytes_per_s, device.memory_percent),
            context_ps: ps(shape.kv_bytes_per_token(), device.memory_bytes_per_s, device.memory_percent),
            exposed_context_ps: 0,
            streamed_ps: 0,
            window_tokens: None,
        }
    }

    /// Nanoseconds of a step.
    #[must_use]
    #[inline]
    pub fn step(&self, work: &StepWork) -> Time {
        let arithmetic =
            u128::from(work.tokens) * u128::from(self.token_ps) + u128::from(work.pairs) * u128::from(self.pair_ps);
        let memory = u128::from(self.weights_ps) + u128::from(work.context) * u128::from(self.context_ps);
        let exposed = u128::from(work.context) * u128::from(self.exposed_context_ps);
        self.step_ns + work.requests * self.request_ns + ((arithmetic.max(memory) + exposed) / 1_000) as u64
    }

    /// Nanoseconds to compute one more token of a prompt in a large chunk. This is the later cost
    /// of a dropped token.
    #[must_use]
    pub const fn recompute_token_ns(&self) -> u64 {
        self.token_ps / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_bound_by_arithmetic_and_answers_by_memory() {
        let (device, shape) =
            (Device::named("a100").expect("a preset"), ModelShape::named("llama-8b").expect("a preset"));
        let cost = CostModel::roofline(device, shape);
        let mut prompt = StepWork::default();
        prompt.add(0, 8_192);
        // 16 TFLOP per thousand tokens, at 50 % of 312 TFLOPS, and a little attention.
        let expected = 8_192.0 * 2.0 * 8.03e9 / 156e12 * 1e9;
        let taken = (cost.step(&prompt) - cost.step_ns) as f64;
        assert!((1.0..1.2).contains(&(taken / expected)), "{taken} ns, {expected} ns");
        let mut answer = StepWork::default();
        (0..32).for_each(|_| answer.add(2_000, 1));
        let bytes = 16.06e9 + 32.0 * 2_001.0 * 131_072.0;
        let expected = bytes / (2.039e12 * 0.8) * 1e9;
        let taken = (cost.step(&answer) - cost.step_ns - 32 * cost.request_ns) as f64;
        assert!((0.99..1.01).contains(&(taken / expected)), "{taken} ns, {expected} ns");
    }

    #[test]
    fn a_window_bounds_what_a_token_attends_to() {
        let work = |parts: &[(u32, u32)], window| {
            let mut work = StepWork::default();
            parts.iter().for_each(|&(computed, new)| work.add_within(computed, new, window));
            work
        };
        let mut all = StepWork::default();
        all.add(100, 28);
        assert_eq!(work(&[(100, 28)], None), all);
        assert_eq!(work(&[(100, 28)], Some(128)), all, "a window of all tokens");
        // By counting: token number `at` attends to itself and to those before it, at most 50.
        let pairs: u64 = (21..=80).map(|at: u64| at.min(50)).sum();
        let windowed = work(&[(20, 60)], Some(50));
        assert_eq!((windowed.pairs, windowed.context, windowed.tokens), (pairs, 50, 60));
        assert_eq!(work(&[(1_000, 1)], Some(50)).pairs, 50);
    }

    #[test]
    fn links_take_latency_and_bytes() {
        let link = Link { bytes_per_s: 10_000_000_000, latency_ns: 640 };
        assert_eq!((link.time(0), link.time(1), link.time(1 << 20)), (0, 640, 640 + 104_857));
    }
}
