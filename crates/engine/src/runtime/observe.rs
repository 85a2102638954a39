//! Records of an engine's work for measurements.

use serde::{Deserialize, Serialize};

/// Movement of a request's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From L1 to the region.
    Out,
    /// From the region back to L1.
    In,
    /// Discarded, in L1 or in the region.
    Dropped,
}

/// Reason for a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Out: another request needed KV blocks.
    Pressure,
    /// In: L1 has free blocks again.
    Room,
    /// Dropped: the request had computed nothing.
    Empty,
    /// Dropped: the swap space was full, or there is none.
    SwapFull,
    /// Dropped: recomputing is quicker than copying out and back.
    Quicker,
    /// Dropped: some of its blocks are spilled.
    Spilled,
    /// Dropped: the region had no space.
    Refused,
    /// Dropped: the client keeps the request's KV out of the region.
    KeptOut,
    /// Dropped: the blocks did not return intact.
    Damaged,
    /// Dropped: the request ended while its blocks were out.
    Ended,
}

/// A line of a swap trace (docs/guides/serve.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapRecord {
    /// The step, from 1; the blocks moved before its computation.
    pub step: u64,
    /// Sequence number of the request in this engine, from 0.
    pub sequence: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Direction of the movement.
    pub direction: Direction,
    /// Reason for the movement.
    pub why: Why,
}

/// A computed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Requests in the step.
    pub requests: u64,
    /// Tokens computed.
    pub tokens: u64,
    /// Pairs of a token computed and a token that it attends to.
    pub pairs: u64,
    /// Tokens with KV that was read: per request, all that its last token attends to.
    pub context: u64,
    /// Nanoseconds from the call of the scheduler until the next step could begin: computing,
    /// sending and publishing.
    pub ns: u64,
}

/// A request that the scheduler has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenRecord {
    /// Sequence number of the request, from 0.
    pub sequence: u64,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Most tokens of prompt and output together.
    pub max_num_tokens: u32,
}

/// Receives records of requests, swaps and steps. The engine's thread calls it, so it must not
/// block for long.
pub trait Observer: Send {
    /// A request was accepted.
    fn taken(&mut self, _record: &TakenRecord) {}

    /// Blocks were swapped or dropped.
    fn swapped(&mut self, _record: &SwapRecord) {}

    /// A step begins to compute, or a pass that measures the cost of a token: `ns` is 0. With a clock of
    /// its own, a test lets the step's time pass here.
    fn computing(&mut self, _work: &StepRecord) {}

    /// A step was computed.
    fn stepped(&mut self, _record: &StepRecord) {}
}

/// Ignores all records.
impl Observer for () {}
