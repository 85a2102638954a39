//! A row's strip: our values over the paper's, from a tenth to ten times, on a logarithmic scale.
//!
//! The paper is the line in the middle, and what counts as equal the band around it. A bound is a fill on the
//! side that it allows. Lines through a value reach over the settings of open parameters.

use super::words::{escaped, relation};
use crate::reproduce::report::number;
use crate::reproduce::row::Row;
use crate::reproduce::verdict::{Meaning, NEAR, Verdict};
use std::fmt::Write;

pub(super) const WIDTH: f64 = 184.0;
/// Half of the width that a factor of ten takes.
const DECADE: f64 = 82.0;
const MIDDLE: f64 = WIDTH / 2.0;
/// Least height of a strip.
const LEAST: f64 = 18.0;

/// The place of a ratio; its ends stand for all beyond them, and for signs that differ.
fn place(ratio: f64) -> f64 {
    let decades = if ratio > 0.0 { ratio.log10().clamp(-1.0, 1.0) } else { -1.0 };
    MIDDLE + DECADE * decades
}

/// Whether a ratio lies beyond the ends.
fn is_beyond(ratio: f64) -> bool {
    !(0.1..=10.0).contains(&ratio)
}

/// Ours over the paper's. Nothing stands over zero.
fn ratio(paper: f64, ours: f64) -> Option<f64> {
    if paper == ours {
        return Some(1.0);
    }
    (paper != 0.0).then_some(ours / paper)
}

/// The strip of a row; empty if nothing is to be compared.
pub(super) fn strip(row: &Row) -> String {
    if row.verdict == Verdict::NotTestable {
        return String::new();
    }
    let shown = if row.ours.is_empty() { row.implied.as_deref().unwrap_or_default() } else { &row.ours };
    let ratios: Vec<Option<f64>> = row.paper.iter().zip(shown).map(|(&paper, &ours)| ratio(paper, ours)).collect();
    if ratios.iter().all(Option::is_none) {
        return String::new();
    }
    let lane = lane_of(ratios.len());
    let height = (lane * ratios.len() as f64 + 3.0).max(LEAST);
    let level = |at: usize| height / 2.0 + lane * (at as f64 - (ratios.len() as f64 - 1.0) / 2.0);
    let mut marks = ground(row.meaning, !row.ranges.is_empty(), height);
    for (at, ratio) in ratios.iter().enumerate() {
        let Some(ratio) = *ratio else { continue };
        let y = level(at);
        if let Some(&(least, most)) = row.ranges.get(at) {
            let (from, to) = (place(least / row.paper[at]), place(most / row.paper[at]));
            bar(&mut marks, "range", (from, to), y - lane / 2.0, lane);
        }
        if let Some((from, to)) = reach(row, at).filter(|_| !row.ours.is_empty()) {
            let _ = write!(marks, "<path class=\"reach\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>");
        }
        if let Some((from, to)) = chance(row, at) {
            let _ = write!(marks, "<path class=\"chance\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>");
        }
        dot(&mut marks, ratio, y, row.ours.is_empty(), lane);
    }
    // The paper's own numbers stand beside ours where they contradict it.
    if let Some(implied) =
        row.implied.as_ref().filter(|_| !row.ours.is_empty() && row.verdict == Verdict::SelfContradictory)
    {
        for (at, (&paper, &implied)) in row.paper.iter().zip(implied).enumerate() {
            if let Some(ratio) = ratio(paper, implied) {
                dot(&mut marks, ratio, level(at), true, lane);
            }
        }
    }
    format!(
        "<svg class=\"strip\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{}\">{marks}</svg>",
        escaped(&told(row, shown))
    )
}

/// Height of a value's lane among so many.
const fn lane_of(values: usize) -> f64 {
    if values > 3 { 4.7 } else { 6.6 }
}

/// What the strip shows, in words.
fn told(row: &Row, shown: &[f64]) -> String {
    let each = row.paper.iter().zip(shown).map(|(&paper, &ours)| match ratio(paper, ours) {
        Some(ratio) => format!("×{}", number(ratio)),
        None => "over zero".to_owned(),
    });
    let over = if row.ours.is_empty() { "by its own numbers" } else { "here" };
    format!("{over} over the paper’s {}{}", relation(row), each.collect::<Vec<_>>().join(", "))
}

/// The paper's line, its band or its allowed side.
fn ground(meaning: Meaning, has_ranges: bool, height: f64) -> String {
    let mut marks = String::new();
    for ratio in [0.1, 0.5, 2.0, 10.0] {
        let _ = write!(marks, "<path class=\"tick\" d=\"M{:.1} 0V{height}\"/>", place(ratio));
    }
    match meaning {
        Meaning::Equal if !has_ranges => {
            bar(&mut marks, "band", (place(1.0 - NEAR), place(1.0 + NEAR)), 0.0, height);
        }
        Meaning::Equal => {}
        Meaning::AtMost => bar(&mut marks, "allowed", (0.0, MIDDLE), 0.0, height),
        Meaning::AtLeast => bar(&mut marks, "allowed", (MIDDLE, WIDTH), 0.0, height),
    }
    let class = if meaning == Meaning::Equal { "claim" } else { "claim bound" };
    let _ = write!(marks, "<path class=\"{class}\" d=\"M{MIDDLE} 0V{height}\"/>");
    marks
}

fn bar(marks: &mut String, class: &str, (from, to): (f64, f64), y: f64, height: f64) {
    let _ = write!(
        marks,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
        to - from
    );
}

/// A value: a disc, a diamond if the paper's own numbers give it, an arrow beyond the ends.
fn dot(marks: &mut String, ratio: f64, y: f64, is_implied: bool, lane: f64) {
    let (x, size) = (place(ratio), 0.46 * lane);
    let class = if is_implied { "implied" } else { "ours" };
    let _ = if is_beyond(ratio) {
        let way = if x < MIDDLE { -1.0 } else { 1.0 };
        let (tip, back) = (x + 7.0 * way, x - way);
        write!(marks, "<path class=\"{class}\" d=\"M{tip:.1} {y:.1}L{back:.1} {:.1}V{:.1}z\"/>", y - size, y + size)
    } else if is_implied {
        let size = size + 0.6;
        write!(
            marks,
            "<path class=\"{class}\" d=\"M{x:.1} {:.1}l{size:.1} {size:.1}l-{size:.1} {size:.1}l-{size:.1} -{size:.1}z\"/>",
            y - size
        )
    } else {
        write!(marks, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size:.1}\"/>")
    };
}

/// The least and the greatest place of a value over all settings of open parameters.
fn reach(row: &Row, at: usize) -> Option<(f64, f64)> {
    let base = row.ours.get(at).copied();
    let open = row.sensitivity.iter().filter(|one| !one.is_aside);
    let settings = open.flat_map(|one| &one.ours).filter_map(|ours| ours.get(at).copied());
    let places = settings.chain(base).filter_map(|ours| ratio(row.paper[at], ours)).map(place);
    let (least, most) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), one| (a.min(one), b.max(one)));
    (most - least > 1.0).then_some((least, most))
}

/// The ends of a value's interval.
fn chance(row: &Row, at: usize) -> Option<(f64, f64)> {
    let interval = row.interval.as_ref()?;
    let end = |ends: &[f64]| Some(place(ratio(row.paper[at], *ends.get(at)?)?));
    let (one, other) = (end(&interval.low)?, end(&interval.high)?);
    (one != other).then_some((one.min(other), one.max(other)))
}

/// A strip of made-up values, for the legend.
pub(super) fn sample(meaning: Meaning, ratio: f64, reach: Option<(f64, f64)>, is_implied: bool) -> String {
    let height = LEAST;
    let mut marks = ground(meaning, false, height);
    if let Some((from, to)) = reach {
        let _ = write!(marks, "<path class=\"reach\" d=\"M{:.1} {:.1}H{:.1}\"/>", place(from), height / 2.0, place(to));
    }
    dot(&mut marks, ratio, height / 2.0, is_implied, lane_of(1));
    format!(
        "<svg class=\"strip\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" aria-hidden=\"true\">{marks}</svg>"
    )
}
