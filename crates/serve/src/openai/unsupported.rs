//! Fields that clients know and this server does not have.
//!
//! Each is refused by name unless its value requests nothing, because ignoring it would silently change the
//! answer. Those that never change an answer are in [`IGNORED`]. Every field of vLLM's requests is in one of
//! these tables or in [`super::Body`]; a test compares them with vLLM's.

use super::ApiError;
use super::request::type_name;
use serde_json::{Map, Value};

/// A value that requests nothing, besides null.
#[derive(Clone, Copy)]
enum Harmless {
    /// `false`.
    False,
    /// `true`.
    True,
    /// This number, usually the only one that works.
    Number(f64),
    /// An empty text, array or object.
    Empty,
    /// One of these texts, or none.
    Words(&'static [&'static str]),
    /// `{"type": "text"}`.
    TextFormat,
    /// `["text"]`.
    TextModality,
}

const FEATURES: &[(&str, Harmless)] = &[
    // The prompt.
    ("prompt_embeds", Harmless::Empty),
    ("truncate_prompt_tokens", Harmless::Empty),
    ("chat_template", Harmless::Empty),
    ("chat_template_kwargs", Harmless::Empty),
    ("documents", Harmless::Empty),
    ("reasoning_effort", Harmless::Empty),
    ("media_io_kwargs", Harmless::Empty),
    ("mm_processor_kwargs", Harmless::Empty),
    ("mm_payload", Harmless::Empty),
    ("tools", Harmless::Empty),
    ("tool_choice", Harmless::Words(&["none", "auto"])),
    ("functions", Harmless::Empty),
    ("function_call", Harmless::Words(&["none", "auto"])),
    ("web_search_options", Harmless::Empty),
    // The choice of tokens.
    ("best_of", Harmless::Number(1.0)),
    ("use_beam_search", Harmless::False),
    ("min_p", Harmless::Number(0.0)),
    ("min_tokens", Harmless::Number(0.0)),
    ("bad_words", Harmless::Empty),
    ("stop_token_ids", Harmless::Empty),
    ("logits_processors", Harmless::Empty),
    ("repetition_detection", Harmless::Empty),
    ("thinking_token_budget", Harmless::Number(-1.0)),
    ("watermarking", Harmless::False),
    ("response_format", Harmless::TextFormat),
    ("structured_outputs", Harmless::Empty),
    ("structural_tag", Harmless::Empty),
    ("guided_json", Harmless::Empty),
    ("guided_regex", Harmless::Empty),
    ("guided_choice", Harmless::Empty),
    ("guided_grammar", Harmless::Empty),
    ("guided_decoding_backend", Harmless::Empty),
    ("guided_whitespace_pattern", Harmless::Empty),
    ("verbosity", Harmless::Words(&["medium"])),
    ("vllm_xargs", Harmless::Empty),
    // The answer.
    ("echo", Harmless::False),
    ("suffix", Harmless::Empty),
    ("include_stop_str_in_output", Harmless::False),
    ("skip_special_tokens", Harmless::True),
    ("prompt_logprobs", Harmless::False),
    ("logprob_token_ids", Harmless::Empty),
    ("return_token_ids", Harmless::False),
    ("return_tokens_as_token_ids", Harmless::False),
    ("return_prompt_text", Harmless::False),
    ("routed_experts_prompt_start", Harmless::Number(0.0)),
    ("stream_interval", Harmless::Number(1.0)),
    ("modalities", Harmless::TextModality),
    ("audio", Harmless::Empty),
    // The course of the request.
    ("priority", Harmless::Number(0.0)),
    ("kv_transfer_params", Harmless::Empty),
    ("ec_transfer_params", Harmless::Empty),
];

/// Fields that change no answer of this server, with any value, and why.
pub(super) const IGNORED: &[(&str, &str)] = &[
    ("user", "a name for the provider's statistics"),
    ("request_id", "a name for the client's own log"),
    ("session_id", "a hint for routing, and for what to keep"),
    ("length_penalty", "only beam search has one"),
    ("early_stopping", "only beam search has one"),
    ("spaces_between_special_tokens", "special tokens are never shown"),
    ("truncation_side", "nothing is truncated"),
    ("parallel_tool_calls", "no tools are called"),
    ("include_reasoning", "no reasoning is set apart"),
    ("return_token_offsets", "vLLM has it for other endpoints"),
    ("return_mm_kwargs", "vLLM has it for other endpoints"),
];

/// Whether this server knows a field that is not in [`super::Body`].
#[must_use]
pub fn is_known(name: &str) -> bool {
    FEATURES.iter().any(|(known, _)| *known == name) || IGNORED.iter().any(|(known, _)| *known == name)
}

/// Refuses the first requested feature that is unsupported.
pub(super) fn refuse(extra: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, harmless) in FEATURES {
        let Some(value) = extra.get(*name) else { continue };
        if !harmless.allows(value) {
            return Err(unsupported(*name, value, &harmless.hint()));
        }
    }
    Ok(())
}

/// A field whose value this server does not support.
pub(super) fn unsupported(name: impl Into<String>, value: &Value, hint: &str) -> ApiError {
    let shown = match value {
        Value::Array(_) | Value::Object(_) => type_name(value).to_owned(),
        // The client knows its text; a long one would hide the error.
        Value::String(text) if text.chars().count() > 60 => type_name(value).to_owned(),
        scalar => scalar.to_string(),
    };
    let fact = format!("{shown} is not supported by this server{hint}");
    ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid(name, fact) }
}

impl Harmless {
    fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) | (Self::False, Value::Bool(false)) | (Self::True, Value::Bool(true)) => true,
            (Self::Number(only), Value::Number(number)) => number.as_f64() == Some(only),
            (Self::Empty | Self::Words(_), Value::String(text)) if text.is_empty() => true,
            (Self::Empty, Value::Array(items)) => items.is_empty(),
            (Self::Empty, Value::Object(fields)) => fields.is_empty(),
            (Self::Words(words), Value::String(text)) => words.contains(&text.as_str()),
            (Self::TextFormat, Value::Object(fields)) => fields.get("type").is_some_and(|kind| kind == "text"),
            (Self::TextModality, Value::Array(items)) => items.iter().all(|item| item == "text"),
            _ => false,
        }
    }

    fn hint(self) -> String {
        match self {
            Self::False => "; leave it out or send false".to_owned(),
            Self::True => "; leave it out or send true".to_owned(),
            Self::Number(only) => format!("; leave it out or send {only}"),
            Self::Empty => "; leave it out".to_owned(),
            Self::Words(words) => format!("; leave it out or send {}", words.join(" or ")),
            Self::TextFormat => "; only {\"type\": \"text\"}".to_owned(),
            Self::TextModality => "; only [\"text\"]".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(value: Value) -> Option<String> {
        let Value::Object(extra) = value else { panic!("an object was meant") };
        refuse(&extra).err().and_then(|error| error.param)
    }

    #[test]
    fn values_that_request_nothing_are_allowed() {
        assert_eq!(
            refused(json!({
                "best_of": 1, "prompt_logprobs": null, "echo": false, "suffix": "", "min_p": 0.0,
                "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "min_tokens": 0,
                "modalities": ["text"], "user": "someone", "metadata": {"a": "b"}, "skip_special_tokens": true,
                "bad_words": [], "priority": 0, "thinking_token_budget": -1, "chat_template_kwargs": {},
            })),
            None
        );
    }

    #[test]
    fn unsupported_features_are_refused_by_name() {
        for (name, value) in [
            ("best_of", json!(3)),
            ("best_of", json!(0)),
            ("best_of", json!("one")),
            ("prompt_logprobs", json!(0)),
            ("prompt_logprobs", json!(true)),
            ("echo", json!(true)),
            ("suffix", json!("end")),
            ("tools", json!([{"type": "function"}])),
            ("tool_choice", json!("required")),
            ("functions", json!([{}])),
            ("response_format", json!({"type": "json_object"})),
            ("modalities", json!(["text", "audio"])),
            ("audio", json!({"voice": "x"})),
            ("min_p", json!(0.1)),
            ("prompt_embeds", json!("AAAA")),
            ("truncate_prompt_tokens", json!(4)),
            ("truncate_prompt_tokens", json!(-1)),
            ("bad_words", json!(["the"])),
            ("include_stop_str_in_output", json!(true)),
            ("skip_special_tokens", json!(false)),
            ("chat_template", json!("{{ messages }}")),
            ("chat_template_kwargs", json!({"enable_thinking": false})),
            ("documents", json!([{"title": "a", "text": "b"}])),
            ("reasoning_effort", json!("low")),
            ("priority", json!(1)),
            ("kv_transfer_params", json!({"do_remote_decode": true})),
            ("logprob_token_ids", json!([1])),
            ("return_token_ids", json!(true)),
        ] {
            assert_eq!(refused(json!({ name: value })).as_deref(), Some(name));
        }
    }

    #[test]
    fn no_field_is_in_two_tables() {
        let mut names: Vec<&str> = FEATURES.iter().map(|(name, _)| *name).collect();
        names.extend(IGNORED.iter().map(|(name, _)| *name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
