//! What TraCT prints. Its figures have no numbers; where its text gives a direction, the row is a
//! bound; "substantially" is 15 %. No run reads this.

use crate::reproduce::row::Printed;

const LOADS: &[&str] = &["A", "B", "C"];
const LENGTHS: &[f64] = &[1_500.0, 3_000.0, 4_500.0, 6_000.0];
const RATES: &[f64] = &[0.25, 0.5, 1.0, 2.0];

/// All rows.
pub const PRINTED: &[Printed] = &[
    // §2.2
    Printed::new("tract.s2-2.kv-bytes", "KV of a token of Llama 3 405B: 126 layers, 8 heads of 128", "KiB", &[504.0])
        .arithmetic(|| vec![2.0 * 126.0 * 8.0 * 128.0 * 2.0 / 1_024.0]),
    // §1
    Printed::new("tract.s1.request-bytes", "KV of a prompt of Table 1 on Llama 3 8B: hundreds of MB", "MB", &[100.0])
        .at_least()
        .arithmetic(|| vec![4_449.0 * 2.0 * 32.0 * 8.0 * 128.0 * 2.0 / 1e6]),
    // Table 1
    Printed::new("tract.table1.input", "tokens of a prompt", "", &[4_449.0, 2_424.0]).named(&["mean", "deviation"]),
    Printed::new("tract.table1.output", "tokens of an answer", "", &[215.0, 263.0]).named(&["mean", "deviation"]),
    Printed::new("tract.table1.unique", "mean tokens that no other prompt has", "", &[1_073.0, 1_215.0, 1_631.0])
        .named(LOADS),
    // Figure 5
    Printed::new("tract.figure5.median", "median TTFT over NIXL's, no cache: lower", "", &[1.0; 4])
        .less()
        .over("tokens", LENGTHS),
    Printed::new("tract.figure5.p99", "99th percentile of TTFT over NIXL's, no cache: lower", "", &[1.0; 4])
        .less()
        .over("tokens", LENGTHS),
    // Figure 6
    Printed::new("tract.figure6.requests", "throughput over NIXL's, no cache: comparable", "", &[1.0; 4])
        .over("requests/s", RATES),
    Printed::new("tract.figure6.prompts", "prefill throughput over NIXL's, no cache: comparable", "", &[1.0; 4])
        .over("requests/s", RATES),
    // Figure 7
    Printed::new("tract.figure7.peak", "peak throughput over LMCache's: up to", "", &[1.6]).neutral(1.0),
    Printed::new("tract.figure7.lmcache", "throughput over LMCache's: higher", "", &[1.0; 3]).more().named(LOADS),
    Printed::new("tract.figure7.nixl", "throughput over NIXL's: higher", "", &[1.0; 3]).more().named(LOADS),
    Printed::new("tract.figure7.all-lmcache", "throughput over LMCache's at all load levels: higher", "", &[1.0; 3])
        .more()
        .over("requests/s", &[0.5, 1.0, 2.0]),
    Printed::new("tract.figure7.all-nixl", "throughput over NIXL's at all load levels: higher", "", &[1.0; 3])
        .more()
        .over("requests/s", &[0.5, 1.0, 2.0]),
    // Figure 8
    Printed::new("tract.figure8.lmcache", "hit rate over LMCache's: comparable", "", &[1.0; 3]).named(LOADS),
    Printed::new("tract.figure8.unique", "hit rate over A's: fewer with more unique tokens", "", &[1.0; 2])
        .less()
        .named(&["B", "C"]),
    // Figure 9
    Printed::new("tract.figure9.mean-nixl", "NIXL's mean TTFT over TraCT's: up to", "", &[9.83]).neutral(1.0),
    Printed::new("tract.figure9.mean-lmcache", "LMCache's mean TTFT over TraCT's: up to", "", &[9.83]).neutral(1.0),
    Printed::new("tract.figure9.p99-nixl", "99th percentile of NIXL's TTFT over TraCT's: up to", "", &[6.2])
        .neutral(1.0),
    Printed::new("tract.figure9.p99-lmcache", "99th percentile of LMCache's TTFT over TraCT's: up to", "", &[6.2])
        .neutral(1.0),
    // Figure 10
    Printed::new("tract.figure10.read-tract", "TraCT's decode read at 3 over 0.5 requests/s: constant", "", &[1.0]),
    Printed::new("tract.figure10.read-lmcache", "LMCache's decode read at 3 over 0.5 requests/s: grows", "", &[1.0])
        .more(),
    Printed::new("tract.figure10.write", "prefill write over LMCache's: less", "", &[1.0]).less(),
    Printed::new("tract.figure10.scheduling", "wait for the prefill engine over NIXL's: less", "", &[1.0]).less(),
    Printed::new("tract.figure10.compute", "prefill computation over NIXL's: less", "", &[1.0]).less(),
    Printed::new("tract.figure10.transfer", "part of transfers in LMCache's time to the first token", "%", &[50.0])
        .at_least(),
    // Figure 11
    Printed::new(
        "tract.figure11.prefill",
        "busy part of the prefill engine over LMCache's: substantially less",
        "",
        &[0.85],
    )
    .at_most(),
    Printed::new(
        "tract.figure11.decode",
        "busy part of the decode engine over LMCache's: substantially less",
        "",
        &[0.85],
    )
    .at_most(),
    Printed::new("tract.figure11.rx", "receive rate of the decode engine over LMCache's: higher", "", &[1.0]).more(),
    Printed::new(
        "tract.figure11.prefill-rx",
        "LMCache's receive rate of the prefill engine over TraCT's: higher",
        "",
        &[1.0],
    )
    .more(),
    Printed::new("tract.figure11.tx", "bytes that the prefill engine sends over LMCache's: less", "", &[1.0]).less(),
    Printed::new("tract.figure11.power", "power over LMCache's: less", "", &[1.0]).less(),
    // §3.3
    Printed::new("tract.s3-3.hosts", "lock latency: bounded by the hosts", "", &[]),
    // §3.4: "A subsequent mfence enforces ordering of CPU instructions but does not ensure that pending flushes or
    // stores have propagated". Intel's manual (volume 2, CLFLUSHOPT) orders it by MFENCE.
    Printed::new("tract.s3-4.flush", "flushes by clflushopt that a following mfence orders: not all", "", &[]),
    // §4.2 and §4.4
    Printed::new(
        "tract.s4-2.table",
        "time to insert a block into a tree over that into the hash table: more",
        "",
        &[1.0],
    )
    .more(),
    Printed::new("tract.s4-4.pinned", "copies from a pinned region over those that bounce: faster", "", &[1.0]).more(),
];
