//! Tender (ISCA 2024): systolic arrays with 4-bit channels in groups, whose scales are powers of two
//! apart, so that accumulating shifts instead of dequantizing. Oaken §6.1 gives it an A100's memory and
//! arithmetic, and quantizes KV only.

use super::oaken::{OAKEN_HBM, Oaken};

/// The accelerator: 312 TFLOPS, 80 GB, 2 TB/s. Scales and orders of channels are per layer, not per
/// token, so a value takes 4 bits. No engines stand between memory and arrays.
pub const TENDER: Oaken = Oaken { flops_per_s: 312e12, kv_bits: [4.0, 0.0], ..OAKEN_HBM };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::architecture::SPECKV_MODELS;

    #[test]
    fn kv_takes_a_quarter_and_no_engines() {
        let llama = &SPECKV_MODELS[1];
        assert_eq!(4 * TENDER.kv_bytes_per_token(llama), llama.kv_bytes_per_token());
        let read = TENDER.kv_bytes_per_token(llama) as f64 * 1e9 / TENDER.burst_bytes_per_s();
        assert!((TENDER.context_ns(llama) - read).abs() < 1e-9);
    }
}
