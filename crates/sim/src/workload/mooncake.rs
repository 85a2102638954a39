//! Mooncake's format (FAST '25): a line of JSON for each request.
//!
//! `timestamp` in milliseconds, `input_length` and `output_length` in tokens, `hash_ids` one number for each 512 tokens of the
//! prompt. The last one may stand for fewer.

use super::{Builder, Read, TraceError, read_lines, tokens};
use serde::Deserialize;
use std::io::BufRead;

/// Tokens of a block in the traces that Mooncake publishes.
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads a trace. Lines that are no request are left out and told, or end it if `strict`.
///
/// # Errors
/// The file cannot be read, has no requests, or a line is wrong and `strict` is set.
pub fn read_mooncake(from: impl BufRead, block_tokens: u32, strict: bool) -> Result<Read, TraceError> {
    read_lines(from, strict, Builder::new(block_tokens), |text, _, builder| {
        let line: Line = serde_json::from_slice(text).map_err(|error| without_place(&error))?;
        if !(0.0..1e15).contains(&line.timestamp) {
            return Err(format!("timestamp {} is no time in milliseconds", line.timestamp));
        }
        let input = tokens("input_length", line.input_length)?;
        let output = tokens("output_length", line.output_length)?;
        if input == 0 {
            return Err("input_length is 0: a prompt has a token".to_owned());
        }
        // Another count than the length says is no reason to leave a request out: its blocks are what they are.
        builder.odd_lengths += usize::from(line.hash_ids.len() != input.div_ceil(block_tokens) as usize);
        builder.push((line.timestamp * 1e6) as u64, input, output, &line.hash_ids);
        Ok(())
    })
}

/// The parser's words, without its own count of lines: it sees one at a time.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let column = error.column();
    match text.rsplit_once(" at line ") {
        Some((words, _)) => format!("{words} (column {column})"),
        None => text,
    }
}
