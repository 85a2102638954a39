//! Tables 1 and 6 and the equations of §3.5: the cache engine, by a model of its cycles and by the
//! measured cycles of this project's RTL.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::cache_engine::{CacheEngine, EngineOutcome, SPECKV};
use cenote_serving_sim::model::cache_engine::{self as rtl, CodecCycles, translation_cycles};

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
        "speckv.eq3",
        "speckv.eq6.contention",
        "speckv.eq5",
    ],
    is_quick: true,
    run,
};

/// Entries served per run and engine.
const REQUESTS: u32 = 40_000;
const CLOCK_HZ: u64 = 800_000_000;
/// Hit rates of the TLB beside the printed one.
const TLB_RATES: [f64; 2] = [0.8, 0.99];
/// Share of frames that bypass the decoder (§3.5.3), and others.
const RAW_SHARE: f64 = 0.3;
const RAW_SHARES: [f64; 2] = [0.1, 0.5];

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
        row("speckv.table6.speedup", one, &speedup),
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
        bandwidth(),
        of_codecs("speckv.s3-5-2.busy", "the RTL takes 66 cycles for a page of 64 beats", |cycles| {
            (rtl::PAGE_BYTES / u64::from(SPECKV.beat_bytes)) as f64 / cycles.encode.page_interval as f64
        }),
        of_codecs(
            "speckv.eq3.critical-path",
            "the RTL's decoder has fewer stages; its multipliers are pipelined alike",
            |cycles| cycles.decode.latency as f64,
        ),
        raw_frames(),
        Measured::new("speckv.s3-5-3.bypass", vec![rtl::BYPASS.latency as f64], "measured cycles of the RTL")
            .fixed("measured cycles of one path"),
        Measured::not_testable("speckv.eq5.arbitration", "no number is printed; the RTL has the arbiter"),
    ]
}

/// A row of the codec's cycles, beside those of other RTL.
fn of_codecs(id: &'static str, why: &'static str, value: fn(&CodecCycles) -> f64) -> Measured {
    let ours = vec![value(&rtl::SPECKV)];
    let others = [("with AXI, frames and checksums", rtl::SPECKV_FRAMES), ("qpack", rtl::QPACK)];
    let (names, values) = others.iter().map(|(name, cycles)| ((*name).to_owned(), vec![value(cycles)])).unzip();
    let pipelines = Sensitivity::from("pipeline", &ours, names, values);
    Measured::new(id, ours, why).sensitive(pipelines)
}

fn bandwidth() -> Measured {
    const GB: fn(&CodecCycles, u64) -> f64 = |cycles, hz| cycles.encode.at(hz).bytes_per_s as f64 / 1e9;
    let why = "measured cycles of the RTL; the clock is the paper's";
    let row = of_codecs("speckv.s3-5-2.bandwidth", why, |cycles| GB(cycles, CLOCK_HZ));
    let base = [GB(&rtl::SPECKV, CLOCK_HZ)];
    // Clocks of a slower part, and of the design's printed limit.
    row.sensitive(Sensitivity::of("MHz", &base, &[400, 812], |mhz| vec![GB(&rtl::SPECKV, mhz * 1_000_000)]))
}

fn translation() -> Measured {
    let [hit, walk] = rtl::ATU;
    let cycles = |rate: &f64| vec![translation_cycles(*rate, hit, walk)];
    let ours = cycles(&SPECKV.tlb_hit_rate);
    let rates = Sensitivity::of("hit rate of the TLB", &ours, &TLB_RATES, cycles);
    Measured::new("speckv.s3-5-1.translation", ours, "measured cycles of the RTL, hit rate as printed").sensitive(rates)
}

fn raw_frames() -> Measured {
    let cycles = |share: &f64| vec![rtl::decoding_latency(*share)];
    let ours = cycles(&RAW_SHARE);
    let shares = Sensitivity::of("share of raw frames", &ours, &RAW_SHARES, cycles);
    Measured::new(
        "speckv.s3-5-3.mean",
        ours,
        "measured cycles of the RTL with AXI, frames and checksums; its decoder has fewer stages than the paper's",
    )
    .sensitive(shares)
}
