//! Processes, time and schedule. Each process has a stack of its own, and only the one that has the turn moves; at
//! every operation the turn may go to another, a process or a host may die, and the memory drifts.

use crate::machine::{Machine, Spontaneous};
use crate::mutation::{Focus, Mutation, NEAR, NEIGHBOURHOOD, Site};
use cenote_base::fault;
use cenote_base::prng::Prng;
use generator::Gn;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

/// Nanoseconds that an operation takes.
const OPERATION_NS: u64 = 50;
/// When all wait, time goes on in such steps.
const IDLE_STEP_NS: u64 = 10_000_000;
/// Loads that pass without anything else happening, on average.
const LOOKS_PER_STEP: u64 = 12;
/// How long a host is held up: longer than any timeout.
const STALL_NS: u64 = 2_000_000_000;
/// Words of a process's stack: only what is touched takes memory.
const STACK_WORDS: usize = 64 << 10;
/// How long strikes hold processes up in all: far less than any timeout.
const STRIKE_NS: u64 = 20_000_000;
/// How long one strike does: at calls of the fabric, and at fault points.
const AT_CALLS_NS: [u64; 3] = [1_000, 10_000, 50_000];
const AT_POINTS_NS: [u64; 3] = [10_000, 50_000, 200_000];
/// So many operations behind a call in focus its caller is held up at most: there is no telling what hurts.
const NAPS: [u64; 4] = [4, 12, 30, 80];
/// Events kept to explain a failure.
const TRACE: usize = 200_000;

/// How often things happen, drawn anew for each seed so that every run has its own weather.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub(crate) memory: Spontaneous,
    /// The turn passes on, in 1/1024 of operations.
    pub switch: u64,
    /// A process dies, in 1/2^20 of operations.
    pub process_crash: u64,
    /// A host dies, in 1/2^20 of operations.
    pub host_crash: u64,
    /// The process (or, one time in four, its host) dies at a fault point, in 1/1024 of points passed.
    pub point_crash: u64,
    /// A host is held up for a long time, in 1/2^20 of operations.
    pub stall: u64,
    /// A host dies when a line that it waits for has arrived in part, in 1/1024 of such waits.
    pub torn_crash: u64,
    /// A fault point at which many die or are held up.
    pub deadly: Option<&'static str>,
    /// How many die, in 1/1024 of its passings.
    pub deadly_rate: u64,
}

impl Rates {
    /// The weather of a seed. `deaths`: some runs have crashes.
    #[must_use]
    pub fn of_seed(seed: u64, deaths: bool) -> Self {
        let mut prng = Prng::at(seed, 1);
        let mut pick = |choices: &[u64]| choices[prng.below(choices.len() as u64) as usize];
        let memory = Spontaneous {
            // What is under way arrives some time, without any fence.
            drain: pick(&[4, 16, 128, 512]),
            flush: pick(&[4, 64, 512]),
            // What is streamed may stay in the processor until a fence.
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

/// Who died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// One process.
    Process,
    /// A host with all its processes, and the memory that only it had.
    Host,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    /// Operations of all processes.
    pub operations: u64,
    /// Deaths of single processes.
    pub process_crashes: u64,
    /// Deaths of hosts.
    pub host_crashes: u64,
    /// Fault points passed, by name.
    pub points: BTreeMap<&'static str, u64>,
    /// Deaths at fault points, by name.
    pub deaths_at: BTreeMap<&'static str, u64>,
    /// Calls of the fabric by place.
    pub sites: BTreeMap<Site, u64>,
    /// Panics of the code under test: each is a bug.
    pub panics: Vec<String>,
    /// Whether the run was ended because it did not end.
    pub endless: bool,
    /// The last events.
    pub trace: VecDeque<String>,
}

/// What an operation means to others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It waits for somebody.
    Wait,
    /// It only looks: a process that waits still waits.
    Look,
    /// It may change what others see.
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
    /// It has done nothing but look since it last waited.
    waits: bool,
    /// Sleeps or is held up until then.
    asleep_until: u64,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct MutexState {
    pub owner: Option<usize>,
    /// Its last holder said so.
    pub abandoned: bool,
}

/// What the processes of a host share, and lose together.
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
    turn: Option<usize>,
    pub time: u64,
    /// Nobody but a scene-setter is about: operations happen at once.
    pub scripted: bool,
    pub mutation: Option<Mutation>,
    focus: Option<Focus>,
    /// Deaths that a strike may still bring.
    strikes: u64,
    /// How long strikes may still hold processes up.
    strike_ns: u64,
    /// So many more calls at the place in focus, and the work is cut short.
    cut: Option<u64>,
    /// Who will be held up after how many more operations of its own.
    nap: Option<(usize, u64)>,
    /// Whose next look at the device overtakes what it has under way.
    hasty: Option<usize>,
    tracing: bool,
    pub report: RunReport,
    prng: Prng,
    rates: Rates,
    operations_max: u64,
    idle: u64,
    /// Who dies after how many more operations of its own.
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

    fn live(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|&process| self.is_live(process)).collect()
    }

    fn kill(&mut self, process: usize) {
        self.processes[process].status = Status::Dead;
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
                for other in self.live() {
                    if self.processes[other].host == host {
                        self.kill(other);
                    }
                }
                self.hosts[host] = HostState::default();
            }
        }
    }

    /// Gives the turn to a process that may move, drawn from those that neither sleep nor are held up. Where
    /// all do, time goes on to the first that wakes.
    fn pass_turn(&mut self) {
        let live = self.live();
        if let Some(first) = live.iter().map(|&process| self.processes[process].asleep_until).min() {
            self.time = self.time.max(first);
        }
        let time = self.time;
        let awake: Vec<usize> =
            live.into_iter().filter(|&process| self.processes[process].asleep_until <= time).collect();
        self.turn = if awake.is_empty() { None } else { Some(awake[self.prng.below(awake.len() as u64) as usize]) };
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
}

/// What unwinds a process that died.
struct Died;

/// The process is dead: it must not do anything any more.
pub(crate) struct Gone;

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the model does not panic")
    }

    /// The beginning of an operation of `process`: the turn may pass, somebody may die, memory drifts. `Err`:
    /// this process is dead, and unwinding already.
    pub fn step(&self, process: usize, kind: Kind) -> Result<MutexGuard<'_, State>, Gone> {
        let mut state = self.state();
        if state.scripted {
            return Ok(state);
        }
        // Only one that a panic already unwinds moves on when it is dead.
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
            for other in state.live() {
                state.kill(other);
            }
            drop(state);
            return Self::unwind();
        }
        let live = state.live();
        state.machine.drift(&live);
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
        if kind == Kind::Wait
            && live
                .iter()
                .all(|&other| state.processes[other].waits || state.processes[other].asleep_until > state.time)
        {
            // Everybody looked once more and nothing came: only time can help.
            state.idle += 1;
            if state.idle > 40 * live.len() as u64 {
                state.idle = 0;
                let now = state.time;
                let sleepers = live.iter().map(|&other| state.processes[other].asleep_until);
                // Not past the first who wakes: it may be the one that is waited for.
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
            #[expect(deprecated, reason = "its successor would have to be handed through the code under test")]
            generator::yield_with(());
            state = self.state();
        }
        if !state.is_live(process) {
            drop(state);
            return Self::unwind();
        }
        Ok(state)
    }

    /// As [`Shared::step`] for an operation that changes nothing: mostly it is one with the operation before it.
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

    fn point(&self, process: usize, name: &'static str) {
        let Ok(mut state) = self.step(process, Kind::Act) else { return };
        *state.report.points.entry(name).or_default() += 1;
        let deadly = state.rates.deadly == Some(name);
        if deadly && !state.scripted && state.prng.below(2) == 0 {
            if state.rates.stall > 0 && state.prng.below(2) == 0 {
                state.stall(process);
                state.pass_turn();
            } else {
                // The others of its host go on meanwhile.
                state.hold_up(process, &AT_POINTS_NS);
            }
            drop(state);
            drop(self.step(process, Kind::Look));
            return;
        }
        let rate = if deadly { state.rates.deadly_rate } else { state.rates.point_crash };
        if !state.scripted && rate > 0 && state.doomed.is_none() && state.prng.below(1024) < rate {
            // At the point or a little later: what a point stands before is where deaths hurt.
            let operations = if state.prng.below(2) == 0 { 0 } else { state.prng.below(24) };
            *state.report.deaths_at.entry(name).or_default() += 1;
            state.doomed = Some((process, operations));
            drop(state);
            drop(self.step(process, Kind::Look));
        }
    }
}

thread_local! {
    /// Which process has the turn on this thread.
    static CURRENT: RefCell<Option<Process>> = const { RefCell::new(None) };
    /// Whether what runs is a child of that process.
    static IN_CHILD: Cell<bool> = const { Cell::new(false) };
}

/// Whether a forked child of the process that has the turn is at work ([`Process::in_child`]).
pub(crate) fn in_child() -> bool {
    IN_CHILD.get()
}

fn pass_point(name: &'static str) {
    let current = CURRENT.with(|current| current.borrow().clone());
    if let Some(process) = current {
        process.shared.point(process.number, name);
    }
}

/// A simulated process: what its program gets.
#[derive(Clone)]
pub struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: usize,
    pub(crate) host: usize,
}

impl Process {
    /// Its host.
    #[must_use]
    pub const fn host(&self) -> usize {
        self.host
    }

    /// Its number, different from all others of its world.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The region as it sees it.
    #[must_use]
    pub fn fabric(&self) -> crate::SimFabric {
        crate::SimFabric::new(self.clone())
    }

    /// Lets `duration_ns` pass. Returns whether it was not cut short by death.
    pub fn sleep(&self, duration_ns: u64) -> bool {
        let Ok(mut state) = self.shared.step(self.number, Kind::Act) else { return false };
        let until = state.time + duration_ns;
        let asleep = &mut state.processes[self.number].asleep_until;
        *asleep = until.max(*asleep);
        drop(state);
        self.shared.step(self.number, Kind::Wait).is_ok()
    }

    /// Whether this process of the world has neither ended nor died.
    #[must_use]
    pub fn lives(&self, number: usize) -> bool {
        self.shared.state().is_live(number)
    }

    /// Whether the work was cut short (see [`World::cut_after`]).
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.state().cut == Some(0)
    }

    /// From here on another thread of this process goes on, on another core: its fences do not complete what
    /// the one before has flushed.
    pub fn change_thread(&self) {
        let Ok(mut state) = self.shared.step(self.number, Kind::Act) else { return };
        state.machine.change_thread(self.number);
        let number = self.number;
        state.note(|| format!("p{number} changes its thread"));
    }

    /// This process's host is held up now, so long that others declare it dead, if that happens in this world at all
    /// ([`World::stall`]).
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

    /// Does `work` as a child that this process forks does it, with all that the parent has. Returns how many operations on
    /// memory, locks and slots that took, of which the parent's are none of the child's to do.
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

    /// Nanoseconds of simulated time.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.shared.state().time
    }

    /// Writes a line into the run's trace.
    pub fn note(&self, text: &str) {
        let number = self.number;
        self.shared.state().note(|| format!("p{number} {text}"));
    }
}

/// Hosts, their processes, and the memory between them.
pub struct World {
    shared: Arc<Shared>,
    panics: Arc<Mutex<Vec<String>>>,
}

/// A program of a process.
pub type Program = Box<dyn FnOnce(Process) + Send>;

impl World {
    /// A world of `hosts` over a device of `bytes`. A run of more than `operations_max` operations is ended.
    #[must_use]
    pub fn new(seed: u64, hosts: usize, bytes: u64, rates: Rates, operations_max: u64) -> Self {
        fault::observe(pass_point);
        let state = State {
            machine: Machine::new(Prng::at(seed, 2).next_u64(), bytes, hosts, rates.memory),
            hosts: (0..hosts).map(|_| HostState::default()).collect(),
            processes: Vec::new(),
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
            prng: Prng::at(seed, 3),
            rates,
            operations_max,
            idle: 0,
            doomed: None,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }), panics: Arc::default() }
    }

    /// From now on this effect is left out.
    pub fn mutate(&self, mutation: Option<Mutation>) {
        self.shared.state().mutation = mutation;
    }

    /// From now on whoever calls the fabric at these places is held up just then, dies just then (so many times at most),
    /// and what it flushed arrives as late and is fetched again as early as may be.
    pub fn focus(&self, focus: Option<Focus>, deaths: u64) {
        let mut state = self.shared.state();
        (state.focus, state.strikes, state.strike_ns) = (focus, deaths, STRIKE_NS);
    }

    /// After so many calls at the place in focus [`Process::is_cut`], so that what they came to is looked at before
    /// it is written over.
    pub fn cut_after(&self, calls: u64) {
        self.shared.state().cut = Some(calls);
    }

    /// From now on the report tells what happened.
    pub fn trace(&self) {
        self.shared.state().tracing = true;
    }

    /// From now on nobody dies, nobody is held up, and nothing is cut short that was not.
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

    /// From now on hosts are held up, so long that others declare them dead, in so many of 2^20 operations.
    pub fn stall(&self, rate: u64) {
        self.shared.state().rates.stall = rate;
    }

    /// A host loses power now, between runs.
    pub fn power_off(&self, host: usize) {
        let mut state = self.shared.state();
        state.machine.lose_host(host);
        state.hosts[host] = HostState::default();
    }

    /// A process on `host` that this thread plays, alone, with every operation happening at once: for setting
    /// a scene.
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
        number
    }

    /// The number that the next process will have.
    #[must_use]
    pub fn next_process(&self) -> usize {
        self.shared.state().processes.len()
    }

    /// Runs programs until all have ended or died. Each gets its process; they are numbered in order.
    pub fn run(&self, programs: Vec<(usize, Program)>) {
        let mut ready = Vec::new();
        {
            let mut state = self.shared.state();
            // What the scene-setter left under way arrives.
            for process in 0..state.processes.len() {
                if state.is_live(process) {
                    state.machine.fence(process);
                    state.processes[process].status = Status::Done;
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
                // The dead come first: they unwind, and nobody hears of them again.
                let dead =
                    stacks.iter().position(|(process, stack)| !stack.is_done() && !state.is_live(process.number));
                dead.or(state.turn.map(|turn| turn - first)).expect("somebody who lives has the turn")
            };
            let (process, stack) = &mut stacks[chosen];
            CURRENT.with(|current| *current.borrow_mut() = Some(process.clone()));
            stack.resume();
            running -= usize::from(stack.is_done());
        }
        CURRENT.with(|current| *current.borrow_mut() = None);
        self.shared.state().scripted = true;
    }

    /// What has happened so far.
    #[must_use]
    pub fn report(&self) -> RunReport {
        let mut report = self.shared.state().report.clone();
        report.panics = self.panics.lock().expect("plain pushes").clone();
        report
    }
}

/// The life of a process.
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
        .unwrap_or_else(|| "a panic without words".to_owned())
}

impl State {
    /// Counts a call of the fabric from this place, and tells whether this effect of it is left out.
    pub fn call(&mut self, method: &'static str, location: &Location<'_>) {
        if !self.scripted {
            *self.report.sites.entry(Site::new(method, location)).or_default() += 1;
        }
    }

    fn hold_up(&mut self, process: usize, durations: &[u64; 3]) {
        let duration = durations[self.prng.below(3) as usize].min(self.strike_ns);
        self.strike_ns -= duration;
        self.processes[process].asleep_until = self.time + duration;
        self.note(|| format!("STRIKE p{process} waits {duration} ns"));
        self.pass_turn();
    }

    /// The host of a process is held up for so long that others declare it dead.
    fn stall(&mut self, process: usize) {
        let (host, until) = (self.processes[process].host, self.time + STALL_NS);
        self.note(|| format!("STALL host {host}"));
        for other in self.processes.iter_mut().filter(|other| other.host == host) {
            other.asleep_until = until;
        }
    }

    /// Some host's cache fetches a line that calls in focus were about, before they come to it.
    fn warm_up(&mut self) {
        let hot = self.machine.hot_lines();
        if !hot.is_empty() && self.prng.below(16) == 0 {
            let line = hot[self.prng.below(hot.len() as u64) as usize];
            let host = self.prng.below(self.hosts.len() as u64) as usize;
            self.machine.prefetch(host, line);
        }
    }

    /// A line of this process's host is half there: the moment at which losing power hurts most.
    pub fn torn(&mut self, process: usize) {
        if !self.scripted && self.rates.torn_crash > 0 && self.prng.below(1024) < self.rates.torn_crash {
            self.crash(process, Crash::Host);
            self.pass_turn();
        } else {
            self.warm_up();
        }
    }

    /// A process that called at the place in focus looks at the device now: its cache drops these lines and fetches them
    /// again while what it did before is still under way, and others go on meanwhile. Returns whether the turn may have passed.
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

    /// What happens just after a call of the fabric about these lines, where the focus is on its place.
    pub fn strike(&mut self, process: usize, location: &Location<'_>, lines: &[u64]) {
        let Some(focus) = self.focus.as_ref().filter(|_| !self.scripted) else { return };
        if !focus.is_on(location) {
            let lines_off = focus.lines_off(location);
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
            // Others go on while it is here, or a little behind.
            0 => self.hold_up(process, &AT_CALLS_NS),
            length @ 1..5 => self.nap = Some((process, self.prng.below(NAPS[length as usize - 1]))),
            // Caches fetch what they dropped, or what they will need.
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

    pub fn leaves_out(&self, location: &Location<'_>, effect: crate::Effect) -> bool {
        !self.scripted && self.mutation.as_ref().is_some_and(|mutation| mutation.hits(location, effect))
    }
}
