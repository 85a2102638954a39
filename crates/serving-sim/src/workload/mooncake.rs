//! Mooncake's trace format (FAST '25): one line of JSON per request.
//!
//! The fields are `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and
//! `hash_ids` with one number per 512 tokens of the prompt. The last block may have fewer tokens.

use super::times::of_milliseconds;
use super::{BadLine, Builder, Read, TraceError, read_lines, tokens, without_place};
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

/// Reads a trace. The first request arrives at 0. Invalid lines are skipped and listed, or are an
/// error if `strict` is set. Times with fractions are an error always: they are another unit's, and the
/// load would be a thousand times too high.
///
/// # Errors
/// Reading failed, the trace has no requests, a time has a fraction, or a line is invalid and `strict`
/// is set.
pub fn read_mooncake(from: impl BufRead, block_tokens: u32, strict: bool) -> Result<Read, TraceError> {
    let mut fraction = None;
    let mut read = read_lines(from, strict, Builder::new(block_tokens), |text, line_number, builder| {
        let line: Line = serde_json::from_slice(text).map_err(|error| without_place(&error))?;
        let arrival = of_milliseconds(line.timestamp).inspect_err(|what| {
            if line.timestamp.fract() != 0.0 {
                fraction.get_or_insert_with(|| BadLine { line: line_number, what: what.clone() });
            }
        })?;
        let input = tokens("input_length", line.input_length)?;
        let output = tokens("output_length", line.output_length)?;
        if input == 0 {
            return Err("input_length is 0; a prompt has at least one token".to_owned());
        }
        // Keep a request with a block count that does not match its length: its blocks are still
        // valid.
        builder.odd_lengths += usize::from(line.hash_ids.len() != input.div_ceil(block_tokens) as usize);
        builder.push(arrival, input, output, &line.hash_ids);
        Ok(())
    })?;
    if let Some(fraction) = fraction {
        return Err(fraction.into());
    }
    read.workload.begin_at_zero();
    Ok(read)
}
