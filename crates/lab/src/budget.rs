//! Studies one memory budget for KV blocks and rows of n-gram tables: fixed shares against the arbiter
//! of the product, on loads with and without phases.

use cenote_serving_sim::budget::{Division, MixedLoad, Outcome, Setup, serve};
use cenote_serving_sim::workload::{Length, Synthetic, Workload};
use serde::Serialize;

/// Shares of KV that are compared, in percent. One in five percent is tried for the best one.
pub const SHOWN: [u64; 7] = [0, 10, 25, 50, 75, 90, 100];
const STEP: u64 = 5;
/// The arbiter may be so much slower than the best fixed share on a load without phases.
pub const TOLERANCE: f64 = 0.05;
/// Phases of each kind in a load with phases.
const PHASES: usize = 3;

/// One load with all divisions.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The load.
    pub load: String,
    /// Whether the load has phases.
    pub has_phases: bool,
    /// Requests of the load.
    pub requests: usize,
    /// The shown fixed shares.
    pub fixed: Vec<Outcome>,
    /// The fixed share with the least time, known afterwards.
    pub best: Outcome,
    /// The arbiter.
    pub arbiter: Outcome,
    /// The arbiter's time over the best fixed share's, less one.
    pub excess: f64,
    /// Without phases: within [`TOLERANCE`] of the best fixed share. With phases: faster than it.
    pub is_met: bool,
}

/// A load and its name.
pub struct Named {
    name: String,
    has_phases: bool,
    load: MixedLoad,
}

/// Prompts of groups with a common prefix, or without (TraCT's workload A, in blocks of 512 tokens, of
/// 1024 groups).
fn prompts(requests: usize, share: bool, seed: u64) -> Workload {
    Synthetic {
        requests,
        rate: 1.0,
        input: Length { mean: 4_449.0, deviation: 2_424.0 },
        output: Length { mean: 215.0, deviation: 263.0 },
        unique: share.then_some(Length { mean: 1_073.0, deviation: 1_549.0 }),
        groups: 1024,
        block_tokens: 512,
    }
    .draw(seed)
}

/// The loads of the study. `chat`: requests of a trace, if there is one.
#[must_use]
pub fn loads(setup: &Setup, requests: usize, chat: Option<&Workload>) -> Vec<Named> {
    let (shared, alone) = (prompts(requests, true, setup.seed), prompts(requests, false, setup.seed + 1));
    let phase = requests.div_ceil(PHASES);
    let stationary = |name: &str, of: &[&Workload]| Named {
        name: name.to_owned(),
        has_phases: false,
        load: MixedLoad::of(setup, of, 1),
    };
    let phases = |name: &str, of: &[&Workload]| Named {
        name: name.to_owned(),
        has_phases: true,
        load: MixedLoad::of(setup, of, phase),
    };
    let mut loads = vec![
        stationary("shared prefixes", &[&shared]),
        stationary("unshared prompts", &[&alone]),
        stationary("both mixed", &[&shared, &alone]),
        phases("both by turns", &[&shared, &alone]),
    ];
    if let Some(chat) = chat {
        loads.push(stationary("chat", &[chat]));
        loads.push(stationary("chat and unshared mixed", &[chat, &alone]));
        loads.push(phases("chat and unshared by turns", &[chat, &alone]));
        loads.push(phases("chat, shared, unshared by turns", &[chat, &shared, &alone]));
    }
    loads
}

/// Runs of [`compare`] for one load.
pub const RUNS: u64 = 100 / STEP + 2;

/// Serves a load with all divisions.
pub fn compare(setup: &Setup, named: &Named, progress: &mut dyn FnMut()) -> Compared {
    let mut run = |division| {
        let outcome = serve(setup, &named.load, division);
        progress();
        outcome
    };
    let fixed: Vec<Outcome> = (0..=100 / STEP).map(|part| run(Division::Fixed(part * STEP))).collect();
    let arbiter = run(Division::Arbiter);
    let best = fixed.iter().min_by(|one, other| one.ns_per_token().total_cmp(&other.ns_per_token()));
    let best = best.expect("a share was tried").clone();
    let excess = arbiter.ns_per_token() / best.ns_per_token() - 1.0;
    let is_shown = |outcome: &Outcome| matches!(outcome.division, Division::Fixed(percent) if SHOWN.contains(&percent));
    Compared {
        load: named.name.clone(),
        has_phases: named.has_phases,
        requests: named.load.jobs().len(),
        fixed: fixed.into_iter().filter(is_shown).collect(),
        best,
        arbiter,
        excess,
        is_met: if named.has_phases { excess < 0.0 } else { excess <= TOLERANCE },
    }
}
