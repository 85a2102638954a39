//! Azure's trace format (Splitwise, ISCA '24; Oaken §6.1 takes its batches from it): one line of
//! three values per request.
//!
//! The values are `TIMESTAMP,ContextTokens,GeneratedTokens`, with a timestamp such as
//! `2023-11-16 18:15:46.6805900`. The format has no block hashes, so the prompts share no blocks.

use super::{Builder, Read, TraceError, field_tokens, read_lines};
use std::io::BufRead;

const NANOS: u64 = 1_000_000_000;

/// Reads a trace. The first request arrives at 0. Invalid lines are skipped and listed, or are an
/// error if `strict` is set.
///
/// # Errors
/// Reading failed, the trace has no requests, or a line is invalid and `strict` is set.
pub fn read_azure(from: impl BufRead, block_tokens: u32, strict: bool) -> Result<Read, TraceError> {
    let mut read = read_lines(from, strict, Builder::new(block_tokens), |text, line, builder| {
        let text = std::str::from_utf8(text).map_err(|_| "not UTF-8".to_owned())?;
        if line == 1 && text.trim_start_matches('\u{feff}').starts_with("TIMESTAMP") {
            return Ok(());
        }
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let [timestamp, context, generated] = fields[..] else {
            return Err(format!("{} values instead of 3", fields.len()));
        };
        let arrival = nanoseconds(timestamp).ok_or_else(|| format!("`{timestamp}` is not a date and time"))?;
        let (input, output) = (field_tokens("ContextTokens", context)?, field_tokens("GeneratedTokens", generated)?);
        if input == 0 {
            return Err("ContextTokens is 0; a prompt has at least one token".to_owned());
        }
        builder.push_alone(arrival, input, output);
        Ok(())
    })?;
    read.workload.begin_at_zero();
    Ok(read)
}

/// `2023-11-16 18:15:46.6805900` as nanoseconds since 1970.
fn nanoseconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = time.trim_end_matches('Z').split_once('.').unwrap_or((time.trim_end_matches('Z'), ""));
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let sane = (1970..2500).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sane || hour > 23 || minute > 59 || second > 60 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(9)
        .fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0'));
    // Count years from March, so that the leap day is the last day of a year.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * NANOS + nanos)
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn dates_convert_to_nanoseconds_since_1970() {
        assert_eq!(nanoseconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(nanoseconds("2000-02-29 00:00:00.5"), Some(951_782_400_500_000_000));
        assert_eq!(nanoseconds("2024-03-01T00:00:00Z"), Some(1_709_251_200_000_000_000));
        let of = |text| nanoseconds(text).expect("a date");
        assert_eq!(of("2023-11-16 18:15:50.9951690") - of("2023-11-16 18:15:46.6805900"), 4_314_579_000);
        for wrong in ["", "2023-11-16", "2023-13-16 18:15:46", "2023-11-16 18:15", "2023-11-16 25:00:00", "x 18:15:46"]
        {
            assert_eq!(nanoseconds(wrong), None, "{wrong}");
        }
    }
}
