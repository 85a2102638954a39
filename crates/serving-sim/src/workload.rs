//! Loads: arrival times, lengths of prompts and answers, and the blocks that prompts share.
//!
//! A prompt is a sequence of block numbers. Each number stands for `block_tokens` tokens and all
//! tokens before them, so equal numbers mean equal prefixes. The last block may have fewer tokens.

mod agentic;
mod azure;
mod burstgpt;
mod draw;
mod file;
mod generate;
mod mooncake;
mod times;

pub use agentic::{
    AGENTIC_BLOCK_TOKENS, Conversation, Conversations, LOAD_BLOCKS_MAX, Sessions, Turn, read_agentic,
    read_conversations,
};
pub use azure::read_azure;
pub use burstgpt::read_burstgpt;
pub use cenote_policy::block_cache::BlockNumber;
pub use draw::Length;
pub(crate) use draw::exponential;
pub use file::TraceFormat;
pub use generate::{CPEN_PROMPTS, Lengths, Synthetic, cpen};
pub use mooncake::{MOONCAKE_BLOCK_TOKENS, read_mooncake};

use crate::kernel::Time;
use std::collections::HashMap;
use std::ops::Range;

/// Longest prompt and longest answer that a trace may have, in tokens.
pub const TOKENS_MAX: u64 = 16 << 20;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival time in nanoseconds.
    pub arrival: Time,
    /// Number of tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Number of tokens of the answer, at least 1: the prompt's last step samples the first.
    pub output_tokens: u32,
    /// Priority; 0 is the most urgent.
    pub priority: u32,
    blocks: Range<usize>,
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    block_tokens: u32,
    requests: Vec<Request>,
    blocks: Vec<BlockNumber>,
    num_blocks: u32,
}

impl Workload {
    /// A workload without requests, with `block_tokens` tokens per block.
    ///
    /// # Panics
    /// Panics if `block_tokens` is 0.
    #[must_use]
    pub fn new(block_tokens: u32) -> Self {
        assert!(block_tokens > 0, "a block has tokens");
        Self { block_tokens, ..Self::default() }
    }

    /// A workload of prompts that share no blocks, from (arrival, input tokens, output tokens).
    ///
    /// # Panics
    /// Panics if `block_tokens` is 0.
    #[must_use]
    pub fn alone(block_tokens: u32, requests: impl IntoIterator<Item = (Time, u32, u32)>) -> Self {
        let mut builder = Builder::new(block_tokens);
        requests.into_iter().for_each(|(arrival, input, output)| builder.push_alone(arrival, input, output));
        builder.finish()
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The requests in order of arrival.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Number of different blocks of all prompts.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks as usize
    }

    /// The blocks of a request's prompt.
    #[must_use]
    pub fn blocks(&self, request: &Request) -> &[BlockNumber] {
        &self.blocks[request.blocks.clone()]
    }

    /// Per request, the latest one before it whose whole prompt it continues, if any: the next prompt
    /// of a conversation begins with the one before. Only full blocks are compared.
    #[must_use]
    pub fn previous_prompts(&self) -> Vec<Option<u32>> {
        let mut last_blocks: HashMap<BlockNumber, u32> = HashMap::new();
        let mut previous = Vec::with_capacity(self.requests.len());
        for (at, request) in (0..).zip(&self.requests) {
            let full = &self.blocks(request)[..self.num_full_blocks(request)];
            // A block's number stands for all tokens before it, too.
            previous.push(full.iter().rev().find_map(|block| last_blocks.get(block).copied()));
            if let Some(last) = full.last() {
                last_blocks.insert(*last, at);
            }
        }
        previous
    }

    /// Per block, its position in the prompts that have it.
    #[must_use]
    pub fn depths(&self) -> Vec<u32> {
        let mut depths = vec![0; self.num_blocks()];
        for request in &self.requests {
            (0..).zip(self.blocks(request)).for_each(|(depth, &block)| depths[block as usize] = depth);
        }
        depths
    }

    /// Number of the request's blocks that are full.
    #[must_use]
    pub fn num_full_blocks(&self, request: &Request) -> usize {
        request.blocks.len().min((request.input_tokens / self.block_tokens) as usize)
    }

    /// The first request with the most blocks: (index, number of blocks).
    #[must_use]
    pub fn widest(&self) -> Option<(usize, usize)> {
        let widths = self.requests.iter().map(|request| request.blocks.len());
        widths.enumerate().max_by_key(|&(at, width)| (width, std::cmp::Reverse(at)))
    }

    /// Keeps the first `count` requests, and their blocks.
    pub fn truncate(&mut self, count: usize) {
        if count >= self.requests.len() {
            return;
        }
        self.requests.truncate(count);
        let all = std::mem::take(&mut self.blocks);
        let mut numbers: HashMap<BlockNumber, BlockNumber> = HashMap::new();
        for request in &mut self.requests {
            let start = self.blocks.len();
            for block in &all[request.blocks.clone()] {
                let next = numbers.len() as BlockNumber;
                self.blocks.push(*numbers.entry(*block).or_insert(next));
            }
            request.blocks = start..self.blocks.len();
        }
        self.num_blocks = numbers.len() as BlockNumber;
    }

    /// Counts times from the first arrival.
    fn begin_at_zero(&mut self) {
        let first = self.requests.first().map_or(0, |request| request.arrival);
        self.requests.iter_mut().for_each(|request| request.arrival -= first);
    }

    /// Divides all arrival times by `factor`.
    ///
    /// # Panics
    /// Panics if `factor` is not positive and finite.
    pub fn speed_up(&mut self, factor: f64) {
        assert!(factor > 0.0 && factor.is_finite(), "the factor must be positive and finite");
        self.requests.iter_mut().for_each(|request| request.arrival = (request.arrival as f64 / factor) as Time);
    }

    /// Sorts requests by arrival. The sort is stable.
    fn sort(&mut self) {
        self.requests.sort_by_key(|request| request.arrival);
    }
}

/// Builds a workload. Numbers blocks by their names in a trace.
struct Builder {
    workload: Workload,
    numbers: HashMap<u64, BlockNumber>,
    /// Number of requests with a block count that does not match their length.
    odd_lengths: usize,
}

impl Builder {
    fn new(block_tokens: u32) -> Self {
        Self { workload: Workload::new(block_tokens), numbers: HashMap::new(), odd_lengths: 0 }
    }

    fn push(&mut self, arrival: Time, input_tokens: u32, output_tokens: u32, names: &[u64]) {
        let start = self.workload.blocks.len();
        for &name in names {
            let next = self.workload.num_blocks;
            let number = *self.numbers.entry(name).or_insert(next);
            self.workload.num_blocks += u32::from(number == next);
            self.workload.blocks.push(number);
        }
        self.push_request(arrival, input_tokens, output_tokens, start);
    }

    /// Adds a prompt that shares no blocks.
    fn push_alone(&mut self, arrival: Time, input_tokens: u32, output_tokens: u32) {
        let start = self.workload.blocks.len();
        let count = input_tokens.div_ceil(self.workload.block_tokens);
        let first = self.workload.num_blocks;
        self.workload.blocks.extend(first..first + count);
        self.workload.num_blocks += count;
        self.push_request(arrival, input_tokens, output_tokens, start);
    }

    fn push_request(&mut self, arrival: Time, input_tokens: u32, output_tokens: u32, start: usize) {
        let blocks = start..self.workload.blocks.len();
        let output_tokens = output_tokens.max(1);
        self.workload.requests.push(Request { arrival, input_tokens, output_tokens, priority: 0, blocks });
    }

    fn finish(mut self) -> Workload {
        self.workload.sort();
        self.workload
    }
}

/// A line that is not a valid request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadLine {
    /// Line number, from 1.
    pub line: usize,
    /// The defect.
    pub what: String,
}

/// Reasons why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("line {line}: {error}")]
    Unreadable {
        /// Line number, from 1.
        line: usize,
        /// The system's error.
        error: std::io::Error,
    },
    /// A line is invalid, and the reader is strict or the trace has no valid line.
    #[error(transparent)]
    Bad(#[from] BadLine),
    /// The trace has no requests.
    #[error("the trace has no requests")]
    Empty,
}

/// A trace and the lines that were skipped.
#[derive(Debug)]
pub struct Read {
    /// The valid requests.
    pub workload: Workload,
    /// The skipped lines.
    pub bad: Vec<BadLine>,
    /// Number of requests with a block count that does not match their length. Many of them
    /// indicate that the trace uses another block size.
    pub odd_lengths: usize,
    /// How the load was made from the trace, and what was assumed. In lines.
    pub notes: Vec<String>,
}

/// Reads requests line by line. `take` adds a line's request to the builder, or returns the line's
/// defect.
fn read_lines(
    from: impl std::io::BufRead,
    strict: bool,
    mut builder: Builder,
    mut take: impl FnMut(&[u8], usize, &mut Builder) -> Result<(), String>,
) -> Result<Read, TraceError> {
    let bad = each_line(from, strict, |text, line| take(text, line, &mut builder))?;
    finish(builder, bad)
}

/// Passes each line that is not empty to `take`, which returns the line's defect. Returns the invalid
/// lines.
fn each_line(
    mut from: impl std::io::BufRead,
    strict: bool,
    mut take: impl FnMut(&[u8], usize) -> Result<(), String>,
) -> Result<Vec<BadLine>, TraceError> {
    let (mut line, mut bad, mut text) = (0, Vec::new(), Vec::new());
    loop {
        line += 1;
        text.clear();
        if from.read_until(b'\n', &mut text).map_err(|error| TraceError::Unreadable { line, error })? == 0 {
            return Ok(bad);
        }
        let trimmed = text.trim_ascii();
        if trimmed.is_empty() {
            continue;
        }
        if let Err(what) = take(trimmed, line) {
            let what = if text.ends_with(b"\n") { what } else { format!("{what} (the file ends within this line)") };
            let found = BadLine { line, what };
            if strict {
                return Err(found.into());
            }
            bad.push(found);
        }
    }
}

/// The load of a builder; an error if it has no requests.
fn finish(builder: Builder, bad: Vec<BadLine>) -> Result<Read, TraceError> {
    let odd_lengths = builder.odd_lengths;
    let workload = builder.finish();
    if workload.requests.is_empty() {
        return Err(bad.into_iter().next().map_or(TraceError::Empty, TraceError::Bad));
    }
    Ok(Read { workload, bad, odd_lengths, notes: Vec::new() })
}

/// A JSON parser's message without its line number, which is always 1: it parses one line at a time.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let column = error.column();
    match text.rsplit_once(" at line ") {
        Some((words, _)) => format!("{words} (column {column})"),
        None => text,
    }
}

/// The number of tokens in a field of a CSV.
fn field_tokens(what: &str, text: &str) -> Result<u32, String> {
    tokens(what, text.parse().map_err(|_| format!("{what} `{text}` is not a number of tokens"))?)
}

/// Checks a number of tokens against [`TOKENS_MAX`].
fn tokens(what: &str, count: u64) -> Result<u32, String> {
    if count > TOKENS_MAX {
        return Err(format!("{what} is {count}, more than any model takes ({TOKENS_MAX})"));
    }
    Ok(count as u32)
}

#[cfg(test)]
mod tests;
