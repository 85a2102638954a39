//! Times of traces, in nanoseconds. All formats with numbers as times use these functions.

use crate::kernel::Time;

/// Milliseconds, which have no fraction. Mooncake's traces count whole ones; some public traces have
/// the same fields with seconds.
///
/// # Errors
/// It has a fraction, is negative, or is beyond the year 2286.
pub(super) fn of_milliseconds(milliseconds: f64) -> Result<Time, String> {
    if !(0.0..1e13).contains(&milliseconds) {
        return Err(format!("timestamp {milliseconds} is not a time in milliseconds"));
    }
    if milliseconds.fract() != 0.0 {
        return Err(format!(
            "timestamp {milliseconds} has a fraction, and this format counts whole milliseconds; multiply times in \
             seconds by 1000"
        ));
    }
    Ok(milliseconds as u64 * 1_000_000)
}

/// Seconds, perhaps with a fraction. `None`: negative, or more than 30 years.
pub(super) fn of_seconds(seconds: f64) -> Option<Time> {
    (0.0..1e9).contains(&seconds).then_some((seconds * 1e9).round() as u64)
}
