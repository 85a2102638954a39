//! BurstGPT's trace format (KDD '25; Oaken §6.1 takes batches from it): CSV with named columns.
//!
//! `Timestamp` is in seconds from the first day's midnight, `Request tokens` and `Response tokens`
//! are lengths. Release 1.1 has `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`;
//! later ones add columns, so the names in the first line decide. The format has no block hashes, so
//! the prompts share no blocks.

use super::times::of_seconds;
use super::{BadLine, Builder, Read, TraceError, field_tokens, read_lines};
use std::io::BufRead;

/// The columns that a request needs, in the order of their use.
const NEEDED: [&str; 3] = ["Timestamp", "Request tokens", "Response tokens"];
/// Their places in release 1.1, for a file without names.
const PLACES: [usize; 3] = [0, 2, 3];

/// Reads a trace. The first request arrives at 0. Invalid lines are skipped and listed, or are an
/// error if `strict` is set. A failed request has no response tokens, so its line is invalid; the
/// files `BurstGPT_without_fails_*.csv` have none.
///
/// # Errors
/// Reading failed, the trace has no requests, or a line is invalid and `strict` is set.
pub fn read_burstgpt(from: impl BufRead, block_tokens: u32, strict: bool) -> Result<Read, TraceError> {
    let (mut places, mut width, mut lacking) = (PLACES, None, None);
    let mut read = read_lines(from, strict, Builder::new(block_tokens), |text, line, builder| {
        let text = std::str::from_utf8(text).map_err(|_| "not UTF-8".to_owned())?;
        let fields = text.trim_start_matches('\u{feff}').split(',');
        let fields: Vec<&str> = fields.map(|field| field.trim().trim_matches('"')).collect();
        if line == 1 && fields.contains(&NEEDED[0]) {
            for (place, name) in places.iter_mut().zip(NEEDED) {
                match fields.iter().position(|field| *field == name) {
                    Some(found) => *place = found,
                    None => lacking = Some(name),
                }
            }
            width = Some(fields.len());
            return Ok(());
        }
        let expected = width.unwrap_or(6);
        if fields.len() != expected {
            return Err(format!("{} values instead of {expected}", fields.len()));
        }
        let [seconds, request, response] = places.map(|place| fields[place]);
        let arrival = seconds.parse().ok().and_then(of_seconds);
        let arrival = arrival.ok_or_else(|| format!("`{seconds}` is not a time in seconds"))?;
        let (input, output) = (field_tokens(NEEDED[1], request)?, field_tokens(NEEDED[2], response)?);
        if input == 0 || output == 0 {
            return Err("a failed request, without tokens".to_owned());
        }
        builder.push_alone(arrival, input, output);
        Ok(())
    })?;
    // Without its columns no line means anything.
    if let Some(name) = lacking {
        return Err(BadLine { line: 1, what: format!("no column `{name}`") }.into());
    }
    read.workload.begin_at_zero();
    Ok(read)
}
