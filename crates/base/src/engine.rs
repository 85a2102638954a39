//! The [`Engine`] trait and its messages: the complete interface between a server and an engine.
//!
//! An engine may be a thread of this process or another process behind a socket. A router over
//! several engines is an engine too. Messages are plain serialisable data, because they cross
//! processes. Names are vLLM's where vLLM has one.

use crate::hash::{CacheSalt, TenantKey};
use crate::health::Health;
use crate::ids::{RequestId, TokenId};
use crate::sampling::SamplingParams;
use crate::time::Deadline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Input of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text. The engine tokenizes it, and adds the model's BOS token if the tokenizer says so.
    Text(String),
    /// Text that is tokenized without special tokens.
    BareText(String),
    /// Token ids, used unchanged.
    Tokens(Vec<TokenId>),
    /// A conversation, rendered by the model's chat template.
    Chat(Conversation),
}

/// A conversation and what the model does with it.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Conversation {
    /// The turns.
    pub messages: Vec<ChatMessage>,
    /// What follows the last turn.
    #[serde(default)]
    pub end: ChatEnd,
    /// Whether the tokenizer adds special tokens beside those that the template has written.
    #[serde(default)]
    pub add_special_tokens: bool,
}

impl From<Vec<ChatMessage>> for Conversation {
    fn from(messages: Vec<ChatMessage>) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// The end of a rendered conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatEnd {
    /// The beginning of an answer (`add_generation_prompt`).
    #[default]
    Answer,
    /// Nothing.
    Turn,
    /// The last turn stays open, and the model continues it (`continue_final_message`).
    FinalMessage,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or another role that the template supports.
    pub role: String,
    /// The text.
    pub content: String,
}

/// The part of a request that an engine runs.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prefill and decode on this engine.
    #[default]
    Whole,
    /// Compute and publish the prompt's KV, choose the first token, and end with
    /// [`FinishReason::HandOver`] (TraCT §3.2, steps 1–5 and 11–12). If the first token ends the
    /// request, it finishes without a hand-over.
    Prefill,
    /// Continue a request of another engine (TraCT §3.2, steps 6–10). Reads the KV from the region,
    /// and recomputes blocks that are no longer there.
    Decode(HandOver),
}

/// State from which another worker continues a request, even if the first worker died.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct HandOver {
    /// The prompt, tokenized.
    pub prompt_token_ids: Vec<TokenId>,
    /// Tokens generated so far.
    pub output_token_ids: Vec<TokenId>,
    /// Bytes of output text already sent to the client; the continuation starts after them.
    pub emitted_bytes: u64,
    /// The request's seed, given or drawn. Token `n` depends on `(seed, n)` only.
    pub seed: u64,
    /// Prompt tokens of which the first engine found the KV in the region.
    pub cached_tokens: u32,
}

/// One request to an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Unique among the requests in flight at this engine.
    pub id: RequestId,
    /// Input. With [`Phase::Decode`] it is ignored; the hand-over's tokens are the input.
    pub prompt: Prompt,
    /// Sampling parameters and output length.
    pub sampling: SamplingParams,
    /// The part of the request to run.
    #[serde(default)]
    pub phase: Phase,
    /// Whether the engine may read KV from the region and write it there. `false` measures the
    /// engine alone.
    #[serde(default = "yes")]
    pub use_pool: bool,
    /// Requests share KV only with requests of the same salt; `None` shares with all requests
    /// without a salt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<CacheSalt>,
    /// The tenant in whose part of the region the request's KV lies; `None`: the engine's own part. A
    /// request of a tenant that the engine does not have ([`Engine::set_tenants`]) saves no KV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantKey>,
    /// 0 is the most urgent. Urgent requests are admitted first and make room last.
    #[serde(default)]
    pub priority: u32,
    /// The client's name for the request, for logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The client expects to continue the conversation so many milliseconds after the request's end:
    /// then its KV should be near. A hint; it changes no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues_in_ms: Option<u64>,
    /// The client asks to keep the request's KV in the region after its end. A hint; it changes no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
    /// Time limit of the whole request in milliseconds; then it fails with
    /// [`ErrorKind::DeadlineExceeded`].
    pub timeout_ms: u64,
}

const fn yes() -> bool {
    true
}

/// A client's wish to keep a request's KV. It is soft: it delays eviction and prevents none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retain {
    /// Milliseconds from the request's end; 0 ends what earlier requests of the conversation asked for.
    pub ms: u64,
    /// Where wishes have more than their share of the region, those with a smaller priority give way.
    #[serde(default)]
    pub priority: u8,
    /// The conversation, by a number that the client chose: its later wish replaces its earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
}

/// A tenant's part of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Names the part.
    pub key: TenantKey,
    /// Shown in reports of the region, beside the model's name.
    pub name: String,
    /// Most bytes of the region that its blocks take, over all hosts; 0: no limit.
    pub quota_bytes: u64,
    /// Bytes of its blocks that others may not evict; 0: none.
    pub kept_bytes: u64,
}

/// Reason for which a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End-of-sequence token or a stop text.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The prefill part is complete; `hand_over` has the state to continue from.
    HandOver,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Prompt tokens with KV from the region instead of computed KV.
    pub cached_tokens: u32,
}

/// Log-probabilities by the model's own logits, before temperature, penalties and bias (vLLM's
/// `raw_logprobs`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The chosen token.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, in descending order.
    pub top: Vec<TokenLogprob>,
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token's text by itself. An incomplete character is U+FFFD.
    pub text: String,
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
}

/// Events of a request, in order: any number of `Token`, then one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// One token was generated.
    Token {
        /// The token.
        token: TokenId,
        /// Text that this token completes. Empty while a character or a possible stop text is
        /// incomplete; the rest comes with a later token or with `Finished`.
        text: String,
        /// Log-probabilities, if the request asks for them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The request ended successfully.
    Finished {
        /// Reason of the end.
        reason: FinishReason,
        /// Text that was held back and is now complete.
        text: String,
        /// Token counts.
        usage: Usage,
        /// With [`FinishReason::HandOver`]: the state to continue from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hand_over: Option<HandOver>,
    },
    /// The request ended with an error.
    Failed(EngineError),
}

/// Receives the events of one request. Runs on the engine's thread, so it must not block. Returns
/// `false` if the receiver is gone; the engine then aborts the request and frees its blocks.
pub type EventSink = Box<dyn FnMut(Event) -> bool + Send>;

/// Kinds of errors, by the client's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request can never be served; `field` names the invalid part (HTTP 400).
    InvalidRequest,
    /// Prompt and output together exceed the model's context; `field` names the part to shorten
    /// (HTTP 400).
    ContextLength,
    /// No capacity now; retry after `retry_after_ms` (HTTP 503).
    Overloaded,
    /// The engine has stopped or is stopping (HTTP 503).
    Unavailable,
    /// `timeout_ms` passed (HTTP 504).
    DeadlineExceeded,
    /// The caller aborted the request.
    Aborted,
    /// An internal fault (HTTP 500).
    Internal,
}

/// An error that is reported to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineError {
    /// The kind.
    pub kind: ErrorKind,
    /// The invalid request field, by its API name (`prompt`, `max_tokens`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// A sentence that names the failing thing and the fact.
    pub message: String,
    /// With [`ErrorKind::Overloaded`]: milliseconds after which a retry may succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl EngineError {
    /// An error of this kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, field: None, message: message.into(), retry_after_ms: None }
    }

    /// A request that exceeds the model's context; the client must shorten `field`.
    #[must_use]
    pub fn context_length(field: &str, message: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), ..Self::new(ErrorKind::ContextLength, message) }
    }

    /// A request with an invalid `field`.
    #[must_use]
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), ..Self::new(ErrorKind::InvalidRequest, message) }
    }

    /// No capacity now; retry after `retry_after_ms`.
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

/// Properties of an engine and its model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineDescription {
    /// Model name as clients write it.
    pub model: String,
    /// Maximum number of tokens of prompt and output together.
    pub max_model_len: u32,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Element type of weights and KV: `f32` or `bf16`.
    pub dtype: String,
    /// Whether the model has a chat template.
    pub has_chat_template: bool,
    /// The region that this engine shares, if any.
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
    /// Merges the values of another worker, as a router does. Values add up, except those of the
    /// host: all its workers report the same counters, so the largest value is the latest.
    pub fn merge(&mut self, other: &Self) {
        for (name, value) in &other.values {
            let sum = self.values.entry(name.clone()).or_default();
            *sum = if Self::is_of_host(name) { sum.max(*value) } else { *sum + value };
        }
    }

    /// Whether a value only grows during the life of its process.
    #[must_use]
    pub fn is_counter(name: &str) -> bool {
        name.ends_with("_total")
    }

    /// Whether a value belongs to the whole host rather than to one process.
    #[must_use]
    pub fn is_of_host(name: &str) -> bool {
        name.starts_with("pool_")
    }
}

/// A server of requests. Calls return at once, except [`Engine::drain`]; results arrive through the
/// sink.
pub trait Engine: Send + Sync {
    /// Description of the model and its limits.
    fn describe(&self) -> EngineDescription;

    /// Accepts a request, or returns the reason of refusal. Validation that needs the tokenizer may
    /// fail later, with `Failed` as the only event.
    ///
    /// # Errors
    /// The request is invalid, or the engine is full or draining.
    fn submit(&self, request: Request, events: EventSink) -> Result<(), EngineError>;

    /// Aborts a request and frees its resources; ignores unknown ids.
    fn abort(&self, id: RequestId);

    /// Releases the KV that this engine keeps for a request which it handed over. Called when
    /// another engine has read the KV or the request has ended. Ignores unknown ids.
    fn release(&self, _id: RequestId) {}

    /// Replaces the tenants: each gets its part of the region with its limits, and parts that are not
    /// among them lose their limits. Returns a sentence for each that is not as asked. Waits for the
    /// region's lock, or for workers, up to their deadlines. An engine without a region has no parts.
    fn set_tenants(&self, _tenants: &[Tenant]) -> Vec<String> {
        Vec::new()
    }

    /// Current gauges and counters.
    fn stats(&self) -> EngineStats;

    /// Whether all of the engine's parts work. Unlike [`Self::stats`] it never waits: an engine
    /// behind a socket returns the last value that it received.
    fn health(&self) -> Health {
        Health::Ok
    }

    /// Refuses new requests, and waits until the running ones end or the deadline passes. Returns
    /// whether all ended.
    fn drain(&self, deadline: Deadline) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_workers_of_a_host_counts_its_counters_once() {
        let stats = |reads: f64, running: f64| EngineStats {
            values: [("pool_reads_total", reads), ("requests_running", running)].map(|(n, v)| (n.to_owned(), v)).into(),
        };
        let mut sum = EngineStats::default();
        sum.merge(&stats(10.0, 2.0));
        sum.merge(&stats(9.0, 3.0));
        assert_eq!(sum, stats(10.0, 5.0));
    }
}
