//! How a client wants tokens chosen (vLLM's `SamplingParams`).

use serde::{Deserialize, Serialize};

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
        }
    }
}
