//! Tables 1 and 6 and the equations of §3.5: the cache engine, by a model of its cycles and by the
//! measured cycles of this project's RTL.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::cache_engine::{CacheEngine, EngineOutcome, SPECKV};
use cenote_serving_sim::model::cache_engine::{self as rtl, translation_cycles};

pub const EXPERIMENT: Experiment = Experiment {
    id: "speckv.engine",
    title: "the cache engine by cycle",
    covers: &[
        "speckv.table1.resources",
        "speckv.table6.throughput",
        "speckv.table6.speedup",
        "speckv.table6.mean",
        "speckv.table6.p99",
        "speckv.table6.efficiency",
        "speckv.table6.growth",
        "speckv.s3-5-1.translation",
        "speckv.s3-5-2.bandwidth",
        "speckv.s3-5-2.busy",
        "speckv.s3-5-3",
        "speckv.s3-5-1.inputs",
        "speckv.eq3",
        "speckv.eq6.contention",
        "speckv.eq5",
    ],
    is_quick: false,
    draws: true,
    run,
};

/// Entries served per run and engine.
const REQUESTS: u32 = 40_000;
const CLOCK_HZ: u64 = 800_000_000;
/// Hit rates of the TLB beside the printed bound.
const TLB_RATES: [f64; 2] = [0.95, 0.99];
/// Share of frames that bypass the decoder (§3.5.3).
const RAW_SHARE: f64 = 0.3;

/// Outcomes of one to four engines.
fn engines(of: &CacheEngine, seed: u64) -> Vec<EngineOutcome> {
    (1..=4).map(|engines| CacheEngine { engines, ..*of }.run(REQUESTS * engines, seed)).collect()
}

fn run(context: &Context) -> Vec<Measured> {
    let seed = context.seed;
    let base = engines(&SPECKV, seed);
    let wide = |pipelines: &u32| engines(&CacheEngine { pipelines: *pipelines, ..SPECKV }, seed);
    let window = |outstanding_max: &u32| {
        engines(&CacheEngine { outstanding_max: *outstanding_max, pipelines: 8, ..SPECKV }, seed)
    };
    let row = |id, why, of: &dyn Fn(&[EngineOutcome]) -> Vec<f64>| {
        let ours = of(&base);
        let pipelines = Sensitivity::of("pipelines per engine", &ours, &[4, 8], |n| of(&wide(n)));
        let windows = Sensitivity::of("window with eight pipelines", &ours, &[32, 64], |n| of(&window(n)));
        Measured::new(id, ours, why).sensitive(pipelines).sensitive(windows)
    };
    let one = "one pipeline of 51.2 GB/s per engine (§3.5.2), 16 entries of 4 KB outstanding";
    let gb = |runs: &[EngineOutcome]| runs.iter().map(|run| run.bytes_per_s / 1e9).collect();
    let speedup = |runs: &[EngineOutcome]| runs.iter().map(|run| run.bytes_per_s / runs[0].bytes_per_s).collect();
    let efficiency = |runs: &[EngineOutcome]| vec![100.0 * runs[3].bytes_per_s / (4.0 * runs[0].bytes_per_s)];
    vec![
        Measured::not_testable(
            "speckv.table1.resources",
            "needs place and route for an Agilex-7 with the vendor's tools",
        ),
        row("speckv.table6.throughput", one, &gb),
        row("speckv.table6.speedup", one, &speedup).tied("pipelines of their own add up"),
        row("speckv.table6.mean", one, &|runs| runs.iter().map(|run| run.mean_ns).collect()),
        row("speckv.table6.p99", one, &|runs| runs.iter().map(|run| run.p99_ns).collect()),
        row("speckv.table6.efficiency", one, &efficiency),
        row("speckv.table6.growth", one, &|runs| {
            vec![runs[3].mean_ns / runs[0].mean_ns, runs[3].p99_ns / runs[0].p99_ns]
        }),
        Measured::new(
            "speckv.eq6.contention",
            (1..=4).map(|engines| 100.0 * (1.0 - rtl::contention(engines))).collect(),
            "measured by the RTL: lines that engines get from sixteen channels, each a random one in every cycle",
        )
        .fixed("measured cycles; the RTL has one set of channels"),
        translation(),
        another(
            "speckv.s3-5-2.bandwidth",
            "another design; beside: by this RTL's cycles for a page of 64 beats at the paper's clock",
            rtl::SPECKV.encode.at(CLOCK_HZ).bytes_per_s as f64 / 1e9,
        ),
        another(
            "speckv.s3-5-2.busy",
            "another design; beside: this RTL takes 66 cycles for a page of 64 beats",
            (rtl::PAGE_BYTES / u64::from(SPECKV.beat_bytes)) as f64 / rtl::SPECKV.encode.page_interval as f64,
        ),
        another(
            "speckv.eq3.critical-path",
            "another design; beside: this RTL's decoder, without AXI and frames",
            rtl::SPECKV.decode.latency as f64,
        ),
        another(
            "speckv.s3-5-3.mean",
            "another design; beside: this RTL's decoder with AXI, frames and checksums",
            rtl::decoding_latency(RAW_SHARE),
        ),
        another(
            "speckv.s3-5-3.bypass",
            "another design; beside: this RTL's path of raw frames",
            rtl::BYPASS.latency as f64,
        ),
        Measured::not_testable("speckv.s3-5-1.inputs", "inputs of the model of cycles"),
        Measured::not_testable("speckv.eq5.arbitration", "no number is printed; the RTL has the arbiter"),
    ]
}

/// Cycles of a design that the paper did not build: they neither support nor contradict its own.
fn another(id: &'static str, reason: &'static str, ours: f64) -> Measured {
    Measured::beside(id, reason, vec![ours])
}

/// Cycles of a translation whose walk reads the page table `reads` times from a memory of `ns`.
fn translated(hit_rate: f64, reads: f64, ns: f64) -> f64 {
    let [hit, walk] = rtl::ATU;
    // The RTL's walk reads the table three times, and was measured with a memory of three cycles.
    let own = walk as f64 - rtl::ATU_READS as f64 * rtl::ATU_MEMORY_CYCLES as f64;
    translation_cycles(hit_rate, hit as f64, own + reads * ns * CLOCK_HZ as f64 / 1e9)
}

fn translation() -> Measured {
    let (memory, reads, rate) = (SPECKV.hbm.latency_ns, rtl::ATU_READS as f64, SPECKV.tlb_hit_rate);
    let chip = rtl::ATU_MEMORY_CYCLES as f64 * 1e9 / CLOCK_HZ as f64;
    let ours = vec![translated(rate, reads, memory)];
    let rates =
        Sensitivity::of("hit rate of the TLB", &ours, &TLB_RATES, |rate| vec![translated(*rate, reads, memory)]);
    let memories = Sensitivity::from(
        "the page table's memory and reads of a walk",
        &ours,
        vec!["HBM, 1 read".to_owned(), "on the chip, 3 reads".to_owned()],
        vec![vec![translated(rate, 1.0, memory)], vec![translated(rate, reads, chip)]],
    );
    let why = "cycles of this RTL; its three reads of the page table come from the FPGA's HBM, 100 ns each; the hit rate is \
               the printed one. The paper does not say where its page table lies";
    Measured::new("speckv.s3-5-1.translation", ours, why).sensitive(memories).sensitive(rates)
}
