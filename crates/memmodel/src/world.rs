//! Processes, time and schedule. Each process has its own stack, and only the process that has the
//! turn runs. At every operation the turn may pass on, a process or host may crash, and spontaneous
//! memory events happen.

use crate::machine::{Machine, Spontaneous};
use crate::mutation::{Focus, Lens, Mutation, NEAR, NEIGHBOURHOOD, Site};
use cenote_base::fault::{self, Point};
use cenote_base::prng::Prng;
use generator::Gn;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

/// Nanoseconds per operation.
const OPERATION_NS: u64 = 50;
/// Nanoseconds that the clock advances while all processes wait.
const IDLE_STEP_NS: u64 = 10_000_000;
/// Mean number of loads per step: most loads run without a schedule point.
const LOOKS_PER_STEP: u64 = 12;
/// Nanoseconds of a stalled host's delay: longer than any timeout.
const STALL_NS: u64 = 2_000_000_000;
/// Words of a process's stack. Only touched pages take memory.
const STACK_WORDS: usize = 64 << 10;
/// Nanoseconds of all delays by strikes in a run: far less than any timeout.
const STRIKE_NS: u64 = 20_000_000;
/// Nanoseconds of one delay at a call of the fabric; one is drawn.
const AT_CALLS_NS: [u64; 3] = [1_000, 10_000, 50_000];
/// Nanoseconds of one delay at a fault point; one is drawn.
const AT_POINTS_NS: [u64; 3] = [10_000, 50_000, 200_000];
/// Limits of the number of operations between a call in focus and the delay of its caller. Which
/// distance exposes a defect is unknown, so one is drawn.
const NAPS: [u64; 4] = [4, 12, 30, 80];
/// Most lines of a trace; older ones are dropped.
const TRACE: usize = 200_000;

/// Rates of events. Each seed draws its own, so that runs differ in kind.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub(crate) memory: Spontaneous,
    /// The turn passes to another process, in 1/1024 per operation.
    pub switch: u64,
    /// A process crashes, in 1/2^20 per operation.
    pub process_crash: u64,
    /// A host crashes, in 1/2^20 per operation.
    pub host_crash: u64,
    /// The process (or, in one of three cases, its host) crashes at a fault point or shortly after
    /// it, in 1/1024 per passing.
    pub point_crash: u64,
    /// A host stalls for longer than any timeout, in 1/2^20 per operation.
    pub stall: u64,
    /// A host crashes during a fence that has written a line back in part, in 1/1024 per such
    /// fence.
    pub torn_crash: u64,
    /// A fault point with its own crash rate. Half of its passings are delayed or stalled instead.
    pub deadly: Option<Point>,
    /// Crashes at that fault point, in 1/1024 per passing that is not delayed.
    pub deadly_rate: u64,
}

impl Rates {
    /// The rates of a seed. With `deaths`, crash rates are drawn too; otherwise they are 0.
    #[must_use]
    pub fn of_seed(seed: u64, deaths: bool) -> Self {
        let mut prng = Prng::at(seed, 1);
        let mut pick = |choices: &[u64]| choices[prng.below(choices.len() as u64) as usize];
        let memory = Spontaneous {
            // Buffered stores and flushes complete eventually, without a fence.
            drain: pick(&[4, 16, 128, 512]),
            flush: pick(&[4, 64, 512]),
            // Streamed stores may stay in the processor until a fence.
            stream: pick(&[0, 4, 64, 512]),
            write_back: pick(&[0, 0, 4, 64]),
            evict: pick(&[0, 0, 2, 32]),
            prefetch: pick(&[0, 8, 64]),
            tear: pick(&[0, 64, 512]),
            spite: pick(&[0, 512]),
        };
        let switch = pick(&[8, 40, 150, 400]);
        let (process_crash, host_crash, point_crash) =
            if deaths { (pick(&[0, 40, 150, 400]), pick(&[0, 20, 60, 200]), pick(&[0, 4, 20])) } else { (0, 0, 0) };
        let torn_crash = if deaths { pick(&[0, 0, 2, 16]) } else { 0 };
        let deadly_rate = if deaths { pick(&[512, 128, 24]) } else { 0 };
        Self { memory, switch, process_crash, host_crash, point_crash, torn_crash, stall: 0, deadly: None, deadly_rate }
    }
}

/// The extent of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// One process.
    Process,
    /// A host with all its processes, its caches and its host-local memory.
    Host,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    /// Number of operations of all processes.
    pub operations: u64,
    /// Number of process crashes.
    pub process_crashes: u64,
    /// Number of host crashes.
    pub host_crashes: u64,
    /// Passings of fault points.
    pub points: BTreeMap<Point, u64>,
    /// Crashes at fault points.
    pub deaths_at: BTreeMap<Point, u64>,
    /// Calls of the fabric, by site.
    pub sites: BTreeMap<Site, u64>,
    /// Messages of the panics of the code under test. Each is a bug.
    pub panics: Vec<String>,
    /// Whether the run was stopped at its operation limit.
    pub endless: bool,
    /// The last events, oldest first. Empty unless [`World::trace`] was called.
    pub trace: VecDeque<String>,
}

/// Calls of one method of the fabric at one place.
struct Calls {
    method: &'static str,
    location: &'static Location<'static>,
    count: u64,
}

/// The effect of an operation on other processes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Waits for another process.
    Wait,
    /// Only reads. A waiting process that only reads still counts as waiting.
    Look,
    /// May change what other processes see.
    Act,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    Done,
    Dead,
}

struct ProcessState {
    host: usize,
    status: Status,
    /// Whether it has done nothing but read since it last waited.
    waits: bool,
    /// Time in nanoseconds until which it sleeps or is delayed.
    asleep_until: u64,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct MutexState {
    pub owner: Option<usize>,
    /// Whether its last holder released it as abandoned.
    pub abandoned: bool,
}

/// The state that a host's processes share and that a host crash clears.
#[derive(Default)]
pub(crate) struct HostState {
    pub locals: Option<Arc<crate::host::Words>>,
    pub mutexes: Vec<MutexState>,
    pub slots: Vec<Option<usize>>,
}

pub(crate) struct State {
    pub machine: Machine,
    pub hosts: Vec<HostState>,
    processes: Vec<ProcessState>,
    /// The live processes, in order of their numbers.
    live: Vec<usize>,
    turn: Option<usize>,
    pub time: u64,
    /// Whether only a scene-setter runs: operations then take effect without schedule or faults.
    pub scripted: bool,
    pub mutation: Option<Mutation>,
    focus: Option<Lens>,
    /// Crashes and stalls that strikes may still cause.
    strikes: u64,
    /// Nanoseconds of delay that strikes may still cause.
    strike_ns: u64,
    /// Calls at the place in focus until the work is cut short; 0: it is.
    cut: Option<u64>,
    /// The process that will be delayed, and the number of its own operations until then.
    nap: Option<(usize, u64)>,
    /// The process that will do its next refresh before its pending stores and flushes arrive.
    hasty: Option<usize>,
    tracing: bool,
    pub report: RunReport,
    /// Calls of the fabric, by the addresses of location and method, which are cheap to compare.
    calls: BTreeMap<(usize, usize), Calls>,
    prng: Prng,
    rates: Rates,
    operations_max: u64,
    idle: u64,
    /// The process that will crash, and the number of its own operations until then.
    doomed: Option<(usize, u64)>,
}

impl State {
    pub fn is_live(&self, process: usize) -> bool {
        self.processes[process].status == Status::Ready
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if !self.tracing {
            return;
        }
        if self.report.trace.len() == TRACE {
            self.report.trace.pop_front();
        }
        let line = format!("{:>7} {}", self.report.operations, text());
        self.report.trace.push_back(line);
    }

    fn end(&mut self, process: usize, status: Status) {
        self.processes[process].status = status;
        self.live.retain(|&live| live != process);
    }

    fn kill(&mut self, process: usize) {
        self.end(process, Status::Dead);
        self.doomed = self.doomed.filter(|(doomed, _)| *doomed != process);
        let host = self.processes[process].host;
        for slot in &mut self.hosts[host].slots {
            if *slot == Some(process) {
                *slot = None;
            }
        }
    }

    fn crash(&mut self, process: usize, crash: Crash) {
        let host = self.processes[process].host;
        self.note(|| format!("CRASH {crash:?} process {process} host {host}"));
        match crash {
            Crash::Process => {
                self.report.process_crashes += 1;
                self.machine.end_process(process);
                self.kill(process);
            }
            Crash::Host => {
                self.report.host_crashes += 1;
                self.machine.lose_host(host);
                for other in 0..self.processes.len() {
                    if self.processes[other].host == host && self.is_live(other) {
                        self.kill(other);
                    }
                }
                self.hosts[host] = HostState::default();
            }
        }
    }

    /// Whether each live process sleeps, or waits for another one.
    fn all_wait(&self) -> bool {
        let waits = |process: &ProcessState| process.waits || process.asleep_until > self.time;
        self.live.iter().all(|&process| waits(&self.processes[process]))
    }

    /// Gives the turn to a random live process that is awake. If all sleep, advances the clock to
    /// the first that wakes.
    fn pass_turn(&mut self) {
        let wakes = |process: &usize| self.processes[*process].asleep_until;
        if let Some(first) = self.live.iter().map(wakes).min() {
            self.time = self.time.max(first);
        }
        let awake = self.live.iter().filter(|process| wakes(process) <= self.time);
        let count = awake.clone().count();
        self.turn =
            (count > 0).then(|| self.prng.below(count as u64) as usize).and_then(|chosen| awake.copied().nth(chosen));
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
}

/// Panic payload that unwinds a crashed process.
struct Died;

/// The process has crashed and is unwinding: the caller must return without any effect.
pub(crate) struct Gone;

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the model does not panic")
    }

    /// Begins an operation of `process`. The turn may pass on, processes or hosts may crash, and
    /// spontaneous memory events happen.
    ///
    /// # Errors
    /// [`Gone`] if this process has crashed and is unwinding already. Otherwise a crash of this
    /// process unwinds from here.
    pub fn step(&self, process: usize, kind: Kind) -> Result<MutexGuard<'_, State>, Gone> {
        let mut state = self.state();
        if state.scripted {
            return Ok(state);
        }
        // A crashed process starts to unwind here. If it is unwinding already, this returns `Gone`.
        if !state.is_live(process) {
            drop(state);
            return Self::unwind();
        }
        state.report.operations += 1;
        state.time += OPERATION_NS;
        match kind {
            Kind::Wait => state.processes[process].waits = true,
            Kind::Look => {}
            Kind::Act => state.processes[process].waits = false,
        }
        if state.report.operations > state.operations_max {
            state.report.endless = true;
            for other in 0..state.processes.len() {
                if state.is_live(other) {
                    state.kill(other);
                }
            }
            drop(state);
            return Self::unwind();
        }
        let State { machine, live, .. } = &mut *state;
        machine.drift(live);
        state.warm_up();
        let rates = state.rates;
        if let Some((sleepy, operations)) = state.nap.filter(|(sleepy, _)| *sleepy == process) {
            state.nap = operations.checked_sub(1).map(|left| (sleepy, left));
            if operations == 0 {
                state.hold_up(process, &AT_CALLS_NS);
            }
        }
        let draw = |state: &mut State, rate: u64| rate > 0 && state.prng.below(1 << 20) < rate;
        if let Some((doomed, operations)) = state.doomed.filter(|(doomed, _)| *doomed == process) {
            state.doomed = operations.checked_sub(1).map(|left| (doomed, left));
            if operations == 0 {
                let crash = if state.prng.below(3) == 0 { Crash::Host } else { Crash::Process };
                state.crash(process, crash);
            }
        } else if draw(&mut state, rates.process_crash) {
            state.crash(process, Crash::Process);
        } else if draw(&mut state, rates.host_crash) {
            state.crash(process, Crash::Host);
        } else if draw(&mut state, rates.stall) {
            state.stall(process);
        }
        if kind == Kind::Wait && state.all_wait() {
            // All processes polled again without progress: only a timeout can help, so advance the
            // clock.
            state.idle += 1;
            if state.idle > 40 * state.live.len() as u64 {
                state.idle = 0;
                let now = state.time;
                let sleepers = state.live.iter().map(|&other| state.processes[other].asleep_until);
                // Do not skip the first wake-up: the others may be waiting for that process.
                state.time = sleepers.filter(|&until| until > now).fold(now + IDLE_STEP_NS, u64::min);
            }
        } else if kind == Kind::Act {
            state.idle = 0;
        }
        if kind == Kind::Wait || !state.is_live(process) || state.prng.below(1024) < rates.switch {
            state.pass_turn();
        }
        if state.turn != Some(process) && state.is_live(process) && !std::thread::panicking() {
            drop(state);
            #[expect(
                deprecated,
                reason = "its replacement needs a handle that the code under test would have to pass on"
            )]
            generator::yield_with(());
            state = self.state();
        }
        if !state.is_live(process) {
            drop(state);
            return Self::unwind();
        }
        Ok(state)
    }

    /// As [`Shared::step`] for an operation that only reads. Most of them run without a schedule
    /// point.
    pub fn look(&self, process: usize) -> Result<MutexGuard<'_, State>, Gone> {
        let mut state = self.state();
        let moves = state.turn == Some(process) && state.is_live(process);
        if state.scripted || (moves && state.prng.below(LOOKS_PER_STEP) != 0) {
            return Ok(state);
        }
        drop(state);
        self.step(process, Kind::Look)
    }

    fn unwind<T>() -> Result<T, Gone> {
        if std::thread::panicking() { Err(Gone) } else { resume_unwind(Box::new(Died)) }
    }

    fn point(&self, process: usize, point: Point) {
        let Ok(mut state) = self.step(process, Kind::Act) else { return };
        *state.report.points.entry(point).or_default() += 1;
        let deadly = state.rates.deadly == Some(point);
        if deadly && !state.scripted && state.prng.below(2) == 0 {
            // Every call passes the point in a lock.
            let is_rare = point != Point::LockEntered || state.prng.below(8) == 0;
            if state.rates.stall > 0 && is_rare && state.prng.below(2) == 0 {
                state.stall(process);
                state.pass_turn();
            } else {
                // The other processes of its host run meanwhile.
                state.hold_up(process, &AT_POINTS_NS);
            }
            drop(state);
            drop(self.step(process, Kind::Look));
            return;
        }
        let rate = if deadly { state.rates.deadly_rate } else { state.rates.point_crash };
        if !state.scripted && rate > 0 && state.doomed.is_none() && state.prng.below(1024) < rate {
            // Crash at the point or a little later: the critical steps follow the point.
            let operations = if state.prng.below(2) == 0 { 0 } else { state.prng.below(24) };
            *state.report.deaths_at.entry(point).or_default() += 1;
            state.doomed = Some((process, operations));
            drop(state);
            drop(self.step(process, Kind::Look));
        }
    }
}

thread_local! {
    /// The process that has the turn on this thread.
    static CURRENT: RefCell<Option<Process>> = const { RefCell::new(None) };
    /// Whether that process runs code of a forked child.
    static IN_CHILD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the process that has the turn runs code of a forked child ([`Process::in_child`]).
pub(crate) fn in_child() -> bool {
    IN_CHILD.get()
}

fn pass_point(point: Point) {
    let current = CURRENT.with(|current| current.borrow().clone());
    if let Some(process) = current {
        process.shared.point(process.number, point);
    }
}

/// Handle of a simulated process, passed to its program.
#[derive(Clone)]
pub struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: usize,
    pub(crate) host: usize,
}

impl Process {
    /// The number of its host, from 0.
    #[must_use]
    pub const fn host(&self) -> usize {
        self.host
    }

    /// Its number, unique in its world.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The region as this process sees it.
    #[must_use]
    pub fn fabric(&self) -> crate::SimFabric {
        crate::SimFabric::new(self.clone())
    }

    /// Sleeps for `duration_ns` nanoseconds of simulated time. Returns false if the process has
    /// crashed.
    pub fn sleep(&self, duration_ns: u64) -> bool {
        let Ok(mut state) = self.shared.step(self.number, Kind::Act) else { return false };
        let until = state.time + duration_ns;
        let asleep = &mut state.processes[self.number].asleep_until;
        *asleep = until.max(*asleep);
        drop(state);
        self.shared.step(self.number, Kind::Wait).is_ok()
    }

    /// Whether process `number` has neither ended nor crashed.
    #[must_use]
    pub fn lives(&self, number: usize) -> bool {
        self.shared.state().is_live(number)
    }

    /// Whether the work was cut short (see [`World::cut_after`]).
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.state().cut == Some(0)
    }

    /// Continues this process on another thread and core. Fences of the new thread do not complete
    /// the flushes and streams of the old one.
    pub fn change_thread(&self) {
        let Ok(mut state) = self.shared.step(self.number, Kind::Act) else { return };
        state.machine.change_thread(self.number);
        let number = self.number;
        state.note(|| format!("p{number} changes its thread"));
    }

    /// Stalls this process's host until the others declare it dead. Does nothing unless this world
    /// has stalls ([`World::stall`]).
    pub fn hold_up_host(&self) {
        {
            let Ok(mut state) = self.shared.step(self.number, Kind::Act) else { return };
            if state.rates.stall == 0 {
                return;
            }
            state.stall(self.number);
        }
        drop(self.shared.step(self.number, Kind::Wait));
    }

    /// Runs `work` as a forked child of this process, with all inherited handles. Returns its
    /// result and the number of operations on memory, locks and slots that it did. The count must
    /// be 0, because such an operation of a child would act on the parent's state.
    pub fn in_child<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        struct Back;
        impl Drop for Back {
            fn drop(&mut self) {
                IN_CHILD.set(false);
            }
        }
        let before = self.shared.state().report.operations;
        IN_CHILD.set(true);
        let back = Back;
        let done = work();
        drop(back);
        (done, self.shared.state().report.operations - before)
    }

    /// Simulated time in nanoseconds.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.shared.state().time
    }

    /// Appends a line to the run's trace.
    pub fn note(&self, text: &str) {
        let number = self.number;
        self.shared.state().note(|| format!("p{number} {text}"));
    }
}

/// Hosts, their processes and the memory that they share.
pub struct World {
    shared: Arc<Shared>,
    panics: Arc<Mutex<Vec<String>>>,
}

/// The program of a process.
pub type Program = Box<dyn FnOnce(Process) + Send>;

impl World {
    /// A world of `hosts` hosts that share a device of `bytes` bytes, a multiple of 64. After
    /// `operations_max` operations all processes are stopped.
    #[must_use]
    pub fn new(seed: u64, hosts: usize, bytes: u64, rates: Rates, operations_max: u64) -> Self {
        fault::observe(pass_point);
        let state = State {
            machine: Machine::new(Prng::at(seed, 2).next_u64(), bytes, hosts, rates.memory),
            hosts: (0..hosts).map(|_| HostState::default()).collect(),
            processes: Vec::new(),
            live: Vec::new(),
            turn: None,
            time: 1_000_000_000,
            scripted: true,
            mutation: None,
            focus: None,
            strikes: 0,
            strike_ns: 0,
            cut: None,
            nap: None,
            hasty: None,
            tracing: false,
            report: RunReport::default(),
            calls: BTreeMap::new(),
            prng: Prng::at(seed, 3),
            rates,
            operations_max,
            idle: 0,
            doomed: None,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }), panics: Arc::default() }
    }

    /// Leaves out the effect of this mutation from now on.
    pub fn mutate(&self, mutation: Option<Mutation>) {
        self.shared.state().mutation = mutation;
    }

    /// Perturbs calls of the fabric at these places from now on. Processes are delayed or crash
    /// there, with at most `deaths` crashes and stalls. Their flushes may arrive late, and
    /// caches may fetch their lines early.
    pub fn focus(&self, focus: Option<Focus>, deaths: u64) {
        let mut state = self.shared.state();
        (state.focus, state.strikes, state.strike_ns) = (focus.map(Lens::new), deaths, STRIKE_NS);
    }

    /// Makes [`Process::is_cut`] true after `calls` calls at the place in focus. The program can
    /// then inspect their effects before later operations overwrite them.
    pub fn cut_after(&self, calls: u64) {
        self.shared.state().cut = Some(calls);
    }

    /// Records events in the report's trace from now on.
    pub fn trace(&self) {
        self.shared.state().tracing = true;
    }

    /// Disables crashes and stalls from now on, and cancels a pending crash, delay or cut. Work
    /// that was cut short stays cut. Short delays at places in focus remain.
    pub fn calm(&self) {
        let mut state = self.shared.state();
        let rates = &mut state.rates;
        (rates.process_crash, rates.host_crash, rates.point_crash, rates.stall) = (0, 0, 0, 0);
        rates.torn_crash = 0;
        rates.deadly = None;
        (state.nap, state.hasty) = (None, None);
        state.cut = state.cut.filter(|&calls| calls == 0);
        state.strikes = 0;
        state.doomed = None;
    }

    /// Stalls hosts from now on until the others declare them dead, at `rate` in 1/2^20 per
    /// operation.
    pub fn stall(&self, rate: u64) {
        self.shared.state().rates.stall = rate;
    }

    /// Cuts a host's power between two runs.
    pub fn power_off(&self, host: usize) {
        let mut state = self.shared.state();
        state.machine.lose_host(host);
        state.hosts[host] = HostState::default();
    }

    /// A process on `host` that the calling thread drives, to set up a run. Its operations take
    /// effect without schedule or faults.
    #[must_use]
    pub fn scene_setter(&self, host: usize) -> Process {
        let mut state = self.shared.state();
        state.scripted = true;
        let number = Self::add(&mut state, host);
        Process { shared: Arc::clone(&self.shared), number, host }
    }

    fn add(state: &mut State, host: usize) -> usize {
        let number = state.machine.add_process(host);
        state.processes.push(ProcessState { host, status: Status::Ready, waits: false, asleep_until: 0 });
        state.live.push(number);
        number
    }

    /// The number of the next process.
    #[must_use]
    pub fn next_process(&self) -> usize {
        self.shared.state().processes.len()
    }

    /// Runs (host, program) pairs until all have ended or crashed. Processes are numbered in their
    /// order.
    pub fn run(&self, programs: Vec<(usize, Program)>) {
        let mut ready = Vec::new();
        {
            let mut state = self.shared.state();
            // Complete the pending operations of the scene-setters.
            for process in 0..state.processes.len() {
                if state.is_live(process) {
                    state.machine.fence(process);
                    state.end(process, Status::Done);
                }
            }
            for (host, program) in programs {
                ready.push((Self::add(&mut state, host), host, program));
            }
            state.scripted = false;
            state.pass_turn();
        }
        let first = ready.first().map_or(0, |(number, ..)| *number);
        let mut stacks: Vec<_> = ready
            .into_iter()
            .map(|(number, host, program)| {
                let process = Process { shared: Arc::clone(&self.shared), number, host };
                let panics = Arc::clone(&self.panics);
                let given = process.clone();
                (process, Gn::<()>::new_opt(STACK_WORDS, move || live(&given, program, &panics)))
            })
            .collect();
        let mut running = stacks.len();
        while running > 0 {
            let chosen = {
                let state = self.shared.state();
                // Crashed processes run first, to unwind their stacks.
                let dead =
                    stacks.iter().position(|(process, stack)| !stack.is_done() && !state.is_live(process.number));
                dead.or(state.turn.map(|turn| turn - first)).expect("a live process has the turn")
            };
            let (process, stack) = &mut stacks[chosen];
            CURRENT.with(|current| *current.borrow_mut() = Some(process.clone()));
            stack.resume();
            running -= usize::from(stack.is_done());
        }
        CURRENT.with(|current| *current.borrow_mut() = None);
        self.shared.state().scripted = true;
    }

    /// The report of all runs so far.
    #[must_use]
    pub fn report(&self) -> RunReport {
        let state = self.shared.state();
        let mut report = state.report.clone();
        for calls in state.calls.values() {
            *report.sites.entry(Site::new(calls.method, calls.location)).or_default() += calls.count;
        }
        drop(state);
        report.panics = self.panics.lock().expect("plain pushes").clone();
        report
    }
}

/// Runs a process's program to its end, crash or panic.
fn live(process: &Process, program: Program, panics: &Mutex<Vec<String>>) {
    let given = process.clone();
    let outcome = catch_unwind(AssertUnwindSafe(move || program(given)));
    let panicked = outcome.err().filter(|payload| !payload.is::<Died>());
    let mut state = process.shared.state();
    if let Some(payload) = panicked {
        let text = describe(payload.as_ref());
        let number = process.number;
        state.note(|| format!("PANIC p{number} {text}"));
        panics.lock().expect("plain pushes").push(text);
    }
    if state.is_live(process.number) {
        state.machine.end_process(process.number);
        state.kill(process.number);
        state.processes[process.number].status = Status::Done;
        state.pass_turn();
    }
}

fn describe(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

impl State {
    /// Counts a call of the fabric at this place.
    pub fn call(&mut self, method: &'static str, location: &'static Location<'static>) {
        if !self.scripted {
            let key = (std::ptr::from_ref(location).addr(), method.as_ptr().addr());
            self.calls.entry(key).or_insert(Calls { method, location, count: 0 }).count += 1;
        }
    }

    fn hold_up(&mut self, process: usize, durations: &[u64; 3]) {
        let duration = durations[self.prng.below(3) as usize].min(self.strike_ns);
        self.strike_ns -= duration;
        self.processes[process].asleep_until = self.time + duration;
        self.note(|| format!("STRIKE p{process} waits {duration} ns"));
        self.pass_turn();
    }

    /// Delays all processes of this process's host until the others declare the host dead.
    fn stall(&mut self, process: usize) {
        let (host, until) = (self.processes[process].host, self.time + STALL_NS);
        self.note(|| format!("STALL host {host}"));
        for other in self.processes.iter_mut().filter(|other| other.host == host) {
            other.asleep_until = until;
        }
    }

    /// May fetch a hot line into a random host's cache, before that host's next access.
    fn warm_up(&mut self) {
        let hot = self.machine.hot_lines();
        if !hot.is_empty() && self.prng.below(16) == 0 {
            let line = hot[self.prng.below(hot.len() as u64) as usize];
            let host = self.prng.below(self.hosts.len() as u64) as usize;
            self.machine.prefetch(host, line);
        }
    }

    /// May crash this process's host while only some words of a line have arrived. Otherwise may
    /// fetch a hot line.
    pub fn torn(&mut self, process: usize) {
        if !self.scripted && self.rates.torn_crash > 0 && self.prng.below(1024) < self.rates.torn_crash {
            self.crash(process, Crash::Host);
            self.pass_turn();
        } else {
            self.warm_up();
        }
    }

    /// If this process is hasty, drops these lines from its cache and fetches them again while its
    /// earlier stores are pending, then delays it. Returns whether it did; the turn may then have
    /// passed.
    pub fn look_early(&mut self, process: usize, lines: &[u64]) -> bool {
        if self.scripted || self.hasty.take_if(|hasty| *hasty == process).is_none() {
            return false;
        }
        let host = self.processes[process].host;
        for &line in lines {
            self.machine.run_flush_of(process, line);
            self.machine.prefetch(host, line);
        }
        self.hold_up(process, &AT_CALLS_NS);
        true
    }

    /// Whether calls of the fabric at some places are perturbed now.
    pub const fn is_focused(&self) -> bool {
        self.focus.is_some() && !self.scripted
    }

    /// Perturbs the run just after a call of the fabric on these lines, if the focus is on its
    /// place or near it.
    pub fn strike(&mut self, process: usize, location: &'static Location<'static>, lines: &[u64]) {
        let Some(lens) = self.focus.as_mut().filter(|_| !self.scripted) else { return };
        if !lens.is_on(location) {
            let lines_off = lens.lines_off(location);
            if lines_off <= NEIGHBOURHOOD {
                self.machine.heat(lines);
            }
            if lines_off <= NEAR {
                match self.prng.below(8) {
                    0 => self.hold_up(process, &AT_CALLS_NS),
                    1 => self.nap = Some((process, self.prng.below(NAPS[1]))),
                    _ => {}
                }
            }
            return;
        }
        self.cut = self.cut.map(|calls| calls.saturating_sub(1));
        if self.prng.below(2) == 0 {
            self.machine.slow_down(process, lines);
        }
        if self.prng.below(2) == 0 {
            self.hasty = Some(process);
        }
        let host = self.processes[process].host;
        self.machine.heat(lines);
        match self.prng.below(10) {
            // Other processes run while this one is here or a few operations later.
            0 => self.hold_up(process, &AT_CALLS_NS),
            length @ 1..5 => self.nap = Some((process, self.prng.below(NAPS[length as usize - 1]))),
            // Caches fetch lines that they dropped or will load.
            5 => lines.iter().for_each(|&line| self.machine.prefetch(host, line)),
            6 => (0..self.hosts.len())
                .for_each(|other| lines.iter().for_each(|&line| self.machine.prefetch(other, line))),
            7 if self.strikes > 0 && self.doomed.is_none() => {
                self.strikes -= 1;
                self.doomed = Some((process, self.prng.below(6)));
            }
            8 if self.rates.stall > 0 && self.strikes > 0 => {
                self.strikes -= 1;
                self.stall(process);
                self.pass_turn();
            }
            _ => {}
        }
    }

    /// Whether the mutation leaves out `effect` at this place.
    pub fn leaves_out(&self, location: &Location<'_>, effect: crate::Effect) -> bool {
        !self.scripted && self.mutation.as_ref().is_some_and(|mutation| mutation.hits(location, effect))
    }
}
