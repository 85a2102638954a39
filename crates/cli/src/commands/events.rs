//! `cenote pool events`: the blocks of a region, and its later stores and evictions, a line of JSON
//! each.

use crate::args::PoolEventsArgs;
use cenote_console::failure::Failure;
use cenote_console::signals::EndSignals;
use cenote_pool::{BlockEvent, Follower, NamespaceInfo, Resync};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    /// Counts the lines, from 0.
    sequence: u64,
    /// Seconds since 1970.
    time: f64,
    #[serde(flatten)]
    what: What<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum What<'a> {
    /// The log had a gap, or this is the first poll: the following events come from a walk over all
    /// blocks.
    Resync { event: &'static str, reason: Resync },
    Block {
        #[serde(flatten)]
        block: &'a BlockEvent,
        /// The model's name and its blocks' tokens, if the region has them.
        model: Option<&'a str>,
        block_tokens: Option<u32>,
    },
}

pub fn run(args: &PoolEventsArgs) -> Result<ExitCode, Failure> {
    let pauses = EndSignals::catch()?.into_pauses();
    let watched = args.region.watch()?;
    let inspector = &watched.inspector;
    let (start, mut follower, mut sequence) = (Instant::now(), Follower::default(), 0);
    let mut models = BTreeMap::<u16, NamespaceInfo>::new();
    loop {
        // The memory of a removed region stays readable, and its blocks are of no use to a reader of the name.
        if !watched.is_current() {
            let source = args.region.source()?;
            return Err(Failure::new(format!("{source}: the region was removed or made anew, so its events end"))
                .hint("run the command again to follow the region that now has this name"));
        }
        let followed = inspector.follow(&mut follower).map_err(|error| args.region.explain(&error))?;
        let of = |event: &BlockEvent| event.told().namespace.0;
        // A row may have been reclaimed for another model.
        if !followed.events.is_empty() {
            models = inspector.namespaces().into_iter().map(|row| (row.id.0, row)).collect();
        }
        let resync = followed.resync.map(|reason| What::Resync { event: "resync", reason });
        let blocks = followed.events.iter().map(|block| {
            let model = models.get(&of(block));
            let (name, tokens) = (model.map(|row| row.label.as_str()), model.map(|row| row.block_tokens));
            What::Block { block, model: name, block_tokens: tokens }
        });
        let lines: Vec<What<'_>> = resync.into_iter().chain(blocks).collect();
        if !write(lines, &mut sequence)? {
            return Ok(ExitCode::SUCCESS);
        }
        let left = args.duration.map(|all| all.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(ExitCode::SUCCESS);
        }
        let pause = left.map_or(args.every, |left| left.min(args.every));
        if !pauses.pause_while_read(pause) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Writes lines. Returns whether the reader is still there.
fn write(lines: Vec<What<'_>>, sequence: &mut u64) -> Result<bool, Failure> {
    if lines.is_empty() {
        return Ok(true);
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut text = Vec::new();
    for what in lines {
        serde_json::to_writer(&mut text, &Line { sequence: *sequence, time, what })
            .map_err(|error| Failure::new(error.to_string()))?;
        text.push(b'\n');
        *sequence += 1;
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(&text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).map_err(Failure::from),
    }
}
