//! The process that holds a shared region's memory, as the process with the key sees it: started with an environment
//! of its own, as another user if one is named, and started again when it ends. Its end costs remote misses.

use super::holder::Word;
use crate::args::PoolShareArgs;
use cenote_base::{Clock, Deadline};
use cenote_console::failure::Failure;
use cenote_reach::Registration;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

/// Beginnings of the variables that it keeps: NIXL's, the dynamic linker's, and those of logs.
const KEPT: [&str; 4] = ["UCX_", "NIXL_", "LD_LIBRARY_PATH", "CENOTE_LOG"];
/// Until it is started again. Each further time twice as long, unless it has lived for `LIVED`.
const RESTART: Duration = Duration::from_secs(1);
const RESTART_MAX: Duration = Duration::from_secs(30);
const LIVED: Duration = Duration::from_secs(60);
/// A peer may have made it say anything: a longer line counts as its end, and it waits if nobody reads more lines.
const LINE_BYTES_MAX: u64 = 256 << 10;
const LINES_MAX: usize = 4;

/// What has happened to it.
pub enum News {
    /// The region is registered.
    Registered(Registration),
    /// There is no region, or it cannot be shared.
    None(String),
    /// The process has ended. Another one is started soon.
    Ended(String),
}

/// A process, and the lines that it says. It ends when its standard input does.
struct Running {
    process: Child,
    words: Receiver<String>,
    has_lived: Deadline,
}

/// Starts one process after the other.
pub struct Keeper {
    command: Command,
    clock: Clock,
    running: Option<Running>,
    /// When and after which pause it is started again.
    next: Deadline,
    pause: Duration,
}

impl Keeper {
    /// Starts the process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(args: &PoolShareArgs, clock: Clock) -> Result<Self, Failure> {
        // This very program, also if its file was replaced meanwhile, or lies where that user may not look.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("cenote").args(["pool", "share-memory", "--region", &args.region.source()?.to_string()]);
        if let Some(library) = &args.nixl {
            command.arg("--nixl").arg(library);
        }
        command.env_clear();
        let kept = |name: &str| KEPT.iter().any(|beginning| name.starts_with(beginning));
        command.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(kept)));
        if let Some(account) = &args.user {
            // The further groups of this process are given up with its user.
            command.uid(account.user).gid(account.group);
        }
        // A terminal's Ctrl-C is for this process, which ends the other one.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = Self { command, clock, running: None, next: clock.after(Duration::ZERO), pause: RESTART };
        keeper.running = Some(keeper.spawn().map_err(|error| {
            Failure::new(format!("the process for the region's memory cannot be started: {error}"))
                .hint("with --user, start as root; that user must be able to run this program")
        })?);
        Ok(keeper)
    }

    fn spawn(&mut self) -> std::io::Result<Running> {
        let mut process = self.command.spawn()?;
        let has_lived = self.clock.after(LIVED);
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        let (say, words) = sync_channel(LINES_MAX);
        let reading = std::thread::Builder::new().name("share-words".to_owned()).spawn(move || {
            loop {
                let mut line = String::new();
                let read = output.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
                if read.is_err() || !line.ends_with('\n') || say.send(line).is_err() {
                    return;
                }
            }
        });
        if let Err(error) = reading {
            end(&mut process);
            return Err(error);
        }
        Ok(Running { process, words, has_lived })
    }

    /// What has happened since the last call. Starts a process if it is time.
    pub fn news(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        let Some(running) = &mut self.running else {
            if self.next.passed() {
                match self.spawn() {
                    Ok(running) => self.running = Some(running),
                    Err(error) => {
                        self.wait_longer();
                        news.push(News::Ended(error.to_string()));
                    }
                }
            }
            return news;
        };
        // A bounded number: it may say lines faster than they are read.
        for _ in 0..=LINES_MAX {
            match running.words.try_recv() {
                Ok(line) => news.push(match Word::parse(&line) {
                    Some(Word::Registered(registration)) => News::Registered(registration),
                    Some(Word::None(reason)) => News::None(reason),
                    None => News::None("it says what no such process says".to_owned()),
                }),
                Err(TryRecvError::Empty) => return news,
                Err(TryRecvError::Disconnected) => {
                    news.push(self.ended());
                    return news;
                }
            }
        }
        news
    }

    /// What said its last line has ended, or no longer does what it is for.
    fn ended(&mut self) -> News {
        let Some(mut running) = self.running.take() else { return News::Ended("before".to_owned()) };
        let how = end(&mut running.process);
        if running.has_lived.passed() {
            self.pause = RESTART;
        }
        self.wait_longer();
        News::Ended(how)
    }

    fn wait_longer(&mut self) {
        self.next = self.clock.after(self.pause);
        self.pause = (2 * self.pause).min(RESTART_MAX);
    }
}

/// Ends a process, and says how it ended. It is waited for only if it was killed: this process may lack that right.
fn end(process: &mut Child) -> String {
    drop(process.stdin.take());
    let ended = process.kill().and_then(|()| process.wait());
    ended.map_or_else(|error| error.to_string(), |status| status.to_string())
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            end(&mut running.process);
        }
    }
}
