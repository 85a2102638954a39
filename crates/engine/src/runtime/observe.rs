//! What an engine tells of its work to whoever measures it.

use serde::{Deserialize, Serialize};

/// What a request's blocks did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From L1 to the region.
    Out,
    /// Back.
    In,
    /// They were given up, in L1 or in the region.
    Dropped,
}

/// Why they did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Out: another request needed room.
    Pressure,
    /// In: there is room again.
    Room,
    /// Dropped: the request had computed nothing.
    Empty,
    /// Dropped: the swap space was full, or there is none.
    SwapFull,
    /// Dropped: computing again is quicker than the way there and back.
    Quicker,
    /// Dropped: the region had no room.
    Refused,
    /// Dropped: the client keeps the request's KV out of the region.
    KeptOut,
    /// Dropped: they did not come back as they went.
    Damaged,
    /// Dropped: the request ended while they were out.
    Ended,
}

/// A line of a swap trace (docs/simulator.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapRecord {
    /// The engine's step, from 1, before whose computation it happened.
    pub step: u64,
    /// The request: the how many-th that this engine took, from 0.
    pub sequence: u64,
    /// Blocks of it.
    pub blocks: u32,
    /// Where they went.
    pub direction: Direction,
    /// Why.
    pub why: Why,
}

/// A step that was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Requests that had a part in it.
    pub requests: u64,
    /// Tokens computed.
    pub tokens: u64,
    /// Pairs of a token computed and a token that it attends to.
    pub pairs: u64,
    /// Tokens whose KV was read: of each request those that its last token attends to.
    pub context: u64,
    /// From when the scheduler was asked until the next step could begin: computing, telling and publishing.
    pub ns: u64,
}

/// A request that the engine took: the scheduler knows it from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenRecord {
    /// The how many-th, from 0.
    pub sequence: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Most tokens of prompt and output.
    pub max_num_tokens: u32,
}

/// Hears of requests, swaps and steps, on the engine's thread: it must not block for long.
pub trait Observer: Send {
    /// A request was taken.
    fn taken(&mut self, _record: &TakenRecord) {}

    /// Blocks were swapped, or given up.
    fn swapped(&mut self, _record: &SwapRecord) {}

    /// A step was computed.
    fn stepped(&mut self, _record: &StepRecord) {}
}

/// Nobody listens.
impl Observer for () {}
