//! Mooncake's trace format (FAST '25): one line of JSON per request.
//!
//! The fields are `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and
//! `hash_ids` with one number per 512 tokens of the prompt. The last block may have fewer tokens.

use super::{Builder, Read, TraceError, read_lines, tokens};
use serde::Deserialize;
use std::io::BufRead;

/// Tokens per block in Mooncake's published traces.
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads a trace. The first request arrives at 0. Invalid lines are skipped and listed, or are an error if `strict` is set.
///
/// # Errors
/// Reading failed, the trace has no requests, or a line is invalid and `strict` is set.
pub fn read_mooncake(from: impl BufRead, block_tokens: u32, strict: bool) -> Result<Read, TraceError> {
    let mut read = read_lines(from, strict, Builder::new(block_tokens), |text, _, builder| {
        let line: Line = serde_json::from_slice(text).map_err(|error| without_place(&error))?;
        // Up to the year 2286, if they count from 1970.
        if !(0.0..1e13).contains(&line.timestamp) {
            return Err(format!("timestamp {} is not a time in milliseconds", line.timestamp));
        }
        let input = tokens("input_length", line.input_length)?;
        let output = tokens("output_length", line.output_length)?;
        if input == 0 {
            return Err("input_length is 0; a prompt has at least one token".to_owned());
        }
        // Keep a request with a block count that does not match its length: its blocks are still
        // valid.
        builder.odd_lengths += usize::from(line.hash_ids.len() != input.div_ceil(block_tokens) as usize);
        // A date of today in nanoseconds has more digits than a float.
        let arrival = line.timestamp.trunc() as u64 * 1_000_000 + (line.timestamp.fract() * 1e6) as u64;
        builder.push(arrival, input, output, &line.hash_ids);
        Ok(())
    })?;
    read.workload.begin_at_zero();
    Ok(read)
}

/// The parser's message without its line number, which is always 1: it parses one line at a time.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let column = error.column();
    match text.rsplit_once(" at line ") {
        Some((words, _)) => format!("{words} (column {column})"),
        None => text,
    }
}
