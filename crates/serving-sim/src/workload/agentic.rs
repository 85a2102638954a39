//! Sessions of coding agents: one line of JSON per session, repacked from kv-cache-tester's traces
//! (Apache-2.0).
//!
//! A session has `block` (tokens per hash id), `tool_tokens`, `system_tokens` and `requests`. A request
//! is a list: seconds since the session's start, input tokens, output tokens, runs of hash ids as
//! `[first, count]`, depth of the subagent, seconds between the answer before it and this request, and
//! seconds until its answer. Ids are local to a session and name full blocks only. The times of a subagent
//! may begin anew, so requests are sorted.
//!
//! The file says when a request arrives within its session, not when sessions start. They start by a
//! Poisson process here. A drawn session that occurs twice is two sessions without common blocks.
//!
//! [`read_agentic`] makes a load with the recorded times of all requests. [`read_conversations`] keeps the
//! sessions apart, for clients that ask the next turn a think time after the answer to the last one.

use super::draw::exponential;
use super::times::of_seconds;
use super::{BadLine, Builder, Read, TraceError, each_line, finish, tokens, without_place};
use crate::kernel::Time;
use cenote_base::prng::Prng;
use serde::Deserialize;
use std::io::BufRead;
use std::sync::Arc;

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
type Request = (f64, u64, u64, Vec<(u64, u64)>, u64, Option<f64>, Option<f64>);

#[derive(Debug)]
struct Session {
    line: usize,
    /// Tokens of a block.
    block: u32,
    tool_tokens: u32,
    system_tokens: u32,
    requests: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    at: Time,
    /// Between the answer before it and the request.
    think: Time,
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
    let (all, bad) = parse(from, block_tokens, strict)?;
    let mut builder = Builder::new(block_tokens);
    let mut names = Vec::new();
    draw(&all, sessions, |one| {
        for (nth, asked) in one.session.requests.iter().enumerate() {
            names.clear();
            names.extend(one.names(nth));
            builder.push(one.start.saturating_add(asked.at), asked.input, asked.output, &names);
        }
    })?;
    let mut read = finish(builder, bad)?;
    read.workload.begin_at_zero();
    read.notes = sessions.notes(all.len());
    Ok(read)
}

/// A drawn session, of at least one turn.
#[derive(Clone, Debug)]
pub struct Conversation {
    session: Arc<Session>,
    /// Number of the draw, from 0.
    draw: u64,
    start: Time,
    /// The main agent's first ids that may be shared.
    prefix: Arc<[u32]>,
}

/// A request of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Time between the answer before it and this request, in nanoseconds.
    pub think: Time,
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
}

/// Conversations of a trace.
#[derive(Debug)]
pub struct Conversations {
    /// In order of their starts, at least one.
    pub drawn: Vec<Conversation>,
    /// Sessions of the file among which were drawn, and all valid ones.
    pub eligible: (usize, usize),
    /// Lines that were left out.
    pub bad: Vec<BadLine>,
    /// How they were drawn. In lines.
    pub notes: Vec<String>,
}

/// Reads sessions and draws conversations among those whose prompts `fits` accepts, by their lengths in
/// tokens. Times begin at the first start.
///
/// # Errors
/// As [`read_agentic`]; also if `fits` accepts none.
pub fn read_conversations(
    from: impl BufRead,
    block_tokens: u32,
    strict: bool,
    sessions: &Sessions,
    fits: impl Fn(&mut dyn Iterator<Item = u32>) -> bool,
) -> Result<Conversations, TraceError> {
    let (mut all, bad) = parse(from, block_tokens, strict)?;
    if let (true, Some(first)) = (all.is_empty(), bad.first()) {
        return Err(first.clone().into());
    }
    let valid = all.len();
    all.retain(|one| fits(&mut one.requests.iter().map(|asked| asked.input)));
    let mut drawn = Vec::new();
    draw(&all, sessions, |one| drawn.push(one))?;
    let first = drawn.first().ok_or(TraceError::Empty)?.start;
    drawn.iter_mut().for_each(|one| one.start -= first);
    Ok(Conversations { drawn, eligible: (all.len(), valid), bad, notes: sessions.notes(all.len()) })
}

impl Conversation {
    /// Its start, in nanoseconds.
    #[must_use]
    pub const fn start(&self) -> Time {
        self.start
    }

    /// Its turns in order, at least one.
    pub fn turns(&self) -> impl ExactSizeIterator<Item = Turn> {
        self.session.requests.iter().map(|asked| Turn {
            think: asked.think,
            input_tokens: asked.input,
            output_tokens: asked.output,
        })
    }

    /// Names of the full blocks of a turn's prompt. Equal names are equal blocks after equal blocks, also in
    /// other conversations.
    ///
    /// # Panics
    /// Panics if there is no such turn.
    pub fn names(&self, turn: usize) -> impl Iterator<Item = u64> {
        let asked = &self.session.requests[turn];
        let (tools, system) = (u64::from(self.session.tool_tokens), u64::from(self.session.system_tokens));
        let of_tools = tools / u64::from(self.session.block);
        let mut is_prefix = true;
        (0_u64..).zip(asked.ids()).map(move |(at, id)| {
            is_prefix = is_prefix && self.prefix.get(at as usize) == Some(&id);
            match is_prefix {
                // 25 bits of each number of tokens, 13 of the position.
                true if at < of_tools => SHARED | (tools << 38) | at,
                true => SHARED | (tools << 38) | ((system + 1) << 13) | at,
                false => (self.draw << 32) | u64::from(id),
            }
        })
    }
}

impl Sessions {
    /// How these were drawn from `all`.
    fn notes(&self, all: usize) -> Vec<String> {
        let drawn = format!(
            "{} sessions of {all}, one start in {:.0} s on average, seed {}",
            self.count.unwrap_or(all),
            self.gap as f64 / 1e9,
            self.seed
        );
        let sharing = if self.shares_prefix {
            "assumed, as the file does not record it: sessions share their tools' blocks if these have equally many \
             tokens, and then their system prompts' on the same condition"
        } else {
            "sessions share no blocks; the file records no sharing"
        };
        vec![drawn, sharing.to_owned()]
    }
}

/// The sessions of a file, and invalid lines.
fn parse(from: impl BufRead, block_tokens: u32, strict: bool) -> Result<(Vec<Arc<Session>>, Vec<BadLine>), TraceError> {
    let mut all = Vec::new();
    let bad = each_line(from, strict, |text, line| {
        let parsed: Line = serde_json::from_slice(text).map_err(|error| without_place(&error))?;
        all.push(Arc::new(session(line, &parsed, block_tokens)?));
        Ok(())
    })?;
    Ok((all, bad))
}

/// Draws sessions and their starts.
fn draw(all: &[Arc<Session>], sessions: &Sessions, mut take: impl FnMut(Conversation)) -> Result<(), TraceError> {
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
        let prefix = if sessions.shares_prefix { one.prefix() } else { Arc::default() };
        take(Conversation { session: Arc::clone(one), draw: nth as u64, start: start as u64, prefix });
    }
    Ok(())
}

fn session(line: usize, parsed: &Line, block_tokens: u32) -> Result<Session, String> {
    if parsed.block != block_tokens {
        return Err(format!("its hash ids have {} tokens, the load's blocks {block_tokens}", parsed.block));
    }
    let mut requests: Vec<(Asked, Option<Time>, Time)> = Vec::with_capacity(parsed.requests.len());
    for (nth, (at, input, output, runs, depth, think, api)) in (1..).zip(&parsed.requests) {
        let of = |what: String| format!("request {nth}: {what}");
        let time = |seconds: f64| of_seconds(seconds).ok_or_else(|| of(format!("{seconds} is not a time in seconds")));
        let at = time(*at)?;
        let (think, api) = (think.map(time).transpose()?, api.map_or(Ok(0), time)?);
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
        let asked = Asked { at, think: 0, input, output, runs: checked, is_subagent: *depth > 0 };
        requests.push((asked, think, api));
    }
    if requests.is_empty() {
        return Err("a session without requests".to_owned());
    }
    let (tool_tokens, system_tokens) =
        (tokens("tool_tokens", parsed.tool_tokens)?, tokens("system_tokens", parsed.system_tokens)?);
    requests.sort_by_key(|(asked, _, _)| asked.at);
    // A think time that was not recorded is what is left between the answer before and the request.
    let mut answered = None;
    let timed = requests.into_iter().map(|(asked, think, api)| {
        let left = answered.map_or(0, |answered| asked.at.saturating_sub(answered));
        answered = Some(asked.at.saturating_add(api));
        Asked { think: think.unwrap_or(left), ..asked }
    });
    Ok(Session { line, block: block_tokens, tool_tokens, system_tokens, requests: timed.collect() })
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

impl Session {
    /// Ids of the tools and the system prompt in the main agent's first prompt. A subagent has another.
    fn prefix(&self) -> Arc<[u32]> {
        let blocks = (u64::from(self.tool_tokens) + u64::from(self.system_tokens)) / u64::from(self.block);
        let first = self.requests.iter().find(|asked| !asked.is_subagent);
        first.into_iter().flat_map(Asked::ids).take(blocks.min(PREFIX_MAX) as usize).collect()
    }
}

#[cfg(test)]
mod tests;
