//! Cycles of each module, measured in simulation without stalls. `rtl/cycles.json` holds them as
//! parameters for models of the hardware; a test compares it with a new measurement.

use crate::bench::Failure;
use crate::checks::{memory, oaken, qpack, speckv};
use crate::kv::{TestPage, bell};
use cenote_base::prng::Prng;
use cenote_codec::{Order, Shape, Side};
use half::f16;
use std::fmt::Write as _;

/// The shape of measured pages, that of the demo model: 64 beats of 32 halves.
pub const SHAPE: Shape = Shape { heads: 2, tokens: 16, dim: 64 };
/// Pages in a row, for the interval between them.
const PAGES: usize = 6;

/// A number of cycles, or of cycles per page, by name.
pub type Measured = Vec<(String, u64)>;

/// Bell-shaped pages, which have no long runs of zeros.
fn sample(count: usize) -> Vec<TestPage> {
    let mut prng = Prng::new(0xc1c);
    let page = |_| {
        let values: Vec<f16> = (0..SHAPE.values()).map(|_| f16::from_f32(bell(&mut prng))).collect();
        TestPage::new("measured page", Side::K, 0, SHAPE, Order::TokenMajor, &values)
    };
    (0..count).map(page).collect()
}

/// Latencies and intervals of the engines of codecs.
///
/// # Errors
/// A module breaks a rule of streams.
fn engines() -> Result<Measured, Failure> {
    let pages = sample(PAGES);
    let mut all = Vec::new();
    for (name, times) in [
        ("speckv_encode", speckv::times_of_encoder(&pages)?),
        ("speckv_decode", speckv::times_of_decoder(&pages)?),
        ("qpack_encode", qpack::times_of_encoder(&pages)?),
        ("qpack_decode", qpack::times_of_decoder(&pages)?),
        ("oaken_encode", oaken::times_of_encoder(&pages)?),
        ("oaken_decode", oaken::times_of_decoder(&pages)?),
    ] {
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
    all.extend(memory::times()?);
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
