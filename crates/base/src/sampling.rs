//! How a client wants tokens chosen (vLLM's `SamplingParams`).

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sampling of one request. `Default` is OpenAI's default: temperature 1, nothing cut off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 means greedy. At most 2.
    pub temperature: f32,
    /// Smallest set of tokens whose probability reaches this; 1 keeps all. In (0, 1].
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: u32,
    /// Seed of the request; `None` lets the engine draw one.
    pub seed: Option<u64>,
    /// Texts at which generation ends; the text returned ends before them.
    pub stop: Vec<String>,
    /// Most tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<u32>,
    /// Go on past the model's end-of-sequence token (benchmarks).
    pub ignore_eos: bool,
    /// Taken from a token's logit for each time that it was generated. -2 to 2.
    pub frequency_penalty: f32,
    /// Taken from the logit of each token that was generated. -2 to 2.
    pub presence_penalty: f32,
    /// The logit of each token of prompt and output is divided by this, or multiplied where it is negative. Above 0;
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// Added to logits, by token. -100 to 100.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Tell the log-probability of each token, and of so many of the likeliest.
    pub logprobs: Option<u32>,
}

impl SamplingParams {
    /// Whether tokens are chosen by other logits than the model's.
    #[must_use]
    pub fn changes_logits(&self) -> bool {
        self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.repetition_penalty != 1.0
            || !self.logit_bias.is_empty()
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
            logprobs: None,
        }
    }
}
