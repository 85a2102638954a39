//! The [`Engine`] trait and its messages: all that a server knows of an engine.
//!
//! An engine may be a thread of this process or another process behind a socket; a router over several
//! engines is an engine too. Messages are plain data, serialisable, because they cross processes.
//! The words are vLLM's where vLLM has one.

use crate::hash::CacheSalt;
use crate::health::Health;
use crate::ids::{RequestId, TokenId};
use crate::sampling::SamplingParams;
use crate::time::Deadline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What a client wants continued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text, tokenized by the engine (which adds the model's BOS token if the tokenizer says so).
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<TokenId>),
    /// A conversation, rendered by the model's chat template.
    Chat(Vec<ChatMessage>),
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

/// Which part of a request an engine does.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prefill and decode here.
    #[default]
    Whole,
    /// Compute and publish the prompt's KV, choose the first token, and end with
    /// [`FinishReason::HandOver`] (TraCT §3.2, steps 1–5 and 11–12) unless that token ended the request.
    Prefill,
    /// Go on from where another engine stopped (TraCT §3.2, steps 6–10). The KV is read from the
    /// region; what is not there any more is computed again.
    Decode(HandOver),
}

/// All that another worker needs to continue a request, whatever became of the first one.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct HandOver {
    /// The prompt, tokenized.
    pub prompt_token_ids: Vec<TokenId>,
    /// Tokens generated so far.
    pub output_token_ids: Vec<TokenId>,
    /// Bytes of output text already sent to the client; the continuation starts behind them.
    pub emitted_bytes: u64,
    /// The request's seed, drawn or given. Token `n` depends on `(seed, n)` only.
    pub seed: u64,
    /// Prompt tokens whose KV the first engine found in the region.
    pub cached_tokens: u32,
}

/// One request to an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Unique among the requests in flight at this engine.
    pub id: RequestId,
    /// What to continue. With [`Phase::Decode`] the hand-over's tokens count, not this.
    pub prompt: Prompt,
    /// How to choose tokens, and how many.
    pub sampling: SamplingParams,
    /// Which part to do.
    #[serde(default)]
    pub phase: Phase,
    /// Whether KV may be read from and written to the region. `false` measures the engine alone.
    #[serde(default = "yes")]
    pub use_pool: bool,
    /// Whose KV this request shares: that of requests with the same salt, or of those without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<CacheSalt>,
    /// Milliseconds this request may take in all; then it fails with [`ErrorKind::DeadlineExceeded`].
    pub timeout_ms: u64,
}

const fn yes() -> bool {
    true
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End-of-sequence token or a stop text.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The prefill part is done; `hand_over` tells how to go on.
    HandOver,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Prompt tokens whose KV came from the region instead of being computed.
    pub cached_tokens: u32,
}

/// How likely a token was by the model's own logits, before temperature, penalties and bias (vLLM's `raw_logprobs`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The token that was chosen.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, the likeliest first.
    pub top: Vec<TokenLogprob>,
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token's text by itself. A part of a character is U+FFFD.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// What an engine tells of a request, in order: any number of `Token`, then one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// One more token was generated.
    Token {
        /// The token.
        token: TokenId,
        /// Text that became certain with it. Empty while a character or a possible stop text is
        /// incomplete; the rest comes with a later token or with `Finished`.
        text: String,
        /// Where the request asks for them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The request ended well.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Text that was held back and is now certain.
        text: String,
        /// Token counts.
        usage: Usage,
        /// With [`FinishReason::HandOver`]: how to go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hand_over: Option<HandOver>,
    },
    /// The request ended without its answer.
    Failed(EngineError),
}

/// Receives the events of one request, on the engine's thread: it must not block. Returning `false`
/// means that nobody listens any more; the engine then aborts the request and frees its blocks.
pub type EventSink = Box<dyn FnMut(Event) -> bool + Send>;

/// What went wrong, as far as the client's reaction depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request can never be served; `field` names the part that is wrong (HTTP 400).
    InvalidRequest,
    /// Prompt and output together are longer than the model's context; `field` names which to shorten (HTTP 400).
    ContextLength,
    /// No room now; try again after `retry_after_ms` (HTTP 503).
    Overloaded,
    /// The engine is gone or going (HTTP 503).
    Unavailable,
    /// `timeout_ms` passed (HTTP 504).
    DeadlineExceeded,
    /// The request was aborted by its owner.
    Aborted,
    /// A fault of ours (HTTP 500).
    Internal,
}

/// An error that a client can be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineError {
    /// The kind.
    pub kind: ErrorKind,
    /// The request field that is wrong, in the API's words (`prompt`, `max_tokens`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// A sentence that names the thing and the fact.
    pub message: String,
    /// With [`ErrorKind::Overloaded`]: when trying again may help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl EngineError {
    /// An error of this kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, field: None, message: message.into(), retry_after_ms: None }
    }

    /// The request is longer than the model's context; `field` is to be shorter.
    #[must_use]
    pub fn context_length(field: &str, message: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), ..Self::new(ErrorKind::ContextLength, message) }
    }

    /// The request's `field` cannot be served.
    #[must_use]
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), ..Self::new(ErrorKind::InvalidRequest, message) }
    }

    /// No room now.
    #[must_use]
    pub fn overloaded(message: impl Into<String>, retry_after_ms: u64) -> Self {
        Self { retry_after_ms: Some(retry_after_ms), ..Self::new(ErrorKind::Overloaded, message) }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for EngineError {}

/// What an engine serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineDescription {
    /// Model name as clients write it.
    pub model: String,
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Element type of weights and KV: `f32` or `bf16`.
    pub dtype: String,
    /// Whether the model has a chat template.
    pub has_chat_template: bool,
    /// The region this engine shares, if any.
    pub region: Option<String>,
    /// Process ids of the workers, this engine's own first.
    pub process_ids: Vec<u32>,
}

/// Gauges and counters of an engine. Names are Prometheus names without the `cenote_` prefix;
/// counters end in `_total`.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct EngineStats {
    /// Values by name.
    pub values: BTreeMap<String, f64>,
}

impl EngineStats {
    /// Takes in the values of another worker, as a router does. Values add up, but those of the whole host: every worker
    /// of it tells the same ones, and the latest is the largest.
    pub fn merge(&mut self, other: &Self) {
        for (name, value) in &other.values {
            let sum = self.values.entry(name.clone()).or_default();
            *sum = if Self::is_of_host(name) { sum.max(*value) } else { *sum + value };
        }
    }

    /// Whether a value only grows in the life of its process.
    #[must_use]
    pub fn is_counter(name: &str) -> bool {
        name.ends_with("_total")
    }

    /// Whether a value is of the whole host, not of one process.
    #[must_use]
    pub fn is_of_host(name: &str) -> bool {
        name.starts_with("pool_")
    }
}

/// Something that serves requests. Calls return at once; results come through the sink.
pub trait Engine: Send + Sync {
    /// What this engine serves.
    fn describe(&self) -> EngineDescription;

    /// Takes a request, or says why not. Validation that needs the tokenizer may also come later, as
    /// the first and only event `Failed`.
    ///
    /// # Errors
    /// The request is invalid, the engine is full or draining.
    fn submit(&self, request: Request, events: EventSink) -> Result<(), EngineError>;

    /// Ends a request and frees what it holds; unknown ids are ignored.
    fn abort(&self, id: RequestId);

    /// Another engine has read the KV of a request that this one handed over, or the request is over: what this one holds
    /// for it may be evicted. Unknown ids are ignored.
    fn release(&self, _id: RequestId) {}

    /// Current gauges and counters.
    fn stats(&self) -> EngineStats;

    /// Whether the engine has all that it was given. Unlike [`Self::stats`], it never waits: an engine
    /// behind a socket returns what it last heard.
    fn health(&self) -> Health {
        Health::Ok
    }

    /// Refuses new requests and waits until the running ones are done or the deadline passes.
    /// Returns whether all were done.
    fn drain(&self, deadline: Deadline) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_counters_are_not_counted_once_per_worker() {
        let stats = |reads: f64, running: f64| EngineStats {
            values: [("pool_reads_total", reads), ("requests_running", running)].map(|(n, v)| (n.to_owned(), v)).into(),
        };
        let mut sum = EngineStats::default();
        sum.merge(&stats(10.0, 2.0));
        sum.merge(&stats(9.0, 3.0));
        assert_eq!(sum, stats(10.0, 5.0));
    }
}
