//! `cenote-lab torture`: processes use one full region with all operations at once, while they are
//! killed at random instants and inside critical sections. Afterwards no byte may be wrong, and
//! nothing lost or stuck.
//!
//! The parent decides on deaths, and touches the region only when all children have ended, or to fence
//! a host. Deaths: a child is killed every [`KILL_PAUSE_MS`]. Most children also have a fault point at
//! which they kill themselves or are stopped ([`faults`]). With several hosts, all children of one are killed every
//! [`HOST_KILL_PAUSE_MS`], every other time with the memory of that host.
//!
//! A run ends after a time or after a number of deaths and operations ([`Length`]). In a run by
//! numbers no time decides anything: no host is declared dead because it is slow, and the parent
//! fences the hosts that it killed.

mod child;
mod children;
mod cold;
mod content;
mod faults;
mod inspection;
mod ledger;
mod message;
mod operations;
mod report;

pub use child::run as run_child;
pub use cold::{run_child as run_cold_child, torment as torment_cold};

use crate::args::TortureArgs;
use cenote_base::HostId;
use cenote_base::fault::Point;
use cenote_base::prng::Prng;
use cenote_base::units::ByteSize;
use cenote_console::args::{FlushArg, NewRegionArgs, RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::region::{HostPool, TemporaryRegion};
use cenote_console::signals::EndSignals;
use cenote_console::stale::{self, Owned};
use cenote_mem::{Flush, HostArea, Mapping, RegionSource};
use cenote_pool::{Pool, PoolError};
use children::{ChildEvent, End, Event, Nursery, Slot};
use faults::When;
use indicatif::ProgressBar;
use ledger::Ledger;
use message::Message;
use operations::{COUNTERS, Operations};
use report::Report;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const KILL_PAUSE_MS: Range<u64> = 100..400;
const STOP_PAUSE_MS: Range<u64> = 200..1500;
/// Time that a child is stopped: often longer than others wait for a lock, never so long that its
/// host is declared dead.
const STOPPED_MS: Range<u64> = 20..700;
/// Time beyond the host timeout for which all children of a host are stopped, one of them inside a
/// critical section: others declare the host dead, pass its lock, and adopt its chunks.
const HOST_STOPPED_MS: Range<u64> = 200..2500;
const HOST_KILL_PAUSE_MS: Range<u64> = 3000..8000;
/// So short that a host that stays away is declared dead and its chunks are adopted.
const HOST_TIMEOUT: Duration = Duration::from_millis(1500);
/// In a run by numbers, a host is dead only if the parent has killed it.
const HOST_TIMEOUT_BY_NUMBERS: Duration = Duration::from_secs(24 * 3600);
const QUARANTINE: Duration = Duration::from_millis(500);
/// Longest time that a dead host stays away.
const HOST_ABSENCE_MS_MAX: u64 = 4000;
/// Interval of checks for hanging children.
const LOOK: Duration = Duration::from_millis(200);
/// About this many chunks per region, so that a single chunk matters little.
const CHUNKS: u64 = 256;

pub fn run(args: &TortureArgs) -> Result<ExitCode, Failure> {
    if let Some(kills) = args.cold {
        return cold::run(args, kills);
    }
    if args.mistake && cfg!(not(any(feature = "canary", debug_assertions))) {
        return Err(Failure::new("--mistake: this build makes none; build it with --features canary"));
    }
    if args.processes < u64::from(args.hosts) || args.processes > ledger::CHILDREN_MAX {
        let most = ledger::CHILDREN_MAX;
        return Err(Failure::new(format!("--processes {}: at least one per host, at most {most}", args.processes)));
    }
    let signals = EndSignals::catch()?;
    let mut torture = Torture::begin(args)?;
    let (end, ended) = channel();
    signals.then(move |code| end.send(code).unwrap_or_default());
    if let Some(code) = torture.go_on(&ended)? {
        return Ok(ExitCode::from(code));
    }
    let mut report = torture.finish()?;
    let code = report.judge();
    args.output.show(&report, || report.text())?;
    report.findings.iter().for_each(|finding| output::say(finding));
    if code != 0 {
        output::report_failure(&Failure::new(report.failure()).hint(format!("--seed {} starts alike", report.seed)));
    }
    Ok(ExitCode::from(code))
}

/// The ledger's memory, removed when this value is dropped.
struct LedgerFile(RegionSource, #[expect(dead_code, reason = "it is the ledger's lock")] Option<Owned>);

impl Drop for LedgerFile {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.0);
    }
}

/// The end of a run.
#[derive(Clone, Copy)]
enum Length {
    Seconds(f64),
    /// At least so many deaths and operations, and the death of a whole host if there are several.
    Numbers {
        kills: u64,
        operations: u64,
    },
}

impl Length {
    fn of(args: &TortureArgs) -> Self {
        match (args.kills, args.operations) {
            (None, None) => Self::Seconds(args.seconds),
            (kills, operations) => Self::Numbers { kills: kills.unwrap_or(0), operations: operations.unwrap_or(0) },
        }
    }

    const fn host_timeout(self) -> Duration {
        match self {
            Self::Seconds(_) => HOST_TIMEOUT,
            Self::Numbers { .. } => HOST_TIMEOUT_BY_NUMBERS,
        }
    }
}

/// A run. Fields are dropped in order: the children first, then what they use.
struct Torture {
    slots: Vec<Slot>,
    nursery: Nursery,
    events: Receiver<ChildEvent>,
    ledger: Ledger,
    _ledger_file: LedgerFile,
    region: TemporaryRegion,
    prng: Prng,
    report: Report,
    operations: Operations,
    fill: Vec<f64>,
    /// The host that was killed last, until its first child is back.
    returning: Option<u8>,
    /// Counters by host: the last report, and the sums before the host lost its memory.
    counters: Vec<[u64; COUNTERS.len()]>,
    counters_lost: [u64; COUNTERS.len()],
    started: Instant,
    length: Length,
    bar: ProgressBar,
}

impl Torture {
    fn begin(args: &TortureArgs) -> Result<Self, Failure> {
        let seed = args.seed.unwrap_or_else(|| std::process::id().into());
        let length = Length::of(args);
        let flush = match args.flush {
            Some(flush) => flush,
            None if args.hosts > 1 => FlushArg::Auto,
            None => FlushArg::Fixed(Flush::None),
        };
        if args.hosts > 1 && flush == FlushArg::Fixed(Flush::None) {
            return Err(Failure::new("several hosts need a flush instruction").hint("--flush auto takes the best"));
        }
        let chunk_bytes = (args.size.0 / CHUNKS).next_power_of_two().clamp(64 << 10, 2 << 20);
        let [_, smallest] = child::block_sizes(chunk_bytes);
        let new = NewRegionArgs {
            chunk_size: ByteSize(chunk_bytes),
            min_block: ByteSize(smallest),
            max_hosts: args.hosts,
            flush,
            ..NewRegionArgs::of_size(args.size.0)
        };
        let region = TemporaryRegion::make("torture", &new)?;
        let flush = region.superblock().flush;
        let ledger_name = RegionSource::Shm(stale::own_name("torture-ledger"));
        let ledger = Ledger::create(&ledger_name, flush)?;
        let ledger_file = LedgerFile(ledger_name.clone(), stale::own(&ledger_name)?);
        let (sender, events) = channel();
        let nursery = Nursery {
            region: region.args().clone(),
            watch: WatchArgs { host_timeout: length.host_timeout(), quarantine: QUARANTINE },
            ledger: ledger_name,
            prng: Prng::at(seed, 1),
            events: sender,
            mistake: args.mistake,
        };
        let report = Report {
            region: region.args().source()?.to_string(),
            processes: args.processes,
            hosts: args.hosts,
            flush: flush.name(),
            seed,
            has_goals: matches!(length, Length::Seconds(seconds) if seconds >= report::GOALS_FROM_SECONDS),
            ..Report::default()
        };
        let steps = match length {
            Length::Seconds(seconds) => seconds as u64,
            Length::Numbers { kills: 0, operations } => operations,
            Length::Numbers { kills, .. } => kills,
        };
        Ok(Self {
            slots: (0..args.processes as usize).map(|index| Slot::new(index, args.hosts)).collect(),
            nursery,
            events,
            ledger,
            _ledger_file: ledger_file,
            region,
            prng: Prng::at(seed, 2),
            report,
            operations: Operations::default(),
            fill: Vec::new(),
            returning: None,
            counters: vec![[0; COUNTERS.len()]; args.hosts.into()],
            counters_lost: [0; COUNTERS.len()],
            started: Instant::now(),
            length,
            bar: output::progress("torture", steps),
        })
    }

    fn pause(&mut self, milliseconds: Range<u64>) -> Duration {
        Duration::from_millis(milliseconds.start + self.prng.below(milliseconds.end - milliseconds.start))
    }

    /// Whether the run is over: its length is reached, or its mistake is found.
    fn is_over(&self, now: Instant) -> bool {
        if self.nursery.mistake && self.report.wrong_bytes > 0 {
            return true;
        }
        match self.length {
            Length::Seconds(seconds) => now >= self.started + Duration::from_secs_f64(seconds),
            Length::Numbers { kills, operations } => {
                let hosts_done = self.report.hosts == 1 || self.report.host_kills > 0;
                hosts_done && self.report.kills >= kills && self.operations.total() >= operations
            }
        }
    }

    /// Runs until it is over, or until a signal, whose exit code it returns.
    fn go_on(&mut self, ended: &Receiver<u8>) -> Result<Option<u8>, Failure> {
        let mut kill_at = self.started + self.pause(KILL_PAUSE_MS);
        let mut stop_at = self.started + self.pause(STOP_PAUSE_MS);
        let mut host_kill_at = self.started + self.pause(HOST_KILL_PAUSE_MS);
        loop {
            let now = Instant::now();
            if let Ok(code) = ended.try_recv() {
                return Ok(Some(code));
            }
            if self.is_over(now) {
                return Ok(None);
            }
            self.start_children()?;
            if now >= kill_at {
                let chosen = self.prng.below(self.slots.len() as u64) as usize;
                self.slots[chosen].kill();
                kill_at = now + self.pause(KILL_PAUSE_MS);
            }
            if now >= stop_at {
                let chosen = self.prng.below(self.slots.len() as u64) as usize;
                let until = now + self.pause(STOPPED_MS);
                self.report.stops += u64::from(self.slots[chosen].stop(until));
                stop_at = now + self.pause(STOP_PAUSE_MS);
            }
            self.slots.iter_mut().for_each(|slot| slot.go_on_after(now));
            if self.report.hosts > 1 && now >= host_kill_at {
                self.kill_host()?;
                host_kill_at = Instant::now() + self.pause(HOST_KILL_PAUSE_MS);
            }
            self.look_for_hangs();
            let next =
                self.slots.iter().filter_map(|slot| slot.stopped_until).fold(kill_at.min(now + LOOK), Instant::min);
            self.hear_until(next)?;
            self.show_progress();
        }
    }

    /// Starts all dead children that may live again.
    fn start_children(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for child in 0..self.slots.len() {
            let slot = &self.slots[child];
            if slot.process.is_some() || slot.asleep_until > now {
                continue;
            }
            let when = if self.slots.iter().any(|other| other.asleep_until > now) {
                When::HostAway
            } else if self.returning == Some(slot.host) {
                When::HostReturns
            } else {
                When::Always
            };
            self.returning.take_if(|host| *host == self.slots[child].host);
            self.slots[child].start(&mut self.nursery, when)?;
        }
        Ok(())
    }

    /// Handles children's messages, until `deadline` at the latest; returns after one message or
    /// more.
    fn hear_until(&mut self, deadline: Instant) -> Result<(), Failure> {
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => self.hear(event),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => unreachable!("the nursery has a sender"),
        }
    }

    fn hear(&mut self, from: ChildEvent) -> Result<(), Failure> {
        let slot = &mut self.slots[from.child];
        let message = match from.event {
            Event::Said(message) => message,
            Event::Closed if slot.life == from.life => return self.bury(from.child),
            Event::Closed => return Ok(()),
        };
        let slot_is_its = slot.life == from.life;
        if slot_is_its {
            slot.hear(&message);
        }
        let host = usize::from(slot.host);
        match message {
            Message::Did(operations) => self.operations.add_all(&operations),
            Message::Fill(ready, data) => self.fill.push(ready as f64 / data as f64),
            Message::Counters(values) => {
                if let Ok(values) = values.try_into() {
                    self.counters[host] = values;
                }
            }
            Message::Wrong(bytes, place) => {
                self.report.wrong_bytes += bytes;
                self.report.find(format!("{bytes} wrong bytes: {place}"));
            }
            Message::Lock(fact) => {
                self.report.increments_wrong += 1;
                self.report.find(fact);
            }
            Message::Stopped(point) if slot_is_its => self.stop_at(from.child, point)?,
            Message::Joined | Message::Fault(_) | Message::Stopped(_) => {}
        }
        Ok(())
    }

    /// A child waits at a fault point to be stopped. Half of these stops are so long that the host is
    /// declared dead, which needs all of its children and a clock.
    fn stop_at(&mut self, child: usize, point: Point) -> Result<(), Failure> {
        if faults::is_critical(point) {
            self.report.stops_in_critical_sections += 1;
        }
        *self.report.stops_by_fault_point.entry(point.name()).or_default() += 1;
        let (now, until) = (Instant::now(), Instant::now() + self.pause(STOPPED_MS));
        self.slots[child].stop_at_its_point(until)?;
        let is_timed = self.report.hosts > 1 && matches!(self.length, Length::Seconds(_));
        if is_timed && self.prng.below(2) == 0 {
            let until = now + HOST_TIMEOUT + self.pause(HOST_STOPPED_MS);
            self.pause_host(self.slots[child].host, until)?;
        }
        Ok(())
    }

    /// Stops all children of a host, unless one waits for a user lock or holds one: no lock protects
    /// the ledger from a holder that was declared dead and continues.
    fn pause_host(&mut self, host: u8, until: Instant) -> Result<(), Failure> {
        let these: Vec<usize> = (0..self.slots.len()).filter(|&child| self.slots[child].host == host).collect();
        for &child in &these {
            self.slots[child].stop(until);
        }
        for &child in &these {
            self.slots[child].wait_until_stopped()?;
        }
        if these.iter().any(|&child| self.ledger.is_unfinished(child as u64)) {
            these.iter().for_each(|&child| self.slots[child].go_on());
            return Ok(());
        }
        for &child in &these {
            self.ledger.paused(child as u64);
            self.slots[child].asleep_until = until;
            self.slots[child].stopped_until.replace(until);
        }
        self.report.host_stops += 1;
        Ok(())
    }

    fn bury(&mut self, child: usize) -> Result<(), Failure> {
        match self.slots[child].reap()? {
            Some(End::Killed(point)) => {
                self.report.kills += 1;
                if let Some(point) = point {
                    if faults::is_critical(point) {
                        self.report.kills_in_critical_sections += 1;
                    }
                    *self.report.kills_by_fault_point.entry(point.name()).or_default() += 1;
                }
            }
            Some(End::Failed(status)) => {
                self.report.failed_children += 1;
                self.report.find(format!("child {child} ended by itself: {status}"));
            }
            Some(End::Orderly) | None => {}
        }
        Ok(())
    }

    /// Kills all children of a host at once; it stays away for a while.
    fn kill_host(&mut self) -> Result<(), Failure> {
        let host = self.prng.below(self.report.hosts.into()) as u8;
        let until = Instant::now() + Duration::from_millis(self.prng.below(HOST_ABSENCE_MS_MAX));
        for slot in self.slots.iter_mut().filter(|slot| slot.host == host) {
            slot.kill();
            slot.asleep_until = until;
        }
        self.returning = Some(host);
        self.bury_all(|slot| slot.host == host)?;
        self.report.host_kills += 1;
        if self.prng.below(2) == 0 {
            self.report.host_reboots += 1;
            let uuid: String = self.region.superblock().config.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            HostArea::remove(&format!("cenote-{uuid}-h{host}"))?;
            let lost = std::mem::take(&mut self.counters[usize::from(host)]);
            self.counters_lost.iter_mut().zip(lost).for_each(|(sum, count)| *sum += count);
        }
        if matches!(self.length, Length::Numbers { .. }) {
            self.fence(host)?;
        }
        Ok(())
    }

    /// Declares a host dead of which all children have ended. Locks may be busy for a while, because
    /// their holders were killed, too.
    fn fence(&mut self, host: u8) -> Result<(), Failure> {
        let other = RegionArgs { host_slot: (host + 1) % self.report.hosts, ..self.region.args().clone() };
        let options = other.attach_options("fence", &self.nursery.watch)?;
        loop {
            let fenced: Result<(), PoolError> =
                Pool::attach(other.map()?, &options).and_then(|pool: HostPool| pool.fence_host(HostId(host)));
            match fenced {
                Err(PoolError::Lock { .. } | PoolError::DeclaredDead) => self.hear_until(Instant::now() + LOOK)?,
                // The host never attached, so it has left nothing.
                Err(PoolError::Config(_)) => return Ok(()),
                fenced => return fenced.map_err(|error| other.explain(&error)),
            }
        }
    }

    /// Waits until all of these children, which are about to end, have ended.
    fn bury_all(&mut self, these: impl Fn(&Slot) -> bool) -> Result<(), Failure> {
        self.slots.iter_mut().for_each(Slot::go_on);
        while self.slots.iter().any(|slot| these(slot) && slot.process.is_some()) {
            self.look_for_hangs();
            self.hear_until(Instant::now() + LOOK)?;
        }
        Ok(())
    }

    fn look_for_hangs(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.hangs()) {
            self.report.hangs += 1;
            let whereabouts = slot.whereabouts();
            output::say(&format!("child {} has said nothing for {:?}:\n{whereabouts}", slot.index, children::HANG));
            slot.kill();
            // A child that the kernel does not end at once is not counted again for a while.
            slot.heard = Instant::now();
        }
    }

    fn show_progress(&self) {
        self.bar.set_position(match self.length {
            Length::Seconds(_) => self.started.elapsed().as_secs(),
            Length::Numbers { kills: 0, .. } => self.operations.total(),
            Length::Numbers { .. } => self.report.kills,
        });
        self.bar.set_message(format!(
            "{} kills ({} in critical sections), {} operations, {:.2} full, {} wrong bytes, {} hangs",
            self.report.kills,
            self.report.kills_in_critical_sections,
            self.operations.total(),
            self.fill.last().copied().unwrap_or(0.0),
            self.report.wrong_bytes,
            self.report.hangs,
        ));
    }

    /// Ends the children, half of them by SIGKILL so that they leave something behind, and inspects
    /// the region.
    fn finish(mut self) -> Result<Report, Failure> {
        self.report.seconds = self.started.elapsed().as_secs_f64();
        self.ledger.stop();
        for slot in self.slots.iter_mut().skip(1).step_by(2) {
            slot.kill();
        }
        self.bury_all(|_| true)?;
        self.bar.finish_and_clear();
        let mut report = std::mem::take(&mut self.report);
        let spinner = output::spinner("checking what is left");
        let region: &RegionArgs = self.region.args();
        let hosts = report.hosts;
        inspection::inspect(region, &self.nursery.watch, hosts, &mut report)?;
        spinner.finish_and_clear();
        (0..report.processes).for_each(|child| self.ledger.settle(child));
        report.set_increments(self.ledger.balance(report.processes));
        report.set_fill(std::mem::take(&mut self.fill));
        report.operations = self.operations.by_name();
        let mut sums = self.counters_lost;
        for host in &self.counters {
            sums.iter_mut().zip(host).for_each(|(sum, count)| *sum += count);
        }
        [
            report.lock_timeouts,
            report.locks_abandoned,
            report.recovered_workers,
            report.recovered_reservations,
            report.hosts_declared_dead,
            report.chunks_adopted,
            report.damage_met,
        ] = sums;
        Ok(report)
    }
}
