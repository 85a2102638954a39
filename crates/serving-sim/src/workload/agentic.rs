//! Sessions of coding agents: one line of JSON per session, repacked from kv-cache-tester's traces
//! (Apache-2.0).
//!
//! A session has `block` (tokens per hash id), `tool_tokens`, `system_tokens` and `requests`. A request
//! is a list: seconds since the session's start, input tokens, output tokens, runs of hash ids as
//! `[first, count]`, depth of the subagent, and two times that this reader ignores. Ids are local to a
//! session and name full blocks only. The times of a subagent may begin anew, so requests are sorted.
//!
//! The file says when a request arrives within its session, not when sessions start. They start by a
//! Poisson process here. A drawn session that occurs twice is two sessions without common blocks.

use super::draw::exponential;
use super::times::of_seconds;
use super::{BadLine, Builder, Read, TraceError, each_line, finish, tokens, without_place};
use crate::kernel::Time;
use cenote_base::prng::Prng;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::BufRead;

/// Tokens per hash id of the published sessions.
pub const AGENTIC_BLOCK_TOKENS: u32 = 64;
/// Most blocks of all prompts of a load: a few bytes of a line can name a million.
pub const LOAD_BLOCKS_MAX: u64 = 1 << 28;
/// Highest hash id.
const ID_MAX: u64 = (1 << 32) - 1;

/// How sessions become a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Number of sessions, drawn without repetition as long as the file has others. `None`: each once.
    pub count: Option<usize>,
    /// Mean time between two starts. 0: all start at once.
    pub gap: Time,
    /// Seed of the order and of the starts.
    pub seed: u64,
    /// Assume that sessions share the blocks of their tools and system prompts if these have equally
    /// many tokens.
    pub shares_prefix: bool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { count: None, gap: 60_000_000_000, seed: 1, shares_prefix: false }
    }
}

#[derive(Deserialize)]
struct Line {
    block: u32,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
    requests: Vec<Request>,
}

/// A request of a line, as the format orders its numbers.
type Request = (f64, u64, u64, Vec<(u64, u64)>, u64, IgnoredAny, IgnoredAny);

struct Session {
    line: usize,
    tool_tokens: u32,
    system_tokens: u32,
    requests: Vec<Asked>,
}

struct Asked {
    at: Time,
    input: u32,
    output: u32,
    /// First id and number of ids.
    runs: Vec<(u32, u32)>,
    is_subagent: bool,
}

impl Asked {
    fn ids(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().flat_map(|&(first, count)| first..=first + (count - 1))
    }

    fn num_blocks(&self) -> u64 {
        self.runs.iter().map(|&(_, count)| u64::from(count)).sum()
    }
}

/// Reads sessions and starts them. Invalid lines are skipped and listed, or are an error if `strict` is
/// set.
///
/// # Errors
/// Reading failed, the trace has no requests, a line is invalid and `strict` is set, or the drawn
/// sessions have more than [`LOAD_BLOCKS_MAX`] blocks.
pub fn read_agentic(
    from: impl BufRead,
    block_tokens: u32,
    strict: bool,
    sessions: &Sessions,
) -> Result<Read, TraceError> {
    let mut all = Vec::new();
    let bad = each_line(from, strict, |text, line| {
        let parsed: Line = serde_json::from_slice(text).map_err(|error| without_place(&error))?;
        all.push(session(line, &parsed, block_tokens)?);
        Ok(())
    })?;
    let mut builder = Builder::new(block_tokens);
    let count = if all.is_empty() { 0 } else { sessions.count.unwrap_or(all.len()) };
    let mut prng = Prng::new(sessions.seed);
    let (mut order, mut start, mut blocks) = (Vec::new(), 0.0, 0);
    for nth in 0..count {
        if nth % all.len() == 0 {
            order = shuffled(all.len(), &mut prng);
        }
        let one = &all[order[nth % all.len()]];
        start += exponential(&mut prng, sessions.gap as f64);
        // A request without blocks counts, too, so that the number of draws is limited.
        blocks += one.requests.iter().map(|asked| asked.num_blocks() + 1).sum::<u64>();
        if blocks > LOAD_BLOCKS_MAX {
            let what = format!(
                "with this session, drawn as number {}, the prompts have more than {LOAD_BLOCKS_MAX} blocks; draw fewer",
                nth + 1
            );
            return Err(BadLine { line: one.line, what }.into());
        }
        push(one, nth as u64, start as u64, sessions.shares_prefix, &mut builder);
    }
    let mut read = finish(builder, bad)?;
    read.workload.begin_at_zero();
    read.notes.push(format!(
        "{count} sessions of {}, one start in {:.0} s on average, seed {}",
        all.len(),
        sessions.gap as f64 / 1e9,
        sessions.seed
    ));
    read.notes.push(if sessions.shares_prefix {
        "assumed, as the file does not record it: sessions share their tools' blocks if these have equally many \
         tokens, and then their system prompts' on the same condition"
            .to_owned()
    } else {
        "sessions share no blocks; the file records no sharing".to_owned()
    });
    Ok(read)
}

fn session(line: usize, parsed: &Line, block_tokens: u32) -> Result<Session, String> {
    if parsed.block != block_tokens {
        return Err(format!("its hash ids have {} tokens, the load's blocks {block_tokens}", parsed.block));
    }
    let mut requests = Vec::with_capacity(parsed.requests.len());
    for (nth, (at, input, output, runs, depth, _, _)) in (1..).zip(&parsed.requests) {
        let of = |what: String| format!("request {nth}: {what}");
        let at = of_seconds(*at).ok_or_else(|| of(format!("{at} is not a time in seconds")))?;
        let (input, output) = (tokens("its input", *input).map_err(of)?, tokens("its output", *output).map_err(of)?);
        if input == 0 {
            return Err(of("its input is 0; a prompt has at least one token".to_owned()));
        }
        let full = u64::from(input / block_tokens);
        let mut named = 0_u64;
        let mut checked = Vec::with_capacity(runs.len());
        for &(first, count) in runs {
            named = named.saturating_add(count);
            if count == 0 || first.saturating_add(count) > ID_MAX || named > full {
                return Err(of(format!(
                    "run [{first}, {count}]: ids are 32-bit numbers, one for each of its {full} full blocks"
                )));
            }
            checked.push((first as u32, count as u32));
        }
        if named != full {
            return Err(of(format!("{named} ids for {full} full blocks")));
        }
        requests.push(Asked { at, input, output, runs: checked, is_subagent: *depth > 0 });
    }
    if requests.is_empty() {
        return Err("a session without requests".to_owned());
    }
    let (tool_tokens, system_tokens) =
        (tokens("tool_tokens", parsed.tool_tokens)?, tokens("system_tokens", parsed.system_tokens)?);
    requests.sort_by_key(|asked| asked.at);
    Ok(Session { line, tool_tokens, system_tokens, requests })
}

fn shuffled(count: usize, prng: &mut Prng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, prng.below(at as u64 + 1) as usize);
    }
    order
}

/// Names of blocks: of a session by its draw and id, of a shared prefix by its tokens and position.
const SHARED: u64 = 1 << 63;
/// Most blocks of a shared prefix.
const PREFIX_MAX: u64 = (1 << 13) - 1;

fn push(session: &Session, draw: u64, start: Time, shares_prefix: bool, builder: &mut Builder) {
    let block = u64::from(builder.workload.block_tokens);
    let (tools, system) = (u64::from(session.tool_tokens), u64::from(session.system_tokens));
    let (of_tools, of_both) = (tools / block, (tools + system) / block);
    // The prefix is that of the main agent's first prompt. A subagent has another.
    let first = session.requests.iter().find(|asked| !asked.is_subagent);
    let prefix: Vec<u32> = match first {
        Some(asked) if shares_prefix => asked.ids().take(of_both.min(PREFIX_MAX) as usize).collect(),
        _ => Vec::new(),
    };
    let mut names = Vec::new();
    for asked in &session.requests {
        names.clear();
        let mut is_prefix = true;
        for (at, id) in asked.ids().enumerate() {
            is_prefix = is_prefix && prefix.get(at) == Some(&id);
            let at = at as u64;
            names.push(match is_prefix {
                // 25 bits of each number of tokens, 13 of the position.
                true if at < of_tools => SHARED | (tools << 38) | at,
                true => SHARED | (tools << 38) | ((system + 1) << 13) | at,
                false => (draw << 32) | u64::from(id),
            });
        }
        builder.push(start.saturating_add(asked.at), asked.input, asked.output, &names);
    }
}

#[cfg(test)]
mod tests;
