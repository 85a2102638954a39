//! JSON as Python writes it.

use crate::error::PlanError;
use serde_json::{Map, Value};

/// Words that Python writes for numbers that JSON lacks.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The object in a text in which numbers may be infinite or not a number; those are read as null.
pub(crate) fn object(text: &[u8]) -> Result<Map<String, Value>, PlanError> {
    serde_json::from_slice(&finite(text)).map_err(|error| PlanError::Json(error.to_string()))
}

/// Replaces these words outside of strings.
fn finite(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let (mut at, mut in_string) = (0, false);
    while at < text.len() {
        if !in_string && let Some(word) = WORDS.iter().find(|word| text[at..].starts_with(word)) {
            out.extend_from_slice(b"null");
            at += word.len();
            continue;
        }
        out.push(text[at]);
        if in_string && text[at] == b'\\' {
            at += 1;
            out.extend(text.get(at));
        } else if text[at] == b'"' {
            in_string = !in_string;
        }
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn infinite_numbers_are_null_and_strings_stay() {
        let text = br#"{"a": [0.0, Infinity, NaN], "b": -Infinity, "NaN": "Infinity \" NaN", "c": 1}"#;
        let expected = json!({ "a": [0.0, null, null], "b": null, "NaN": "Infinity \" NaN", "c": 1 });
        assert_eq!(Value::Object(object(text).unwrap()), expected);
        assert!(object(br#"{"a": Infinite}"#).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = object(&text);
        }

        #[test]
        fn json_stays_as_it_is(text in "[a-zA-Z\"\\\\ ]{0,20}", number in any::<i32>()) {
            let value = json!({ text: [number, null, true] });
            prop_assert_eq!(Value::Object(object(value.to_string().as_bytes()).unwrap()), value);
        }
    }
}
