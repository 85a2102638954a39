//! `cenote pool explain --request`: what a log says of one request, and what became of its first missing block.

use super::log::{Missed, Told};
use super::{Fate, Past, Ring, reason, ring};
use crate::args::PoolExplainArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_mem::files::open_input;
use cenote_pool::{Cause, NamespaceInfo, removals};
use cenote_store::MissReason;
use serde::Serialize;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

const LOG_HINT: &str = "`cenote serve --log-misses` with `--log warn,misses=info` writes these lines, and so does the \
                        setting `log_misses` of vLLM's connector";

#[derive(Serialize)]
struct Requested {
    region: String,
    request: String,
    /// Lines of the log.
    lines: u64,
    /// Those that were too long to be read.
    too_long: u64,
    /// Misses of the request in the log: `misses` has the last ones.
    count: u64,
    misses: Vec<Then>,
    removals: Ring,
}

/// A hit that ended early.
#[derive(Serialize)]
struct Then {
    /// Number of its line.
    line: u64,
    /// The id in the line: engines add to it.
    request: String,
    model: u16,
    /// Label of this row of the region; `None`: it has no such row.
    label: Option<String>,
    at_s: u64,
    blocks: u64,
    found: u64,
    own: u64,
    fetched: u64,
    hash: String,
    reason: &'static str,
    /// Seconds from the block's removal until the writer looked.
    ago_s: Option<u64>,
    now: Fate,
    /// The answer as a text.
    summary: String,
}

pub fn run(args: &PoolExplainArgs, id: &str, log: &Path) -> Result<ExitCode, Failure> {
    let source = args.region.source()?;
    let told = read(log, id)?;
    if told.misses.is_empty() {
        return Err(none(&told, id, log));
    }
    let inspector = args.region.inspect()?;
    let rows = inspector.namespaces();
    let removed = removals(&*args.region.map_read_only()?).map_err(|error| args.region.explain(&error))?;
    let (past, removals) = (Past::new(&removed), ring(&inspector, &removed));
    let names: Vec<_> = told.misses.iter().map(|(_, missed)| missed.hash).collect();
    let seen = inspector.look_at(&names);
    let created_s = inspector.superblock().config.created;
    let misses = told.misses.iter().zip(seen).map(|((line, missed), seen)| {
        let now = past.fate(missed.hash, seen.as_ref()).unwrap_or(Fate::NeverSeen);
        let row = rows.iter().find(|row| row.id.0 == missed.model);
        let since = since(missed, &now, &removals, past.now.as_secs(), created_s);
        Then {
            line: *line,
            request: missed.request.clone(),
            model: missed.model,
            label: row.map(|row| row.label.clone()),
            at_s: missed.at_s,
            blocks: missed.blocks,
            found: missed.found,
            own: missed.own,
            fetched: missed.fetched,
            hash: missed.hash.to_string(),
            reason: missed.reason.name(),
            ago_s: missed.ago_s,
            now,
            summary: format!("{}. Since then: {since}", then(*line, missed, row)),
        }
    });
    let requested = Requested {
        region: source.to_string(),
        request: id.to_owned(),
        lines: told.lines,
        too_long: told.too_long,
        count: told.count,
        misses: misses.collect(),
        removals,
    };
    args.output.show(&requested, || text(&requested))?;
    Ok(ExitCode::SUCCESS)
}

fn read(log: &Path, id: &str) -> Result<Told, Failure> {
    let named = |error: std::io::Error| Failure::new(format!("--log-file {}: {error}", log.display()));
    if log == Path::new("-") {
        return Told::read(&mut std::io::stdin().lock(), id).map_err(named);
    }
    let file = open_input(log).map_err(|error| named(error).hint("`-` reads standard input, such as a pipe"))?;
    Told::read(&mut BufReader::new(file), id).map_err(named)
}

/// Nothing of the request could be read.
fn none(told: &Told, id: &str, log: &Path) -> Failure {
    let log = log.display();
    if let Some((line, fact)) = &told.unreadable {
        return Failure::new(format!("--log-file {log}: line {line} has the id, but not the form of a miss: {fact}"))
            .hint("lines must be whole, and of this build of Cenote");
    }
    let id = id.escape_debug();
    let failure = if told.mentions > 0 {
        format!(
            "--log-file {log}: {} of its {} lines have `{id}`, and none tells of a miss: its whole prompt was found, or \
             misses were not logged",
            told.mentions, told.lines
        )
    } else {
        format!("--log-file {log}: none of its {} lines has `{id}`", told.lines)
    };
    let too_long = match told.too_long {
        0 => String::new(),
        count => format!("; {count} lines are too long and were not read"),
    };
    let hint = match told.of_any {
        0 => format!("it has no misses of any request: {LOG_HINT}"),
        count => format!(
            "it has {count} misses of other requests; only a request whose hit ended early has one, and an earlier \
             or later log may have it"
        ),
    };
    Failure::new(failure + &too_long).hint(hint)
}

/// What the log says.
fn then(line: u64, missed: &Missed, row: Option<&NamespaceInfo>) -> String {
    let Missed { request, blocks, found, own, fetched, .. } = missed;
    let model = match row {
        Some(row) => format!("model {} ({})", missed.model, row.label.escape_debug()),
        None => format!("model {}, of which the region has no row,", missed.model),
    };
    let parts = [(*own, "the engine itself had"), (*fetched, "the cold tier or peers brought")];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, verb)| format!("{verb} {count}")).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" (of these {})", parts.join(", and ")) };
    let ago = missed.ago_s.map_or_else(String::new, |ago| format!(", {ago} s before the line was written"));
    format!(
        "line {line}, {}: request {request} of {model} found {found} of its {blocks} blocks{parts}. It lacked block \
         {found}: {}{ago}",
        moment(missed.at_s),
        why(missed.reason),
    )
}

/// A second since 1970.
fn moment(at_s: u64) -> String {
    let text = output::utc(at_s.saturating_mul(1_000_000));
    text.split_once('.').map_or_else(|| text.clone(), |(seconds, _)| format!("{seconds} UTC"))
}

fn why(reason: MissReason) -> String {
    match reason {
        MissReason::Removed(Cause::Evicted | Cause::Quota) => {
            format!("it had been evicted, because {}", reason.words())
        }
        MissReason::Removed(_) => format!("it had been dropped, because {}", reason.words()),
        MissReason::Later | MissReason::Unknown => reason.words().to_owned(),
        MissReason::Unexplained => format!("the reason was not looked up, because {}", reason.words()),
    }
}

/// What became of the block after the request had asked.
fn since(missed: &Missed, now: &Fate, ring: &Ring, now_s: u64, created_s: u64) -> String {
    let after = |then_s: u64| then_s.saturating_sub(missed.at_s);
    match now {
        Fate::Present { age_s, .. } => {
            let stored_s = now_s.saturating_sub(*age_s);
            if stored_s < missed.at_s {
                return format!("it is here, and was stored {} s before the request", missed.at_s - stored_s);
            }
            format!("it was stored {} s after the request, and is here", after(stored_s))
        }
        Fate::Removed { ago_s, .. } => {
            let left_s = now_s.saturating_sub(*ago_s as u64);
            let came = if left_s > missed.at_s { "it came back and left again" } else { "it has not come back" };
            format!("{came}: {}", reason(now, ring))
        }
        // A region that was made anew has other names for the same tokens.
        _ if created_s > missed.at_s => {
            format!("the region was made {} s after the request, and knows nothing of before", after(created_s))
        }
        _ => format!("it has not come; {}", reason(now, ring)),
    }
}

fn text(requested: &Requested) -> String {
    let mut parts: Vec<String> = requested.misses.iter().map(|then| output::wrapped(&then.summary, "")).collect();
    let left_out = requested.count - requested.misses.len() as u64;
    if left_out > 0 {
        parts.insert(0, format!("the last {} of {} misses:", requested.misses.len(), requested.count));
    }
    if requested.too_long > 0 {
        parts.push(format!("note: {} lines of the log are too long and were not read", requested.too_long));
    }
    parts.join("\n\n")
}
