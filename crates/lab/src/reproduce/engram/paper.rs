//! What the Engram paper prints, and what its other numbers make of it. No run reads this.

use crate::reproduce::row::Printed;

const NODES: &[f64] = &[2.0, 4.0, 8.0, 16.0];
const MODELS: &[&str] = &["Qwen3-4B", "Qwen3-8B"];

/// All rows.
pub const PRINTED: &[Printed] = &[
    // §2.2
    Printed::new(
        "engram.s2-2.small",
        "part of the line rate that RDMA reaches with messages of 64 bytes",
        "%",
        &[25.0],
    )
    .at_most(),
    // Table 1 and §3.2
    Printed::new("engram.table1.payload", "bytes of a token and layer", "B", &[5_000.0]),
    Printed::new("engram.table1.segments", "bytes of a token by Figure 3: 8 segments of 320", "B", &[5_000.0])
        .arithmetic(|| vec![8.0 * 320.0]),
    Printed::new("engram.table1.step", "decode step of Qwen3-32B on four H200, batch of 256", "ms", &[3.6]),
    Printed::new("engram.table1.throughput", "throughput", "tokens/s", &[70_000.0]).arithmetic(|| vec![256.0 / 3.6e-3]),
    Printed::new("engram.table1.window", "window before layer 2", "us", &[56.0]).arithmetic(|| vec![3.6e3 / 64.0]),
    Printed::new("engram.table1.bandwidth", "bandwidth of the pool", "GB/s", &[0.7])
        .arithmetic(|| vec![70_000.0 * 5_000.0 * 2.0 / 1e9]),
    Printed::new("engram.s3-2.links", "that bandwidth within a link's", "GB/s", &[64.0, 12.5])
        .at_most()
        .named(&["PCIe 5.0 x16", "100GbE"])
        .arithmetic(|| vec![0.7; 2]),
    Printed::new("engram.s4-1.switch", "bandwidth of the switch: 8 servers of 64", "GB/s", &[512.0])
        .arithmetic(|| vec![8.0 * 64.0]),
    // Table 2
    Printed::new("engram.table2.baseline", "throughput without tables", "tokens/s", &[6_183.9, 4_185.6]).named(MODELS),
    Printed::new(
        "engram.table2.dram",
        "with tables in DRAM, over without",
        "",
        &[5_683.7 / 6_183.9, 3_909.7 / 4_185.6],
    )
    .neutral(1.0)
    .named(MODELS),
    Printed::new("engram.table2.cxl", "with tables in CXL, over DRAM", "", &[5_614.4 / 5_683.7, 3_895.0 / 3_909.7])
        .neutral(1.0)
        .named(MODELS),
    // Table 3
    Printed::new(
        "engram.table3.nodes",
        "throughput of two nodes over one",
        "",
        &[5_528.3 / 5_614.4, 3_883.2 / 3_895.0],
    )
    .neutral(1.0)
    .named(MODELS),
    Printed::new("engram.table3.replicas", "of two replicas over one", "", &[8_180.6 / 5_614.4, 5_661.5 / 3_895.0])
        .neutral(1.0)
        .named(MODELS),
    Printed::new(
        "engram.table3.both",
        "of two replicas on two nodes over one",
        "",
        &[8_106.2 / 5_614.4, 5_629.7 / 3_895.0],
    )
    .neutral(1.0)
    .named(MODELS),
    // Table 4
    Printed::new(
        "engram.table4.prices",
        "DRAM per GB, switch, adapter, controller",
        "$",
        &[15.0, 5_800.0, 210.0, 300.0],
    ),
    // Table 5
    Printed::new(
        "engram.table5.local-100b",
        "100B tables in local memory",
        "$",
        &[6_000.0, 12_000.0, 24_000.0, 48_000.0],
    )
    .over("nodes", NODES),
    Printed::new("engram.table5.pool-100b", "100B tables in a pool", "$", &[9_820.0, 10_840.0, 12_880.0, 16_960.0])
        .over("nodes", NODES),
    Printed::new("engram.table5.savings-100b", "savings, 100B", "$", &[-3_820.0, 1_160.0, 11_120.0, 31_040.0])
        .over("nodes", NODES)
        .implied(|| vec![6_000.0 - 9_820.0, 12_000.0 - 10_840.0, 24_000.0 - 12_880.0, 48_000.0 - 16_960.0]),
    Printed::new(
        "engram.table5.local-400b",
        "400B tables in local memory",
        "$",
        &[24_000.0, 48_000.0, 96_000.0, 192_000.0],
    )
    .over("nodes", NODES),
    Printed::new("engram.table5.pool-400b", "400B tables in a pool", "$", &[18_820.0, 19_840.0, 21_880.0, 25_960.0])
        .over("nodes", NODES),
    Printed::new("engram.table5.savings-400b", "savings, 400B", "$", &[5_180.0, 28_160.0, 74_120.0, 166_040.0])
        .over("nodes", NODES)
        .implied(|| vec![24_000.0 - 18_820.0, 48_000.0 - 19_840.0, 96_000.0 - 21_880.0, 192_000.0 - 25_960.0]),
    // Figures
    Printed::new("engram.figure3.rdma", "RDMA over DRAM: \"orders of magnitude\"", "", &[100.0]).at_least(),
    Printed::new("engram.figure3.cxl", "CXL over DRAM: \"closely approximate\", read as twice", "", &[2.0]).at_most(),
    Printed::new("engram.figure3.window", "CXL within the window of a batch of 256", "us", &[56.0]).at_most(),
    Printed::new("engram.figure3.rdma-window", "RDMA misses that window", "us", &[56.0]).at_least(),
    Printed::new("engram.figure5.cxl-to-cpu", "CXL to CPU over DRAM: \"comparable\", read as twice", "", &[2.0])
        .at_most(),
    Printed::new("engram.figure5.cxl-to-gpu", "CXL to GPU: \"acceptable\", read as the window", "us", &[56.0])
        .at_most(),
    Printed::new("engram.figure5.gpu-over-cpu", "CXL to GPU over CXL to CPU: higher", "", &[1.0]).more(),
    Printed::new("engram.figure6.size", "latency with larger tables over smaller ones", "", &[1.0]),
];
