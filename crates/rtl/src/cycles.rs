//! Cycles of each module, measured in simulation without stalls. `rtl/cycles.json` holds them as
//! parameters for models of the hardware; a test compares it with a new measurement.

use crate::bench::Failure;
use crate::checks::{engine, frames, load, memory, oaken, path, qpack, speckv};
use crate::kv::{TestPage, bell_page};
use cenote_base::prng::Prng;
use cenote_codec::Shape;
use std::fmt::Write as _;

/// The shape of measured pages, that of the demo model: 64 beats of 32 halves.
pub const SHAPE: Shape = Shape { heads: 2, tokens: 16, dim: 64 };
/// Pages in a row, for the interval between them.
const PAGES: usize = 6;

/// A number of cycles, or of cycles per page, by name.
pub type Measured = Vec<(String, u64)>;

fn sample(count: usize) -> Vec<TestPage> {
    let mut prng = Prng::new(0xc1c);
    (0..count).map(|_| bell_page(&mut prng, SHAPE)).collect()
}

/// Latencies and intervals of the engines of codecs, of frames, and of the engine with registers.
///
/// # Errors
/// A module breaks a rule of streams.
fn engines() -> Result<Measured, Failure> {
    let pages = sample(PAGES);
    let mut times = vec![
        ("speckv_encode", speckv::times_of_encoder(&pages)?),
        ("speckv_decode", speckv::times_of_decoder(&pages)?),
        ("qpack_encode", qpack::times_of_encoder(&pages)?),
        ("qpack_decode", qpack::times_of_decoder(&pages)?),
        ("oaken_encode", oaken::times_of_encoder(&pages)?),
        ("oaken_decode", oaken::times_of_decoder(&pages)?),
    ];
    times.extend(frames::times()?);
    times.extend(engine::times(&pages)?);
    let mut all = Vec::new();
    for (name, times) in times {
        all.push((format!("{name}.latency"), times.latency));
        all.push((format!("{name}.page_interval"), times.interval));
    }
    Ok(all)
}

/// Cycles of an engine over several pages in a row.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From the first beat of the first page taken to its first beat given.
    pub latency: u64,
    /// From one page's last beat given to the next one's.
    pub interval: u64,
}

impl Times {
    /// From the cycles in which the first beat was taken, the first given, and pages ended.
    #[must_use]
    pub fn new(first_in: u64, first_out: u64, ends: &[u64]) -> Self {
        let (first, last) = (ends[1], ends[ends.len() - 1]);
        Self { latency: first_out - first_in, interval: (last - first).div_ceil(ends.len() as u64 - 2) }
    }
}

/// Everything that is measured.
///
/// # Errors
/// A module breaks a rule of streams.
pub fn measure() -> Result<Measured, Failure> {
    let mut all = engines()?;
    all.extend(load::times()?);
    all.extend(memory::times()?);
    all.extend(path::times()?);
    Ok(all)
}

/// The measurement as JSON.
#[must_use]
pub fn json(measured: &Measured) -> String {
    let mut text = String::from("{\n");
    let shape = format!("{} heads, {} tokens, {} channels, f16", SHAPE.heads, SHAPE.tokens, SHAPE.dim);
    writeln!(text, "  \"page\": \"{shape}\",").expect("a string");
    for (at, (name, cycles)) in measured.iter().enumerate() {
        let comma = if at + 1 < measured.len() { "," } else { "" };
        writeln!(text, "  \"{name}\": {cycles}{comma}").expect("a string");
    }
    text + "}\n"
}

/// The measurement as a table in Markdown: what a module does, and its cycles.
///
/// # Panics
/// A number that the table names was not measured.
#[must_use]
pub fn table(measured: &Measured) -> String {
    let of = |name: String| {
        let found = measured.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("`{name}` was not measured")).1
    };
    let mut text = String::from("| module | first beat in to first beat out | cycles a page |\n|---|---|---|\n");
    for (name, title, note) in [
        ("speckv_encode", "SpecKV encoder", ", of which 128 fill the two page stores"),
        ("speckv_decode", "SpecKV decoder", ""),
        ("qpack_encode", "QPack encoder", ", of which 32 fill the first group"),
        ("qpack_decode", "QPack decoder", ""),
        ("oaken_encode", "Oaken encoder", ", from a token's first beat"),
        ("oaken_decode", "Oaken decoder", ", from a page's first bounds"),
        ("frame_write", "header and checksum of a frame", ", of which 64 store the payload"),
        ("frame_read", "their check", ""),
        ("cache_engine.encode", "page to frame by SpecKV, with AXI", ""),
        ("cache_engine.decode", "frame to page by SpecKV, with AXI", ""),
        ("cache_engine.bypass", "raw frame to page, with AXI", ""),
    ] {
        let (latency, interval) = (of(format!("{name}.latency")), of(format!("{name}.page_interval")));
        writeln!(text, "| {title} (`{name}`) | {latency}{note} | {interval} |").expect("a string");
    }
    text
}
