//! §2.2, Figures 3, 5 and 6: time to gather the rows of a batch from DRAM, over RDMA and over CXL.
//!
//! The figures' values are in pictures only. The text's words about them are the rows.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::START_NS;
use cenote_serving_sim::hardware::cxl::{CxlLink, XCONN_POOL};
use cenote_serving_sim::hardware::dram::XEON_6766E;
use cenote_serving_sim::hardware::pcie::GPU_READS;
use cenote_serving_sim::hardware::rdma::{CX_100G, CX_100G_BOUNCED, Nic};
use cenote_serving_sim::model::Link;

pub const EXPERIMENT: Experiment = Experiment {
    id: "engram.latency",
    title: "time to gather a batch's rows",
    covers: &["engram.s2-2", "engram.figure3", "engram.figure5", "engram.figure6"],
    is_quick: true,
    draws: false,
    run,
};

/// Tokens of a batch (Table 1).
const BATCH: u64 = 256;
/// Microseconds to start and join 64 threads, or to launch a kernel.
const START_US: f64 = START_NS as f64 / 1e3;
/// Nanoseconds of a key in Mooncake Store 0.3.13, which the paper's RDMA pool uses: 64 keys in one call that only
/// looks them up take 134.8 us over TCP and 257.7 us over shared memory (docs/evidence/peers.md).
const KEY_NS: f64 = 134_800.0 / 64.0;
const SLOW_KEY_NS: f64 = 257_700.0 / 64.0;
/// Other latencies of the pool in ns: the paper prints none.
const LATENCIES: [u64; 2] = [300, 1_000];
/// Bytes of an aggregated message.
const MESSAGE_BYTES: u64 = 1 << 20;

/// Bytes of a row, and rows of a token by the text of Figure 3. Figure 5 has the same configuration; that
/// of §3.1 has twice as many.
const ROW_BYTES: u64 = 320;
const FIGURE_3_ROWS: u64 = 8;

/// What the paper leaves open, or says in two ways.
#[derive(Clone, Copy)]
struct Open {
    /// Rows of a token.
    rows: u64,
    /// Tokens of a batch.
    tokens: u64,
    /// Microseconds to start the threads.
    start_us: f64,
    /// Nanoseconds of an access to the pool.
    pool_ns: u64,
    /// Nanoseconds of an RDMA message.
    message_ns: f64,
}

const FIGURE_3: Open = Open {
    rows: FIGURE_3_ROWS,
    tokens: BATCH,
    start_us: START_US,
    pool_ns: XCONN_POOL.link.latency_ns,
    message_ns: KEY_NS,
};

impl Open {
    /// Microseconds to gather the rows through a window of lines.
    fn gather_us(&self, memory: &CxlLink) -> f64 {
        self.start_us + memory.copy_ns(self.tokens * self.rows * ROW_BYTES) / 1e3
    }

    fn dram_us(&self) -> f64 {
        self.gather_us(&XEON_6766E)
    }

    fn cxl_us(&self) -> f64 {
        self.gather_us(&CxlLink { link: Link { latency_ns: self.pool_ns, ..XCONN_POOL.link }, ..XCONN_POOL })
    }

    /// With one message per row, as a store of small values does.
    fn rdma_us(&self) -> f64 {
        let nic = Nic { message_ns: self.message_ns, ..CX_100G_BOUNCED };
        nic.send_ns(self.tokens * self.rows, ROW_BYTES) / 1e3
    }

    fn aggregated_us(&self) -> f64 {
        self.start_us + CX_100G.aggregated_ns(self.tokens * self.rows, ROW_BYTES, MESSAGE_BYTES) / 1e3
    }

    /// By a kernel on the GPU.
    fn gpu_us(&self, latency_ns: u64) -> f64 {
        self.gather_us(&CxlLink { link: Link { latency_ns, ..GPU_READS.link }, ..GPU_READS })
    }
}

/// A row of one value, with the effects of the rows of a token, of the start and of the tokens.
fn row(id: &'static str, why: &'static str, value: impl Fn(&Open) -> f64) -> Measured {
    let open = FIGURE_3;
    let base = vec![value(&open)];
    let twice = [2 * FIGURE_3_ROWS];
    let rows = Sensitivity::of("rows of a token", &base, &twice, |&rows| vec![value(&Open { rows, ..open })]);
    let starts = Sensitivity::of("us to start the threads", &base, &[0.0, 30.0], |&start_us| {
        vec![value(&Open { start_us, ..open })]
    });
    // The figures have a batch of 256.
    let tokens =
        Sensitivity::of("tokens", &base, &[16, 4_096], |&tokens| vec![value(&Open { tokens, ..open })]).aside();
    Measured::new(id, base, why).sensitive(rows).sensitive(starts).sensitive(tokens)
}

/// A row that the pool's latency changes too.
fn pooled(id: &'static str, why: &'static str, value: impl Fn(&Open) -> f64) -> Measured {
    let base = vec![value(&FIGURE_3)];
    row(id, why, &value).sensitive(Sensitivity::of("ns of the pool", &base, &LATENCIES, |&pool_ns| {
        vec![value(&Open { pool_ns, ..FIGURE_3 })]
    }))
}

/// A row that the latency of a GPU's read changes too.
fn by_gpu(id: &'static str, why: &'static str, value: impl Fn(&Open, u64) -> f64) -> Measured {
    let base = GPU_READS.link.latency_ns;
    let reads = Sensitivity::of("ns of a read", &[value(&FIGURE_3, base)], &[1_000, 4_000], |&latency_ns| {
        vec![value(&FIGURE_3, latency_ns)]
    });
    row(id, why, |open| value(open, base)).sensitive(reads)
}

/// Part of the line rate that messages of 64 bytes reach.
fn small_messages() -> Measured {
    let part = |nic: Nic| {
        let messages = 1 << 20;
        vec![100.0 * (64 * messages) as f64 * 1e9 / nic.send_ns(messages, 64) / nic.link.bytes_per_s as f64]
    };
    let base = part(CX_100G);
    let times =
        Sensitivity::of("ns per message", &base, &[10.0, 100.0], |&message_ns| part(Nic { message_ns, ..CX_100G }));
    Measured::new("engram.s2-2.small", base, "0.4 us per message and 128 outstanding are assumed").sensitive(times)
}

fn run(_: &Context) -> Vec<Measured> {
    let rdma = |open: &Open| open.rdma_us() / open.dram_us();
    let over = |open: &Open| open.cxl_us() / open.dram_us();
    let why = "8 rows of 320 bytes per token; batch of 256; 64 threads with 16 lines each, 10 us to start them; the \
               pool's latency is assumed";
    let kernel = "a kernel reads rows over PCIe 5.0: 50 GB/s, 2 us, 4,096 lines at once; all three are assumed";
    let base = [rdma(&FIGURE_3)];
    vec![
        small_messages(),
        row(
            "engram.figure3.rdma",
            "8 keys of 320 bytes per token; Mooncake Store takes 2.1 us for a key, as measured over TCP, and by 4.0 us over \
             shared memory; 10 us to start DRAM's threads",
            rdma,
        )
        .sensitive(Sensitivity::of("ns per key", &base, &[SLOW_KEY_NS], |&message_ns| {
            vec![rdma(&Open { message_ns, ..FIGURE_3 })]
        }))
        .sensitive(Sensitivity::from(
            "messages",
            &base,
            vec!["aggregated to 1 MiB".to_owned()],
            vec![vec![FIGURE_3.aggregated_us() / FIGURE_3.dram_us()]],
        ).aside())
        .sensitive(Sensitivity::of("ns of the card alone per message", &base, &[CX_100G.message_ns], |&message_ns| {
            vec![rdma(&Open { message_ns, ..FIGURE_3 })]
        }).aside()),
        pooled("engram.figure3.cxl", why, over),
        pooled("engram.figure3.window", why, Open::cxl_us),
        row("engram.figure3.rdma-window", why, Open::rdma_us),
        pooled("engram.figure5.cxl-to-cpu", why, over).tied("the same number as in Figure 3"),
        by_gpu("engram.figure5.cxl-to-gpu", kernel, Open::gpu_us),
        by_gpu("engram.figure5.gpu-over-cpu", kernel, |open, latency_ns| open.gpu_us(latency_ns) / open.cxl_us()),
        Measured::not_testable(
            "engram.figure6.size",
            "the model has no cost that grows with a table; docs/evidence/tables.md has measured ones",
        ),
    ]
}
