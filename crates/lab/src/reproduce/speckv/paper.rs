//! What CXL-SpecKV prints, and what its other numbers make of it. No run reads this.

use crate::reproduce::row::Printed;

const DEPTHS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

/// All rows.
pub const PRINTED: &[Printed] = &[
    // §3.1
    Printed::new("speckv.s3-1.kv-bytes", "KV of LLaMA-2 70B, 32 requests of 2,048 tokens", "GB", &[640.0])
        .implied(kv_by_formula),
    // Table 3
    Printed::new("speckv.table3.hit-rate", "prefetch hit rate, sparse", "%", &[94.7]),
    Printed::new("speckv.table3.hit-rate-dense", "prefetch hit rate, dense", "%", &[94.7]),
    Printed::new("speckv.table3.coverage", "prefetch coverage", "%", &[96.3]),
    Printed::new("speckv.table3.precision", "prefetch precision", "%", &[87.2]),
    Printed::new("speckv.table3.prefetch-latency", "mean prefetch latency", "ns", &[285.0]),
    Printed::new("speckv.table3.synchronous-latency", "synchronous fetch on a miss", "ns", &[1_850.0]),
    Printed::new("speckv.table3.effective-latency-ns", "effective mean latency", "ns", &[383.0])
        .implied(|| vec![0.947 * 285.0 + 0.053 * 1_850.0]),
    Printed::new("speckv.table3.effective-latency", "effective over synchronous latency", "", &[383.0 / 1_850.0])
        .neutral(1.0),
    Printed::new("speckv.table3.link-use", "use of the CXL link, sparse", "%", &[72.4]),
    Printed::new("speckv.table3.link-use-dense", "use of the CXL link, dense", "%", &[72.4]),
    Printed::new("speckv.table3.fpga-memory-use", "use of the FPGA's HBM", "%", &[68.7]),
    // Table 8
    Printed::new("speckv.table8.hit-rate", "hit rate", "%", &HIT_RATE).over("k", DEPTHS),
    Printed::new("speckv.table8.precision", "precision", "%", &PRECISION).over("k", DEPTHS),
    Printed::new("speckv.table8.throughput", "throughput over that of k = 4", "", &THROUGHPUT_OVER_4).over("k", DEPTHS),
    Printed::new("speckv.table8.latency", "latency over that of k = 4", "", &LATENCY_OVER_4).over("k", DEPTHS),
    Printed::new("speckv.table8.precision-of-tokens", "precision of a token predictor", "%", &PRECISION)
        .over("k", DEPTHS),
    Printed::new("speckv.table8.throughput-dense", "throughput over that of k = 4, dense", "", &THROUGHPUT_OVER_4)
        .over("k", DEPTHS),
    Printed::new("speckv.table8.batch", "batch of 64 as throughput times latency", "", &[64.0; 5])
        .over("k", DEPTHS)
        .implied(|| THROUGHPUT.iter().zip(LATENCY_MS).map(|(tokens, ms)| tokens * ms / 1e3).collect()),
    // Figure 3
    Printed::new("speckv.figure3.waiting", "memory's part of a token's time, dense", "%", &[6.6, 37.0, 10.6])
        .named(&["GPU only", "CXL without speculation", "SpecKV"])
        .implied(|| vec![100.0 * 1.2 / 18.3, 100.0 * 8.7 / 23.5, 100.0 * 2.1 / 19.8]),
    Printed::new("speckv.figure3.waiting-sparse", "memory's part of a token's time, sparse", "%", &[37.0, 10.6])
        .named(&["CXL without speculation", "SpecKV"]),
    Printed::new("speckv.figure3.hidden", "latency hidden by prefetch, dense", "%", &[76.0])
        .neutral(0.0)
        .implied(|| vec![100.0 * (8.7 - 2.1) / 8.7]),
    Printed::new("speckv.figure3.hidden-sparse", "latency hidden by prefetch, sparse", "%", &[76.0]).neutral(0.0),
    // §4.2
    Printed::new("speckv.s4-2.no-speculation", "throughput over no speculation, dense", "", &[1.85]).neutral(1.0),
    Printed::new("speckv.s4-2.no-speculation-sparse", "throughput over no speculation, sparse", "", &[1.85])
        .neutral(1.0),
];

/// Table 8, for k = 1, 2, 4, 8, 16.
const HIT_RATE: [f64; 5] = [87.2, 92.3, 94.7, 95.8, 96.4];
const PRECISION: [f64; 5] = [96.1, 93.5, 87.2, 78.3, 68.7];
const THROUGHPUT: [f64; 5] = [1_287.0, 1_426.0, 1_549.0, 1_573.0, 1_581.0];
const LATENCY_MS: [f64; 5] = [21.4, 20.2, 19.8, 19.6, 19.7];
const THROUGHPUT_OVER_4: [f64; 5] = over_4(THROUGHPUT);
const LATENCY_OVER_4: [f64; 5] = over_4(LATENCY_MS);

const fn over_4(of: [f64; 5]) -> [f64; 5] {
    [of[0] / of[2], of[1] / of[2], 1.0, of[3] / of[2], of[4] / of[2]]
}

/// §3.1's formula with its own numbers.
fn kv_by_formula() -> Vec<f64> {
    vec![2.0 * 80.0 * 32.0 * 2_048.0 * 8_192.0 * 2.0 / 1e9]
}
