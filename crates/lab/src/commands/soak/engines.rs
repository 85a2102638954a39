//! Engines of a soak: a task for each starts its process, tells clients where it is, kills it on order, and
//! starts the next one.

use super::sample::{Process, open_to_append};
use super::tally::Tally;
use cenote_console::failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// From a process's start to its address, beside other busy processes.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// From SIGTERM to the end of a process.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// What kills may hit of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Nothing: its memory after hours tells of leaks.
    Nothing,
    /// Its worker processes. Clients of the front must not notice.
    Workers,
    /// The whole process.
    All,
}

/// One engine's part in a soak.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: &'static str,
    pub model: PathBuf,
    pub host: u8,
    pub victim: Victim,
    pub flags: &'static [&'static str],
}

/// Where an engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// No process runs.
    Down,
    /// A process loads its model.
    Starting,
    At {
        url: String,
        pid: u32,
        /// Counts the engine's processes, from 1.
        life: u64,
    },
}

/// What an engine's task shall do.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Kill the process; the next one starts at once.
    Kill,
    /// Kill it, and start none until [`Order::Return`].
    Leave,
    Return,
    /// End it in order, and the task with it.
    End,
}

/// A running engine.
pub struct Engine {
    pub part: Part,
    pub place: watch::Receiver<Place>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Engine {
    pub fn order(&self, order: Order) {
        // A task that has failed has told why.
        let _ = self.orders.send(order);
    }
}

/// An engine and its task; `log` gets the words of its processes.
pub fn engine(
    part: Part,
    command: impl Fn() -> Command + Send + 'static,
    log: PathBuf,
    tally: Arc<Tally>,
) -> (Engine, impl Future<Output = Result<(), Failure>> + Send + 'static) {
    let (orders, ordered) = mpsc::unbounded_channel();
    let (tell, place) = watch::channel(Place::Down);
    let keeper = Keeper { name: part.name, ordered, tell, log, tally };
    (Engine { part, place, orders }, keeper.run(command))
}

struct Keeper {
    name: &'static str,
    ordered: mpsc::UnboundedReceiver<Order>,
    tell: watch::Sender<Place>,
    log: PathBuf,
    tally: Arc<Tally>,
}

/// Why a process ended, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Another,
    Wait,
    Nothing,
}

impl Keeper {
    async fn run(mut self, command: impl Fn() -> Command) -> Result<(), Failure> {
        for life in 1.. {
            match self.live(command(), life).await? {
                Next::Another => {}
                Next::Nothing => break,
                Next::Wait => match self.returned().await {
                    Next::Nothing => break,
                    _ => continue,
                },
            }
        }
        Ok(())
    }

    /// Waits for the order to return.
    async fn returned(&mut self) -> Next {
        loop {
            match self.ordered.recv().await {
                Some(Order::Return) => return Next::Another,
                Some(Order::End) | None => return Next::Nothing,
                Some(Order::Kill | Order::Leave) => {}
            }
        }
    }

    /// One process from its start to its end.
    async fn live(&mut self, mut command: Command, life: u64) -> Result<Next, Failure> {
        let log = open_to_append(&self.log)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| Failure::new(format!("{}: {error}", self.name)))?;
        let pid = child.id().unwrap_or_default();
        self.tally.started(pid);
        self.tell.send_replace(Place::Starting);
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (mut is_reading, mut is_ordered, mut next) = (true, false, Next::Another);
        let deadline = Instant::now() + START_TIMEOUT;
        let status = loop {
            tokio::select! {
                line = lines.next_line(), if is_reading => {
                    is_reading = false;
                    if let Ok(Some(url)) = line && !is_ordered {
                        self.tell.send_replace(Place::At { url: url.trim().to_owned(), pid, life });
                    }
                }
                order = self.ordered.recv() => {
                    is_ordered = true;
                    match order {
                        Some(Order::Kill) => child.start_kill()?,
                        Some(Order::Leave) => {
                            next = Next::Wait;
                            child.start_kill()?;
                        }
                        // It has not left.
                        Some(Order::Return) => is_ordered = false,
                        Some(Order::End) | None => {
                            self.tell.send_replace(Place::Down);
                            self.end(&mut child, is_reading).await?;
                            return Ok(Next::Nothing);
                        }
                    }
                }
                status = child.wait() => break status?,
                () = sleep_until(deadline), if is_reading => {
                    self.tally.hang(format!("{} was not ready after {} s", self.name, START_TIMEOUT.as_secs()));
                    (is_reading, is_ordered) = (false, true);
                    child.start_kill()?;
                }
            }
        };
        self.tell.send_replace(Place::Down);
        if !is_ordered {
            self.tally.fail(format!("{} ended by itself: {}", self.name, said(status)));
        }
        Ok(next)
    }

    /// Ends a process in order. One that `is_starting` may not heed the signal yet, and dies of it.
    async fn end(&self, child: &mut Child, is_starting: bool) -> Result<(), Failure> {
        signal(child.id(), Signal::TERM);
        match tokio::time::timeout(END_TIMEOUT, child.wait()).await {
            Ok(status) => {
                let status = status?;
                if !status.success() && !is_starting {
                    self.tally.fail(format!("{} did not end in order: {}", self.name, said(status)));
                }
            }
            Err(_) => {
                self.tally.hang(format!("{} did not end within {} s", self.name, END_TIMEOUT.as_secs()));
                child.kill().await?;
            }
        }
        Ok(())
    }
}

fn said(status: ExitStatus) -> String {
    status.to_string()
}

/// Sends a signal to a process; returns whether it was there.
pub fn signal(pid: Option<u32>, signal: Signal) -> bool {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// What the kernel says about a process; `None` if it is gone.
pub fn facts(pid: u32) -> Option<Process> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Process {
        // In units of 1,024 bytes. A process that ends has no memory.
        rss_bytes: field("VmRSS")? << 10,
        anonymous_bytes: field("RssAnon")? << 10,
        threads: field("Threads")?,
        descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
    })
}

/// When a process started, in the kernel's ticks since boot: with its number a name that no other process
/// gets.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may have spaces, and ends with the last bracket.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Bytes of all files below a folder.
pub fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(status) if status.is_dir() => bytes_below(&entry.path()),
        Ok(status) => status.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_this_process_uses() {
        let own = std::process::id();
        let facts = facts(own).expect("it lives");
        assert!(facts.rss_bytes >= facts.anonymous_bytes && facts.anonymous_bytes > 0);
        assert!(facts.descriptors > 2 && facts.threads > 0);
        assert!(start_ticks(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(start_ticks(u32::MAX), None);
    }
}
