//! The children of a torture: starts them, reads their messages, kills and restarts them.

use super::faults::{self, When};
use super::message::Message;
use cenote_base::fault::Point;
use cenote_base::prng::Prng;
use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_mem::RegionSource;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A child without a message for this long hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// An event of a child.
pub enum Event {
    /// A message of a child.
    Said(Message),
    /// A child's stdout was closed: it has ended or is about to.
    Closed,
}

/// An event of one life of one child.
pub struct ChildEvent {
    pub child: usize,
    pub life: u64,
    pub event: Event,
}

/// The end of a child.
pub enum End {
    /// By SIGKILL, at this fault point if it announced one.
    Killed(Option<Point>),
    /// On request.
    Orderly,
    /// In any other way.
    Failed(ExitStatus),
}

/// Settings of all children.
pub struct Nursery {
    pub region: RegionArgs,
    pub watch: WatchArgs,
    pub ledger: RegionSource,
    pub prng: Prng,
    pub events: Sender<ChildEvent>,
    /// Whether they make a deliberate mistake.
    pub mistake: bool,
}

/// One child's place, which has many lives.
pub struct Slot {
    pub index: usize,
    pub host: u8,
    pub life: u64,
    pub process: Option<Child>,
    /// Time of its last message.
    pub heard: Instant,
    /// Since when it is dead, or when it may be restarted.
    pub asleep_until: Instant,
    /// It was stopped, and continues then.
    pub stopped_until: Option<Instant>,
    /// The fault point at which it announced its death.
    announced: Option<Point>,
}

impl Slot {
    pub fn new(index: usize, hosts: u8) -> Self {
        let now = Instant::now();
        let host = u8::try_from(index % usize::from(hosts)).expect("it is less than `hosts`");
        Self {
            index,
            host,
            life: 0,
            process: None,
            heard: now,
            asleep_until: now,
            stopped_until: None,
            announced: None,
        }
    }

    pub fn start(&mut self, nursery: &mut Nursery, now: When) -> Result<(), Failure> {
        let executable = std::env::current_exe()
            .map_err(|error| Failure::new(format!("this program cannot find itself: {error}")))?;
        self.life += 1;
        let seed = nursery.prng.next_u64();
        let fate = faults::draw(&mut nursery.prng, now);
        let mut command = Command::new(executable);
        command.arg("torture-child");
        let mut flag = |name: &str, value: String| {
            command.arg(format!("--{name}")).arg(value);
        };
        flag("region", nursery.region.source()?.to_string());
        flag("host-slot", self.host.to_string());
        flag("host-timeout", nursery.watch.host_timeout.as_secs_f64().to_string());
        flag("quarantine", nursery.watch.quarantine.as_secs_f64().to_string());
        flag("ledger", nursery.ledger.to_string());
        flag("index", self.index.to_string());
        flag("seed", seed.to_string());
        if let Some(fate) = fate {
            flag("fault", fate.plan.to_string());
        }
        if fate.is_some_and(|fate| fate.stops) {
            command.arg("--stop");
        }
        if nursery.mistake {
            command.arg("--mistake");
        }
        command.env_remove("CENOTE_FAULT").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process =
            command.spawn().map_err(|error| Failure::new(format!("a child cannot be started: {error}")))?;
        let stdout = process.stdout.take().expect("it is piped");
        let (events, child, life) = (nursery.events.clone(), self.index, self.life);
        std::thread::spawn(move || listen(stdout, child, life, &events));
        (self.process, self.heard, self.announced) = (Some(process), Instant::now(), None);
        self.stopped_until = None;
        Ok(())
    }

    /// Records a message of this life.
    pub fn hear(&mut self, message: &Message) {
        self.heard = Instant::now();
        if let Message::Fault(point) = message {
            self.announced = Some(*point);
        }
    }

    /// Stops it, if it runs; returns whether it did.
    pub fn stop(&mut self, until: Instant) -> bool {
        let stops = self.stopped_until.is_none() && self.signal(Signal::STOP);
        if stops {
            self.stopped_until = Some(until);
        }
        stops
    }

    /// Stops it while it waits at its fault point, which it leaves when it continues.
    pub fn stop_at_its_point(&mut self, until: Instant) -> Result<(), Failure> {
        self.stop(until);
        self.wait_until_stopped()?;
        if let Some(input) = self.process.as_mut().and_then(|process| process.stdin.as_mut()) {
            // It may have been killed meanwhile.
            let _ = input.write_all(&[1]);
        }
        Ok(())
    }

    /// Waits until it has stopped, or ended.
    pub fn wait_until_stopped(&self) -> Result<(), Failure> {
        let Some(process) = self.id() else { return Ok(()) };
        let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(process), either).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Continues it, if it was stopped until now at the latest.
    pub fn go_on_after(&mut self, now: Instant) {
        if self.stopped_until.is_some_and(|until| until <= now) {
            self.go_on();
        }
    }

    /// Continues it, if it was stopped.
    pub fn go_on(&mut self) {
        if self.stopped_until.take().is_some() {
            self.signal(Signal::CONT);
            self.heard = Instant::now();
        }
    }

    fn id(&self) -> Option<Pid> {
        self.process.as_ref().and_then(|process| i32::try_from(process.id()).ok()).and_then(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) -> bool {
        // The process is not reaped before, so no other process has its number.
        self.id().is_some_and(|process| kill_process(process, signal).is_ok())
    }

    /// Kills it, if it lives; [`Event::Closed`] follows.
    pub fn kill(&mut self) -> bool {
        // The process is not reaped before, so no other process has its number.
        self.process.as_mut().is_some_and(|process| process.kill().is_ok())
    }

    /// Waits for its end, which is near, because its stdout is closed.
    pub fn reap(&mut self) -> Result<Option<End>, Failure> {
        use std::os::unix::process::ExitStatusExt;
        let Some(mut process) = self.process.take() else { return Ok(None) };
        let status = process.wait()?;
        Ok(Some(match status.signal() {
            Some(9) => End::Killed(self.announced.take()),
            _ if status.success() => End::Orderly,
            _ => End::Failed(status),
        }))
    }

    /// Whether a message of it is overdue.
    pub fn hangs(&self) -> bool {
        self.process.is_some() && self.heard.elapsed() > HANG
    }

    /// The kernel's report on its threads.
    pub fn whereabouts(&self) -> String {
        let Some(process) = &self.process else { return String::new() };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).into_iter().flatten().flatten();
        let mut text = String::new();
        for task in tasks {
            for name in ["comm", "wchan", "syscall", "stack"] {
                // tidy: a file of /proc
                let found = std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
                text.push_str(&format!("  {} {name}: {}\n", task.path().display(), found.trim()));
            }
        }
        text
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.kill() {
            let _ = self.reap();
        }
    }
}

fn listen(stdout: ChildStdout, child: usize, life: u64, events: &Sender<ChildEvent>) {
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
        if let Some(message) = Message::parse(line.trim_end()) {
            let _ = events.send(ChildEvent { child, life, event: Event::Said(message) });
        }
        line.clear();
    }
    let _ = events.send(ChildEvent { child, life, event: Event::Closed });
}
