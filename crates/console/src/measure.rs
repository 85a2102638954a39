//! Rows of a benchmark with their goals, and percentiles.

use crate::output::table;
use serde::Serialize;

/// Goal of cold with a region against no region.
pub const COLD_GOAL: f64 = 1.1;

/// One line of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// Name of the measurement.
    pub name: String,
    /// Unit of `p50` and `p99`.
    pub unit: &'static str,
    /// Median.
    pub p50: f64,
    /// 99th percentile (the worst, of fewer than a hundred).
    pub p99: f64,
    /// Ratio to the reference in the name, in the same run.
    pub ratio: Option<f64>,
    /// The most that the ratio should be (or the least, if the name says so).
    pub goal: Option<f64>,
    /// Whether the goal is met.
    pub met: Option<bool>,
}

/// A benchmark's rows as a table; without goals, it has no columns for them.
pub fn bench_table(rows: &[BenchRow]) -> String {
    let number = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:.2}"));
    let header = ["name", "p50", "p99", "unit", "ratio", "goal", "met"];
    let columns = if rows.iter().any(|row| row.goal.is_some()) { header.len() } else { header.len() - 2 };
    let mut out = table(&header[..columns]);
    for row in rows {
        let cells = [
            row.name.clone(),
            format!("{:.2}", row.p50),
            format!("{:.2}", row.p99),
            row.unit.to_owned(),
            number(row.ratio),
            number(row.goal),
            row.met.map_or_else(String::new, |met| if met { "yes" } else { "no" }.to_owned()),
        ];
        out.add_row(cells.into_iter().take(columns));
    }
    out.to_string()
}

/// Median and 99th percentile.
pub fn percentiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).ceil() as usize];
    (values[(values.len() - 1) / 2], at(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        assert_eq!(percentiles(vec![3.0, 1.0, 2.0]), (2.0, 3.0));
        assert_eq!(percentiles((0..1000).map(f64::from).collect()), (499.0, 990.0));
        assert_eq!(percentiles(vec![5.0]), (5.0, 5.0));
    }
}
