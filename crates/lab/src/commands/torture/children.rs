//! The children of a torture: started, listened to, killed, and started again.

use super::faults::{self, When};
use super::message::Message;
use cenote_base::prng::Prng;
use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_mem::RegionSource;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A child that says nothing for so long hangs.
pub const HANG: Duration = Duration::from_secs(10);

/// What comes to the parent.
pub enum Event {
    /// A child said something.
    Said(Message),
    /// A child's stdout was closed: it has ended or is about to.
    Closed,
}

/// An event, and which life of which child it is of.
pub struct Told {
    pub child: usize,
    pub life: u64,
    pub event: Event,
}

/// How a child ended.
pub enum End {
    /// By SIGKILL, at this fault point if it said one.
    Killed(Option<String>),
    /// As it was told to.
    Orderly,
    /// In a way of its own.
    Failed(ExitStatus),
}

/// What all children are started with.
pub struct Nursery {
    pub region: RegionArgs,
    pub watch: WatchArgs,
    pub ledger: RegionSource,
    pub prng: Prng,
    pub told: Sender<Told>,
}

/// One child's place; it lives many lives.
pub struct Slot {
    pub index: usize,
    pub host: u8,
    pub life: u64,
    pub process: Option<Child>,
    /// When it last said something.
    pub heard: Instant,
    /// Since when it is dead, or when it may live again.
    pub asleep_until: Instant,
    /// It was stopped, and goes on then.
    pub stopped_until: Option<Instant>,
    /// At which point it said it would die.
    announced: Option<String>,
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
        let death = faults::draw(&mut nursery.prng, now);
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
        if let Some((point, count)) = death {
            flag("fault", format!("{}:{count}", point.name));
        }
        command.env_remove("CENOTE_FAULT").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process =
            command.spawn().map_err(|error| Failure::new(format!("a child cannot be started: {error}")))?;
        let stdout = process.stdout.take().expect("it is piped");
        let (told, child, life) = (nursery.told.clone(), self.index, self.life);
        std::thread::spawn(move || listen(stdout, child, life, &told));
        (self.process, self.heard, self.announced) = (Some(process), Instant::now(), None);
        self.stopped_until = None;
        Ok(())
    }

    /// Takes note of what this life said.
    pub fn hear(&mut self, message: &Message) {
        self.heard = Instant::now();
        if let Message::Fault(point) = message {
            self.announced = Some(point.clone());
        }
    }

    /// Stops it, if it lives and goes; returns whether it did.
    pub fn stop(&mut self, until: Instant) -> bool {
        let stops = self.stopped_until.is_none() && self.signal(Signal::STOP);
        if stops {
            self.stopped_until = Some(until);
        }
        stops
    }

    /// Lets it go on, if it was stopped until now at the latest.
    pub fn go_on_after(&mut self, now: Instant) {
        if self.stopped_until.is_some_and(|until| until <= now) {
            self.go_on();
        }
    }

    /// Lets it go on, if it was stopped.
    pub fn go_on(&mut self) {
        if self.stopped_until.take().is_some() {
            self.signal(Signal::CONT);
            self.heard = Instant::now();
        }
    }

    fn signal(&self, signal: Signal) -> bool {
        // The process is not reaped before, so its number is no other's.
        let process =
            self.process.as_ref().and_then(|process| i32::try_from(process.id()).ok()).and_then(Pid::from_raw);
        process.is_some_and(|process| kill_process(process, signal).is_ok())
    }

    /// Kills it, if it lives; [`Event::Closed`] follows.
    pub fn kill(&mut self) -> bool {
        // The process is not reaped before, so its number is nobody else's.
        self.process.as_mut().is_some_and(|process| process.kill().is_ok())
    }

    /// Its stdout is closed: waits for its end, which is at hand.
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

    /// Whether it should have said something.
    pub fn hangs(&self) -> bool {
        self.process.is_some() && self.heard.elapsed() > HANG
    }

    /// What the kernel tells of its threads.
    pub fn whereabouts(&self) -> String {
        let Some(process) = &self.process else { return String::new() };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).into_iter().flatten().flatten();
        let mut text = String::new();
        for task in tasks {
            for name in ["comm", "wchan", "syscall", "stack"] {
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

fn listen(stdout: ChildStdout, child: usize, life: u64, told: &Sender<Told>) {
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
        if let Some(message) = Message::parse(line.trim_end()) {
            let _ = told.send(Told { child, life, event: Event::Said(message) });
        }
        line.clear();
    }
    let _ = told.send(Told { child, life, event: Event::Closed });
}
