//! What Oaken prints, and what its other numbers make of it. Figures without numbers give bounds by
//! the directions in the text. No run reads this.

use crate::reproduce::row::Printed;

const LLAMAS: &[&str] = &["7B", "13B", "70B"];
const GROUPS: &[&str] = &[
    "4/90/6:5",
    "90/10:5",
    "10/90:5",
    "4/90/3/3:5",
    "2/2/90/6:5",
    "2/2/90/3/3:5",
    "4/90/3/3:4",
    "2/2/90/6:4",
    "2/2/90/3/3:4",
];

/// A system scales if twice the batch serves more than this; rows call less than this saturated.
const SCALES: f64 = 1.15;
const TRACES: &[&str] = &["Conversation", "BurstGPT"];

/// All rows.
pub const PRINTED: &[Printed] = &[
    // Table 1
    Printed::new("oaken.table1.bandwidth", "memory bandwidth", "TB/s", &[2.0, 1.1]).named(&["A100", "Oaken-LPDDR"]),
    // The abstract's and §1's 1.58 is over an A100 with quantization, which is QServe in §6.2: oaken.figure11.qserve.
    // Figure 1
    Printed::new("oaken.figure1.bandwidth", "effective bandwidth, Oaken-HBM over an A100: more", "", &[1.0]).more(),
    Printed::new("oaken.figure1.capacity", "effective capacity, Oaken-LPDDR over an A100: more", "", &[1.0]).more(),
    Printed::new("oaken.figure1.throughput", "throughput over the best alternative: higher", "", &[1.0; 2])
        .more()
        .named(&["Llama2-13B", "OPT-30B"]),
    // §3.3: "largely offsets"
    Printed::new("oaken.s3-3.offset", "gain over 16 bits that is left of the bits' own: less than half", "", &[0.5; 2])
        .at_most()
        .named(&["KVQuant", "KIVI"]),
    // Figure 3
    Printed::new("oaken.figure3.generation", "use of the cores in generation over prefill: less", "", &[1.0; 2])
        .less()
        .named(&["one request", "batch of 64"]),
    Printed::new("oaken.figure3.attention", "use of the cores in attention over projections: less", "", &[1.0])
        .less(),
    // Figure 4
    Printed::new("oaken.figure4.small", "HBM over LPDDR, Llama2-13B, batch of 16: more", "", &[1.0]).more(),
    Printed::new("oaken.figure4.large", "LPDDR over HBM, OPT-30B, batch of 128: more", "", &[1.0]).more(),
    Printed::new("oaken.figure4.sublinear", "Llama2-13B at twice the batch: less than twice", "", &[2.0; 6])
        .at_most()
        .named(&["HBM, 32", "64", "128", "LPDDR, 32", "64", "128"]),
    // Figure 5
    Printed::new("oaken.figure5.memory", "KV's part of memory, Llama2-13B, batch of 64: dominates", "%", &[50.0])
        .at_least(),
    Printed::new("oaken.figure5.gain", "gain of 4-bit KV over that of 4-bit weights, batch of 64: larger", "", &[1.0])
        .more(),
    Printed::new("oaken.figure5.weights", "gain of 4-bit weights, batch of 64: minimal, read as 15 %", "", &[1.15])
        .at_most(),
    // Figure 6
    Printed::new("oaken.figure6.range", "range of K and V on other texts over Wikitext2's: consistent", "", &[1.0]),
    Printed::new("oaken.figure6.channels", "largest 4 % of values in channels that hold no more than a tenth of them", "%", &[])
        ,
    // §4.3 and §6.1
    Printed::new("oaken.s6-1.profiling", "inferences and minutes of offline profiling", "", &[100.0, 10.0])
        .named(&["inferences", "minutes"]),
    // Figure 11
    Printed::new("oaken.figure11.vllm", "Oaken-LPDDR over vLLM, batch of 256, mean of models", "", &[1.79])
        .neutral(1.0),
    Printed::new("oaken.figure11.qserve", "Oaken-LPDDR over QServe, batch of 256, mean of models", "", &[1.58])
        .neutral(1.0),
    Printed::new("oaken.figure11.kvquant", "Oaken-LPDDR over KVQuant, batch of 256, mean of models: more", "", &[1.0])
        .more(),
    Printed::new("oaken.figure11.kivi", "Oaken-LPDDR over KIVI, batch of 256, mean of models: more", "", &[1.0])
        .more(),
    Printed::new("oaken.figure11.tender", "Oaken-LPDDR over Tender, batch of 256, mean of models: more", "", &[1.0])
        .more(),
    Printed::new(
        "oaken.figure11.tender-saturation",
        "Tender at a batch of 256 over 128, Llama2-13B: saturated",
        "",
        &[1.0],
    ),
    Printed::new("oaken.figure11.baselines", "Oaken-HBM over others, Llama2-7B, batch of 16: more", "", &[1.0; 5])
        .more()
        .named(&["vLLM", "KVQuant", "KIVI", "QServe", "Tender"]),
    Printed::new("oaken.figure11.large-models", "requests of 2K that Oaken-HBM holds: none", "", &[0.0; 2])
        .at_most()
        .named(&["Mixtral-8x7B", "Llama2-70B"]),
    Printed::new("oaken.figure11.sweep", "Oaken-LPDDR over itself at half the batch, mean of models: scales", "", &[SCALES; 4])
        .at_least()
        .neutral(1.0)
        .over("batch", &[32.0, 64.0, 128.0, 256.0]),
    Printed::new("oaken.figure11.opt", "Oaken-LPDDR over vLLM, batch of 256: more", "", &[1.0; 3])
        .more()
        .named(&["OPT-6.7B", "OPT-13B", "OPT-30B"]),
    Printed::new("oaken.figure11.gqa", "gain with grouped-query attention over that without: less", "", &[1.0])
        .less(),
    Printed::new("oaken.figure11.gqa-saturation", "vLLM at a batch of 256 over 128: saturated", "", &[1.0; 3])
        .named(&["Mistral-7B", "Mixtral-8x7B", "Llama2-70B"]),
    Printed::new("oaken.figure11.hbm", "Oaken-HBM over Oaken-LPDDR, batch of 16: more", "", &[1.0; 2])
        .more()
        .named(&["Llama2-7B", "Llama2-13B"]),
    Printed::new("oaken.figure11.saturation", "vLLM at a batch of 256 over 128, Llama2-13B: saturated", "", &[1.0]),
    Printed::new("oaken.figure11.scaling", "Oaken-LPDDR at a batch of 256 over 128, Llama2-13B: scales", "", &[SCALES])
        .at_least()
        .neutral(1.0),
    // Table 2
    Printed::new("oaken.table2.perplexity", "Oaken's perplexity, Llama2", "", &[5.53, 4.93, 3.34]).named(LLAMAS),
    Printed::new("oaken.table2.perplexity-others", "Oaken's perplexity", "", &[10.88, 10.16, 9.58, 5.35, 3.90]).named(&[
        "OPT-6.7B",
        "OPT-13B",
        "OPT-30B",
        "Mistral-7B",
        "Mixtral-8x7B",
    ]),
    Printed::new("oaken.table2.perplexity-rivals", "others' perplexity, Llama2-7B", "", &[5.47, 5.49, 5.50, 6.42, 5.62, 5.67])
        .named(&["original", "KVQuant", "KIVI", "Tender", "Atom", "QServe"]),
    Printed::new("oaken.table2.accuracy", "accuracy of Oaken, Llama2: PIQA, Winogrande, Hellaswag", "%", &OAKEN)
        .named(TASKS),
    Printed::new("oaken.table2.accuracy-rivals", "accuracy of QServe, which is the fastest other, on the same", "%", &QSERVE)
        .named(TASKS),
    Printed::new("oaken.table2.bits", "effective bits, Llama2", "bits", &[4.82, 4.82, 4.89]).named(LLAMAS),
    Printed::new("oaken.table2.reduction", "fewer bits than 16: up to", "%", &[70.0])
        .arithmetic(|| vec![100.0 * (1.0 - 4.82 / 16.0)]),
    // The paper does not define its average. Means that include perplexities give some of the four, none all.
    Printed::new(
        "oaken.table2.averages",
        "mean differences, read as points of the nine accuracies; KIVI's 78.07 for 70B on PIQA, the value of its 7B, may \
         be a misprint",
        "",
        &[0.87, 0.54, 0.32, 1.38],
    )
    .named(&["original over Oaken", "KVQuant over Oaken", "KIVI over Oaken", "Oaken over QServe"])
    .arithmetic(|| {
        [(&ORIGINAL, &OAKEN), (&KVQUANT, &OAKEN), (&KIVI, &OAKEN), (&OAKEN, &QSERVE)]
            .map(|(a, b)| mean_difference(a, b))
            .to_vec()
    }),
    Printed::new("oaken.table2.rivals", "effective bits of others, Llama2-7B", "bits", &[4.82, 4.99, 4.07, 4.25])
        .named(&["KVQuant", "KIVI", "Tender", "QServe"]),
    // Table 3
    Printed::new(
        "oaken.table3.bits",
        "effective bits by groups",
        "bits",
        &[4.8, 4.8, 4.8, 5.6, 5.6, 5.6, 4.8, 4.8, 4.8],
    )
    .named(GROUPS)
    // A tenth are outliers with an entry of a byte. In four or five groups, entries of 5 bits take two.
    .implied(|| [8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 8.0, 8.0, 8.0].map(|bits| 4.0 + 0.1 * bits).to_vec()),
    // §4.4
    Printed::new("oaken.s4-4.sparse", "bits of a sparse outlier in mixed precision", "bits", &[23.0])
        .arithmetic(|| vec![16.0 + 6.0 + 1.0]),
    Printed::new(
        "oaken.table3.perplexity",
        "perplexity by groups",
        "",
        &[5.526, 5.804, 5.546, 5.523, 5.516, 5.516, 5.572, 5.531, 5.532],
    )
    .named(GROUPS),
    // Figure 12
    Printed::new("oaken.figure12.perplexity", "perplexity of the chosen ratio", "", &[5.53]),
    Printed::new("oaken.figure12.level", "most over fewest bits of one ratio of outliers: the same", "", &[1.0; 4])
        .over("outliers, %", &[2.0, 5.0, 10.0, 20.0]),
    Printed::new("oaken.figure12.tradeoff", "least loss with 20 % of outliers over that with 2 %: less", "", &[1.0])
        .less(),
    Printed::new("oaken.figure12.pareto", "ratios with less loss than 4/90/6 and no more outliers: none", "", &[0.0])
        .at_most(),
    Printed::new("oaken.figure12.gpu", "time of Oaken's quantization on a GPU over that in its engines: more", "", &[1.0]).more(),
    Printed::new("oaken.figure12.attention", "attention shorter than LPU's", "%", &[55.0]).neutral(0.0),
    Printed::new("oaken.figure12.engines", "part of the latency, batch of 64", "%", &[1.29, 3.23])
        .named(&["quantization", "dequantization"]),
    // Figure 13
    Printed::new("oaken.figure13.short", "QServe over Oaken-LPDDR below 8K: more", "", &[1.0; 3])
        .more()
        .over("tokens", &[1_024.0, 2_048.0, 4_096.0]),
    Printed::new("oaken.figure13.short-vllm", "vLLM over Oaken-LPDDR below 8K: more", "", &[1.0; 3])
        .more()
        .over("tokens", &[1_024.0, 2_048.0, 4_096.0]),
    Printed::new("oaken.figure13.long-lpddr", "Oaken-HBM over Oaken-LPDDR at 8K and 16K: more", "", &[1.0; 2])
        .more()
        .over("tokens", &[8_192.0, 16_384.0]),
    Printed::new("oaken.figure13.long", "Oaken-HBM over QServe at 8K and 16K: more", "", &[1.0; 2])
        .more()
        .over("tokens", &[8_192.0, 16_384.0]),
    Printed::new("oaken.figure13.fits", "requests of 16K that fit: all 16", "", &[16.0; 2])
        .at_least()
        .named(&["Oaken-HBM", "QServe"]),
    Printed::new("oaken.figure13.hbm", "requests of 32K that fit: not all 16", "", &[15.0; 2])
        .at_most()
        .named(&["Oaken-HBM", "QServe"]),
    Printed::new("oaken.figure13.lpddr", "requests of 32K that Oaken-LPDDR holds: all", "", &[16.0]).at_least(),
    // Figure 14
    Printed::new("oaken.figure14.outputs", "mean answer of BurstGPT over Conversation's: longer", "", &[1.0])
        .more(),
    Printed::new("oaken.figure14.gain", "gain over vLLM on BurstGPT over that on Conversation: larger", "", &[1.0])
        .more(),
    Printed::new(
        "oaken.figure14.llama",
        "Oaken-LPDDR over the best other, Llama2-13B, batch of 128: more",
        "",
        &[1.0; 2],
    )
    .more()
    .named(TRACES),
    Printed::new("oaken.figure14.tender", "Tender with padded prompts over without, batch of 128: less", "", &[1.0; 2])
        .less()
        .named(TRACES),
    Printed::new(
        "oaken.figure14.mixtral",
        "Oaken-LPDDR over vLLM, Mixtral, batch of 16: little or no gain",
        "",
        &[1.15; 2],
    )
    .at_most()
    .named(TRACES),
    Printed::new("oaken.figure14.mixtral-growth", "that gain at a batch of 128 over 16: greater", "", &[1.0; 2])
        .more()
        .named(TRACES),
    Printed::new(
        "oaken.figure14.mixtral-advantage",
        "Oaken-LPDDR over vLLM, Mixtral, batch of 128: an advantage",
        "",
        &[1.0; 2],
    )
    .more()
    .named(TRACES),
    Printed::new(
        "oaken.figure14.mixtral-burst",
        "that gain on BurstGPT over that on Conversation, batch of 128: greater",
        "",
        &[1.0],
    )
    .more(),
    // Table 4
    Printed::new("oaken.table4.ratios", "parts of a core's area", "%", &[22.86, 6.03, 1.86, 6.35])
        .named(&["MPU", "VPU", "quantization", "dequantization"])
        .arithmetic(|| [0.908, 0.239, 0.074, 0.252].map(|area| 100.0 * area / 3.971).to_vec()),
    Printed::new("oaken.table4.overhead", "area of both engines", "%", &[8.21]).arithmetic(|| vec![1.86 + 6.35]),
    Printed::new("oaken.table4.power", "less power than an A100's 400 W", "%", &[44.3])
        .arithmetic(|| vec![100.0 * (1.0 - 222.7 / 400.0)]),
    Printed::new("oaken.table4.area", "area of a core", "mm2", &[3.971]),
];

const TASKS: &[&str] = &["PIQA 7B", "13B", "70B", "Winogrande 7B", "13B", "70B", "Hellaswag 7B", "13B", "70B"];

/// Table 2's accuracies: PIQA, Winogrande and Hellaswag on 7B, 13B and 70B each.
const ORIGINAL: [f64; 9] = [79.05, 80.52, 82.70, 69.13, 72.80, 80.20, 75.98, 79.38, 83.82];
const KVQUANT: [f64; 9] = [78.35, 79.33, 82.21, 67.80, 71.74, 77.98, 75.82, 79.25, 83.70];
const KIVI: [f64; 9] = [78.07, 79.05, 78.07, 67.84, 70.96, 76.81, 75.57, 78.97, 83.47];
const QSERVE: [f64; 9] = [77.37, 77.48, 81.77, 65.29, 66.80, 76.09, 74.41, 76.69, 83.24];
const OAKEN: [f64; 9] = [78.29, 79.71, 82.59, 67.64, 70.56, 76.64, 73.72, 78.24, 83.50];

fn mean_difference(a: &[f64; 9], b: &[f64; 9]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a - b).sum::<f64>() / 9.0
}
