//! The process that shares a region with a bench.

use crate::args::ReachShareChildArgs;
use cenote_base::{Clock, Deadline};
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::{output, peers};
use cenote_reach::{Key, Memory, Share};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for the other process.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between looks for readers, as that of `cenote pool share`.
const PAUSE: Duration = Duration::from_millis(10);

pub fn patience() -> Deadline {
    Clock::system().after(PATIENCE)
}

/// The process that shares the region, until it is dropped.
pub struct Sharing {
    process: std::process::Child,
    pub address: String,
    /// The key, which readers need, too.
    pub secret: [u8; 32],
}

impl Sharing {
    pub fn start(region: &RegionArgs, library: Option<&Path>) -> Result<Self, Failure> {
        let executable = std::env::current_exe()
            .map_err(|error| Failure::new(format!("this program cannot find itself: {error}")))?;
        let mut command = Command::new(executable);
        command.args(["reach-share-child", "--region", &region.source()?.to_string()]);
        if let Some(library) = library {
            command.arg("--nixl").arg(library);
        }
        command.env_remove("CENOTE_FAULT").stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = command.spawn().map_err(|error| Failure::new(format!("a child cannot be started: {error}")))?;
        let bytes: [u8; 32] = cenote_pool::random_bytes()?;
        let mut sharing = Self { process, address: String::new(), secret: bytes };
        let words = sharing.process.stdin.as_mut().expect("it is piped");
        writeln!(words, "{}", hex::encode(bytes))?;
        let answers = sharing.process.stdout.take().expect("it is piped");
        BufReader::new(answers).read_line(&mut sharing.address)?;
        sharing.address.truncate(sharing.address.trim_end().len());
        if sharing.address.is_empty() {
            return Err(Failure::new("the sharing process ended early; its own words are above"));
        }
        Ok(sharing)
    }

    pub const fn key(&self) -> Key {
        Key::new(self.secret)
    }

    /// Processor time of its threads so far, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<f64, Failure> {
        let mut sum = 0.0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            // A thread may end meanwhile.
            // tidy: a file of the kernel, of this process's own child
            let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            sum += text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0);
        }
        Ok(sum)
    }
}

/// Processor time of this process so far, in nanoseconds.
pub fn own_cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

impl Drop for Sharing {
    fn drop(&mut self) {
        // It ends when its stdin closes.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Shares a region until stdin closes.
pub fn run_child(args: &ReachShareChildArgs) -> Result<(), Failure> {
    let mut words = BufReader::new(std::io::stdin());
    let (mut text, mut key) = (String::new(), [0; 32]);
    words.read_line(&mut text)?;
    hex::decode_to_slice(text.trim(), &mut key).map_err(|error| Failure::new(format!("no key: {error}")))?;
    let (source, nixl) = (args.region.source()?.clone(), peers::nixl(args.nixl.as_deref())?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let share = Arc::new(Share::new(Key::new(key), Clock::system()));
    let mut memory = Memory::new(source, nixl);
    share.set(Some(&memory.follow().map_err(|error| Failure::new(error.to_string()))?));
    output::print(&listener.local_addr()?.to_string())?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = words.read_to_end(&mut Vec::new());
            ended.store(true, Ordering::Relaxed);
        });
        share.serve(&listener, &(Arc::new(|_, _| ()) as _), || {
            std::thread::park_timeout(PAUSE);
            !ended.load(Ordering::Relaxed)
        });
    });
    Ok(())
}
