//! `cenote-lab bench codec`: encoding and decoding of pages on one core, beside copies of as many
//! bytes in the same run.

mod measure;

use crate::args::{BenchCodecArgs, PageElementArg};
use cenote_codec::{Element, Level, at_level};
use cenote_console::failure::Failure;
use cenote_console::output::{self, table};
use measure::{Extent, Sample, Times, WorkingSet};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// Number of different pages.
const SAMPLE: usize = 32;
/// Bytes of pages in and out that stay in a core's own cache.
const CACHED_BYTES: usize = 128 << 10;
/// Eight times the largest cache, within these bounds, so that no cache still holds a page when a
/// pass returns to it.
const DRAM_BYTES_MIN: usize = 256 << 20;
const DRAM_BYTES_MAX: usize = 1 << 30;
/// The codec with pages of its own.
const PRISM: &str = "prism";

#[derive(Serialize)]
struct Report {
    quick: bool,
    /// The kernels of the codecs.
    kernel: &'static str,
    element: &'static str,
    tokens: u16,
    rows: Vec<Row>,
}

/// Encoding or decoding by one codec, of pages in one place.
#[derive(Serialize)]
struct Row {
    /// `cache` or `dram`: where pages come from and go to.
    place: &'static str,
    what: &'static str,
    codec: &'static str,
    /// Bits per value in frames, headers included.
    bits: f64,
    /// Bytes of pages per second, divided by 10⁹: the median.
    gb_per_s: f64,
    /// The same for copies of the pages between the same passes: the limit.
    copy_gb_per_s: f64,
    /// Their ratio.
    ratio: f64,
    /// Least ratio that is required.
    goal: Option<f64>,
    met: Option<bool>,
    /// The share of the time that the frames' CRC-32 takes, if it was measured alone.
    checksum_share: f64,
}

/// The goal of a codec's kernels, if any.
fn goal(level: Level, place: &str, what: &str, codec: &str) -> Option<f64> {
    let [avx2, avx512] = match (place, what, codec) {
        ("cache", "encode", "int8") => [0.2, 0.4],
        ("cache", "decode", "int8") => [0.3, 0.6],
        ("dram", "encode", "qpack") => [0.35, 0.7],
        ("dram", "decode", "qpack") => [0.5, 1.0],
        ("dram", "decode", "qpackz") => [0.15, 0.25],
        ("dram", "encode", "oaken") => [0.15, 0.3],
        ("dram", "decode", "oaken") => [0.3, 0.5],
        _ => return None,
    };
    match level {
        Level::Scalar => None,
        Level::Avx2 => Some(avx2),
        Level::Avx512 => Some(avx512),
    }
}

fn rows(level: Level, place: &'static str, codec: &'static str, times: &Times) -> [Row; 2] {
    let row = |what, seconds: f64, copy: f64| {
        let (goal, ratio) = (goal(level, place, what, codec), copy / seconds);
        let speed = |seconds: f64| times.bytes as f64 / seconds / 1e9;
        Row {
            place,
            what,
            codec,
            bits: times.bits,
            gb_per_s: speed(seconds),
            copy_gb_per_s: speed(copy),
            ratio,
            goal,
            met: goal.map(|goal| ratio >= goal),
            checksum_share: times.checksum / seconds,
        }
    };
    [row("encode", times.encode, times.copy[0]), row("decode", times.decode, times.copy[1])]
}

/// Bytes of the first core's largest cache; `None`: the system does not report it.
fn last_cache_bytes() -> Option<usize> {
    let caches = Path::new("/sys/devices/system/cpu/cpu0/cache").read_dir().ok()?;
    let size = |cache: std::io::Result<std::fs::DirEntry>| {
        // tidy: a file of /sys
        let text = std::fs::read_to_string(cache.ok()?.path().join("size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    caches.filter_map(size).max()
}

fn extents(quick: bool) -> [(&'static str, Extent); 2] {
    let dram = (8 * last_cache_bytes().unwrap_or(0)).clamp(DRAM_BYTES_MIN, DRAM_BYTES_MAX);
    let (bytes, passes, repeats) = if quick { (16 << 20, 1, 20) } else { (dram, 3, 500) };
    [
        ("cache", Extent { bytes: CACHED_BYTES, slice_bytes: CACHED_BYTES, passes: repeats }),
        ("dram", Extent { bytes, slice_bytes: CACHED_BYTES, passes }),
    ]
}

pub fn run(args: &BenchCodecArgs) -> Result<(), Failure> {
    let level = args.level.unwrap_or_else(Level::current);
    let (element, name) = match args.element {
        PageElementArg::Bf16 => (Element::Bf16, "bf16"),
        PageElementArg::F16 => (Element::F16, "f16"),
    };
    let sample = Sample::new(element, args.tokens, SAMPLE);
    let components = args.wants(PRISM).then(|| Sample::of_components(element, args.tokens, SAMPLE));
    let pages = sample.codecs().into_iter().filter(|(name, _)| args.wants(name));
    let pages = pages.map(|(name, codec)| (name, codec, &sample));
    let prism = components.iter().map(|(sample, codec)| (PRISM, Arc::clone(codec), sample));
    let codecs: Vec<_> = pages.chain(prism).collect();
    if codecs.is_empty() {
        let all: Vec<_> = sample.codecs().into_iter().map(|(name, _)| name).chain([PRISM]).collect();
        return Err(Failure::new("--only: there is no such codec").hint(format!("codecs: {}", all.join(", "))));
    }
    let progress = output::progress("measuring", 2 * codecs.len() as u64);
    let mut all = Vec::new();
    for (place, extent) in extents(args.quick) {
        for (codec_name, codec, sample) in &codecs {
            let mut set = WorkingSet::new(sample, extent);
            let times = at_level(level, || set.measure(codec))
                .map_err(|fact| Failure::new(format!("{codec_name}, {place}: {fact}")))?;
            all.extend(rows(level, place, codec_name, &times));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let report = Report { quick: args.quick, kernel: level.name(), element: name, tokens: args.tokens, rows: all };
    args.output.show(&report, || report_table(&report))
}

fn report_table(report: &Report) -> String {
    let mut out = table(&["place", "", "codec", "bits", "GB/s", "copy", "ratio", "goal", "met", "crc-32"]).keys(3);
    for row in &report.rows {
        out.add_row([
            row.place.to_owned(),
            row.what.to_owned(),
            row.codec.to_owned(),
            format!("{:.2}", row.bits),
            format!("{:.2}", row.gb_per_s),
            format!("{:.2}", row.copy_gb_per_s),
            format!("{:.2}", row.ratio),
            row.goal.map_or_else(String::new, |goal| format!(">= {goal:.2} x")),
            row.met.map_or_else(String::new, |met| if met { "met" } else { "missed" }.to_owned()),
            format!("{:.0} %", 100.0 * row.checksum_share),
        ]);
    }
    format!("{out}\n\nkernels: {}; pages of {} tokens, {}", report.kernel, report.tokens, report.element)
}
