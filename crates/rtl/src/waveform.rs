//! A picture of the streams of a decoder at work, drawn from simulation: `rtl/waveform.svg`.

use crate::bench::{Bench, Failure, Pace};
use crate::checks::speckv::{beats_of, payload_of};
use crate::kv::{TestPage, bell};
use crate::model::Pin;
use cenote_base::prng::Prng;
use cenote_codec::{Order, Shape, Side, SpecKvMode};
use half::f16;
use std::fmt::Write as _;

const SIGNALS: [&str; 8] = ["s_valid", "s_ready", "s_count", "s_last", "m_valid", "m_ready", "m_count", "m_last"];
/// Pixels of a cycle, of a row, of the names, and of a signal's height.
const CYCLE: usize = 26;
const ROW: usize = 30;
const NAMES: usize = 80;
const HIGH: usize = 16;
const LIMIT: u64 = 200;

/// The values of the signals in each cycle, while a page of five beats is decoded with stalls.
///
/// # Errors
/// The module breaks a rule of streams, or does not end.
fn record() -> Result<Vec<Vec<u32>>, Failure> {
    let mut prng = Prng::new(3);
    let shape = Shape { heads: 1, tokens: 5, dim: 32 };
    let values: Vec<f16> = (0..shape.values()).map(|_| f16::from_f32(bell(&mut prng))).collect();
    let page = TestPage::new("a page for a picture", Side::K, 0, shape, Order::TokenMajor, &values);
    let mut bench = Bench::new("speckv_decode", 5);
    let input = bench.input("s", &["data", "count", "last"]);
    let output = bench.output("m", &["data", "count", "last", "error"]);
    bench.set("dim", shape.dim.into());
    bench.set("values", shape.values() as u32);
    bench.reset();
    bench.pace = Pace { offers: 200, takes: 150, varies: false };
    let payload = payload_of(&page, SpecKvMode::DeltaRle).ok_or("the page was declined")?;
    beats_of(&payload, 1).into_iter().for_each(|beat| bench.send(input, beat));
    let pins: Vec<Pin> = SIGNALS.iter().map(|name| bench.model.pin(name)).collect();
    let mut cycles = Vec::new();
    while bench.got(output).last().is_none_or(|beat| beat[17] == 0) {
        if cycles.len() as u64 > LIMIT {
            return Err("the page has no end".to_owned());
        }
        let mut now = Vec::new();
        bench.step_with(|model| now = pins.iter().map(|pin| model.get(*pin)).collect())?;
        cycles.push(now);
    }
    Ok(cycles)
}

/// The picture. A count is shown while its stream is valid; a transfer is a shaded cycle.
///
/// # Errors
/// As for the simulation.
pub fn svg() -> Result<String, Failure> {
    let cycles = record()?;
    let (width, height) = (NAMES + CYCLE * cycles.len() + 10, ROW * (SIGNALS.len() + 1));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let line = |svg: &mut String, text: String| writeln!(svg, "{text}").expect("a string");
    for (at, now) in cycles.iter().enumerate() {
        let x = NAMES + CYCLE * at;
        for stream in [0, 4] {
            if now[stream] == 1 && now[stream + 1] == 1 {
                let (y, tall) = (ROW * (stream + 1) - HIGH - 4, 3 * ROW + HIGH + 8);
                line(
                    &mut svg,
                    format!("<rect x=\"{x}\" y=\"{y}\" width=\"{CYCLE}\" height=\"{tall}\" fill=\"#dce9f7\"/>"),
                );
            }
        }
        if at % 5 == 0 {
            let y = height - 8;
            line(&mut svg, format!("<text x=\"{x}\" y=\"{y}\" fill=\"#777\">{at}</text>"));
        }
    }
    for (row, name) in SIGNALS.iter().enumerate() {
        let base = ROW * (row + 1);
        line(&mut svg, format!("<text x=\"8\" y=\"{base}\">{name}</text>"));
        if name.ends_with("count") {
            for (at, now) in cycles.iter().enumerate().filter(|(_, now)| now[row / 4 * 4] == 1) {
                let x = NAMES + CYCLE * at + 5;
                line(&mut svg, format!("<text x=\"{x}\" y=\"{base}\">{}</text>", now[row]));
            }
            continue;
        }
        // A mark of the last beat means nothing without a valid beat.
        let level = |now: &Vec<u32>| if name.ends_with("last") { now[row] & now[row / 4 * 4] } else { now[row] };
        let mut path = String::new();
        for (at, now) in cycles.iter().enumerate() {
            let (x, y) = (NAMES + CYCLE * at, base - HIGH * level(now) as usize);
            let command = if at == 0 { 'M' } else { 'L' };
            write!(path, "{command}{x} {y} L{} {y} ", x + CYCLE).expect("a string");
        }
        line(&mut svg, format!("<path d=\"{}\" fill=\"none\" stroke=\"#1f4e8c\"/>", path.trim_end()));
    }
    Ok(svg + "</svg>\n")
}
