//! `cenote pool share-memory`: the process that registers a region's memory for peers. It has no key, may not start
//! programs or look into other processes, and says on its standard output what it registers.

use super::confine;
use crate::args::PoolShareMemoryArgs;
use cenote_console::failure::Failure;
use cenote_console::{output, peers};
use cenote_reach::{Memory, Registration};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Pause between looks at the region's name.
const PAUSE: Duration = Duration::from_millis(500);

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// This is registered.
    Registered(Registration),
    /// Nothing is, for this reason.
    None(String),
}

impl Word {
    /// The word of a line. A peer may have changed the process that wrote it.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// Closes what a shell or a service manager has left open beside the standard streams: it may be the key's file.
fn close_inherited() -> Result<(), Failure> {
    let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
    // The list ends before the first is closed: it has a descriptor of its own.
    let names = names.collect::<Result<Vec<_>, _>>()?;
    for number in names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok()).filter(|number| *number > 2) {
        // The list's own is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

pub fn run(args: &PoolShareMemoryArgs) -> Result<ExitCode, Failure> {
    close_inherited()?;
    confine::now()?;
    let (source, nixl) = (args.region.source()?, peers::nixl(args.nixl.as_deref())?);
    let (end, ended) = channel::<()>();
    // The kernel closes the pipe when the parent ends, however it ends.
    std::thread::Builder::new().name("parent-watch".to_owned()).spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(end);
    })?;
    let mut memory = Memory::new(source.clone(), nixl);
    let mut said = None;
    loop {
        let word = match memory.follow() {
            Ok(registration) => Word::Registered(registration),
            Err(error) => Word::None(error.to_string()),
        };
        if said.as_ref() != Some(&word) {
            output::print(&serde_json::to_string(&word).expect("plain data"))?;
            said = Some(word);
        }
        if ended.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
