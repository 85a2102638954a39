//! Rows of a bench of the pool: times with percentiles, and goals.

use cenote_console::output::table;
use serde::Serialize;

/// Nanoseconds of one operation, for many repetitions.
pub type Times = Vec<f64>;

/// One line of the result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Its bench.
    pub bench: &'static str,
    /// The region's design.
    pub design: &'static str,
    /// Name of the measurement.
    pub name: String,
    /// Unit of the times.
    pub unit: &'static str,
    /// Median.
    pub p50: f64,
    /// 99th percentile (the worst, of fewer than a hundred).
    pub p99: f64,
    /// 999th of a thousand.
    pub p999: f64,
    /// The ratio, if the goal is one; otherwise the median over the goal.
    pub ratio: Option<f64>,
    /// The goal.
    pub goal: Option<String>,
    /// Whether it is met.
    pub met: Option<bool>,
}

/// The value that this share of all does not exceed.
pub fn percentile(times: &Times, share: f64) -> f64 {
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len().saturating_sub(1) as f64 * share).ceil() as usize).copied().unwrap_or(f64::NAN)
}

pub fn median(times: &Times) -> f64 {
    percentile(times, 0.5)
}

impl Row {
    /// Times of one operation, in nanoseconds.
    pub fn nanoseconds(name: impl Into<String>, times: &Times) -> Self {
        Self::scaled(name, times, "ns", 1.0)
    }

    pub fn microseconds(name: impl Into<String>, times: &Times) -> Self {
        Self::scaled(name, times, "us", 1e3)
    }

    pub fn milliseconds(name: impl Into<String>, times: &Times) -> Self {
        Self::scaled(name, times, "ms", 1e6)
    }

    /// Bytes of one operation.
    pub fn kilobytes(name: impl Into<String>, bytes: &Times) -> Self {
        Self::scaled(name, bytes, "kB", 1e3)
    }

    /// Rate of one operation that moves `bytes` bytes in these times.
    pub fn rate(name: impl Into<String>, bytes: u64, times: &Times) -> Self {
        let per_second = |share| bytes as f64 / percentile(times, share);
        let (p50, p99, p999) = (per_second(0.5), per_second(0.99), per_second(0.999));
        Self { p50, p99, p999, unit: "GB/s", ..Self::scaled(name, times, "", 1.0) }
    }

    fn scaled(name: impl Into<String>, times: &Times, unit: &'static str, scale: f64) -> Self {
        let at = |share| percentile(times, share) / scale;
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        Self { bench: "", design: "", name: name.into(), unit, p50, p99, p999, ratio: None, goal: None, met: None }
    }

    /// Goal: the median is at most this, in the row's unit.
    pub fn at_most(self, most: f64) -> Self {
        let (met, ratio) = (self.p50 <= most, self.p50 / most);
        let goal = format!("<= {most} {}", self.unit);
        Self { ratio: Some(ratio), goal: Some(goal), met: Some(met), ..self }
    }

    /// A ratio to something else, without a goal.
    pub fn ratio(self, ratio: f64) -> Self {
        Self { ratio: Some(ratio), ..self }
    }

    /// Goal: the ratio is at least this.
    pub fn ratio_at_least(self, ratio: f64, least: f64) -> Self {
        Self { ratio: Some(ratio), goal: Some(format!(">= {least:.2} x")), met: Some(ratio >= least), ..self }
    }

    /// Goal: the ratio is at most this.
    pub fn ratio_at_most(self, ratio: f64, most: f64) -> Self {
        Self { ratio: Some(ratio), goal: Some(format!("<= {most:.2} x")), met: Some(ratio <= most), ..self }
    }
}

/// The rows as a table.
pub fn rows_table(rows: &[Row]) -> String {
    let mut out = table(&["design", "name", "p50", "p99", "p99.9", "unit", "ratio", "goal", "met"]).keys(2);
    for row in rows {
        out.add_row([
            row.design.to_owned(),
            row.name.clone(),
            format!("{:.1}", row.p50),
            format!("{:.1}", row.p99),
            format!("{:.1}", row.p999),
            row.unit.to_owned(),
            row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.goal.clone().unwrap_or_default(),
            row.met.map_or_else(String::new, |met| if met { "met" } else { "missed" }.to_owned()),
        ]);
    }
    out.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_held_against_the_median() {
        let times: Times = (1..=1000).map(f64::from).collect();
        let row = Row::nanoseconds("it", &times);
        assert_eq!((row.p50, row.p99, row.p999), (501.0, 991.0, 1000.0));
        assert_eq!(row.clone().at_most(501.0).met, Some(true));
        assert_eq!(row.clone().at_most(500.0).met, Some(false));
        assert_eq!(row.clone().ratio_at_least(0.89, 0.9).met, Some(false));
        assert_eq!(row.ratio_at_most(2.9, 3.0).goal.as_deref(), Some("<= 3.00 x"));
    }
}
