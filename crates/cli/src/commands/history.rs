//! `cenote pool history`: a region's flight recorder, as a table or followed.

use crate::args::PoolHistoryArgs;
use cenote_base::Clock;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::signals::EndSignals;
use cenote_pool::Record;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Time between two looks of a follower.
const EVERY: Duration = Duration::from_secs(1);

pub fn run(args: &PoolHistoryArgs) -> Result<ExitCode, Failure> {
    if args.follow { follow(args) } else { once(args) }
}

/// Whether the flags ask for a record.
fn is_wanted(args: &PoolHistoryArgs, record: &Record, now_us: u64) -> bool {
    let since_us = args.since.map_or(0, |since| now_us.saturating_sub(since.as_micros() as u64));
    record.time_us >= since_us && args.host.is_none_or(|host| record.host == host)
}

fn now_us() -> u64 {
    u64::try_from(Clock::system().unix().as_micros()).unwrap_or(u64::MAX)
}

fn once(args: &PoolHistoryArgs) -> Result<ExitCode, Failure> {
    let mut records =
        cenote_pool::history(&*args.region.map_read_only()?).map_err(|error| args.region.explain(&error))?;
    let now_us = now_us();
    records.retain(|record| is_wanted(args, record, now_us));
    args.output.show(&records, || {
        let mut rows = output::table(&["time (UTC)", "host", "worker", "pid", "what"]).log();
        for record in &records {
            rows.add_row([
                output::utc(record.time_us),
                record.host.to_string(),
                record.slot.map_or_else(String::new, |slot| slot.to_string()),
                record.pid.to_string(),
                record.what.clone(),
            ]);
        }
        rows.to_string()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The last record of each host that was printed: its number, and how often it had happened. A record that
/// repeats is counted in its line.
#[derive(Default)]
struct Printed(BTreeMap<u8, (u64, u64)>);

impl Printed {
    fn is_new(&mut self, record: &Record) -> bool {
        let now = (record.sequence, record.times);
        let last = self.0.entry(record.host).or_default();
        let is_new = now > *last;
        *last = now.max(*last);
        is_new
    }
}

fn follow(args: &PoolHistoryArgs) -> Result<ExitCode, Failure> {
    let pauses = EndSignals::catch()?.into_pauses();
    let watched = args.region.watch()?;
    let mut printed = Printed::default();
    loop {
        if !watched.is_current() {
            let source = args.region.source()?;
            return Err(Failure::new(format!("{source}: the region was removed or made anew, so its history ends"))
                .hint("run the command again to follow the region that now has this name"));
        }
        let records = watched.records().map_err(|error| args.region.explain(&error))?;
        let now_us = now_us();
        // By number: a clock may have been set back.
        let mut by_number: Vec<&Record> = records.iter().collect();
        by_number.sort_by_key(|record| (record.host, record.sequence));
        by_number.retain(|record| printed.is_new(record) && is_wanted(args, record, now_us));
        by_number.sort_by_key(|record| record.time_us);
        let lines: Result<Vec<String>, Failure> = by_number.into_iter().map(|record| line(args, record)).collect();
        if !write(&lines?)? || !pauses.pause_while_read(EVERY) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn line(args: &PoolHistoryArgs, record: &Record) -> Result<String, Failure> {
    if args.output.is_json_on_stdout() {
        return serde_json::to_string(record).map_err(|error| Failure::new(error.to_string()));
    }
    let Record { host, pid, what, .. } = record;
    Ok(format!("{}  host {host}  pid {pid}  {what}", output::utc(record.time_us)))
}

/// Writes lines. Returns whether the reader is still there.
fn write(lines: &[String]) -> Result<bool, Failure> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).map_err(Failure::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::Event;

    #[test]
    fn a_follower_prints_new_records_and_repetitions_once() {
        let record = |host, sequence, times| Record {
            time_us: 0,
            host,
            slot: None,
            pid: 1,
            life: 1,
            sequence,
            event: Event::Evicted,
            operands: [0; 2],
            times,
            what: String::new(),
        };
        let mut printed = Printed::default();
        let mut is_new = |host, sequence, times| printed.is_new(&record(host, sequence, times));
        assert!(is_new(0, 1, 1) && is_new(0, 2, 1) && is_new(1, 1, 1));
        assert!(!is_new(0, 1, 1) && !is_new(0, 2, 1) && !is_new(1, 1, 1));
        assert!(is_new(0, 2, 2) && !is_new(0, 2, 2) && is_new(0, 3, 1));
    }
}
