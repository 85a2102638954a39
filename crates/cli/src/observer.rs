//! Repeated looks at one region, with what `top`, `stat`, `ui` and `doctor` derive from them.

use crate::findings::{Finding, Sight, Stopped};
use crate::gauges::Look;
use crate::inventory;
use crate::rates::Rates;
use crate::watcher::Watcher;
use cenote_base::Clock;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_mem::{RegionSource, cpu, files};
use cenote_pool::{PoolInfo, Record};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One look at a region, and what has changed since the one before.
#[derive(Default)]
pub struct Observed {
    pub region: String,
    pub look: Arc<Look>,
    /// `None` at the first look.
    pub rates: Option<Rates>,
    /// The flight recorder, the oldest first.
    pub records: Vec<Record>,
    pub findings: Vec<Finding>,
    /// Microseconds since 1970.
    pub now_us: u64,
}

/// The named region, or the only one of this machine.
///
/// # Errors
/// There is none, or there are several.
pub fn named(args: &RegionArgs, command: &str) -> Result<RegionArgs, Failure> {
    if args.region.is_some() {
        return Ok(args.clone());
    }
    let found = inventory::look(&cpu::probe(Path::new("/")));
    let regions: Vec<&str> = found.iter().filter(|found| found.blocks.is_some()).map(|found| &*found.region).collect();
    match regions.as_slice() {
        [one] => Ok(RegionArgs {
            region: Some(one.parse().map_err(|error| Failure::new(format!("{one}: {error}")))?),
            ..args.clone()
        }),
        [] => Err(Failure::new("there is no region that this user can read on this machine")
            .hint("give --region, or make one with `cenote pool create`")),
        several => Err(Failure::new(format!("there are {} regions: {}", several.len(), several.join(", ")))
            .hint(format!("name one, as in `cenote {command} --region {}`", several[0]))),
    }
}

/// Looks at a region again and again.
pub struct Observer {
    region: String,
    source: RegionSource,
    host: u8,
    watcher: Watcher,
    clock: Clock,
    last: Option<(u64, Arc<Look>)>,
}

impl Observer {
    /// # Errors
    /// The name leads to no region that this process can read.
    pub fn open(region: &RegionArgs, clock: Clock) -> Result<Self, Failure> {
        let source = region.source()?.clone();
        let (watcher, host) = (Watcher::open(region)?, region.host_slot);
        Ok(Self { region: source.to_string(), source, host, watcher, clock, last: None })
    }

    /// # Errors
    /// As [`Self::open`]. The next call tries again.
    pub fn look(&mut self) -> Result<Observed, Failure> {
        let look = Arc::new(self.watcher.look()?);
        let records = self.watcher.records()?;
        let now_ns = self.clock.now_ns();
        let last = self.last.replace((now_ns, Arc::clone(&look)));
        let rates = last.and_then(|(then_ns, before)| {
            Rates::between(&before, &look, Duration::from_nanos(now_ns.saturating_sub(then_ns)).as_secs_f64())
        });
        let now_us = u64::try_from(self.clock.unix().as_micros()).unwrap_or(u64::MAX);
        let stopped = stopped(&look.info, self.host, &self.source, Path::new("/proc"));
        let sight = Sight {
            region: &self.region,
            look: &look,
            rates: rates.as_ref(),
            records: &records,
            now_us,
            stopped: &stopped,
        };
        let findings = sight.findings();
        Ok(Observed { region: self.region.clone(), look, rates, records, findings, now_us })
    }
}

/// Living workers of this host that are stopped, as by SIGSTOP or a debugger. A number may be of another
/// process in a container, so only a process with the region in its memory counts.
fn stopped(info: &PoolInfo, host: u8, source: &RegionSource, proc: &Path) -> Vec<Stopped> {
    let Some(path) = source.path() else { return Vec::new() };
    let path = path.to_string_lossy();
    let living = info.workers.iter().filter(|worker| worker.host == host && worker.alive == Some(true));
    let is_stopped = |pid: u64| {
        let read = |what: &str| -> Option<String> {
            let mut text = String::new();
            files::open_input(&proc.join(pid.to_string()).join(what)).ok()?.read_to_string(&mut text).ok()?;
            Some(text)
        };
        let state = read("stat").and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
        matches!(state, Some('T' | 't')) && read("maps").is_some_and(|maps| maps.contains(&*path))
    };
    living
        .filter(|worker| is_stopped(worker.pid))
        .map(|worker| Stopped { pid: worker.pid, name: worker.name.clone() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::WorkerInfo;

    #[test]
    fn a_stopped_process_counts_if_it_has_the_region() {
        let proc = tempfile::tempdir().expect("a directory");
        let write = |pid: u64, stat: &str, maps: &str| {
            let at = proc.path().join(pid.to_string());
            std::fs::create_dir(&at).expect("new");
            std::fs::write(at.join("stat"), stat).expect("new");
            std::fs::write(at.join("maps"), maps).expect("new");
        };
        write(5, "5 (a) T) T 1 5", "7f-8f rw-s 0 0:1 9 /dev/shm/kv\n");
        write(6, "6 (b) S 1 6", "7f-8f rw-s 0 0:1 9 /dev/shm/kv\n");
        write(7, "7 (c) T 1 7", "7f-8f rw-s 0 0:1 9 /usr/bin/vi\n");
        let worker = |pid| WorkerInfo { host: 0, slot: 0, pid, name: format!("w{pid}"), joined: 0, alive: Some(true) };
        let info = PoolInfo { workers: [5, 6, 7, 8].map(worker).into(), ..PoolInfo::default() };
        let of = |host| stopped(&info, host, &RegionSource::Shm("kv".to_owned()), proc.path());
        assert_eq!(of(0), [Stopped { pid: 5, name: "w5".to_owned() }]);
        assert!(of(1).is_empty(), "numbers of another host mean nothing here");
    }
}
