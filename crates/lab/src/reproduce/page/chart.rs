//! Small plots: a row's sweep, and cumulative distributions.

use super::words::{escaped, heading, table_of};
use crate::plot::Scale;
use crate::plot::ruler::Ruler;
use crate::reproduce::report::number;
use crate::reproduce::row::{Distributions, Row};
use crate::reproduce::verdict::Meaning;
use std::fmt::Write;

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
/// Steps of an axis, at most.
const STEPS: usize = 5;
/// Most over least value above which the vertical axis is logarithmic.
const FAR: f64 = 30.0;
/// Least part of the largest value that the vertical axis spans, so that equal curves look equal.
const SPAN: f64 = 0.4;
/// Least values of a sweep.
const SWEEP: usize = 3;

/// A line of a plot.
struct Curve {
    /// Class of its colour and form.
    class: String,
    name: String,
    points: Vec<(f64, f64)>,
    /// Whether each point has a mark and a tooltip.
    has_marks: bool,
}

/// What lies behind the lines.
enum Ground {
    Nothing,
    /// The side that a bound refuses.
    Refused(Meaning, Vec<(f64, f64)>),
    /// Ranges: place, least, most.
    Ranges(Vec<(f64, f64, f64)>),
}

struct Plot {
    title: String,
    x: Ruler,
    y: Ruler,
    x_label: String,
    ground: Ground,
    curves: Vec<Curve>,
}

impl Plot {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (x, y) = (self.x.part(x), self.y.part(y).clamp(0.0, 1.0));
        (LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM))
    }

    fn path(&self, points: impl IntoIterator<Item = (f64, f64)>) -> String {
        let places = points.into_iter().map(|point| self.at(point));
        places.map(|(x, y)| format!("{x:.1} {y:.1}")).collect::<Vec<_>>().join("L")
    }

    fn svg(&self) -> String {
        let mut out =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escaped(&self.title));
        self.grid(&mut out);
        match &self.ground {
            Ground::Nothing => {}
            Ground::Refused(meaning, bound) => {
                let edge = if *meaning == Meaning::AtMost { TOP } else { HEIGHT - BOTTOM };
                let (first, last) = (self.at(bound[0]).0, self.at(bound[bound.len() - 1]).0);
                let path = self.path(bound.iter().copied());
                let _ = write!(out, "<path class=\"refused\" d=\"M{path}L{last:.1} {edge}H{first:.1}z\"/>");
            }
            Ground::Ranges(ranges) => {
                let down = self.path(ranges.iter().map(|&(x, least, _)| (x, least)));
                let up = self.path(ranges.iter().rev().map(|&(x, _, most)| (x, most)));
                let _ = write!(out, "<path class=\"range\" d=\"M{down}L{up}z\"/>");
            }
        }
        for curve in &self.curves {
            let _ = write!(
                out,
                "<path class=\"curve {}\" d=\"M{}\"/>",
                curve.class,
                self.path(curve.points.iter().copied())
            );
            for &(x, y) in curve.points.iter().filter(|_| curve.has_marks) {
                let (at, up) = self.at((x, y));
                let told = escaped(&format!("{}: {} at {}", curve.name, number(y), number(x)));
                let radius = if curve.class == "claim" { 6 } else { 3 };
                let _ = write!(
                    out,
                    "<circle class=\"{}\" cx=\"{at:.1}\" cy=\"{up:.1}\" r=\"{radius}\"><title>{told}</title></circle>",
                    curve.class
                );
            }
        }
        out + "</svg>\n"
    }

    fn grid(&self, out: &mut String) {
        let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (tick, label) in &self.y.ticks {
            let y = floor - self.y.part_of_tick(*tick) * (floor - TOP);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" class=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        for (tick, label) in &self.x.ticks {
            let x = LEFT + self.x.part_of_tick(*tick) * (right - LEFT);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{floor}\"/><text x=\"{x:.1}\" y=\"{}\" class=\"mid\">{label}</text>",
                floor + 16.0
            );
        }
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" class=\"mid label\">{}</text>",
            f64::midpoint(LEFT, right),
            HEIGHT - 4.0,
            escaped(&self.x_label)
        );
    }

    fn legend(&self) -> String {
        let refused = match &self.ground {
            Ground::Refused(Meaning::AtMost, _) => "<li><i class=\"refused\"></i>above the bound</li>",
            Ground::Refused(..) => "<li><i class=\"refused\"></i>below the bound</li>",
            Ground::Ranges(_) => "<li><i class=\"range\"></i>paper’s range</li>",
            Ground::Nothing => "",
        };
        let each = self
            .curves
            .iter()
            .map(|curve| format!("<li><i class=\"{}\"></i>{}</li>", curve.class, escaped(&curve.name)));
        format!("<ul class=\"legend\">{refused}{}</ul>", each.collect::<String>())
    }
}

/// Whether steps between values are equal as ratios rather than as differences.
fn is_geometric(values: &[f64]) -> bool {
    if values.len() < SWEEP || values[0] <= 0.0 || values.windows(2).any(|pair| pair[1] <= pair[0]) {
        return false;
    }
    // The largest step over the least: 1 for equal steps.
    let uneven = |step: fn(f64, f64) -> f64| {
        let steps = || values.windows(2).map(|pair| step(pair[0], pair[1]));
        steps().fold(f64::MIN, f64::max) / steps().fold(f64::MAX, f64::min)
    };
    uneven(|a, b| (b / a).ln()) < uneven(|a, b| b - a)
}

/// The plot of a row along an axis; empty for a row without a sweep.
pub(super) fn sweep(row: &Row) -> String {
    let Some(axis) = row.axis.filter(|_| row.paper.len() >= SWEEP && is_rising(row.at)) else { return String::new() };
    let points = |values: &[f64]| row.at.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>();
    let printed = points(row.paper);
    let is_bound = row.meaning != Meaning::Equal;
    let mut curves = vec![Curve {
        class: if is_bound { "bound" } else { "claim" }.to_owned(),
        name: if is_bound { "bound" } else { "paper" }.to_owned(),
        points: printed.clone(),
        has_marks: !is_bound,
    }];
    for one in row.sensitivity.iter().filter(|one| !one.is_aside).take(1) {
        curves.extend(one.settings.iter().zip(&one.ours).enumerate().map(|(at, (setting, ours))| Curve {
            class: format!("setting s{}", at % 4),
            name: format!("here, {} = {setting}", one.parameter),
            points: points(ours),
            has_marks: false,
        }));
    }
    if let Some(implied) = &row.implied {
        curves.push(Curve {
            class: "implied".to_owned(),
            name: "by its own numbers".to_owned(),
            points: points(implied),
            has_marks: true,
        });
    }
    if !row.ours.is_empty() {
        curves.push(Curve {
            class: "ours".to_owned(),
            name: "here".to_owned(),
            points: points(&row.ours),
            has_marks: true,
        });
    }
    for curve in &mut curves {
        curve.points.retain(|(_, y)| y.is_finite());
    }
    curves.retain(|curve| !curve.points.is_empty());
    let ground = if is_bound {
        Ground::Refused(row.meaning, printed)
    } else if row.ranges.len() == row.at.len() {
        Ground::Ranges(row.at.iter().zip(row.ranges).map(|(&at, &(least, most))| (at, least, most)).collect())
    } else {
        Ground::Nothing
    };
    let ends = row.ranges.iter().flat_map(|&(least, most)| [least, most]);
    let all: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1)).chain(ends).collect();
    let scale = if is_geometric(row.at) { Scale::Log } else { Scale::Linear };
    let unit = if row.unit.is_empty() { String::new() } else { format!(", {}", row.unit) };
    let plot = Plot {
        title: format!("{}{unit}, over {axis}", row.what),
        x: Ruler::at(scale, row.at, number),
        y: upright(&all),
        x_label: axis.to_owned(),
        ground,
        curves,
    };
    format!(
        "<figure class=\"chart\"><figcaption>{}{}</figcaption>\n{}{}</figure>\n",
        escaped(row.what),
        escaped(&unit),
        plot.svg(),
        plot.legend()
    )
}

fn is_rising(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[0] < pair[1])
}

/// The vertical axis.
fn upright(values: &[f64]) -> Ruler {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if least > 0.0 && most / least > FAR {
        return Ruler::new(Scale::Log, [least, most].into_iter(), STEPS);
    }
    let missing = (SPAN * most.abs().max(least.abs()) - (most - least)).max(0.0) / 2.0;
    let (low, high) = (least - missing, most + missing);
    let low = if least >= 0.0 { low.max(0.0) } else { low };
    Ruler::new(Scale::Linear, [low, high].into_iter(), STEPS)
}

/// A plot of cumulative distributions, which leads to its row.
pub(super) fn cumulative(row: &Row, distributions: &Distributions) -> String {
    let curve = |(index, (name, values)): (usize, &(String, Vec<f64>))| Curve {
        class: format!("series s{}", index % 4),
        name: name.clone(),
        points: values.iter().copied().zip((1..).map(f64::from)).filter(|(x, _)| x.is_finite() && *x > 0.0).collect(),
        has_marks: false,
    };
    let curves: Vec<Curve> = distributions.series.iter().enumerate().map(curve).collect();
    let all: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0)).collect();
    if all.is_empty() {
        return String::new();
    }
    let title = format!("{}, {}", heading(table_of(row.id)), distributions.title);
    let plot = Plot {
        title: format!("{title}: cumulative distribution of {}", distributions.label),
        x: Ruler::new(Scale::Log, all.into_iter(), STEPS),
        y: Ruler::at(Scale::Linear, &[0.0, 25.0, 50.0, 75.0, 100.0], |value| format!("{value}%")),
        x_label: distributions.label.to_owned(),
        ground: Ground::Nothing,
        curves,
    };
    format!(
        "<figure class=\"chart\"><figcaption><a href=\"#{}\">{}</a></figcaption>\n{}{}</figure>\n",
        row.id,
        escaped(&title),
        plot.svg(),
        plot.legend()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_logarithmic_where_a_sweep_is_geometric() {
        for (values, expected) in [
            (&[1.0, 2.0, 4.0, 8.0, 16.0][..], true),
            (&[0.25, 0.5, 1.0, 2.0], true),
            (&[16.0, 32.0, 64.0, 128.0, 256.0], true),
            (&[0.5, 1.0, 2.0], true),
            (&[1.0, 2.0, 3.0, 4.0], false),
            (&[1_500.0, 3_000.0, 4_500.0, 6_000.0], false),
            (&[0.0, 1.0, 10.0], false),
            (&[4.0, 8.0], false),
        ] {
            assert_eq!(is_geometric(values), expected, "{values:?}");
        }
    }
}
