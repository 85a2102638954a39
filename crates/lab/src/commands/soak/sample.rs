//! Samples of a soak: what it was like in one interval. They lie in a file, a line each, so that a run
//! that was ended goes on.

use cenote_console::failure::Failure;
use cenote_console::input;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

/// What the kernel says about a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Bytes in memory, those of the region included.
    pub rss_bytes: u64,
    /// Bytes in memory that no file has.
    pub anonymous_bytes: u64,
    pub descriptors: u64,
    pub threads: u64,
}

/// Counts of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub kills: u64,
    pub host_restarts: u64,
    pub answers: u64,
    /// Answers without the region, with which others are compared.
    pub references: u64,
    /// Answers that differ from the one without the region.
    pub wrong: u64,
    /// Processes that failed, requests that were lost, reads of metrics that failed.
    pub failures: u64,
    /// Requests without an answer, and processes that did not start or end in time.
    pub hangs: u64,
    /// Requests that ended with their killed server.
    pub ended_by_kills: u64,
    /// Requests that a front refused because it had no worker (status 503).
    pub refused: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Pages of metrics that were read.
    pub scrapes: u64,
    /// Prompts that `pool explain` explained.
    pub explained: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in [
            (&mut self.kills, other.kills),
            (&mut self.host_restarts, other.host_restarts),
            (&mut self.answers, other.answers),
            (&mut self.references, other.references),
            (&mut self.wrong, other.wrong),
            (&mut self.failures, other.failures),
            (&mut self.hangs, other.hangs),
            (&mut self.ended_by_kills, other.ended_by_kills),
            (&mut self.refused, other.refused),
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.scrapes, other.scrapes),
            (&mut self.explained, other.explained),
        ] {
            *sum += count;
        }
    }

    /// Share of the prompts' tokens that came from the region or the cold tier.
    pub fn hit_share(&self) -> Option<f64> {
        (self.prompt_tokens > 0).then(|| self.cached_tokens as f64 / self.prompt_tokens as f64)
    }
}

/// One interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds of the soak at its end, over all calls.
    pub at_s: f64,
    /// The number of the call, from 1.
    pub call: u64,
    pub counts: Counts,
    /// Milliseconds to the first token: median and 99th percentile of the interval's answers.
    pub first_token_ms: Option<(f64, f64)>,
    /// Processes that are never killed, by name.
    pub processes: BTreeMap<String, Process>,
    /// Gauges and counters of the region by name, from `cenote pool metrics`.
    pub region: BTreeMap<String, f64>,
    pub cold_bytes: u64,
    /// What was found, as text; the counts have the numbers.
    pub findings: Vec<String>,
    /// After the run's end: whether the region had neither leak nor damage.
    pub is_clean: Option<bool>,
}

/// A file that grows over all calls of a run.
pub fn open_to_append(path: &Path) -> Result<File, Failure> {
    // tidy: the run's own file, in the folder that its user names for outputs
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Appends a sample to a file.
pub fn append(path: &Path, sample: &Sample) -> Result<(), Failure> {
    let line = serde_json::to_string(sample)? + "\n";
    let written = open_to_append(path)?.write_all(line.as_bytes());
    written.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// All samples of a file; none without one. A last line that a killed run left half-written is dropped.
pub fn read(path: &Path) -> Result<Vec<Sample>, Failure> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let named = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let text = input::text(path).map_err(named)?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        std::fs::write(path, &text[..whole]).map_err(|error| named(error.to_string()))?;
    }
    let parse = |line: &str| serde_json::from_str(line).map_err(|error| named(error.to_string()));
    text[..whole].lines().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_killed_run_left_half_written_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("samples");
        assert_eq!(read(&path).expect("there is none yet"), []);
        let sample = |at_s: f64| Sample { at_s, first_token_ms: Some((1.5, 9.0)), ..Sample::default() };
        append(&path, &sample(10.0)).expect("the folder is writable");
        let whole = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, [&whole[..], &whole[..whole.len() / 2]].concat()).expect("it is there");
        assert_eq!(read(&path).expect("the rest is whole"), [sample(10.0)]);
        append(&path, &sample(20.0)).expect("the folder is writable");
        assert_eq!(read(&path).expect("all are whole"), [sample(10.0), sample(20.0)]);
    }

    #[test]
    fn counts_add_up() {
        let mut sum = Counts { answers: 1, prompt_tokens: 10, ..Counts::default() };
        assert_eq!(sum.hit_share(), Some(0.0));
        sum.add(&Counts { answers: 2, prompt_tokens: 10, cached_tokens: 5, wrong: 1, ..Counts::default() });
        assert_eq!((sum.answers, sum.wrong, sum.hit_share()), (3, 1, Some(0.25)));
        assert_eq!(Counts::default().hit_share(), None);
    }
}
