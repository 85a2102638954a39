//! Recomputes the tables and figures of five papers with the product's policies on modelled hardware,
//! and computes a verdict for each row.
//!
//! A paper's printed values live in the file `paper.rs` of its folder. Experiments produce
//! [`Measured`] rows and cannot see them: that module is private to the door file, which passes it to
//! the registry. [`join`] alone has both, and a test checks the sources.

pub mod groups;
pub mod page;
pub mod report;
pub mod row;
pub mod verdict;

mod cpen;
mod engram;
mod oaken;
mod speckv;
mod tract;

use row::{Measured, Printed, Row, join};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all experiments get.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Seed of loads and drawn values.
    pub seed: u64,
    /// Which of the runs this is.
    pub run: u64,
    /// Whether costly sensitivities are wanted: of the first of several runs.
    pub is_varied: bool,
}

/// Seeds of a reproduction.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// The seed that the caller names. Others draw other seeds for all runs.
    pub seed: u64,
    /// Runs of experiments that draw.
    pub runs: u64,
}

impl Draws {
    /// Runs of experiments that draw, usually.
    pub const RUNS: u64 = 10;
    /// Distance of seeds: an experiment may count on from its own.
    const APART: u64 = 100;

    /// Contexts of an experiment's runs.
    fn contexts(self, experiment: &Experiment) -> impl Iterator<Item = Context> {
        let runs = if experiment.draws { self.runs } else { 1 };
        (0..runs).map(move |run| Context {
            seed: (self.seed * Self::RUNS + run) * Self::APART,
            run,
            is_varied: run == 0 && self.runs > 1,
        })
    }
}

/// Some rows of a paper, computed together.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Name, as in `speckv.table3`.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Beginnings of the ids of its rows.
    pub covers: &'static [&'static str],
    /// Whether it takes seconds at most, so that a test recomputes it.
    pub is_quick: bool,
    /// Whether the seed changes its values.
    pub draws: bool,
    /// Computes the rows.
    pub run: fn(&Context) -> Vec<Measured>,
}

/// A paper: what it prints, and the experiments that recompute it.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Name on command lines.
    pub id: &'static str,
    /// Title for readers.
    pub title: &'static str,
    /// Its printed values.
    pub printed: &'static [Printed],
    /// Experiments that compute them.
    pub experiments: &'static [Experiment],
}

/// All papers.
pub const PAPERS: &[&Paper] = &[&speckv::PAPER, &engram::PAPER, &tract::PAPER, &oaken::PAPER, &cpen::PAPER];

/// Their number.
const PAPER_COUNT: usize = PAPERS.len();

/// The rows of a paper.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Reproduction {
    /// The paper's name.
    pub paper: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Whether all rows are here.
    pub is_whole: bool,
    /// The rows, in the order of the paper.
    pub rows: Vec<Row>,
}

/// Names that select rows: `all`, a paper, an experiment, or the beginning of a row's id.
#[derive(Clone, Debug)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Checks names.
    ///
    /// # Errors
    /// Returns the first name that selects nothing.
    pub fn new(names: &[String]) -> Result<Self, String> {
        let selection = Self(if names.is_empty() { vec!["all".to_owned()] } else { names.to_vec() });
        let fails = |name: &&String| {
            let one = Self(vec![(*name).clone()]);
            !PAPERS.iter().any(|paper| paper.printed.iter().any(|printed| one.has(paper, printed.id)))
        };
        match selection.0.iter().find(fails) {
            Some(name) => Err(name.clone()),
            None => Ok(selection),
        }
    }

    /// Whether a row is selected.
    fn has(&self, paper: &Paper, id: &str) -> bool {
        let by_experiment =
            |name: &str| paper.experiments.iter().any(|experiment| experiment.id == name && experiment.has(id));
        self.0.iter().any(|name| name == "all" || is_below(id, name) || by_experiment(name))
    }

    /// The experiments that compute selected rows.
    #[must_use]
    pub fn experiments(&self) -> Vec<&'static Experiment> {
        let of = |paper: &&'static Paper| {
            let paper: &'static Paper = paper;
            let wanted = |experiment: &&Experiment| {
                paper.printed.iter().any(|printed| experiment.has(printed.id) && self.has(paper, printed.id))
            };
            paper.experiments.iter().filter(wanted).collect::<Vec<_>>()
        };
        PAPERS.iter().flat_map(of).collect()
    }
}

impl Experiment {
    /// Whether it computes the row with this id.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.covers.iter().any(|prefix| is_below(id, prefix))
    }
}

/// Whether `id` is `prefix` or continues it after a dot.
fn is_below(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Gets an experiment, the number of its run, and the run.
pub type Each<'a> = dyn Fn(&Experiment, u64, &mut dyn FnMut()) + Sync + 'a;

/// Runs the selected experiments on `threads` threads. Results do not depend on their number.
/// `each` gets each experiment and its run's number, and runs it by calling the function, so that it may
/// report and time it.
#[must_use]
pub fn run(selection: &Selection, draws: Draws, threads: usize, each: &Each<'_>) -> Vec<Reproduction> {
    let experiments = selection.experiments();
    let tasks: Vec<(&Experiment, Context)> = experiments
        .iter()
        .flat_map(|experiment| draws.contexts(experiment).map(move |context| (*experiment, context)))
        .collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Vec<Measured>>>> = Mutex::new(vec![None; tasks.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((experiment, context)) = tasks.get(at) else { break };
                    let mut rows = Vec::new();
                    each(experiment, context.run, &mut || rows = (experiment.run)(context));
                    check(experiment, &rows);
                    done.lock().expect("no experiment panicked")[at] = Some(rows);
                }
            });
        }
    });
    let done = done.into_inner().expect("no experiment panicked");
    let runs = tasks.iter().zip(done).map(|((experiment, _), rows)| (experiment.id, rows.expect("all tasks ran")));
    let mut by_row: BTreeMap<&'static str, Vec<Measured>> = BTreeMap::new();
    for row in runs.flat_map(|(_, rows)| rows) {
        by_row.entry(row.id).or_default().push(row);
    }
    let measured: BTreeMap<&'static str, Measured> =
        by_row.into_iter().map(|(id, runs)| (id, Measured::combine(&runs))).collect();
    let of = |paper: &&'static Paper| {
        let wanted = paper.printed.iter().filter(|printed| selection.has(paper, printed.id));
        let rows: Vec<Row> = wanted.map(|printed| join(printed, measured.get(printed.id))).collect();
        Reproduction { paper: paper.id, title: paper.title, is_whole: rows.len() == paper.printed.len(), rows }
    };
    PAPERS.iter().map(of).filter(|reproduction| !reproduction.rows.is_empty()).collect()
}

/// Runs that [`run`] makes.
#[must_use]
pub fn num_runs(selection: &Selection, draws: Draws) -> u64 {
    selection.experiments().iter().map(|experiment| draws.contexts(experiment).count() as u64).sum()
}

/// An experiment measures the rows that it covers, all of them, and no others.
fn check(experiment: &Experiment, rows: &[Measured]) {
    for row in rows {
        assert!(experiment.has(row.id), "{} does not cover {}", experiment.id, row.id);
    }
    let printed = PAPERS.iter().flat_map(|paper| paper.printed);
    for expected in printed.filter(|row| !row.is_arithmetic && experiment.has(row.id)) {
        let count = rows.iter().filter(|row| row.id == expected.id).count();
        assert_eq!(count, 1, "{}: rows of {}", experiment.id, expected.id);
    }
}

#[cfg(test)]
mod tests;
