//! Mutation testing: leaves out one flush, fence or invalidation after the other, and enables one
//! deliberate mistake after the other. Some seed must detect each.

use crate::Args;
use crate::campaign::{EXIT_SHORTFALL, Total, run_each, run_seeds, started};
use crate::ledger::{Ledger, Word};
use crate::oracle::Violation;
use crate::run::{Outcome, Setting, has_remote_reader, run};
use crate::sample::{DETECTED_TENTHS_MIN, is_rarely_detected, sample, standing};
use cenote_base::fault::{Mistake, Point};
use cenote_memmodel::{Mutation, Place, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Mutex;

/// Factor of further seeds for a mutation that the first seeds do not detect.
const PATIENCE: u64 = 2;
/// Exit code of `--mutate` if a mutation was not detected.
const EXIT_UNNOTICED: u8 = 17;
/// Most characters of a violation that a result quotes.
const TEXT_MAX: usize = 200;

/// The conditions under which a deliberate mistake shows.
#[derive(Clone, Copy)]
enum Hurts {
    Anywhere,
    /// With the focus on the first call of a fabric method in a file: (file, method).
    Near(&'static str, &'static str),
    /// With a raised crash rate at a fault point.
    At(Point),
    /// Beside a remote reader.
    Remotely,
}

/// Where a deliberate mistake does harm.
fn harm(mistake: Mistake) -> Hurts {
    match mistake {
        Mistake::BakeryChoosingIgnored => Hurts::Near("sync/bakery.rs", "publish"),
        Mistake::EvictScanSkipped | Mistake::RecoverEvictingRevived => Hurts::Near("blocks/life.rs", "fence"),
        Mistake::PinRecheckSkipped => Hurts::Near("hosts/hazards.rs", "refresh"),
        Mistake::PublishReadyEarly => Hurts::Near("blocks/life.rs", "write_line"),
        Mistake::ReadChecksumSkipped => Hurts::At(Point::PublishPayload),
        Mistake::ReadSeenEarly => Hurts::At(Point::ReadUnseen),
        Mistake::BakeryAloneUnsaid
        | Mistake::EventRemovedUntold
        | Mistake::EventStoredUntold
        | Mistake::IndexOverflowUncounted
        | Mistake::LockRepairSkipped
        | Mistake::NamespaceTakenInUse
        | Mistake::PublishGenerationKept
        | Mistake::ReadRecheckSkipped => Hurts::Anywhere,
        Mistake::RemoteChecksumSkipped | Mistake::RemoteNamespaceSkipped | Mistake::RemoteRecheckSkipped => {
            Hurts::Remotely
        }
    }
}

/// Enables one deliberate mistake in this process, or none.
pub fn sabotage(mistake: Option<Mistake>) -> Result<(), String> {
    #[cfg(any(feature = "sabotage", debug_assertions))]
    cenote_base::fault::sabotage::choose(mistake);
    #[cfg(not(any(feature = "sabotage", debug_assertions)))]
    if mistake.is_some() {
        return Err("this build has no deliberate mistakes; build it with --features sabotage".to_owned());
    }
    Ok(())
}

/// Applies each mutation and each deliberate mistake in turn. Some seed must detect it, and that
/// seed must be clean without it. Results that the log has of this build are not repeated.
pub fn mutate(args: &Args) -> ExitCode {
    let mut ledger = match Ledger::open(args) {
        Ok(ledger) => ledger,
        Err(reason) => {
            eprintln!("error: {reason}");
            return ExitCode::from(2);
        }
    };
    let (clock, start) = started();
    let all = args.all_seeds();
    let sound = Setting { design: args.design, ..Setting::default() };
    let passes = Mutex::new(Passes::default());
    run_each(&all, &sound, |seed, outcome| passes.lock().expect("plain sums").add(seed, outcome));
    let passes = passes.into_inner().expect("plain sums");
    if let Some((seed, violation)) = passes.failures.first() {
        println!("seed {seed} fails without any mutation: {violation}");
        return ExitCode::from(violation.checker.exit_code());
    }
    let wanted = |text: &str| args.only.is_empty() || args.only.iter().any(|only| text.contains(only.as_str()));
    let mut mutations: Vec<Mutation> = passes.mutations().filter(|mutation| wanted(&mutation.to_string())).collect();
    if let Some(count) = args.sample {
        mutations = sample(mutations, count, &args.key);
    }
    if args.standing {
        mutations = match standing(&mutations) {
            Ok(mutations) => mutations,
            Err(reason) => {
                println!("{reason}");
                return ExitCode::from(EXIT_SHORTFALL);
            }
        };
    }
    for mutation in mutations {
        ledger.settle(&format!("--without {mutation}"), || {
            let rare = is_rarely_detected(&mutation);
            let setting = Setting { design: args.design, ..Setting::without(mutation.clone()) };
            let further = if rare || args.sample.is_some() { 0 } else { PATIENCE };
            let total = run_patiently(&passes.seeds_for(&mutation.place), further, &setting, args);
            judge(&total, rare, &Setting { without: None, ..setting })
        });
    }
    if cfg!(feature = "sabotage") && args.sample.is_none() && !args.standing {
        for &mistake in Mistake::ALL.iter().filter(|mistake| wanted(mistake.name())) {
            let mut setting = sound.clone();
            let (mut seeds, mut what) = (all.clone(), format!("--sabotage {mistake}"));
            match harm(mistake) {
                Hurts::Anywhere => {}
                Hurts::Near(file, method) => {
                    let place = passes.place(file, method);
                    seeds = passes.seeds_for(&place);
                    what += &format!(" --focus {place}");
                    setting.focus = Some(place);
                }
                Hurts::At(point) => {
                    what += &format!(" --deadly {point}");
                    setting.deadly = Some(point);
                }
                Hurts::Remotely => seeds.retain(|&seed| has_remote_reader(seed, args.design)),
            }
            ledger.settle(&what, || {
                let _ = sabotage(Some(mistake));
                let total = run_patiently(&seeds, PATIENCE, &setting, args);
                let _ = sabotage(None);
                judge(&total, false, &setting)
            });
        }
    }
    let [noticed, unnoticed, rare, unsound] =
        [Word::Noticed, Word::Unnoticed, Word::Rare, Word::Unsound].map(|word| ledger.count(word));
    println!(
        "{noticed} noticed, {unnoticed} unnoticed, {rare} of functions that are known for it, {unsound} unsound \
         (seeds that fail without the mutation), {:.0} s",
        clock.since(start).as_secs_f64()
    );
    let is_enough = if args.sample.is_some() {
        10 * noticed >= DETECTED_TENTHS_MIN * (noticed + unnoticed)
    } else {
        unnoticed == 0
    };
    // A campaign without any mutation shows nothing, so it fails.
    if noticed > 0 && unsound == 0 && is_enough { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNNOTICED) }
}

/// Runs these seeds until one fails. If none does, runs `further` times as many as the campaign has,
/// for defects that show rarely.
fn run_patiently(seeds: &[u64], further: u64, setting: &Setting, args: &Args) -> Total {
    let total = run_seeds(seeds, setting, true);
    if !total.failures.is_empty() || further == 0 {
        return total;
    }
    let first = args.first + args.seeds();
    let more: Vec<u64> = (first..first + further * args.seeds()).collect();
    let mut more = run_seeds(&more, setting, true);
    more.seeds += total.seeds;
    more
}

/// The number of calls at each place, by seed.
#[derive(Default)]
struct Passes {
    by_place: BTreeMap<Place, BTreeMap<u64, u64>>,
    sites: BTreeSet<Site>,
    failures: Vec<(u64, Violation)>,
}

impl Passes {
    fn add(&mut self, seed: u64, outcome: Outcome) -> ControlFlow<()> {
        for (site, &count) in &outcome.report.sites {
            let seeds = self.by_place.entry(site.place.clone()).or_default();
            seeds.insert(seed, count);
            self.sites.insert(site.clone());
        }
        self.failures.extend(outcome.violations.into_iter().map(|violation| (seed, violation)));
        if self.failures.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn mutations(&self) -> impl Iterator<Item = Mutation> + '_ {
        let sites = self.sites.iter().filter(|site| site.place.file.starts_with("crates/pool/"));
        let all: BTreeSet<_> =
            sites.flat_map(|site| site.effects().iter().map(|&effect| site.without(effect))).collect();
        all.into_iter()
    }

    /// The first call of a fabric method in a file of the pool.
    fn place(&self, file: &str, method: &str) -> Place {
        let here = |site: &&Site| site.method == method && site.place.file.ends_with(file);
        let site = self.sites.iter().find(here);
        site.unwrap_or_else(|| panic!("{file} does not call {method} in these runs")).place.clone()
    }

    /// The seeds that pass a place, most frequent first.
    fn seeds_for(&self, place: &Place) -> Vec<u64> {
        let Some(passing) = self.by_place.get(place) else { return Vec::new() };
        let mut seeds: Vec<u64> = passing.keys().copied().collect();
        seeds.sort_by_key(|seed| std::cmp::Reverse(passing[seed]));
        seeds
    }
}

/// The verdict on the runs with a defect. `control` is their setting without it.
fn judge(total: &Total, rare: bool, control: &Setting) -> (Word, String) {
    let mut unsound = None;
    for (seed, violations) in &total.failures {
        match run(*seed, control).violations.first() {
            None => {
                let mut text = violations[0].to_string();
                if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
                    text.truncate(end);
                    text.push('…');
                }
                return (Word::Noticed, format!("--repeat {seed}  ({text})"));
            }
            Some(violation) => unsound = Some((seed, violation.clone())),
        }
    }
    if let Some((seed, violation)) = unsound {
        return (Word::Unsound, format!("seed {seed} fails without it: {violation}"));
    }
    (if rare { Word::Rare } else { Word::Unnoticed }, format!("({} seeds)", total.seeds))
}
