//! Features that clients know and this server does not have. Each is refused by name unless its
//! value requests nothing, because ignoring it would silently change the answer.

use super::ApiError;
use super::request::type_name;
use serde_json::{Map, Value};

/// A value that requests nothing, besides null.
#[derive(Clone, Copy)]
enum Harmless {
    /// `false`.
    False,
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
    ("best_of", Harmless::Number(1.0)),
    ("prompt_logprobs", Harmless::False),
    ("echo", Harmless::False),
    ("suffix", Harmless::Empty),
    ("tools", Harmless::Empty),
    ("tool_choice", Harmless::Words(&["none", "auto"])),
    ("functions", Harmless::Empty),
    ("function_call", Harmless::Words(&["none", "auto"])),
    ("response_format", Harmless::TextFormat),
    ("modalities", Harmless::TextModality),
    ("audio", Harmless::Empty),
    ("web_search_options", Harmless::Empty),
    ("min_p", Harmless::Number(0.0)),
    ("min_tokens", Harmless::Number(0.0)),
    ("stop_token_ids", Harmless::Empty),
    ("use_beam_search", Harmless::False),
    ("guided_json", Harmless::Empty),
    ("guided_regex", Harmless::Empty),
    ("guided_choice", Harmless::Empty),
    ("guided_grammar", Harmless::Empty),
    ("structured_outputs", Harmless::Empty),
];

/// Refuses the first requested feature that is unsupported.
pub(super) fn refuse(extra: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, harmless) in FEATURES {
        let Some(value) = extra.get(*name) else { continue };
        if !harmless.allows(value) {
            let shown = match value {
                Value::Array(_) | Value::Object(_) => type_name(value).to_owned(),
                scalar => scalar.to_string(),
            };
            let fact = format!("{shown} is not supported by this server{}", harmless.hint());
            return Err(ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid(*name, fact) });
        }
    }
    Ok(())
}

impl Harmless {
    fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) | (Self::False, Value::Bool(false)) => true,
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
                "modalities": ["text"], "user": "someone", "metadata": {"a": "b"},
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
        ] {
            assert_eq!(refused(json!({ name: value })).as_deref(), Some(name));
        }
    }
}
