//! Loads: who asks when, how long prompts and answers are, and which blocks prompts share.
//!
//! A prompt is a sequence of block numbers, each for `block_tokens` tokens and all that comes before them: equal numbers, equal
//! prefix. The last one may stand for fewer tokens.

mod azure;
mod draw;
mod generate;
mod mooncake;

pub use azure::read_azure;
pub use draw::Length;
pub use generate::{CPEN_PROMPTS, Synthetic, cpen};
pub use mooncake::{MOONCAKE_BLOCK_TOKENS, read_mooncake};

use crate::kernel::Time;
use std::collections::HashMap;
use std::ops::Range;

/// A block's name within its workload: 0, 1, 2, … in the order of first use.
pub type BlockNumber = u32;

/// Longest prompt and longest answer that is believed, in tokens.
pub const TOKENS_MAX: u64 = 16 << 20;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it comes.
    pub arrival: Time,
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens of the answer, at least 1: the first is chosen where the prompt ends.
    pub output_tokens: u32,
    /// 0 is the most urgent.
    pub priority: u32,
    blocks: Range<usize>,
}

/// Requests in the order in which they come.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    block_tokens: u32,
    requests: Vec<Request>,
    blocks: Vec<BlockNumber>,
    num_blocks: u32,
}

impl Workload {
    /// No requests yet, whose blocks will have so many tokens.
    ///
    /// # Panics
    /// Blocks without tokens.
    #[must_use]
    pub fn new(block_tokens: u32) -> Self {
        assert!(block_tokens > 0, "a block has tokens");
        Self { block_tokens, ..Self::default() }
    }

    /// Prompts that share nothing: of each when it comes, its tokens, and those of its answer.
    ///
    /// # Panics
    /// Blocks without tokens.
    #[must_use]
    pub fn alone(block_tokens: u32, requests: impl IntoIterator<Item = (Time, u32, u32)>) -> Self {
        let mut builder = Builder::new(block_tokens);
        requests.into_iter().for_each(|(arrival, input, output)| builder.push_alone(arrival, input, output));
        builder.finish()
    }

    /// Tokens of a block.
    #[must_use]
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Different blocks of all prompts.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks as usize
    }

    /// The blocks of one prompt.
    #[must_use]
    pub fn blocks(&self, request: &Request) -> &[BlockNumber] {
        &self.blocks[request.blocks.clone()]
    }

    /// The request with the most blocks: its place, and how many they are.
    #[must_use]
    pub fn widest(&self) -> Option<(usize, usize)> {
        let widths = self.requests.iter().map(|request| request.blocks.len());
        widths.enumerate().max_by_key(|&(at, width)| (width, std::cmp::Reverse(at)))
    }

    /// Keeps the first `count` requests.
    pub fn truncate(&mut self, count: usize) {
        self.requests.truncate(count);
    }

    /// Comes `factor` times as fast.
    ///
    /// # Panics
    /// The factor is not positive.
    pub fn speed_up(&mut self, factor: f64) {
        assert!(factor > 0.0 && factor.is_finite(), "time goes on");
        self.requests.iter_mut().for_each(|request| request.arrival = (request.arrival as f64 / factor) as Time);
    }

    /// Puts requests in the order of their arrival; those of one instant keep theirs.
    fn sort(&mut self) {
        self.requests.sort_by_key(|request| request.arrival);
    }
}

/// Fills a workload, giving blocks numbers by their names in a trace.
struct Builder {
    workload: Workload,
    numbers: HashMap<u64, BlockNumber>,
    /// Requests with another number of blocks than their length says.
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

    /// A prompt that shares nothing with any other.
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

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadLine {
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("line {line}: {error}")]
    Unreadable {
        /// From 1.
        line: usize,
        /// What the system says.
        error: std::io::Error,
    },
    /// A line is wrong, and that was not to be overlooked.
    #[error(transparent)]
    Bad(#[from] BadLine),
    /// It has no requests.
    #[error("it has no requests")]
    Empty,
}

/// A trace, and what was left out of it.
#[derive(Debug)]
pub struct Read {
    /// The requests.
    pub workload: Workload,
    /// Lines that were left out.
    pub bad: Vec<BadLine>,
    /// Requests with another number of blocks than their length says; many of them mean another size of blocks.
    pub odd_lengths: usize,
}

/// Reads line by line. `take` puts what a line says into the builder, or says what is wrong with it; empty lines are nothing.
fn read_lines(
    mut from: impl std::io::BufRead,
    strict: bool,
    mut builder: Builder,
    mut take: impl FnMut(&[u8], usize, &mut Builder) -> Result<(), String>,
) -> Result<Read, TraceError> {
    let (mut line, mut bad, mut text) = (0, Vec::new(), Vec::new());
    loop {
        line += 1;
        text.clear();
        if from.read_until(b'\n', &mut text).map_err(|error| TraceError::Unreadable { line, error })? == 0 {
            break;
        }
        let trimmed = text.trim_ascii();
        if trimmed.is_empty() {
            continue;
        }
        if let Err(what) = take(trimmed, line, &mut builder) {
            let what = if text.ends_with(b"\n") { what } else { format!("{what} (the file ends within this line)") };
            let found = BadLine { line, what };
            if strict {
                return Err(found.into());
            }
            bad.push(found);
        }
    }
    let odd_lengths = builder.odd_lengths;
    let workload = builder.finish();
    if workload.requests.is_empty() {
        return Err(bad.into_iter().next().map_or(TraceError::Empty, TraceError::Bad));
    }
    Ok(Read { workload, bad, odd_lengths })
}

/// A number of tokens of a line.
fn tokens(what: &str, count: u64) -> Result<u32, String> {
    if count > TOKENS_MAX {
        return Err(format!("{what} is {count}, more than any model takes ({TOKENS_MAX})"));
    }
    Ok(count as u32)
}

#[cfg(test)]
mod tests;
