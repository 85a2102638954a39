//! Child processes of a bench at the same region. They read jobs from stdin, and end when it
//! closes.

use super::rows::Times;
use super::worker::{Job, Worker};
use crate::args::BenchChildArgs;
use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_pool::LockManager;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub struct Child {
    process: std::process::Child,
    jobs: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// A process that has joined `region` as `host`.
    pub fn start(region: &RegionArgs, host: u8) -> Result<Self, Failure> {
        Self::spawn(region, host, false)
    }

    /// A process that grants the region's locks until this value is dropped.
    pub fn manager(region: &RegionArgs) -> Result<Self, Failure> {
        Self::spawn(region, 0, true)
    }

    fn spawn(region: &RegionArgs, host: u8, manager: bool) -> Result<Self, Failure> {
        let executable = std::env::current_exe()
            .map_err(|error| Failure::new(format!("this program cannot find itself: {error}")))?;
        let mut command = Command::new(executable);
        command.args(["bench-child", "--region", &region.source()?.to_string(), "--host-slot", &host.to_string()]);
        if region.no_huge_pages {
            command.arg("--no-huge-pages");
        }
        if manager {
            command.arg("--manager");
        }
        // Engines keep their KV memory in huge pages; so do the buffers here, if the C library can.
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        command.env_remove("CENOTE_FAULT").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process =
            command.spawn().map_err(|error| Failure::new(format!("a child cannot be started: {error}")))?;
        let jobs = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut child = Self { process, jobs, answers };
        receive::<()>(&mut child.answers)?;
        Ok(child)
    }

    /// Waits for the result of its job.
    fn finish(&mut self) -> Result<Vec<Times>, Failure> {
        receive(&mut self.answers)
    }

    fn say(&mut self, word: &impl Serialize) -> Result<(), Failure> {
        send(self.jobs.as_mut().expect("it is taken at the end"), word)
    }

    pub fn perform(&mut self, job: &Job) -> Result<Vec<Times>, Failure> {
        perform_together(&mut [(self, job)]).map(|mut results| results.remove(0))
    }
}

/// From the command until the common start: longer than a process takes to read it.
const HEAD_START: Duration = Duration::from_millis(2);

/// Runs jobs in several children at the same time: each prepares itself, and when all have, they
/// start at one instant.
pub fn perform_together(jobs: &mut [(&mut Child, &Job)]) -> Result<Vec<Vec<Times>>, Failure> {
    for (child, job) in &mut *jobs {
        child.say(job)?;
    }
    for (child, _) in &mut *jobs {
        receive::<()>(&mut child.answers)?;
    }
    let start = now() + HEAD_START;
    for (child, _) in &mut *jobs {
        child.say(&start)?;
    }
    jobs.iter_mut().map(|(child, _)| child.finish()).collect()
}

/// The clock that all processes of the machine share.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends when its stdin closes.
        drop(self.jobs.take());
        let _ = self.process.wait();
    }
}

fn send(to: &mut impl Write, data: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(data).map_err(|error| Failure::new(error.to_string()))? + "\n";
    to.write_all(line.as_bytes())
        .and_then(|()| to.flush())
        .map_err(|error| Failure::new(format!("a process of the bench is gone: {error}")))
}

fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<T, Failure> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(0) => Err(Failure::new("a process of the bench ended early; its own words are above")),
        Ok(_) => serde_json::from_str(&line).map_err(|error| Failure::new(format!("unexpected answer: {error}"))),
        Err(error) => Err(error.into()),
    }
}

pub fn run(args: &BenchChildArgs) -> Result<(), Failure> {
    if args.manager {
        return manage(args);
    }
    let worker = Worker::join(&args.region)?;
    send(&mut std::io::stdout(), &())?;
    let mut words = BufReader::new(std::io::stdin());
    while !words.fill_buf()?.is_empty() {
        let job: Job = receive(&mut words)?;
        let times = worker.perform(&job, &mut || {
            send(&mut std::io::stdout(), &())?;
            let start: Duration = receive(&mut words)?;
            while now() < start {
                std::hint::spin_loop();
            }
            Ok(())
        })?;
        send(&mut std::io::stdout(), &times)?;
    }
    Ok(())
}

fn manage(args: &BenchChildArgs) -> Result<(), Failure> {
    let options = args.region.attach_options("bench", &WatchArgs::default())?;
    let mut manager = LockManager::open(args.region.map()?, &options)?;
    send(&mut std::io::stdout(), &())?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ended.store(true, Ordering::Relaxed);
        });
        while !ended.load(Ordering::Relaxed) {
            manager.round();
            // Yield like waiters do: there may be fewer processors than processes.
            std::thread::yield_now();
        }
    });
    Ok(())
}
