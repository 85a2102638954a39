//! Figures 3, 5 and 6: time to gather the rows of a batch from DRAM, over RDMA and over CXL.
//!
//! The figures' values are in pictures only. The text's words about them are the rows.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_engram::Preset;
use cenote_serving_sim::hardware::cxl::{CxlLink, XCONN_POOL};
use cenote_serving_sim::hardware::dram::XEON_6766E;
use cenote_serving_sim::hardware::rdma::CX_100G;
use cenote_serving_sim::model::Link;

pub const EXPERIMENT: Experiment = Experiment {
    id: "engram.latency",
    title: "time to gather a batch's rows",
    covers: &["engram.figure3", "engram.figure5", "engram.figure6"],
    is_quick: true,
    run,
};

/// Tokens of a batch (Table 1).
const BATCH: u64 = 256;
/// Microseconds to start and join 64 threads, or to launch a kernel. Our assumption.
const START_US: f64 = 10.0;
/// Other latencies of the pool in ns: the paper prints none.
const LATENCIES: [u64; 2] = [300, 1_000];
/// Bytes of an aggregated message.
const MESSAGE_BYTES: u64 = 1 << 20;
/// PCIe 5.0 x16 of the GPU, whose kernel reads rows directly.
const GPU_LINK: Link = Link { bytes_per_s: 50_000_000_000, latency_ns: 2_000 };

/// Rows of a token and bytes of a row.
fn rows() -> (u64, u64) {
    let config = Preset::Engram27B.config().expect("the preset is a configuration");
    (config.rows_per_token() as u64, 2 * config.row_values as u64)
}

/// Microseconds to gather the rows of `tokens` tokens through a window of lines.
fn gather_us(memory: &CxlLink, tokens: u64) -> f64 {
    let (rows, bytes) = rows();
    START_US + memory.copy_ns(tokens * rows * bytes) / 1e3
}

/// Microseconds with one message per row, as a store of small values does.
fn rdma_us(message_ns: f64, tokens: u64) -> f64 {
    let (rows, bytes) = rows();
    let nic = cenote_serving_sim::hardware::rdma::Nic { message_ns, ..CX_100G };
    // The row passes a bounce buffer in host memory on each side (§2.2).
    nic.bounced(10e9, 2).send_ns(tokens * rows, bytes) / 1e3
}

fn run(_: &Context) -> Vec<Measured> {
    let dram = gather_us(&XEON_6766E, BATCH);
    let cxl = gather_us(&XCONN_POOL, BATCH);
    let rdma = vec![rdma_us(CX_100G.message_ns, BATCH) / dram];
    let over = vec![cxl / dram];
    let gpu_us = |latency_ns: u64| {
        let (rows, bytes) = rows();
        let link = CxlLink { link: Link { latency_ns, ..GPU_LINK }, outstanding_max: 4_096, ..XCONN_POOL };
        START_US + link.copy_ns(BATCH * rows * bytes) / 1e3
    };
    let at = |latency_ns: &u64| {
        let pool = CxlLink { link: Link { latency_ns: *latency_ns, ..XCONN_POOL.link }, ..XCONN_POOL };
        gather_us(&pool, BATCH)
    };
    let aggregated = {
        let (rows, bytes) = rows();
        START_US + CX_100G.aggregated_ns(BATCH * rows, bytes, MESSAGE_BYTES) / 1e3
    };
    let why = "batch of 256; 64 threads with 16 lines each, 10 us to start them; the pool's latency is assumed";
    vec![
        Measured::new(
            "engram.figure3.rdma",
            rdma.clone(),
            "one message of 320 bytes per row at 0.4 us; Mooncake Store's own costs per key are not in it",
        )
        .sensitive(Sensitivity::of("ns per message", &rdma, &[2_000.0, 5_000.0], |ns| vec![rdma_us(*ns, BATCH) / dram]))
        .sensitive(Sensitivity::from(
            "messages",
            &rdma,
            vec!["aggregated to 1 MiB".to_owned()],
            vec![vec![aggregated / dram]],
        )),
        Measured::new("engram.figure3.cxl", over.clone(), why).sensitive(Sensitivity::of(
            "ns of the pool",
            &over,
            &LATENCIES,
            |ns| vec![at(ns) / dram],
        )),
        Measured::new("engram.figure3.window", vec![cxl], why).sensitive(Sensitivity::of(
            "ns of the pool",
            &[cxl],
            &LATENCIES,
            |ns| vec![at(ns)],
        )),
        Measured::new("engram.figure5.cxl-to-cpu", over.clone(), why).sensitive(Sensitivity::of(
            "tokens",
            &over,
            &[16, 4_096],
            |tokens| vec![gather_us(&XCONN_POOL, *tokens) / gather_us(&XEON_6766E, *tokens)],
        )),
        Measured::new(
            "engram.figure5.cxl-to-gpu",
            vec![gpu_us(GPU_LINK.latency_ns)],
            "a kernel reads rows over PCIe 5.0: 50 GB/s, 2 us, 4,096 lines at once; all three are assumed",
        )
        .sensitive(Sensitivity::of("ns of a read", &[gpu_us(GPU_LINK.latency_ns)], &[1_000, 4_000], |ns| {
            vec![gpu_us(*ns)]
        })),
        Measured::not_testable(
            "engram.figure6.size",
            "the model has no cost that grows with a table; docs/evidence/tables.md has measured ones",
        ),
    ]
}
