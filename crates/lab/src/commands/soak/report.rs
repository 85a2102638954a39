//! The result of a soak: sums, what should stay flat, and the verdict.

use super::sample::{Counts, Sample};
use cenote_console::output::{facts, table};
use serde::Serialize;
use std::collections::BTreeSet;

/// Exit code if an answer was wrong, or memory leaked, or a process failed.
const WRONG: u8 = 3;
/// Exit code if something got no answer.
const HUNG: u8 = 4;
/// Exit code if something did not stay flat.
const NOT_FLAT: u8 = 5;
/// Shortest run whose values must be flat: until then the region and caches fill.
const GOALS_FROM_S: f64 = 1800.0;
/// Parts of the run that are compared, as shares of its time.
const EARLY: [f64; 2] = [0.1, 0.3];
const LATE: [f64; 2] = [0.8, 1.0];
/// Growth of memory that is none: allocators keep some.
const MEMORY_SHARE: f64 = 1.1;
const MEMORY_BYTES: f64 = (8 << 20) as f64;
/// Descriptors of connections that are open at the moment.
const DESCRIPTORS: f64 = 8.0;
const HIT_SHARE: f64 = 0.1;
const LATENCY_SHARE: f64 = 1.5;

/// A value early and late in the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    pub name: String,
    pub unit: &'static str,
    /// Medians.
    pub early: f64,
    pub late: f64,
    /// The highest late value that counts as flat, or the lowest of a hit share.
    pub limit: f64,
    pub is_flat: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub hours: f64,
    pub calls: u64,
    pub samples: usize,
    #[serde(flatten)]
    pub counts: Counts,
    pub hit_share: Option<f64>,
    /// Whether `pool check` found neither leak nor damage after the end.
    pub is_clean: bool,
    pub trends: Vec<Trend>,
    /// Whether the run was long enough for trends to count.
    pub has_goals: bool,
    pub findings: Vec<String>,
    pub pass: bool,
}

/// Sums of all counts.
pub fn sums(samples: &[Sample]) -> Counts {
    let mut sums = Counts::default();
    samples.iter().for_each(|sample| sums.add(&sample.counts));
    sums
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| values[values.len() / 2])
}

/// Medians of a value early and late; `None` if a part has none.
fn compared(samples: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Option<(f64, f64)> {
    let end = samples.last()?.at_s;
    let part = |[from, to]: [f64; 2]| {
        let within = samples.iter().filter(|sample| (from * end..=to * end).contains(&sample.at_s));
        median(within.filter_map(&of).collect())
    };
    Some((part(EARLY)?, part(LATE)?))
}

fn trends(samples: &[Sample]) -> Vec<Trend> {
    let mut trends = Vec::new();
    let mut add = |name: String, unit, of: &dyn Fn(&Sample) -> Option<f64>, limit: &dyn Fn(f64) -> f64, falls: bool| {
        let Some((early, late)) = compared(samples, of) else { return };
        let limit = limit(early);
        trends.push(Trend {
            name,
            unit,
            early,
            late,
            limit,
            is_flat: if falls { late >= limit } else { late <= limit },
        });
    };
    let names: BTreeSet<&String> = samples.iter().flat_map(|sample| sample.processes.keys()).collect();
    for name in names {
        let of = |sample: &Sample| Some(sample.processes.get(name)?.rss_bytes as f64);
        add(format!("memory of {name}"), "bytes", &of, &|early| early * MEMORY_SHARE + MEMORY_BYTES, false);
        let of = |sample: &Sample| Some(sample.processes.get(name)?.descriptors as f64);
        add(format!("descriptors of {name}"), "count", &of, &|early| early + DESCRIPTORS, false);
    }
    add("hit share".to_owned(), "share", &|sample| sample.counts.hit_share(), &|early| early - HIT_SHARE, true);
    let of = |sample: &Sample| Some(sample.first_token_ms?.0);
    add("first token, median".to_owned(), "ms", &of, &|early| early * LATENCY_SHARE, false);
    trends
}

impl Report {
    pub fn of(samples: &[Sample], seed: u64) -> Self {
        let counts = sums(samples);
        let seconds = samples.last().map_or(0.0, |last| last.at_s);
        let mut report = Self {
            seed,
            hours: seconds / 3600.0,
            calls: samples.last().map_or(0, |last| last.call),
            samples: samples.len(),
            hit_share: counts.hit_share(),
            counts,
            is_clean: samples.last().is_some_and(|last| last.is_clean == Some(true)),
            trends: trends(samples),
            has_goals: seconds >= GOALS_FROM_S,
            findings: samples.iter().flat_map(|sample| sample.findings.clone()).collect(),
            pass: false,
        };
        report.pass = report.code() == 0;
        report
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        if self.counts.wrong > 0 || self.counts.failures > 0 || !self.is_clean {
            WRONG
        } else if self.counts.hangs > 0 {
            HUNG
        } else if self.has_goals && self.trends.iter().any(|trend| !trend.is_flat) {
            NOT_FLAT
        } else {
            0
        }
    }

    /// One line on the failure.
    pub fn failure(&self) -> String {
        let Counts { wrong, failures, hangs, .. } = self.counts;
        if self.code() == NOT_FLAT {
            let names: Vec<&str> =
                self.trends.iter().filter(|trend| !trend.is_flat).map(|trend| trend.name.as_str()).collect();
            return format!("not flat: {}", names.join(", "));
        }
        let clean = if self.is_clean { "clean" } else { "not clean" };
        let first = self.findings.first().map_or("", String::as_str);
        format!("{wrong} wrong answers, {failures} failures, {hangs} hangs, the region is {clean}: {first}")
    }

    pub fn text(&self) -> String {
        let mut rows = table(&["value", "early", "late", "limit", "unit", "flat"]);
        for trend in &self.trends {
            let shown = |value: f64| match trend.unit {
                "bytes" => format!("{:.1} MiB", value / f64::from(1 << 20)),
                "count" => format!("{value:.0}"),
                _ => format!("{value:.2}"),
            };
            rows.add_row([
                trend.name.clone(),
                shown(trend.early),
                shown(trend.late),
                shown(trend.limit),
                trend.unit.to_owned(),
                if trend.is_flat { "yes" } else { "no" }.to_owned(),
            ]);
        }
        let counts = &self.counts;
        let rows_of_facts = facts(&[
            ("ran", format!("{:.2} h in {} calls, {} samples", self.hours, self.calls, self.samples)),
            ("kills", format!("{}, and {} restarts of a host", counts.kills, counts.host_restarts)),
            ("answers", format!("{} compared, {} wrong", counts.answers, counts.wrong)),
            ("hit share", self.hit_share.map_or_else(String::new, |share| format!("{share:.3}"))),
            ("ended by kills", format!("{} requests, {} refused meanwhile", counts.ended_by_kills, counts.refused)),
            ("looked at", format!("{} pages of metrics, {} explanations", counts.scrapes, counts.explained)),
            ("failures", format!("{}, {} hangs", counts.failures, counts.hangs)),
            ("region", if self.is_clean { "no leak, no damage" } else { "NOT CLEAN" }.to_owned()),
            ("verdict", if self.pass { "pass" } else { "FAIL" }.to_owned()),
        ]);
        let findings: String = self.findings.iter().map(|finding| format!("\n{finding}")).collect();
        format!("{rows}\n\n{rows_of_facts}{findings}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Process;
    use super::*;

    /// An hour, with memory that grows by so many bytes a sample.
    fn hour(growth: u64) -> Vec<Sample> {
        let sample = |number: u64| {
            let process = Process { rss_bytes: (100 << 20) + number * growth, descriptors: 20, ..Process::default() };
            let counts = Counts { answers: 1, prompt_tokens: 100, cached_tokens: 60, ..Counts::default() };
            Sample {
                at_s: (number + 1) as f64 * 10.0,
                call: 1,
                counts,
                first_token_ms: Some((20.0, 90.0)),
                processes: [("whole".to_owned(), process)].into(),
                ..Sample::default()
            }
        };
        let mut samples: Vec<Sample> = (0..360).map(sample).collect();
        samples[359].is_clean = Some(true);
        samples
    }

    #[test]
    fn a_leak_of_memory_is_no_pass() {
        let flat = Report::of(&hour(0), 1);
        assert_eq!((flat.code(), flat.pass, flat.trends.len()), (0, true, 4), "{flat:?}");
        let leak = Report::of(&hour(256 << 10), 1);
        assert_eq!((leak.code(), leak.pass), (NOT_FLAT, false));
        assert_eq!(leak.failure(), "not flat: memory of whole");
        assert!(leak.text().contains("memory of whole"));
        let mut short = hour(256 << 10)[..100].to_vec();
        short[99].is_clean = Some(true);
        let short = Report::of(&short, 1);
        assert_eq!((short.code(), short.has_goals), (0, false), "a short run has no goals");
    }

    #[test]
    fn a_lower_hit_share_and_a_higher_latency_are_no_pass() {
        let mut samples = hour(0);
        samples[280..].iter_mut().for_each(|sample| sample.counts.cached_tokens = 40);
        assert_eq!(Report::of(&samples, 1).failure(), "not flat: hit share");
        let mut samples = hour(0);
        samples[280..].iter_mut().for_each(|sample| sample.first_token_ms = Some((40.0, 90.0)));
        assert_eq!(Report::of(&samples, 1).failure(), "not flat: first token, median");
    }

    #[test]
    fn every_failure_has_its_code() {
        let with = |change: fn(&mut Counts)| {
            let mut samples = hour(0);
            change(&mut samples[5].counts);
            Report::of(&samples, 1).code()
        };
        assert_eq!(with(|counts| counts.wrong = 1), WRONG);
        assert_eq!(with(|counts| counts.failures = 1), WRONG);
        assert_eq!(with(|counts| counts.hangs = 1), HUNG);
        assert_eq!(with(|counts| counts.refused = 1), 0);
        assert_eq!(Report::of(&hour(0)[..359], 1).code(), WRONG, "a region that was not checked is not clean");
    }
}
