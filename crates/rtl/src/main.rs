//! `cenote-rtl`: the checks of the RTL outside `cargo test`.
//!
//! `check [NAME [SEED [ROUNDS]]]` runs one check or all. `mutate [NAME]` runs, for each fault of
//! `src/faults.rs`, for those of one check or for that of a number, the check that must detect it; it
//! needs the feature `faults`. `cycles` prints `rtl/cycles.json`, `table` the table of
//! `rtl/README.md`, and `waveform` `rtl/waveform.svg`.
#![allow(clippy::disallowed_methods, reason = "a command line tool measures its steps")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks")]

use cenote_rtl::checks::{CHECKS, by_name};
use cenote_rtl::faults::{FAULTS, Fault};
use cenote_rtl::model::{is_available, with_fault};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const USAGE: &str =
    "usage: cenote-rtl check [NAME [SEED [ROUNDS]]] | mutate [NAME | NUMBER] | cycles | table | waveform";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !is_available() {
        eprintln!("error: built without Verilator; install it, and build again");
        return ExitCode::FAILURE;
    }
    let number =
        |at: usize, or: u64| arguments.get(at).map_or(Ok(or), |text| text.parse().map_err(|_| USAGE.to_owned()));
    let done = match arguments.first().map(String::as_str) {
        Some("check") => {
            number(2, 1).and_then(|seed| number(3, 4).and_then(|rounds| check(arguments.get(1), seed, rounds)))
        }
        Some("mutate") => mutate(arguments.get(1)),
        Some("cycles") => {
            cenote_rtl::cycles::measure().map(|measured| print!("{}", cenote_rtl::cycles::json(&measured)))
        }
        Some("table") => {
            cenote_rtl::cycles::measure().map(|measured| print!("{}", cenote_rtl::cycles::table(&measured)))
        }
        Some("waveform") => cenote_rtl::waveform::svg().map(|svg| print!("{svg}")),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn check(name: Option<&String>, seed: u64, rounds: u64) -> Result<(), String> {
    for (known, run) in CHECKS.iter().filter(|(known, _)| name.is_none_or(|name| name == known)) {
        let start = std::time::Instant::now();
        run(seed, rounds).map_err(|failure| format!("{known}, seed {seed}: {failure}"))?;
        println!("{known}: passed in {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Seeds that a check may need to detect a fault.
const SEEDS: u64 = 3;
const ROUNDS: u64 = 4;

fn mutate(name: Option<&String>) -> Result<(), String> {
    if !cfg!(feature = "faults") {
        return Err("no fault is compiled in; build with --features faults".to_owned());
    }
    // The same models without an active fault pass the same seeds, so it is the faults that are
    // detected.
    let faults: Vec<(u32, &Fault)> =
        (1..).zip(FAULTS).filter(|(number, fault)| name.is_none_or(|name| is_of(name, *number, fault))).collect();
    let is_named = |name: &str| faults.iter().any(|(_, fault)| fault.check == name);
    let named: Vec<_> = CHECKS.iter().filter(|(name, _)| is_named(name)).collect();
    let without = on_all_processors(named.len(), |at| {
        let (name, run) = named[at];
        let seeds = (1..=SEEDS).try_for_each(|seed| run(seed, ROUNDS));
        seeds.map_err(|failure| format!("{name} fails without a fault: {failure}"))
    });
    without.into_iter().collect::<Result<(), String>>()?;
    let found = on_all_processors(faults.len(), |at| {
        let (number, fault) = faults[at];
        let run = by_name(fault.check);
        let failure = (1..=SEEDS).find_map(|seed| with_fault(number, || run(seed, ROUNDS)).err());
        let what = format!("{number:3} {} `{}`", fault.file, fault.wrong);
        match &failure {
            Some(failure) => {
                let failure: String = failure.chars().take(90).collect();
                println!("{what}: detected by {}: {failure}", fault.check);
            }
            None => println!("{what}: NOT DETECTED by {}", fault.check),
        }
        failure.is_some()
    });
    let survivors = found.into_iter().filter(|is_found| !is_found).count();
    println!("{} of {} faults detected", faults.len() - survivors, faults.len());
    if survivors == 0 { Ok(()) } else { Err(format!("{survivors} faults were not detected")) }
}

fn is_of(name: &str, number: u32, fault: &Fault) -> bool {
    name == fault.check || name == number.to_string()
}

/// The results of items by their index, from as many threads as processors. A fault is active in its
/// thread only.
fn on_all_processors<R: Send>(count: usize, run: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let items = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < count));
        items.map(|at| (at, run(at))).collect::<Vec<(usize, R)>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no check panics")).collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
