//! What CXL-SpecKV prints, and what its other numbers make of it. No run reads this.

use crate::reproduce::row::Printed;

const DEPTHS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

const SYSTEMS: &[&str] = &["GPU only", "CPU offload", "CXL without speculation", "SpecKV"];
const SPREAD: &[&str] = &["least", "mean", "most"];
const ENDS: &[&str] = &["least", "most"];

/// All rows.
pub const PRINTED: &[Printed] = &[
    // Abstract and §1
    Printed::new("speckv.abstract.memory-cost", "costs of memory are reduced by", "", &[2.8]),
    Printed::new("speckv.abstract.accuracy", "accuracy that is preserved", "%", &[99.5]),
    Printed::new("speckv.s1.batches", "larger batches: 64 and 128 over 16", "", &[4.0, 8.0])
        .named(ENDS)
        .arithmetic(|| vec![64.0 / 16.0, 128.0 / 16.0]),
    // §3.1
    Printed::new("speckv.s3-1.kv-bytes", "KV of LLaMA-2 70B, 32 requests of 2,048 tokens", "GB", &[640.0])
        .arithmetic(kv_by_formula),
    Printed::new("speckv.s3-1.sequential", "(i) a token reads positions 0 to t - 1: share of them", "", &[1.0]),
    Printed::new("speckv.s3-1.layers", "(ii) layers are independent of each other", "", &[1.0]),
    Printed::new("speckv.s3-1.read-write", "(iii) reads per write, over the tokens of the context", "", &[1.0]),
    Printed::new("speckv.s3-1.int8", "(iv) accuracy of INT8", "%", &[99.0]).at_least(),
    Printed::new("speckv.s3-1.int8-ratio", "(iv) compression by INT8", "", &[2.0]).neutral(1.0),
    Printed::new("speckv.s3-1.layer-ratios", "(vi) compression of early and late layers", "", &[3.5, 2.75])
        .between(&[(3.0, 4.0), (2.5, 3.0)])
        .neutral(1.0)
        .named(&["first third", "last third"]),
    // §3.2 and §3.4.1
    Printed::new("speckv.s3-2.predictor-bytes", "bytes of the LSTM", "KB", &[128.0]).arithmetic(|| vec![512.0]),
    Printed::new(
        "speckv.s3-4-1.parameters",
        "parameters of two LSTM layers of 128 on 64 inputs",
        "thousands",
        &[128.0],
    )
    .arithmetic(|| vec![lstm_weights() / 1e3]),
    Printed::new("speckv.s3-4-1.bytes", "bytes of 128K parameters in FP16", "KB", &[512.0])
        .arithmetic(|| vec![128.0 * 2.0]),
    // §3.4.2 and §3.4.4
    Printed::new("speckv.eq1.cycles", "latency of a prefetch", "cycles", &[80.0])
        .arithmetic(|| vec![64.0 + 4.0 + 12.0]),
    Printed::new("speckv.eq1.time", "the same, in time", "us", &[10.0]).at_most().arithmetic(|| vec![80.0 / 800.0]),
    Printed::new("speckv.eq1.dsp", "DSP blocks that an LSTM in 64 cycles needs, at two products each", "", &[1_024.0])
        .arithmetic(|| vec![16.0 * lstm_weights() / 64.0 / 2.0]),
    Printed::new("speckv.eq1.dma", "cycles of a copy, by the link's latency", "", &[12.0])
        .arithmetic(|| vec![400.0 * 0.8]),
    Printed::new(
        "speckv.s3-4-2.theta",
        "bandwidth by the formula of throughput, entries of 4 KB: within the link's",
        "GB/s",
        &[64.0],
    )
    .at_most()
    .arithmetic(|| vec![(16.0_f64 / 12.0).min(64e9 / 4_096.0) * 800e6 * 4_096.0 / 1e9]),
    Printed::new("speckv.s3-4-2.stability", "tokens/s below which the link is stable", "tokens/s", &[]),
    Printed::new("speckv.eq2.hiding", "share of models whose copies hide behind two layers (\"most\")", "", &[0.5])
        .at_least(),
    // §3.5
    Printed::new("speckv.s3-5-1.translation", "cycles of an address translation", "", &[4.0]),
    Printed::new("speckv.s3-5-2.bandwidth", "bandwidth of a compression pipeline", "GB/s", &[51.2])
        .implied(|| vec![512.0 / 8.0 * 0.8]),
    Printed::new("speckv.s3-5-2.ratio", "compression of layers", "", &[2.5, 3.2, 4.0]).neutral(1.0).named(SPREAD),
    Printed::new("speckv.s3-5-2.busy", "busy share of a pipeline", "", &[0.98]).at_least(),
    Printed::new("speckv.eq3.critical-path", "cycles through the decompressor", "", &[25.0]),
    Printed::new("speckv.s3-5-3.bypass", "cycles of data that bypasses the decompressor", "", &[5.0]),
    Printed::new("speckv.s3-5-3.mean", "mean cycles with 30 % bypassed", "", &[19.0])
        .implied(|| vec![0.7 * 25.0 + 0.3 * 5.0]),
    Printed::new("speckv.eq4.use", "use of ALMs, registers, M20K and DSP", "%", &[30.5, 14.0, 15.8, 25.9]).arithmetic(
        || {
            [(284_563.0, 933_120.0), (521_847.0, 3_732_480.0), (1_856.0, 11_721.0), (1_024.0, 3_960.0)]
                .map(|(used, all)| 100.0 * used / all)
                .to_vec()
        },
    ),
    Printed::new("speckv.eq4.engines", "engines per FPGA that Table 6 has, by the largest use", "", &[4.0])
        .arithmetic(|| vec![(1.0_f64 / 0.305).floor()]),
    Printed::new("speckv.eq5.arbitration", "weights of the arbiter", "", &[]),
    Printed::new("speckv.eq7.throttle", "bandwidth throttle", "", &[]),
    Printed::new("speckv.eq8.choice", "choice of codecs", "", &[]),
    Printed::new("speckv.eq9.depth", "best depth of prefetch", "", &[4.0]),
    Printed::new(
        "speckv.table1.resources",
        "cells of the cache engine: ALMs, registers, M20K, DSP",
        "",
        &[284_563.0, 521_847.0, 1_856.0, 1_024.0],
    ),
    Printed::new("speckv.table1.frequency", "maximum frequency, by a critical path of 1.0 ns", "MHz", &[812.0])
        .arithmetic(|| vec![1e3 / 1.0]),
    // §3.3.1, §3.5.1 and §3.6
    Printed::new("speckv.s3-3-1.near", "newest tokens of a request in the GPU's memory", "", &[192.0])
        .between(&[(128.0, 256.0)]),
    Printed::new("speckv.s3-5-1.inputs", "hits of the TLB; bank conflicts", "%", &[92.0, 8.0])
        .named(&["at least", "at most"]),
    Printed::new("speckv.s3-6-1.api", "time of a call that allocates, accesses or frees", "ns", &[500.0]).at_most(),
    Printed::new("speckv.s3-6-2.batching", "speedup of m requests in a batch over m: near 1", "", &[1.0]),
    Printed::new("speckv.s3-6-2.polling", "time of an interrupt over that of a poll: much more", "", &[1.0]).more(),
    Printed::new("speckv.s3-6-2.pages", "time of random rows in small pages over that in huge ones: more", "", &[1.0])
        .more(),
    Printed::new("speckv.s3-6-2.numa", "time of memory of another node over the own one's: more", "", &[1.0]).more(),
    // §4.1.1
    Printed::new("speckv.s4-1-1.gpu", "bandwidth of an A100's 80 GB", "TB/s", &[1.6]),
    Printed::new(
        "speckv.s4-1-1.link",
        "raw rate of the GPU's PCIe 4.0 x16: at least what Table 5 uses",
        "GB/s",
        &[46.3],
    )
    .at_least()
    .arithmetic(|| vec![16.0 * 16.0 / 8.0 * 128.0 / 130.0]),
    // Table 2
    Printed::new("speckv.table2.ttft", "time to first token", "ms", &[45.2, 52.7, 46.8, 47.1]).named(SYSTEMS),
    Printed::new("speckv.table2.decode", "time of a token", "ms", &[18.3, 28.6, 23.5, 19.8]).named(SYSTEMS),
    Printed::new("speckv.table2.p95", "95th percentile of it", "ms", &[19.4, 35.4, 27.3, 21.7]).named(SYSTEMS),
    Printed::new("speckv.table2.p99", "99th percentile of it", "ms", &[21.2, 42.8, 31.6, 23.8]).named(SYSTEMS),
    Printed::new(
        "speckv.table2.overhead",
        "overhead over GPU only: TTFT, token, P95, P99",
        "%",
        &[4.2, 8.2, 11.9, 12.3],
    )
    .neutral(0.0)
    .implied(|| {
        [(47.1, 45.2), (19.8, 18.3), (21.7, 19.4), (23.8, 21.2)]
            .map(|(with, without)| 100.0 * (with / without - 1.0))
            .to_vec()
    }),
    Printed::new(
        "speckv.table2.compute",
        "computation of a token, without memory (Figure 3): GPU only, no speculation, SpecKV",
        "ms",
        &[17.1, 17.1, 17.1],
    )
    .arithmetic(|| vec![18.3 - 1.2, 23.5 - 8.7, 19.8 - 2.1]),
    // Table 3
    Printed::new("speckv.table3.hit-rate", "prefetch hit rate, sparse", "%", &[94.7]),
    Printed::new("speckv.table3.hit-rate-dense", "prefetch hit rate, dense", "%", &[94.7]),
    Printed::new("speckv.table3.coverage", "prefetch coverage", "%", &[96.3]),
    Printed::new("speckv.table3.precision", "prefetch precision", "%", &[87.2]),
    Printed::new("speckv.table3.prefetch-latency", "mean prefetch latency", "ns", &[285.0]),
    Printed::new("speckv.table3.synchronous-latency", "synchronous fetch on a miss", "ns", &[1_850.0]),
    Printed::new("speckv.table3.synchronous-by-link", "the same, by 400 ns and 4 KB at 64 GB/s", "ns", &[1_850.0])
        .arithmetic(|| vec![400.0 + 4_096.0 / 64.0]),
    Printed::new("speckv.table3.effective-latency-ns", "effective mean latency", "ns", &[383.0])
        .arithmetic(|| vec![0.947 * 285.0 + 0.053 * 1_850.0]),
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
    Printed::new("speckv.table8.batch", "batch of 64 as throughput times latency", "", &[64.0; 5])
        .over("k", DEPTHS)
        .arithmetic(|| THROUGHPUT.iter().zip(LATENCY_MS).map(|(tokens, ms)| tokens * ms / 1e3).collect()),
    // Figure 3
    Printed::new("speckv.figure3.waiting", "memory's part of a token's time, dense", "%", &[37.0, 10.6])
        .named(&["CXL without speculation", "SpecKV"])
        .implied(|| vec![100.0 * 8.7 / 23.5, 100.0 * 2.1 / 19.8]),
    Printed::new("speckv.figure3.waiting-sparse", "memory's part of a token's time, sparse", "%", &[37.0, 10.6])
        .named(&["CXL without speculation", "SpecKV"]),
    Printed::new("speckv.figure3.hidden", "latency hidden by prefetch, dense", "%", &[76.0])
        .neutral(0.0)
        .implied(|| vec![100.0 * (8.7 - 2.1) / 8.7]),
    Printed::new("speckv.figure3.hidden-sparse", "latency hidden by prefetch, sparse", "%", &[76.0]).neutral(0.0),
    // Table 4
    Printed::new("speckv.table4.batch", "largest batch of 2,048 tokens", "", &[16.0, 48.0, 192.0, 128.0, 384.0])
        .named(CAPACITIES)
        .implied(|| MEMORIES.map(|gigabytes| (gigabytes / (kv_by_formula()[0] / 32.0)).floor()).to_vec()),
    Printed::new("speckv.table4.expansion", "capacity over GPU only", "", &[1.0, 3.0, 12.0, 8.0, 24.0])
        .named(CAPACITIES)
        .implied(|| MEMORIES.map(|gigabytes| gigabytes / MEMORIES[0]).to_vec()),
    Printed::new("speckv.table4.memory", "CXL memory, by four devices of 64 GB", "GB", &[320.0])
        .arithmetic(|| vec![4.0 * 64.0]),
    // Table 5
    Printed::new("speckv.table5.use", "use of bandwidth: GPU memory, CXL link, FPGA memory", "%", &[71.7, 72.4, 68.7])
        .implied(|| vec![100.0 * 1_147.0 / 1_600.0, 100.0 * 46.3 / 64.0, 100.0 * 1_099.0 / 1_600.0]),
    Printed::new("speckv.table5.total", "sum of used bandwidth", "GB/s", &[2_292.0])
        .arithmetic(|| vec![1_147.0 + 46.3 + 1_099.0]),
    Printed::new("speckv.table5.total-use", "used part of the summed peak bandwidth", "%", &[70.2])
        .arithmetic(|| vec![100.0 * 2_292.0 / (1_600.0 + 64.0 + 1_600.0)]),
    Printed::new(
        "speckv.table5.fpga-memory",
        "traffic of the FPGA's memory, by four links and the compression",
        "GB/s",
        &[1_099.0],
    )
    .arithmetic(|| vec![4.0 * 46.3 * 3.21]),
    // Table 6
    Printed::new("speckv.table6.throughput", "throughput of cache engines", "GB/s", &ENGINES).over("engines", COUNTS),
    Printed::new(
        "speckv.table6.speedup",
        "throughput over that of one engine",
        "",
        &[1.0, 798.0 / 412.0, 1_156.0 / 412.0, 1_487.0 / 412.0],
    )
    .over("engines", COUNTS),
    Printed::new("speckv.table6.mean", "mean latency", "ns", &[325.0, 338.0, 362.0, 394.0]).over("engines", COUNTS),
    Printed::new("speckv.table6.p99", "99th percentile of it", "ns", &[485.0, 512.0, 573.0, 658.0])
        .over("engines", COUNTS),
    Printed::new("speckv.table6.efficiency", "efficiency of four engines", "%", &[93.0])
        .neutral(100.0)
        .implied(|| vec![100.0 * 1_487.0 / (4.0 * 412.0)]),
    Printed::new("speckv.table6.growth", "latency of four engines over that of one", "", &[1.21, 1.36])
        .neutral(1.0)
        .named(&["mean", "P99"])
        .implied(|| vec![394.0 / 325.0, 658.0 / 485.0]),
    Printed::new(
        "speckv.eq6.contention",
        "what contention leaves of an engine (eq. 6), by the printed throughputs",
        "%",
        &[100.0, 100.0 * 798.0 / 824.0, 100.0 * 1_156.0 / 1_236.0, 100.0 * 1_487.0 / 1_648.0],
    )
    .neutral(100.0)
    .over("engines", COUNTS),
    Printed::new(
        "speckv.table6.window",
        "throughput of an engine, by its window of 16 and its latency",
        "GB/s",
        &[412.0],
    )
    .arithmetic(|| vec![16.0 * 4_096.0 / 325.0]),
    Printed::new("speckv.table6.pipeline", "throughput of an engine, by its pipeline", "GB/s", &[412.0])
        .arithmetic(|| vec![51.2]),
    // Table 7
    Printed::new("speckv.table7.joules", "energy per token: GPU only, SpecKV", "J", &[0.647, 0.340])
        .implied(|| vec![315.0 / 487.0, 526.0 / 1_549.0]),
    Printed::new("speckv.table7.gain", "energy efficiency over GPU only", "", &[1.90])
        .neutral(1.0)
        .implied(|| vec![0.647 / 0.340]),
    Printed::new("speckv.table7.gpu-power", "power of the GPU: GPU only, SpecKV", "W", &[315.0, 342.0])
        .implied(|| vec![315.0 - 0.0, 526.0 - 184.0]),
    Printed::new("speckv.table7.fpga-power", "power of four FPGAs", "W", &[184.0])
        .implied(|| vec![4.0 * (28.0 + 12.0 + 6.0)]),
    // Table 9
    Printed::new("speckv.table9.ratio", "compression", "", &[1.0, 2.0, 2.73, 3.21]).named(SCHEMES),
    Printed::new("speckv.table9.perplexity", "perplexity of LLaMA-2 70B", "", &[3.32, 3.34, 3.35, 3.36]).named(SCHEMES),
    Printed::new("speckv.table9.loss", "rise of perplexity", "%", &[0.0, 0.6, 0.9, 1.2]).named(SCHEMES).implied(|| {
        [3.32_f64, 3.34, 3.35, 3.36].map(|perplexity| (1e3 * (perplexity / 3.32 - 1.0)).round() / 10.0).to_vec()
    }),
    Printed::new(
        "speckv.table9.entropy",
        "bits of an ideal coder: codes, differences along channels, along tokens",
        "bits",
        &[],
    ),
    Printed::new("speckv.table9.steps", "benefit of differences and of runs", "%", &[36.0, 18.0])
        .neutral(0.0)
        .implied(|| vec![100.0 * (2.73 / 2.0 - 1.0), 100.0 * (3.21 / 2.73 - 1.0)]),
    // Algorithm 2: differences and run lengths are inverted exactly, and a difference of two codes of eight bits
    // has eight bits at least.
    Printed::new(
        "speckv.table9.lossless",
        "rise of perplexity beyond INT8's by steps that lose nothing",
        "%",
        &[0.9 - 0.6, 1.2 - 0.6],
    )
    .neutral(0.0)
    .named(&["differences", "and runs"])
    .arithmetic(|| vec![0.0; 2]),
    Printed::new(
        "speckv.table9.differences",
        "benefit of differences alone, which stay codes of eight bits",
        "%",
        &[36.0],
    )
    .neutral(0.0)
    .arithmetic(|| vec![0.0]),
    // §4.6
    Printed::new("speckv.s4-6.pipelines", "power of the pipelines at 400 GB/s", "W", &[8.0]),
    // §1
    Printed::new("speckv.s1.infrastructure", "lower costs of infrastructure", "%", &[35.0]).between(&[(30.0, 40.0)]),
    Printed::new(
        "speckv.s1.capacity",
        "expansion of capacity, by Table 4's memory and batch without codec",
        "",
        &[4.0, 8.0],
    )
    .named(ENDS)
    .arithmetic(|| vec![320.0 / 80.0, 128.0 / 16.0]),
    // Figure 1
    Printed::new("speckv.figure1.over-gpu-only", "throughput over GPU only", "", &[2.1, 2.4, 3.2])
        .neutral(1.0)
        .named(SPREAD),
    // Figure 2
    Printed::new("speckv.figure2.accuracy", "accuracy of token prediction", "%", &[95.5, 90.0, 81.5])
        .between(&[(94.0, 97.0), (88.0, 92.0), (78.0, 85.0)])
        .named(&["top 4", "top 8", "top 16"]),
    Printed::new("speckv.figure2.order", "accuracy of the top 16 over that of the top 4", "", &[81.5 / 95.5]),
    // Figure 4
    Printed::new("speckv.figure4.cost", "price of a small GPU with four FPGAs", "", &[1.37])
        .arithmetic(|| vec![0.65 + 4.0 * 0.18]),
    Printed::new("speckv.figure4.small-gpu", "its throughput per price, LLaMA-2 70B", "", &[1.75])
        .neutral(1.0)
        .implied(|| vec![2.4 / 1.37]),
    Printed::new("speckv.figure4.small-gpu-34b", "its throughput per price, a model that fits", "", &[1.75])
        .neutral(1.0),
    Printed::new("speckv.figure4.eight-gpus", "throughput per price with eight GPUs", "", &[2.2]).neutral(1.0),
    Printed::new("speckv.figure4.conclusion", "the same in the conclusion", "", &[2.3]).arithmetic(|| vec![2.2]),
    // Figure 5
    Printed::new("speckv.figure5.speckv", "parallel efficiency", "%", &[95.0, 87.0])
        .neutral(100.0)
        .over("GPUs", &[4.0, 8.0]),
    Printed::new("speckv.figure5.gpu-only", "parallel efficiency of GPU only, eight GPUs", "%", &[92.0]).neutral(100.0),
    Printed::new("speckv.figure5.gpu-only-speedup", "speedup of GPU only with eight GPUs", "", &[7.2])
        .arithmetic(|| vec![8.0 * 0.92]),
    // Figure 6
    Printed::new("speckv.figure6.gpu-only-plateau", "batch at which GPU only plateaus", "", &[16.0]),
    Printed::new("speckv.figure6.peak", "batch at which SpecKV peaks", "", &[80.0]).between(&[(64.0, 96.0)]),
    Printed::new("speckv.figure6.fast", "largest batch with P99 below 50 ms", "", &[40.0]).between(&[(32.0, 48.0)]),
    // §4.2
    Printed::new("speckv.s4-2.over-cpu-offload", "throughput over CPU offload", "", &[3.8, 4.3, 5.2])
        .neutral(1.0)
        .named(SPREAD),
    Printed::new("speckv.s4-2.over-compression", "throughput over compression only", "", &[1.8, 2.3])
        .neutral(1.0)
        .named(ENDS),
    Printed::new("speckv.s4-2.over-no-speculation", "throughput over no speculation", "", &[1.6, 2.1])
        .neutral(1.0)
        .named(ENDS),
    Printed::new("speckv.s4-2.llama-70b", "LLaMA-2 70B, chatbot: GPU only, SpecKV", "tokens/s", &[487.0, 1_549.0]),
    Printed::new("speckv.s4-2.llama-70b-gain", "the same as a ratio", "", &[3.2])
        .neutral(1.0)
        .implied(|| vec![1_549.0 / 487.0]),
    Printed::new(
        "speckv.s4-2.gpu-only-batch",
        "GPU only: batch of 16 as throughput times Table 2's latency",
        "",
        &[16.0],
    )
    .arithmetic(|| vec![487.0 * 18.3 / 1e3]),
    Printed::new("speckv.s4-2.no-speculation", "throughput over no speculation, dense", "", &[1.85])
        .between(&[(1.6, 2.1)])
        .neutral(1.0),
    Printed::new("speckv.s4-2.no-speculation-sparse", "the same, sparse", "", &[1.85])
        .between(&[(1.6, 2.1)])
        .neutral(1.0),
];

const CAPACITIES: &[&str] = &["GPU only", "compressed", "CPU offload", "SpecKV", "SpecKV compressed"];
/// Table 4's memory in GB, times the compression where there is one.
const MEMORIES: [f64; 5] = [80.0, 3.0 * 80.0, 1_024.0, 320.0, 3.0 * 320.0];
const COUNTS: &[f64] = &[1.0, 2.0, 3.0, 4.0];
const ENGINES: [f64; 4] = [412.0, 798.0, 1_156.0, 1_487.0];
const SCHEMES: &[&str] = &["FP16", "INT8", "and differences", "and runs"];

/// Weights of two LSTM layers of 128 units on 64 inputs, without the embedding of a vocabulary.
fn lstm_weights() -> f64 {
    4.0 * 128.0 * ((64.0 + 128.0 + 1.0) + (128.0 + 128.0 + 1.0))
}

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
