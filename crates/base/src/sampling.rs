//! Sampling parameters of a request (vLLM's `SamplingParams`).

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sampling parameters. `Default` is OpenAI's default: temperature 1, no truncation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 means greedy. At most 2.
    pub temperature: f32,
    /// Keeps the smallest set of tokens with at least this total probability; 1 keeps all. In (0,
    /// 1].
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: u32,
    /// Seed of the request; `None` lets the engine draw one.
    pub seed: Option<u64>,
    /// Texts that end generation. The returned text ends before them.
    pub stop: Vec<String>,
    /// Maximum number of tokens to generate; `None` continues to the end of the context.
    pub max_tokens: Option<u32>,
    /// Continue past the model's end-of-sequence token (for benchmarks).
    pub ignore_eos: bool,
    /// Subtracted from a token's logit for each time that the token was generated. -2 to 2.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each generated token. -2 to 2.
    pub presence_penalty: f32,
    /// Divides positive logits of tokens in prompt and output, and multiplies negative ones. Above
    /// 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Added to logits, by token. -100 to 100.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// The only tokens that may be chosen, in ascending order; `None` allows all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Number of the likeliest tokens to report per position, beside the chosen one; `None` reports
    /// no log-probabilities.
    pub logprobs: Option<u32>,
}

impl SamplingParams {
    /// Whether sampling changes the model's logits before it chooses a token.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.repetition_penalty != 1.0
            || !self.logit_bias.is_empty()
            || self.allowed_token_ids.is_some()
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            seed: None,
            stop: Vec::new(),
            max_tokens: None,
            ignore_eos: false,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            allowed_token_ids: None,
            logprobs: None,
        }
    }
}
