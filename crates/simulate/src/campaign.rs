//! Many seeds: exploring, repeating one, and leaving things out to see that it is noticed.

use crate::Args;
use crate::oracle::Violation;
use crate::run::{Outcome, POINTS, run};
use cenote_weakmem::{Mutation, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A run that reached less than it was asked for proves less than it says.
const EXIT_SHORTFALL: u8 = 16;
/// Something was left out and nobody noticed.
const EXIT_UNNOTICED: u8 = 17;

/// Deliberate mistakes that the pool can be made to make.
const SABOTAGES: &[&str] = &[
    "publish.ready-early",
    "publish.generation-kept",
    "read.seen-early",
    "read.recheck-skipped",
    "read.checksum-skipped",
    "evict.scan-skipped",
    "pin.recheck-skipped",
    "index.overflow-uncounted",
    "bakery.choosing-ignored",
    "lock.repair-skipped",
    "recover.evicting-revived",
];

/// Chooses the deliberate mistake of this process.
pub fn sabotage(name: Option<&str>) -> Result<(), String> {
    #[cfg(feature = "sabotage")]
    cenote_base::fault::sabotage::choose(name);
    #[cfg(not(feature = "sabotage"))]
    if name.is_some() {
        return Err("this build makes no deliberate mistakes; build it with --features sabotage".to_owned());
    }
    Ok(())
}

#[derive(Default)]
struct Total {
    seeds: u64,
    operations: u64,
    process_crashes: u64,
    host_crashes: u64,
    reads_whole: u64,
    reads_missed: u64,
    pins: u64,
    points: BTreeMap<&'static str, u64>,
    deaths_at: BTreeMap<&'static str, u64>,
    sites: BTreeMap<Site, u64>,
    failures: Vec<(u64, Vec<Violation>)>,
}

impl Total {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.operations += outcome.report.operations;
        self.process_crashes += outcome.report.process_crashes;
        self.host_crashes += outcome.report.host_crashes;
        self.reads_whole += outcome.reads_whole;
        self.reads_missed += outcome.reads_missed;
        self.pins += outcome.pins;
        for (name, count) in outcome.report.points {
            *self.points.entry(name).or_default() += count;
        }
        for (name, count) in outcome.report.deaths_at {
            *self.deaths_at.entry(name).or_default() += count;
        }
        for (site, count) in outcome.report.sites {
            *self.sites.entry(site).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            self.failures.push((seed, outcome.violations));
        }
    }
}

/// Runs seeds on all processors, until one fails if `stop_early`.
fn run_seeds(first: u64, count: u64, mutation: Option<&Mutation>, stop_early: bool) -> Total {
    let total = Mutex::new(Total::default());
    let next = AtomicU64::new(first);
    let stop = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let outcome = run(seed, mutation, false);
                    if stop_early && !outcome.violations.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    total.lock().expect("plain sums").add(seed, outcome);
                }
            });
        }
    });
    let mut total = total.into_inner().expect("plain sums");
    total.failures.sort_by_key(|(seed, _)| *seed);
    total
}

fn repeat_command(seed: u64, args: &Args) -> String {
    let mut command = format!("cargo xtask simulate --repeat {seed}");
    if let Some(mutation) = &args.without {
        command += &format!(" --without {mutation}");
    }
    if let Some(name) = &args.sabotage {
        command += &format!(" --sabotage {name}");
    }
    command
}

/// Runs all seeds; fails if one does, or if they reached less than they should.
pub fn explore(args: &Args) -> ExitCode {
    let start = Instant::now();
    let total = run_seeds(args.first, args.seeds, args.without.as_ref(), false);
    println!(
        "{} seeds, {} operations, {} processes and {} hosts died, {} reads whole, {} missed, {} blocks used in place, {:.1} s",
        total.seeds,
        total.operations,
        total.process_crashes,
        total.host_crashes,
        total.reads_whole,
        total.reads_missed,
        total.pins,
        start.elapsed().as_secs_f64()
    );
    println!("fault points passed / died at:");
    for name in POINTS {
        let passed = total.points.get(name).copied().unwrap_or(0);
        let died = total.deaths_at.get(name).copied().unwrap_or(0);
        println!("  {name:<20} {passed:>9} {died:>7}");
    }
    println!("{} places call the fabric", total.sites.len());
    for (seed, violations) in total.failures.iter().take(40) {
        println!("seed {seed}: {}", violations[0]);
        if args.verbose {
            violations.iter().skip(1).for_each(|violation| println!("    {violation}"));
            println!("    {:?}", crate::scenario::Shape::of_seed(*seed));
        }
        println!("  repeat: {}", repeat_command(*seed, args));
    }
    if let Some((_, violations)) = total.failures.first() {
        println!("{} of {} seeds failed", total.failures.len(), total.seeds);
        return ExitCode::from(violations[0].checker.exit_code());
    }
    let short = shortfalls(&total, args);
    if !short.is_empty() {
        short.iter().for_each(|fact| println!("too little: {fact}"));
        return ExitCode::from(EXIT_SHORTFALL);
    }
    println!("clean");
    ExitCode::SUCCESS
}

/// What a campaign of this size should have reached and did not.
fn shortfalls(total: &Total, args: &Args) -> Vec<String> {
    let mut short = Vec::new();
    if total.seeds < args.seeds {
        short.push(format!("{} of {} seeds ran", total.seeds, args.seeds));
    }
    // Rates are drawn per seed, so a handful of seeds may happen to be quiet.
    if args.seeds >= 100 {
        if total.process_crashes < args.seeds / 4 || total.host_crashes < args.seeds / 10 {
            short.push(format!("{} processes and {} hosts died", total.process_crashes, total.host_crashes));
        }
        short.extend(
            POINTS
                .iter()
                .filter(|name| !total.points.contains_key(*name))
                .map(|name| format!("fault point {name} was never passed")),
        );
    }
    if args.seeds >= 1000 {
        short.extend(
            POINTS
                .iter()
                .filter(|name| !total.deaths_at.contains_key(*name))
                .map(|name| format!("nobody died at fault point {name}")),
        );
    }
    short
}

/// Runs one seed and tells what came before its end.
pub fn repeat(seed: u64, args: &Args) -> ExitCode {
    let outcome = run(seed, args.without.as_ref(), true);
    outcome.report.trace.iter().for_each(|line| println!("{line}"));
    println!("seed {seed}: {} operations, {:?}", outcome.report.operations, crate::scenario::Shape::of_seed(seed));
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
    match outcome.violations.first() {
        Some(violation) => ExitCode::from(violation.checker.exit_code()),
        None => {
            println!("clean");
            ExitCode::SUCCESS
        }
    }
}

/// Leaves out one thing after the other. Each must be noticed within the given number of seeds.
pub fn mutate(args: &Args) -> ExitCode {
    let start = Instant::now();
    let sound = run_seeds(args.first, args.seeds.min(200), None, true);
    if let Some((seed, violations)) = sound.failures.first() {
        println!("seed {seed} fails with nothing left out: {}", violations[0]);
        return ExitCode::from(violations[0].checker.exit_code());
    }
    let mutations: BTreeSet<Mutation> = sound
        .sites
        .keys()
        .filter(|site| site.file.starts_with("crates/pool/"))
        .flat_map(|site| site.effects().iter().map(|&effect| site.without(effect)))
        .collect();
    let wanted = |text: &str| args.only.as_ref().is_none_or(|only| text.contains(only.as_str()));
    let mut unnoticed = Vec::new();
    let mut noticed = 0;
    for mutation in mutations {
        if !wanted(&mutation.to_string()) {
            continue;
        }
        let total = run_seeds(args.first, args.seeds, Some(&mutation), true);
        judge(&format!("--without {mutation}"), &total, &mut noticed, &mut unnoticed);
    }
    if cfg!(feature = "sabotage") {
        for name in SABOTAGES.iter().filter(|name| wanted(name)) {
            let _ = sabotage(Some(name));
            let total = run_seeds(args.first, args.seeds, None, true);
            judge(&format!("--sabotage {name}"), &total, &mut noticed, &mut unnoticed);
        }
        let _ = sabotage(None);
    }
    println!("{noticed} noticed, {} not, {:.0} s", unnoticed.len(), start.elapsed().as_secs_f64());
    if unnoticed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNNOTICED) }
}

fn judge(what: &str, total: &Total, noticed: &mut u64, unnoticed: &mut Vec<String>) {
    match total.failures.first() {
        Some((seed, violations)) => {
            *noticed += 1;
            println!("noticed    {what} --repeat {seed}  ({})", violations[0]);
        }
        None => {
            println!("UNNOTICED  {what}  ({} seeds)", total.seeds);
            unnoticed.push(what.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_weakmem::Effect;

    #[test]
    fn some_seeds_hold_and_have_deaths() {
        let total = run_seeds(0, 60, None, false);
        assert_eq!(total.failures, []);
        assert!(
            total.process_crashes > 10 && total.host_crashes > 3,
            "{} {}",
            total.process_crashes,
            total.host_crashes
        );
        assert!(total.reads_whole > 500 && total.pins > 20);
    }

    #[test]
    fn a_seed_is_the_same_every_time() {
        for seed in [2, 7] {
            let (left, right) = (run(seed, None, true).report, run(seed, None, true).report);
            assert_eq!(left.operations, right.operations);
            assert_eq!(left.sites, right.sites);
            assert!(left.trace == right.trace, "seed {seed}");
        }
    }

    /// The canary: a reader that keeps stale payload lines must be noticed, or the model models nothing.
    #[test]
    fn a_missing_sweep_is_noticed() {
        let sound = run_seeds(0, 4, None, false);
        let is_sweep = |site: &&Site| site.method == "refresh_payload" && site.file.ends_with("blocks.rs");
        let mutation = sound.sites.keys().find(is_sweep).expect("reads sweep").without(Effect::Invalidation);
        let total = run_seeds(0, 60, Some(&mutation), true);
        let (_, violations) = total.failures.first().expect("some seed notices");
        assert_eq!(violations[0].checker, crate::oracle::Checker::Blocks);
    }
}
