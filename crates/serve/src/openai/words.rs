//! Errors of request fields in the client's words. The parser's own messages name Rust types.

/// Translates the parser's message to the actual and the expected value.
pub(super) fn fact(parser: &str) -> String {
    // Clients know fields; line numbers come from a library that formatted the body.
    let fact = parser.rsplit_once(" at line ").map_or(parser, |(fact, _)| fact);
    if let Some(rest) = fact.strip_prefix("invalid type: ").or_else(|| fact.strip_prefix("invalid value: "))
        && let Some((found, expected)) = rest.rsplit_once(", expected ")
    {
        return format!("{} instead of {}", found_words(found), expected_words(expected));
    }
    if let Some(rest) = fact.strip_prefix("unknown variant ")
        && let Some((found, expected)) = rest.split_once(", expected ")
    {
        let expected = expected.trim_start_matches("one of ").replace('`', "");
        return format!("{found} is not one of: {}", expected.replace(" or ", ", "));
    }
    if fact.starts_with("missing field ") {
        return "missing".to_owned();
    }
    if fact.starts_with("duplicate field ") {
        return "given more than once".to_owned();
    }
    "not of the type that this field has".to_owned()
}

/// The field in the parser's message; the path then leads only to the surrounding object.
pub(super) fn named_field(parser: &str) -> Option<&str> {
    let rest = parser.strip_prefix("missing field `").or_else(|| parser.strip_prefix("duplicate field `"))?;
    rest.split('`').next()
}

fn found_words(found: &str) -> String {
    let (kind, value) = found.split_once(" `").map_or((found, ""), |(kind, value)| (kind, value.trim_end_matches('`')));
    match kind {
        "integer" | "floating point" => value.to_owned(),
        "boolean" => "a boolean".to_owned(),
        "null" | "unit value" | "Option value" => "null".to_owned(),
        "sequence" => "an array".to_owned(),
        "map" | "newtype struct" | "enum" => "an object".to_owned(),
        _ if kind.starts_with("string ") || kind == "character" => "a text".to_owned(),
        _ => "a value".to_owned(),
    }
}

fn expected_words(expected: &str) -> String {
    let integer = |from: String, to: String| format!("an integer from {from} to {to}");
    match expected {
        "u8" => integer(0.to_string(), u8::MAX.to_string()),
        "u16" => integer(0.to_string(), u16::MAX.to_string()),
        "u32" => integer(0.to_string(), u32::MAX.to_string()),
        "u64" | "usize" => integer(0.to_string(), u64::MAX.to_string()),
        "i32" => integer(i32::MIN.to_string(), i32::MAX.to_string()),
        "i64" | "isize" => integer(i64::MIN.to_string(), i64::MAX.to_string()),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "a borrowed string" | "a character" => "a text".to_owned(),
        "a sequence" => "an array".to_owned(),
        "a map" => "an object".to_owned(),
        _ if expected.starts_with("struct ") => "an object".to_owned(),
        _ if expected.starts_with("tuple ") || expected.starts_with("an array ") => "an array".to_owned(),
        _ => "another type".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_in_the_clients_words() {
        for (parser, told) in [
            (
                "invalid type: string \"x\", expected u32 at line 1 column 9",
                "a text instead of an integer from 0 to 4294967295",
            ),
            ("invalid type: string \"a, expected b\", expected f64", "a text instead of a number"),
            ("invalid value: integer `-1`, expected u32 at line 1", "-1 instead of an integer from 0 to 4294967295"),
            ("invalid type: floating point `0.5`, expected u8", "0.5 instead of an integer from 0 to 255"),
            ("invalid type: null, expected a string", "null instead of a text"),
            ("invalid type: map, expected a sequence", "an object instead of an array"),
            ("invalid type: sequence, expected struct Body", "an array instead of an object"),
            ("invalid type: boolean `true`, expected a string", "a boolean instead of a text"),
            ("invalid type: integer `1`, expected a boolean", "1 instead of true or false"),
            ("unknown variant `x`, expected `low` or `high`", "`x` is not one of: low, high"),
            ("unknown variant `x`, expected one of `a`, `b`, `c`", "`x` is not one of: a, b, c"),
            ("missing field `model` at line 1 column 2", "missing"),
            ("duplicate field `model` at line 1 column 2", "given more than once"),
            ("cannot parse core::Thing", "not of the type that this field has"),
        ] {
            assert_eq!(fact(parser), told, "{parser}");
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        assert_eq!(named_field("missing field `model` at line 1"), Some("model"));
        assert_eq!(named_field("duplicate field `seed`"), Some("seed"));
        assert_eq!(named_field("invalid type: null, expected u32"), None);
    }
}
