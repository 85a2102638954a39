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
        "speckv.s3-5-1.translation",
        "speckv.s3-5-2.bandwidth",
        "speckv.s3-5-2.busy",
        "speckv.eq3",
        "speckv.eq5",
    ],
    is_quick: true,
    run,
};

/// Entries served per run and engine.
const REQUESTS: u32 = 40_000;
const CLOCK_HZ: u64 = 800_000_000;

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
    let (speckv, [hit, walk]) = (rtl::SPECKV, rtl::ATU);
    let beats = rtl::PAGE_BYTES / u64::from(SPECKV.beat_bytes);
    vec![
        Measured::not_testable(
            "speckv.table1.resources",
            "needs place and route for an Agilex-7 with the vendor's tools",
        ),
        row("speckv.table6.throughput", one, &gb),
        row("speckv.table6.speedup", one, &speedup),
        row("speckv.table6.mean", one, &|runs| runs.iter().map(|run| run.mean_ns).collect()),
        row("speckv.table6.p99", one, &|runs| runs.iter().map(|run| run.p99_ns).collect()),
        row("speckv.table6.efficiency", one, &efficiency),
        Measured::new(
            "speckv.s3-5-1.translation",
            vec![translation_cycles(SPECKV.tlb_hit_rate, hit, walk)],
            "measured cycles of the RTL, hit rate as printed",
        ),
        Measured::new(
            "speckv.s3-5-2.bandwidth",
            vec![speckv.encode.at(CLOCK_HZ).bytes_per_s as f64 / 1e9],
            "measured cycles of the RTL; the clock is the paper's",
        ),
        Measured::new(
            "speckv.s3-5-2.busy",
            vec![beats as f64 / speckv.encode.page_interval as f64],
            "the RTL takes 66 cycles for a page of 64 beats",
        ),
        Measured::new(
            "speckv.eq3.critical-path",
            vec![speckv.decode.latency as f64],
            "the RTL's decoder has fewer stages; its multipliers are pipelined alike",
        ),
        Measured::not_testable("speckv.eq5.arbitration", "no number is printed; the RTL has the arbiter"),
    ]
}
