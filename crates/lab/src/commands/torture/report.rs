//! Result of a torture: figures, their goals, and the report.

use super::ledger::Increments;
use cenote_console::output::{facts, table, wrapped};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Exit code if bytes were wrong, or anything was lost or damaged.
pub const WRONG: u8 = 3;
/// Exit code if a child hung.
pub const HUNG: u8 = 4;
/// Exit code if nothing was wrong, but the run missed its goals.
pub const TOO_LITTLE: u8 = 5;

/// Runs of at least this many seconds have goals.
pub const GOALS_FROM_SECONDS: f64 = 60.0;
const KILLS_GOAL: u64 = 100;
const CRITICAL_KILLS_GOAL: u64 = 20;
const FILL_GOAL: f64 = 0.95;
const CRITICAL_STOPS_GOAL: u64 = 10;
/// With several hosts.
const HOST_STOPS_GOAL: u64 = 2;

/// The report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub seconds: f64,
    pub processes: u64,
    pub hosts: u8,
    pub flush: &'static str,
    pub seed: u64,
    pub region: String,
    pub region_bytes: u64,
    pub data_bytes: u64,
    pub operations: BTreeMap<&'static str, u64>,
    /// Children that ended by SIGKILL, at any point.
    pub kills: u64,
    pub kills_in_critical_sections: u64,
    /// Kills at each fault point.
    pub kills_by_fault_point: BTreeMap<&'static str, u64>,
    /// Number of times that a child was stopped for a while.
    pub stops: u64,
    /// Number of times that a child was stopped inside a critical section.
    pub stops_in_critical_sections: u64,
    /// Stops at each fault point.
    pub stops_by_fault_point: BTreeMap<&'static str, u64>,
    /// Number of times that all children of a host were stopped, one inside a critical section or at
    /// another fault point, beyond the time after which others declare the host dead.
    pub host_stops: u64,
    /// Number of times that all children of a host were killed at once.
    pub host_kills: u64,
    /// Of those, times that the host lost its own memory, too.
    pub host_reboots: u64,
    /// Readable bytes over bytes for blocks: nine of ten checks found at least this.
    pub fill: f64,
    pub fill_median: f64,
    pub fill_looks: usize,
    pub wrong_bytes: u64,
    /// Unreachable slots and chunks.
    pub leaked_bytes: u64,
    pub hangs: u64,
    /// Increments of locked counters that are missing or too many.
    pub increments_wrong: u64,
    pub increments_uncertain: u64,
    /// Structures or payloads that were corrupt at the end.
    pub damaged: u64,
    /// Slots still reserved and blocks still pinned when all processes had ended.
    pub left_reserved: u64,
    pub left_pinned: u64,
    /// Children that ended in any other way.
    pub failed_children: u64,
    pub lock_timeouts: u64,
    pub locks_abandoned: u64,
    pub recovered_workers: u64,
    pub recovered_reservations: u64,
    pub hosts_declared_dead: u64,
    pub chunks_adopted: u64,
    /// Corrupt structures that children found.
    pub damage_met: u64,
    /// Blocks that were still there at the end, with every byte compared.
    pub blocks_verified: u64,
    /// The first findings.
    pub findings: Vec<String>,
    /// Goals that the run missed.
    pub short_of: Vec<String>,
    pub pass: bool,
    /// Whether the run is long enough for goals.
    #[serde(skip)]
    pub has_goals: bool,
}

/// Findings that are kept verbatim.
const FINDINGS_MAX: usize = 32;

impl Report {
    pub fn find(&mut self, fact: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(fact);
        }
    }

    pub fn set_increments(&mut self, increments: Increments) {
        self.increments_wrong += increments.wrong();
        self.increments_uncertain = increments.uncertain;
        if increments.wrong() > 0 {
            self.find(format!("increments do not add up: {increments:?}"));
        }
    }

    /// From all checks of all children.
    pub fn set_fill(&mut self, mut looks: Vec<f64>) {
        looks.sort_by(f64::total_cmp);
        let at = |percent: usize| looks.get(looks.len() * percent / 100).copied().unwrap_or(0.0);
        (self.fill, self.fill_median, self.fill_looks) = (at(10), at(50), looks.len());
    }

    fn wrong(&self) -> u64 {
        let lost = self.leaked_bytes + self.left_reserved + self.left_pinned;
        self.wrong_bytes + lost + self.increments_wrong + self.damaged + self.failed_children
    }

    /// Checks the figures against their goals; returns the exit code.
    pub fn judge(&mut self) -> u8 {
        if self.has_goals {
            if self.kills < KILLS_GOAL {
                self.short_of.push(format!("{} kills, {KILLS_GOAL} are the least", self.kills));
            }
            if self.kills_in_critical_sections < CRITICAL_KILLS_GOAL {
                let kills = self.kills_in_critical_sections;
                self.short_of.push(format!("{kills} kills in critical sections, {CRITICAL_KILLS_GOAL} are the least"));
            }
            if self.stops_in_critical_sections < CRITICAL_STOPS_GOAL {
                let stops = self.stops_in_critical_sections;
                self.short_of.push(format!("{stops} stops in critical sections, {CRITICAL_STOPS_GOAL} are the least"));
            }
            if self.hosts > 1 && self.host_stops < HOST_STOPS_GOAL {
                self.short_of.push(format!("{} stops of a host, {HOST_STOPS_GOAL} are the least", self.host_stops));
            }
            if self.fill < FILL_GOAL {
                self.short_of.push(format!("the region was {:.3} full, {FILL_GOAL} is the least", self.fill));
            }
        }
        let code = if self.wrong() > 0 {
            WRONG
        } else if self.hangs > 0 {
            HUNG
        } else if self.short_of.is_empty() {
            0
        } else {
            TOO_LITTLE
        };
        self.pass = code == 0;
        code
    }

    /// One line on the failure.
    pub fn failure(&self) -> String {
        if self.wrong() > 0 {
            return format!(
                "{} wrong bytes, {} leaked bytes, {} damaged, {} increments wrong, {} reserved and {} pinned left, \
                 {} children failed",
                self.wrong_bytes,
                self.leaked_bytes,
                self.damaged,
                self.increments_wrong,
                self.left_reserved,
                self.left_pinned,
                self.failed_children
            );
        }
        if self.hangs > 0 {
            return format!("{} children hung", self.hangs);
        }
        format!("nothing is wrong, but the run was too little: {}", self.short_of.join("; "))
    }

    pub fn text(&self) -> String {
        let mut points = table(&["at", "killed", "stopped"]);
        let both: BTreeSet<_> = self.kills_by_fault_point.keys().chain(self.stops_by_fault_point.keys()).collect();
        for point in both {
            let times = |of: &BTreeMap<_, u64>| of.get(point).copied().unwrap_or(0).to_string();
            let (kills, stops) = (times(&self.kills_by_fault_point), times(&self.stops_by_fault_point));
            points.add_row([(*point).to_owned(), kills, stops]);
        }
        let done = self.operations.iter().filter(|(_, times)| **times > 0);
        let operations: Vec<String> = done.map(|(operation, times)| format!("{times}\u{a0}{operation}")).collect();
        let hosts = if self.hosts > 1 {
            format!(
                "{}, flushed with {}; {} times all of one were killed and {} times stopped, {} declared dead, {} chunks \
                 adopted",
                self.hosts, self.flush, self.host_kills, self.host_stops, self.hosts_declared_dead, self.chunks_adopted
            )
        } else {
            format!("1, flush instruction {}", self.flush)
        };
        let rows = facts(&[
            ("seed", self.seed.to_string()),
            ("ran", format!("{:.1} s with {} processes", self.seconds, self.processes)),
            ("hosts", hosts),
            ("kills", format!("{}, {} in critical sections", self.kills, self.kills_in_critical_sections)),
            (
                "stops",
                format!("{} at any instant, {} in critical sections", self.stops, self.stops_in_critical_sections),
            ),
            ("fill", format!("{:.3} (median {:.3})", self.fill, self.fill_median)),
            ("wrong bytes", self.wrong_bytes.to_string()),
            ("leaked bytes", self.leaked_bytes.to_string()),
            ("hangs", self.hangs.to_string()),
            ("increments wrong", format!("{} ({} died on the way)", self.increments_wrong, self.increments_uncertain)),
            ("damaged", self.damaged.to_string()),
            ("left", format!("{} reserved, {} pinned", self.left_reserved, self.left_pinned)),
            ("lock timeouts", format!("{}, {} locks abandoned", self.lock_timeouts, self.locks_abandoned)),
            ("recovered", format!("{} workers, {} reservations", self.recovered_workers, self.recovered_reservations)),
            ("verified", format!("{} blocks at the end", self.blocks_verified)),
            ("verdict", if self.pass { "pass" } else { "FAIL" }.to_owned()),
        ]);
        format!("{}\n\n{points}\n\n{rows}", wrapped(&operations.join(", "), ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_code() {
        let good = Report {
            has_goals: true,
            kills: KILLS_GOAL,
            kills_in_critical_sections: CRITICAL_KILLS_GOAL,
            stops_in_critical_sections: CRITICAL_STOPS_GOAL,
            fill: FILL_GOAL,
            ..Report::default()
        };
        assert_eq!(good.clone().judge(), 0);
        assert_eq!(Report { fill: 0.9, ..good.clone() }.judge(), TOO_LITTLE);
        assert_eq!(Report { fill: 0.9, has_goals: false, ..good.clone() }.judge(), 0, "a short run has no goals");
        assert_eq!(Report { hangs: 1, ..good.clone() }.judge(), HUNG);
        assert_eq!(Report { hangs: 1, wrong_bytes: 1, ..good.clone() }.judge(), WRONG);
        assert_eq!(Report { left_pinned: 1, ..good }.judge(), WRONG);
    }

    #[test]
    fn nine_of_ten_looks_found_at_least_the_fill() {
        let mut report = Report::default();
        report.set_fill((0..100).rev().map(f64::from).collect());
        assert_eq!((report.fill, report.fill_median), (10.0, 50.0));
    }
}
