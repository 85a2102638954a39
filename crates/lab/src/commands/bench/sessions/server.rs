//! The servers of a run: `cenote serve` as a child process, or one that runs already.

use super::tiers::Page;
use crate::commands::client::Client;
use cenote_base::units::ByteSize;
use cenote_console::args::NewRegionArgs;
use cenote_console::failure::Failure;
use cenote_console::region::TemporaryRegion;
use cenote_mem::files::read_input_text;
use cenote_store::cold;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{interval, timeout};

/// From a process's start to its address, beside other busy processes.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// From SIGTERM to the end of a process.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// For a page other than an answer.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Until counters no longer change after the last answer.
const SETTLED_TIMEOUT: Duration = Duration::from_secs(10);
/// Of a failed server's words.
const LOG_BYTES_MAX: u64 = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Chunks of a region, and of one in which few of them would fit.
const CHUNK: ByteSize = ByteSize(2 << 20);
const SMALL_CHUNK: ByteSize = ByteSize(256 << 10);
const SMALL_REGION: u64 = 64 << 20;

/// A server that can be asked.
pub struct Server {
    pub url: String,
    /// Name of its model.
    pub model: String,
    /// Longest prompt with its answer; `None` if it does not say.
    pub max_model_len: Option<u32>,
    client: Client,
    own: Option<Own>,
}

/// A process of this run.
struct Own {
    child: Child,
    // Removed after the process has ended.
    _region: Option<TemporaryRegion>,
}

impl Server {
    /// A server that runs.
    pub async fn at(url: &str) -> Result<Self, Failure> {
        let client = Client::new(url, PAGE_TIMEOUT)?;
        let models: Value = serde_json::from_str(&client.get("/v1/models").await?)?;
        let model = &models["data"][0];
        let name = model["id"].as_str().ok_or_else(|| Failure::new(format!("{url}/v1/models names no model")))?;
        let longest = model["max_model_len"].as_u64().and_then(|length| u32::try_from(length).ok());
        Ok(Self { url: url.to_owned(), model: name.to_owned(), max_model_len: longest, client, own: None })
    }

    /// Starts `cenote serve` with these flags; `log` gets its words.
    pub async fn start(
        program: &Path,
        flags: &[String],
        region: Option<TemporaryRegion>,
        log: &Path,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]).args(flags).stdin(Stdio::null()).kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CENOTE_") {
                command.env_remove(name);
            }
        }
        command.stdout(Stdio::piped()).stderr(File::create(log)?);
        let failed = |fact: &str| {
            let words = read_input_text(log, LOG_BYTES_MAX).unwrap_or_default();
            Failure::new(format!("cenote serve {}: {fact}: {}", flags.join(" "), words.trim()))
        };
        let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = timeout(START_TIMEOUT, lines.next_line()).await.map_err(|_| failed("it does not start"))??;
        let url = line.ok_or_else(|| failed("it ended"))?;
        Ok(Self { own: Some(Own { child, _region: region }), ..Self::at(url.trim()).await? })
    }

    /// The server's counters once they rest; `None` if it has no such page.
    pub async fn metrics(&self) -> Option<Page> {
        let page = async || self.client.get("/metrics").await.ok().map(|text| Page::parse(&text));
        let mut pace = interval(LOOK_EVERY);
        pace.tick().await;
        let mut last = page().await?;
        let settled = timeout(SETTLED_TIMEOUT, async {
            loop {
                pace.tick().await;
                let Some(next) = page().await else { return };
                if std::mem::replace(&mut last, next.clone()) == next {
                    return;
                }
            }
        });
        // A server with a clock among its values never rests.
        let _ = settled.await;
        Some(last)
    }

    /// Ends a process of this run. One that runs already stays.
    pub async fn end(self) -> Result<(), Failure> {
        let Some(Own { mut child, _region }) = self.own else { return Ok(()) };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        pid.map(|pid| kill_process(pid, Signal::TERM)).transpose().map_err(std::io::Error::from)?;
        match timeout(END_TIMEOUT, child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => Ok(()),
            Ok(status) => Err(Failure::new(format!("cenote serve did not end in order: {}", status?))),
            Err(_) => {
                child.kill().await?;
                Err(Failure::new(format!("cenote serve did not end within {} s", END_TIMEOUT.as_secs())))
            }
        }
    }
}

/// A region of this run, with the hash seed of a place of L4.
pub fn region(bytes: u64, place: Option<&cold::Settings>) -> Result<TemporaryRegion, Failure> {
    let chunk_size = if bytes < SMALL_REGION { SMALL_CHUNK } else { CHUNK };
    // Of one host and without a log, so that nearly all of a small region holds blocks.
    let new = NewRegionArgs {
        chunk_size,
        max_hosts: 1,
        pins_per_worker: None,
        events: 0,
        cold: place.cloned(),
        ..NewRegionArgs::of_size(bytes)
    };
    TemporaryRegion::make("sessions", &new)
}
