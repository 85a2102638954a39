//! Token-level batch scheduling (§5.3): each core serves the token of one request, and engines and
//! attention of one request run while another core reads.

use super::Oaken;
use crate::hardware::Architecture;

/// Pieces of a request that a core holds: one is read while the other is dequantized.
const BUFFERS: usize = 2;

/// Attention of one layer for a batch of single tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Nanoseconds until the last request is done.
    pub ns: f64,
    /// Nanoseconds in which the memory is read.
    pub read_ns: f64,
    /// Nanoseconds of the core whose engine dequantizes most.
    pub dequantize_ns: f64,
    /// Nanoseconds without any overlap between the parts of a core.
    pub in_turn_ns: f64,
}

/// Nanoseconds of a request's parts in one layer.
#[derive(Clone, Copy, Debug)]
struct Parts {
    quantize: f64,
    read: f64,
    dequantize: f64,
    attend: f64,
}

impl Oaken {
    /// Nanoseconds of a layer's attention for one token of each request, with so many tokens of context.
    ///
    /// A core quantizes the new token, then reads its request's KV by bursts that have the memory to
    /// themselves, dequantizes it as it comes, and attends as it is dequantized. Cores take requests in
    /// turn, and the memory serves them in that order. A core with a second request reads it while its
    /// engine has the first.
    #[must_use]
    pub fn attention(&self, model: &Architecture, contexts: &[u32]) -> Attention {
        let cores = self.cores as usize;
        let (mut bus, mut end) = (0.0_f64, 0.0_f64);
        let mut engines = vec![Core::default(); cores];
        let mut of_core = vec![(0.0, 0.0); cores];
        for (request, context) in contexts.iter().enumerate() {
            let parts = self.parts(model, f64::from(*context));
            let core = &mut engines[request % cores];
            let free = core.free[0];
            // The new token's vectors are quantized before its request is read; engines are apart.
            core.quantized += parts.quantize;
            let begin = bus.max(free).max(core.quantized);
            bus = begin + parts.read;
            let dequantized = bus.max(begin.max(core.dequantized) + parts.dequantize);
            let attended = dequantized.max(begin.max(core.attended) + parts.attend);
            (core.dequantized, core.attended) = (dequantized, attended);
            core.free.rotate_left(1);
            core.free[BUFFERS - 1] = dequantized;
            end = end.max(attended);
            let sums = &mut of_core[request % cores];
            sums.0 += parts.dequantize;
            sums.1 += parts.quantize + parts.read + parts.dequantize + parts.attend;
        }
        let most = |of: fn(&(f64, f64)) -> f64| of_core.iter().map(of).fold(0.0, f64::max);
        let read_ns = contexts.iter().map(|context| self.parts(model, f64::from(*context)).read).sum();
        Attention { ns: end, read_ns, dequantize_ns: most(|sums| sums.0), in_turn_ns: most(|sums| sums.1).max(read_ns) }
    }

    /// Nanoseconds of a step's attention in all layers for a token of context, by the schedule of `batch` equal
    /// requests: what [`Self::context_ns`] takes for the slower of reads and engines.
    #[must_use]
    pub fn scheduled_context_ns(&self, model: &Architecture, batch: u32, context: u32) -> f64 {
        let attention = self.attention(model, &vec![context; batch as usize]);
        attention.ns * model.layers as f64 / (f64::from(batch) * f64::from(context))
    }

    fn parts(&self, model: &Architecture, context: f64) -> Parts {
        let values = (2 * model.kv_heads * model.head_dim) as f64;
        let of_core = 1e9 * f64::from(self.cores);
        let is_quantized = self.kv_bits[1] > 0.0;
        let engine = |values: f64, per_s: f64| if is_quantized { values * of_core / per_s } else { 0.0 };
        let bytes = self.kv_bytes_per_token(model) as f64 / model.layers as f64;
        Parts {
            quantize: engine(values, self.quantize_per_s),
            read: context * bytes * 1e9 / self.burst_bytes_per_s(),
            dequantize: engine(context * values, self.dequantize_per_s),
            // A product and a sum for each query head: with the keys, and with the values.
            attend: context * (4 * model.heads * model.head_dim) as f64 * of_core
                / (self.flops_per_s * self.flops_share),
        }
    }
}

/// When a core's parts are free.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    quantized: f64,
    dequantized: f64,
    attended: f64,
    /// Its buffers, the one that is free first in front.
    free: [f64; BUFFERS],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::architecture::SPECKV_MODELS;
    use crate::hardware::oaken::{OAKEN_HBM, OAKEN_LPDDR};

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.02
    }

    #[test]
    fn many_requests_take_the_slower_of_reads_and_engines() {
        let llama = &SPECKV_MODELS[0];
        for oaken in [OAKEN_HBM, OAKEN_LPDDR, Oaken { dequantize_per_s: 4e11, ..OAKEN_LPDDR }] {
            let scheduled = oaken.scheduled_context_ns(llama, 64 * oaken.cores, 2_048);
            assert!(near(scheduled, oaken.context_ns(llama)), "{scheduled} {}", oaken.context_ns(llama));
        }
    }

    #[test]
    fn one_request_has_the_engine_of_one_core() {
        let llama = &SPECKV_MODELS[0];
        let one = OAKEN_HBM.attention(llama, &[2_048]);
        let values = (2 * llama.kv_heads * llama.head_dim * 2_048) as f64;
        let engine = values * 1e9 * f64::from(OAKEN_HBM.cores) / OAKEN_HBM.dequantize_per_s;
        assert!(near(one.dequantize_ns, engine) && near(one.ns, engine.max(one.ns)), "{one:?} {engine}");
        assert!(one.ns >= engine && one.ns < one.in_turn_ns, "{one:?}");
        // So few requests are bound by engines that the sum over all cores does not see.
        assert!(OAKEN_HBM.scheduled_context_ns(llama, 1, 2_048) > 10.0 * OAKEN_HBM.context_ns(llama));
    }

    #[test]
    fn a_schedule_ends_between_its_bound_and_one_part_after_the_other() {
        let llama = &SPECKV_MODELS[3];
        for (batch, context) in [(1, 100), (7, 2_048), (64, 300), (65, 300), (100, 1_000), (256, 4_096)] {
            let contexts: Vec<u32> = (0..batch).map(|request| context + request % 5).collect();
            let attention = OAKEN_LPDDR.attention(llama, &contexts);
            assert!(attention.ns >= attention.read_ns.max(attention.dequantize_ns), "{attention:?}");
            assert!(attention.ns <= attention.in_turn_ns + attention.read_ns, "{attention:?}");
        }
    }

    #[test]
    fn nothing_is_dequantized_without_quantized_kv() {
        let llama = &SPECKV_MODELS[0];
        let plain = OAKEN_LPDDR.unquantized().attention(llama, &[1_000; 8]);
        assert_eq!(plain.dequantize_ns, 0.0);
        assert!(plain.ns >= plain.read_ns);
    }
}
