//! `cenote stat`: a region's numbers, one line an interval, for a log.

use crate::args::StatArgs;
use crate::observer::{Observed, Observer};
use crate::snapshot::Summary;
use cenote_base::Clock;
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::signals::EndSignals;
use cenote_pool::Counter;
use std::io::{ErrorKind, Write};

/// Lines after which the header comes again.
const HEADER_EVERY: u64 = 20;

/// Columns and their widths.
const COLUMNS: [(&str, usize); 12] = [
    ("time (UTC)", 19),
    ("full", 6),
    ("blocks", 9),
    ("hits", 7),
    ("lookups/s", 10),
    ("publish/s", 10),
    ("evict/s", 8),
    ("read/s", 10),
    ("write/s", 10),
    ("refuse/s", 9),
    ("damage/s", 9),
    ("findings", 8),
];

pub fn run(args: &StatArgs) -> Result<(), Failure> {
    let pauses = EndSignals::catch()?.into_pauses();
    let mut observer = Observer::open(&args.region, Clock::system())?;
    observer.look()?;
    for line in 0.. {
        if args.count.is_some_and(|count| line >= count) || !pauses.pause_while_read(args.every) {
            return Ok(());
        }
        let mut text = String::new();
        match observer.look() {
            Ok(seen) if args.json => {
                text += &serde_json::to_string(&Summary::of(&seen)).map_err(|error| Failure::new(error.to_string()))?;
            }
            Ok(seen) => {
                if line % HEADER_EVERY == 0 {
                    text += &joined(&COLUMNS.map(|(name, _)| name.to_owned()));
                    text.push('\n');
                }
                text += &joined(&cells(&seen));
            }
            Err(failure) => output::say(&format!("{failure}")),
        }
        if !text.is_empty() && !write(&text)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Writes a line. Returns whether the reader is still there.
fn write(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).map_err(Failure::from),
    }
}

fn cells(seen: &Observed) -> [String; 12] {
    let info = &seen.look.info;
    let rate = |counter| seen.rates.as_ref().map_or(0.0, |rates| rates.per_second(counter));
    let whole = |value: f64| format!("{value:.0}");
    let bytes = |counter| ByteSize(rate(counter) as u64).to_string();
    let hits = seen.rates.as_ref().and_then(crate::rates::Rates::hit_share);
    let full = 100.0 * info.chunks_taken as f64 / info.num_chunks.max(1) as f64;
    [
        output::utc(seen.now_us).chars().take(19).collect(),
        format!("{full:.0} %"),
        info.blocks_ready.to_string(),
        hits.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
        whole(rate(Counter::Lookups)),
        whole(rate(Counter::Published)),
        whole(rate(Counter::Evicted)),
        bytes(Counter::ReadBytes),
        bytes(Counter::PublishedBytes),
        whole(rate(Counter::NoRoom) + rate(Counter::QuotaRefused)),
        whole(rate(Counter::ReadsDamaged)),
        seen.findings.len().to_string(),
    ]
}

fn joined(cells: &[String; 12]) -> String {
    let padded = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    padded.collect::<Vec<_>>().join(" ")
}
