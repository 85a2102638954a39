//! Log-probabilities in OpenAI's two shapes.

use super::Shape;
use cenote_base::engine::{TokenLogprob, TokenLogprobs};
use serde_json::{Map, Value, json};

/// Most likely tokens that a request may ask for: OpenAI's limit for chats, vLLM's for both
/// endpoints.
pub(super) const LOGPROBS_MAX: u32 = 20;

/// The `logprobs` of a choice or of a chunk; null if not requested. `offset`: characters of the
/// choice before it.
pub(super) fn body(shape: Shape, tokens: &[TokenLogprobs], offset: usize) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    match shape {
        Shape::Chat => {
            let content = tokens.iter().map(|token| {
                let mut body = chat(&token.chosen);
                body["top_logprobs"] = token.top.iter().map(chat).collect();
                body
            });
            json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
        }
        Shape::Completion => {
            let mut end = offset;
            let offsets = tokens.iter().map(|token| {
                let start = end;
                end += length(token);
                start
            });
            let offsets: Vec<usize> = offsets.collect();
            json!({
                "tokens": tokens.iter().map(|token| token.chosen.text.as_str()).collect::<Vec<_>>(),
                "token_logprobs": tokens.iter().map(|token| number(token.chosen.logprob)).collect::<Vec<_>>(),
                "top_logprobs": tokens.iter().map(by_text).collect::<Vec<_>>(),
                "text_offset": offsets,
            })
        }
    }
}

/// Characters that a token adds to the offset of the next.
pub(super) fn length(token: &TokenLogprobs) -> usize {
    token.chosen.text.chars().count()
}

fn chat(token: &TokenLogprob) -> Value {
    json!({ "token": token.text, "logprob": number(token.logprob), "bytes": token.text.as_bytes() })
}

/// The most likely tokens and the chosen one. Of those with the same text, only the most likely is
/// listed.
fn by_text(token: &TokenLogprobs) -> Value {
    let mut all = Map::new();
    for one in token.top.iter().chain([&token.chosen]) {
        all.entry(one.text.clone()).or_insert_with(|| number(one.logprob));
    }
    Value::Object(all)
}

/// JSON has no infinity; -9999 stands for it, as in OpenAI's answers.
fn number(logprob: f32) -> Value {
    json!(if logprob.is_finite() { logprob } else { -9999.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, logprob: f32, top: &[(&str, f32)]) -> TokenLogprobs {
        let one = |(text, logprob): (&str, f32)| TokenLogprob { text: text.to_owned(), logprob };
        TokenLogprobs { chosen: one((text, logprob)), top: top.iter().copied().map(one).collect() }
    }

    #[test]
    fn both_shapes_are_openais() {
        let tokens = [token("é", -1.5, &[("a", -0.5), ("é", -1.5)]), token(" b", f32::NEG_INFINITY, &[("c", -0.25)])];
        assert_eq!(
            body(Shape::Completion, &tokens, 3),
            json!({
                "tokens": ["é", " b"],
                "token_logprobs": [-1.5, -9999.0],
                "top_logprobs": [{"a": -0.5, "é": -1.5}, {"c": -0.25, " b": -9999.0}],
                "text_offset": [3, 4],
            })
        );
        assert_eq!(
            body(Shape::Chat, &tokens[..1], 0),
            json!({
                "content": [{
                    "token": "é", "logprob": -1.5, "bytes": [195, 169],
                    "top_logprobs": [
                        {"token": "a", "logprob": -0.5, "bytes": [97]},
                        {"token": "é", "logprob": -1.5, "bytes": [195, 169]},
                    ],
                }],
                "refusal": null,
            })
        );
        assert_eq!(body(Shape::Chat, &[], 0), Value::Null);
    }
}
