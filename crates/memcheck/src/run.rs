//! One seed: its world, the phases of its run and their checks.

use crate::fills::SEVERAL_MAX;
use crate::oracle::{Checker, Oracle, Violation};
use crate::remote::Local;
use crate::scenario::{Actor, RECOVERED};
use crate::shape::{Shape, Subject};
use cenote_base::fault::{Point, UnknownName};
use cenote_base::prng::Prng;
use cenote_mem::Fabric;
use cenote_memmodel::{Focus, Mutation, Place, Process, Rates, RunReport, World};
use cenote_pool::{Design, PoolConfig, Superblock};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

/// The fault points of code that the simulation does not run.
const OUTSIDE: &[Point] = &[
    Point::EngineBlockSaved,
    Point::EngineHandOver,
    Point::EngineStep,
    Point::HostAreaAllocated,
    Point::HostAreaEmptied,
    Point::HostAreaHeader,
    Point::HostAreaSweeping,
    Point::LoadLayer,
    Point::SavePage,
    Point::SwapReserved,
    Point::SwapWritten,
    Point::TortureIncrement,
];

/// The fault points that a campaign must pass (from 100 seeds on) and crash at (from 2,000 on).
pub static POINTS: LazyLock<Vec<Point>> =
    LazyLock::new(|| Point::ALL.iter().copied().filter(|point| !OUTSIDE.contains(point)).collect());

/// The fault points of formatting a region.
const FORMATTING: [Point; 2] = [Point::FormatCleared, Point::FormatWritten];

/// Parses the name of a fault point of [`POINTS`].
pub fn parse_point(name: &str) -> Result<Point, String> {
    let point = name.parse().map_err(|error: UnknownName| error.to_string())?;
    if POINTS.contains(&point) { Ok(point) } else { Err(format!("no simulated process passes `{point}`")) }
}

/// Limit of operations per run, more than any sound run needs. The longest seen took 3.5 million:
/// with TraCT's lock, waiters poll until their deadline while the manager's host is dead.
pub const OPERATIONS_MAX: u64 = 10_000_000;
/// Most crashes and stalls at the places in focus per run.
const STRIKES: u64 = 2;
/// UUID of the older region that formatting overwrites.
const OLDER: [u8; 16] = [8; 16];
/// Nanoseconds between two polls for the new region.
const LOOK_NS: u64 = 10_000;
/// Lines of the older region with non-zero content. They include all structures per host. Only the
/// superblock lies before them.
const PLANTED: std::ops::Range<u64> = 64..1000;
/// The planted lines that the check loads.
const WATCHED: std::ops::Range<u64> = 100..108;
const LINE: u64 = 64;
/// Most attempts to format the region, more than any sound run needs.
const FORMATS_MAX: u64 = 32;
/// Rate of stalls, in 1/2^20 per operation.
const STALL_RATE: u64 = 100;

/// Points inside locks. Hosts that are declared dead while they live stall there in most runs, with
/// gathers beside.
const IN_LOCKS: [Option<Point>; 6] = [
    Some(Point::ChunkFound),
    Some(Point::ChunkNamed),
    Some(Point::TableFound),
    Some(Point::TableNamed),
    Some(Point::LockEntered),
    None,
];

/// Rate of host crashes in runs about the chunks of dead hosts, in 1/2^20 per operation: few, so
/// that some host lives to adopt them.
const ADOPTION_CRASHES: u64 = 20;
/// Points that are passed so rarely, or at which a death is so rare, that two thousand seeds might have
/// none. Every twelfth seed is about one of them. Few runs get to the first two.
const RARE: [Point; 7] = [
    Point::ChunkAdopted,
    Point::NamespaceReclaimed,
    Point::ChunkMoved,
    Point::ObjectNamed,
    Point::ChunkAdopted,
    Point::ObjectWritten,
    Point::ReadCopied,
];
/// Rate of deaths at points that a run passes rarely, in 1/1024 per passing.
const RARE_DEATHS: u64 = 1000;

pub struct Outcome {
    pub violations: Vec<Violation>,
    pub report: RunReport,
    pub reads_whole: u64,
    pub reads_missed: u64,
    pub pins: u64,
    pub remote_whole: u64,
    pub remote_stale: u64,
}

type Part = fn(&Actor);

/// The settings of a run, beside its seed.
#[derive(Clone, Default)]
pub struct Setting {
    /// The pool's design.
    pub design: Design,
    /// The mutation, if any.
    pub without: Option<Mutation>,
    /// The place in focus. `None`: the seed chooses a share of all places, or no focus.
    pub focus: Option<Place>,
    /// The fault point with a raised crash rate. `None`: the seed chooses one, or none.
    pub deadly: Option<Point>,
    /// Whether the report has a trace.
    pub traced: bool,
}

impl Setting {
    /// Settings with this mutation and the focus on its place.
    pub fn without(mutation: Mutation) -> Self {
        Self { focus: Some(mutation.place.clone()), without: Some(mutation), ..Self::default() }
    }
}

/// Whether a remote reader works beside the processes of this seed: in one of seven.
pub const fn has_remote_reader(seed: u64, design: Design) -> bool {
    matches!(design, Design::Cenote) && seed % 7 == 3
}

/// Runs one seed to its end.
pub fn run(seed: u64, setting: &Setting) -> Outcome {
    let mut shape = Shape::of_seed(seed).of_design(setting.design);
    // No crashes with TraCT's manager: if it crashes, all waiters hang. That is the known reason
    // for the bakery lock. No crashes in the plain design: the reference counts of a crashed reader
    // stay raised, which is known too.
    let mortal = !shape.has_manager() && setting.design == Design::Cenote;
    // In every fifth run, hosts that are declared dead may be alive.
    let sleepers = mortal && seed % 5 == 4;
    if sleepers {
        shape = shape.with_sleepers();
    }
    let deaths = mortal && !seed.is_multiple_of(4);
    let oracle = Arc::new(Oracle::new(sleepers));
    let mut rates = Rates::of_seed(seed, deaths);
    // Each fault point has its own seeds, because some are passed too rarely for random crashes.
    let of_focus = setting.focus.as_ref().and_then(|place| Subject::of_file(&place.file));
    let is_about_formatting = of_focus == Some(Subject::Formatting);
    let at_random = if is_about_formatting {
        FORMATTING[(seed / 4) as usize % 2]
    } else if seed % 12 == 10 {
        RARE[(seed / 12) as usize % RARE.len()]
    } else {
        POINTS[(seed / 4) as usize % POINTS.len()]
    };
    let in_lock = IN_LOCKS[(seed / 5) as usize % IN_LOCKS.len()].filter(|_| sleepers);
    rates.deadly = setting.deadly.or(in_lock).or(seed.is_multiple_of(2).then_some(at_random)).filter(|_| mortal);
    let of_point = rates.deadly.and_then(Subject::of_point);
    if let Some(Subject::Sharing | Subject::Memory) = of_point {
        // The point is passed often only if the processes live for a while.
        (rates.process_crash, rates.host_crash) = (0, 0);
    }
    if of_point == Some(Subject::Namespaces) && deaths {
        // A row is reclaimed only when many models were opened, so a process should die there, and
        // nowhere before.
        (rates.process_crash, rates.host_crash, rates.deadly_rate) = (0, 0, RARE_DEATHS);
    }
    if of_point == Some(Subject::Adoption) && deaths {
        // The point is passed only after the death of another host, so rarely that a process should
        // die there.
        (rates.host_crash, rates.deadly_rate) = (ADOPTION_CRASHES, RARE_DEATHS);
    }
    if rates.deadly.is_some_and(|point| RARE.contains(&point)) && deaths {
        rates.deadly_rate = RARE_DEATHS;
    }
    if let Some(subject) = of_point.or(of_focus) {
        shape = shape.about(subject);
    }
    let is_remote = has_remote_reader(seed, setting.design);
    // Peers read regions of one host. Rare points need several, and a host alone is not declared dead.
    let is_rare = rates.deadly.is_some_and(|point| RARE.contains(&point));
    if is_remote && !is_rare && !sleepers && Prng::at(seed, 12).below(3) > 0 {
        shape = shape.on_one_host();
    }
    let local = is_remote.then(|| Local::new(&shape));
    // The reader has a host of its own, without the region.
    let hosts = shape.hosts + usize::from(is_remote);
    let world = World::new(seed, hosts, shape.region_bytes(), rates, OPERATIONS_MAX);
    if sleepers {
        world.stall(STALL_RATE);
    }
    let stage = Stage { world: &world, shape: &shape, oracle: &oracle, local };
    // Runs that test formatting, and every eighth seed, overwrite an older region.
    if seed % 8 == 3 || rates.deadly.is_some_and(|point| FORMATTING.contains(&point)) || is_about_formatting {
        stage.plant();
    }
    world.mutate(setting.without.clone());
    // Half of the seeds have a share of all places in focus.
    let share = (seed % 4 < 2).then_some(Focus::Share { part: seed / 4 % 16 });
    world.focus(setting.focus.clone().map(Focus::At).or(share), if deaths { STRIKES } else { 0 });
    if setting.focus.is_some() && !seed.is_multiple_of(3) {
        // Some places are passed once per line of a range, so some seeds count 32 calls as one.
        let lines = if (seed / 36).is_multiple_of(4) { 32 } else { 1 };
        world.cut_after((1 + seed / 3 % 12) * lines);
    }
    if setting.traced {
        world.trace();
    }
    stage.format();
    stage.work(seed);
    if deaths && seed % 3 != 2 {
        stage.work_late(seed);
    }
    // A host that comes late is declared dead too, and its usage is charged to the others.
    let crashed = world.report().process_crashes + world.report().host_crashes > 0 || shape.has_late_host();
    let timeouts = oracle.notes().lock_timeouts;
    if !crashed && !sleepers && timeouts > 0 {
        oracle.report(Checker::Liveness, format!("{timeouts} lock timeouts in a run without crashes"));
    }
    world.calm();
    stage.on_all_hosts(|actor| actor.recover());
    if !crashed && !sleepers && setting.design == Design::Cenote {
        let notes = oracle.notes();
        let (stale, over, timeouts) = (notes.stale_entries, notes.overshoot, notes.lock_timeouts);
        let duplicates = if notes.kept == 0 { notes.duplicates } else { 0 };
        let notes_lost = notes.events_lost;
        drop(notes);
        if duplicates > 0 {
            // A damaged block of another host leaves the index only.
            let fact = format!("{duplicates} blocks are readable twice after a run without crashes");
            oracle.report_unless_lossy(Checker::Index, fact);
        }
        if stale > 0 && timeouts == 0 {
            oracle.report(Checker::Index, format!("{stale} index entries are stale after a run without crashes"));
        }
        if notes_lost > 0 {
            oracle.report(Checker::Events, format!("{notes_lost} events were lost in a run without crashes"));
        }
        if over > shape.hosts as u64 * SEVERAL_MAX * shape.block_bytes {
            oracle.report(Checker::Allocator, format!("a namespace exceeds its quota by {over} bytes"));
        }
    }
    let before = oracle.notes().found.split_off(0);
    stage.agree(&before);
    if oracle.notes().left == 0 {
        let found: BTreeSet<usize> = before.iter().map(|&(_, number)| number).collect();
        stage.on_reader(move |actor, local| actor.expect_remotely(seed, local, found));
    }
    // Published blocks must be on the device, not only in a cache.
    for host in 0..shape.hosts {
        world.power_off(host);
    }
    oracle.notes().arrived.clear();
    stage.on_all_hosts(|actor| actor.inspect());
    let after: BTreeSet<usize> = oracle.notes().found.iter().map(|&(_, number)| number).collect();
    for (host, number) in before {
        if !after.contains(&number) && oracle.notes().left == 0 {
            oracle
                .report_unless_lossy(Checker::Index, format!("block {number} of host {host} was lost with the power"));
        }
    }
    stage.on(0, |actor| actor.audit_counters());
    stage.on_reader(move |actor, local| actor.expect_changes_seen(seed, local, after));
    let report = world.report();
    for panic in &report.panics {
        oracle.report(Checker::Panic, panic.clone());
    }
    if report.endless {
        oracle.report(Checker::Liveness, format!("the run did not end within {OPERATIONS_MAX} operations"));
    }
    let notes = oracle.notes();
    Outcome {
        violations: notes.violations.clone(),
        report,
        reads_whole: notes.reads_whole,
        reads_missed: notes.reads_missed,
        pins: notes.pins,
        remote_whole: notes.remote_whole,
        remote_stale: notes.remote_stale,
    }
}

struct Stage<'a> {
    world: &'a World,
    shape: &'a Shape,
    oracle: &'a Arc<Oracle>,
    /// What a remote reader asks for, if there is one.
    local: Option<Local>,
}

impl Stage<'_> {
    fn actor(&self) -> impl FnOnce(Process) -> Actor + Send + 'static {
        let (shape, oracle) = (self.shape.clone(), Arc::clone(self.oracle));
        move |process| Actor { shape, oracle, process }
    }

    /// Formats an older region and fills lines that a new region must clear.
    fn plant(&self) {
        let fabric = self.world.scene_setter(0).fabric();
        let older = PoolConfig { uuid: OLDER, ..self.shape.config() };
        let formatted = Superblock::format(&fabric, &older);
        formatted.expect("the shape fits");
        PLANTED.for_each(|line| fabric.publish_line(line * LINE, &[line; 8]));
        fabric.fence();
        // Every host caches those lines.
        for host in 0..self.shape.hosts {
            let fabric = self.world.scene_setter(host).fabric();
            PLANTED.for_each(|line| _ = fabric.load_line(line * LINE));
        }
    }

    /// Formats the region on host 0, again after each crash. Over an older region, host 1 polls
    /// meanwhile for the new one.
    fn format(&self) {
        let over_older = Superblock::read(&self.world.scene_setter(0).fabric()).is_ok();
        for _ in 0..FORMATS_MAX {
            let (config, maker) = (self.shape.config(), self.world.next_process());
            let mut programs: Vec<(usize, cenote_memmodel::Program)> =
                vec![(0, Box::new(move |process| drop(Superblock::format(&process.fabric(), &config))))];
            if over_older {
                let oracle = Arc::clone(self.oracle);
                let watch = move |process: Process| {
                    while process.lives(maker) && found(&process.fabric()).is_none_or(|found| found.is_older) {
                        process.sleep(LOOK_NS);
                    }
                    expect_clean(&process.fabric(), &oracle);
                };
                programs.push((1, Box::new(watch)));
            }
            self.world.run(programs);
            let fabric = self.world.scene_setter(1).fabric();
            match found(&fabric) {
                Some(found) if found.is_older && found.left < WATCHED.end - WATCHED.start => {
                    self.oracle.report(Checker::Panic, "the older region is partly cleared, but can be attached");
                }
                Some(found) if !found.is_older => return expect_clean(&fabric, self.oracle),
                _ => {}
            }
        }
        let fact = format!("the region was not formatted after {FORMATS_MAX} attempts");
        self.oracle.report(Checker::Liveness, fact);
    }

    fn work(&self, seed: u64) {
        let mut programs: Vec<(usize, cenote_memmodel::Program)> = Vec::new();
        for host in 0..self.shape.hosts {
            for _ in 0..self.shape.processes_per_host {
                let actor = self.actor();
                programs.push((host, Box::new(move |process| actor(process).work(seed))));
            }
        }
        self.read_remotely(seed, &mut programs);
        self.run(programs);
    }

    /// Runs one more worker on each host.
    fn work_late(&self, seed: u64) {
        let heir = (seed / 3) as usize % self.shape.hosts;
        let programs = (0..self.shape.hosts).map(|host| {
            let actor = self.actor();
            let program: cenote_memmodel::Program = Box::new(move |process| actor(process).come_late(seed, heir));
            (host, program)
        });
        let mut programs = programs.collect();
        self.read_remotely(seed, &mut programs);
        self.run(programs);
    }

    /// Adds a remote reader, which ends with the processes of the region.
    fn read_remotely(&self, seed: u64, programs: &mut Vec<(usize, cenote_memmodel::Program)>) {
        let Some(local) = self.local.clone() else { return };
        let (actor, first) = (self.actor(), self.world.next_process());
        let others: Vec<usize> = (first..first + programs.len()).collect();
        let program = move |process| actor(process).read_remotely(seed, &local, &others);
        programs.push((self.shape.hosts, Box::new(program)));
    }

    /// Runs programs, and a lock manager if the region uses one.
    fn run(&self, mut programs: Vec<(usize, cenote_memmodel::Program)>) {
        if self.shape.has_manager() {
            let actor = self.actor();
            let first = self.world.next_process();
            let others: Vec<usize> = (first..first + programs.len()).collect();
            programs.push((0, Box::new(move |process| actor(process).manage(&others))));
        }
        self.world.run(programs);
    }

    /// Runs a remote reader alone, if there is one.
    fn on_reader(&self, part: impl FnOnce(&Actor, &Local) + Send + 'static) {
        let Some(local) = self.local.clone() else { return };
        let actor = self.actor();
        self.run(vec![(self.shape.hosts, Box::new(move |process| part(&actor(process), &local)))]);
    }

    fn on_all_hosts(&self, part: Part) {
        let programs = (0..self.shape.hosts).map(|host| {
            let actor = self.actor();
            let program: cenote_memmodel::Program = Box::new(move |process| part(&actor(process)));
            (host, program)
        });
        self.run(programs.collect());
    }

    fn on(&self, host: usize, part: Part) {
        let actor = self.actor();
        self.run(vec![(host, Box::new(move |process| part(&actor(process))))]);
    }

    /// Checks that all hosts found the same blocks while no process changed any.
    fn agree(&self, found: &[(usize, usize)]) {
        for number in 0..self.shape.universe.max(RECOVERED) {
            let hosts: Vec<usize> = found.iter().filter(|(_, other)| *other == number).map(|(host, _)| *host).collect();
            if !hosts.is_empty() && hosts.len() < self.shape.hosts {
                let fact = format!("only hosts {hosts:?} find block {number}");
                self.oracle.report_unless_lossy(Checker::Index, fact);
            }
        }
    }
}

/// A region that can be attached to.
struct Found {
    is_older: bool,
    /// Number of watched lines that are not zero.
    left: u64,
}

fn found<F: Fabric>(fabric: &F) -> Option<Found> {
    let superblock = Superblock::read(fabric).ok()?;
    let left = WATCHED.map(|line| line * LINE).filter(|&line| {
        fabric.refresh(&[line]);
        fabric.load_line(line) != [0; 8]
    });
    Some(Found { is_older: superblock.config.uuid == OLDER, left: left.count() as u64 })
}

/// Checks that a new region that can be attached has no content of the older one.
fn expect_clean<F: Fabric>(fabric: &F, oracle: &Oracle) {
    if let Some(Found { is_older: false, left: left @ 1.. }) = found(fabric) {
        oracle.report(
            Checker::Panic,
            format!("{left} lines of the older region remain, but the new one can be attached"),
        );
    }
}
