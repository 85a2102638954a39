//! Tables 1 to 5: bandwidth, window, throughput and cost.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_engram::Preset;
use cenote_plan::cost::Prices;
use cenote_policy::watermark::SHIPPED;
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::hardware::architecture::QWEN_3;
use cenote_serving_sim::hardware::cxl::{CxlLink, XCONN_POOL};
use cenote_serving_sim::hardware::dram::XEON_6766E;
use cenote_serving_sim::hardware::h200::H200;
use cenote_serving_sim::hardware::l20::L20;
use cenote_serving_sim::hardware::switch::XC50256;
use cenote_serving_sim::hardware::{Architecture, Roofline};
use cenote_serving_sim::model::{Link, StepWork};
use cenote_serving_sim::workload::{Length, Synthetic};
use cenote_serving_sim::{Setup, simulate};

pub const EXPERIMENT: Experiment = Experiment {
    id: "engram.serving",
    title: "bandwidth, window, throughput and cost",
    covers: &[
        "engram.table1.payload",
        "engram.table1.step",
        "engram.table2",
        "engram.table3",
        "engram.table4",
        "engram.table5",
    ],
    is_quick: false,
    draws: false,
    run,
};

const BATCH: u32 = 256;
/// Tokens of a prompt and of an answer (§5.3).
const TOKENS: u32 = 512;
/// Layers with tables.
const LAYERS: u64 = 2;
/// Layers before the first table: its layer is the second.
const LAYERS_BEFORE: f64 = 1.0;
/// What the paper leaves open about the cost of tables.
#[derive(Clone, Copy)]
struct Open {
    /// Nanoseconds to start a gather, as in the figures.
    start_ns: f64,
    /// Nanoseconds of the host per step, which nothing hides: hashing, and the list of rows.
    host_ns: f64,
    /// Nanoseconds of an access to the pool.
    pool_ns: u64,
}

const ASSUMED: Open = Open { start_ns: 10_000.0, host_ns: 0.0, pool_ns: XCONN_POOL.link.latency_ns };

impl Open {
    fn pool(&self) -> CxlLink {
        CxlLink { link: Link { latency_ns: self.pool_ns, ..XCONN_POOL.link }, ..XCONN_POOL }
    }

    /// Effects of the start, the host and the pool on a row.
    fn sensitive(row: Measured, of: impl Fn(&Self) -> Vec<f64>) -> Measured {
        let base = row.values.clone().unwrap_or_default();
        let starts = Sensitivity::of("us to start a gather", &base, &[100.0, 1_000.0], |us| {
            of(&Self { start_ns: 1e3 * us, ..ASSUMED })
        });
        let hosts = Sensitivity::of("ms of the host per step for tables", &base, &[1.0, 5.0, 10.0], |ms| {
            of(&Self { host_ns: 1e6 * ms, ..ASSUMED })
        });
        let pools =
            Sensitivity::of("ns of the pool", &base, &[300, 3_000], |&pool_ns| of(&Self { pool_ns, ..ASSUMED }));
        row.sensitive(starts).sensitive(hosts).sensitive(pools)
    }
}

/// Bytes of a token and layer.
fn layer_bytes() -> f64 {
    let config = Preset::Engram27B.config().expect("the preset is a configuration");
    (config.rows_per_token() * config.row_values * 2) as f64
}

fn decode(context: u32) -> StepWork {
    let mut work = StepWork::default();
    (0..BATCH).for_each(|_| work.add(context, 1));
    work
}

/// Milliseconds of a decode step of the case study.
fn step_ms(context: u32) -> f64 {
    Roofline { gpu: H200, gpus: 4, architecture: QWEN_3[2] }.step_ns(&decode(context)) / 1e6
}

/// The same at the data sheet's rates, without any time of the host or to start a collective, with so
/// many bytes per weight. Arithmetic on bytes has twice the rate.
fn bound_ms(context: u32, weight_bytes: u64) -> f64 {
    let mut gpu = H200;
    (gpu.device.flops_percent, gpu.device.memory_percent) = (100, 100);
    (gpu.device.step_ns, gpu.device.request_ns) = (0, 0);
    gpu.device.flops *= 2 / weight_bytes;
    (gpu.tensor.start_ns, gpu.tensor.efficiency) = (0.0, 1.0);
    let architecture = Architecture { weight_bytes, ..QWEN_3[2] };
    Roofline { gpu, gpus: 4, architecture }.step_ns(&decode(context)) / 1e6
}

/// Nanoseconds that tables add to a step: projections of the rows, and rows that arrive after the
/// layers before the first table are computed.
fn tables_ns(roofline: &Roofline, memory: &CxlLink, open: &Open) -> f64 {
    let device = &roofline.gpu.device;
    let values = layer_bytes() / 2.0;
    // A key and a value projection from a token's rows to the width of the model (§2.1).
    let weights = 2.0 * values * roofline.architecture.hidden as f64;
    let arithmetic = 2.0 * f64::from(BATCH) * weights / (device.flops as f64 * device.flops_percent as f64 / 100.0);
    let traffic = 2.0 * weights / (device.memory_bytes_per_s as f64 * device.memory_percent as f64 / 100.0);
    let rows = open.start_ns + memory.copy_ns((f64::from(BATCH) * layer_bytes()) as u64);
    // Rows go to the GPU over its host link.
    let to_gpu = device.host.time((f64::from(BATCH) * layer_bytes()) as u64) as f64;
    let window = LAYERS_BEFORE * roofline.layer(&decode(TOKENS + TOKENS / 2)).total_ns();
    open.host_ns + LAYERS as f64 * arithmetic.max(traffic) * 1e9 + (rows + to_gpu - window).max(0.0)
}

/// Generated tokens per second of an engine with `batch` requests at a time, whose steps take `extra_ns` longer.
fn throughput(roofline: &Roofline, batch: u32, extra_ns: f64, seed: u64) -> f64 {
    let kv_bytes_per_token = roofline.architecture.kv_bytes_per_token();
    let mut cost = roofline.cost_model(f64::from(batch));
    cost.step_ns += extra_ns as u64;
    let setup = Setup {
        instances: 1,
        cost,
        front_ns: 0,
        kv_bytes_per_token,
        l1_blocks: (roofline.kv_bytes() / (16 * kv_bytes_per_token)) as u32,
        l1_block_tokens: 16,
        max_num_seqs: batch as usize,
        max_num_batched_tokens: 8_192,
        watermark: Watermark::Learned(SHIPPED),
        swap_blocks: 0,
        has_prefix_cache: false,
        swap_link: L20.device.host,
        always_swap: false,
        spill: None,
        private: None,
        shared: None,
        hosts: None,
        eviction: Eviction::Lru,
    };
    let load = Synthetic {
        requests: 2 * batch as usize,
        rate: 0.0,
        input: Length::fixed(TOKENS),
        output: Length::fixed(TOKENS),
        unique: None,
        groups: 1,
        block_tokens: 16,
    };
    simulate(&setup, &load.draw(seed), &mut |_| ()).map_or(f64::NAN, |outcome| outcome.throughput_tokens_per_s)
}

/// Throughput of both models: without tables, with tables in DRAM, and in a pool.
fn table_2(open: &Open, seed: u64) -> [[f64; 3]; 2] {
    [QWEN_3[0], QWEN_3[1]].map(|model| {
        let roofline = Roofline { gpu: L20, gpus: 1, architecture: model };
        let with = |memory: &CxlLink| throughput(&roofline, BATCH, tables_ns(&roofline, memory, open), seed);
        [throughput(&roofline, BATCH, 0.0, seed), with(&XEON_6766E), with(&open.pool())]
    })
}

fn run(context: &Context) -> Vec<Measured> {
    let mut rows = table_1();
    let base = table_2(&ASSUMED, context.seed);
    let ratio =
        |open: &Open, over: usize, under: usize| table_2(open, context.seed).map(|row| row[over] / row[under]).to_vec();
    let why = "decode bound by the L20's memory: 0.8 of its bandwidth, 1 ms per step and 5 us per request are assumed";
    let baseline = base.map(|row| row[0]).to_vec();
    // Prompts and answers have equal lengths.
    let both = vec![baseline.iter().map(|tokens| 2.0 * tokens).collect()];
    let counted = Sensitivity::from("tokens that count", &baseline, vec!["prompts too".to_owned()], both);
    let shares = Sensitivity::of("percent of the L20's bandwidth", &baseline, &[60, 100], |&percent| {
        let mut gpu = L20;
        gpu.device.memory_percent = percent;
        let each = QWEN_3[..2].iter();
        each.map(|&architecture| throughput(&Roofline { gpu, gpus: 1, architecture }, BATCH, 0.0, context.seed))
            .collect()
    });
    rows.push(Measured::new("engram.table2.baseline", baseline, why).sensitive(counted).sensitive(shares));
    let added = "projections of the rows, and what the layer before the first table does not hide; the gate, the \
                 convolution and the host's work, which no source gives, are left out of the base";
    let hidden = "the layer before the first table hides both gathers; the paper loses about 1 %";
    for (id, over, under, why) in [("engram.table2.dram", 1, 0, added), ("engram.table2.cxl", 2, 1, hidden)] {
        let of = |open: &Open| ratio(open, over, under);
        let row = Open::sensitive(Measured::new(id, of(&ASSUMED), why), of);
        rows.push(if id == "engram.table2.cxl" { row.tied("layers before the first table hide both") } else { row });
    }
    rows.extend(table_3(context.seed));
    rows.push(Measured::not_testable("engram.table4.prices", "prices are inputs"));
    rows.extend(table_5());
    rows
}

fn table_1() -> Vec<Measured> {
    let context = TOKENS + TOKENS / 2;
    let base = step_ms(context);
    let contexts = Sensitivity::of("tokens of context", &[base], &[128, 4_096], |context| vec![step_ms(*context)]);
    let why = "four H200, FP16, 768 tokens of context; 1 ms per step and 5 us per request are assumed, so is 10 us per \
               all-reduce";
    vec![
        Measured::new("engram.table1.payload", vec![layer_bytes()], "16 rows of 160 values of two bytes")
            .fixed("a count of the configuration's bytes")
            .tied("a count of the configuration's bytes"),
        Measured::new("engram.table1.step", vec![base], why)
            .sensitive(contexts)
            .sensitive(
                Sensitivity::of("bytes per weight at the data sheet's rates", &[base], &[2, 1], |bytes| {
                    vec![bound_ms(context, *bytes)]
                })
                .aside(),
            )
            .sensitive(
                Sensitivity::of("bytes per weight at those rates, 128 tokens", &[base], &[2, 1], |bytes| {
                    vec![bound_ms(128, *bytes)]
                })
                .aside(),
            ),
    ]
}

/// Throughput of one replica of both models with the pool, where `hosts` hosts have `replicas` each.
/// Replicas of a host share its adapter and the lines that its cores fetch at once; hosts share the
/// switch. `batch` are the requests of a replica. With `in_turn`, one process of the host prepares the
/// steps of all its replicas, one after another.
fn replica(hosts: u32, replicas: u32, batch: u32, in_turn: bool, open: &Open, seed: u64) -> [f64; 2] {
    let switch = XC50256.share(hosts * replicas);
    let adapter = XCONN_POOL.link.bytes_per_s as f64 / f64::from(replicas);
    let pool = CxlLink {
        link: Link { bytes_per_s: switch.min(adapter) as u64, ..open.pool().link },
        outstanding_max: XCONN_POOL.outstanding_max / replicas,
        ..XCONN_POOL
    };
    [QWEN_3[0], QWEN_3[1]].map(|model| {
        let roofline = Roofline { gpu: L20, gpus: 1, architecture: model };
        let device = &roofline.gpu.device;
        let host_ns = device.step_ns + u64::from(batch) * device.request_ns;
        let waits = if in_turn { f64::from(replicas - 1) * host_ns as f64 } else { 0.0 };
        throughput(&roofline, batch, tables_ns(&roofline, &pool, open) + waits, seed)
    })
}

fn table_3(seed: u64) -> Vec<Measured> {
    let one = replica(1, 1, BATCH, false, &ASSUMED, seed);
    let over = |hosts: u32, replicas: u32, batch: u32, in_turn: bool| -> Vec<f64> {
        let each = replica(hosts, replicas, batch, in_turn, &ASSUMED, seed);
        (0..2).map(|model| f64::from(replicas) * each[model] / one[model]).collect()
    };
    let why = "replicas of a host share its adapter and its cores' lines, hosts share the switch; 256 requests each";
    let row = |id: &'static str, hosts: u32| {
        let base = over(hosts, 2, BATCH, false);
        let split =
            Sensitivity::of("requests of a replica", &base, &[BATCH / 2], |&batch| over(hosts, 2, batch, false));
        let turns = Sensitivity::from(
            "the host's work",
            &base,
            vec!["of one replica after the other".to_owned()],
            vec![over(hosts, 2, BATCH, true)],
        );
        Measured::new(id, base, why).sensitive(split).sensitive(turns)
    };
    let nodes = |open: &Open| {
        let [two, one] = [2, 1].map(|hosts| replica(hosts, 1, BATCH, false, open, seed));
        (0..2).map(|model| two[model] / one[model]).collect::<Vec<f64>>()
    };
    vec![
        Open::sensitive(
            Measured::new(
                "engram.table3.nodes",
                nodes(&ASSUMED),
                "two engines share the card behind the switch, and their layers hide the gathers; the paper loses \
                 about 1 %",
            ),
            nodes,
        )
        .tied("layers before the first table hide both"),
        row("engram.table3.replicas", 1),
        row("engram.table3.both", 2),
    ]
}

fn table_5() -> Vec<Measured> {
    const PRICED: &str = "Table 4's prices are inputs";
    const NODES: [u32; 4] = [2, 4, 8, 16];
    let cost = |billions: f64| NODES.map(|nodes| Prices::PAPER.cost(billions * 2.0 * 1e9, nodes));
    let why = "`cenote plan`'s prices with Table 4 as inputs";
    let (small, large) = (cost(100.0), cost(400.0));
    vec![
        Measured::new("engram.table5.local-100b", small.map(|cost| cost.local).to_vec(), why)
            .fixed(PRICED)
            .tied(PRICED),
        Measured::new("engram.table5.pool-100b", small.map(|cost| cost.pool).to_vec(), why).fixed(PRICED).tied(PRICED),
        Measured::new("engram.table5.savings-100b", small.map(|cost| cost.savings).to_vec(), why)
            .fixed(PRICED)
            .tied(PRICED),
        Measured::new("engram.table5.local-400b", large.map(|cost| cost.local).to_vec(), why)
            .fixed(PRICED)
            .tied(PRICED),
        Measured::new("engram.table5.pool-400b", large.map(|cost| cost.pool).to_vec(), why).fixed(PRICED).tied(PRICED),
        Measured::new("engram.table5.savings-400b", large.map(|cost| cost.savings).to_vec(), why)
            .fixed(PRICED)
            .tied(PRICED),
    ]
}
