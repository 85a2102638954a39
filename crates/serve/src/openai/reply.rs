//! Answers in OpenAI's shape, complete and in chunks.

use super::logprobs;
use cenote_base::engine::{FinishReason, TokenLogprobs, Usage};
use serde_json::{Value, json};

/// Which endpoint's shape an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `text_completion`.
    Completion,
    /// `chat.completion` and its chunks.
    Chat,
}

/// Fields that all parts of one answer carry.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The shape.
    pub shape: Shape,
    /// `cmpl-…` or `chatcmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Model name.
    pub model: String,
    /// Whether chunks announce the usage that follows (`"usage": null`), as OpenAI's do.
    pub include_usage: bool,
}

/// One finished choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The complete text.
    pub text: String,
    /// The reason that it ended.
    pub reason: Option<FinishReason>,
    /// Log-probabilities of each token, if requested.
    pub logprobs: Vec<TokenLogprobs>,
}

/// One token's contribution to a choice.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Text that became certain with this token.
    pub text: &'a str,
    /// Its log-probabilities, if requested.
    pub logprobs: Option<&'a TokenLogprobs>,
    /// Characters of the tokens before it.
    pub offset: usize,
}

impl Piece<'_> {
    /// Characters that a token adds to the offset of the next.
    #[must_use]
    pub fn characters(token: &TokenLogprobs) -> usize {
        logprobs::length(token)
    }
}

impl Reply {
    /// The complete answer.
    #[must_use]
    pub fn whole(&self, answers: &[Answer], usage: Usage) -> Value {
        let choices = answers.iter().enumerate().map(|(index, answer)| {
            let reason = answer.reason.map(reason_name);
            let logprobs = logprobs::body(self.shape, &answer.logprobs, 0);
            match self.shape {
                Shape::Completion => {
                    json!({ "index": index, "text": answer.text, "logprobs": logprobs, "finish_reason": reason })
                }
                Shape::Chat => json!({
                    "index": index,
                    "message": { "role": "assistant", "content": answer.text, "refusal": null },
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
            }
        });
        json!({
            "id": self.id,
            "object": match self.shape { Shape::Completion => "text_completion", Shape::Chat => "chat.completion" },
            "created": self.created,
            "model": self.model,
            "choices": choices.collect::<Vec<_>>(),
            "usage": usage_body(usage),
        })
    }

    /// The chunk that opens a choice; only conversations have one.
    #[must_use]
    pub fn opening(&self, index: usize) -> Option<Value> {
        match self.shape {
            Shape::Completion => None,
            Shape::Chat => Some(self.chunk(json!([{
                "index": index,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            }]))),
        }
    }

    /// A chunk of text.
    #[must_use]
    pub fn text(&self, index: usize, piece: Piece<'_>) -> Value {
        let Piece { text, logprobs, offset } = piece;
        let logprobs = logprobs::body(self.shape, logprobs.map_or(&[], std::slice::from_ref), offset);
        self.chunk(match self.shape {
            Shape::Completion => json!([{ "index": index, "text": text, "logprobs": logprobs, "finish_reason": null }]),
            Shape::Chat => {
                json!([{ "index": index, "delta": { "content": text }, "logprobs": logprobs, "finish_reason": null }])
            }
        })
    }

    /// The chunk that ends a choice.
    #[must_use]
    pub fn ending(&self, index: usize, reason: FinishReason) -> Value {
        let reason = reason_name(reason);
        self.chunk(match self.shape {
            Shape::Completion => json!([{ "index": index, "text": "", "logprobs": null, "finish_reason": reason }]),
            Shape::Chat => json!([{ "index": index, "delta": {}, "logprobs": null, "finish_reason": reason }]),
        })
    }

    /// The chunk with token counts.
    #[must_use]
    pub fn counts(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage_body(usage);
        chunk
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": match self.shape {
                Shape::Completion => "text_completion",
                Shape::Chat => "chat.completion.chunk",
            },
            "created": self.created,
            "model": self.model,
        });
        chunk["choices"] = choices;
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        // A hand-over that reaches a client is a router's bug; the answer is then cut short.
        FinishReason::Length | FinishReason::HandOver => "length",
    }
}

fn usage_body(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
    })
}
