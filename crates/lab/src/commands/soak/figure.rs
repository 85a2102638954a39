//! The values of a soak over its time: an SVG file for a page of the documentation.

use super::sample::Sample;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 150.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
/// Above a panel's lines: its title and legend.
const HEAD: f64 = 34.0;
const COLOURS: [&str; 4] = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e"];
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#495057}rect{fill:#fff}.rule{stroke:#dee2e6}\
    polyline{fill:none;stroke-width:1.4}";

type Line = (String, Vec<(f64, f64)>);

/// Lines of one unit over hours.
struct Panel {
    title: &'static str,
    lines: Vec<Line>,
}

/// Points of a value, by hours.
fn line(samples: &[Sample], name: impl Into<String>, of: impl Fn(&Sample) -> Option<f64>) -> Line {
    let points = samples.iter().filter_map(|sample| Some((sample.at_s / 3600.0, of(sample)?)));
    (name.into(), points.collect())
}

fn panels(samples: &[Sample]) -> Vec<Panel> {
    let names: BTreeSet<&String> = samples.iter().flat_map(|sample| sample.processes.keys()).collect();
    let of_processes = |of: fn(&super::sample::Process) -> f64| {
        let one = |name: &&String| line(samples, *name, |sample| sample.processes.get(*name).map(of));
        names.iter().map(one).collect()
    };
    let region = |name: &'static str, key: &'static str, unit: f64| {
        line(samples, name, move |sample| sample.region.get(key).map(|value| value / unit))
    };
    let mib = f64::from(1 << 20);
    let time = |name: &str, of: fn((f64, f64)) -> f64| line(samples, name, move |one| one.first_token_ms.map(of));
    vec![
        Panel {
            title: "memory of processes that live on (RSS, MiB)",
            lines: of_processes(|one| one.rss_bytes as f64 / f64::from(1 << 20)),
        },
        Panel { title: "their descriptors", lines: of_processes(|one| one.descriptors as f64) },
        Panel {
            title: "share of prompt tokens from the region or the cold tier",
            lines: vec![line(samples, "hit share", |sample| sample.counts.hit_share())],
        },
        Panel {
            title: "time to the first token (ms)",
            lines: vec![time("median", |one| one.0), time("99th percentile", |one| one.1)],
        },
        Panel {
            title: "bytes (MiB)",
            lines: vec![
                region("blocks of the region", "cenote_region_block_bytes", mib),
                line(samples, "files of the cold tier", |sample| Some(sample.cold_bytes as f64 / mib)),
            ],
        },
        Panel {
            title: "events in an interval",
            lines: vec![
                line(samples, "kills", |sample| Some(sample.counts.kills as f64)),
                line(samples, "requests ended by kills", |sample| Some(sample.counts.ended_by_kills as f64)),
            ],
        },
    ]
}

/// The next number of 1, 2 or 5 times a power of ten.
fn rounded_up(value: f64) -> f64 {
    let decade = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|part| part * decade).into_iter().find(|top| *top >= value).unwrap_or(value)
}

/// All panels, one below the other.
pub fn draw(samples: &[Sample]) -> String {
    let panels = panels(samples);
    let height = panels.len() as f64 * (PANEL + HEAD) + 28.0;
    let hours = samples.last().map_or(0.0, |last| last.at_s / 3600.0).max(1e-3);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Values of a soak over its time\">\n<style>{STYLE}</style>\n<rect width=\"{WIDTH}\" \
         height=\"{height}\"/>\n"
    );
    for (number, panel) in panels.iter().enumerate() {
        let top = number as f64 * (PANEL + HEAD) + HEAD;
        draw_panel(&mut out, panel, top, hours);
    }
    let bottom = height - 8.0;
    for quarter in 0..=4 {
        let at = f64::from(quarter) / 4.0;
        let x = LEFT + at * (WIDTH - LEFT - RIGHT);
        let unit = if quarter == 0 { " h" } else { "" };
        let _ =
            writeln!(out, "<text x=\"{x:.0}\" y=\"{bottom}\" text-anchor=\"middle\">{:.2}{unit}</text>", at * hours);
    }
    out + "</svg>\n"
}

fn draw_panel(out: &mut String, panel: &Panel, top: f64, hours: f64) {
    let most = panel.lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(0.0, f64::max);
    let most = rounded_up(most);
    let (bottom, right) = (top + PANEL - 14.0, WIDTH - RIGHT);
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{:.0}\">{}</text>", top - 18.0, panel.title);
    for half in 0..=2 {
        let part = f64::from(half) / 2.0;
        let y = bottom - part * (bottom - top);
        let _ = writeln!(
            out,
            "<line class=\"rule\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/><text x=\"{:.0}\" \
             y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            part * most
        );
    }
    let mut legend = LEFT;
    for ((name, points), colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        let place = |(hour, value): &(f64, f64)| {
            let (x, y) = (LEFT + hour / hours * (right - LEFT), bottom - value / most * (bottom - top));
            format!("{x:.1},{y:.1}")
        };
        let path: Vec<String> = points.iter().map(place).collect();
        let _ = writeln!(out, "<polyline stroke=\"{colour}\" points=\"{}\"/>", path.join(" "));
        let _ = writeln!(out, "<text x=\"{legend:.0}\" y=\"{:.0}\" style=\"fill:{colour}\">{name}</text>", top - 4.0);
        legend += 7.0 * name.len() as f64 + 24.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_its_last_value_is() {
        let sample = |at_s: f64, cold_bytes: u64| Sample { at_s, cold_bytes, ..Sample::default() };
        let drawn = draw(&[sample(1800.0, 50 << 20), sample(3600.0, 100 << 20)]);
        // The end of the time, and the top of the panel with bytes.
        assert!(drawn.contains(&format!("454.0,{:.1} 844.0,{:.1}\"", 838.0, 770.0)), "{drawn}");
        assert!(drawn.starts_with("<svg xmlns") && drawn.ends_with("</svg>\n") && !drawn.contains("NaN"));
        assert!(!draw(&[]).contains("NaN"));
    }

    #[test]
    fn a_scale_ends_with_a_round_number() {
        assert_eq!([0.3, 1.0, 1.1, 42.0, 51.0].map(rounded_up), [0.5, 1.0, 2.0, 50.0, 100.0]);
    }
}
