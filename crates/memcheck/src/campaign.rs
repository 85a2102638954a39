//! Campaigns of many seeds: exploration, and repetition of one seed.

use crate::Args;
use crate::oracle::Violation;
use crate::run::{Outcome, POINTS, Setting, run};
use cenote_base::Clock;
use cenote_base::fault::Point;
use cenote_memmodel::Site;
use cenote_pool::Design;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Exit code of a campaign that was clean but reached too few crashes or fault points.
pub const EXIT_SHORTFALL: u8 = 16;
/// Default number of seeds of `--mutate`.
const MUTATE_SEEDS: u64 = 2000;

/// Sums of the outcomes of seeds.
#[derive(Default)]
pub struct Total {
    pub seeds: u64,
    operations: u64,
    process_crashes: u64,
    host_crashes: u64,
    reads_whole: u64,
    reads_missed: u64,
    pins: u64,
    remote_whole: u64,
    remote_stale: u64,
    points: BTreeMap<Point, u64>,
    deaths_at: BTreeMap<Point, u64>,
    sites: BTreeMap<Site, u64>,
    pub failures: Vec<(u64, Vec<Violation>)>,
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
        self.remote_whole += outcome.remote_whole;
        self.remote_stale += outcome.remote_stale;
        for (point, count) in outcome.report.points {
            *self.points.entry(point).or_default() += count;
        }
        for (point, count) in outcome.report.deaths_at {
            *self.deaths_at.entry(point).or_default() += count;
        }
        for (site, count) in outcome.report.sites {
            *self.sites.entry(site).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            self.failures.push((seed, outcome.violations));
        }
    }
}

/// Runs seeds on all processors and passes each outcome to `see`, until it returns `Break`.
pub fn run_each(seeds: &[u64], setting: &Setting, see: impl Fn(u64, Outcome) -> ControlFlow<()> + Sync) {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if see(seed, run(seed, setting)).is_break() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// Sums the outcomes of seeds. With `stop_early`, stops after the first failure.
pub fn run_seeds(seeds: &[u64], setting: &Setting, stop_early: bool) -> Total {
    let total = Mutex::new(Total::default());
    run_each(seeds, setting, |seed, outcome| {
        let stop = stop_early && !outcome.violations.is_empty();
        total.lock().expect("plain sums").add(seed, outcome);
        if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let mut total = total.into_inner().expect("plain sums");
    total.failures.sort_by_key(|(seed, _)| *seed);
    total
}

impl Args {
    fn setting(&self) -> Setting {
        let place = self.without.as_ref().map(|mutation| mutation.place.clone());
        Setting {
            without: self.without.clone(),
            focus: self.focus.clone().or(place),
            deadly: self.deadly,
            traced: self.repeat.is_some(),
            design: self.design,
        }
    }

    /// How many seeds to run.
    pub fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(if self.mutate { MUTATE_SEEDS } else { 200 })
    }

    /// The seeds to run.
    pub fn all_seeds(&self) -> Vec<u64> {
        (self.first..self.first + self.seeds()).collect()
    }
}

fn repeat_command(seed: u64, args: &Args) -> String {
    let mut command = format!("cargo xtask simulate --repeat {seed}");
    if args.design != Design::Cenote {
        command += &format!(" --design {}", args.design.name());
    }
    if let Some(mutation) = &args.without {
        command += &format!(" --without {mutation}");
    }
    if let Some(place) = &args.focus {
        command += &format!(" --focus {place}");
    }
    if let Some(point) = args.deadly {
        command += &format!(" --deadly {point}");
    }
    if let Some(name) = args.sabotage {
        command += &format!(" --sabotage {name}");
    }
    command
}

/// The clock of reports, and its time now. The time of a run is the model's.
#[allow(clippy::disallowed_methods, reason = "a report tells how long its campaign took")]
pub fn started() -> (Clock, u64) {
    let clock = Clock::system();
    (clock, clock.now_ns())
}

/// Runs all seeds. Fails if one does, or if the campaign reached too little.
pub fn explore(args: &Args) -> ExitCode {
    let (clock, start) = started();
    let total = run_seeds(&args.all_seeds(), &args.setting(), false);
    println!(
        "{} seeds, {} operations, {} process and {} host crashes, {} reads whole, {} missed, {} blocks used in place, {} remote reads whole, {} stale, {:.1} s",
        total.seeds,
        total.operations,
        total.process_crashes,
        total.host_crashes,
        total.reads_whole,
        total.reads_missed,
        total.pins,
        total.remote_whole,
        total.remote_stale,
        clock.since(start).as_secs_f64()
    );
    println!("fault points passed / crashed at:");
    for point in POINTS.iter() {
        let passed = total.points.get(point).copied().unwrap_or(0);
        let died = total.deaths_at.get(point).copied().unwrap_or(0);
        println!("  {point:<20} {passed:>9} {died:>7}");
    }
    println!("{} places call the fabric", total.sites.len());
    for (seed, violations) in total.failures.iter().take(40) {
        println!("seed {seed}: {}", violations[0]);
        if args.verbose {
            violations.iter().skip(1).for_each(|violation| println!("    {violation}"));
            println!("    {:?}", crate::shape::Shape::of_seed(*seed).of_design(args.design));
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

/// The goals that a campaign of this size missed.
fn shortfalls(total: &Total, args: &Args) -> Vec<String> {
    let mut short = Vec::new();
    if total.seeds < args.seeds() {
        short.push(format!("{} of {} seeds ran", total.seeds, args.seeds()));
    }
    // The plain design has no crashes and does not pass all fault points.
    if args.design == Design::Plain {
        if total.reads_whole < 4 * args.seeds() || total.pins < args.seeds() / 4 {
            short.push(format!("only {} reads were whole and {} blocks used in place", total.reads_whole, total.pins));
        }
        return short;
    }
    // Rates are drawn per seed, so a few seeds may have no crash.
    if args.seeds() >= 100 {
        if total.process_crashes < args.seeds() / 4 || total.host_crashes < args.seeds() / 10 {
            short.push(format!("only {} processes and {} hosts crashed", total.process_crashes, total.host_crashes));
        }
        if total.remote_whole < args.seeds() {
            short.push(format!("only {} remote reads were whole", total.remote_whole));
        }
        short.extend(
            POINTS
                .iter()
                .filter(|point| !total.points.contains_key(point))
                .map(|point| format!("fault point {point} was never passed")),
        );
    }
    if args.seeds() >= 2000 {
        short.extend(
            POINTS
                .iter()
                .filter(|point| !total.deaths_at.contains_key(point))
                .map(|point| format!("no crash at fault point {point}")),
        );
    }
    short
}

/// Runs one seed and prints its trace and its violations.
pub fn repeat(seed: u64, args: &Args) -> ExitCode {
    let outcome = run(seed, &args.setting());
    outcome.report.trace.iter().for_each(|line| println!("{line}"));
    println!(
        "seed {seed}: {} operations, {:?}",
        outcome.report.operations,
        crate::shape::Shape::of_seed(seed).of_design(args.design)
    );
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
    match outcome.violations.first() {
        Some(violation) => ExitCode::from(violation.checker.exit_code()),
        None => {
            println!("clean");
            ExitCode::SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_memmodel::Effect;

    const SEEDS: [u64; 60] = {
        let mut seeds = [0; 60];
        let mut seed = 0;
        while seed < 60 {
            seeds[seed] = seed as u64;
            seed += 1;
        }
        seeds
    };

    #[test]
    fn sixty_seeds_are_clean_and_have_crashes() {
        let total = run_seeds(&SEEDS, &Setting::default(), false);
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
    fn sixty_seeds_of_the_plain_design_are_clean() {
        let total = run_seeds(&SEEDS, &plain(), false);
        assert_eq!(total.failures, []);
        assert!(total.reads_whole > 500 && total.pins > 20);
    }

    fn plain() -> Setting {
        Setting { design: Design::Plain, ..Setting::default() }
    }

    /// The first place in a file at which these runs called a method of the fabric.
    fn first_call<'a>(total: &'a Total, method: &str, file: &str) -> &'a Site {
        let is_it = |site: &&Site| site.method == method && site.place.file.ends_with(file);
        total.sites.keys().find(is_it).unwrap_or_else(|| panic!("{file} does not call {method}"))
    }

    /// The canary of the plain design: a stale reference count must be detected. A host must
    /// refresh a count that another host has lowered before it raises it.
    #[test]
    fn a_count_read_from_a_stale_line_is_detected() {
        let sound = run_seeds(&SEEDS[..4], &plain(), false);
        let mutation = first_call(&sound, "refresh", "index/list.rs").without(Effect::Invalidation);
        let total = run_seeds(&SEEDS, &Setting { without: Some(mutation), ..plain() }, true);
        assert!(!total.failures.is_empty(), "no seed detects the mutation");
    }

    #[test]
    fn equal_seeds_give_equal_runs() {
        let setting = Setting { traced: true, ..Setting::default() };
        for seed in [2, 7] {
            let (left, right) = (run(seed, &setting).report, run(seed, &setting).report);
            assert_eq!(left.operations, right.operations);
            assert_eq!(left.sites, right.sites);
            assert!(left.trace == right.trace, "seed {seed}");
        }
    }

    /// The canary: a reader that keeps stale payload lines must be detected. Otherwise the model is
    /// too strong.
    #[test]
    fn a_missing_payload_refresh_is_detected() {
        let sound = run_seeds(&SEEDS[..4], &Setting::default(), false);
        let mutation = first_call(&sound, "refresh_payload", "blocks/life.rs").without(Effect::Invalidation);
        let total = run_seeds(&SEEDS, &Setting::without(mutation), true);
        let (_, violations) = total.failures.first().expect("some seed detects the mutation");
        assert_eq!(violations[0].checker, crate::oracle::Checker::Blocks);
    }
}
