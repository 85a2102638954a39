//! Results to stdout, messages to stderr. Tables, `--json` for programs, progress on a terminal.

pub mod quantity;
mod table;

pub use table::Table;

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Output of a command's result.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Print the result as JSON, or write it to FILE and print the table
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    #[allow(clippy::option_option, reason = "absent, without a file, with a file")]
    json: Option<Option<PathBuf>>,
}

impl OutputArgs {
    /// Prints `table`, or `data` as JSON, or both.
    pub fn show<T: Serialize>(&self, data: &T, table: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = || serde_json::to_string_pretty(data).map_err(|error| Failure::new(error.to_string()));
        match &self.json {
            None => print(&table()),
            Some(None) => print(&text()?),
            Some(Some(path)) => {
                std::fs::write(path, text()? + "\n")
                    .map_err(|error| Failure::new(format!("{}: cannot write the result: {error}", path.display())))?;
                print(&table())
            }
        }
    }

    /// Whether stdout carries JSON, so that nothing else may be printed there.
    pub const fn is_json_on_stdout(&self) -> bool {
        matches!(self.json, Some(None))
    }
}

/// An empty table with this header.
pub fn table(header: &[&str]) -> Table {
    Table::new(header)
}

/// A table of names and values.
pub fn facts(rows: &[(&str, String)]) -> String {
    table::facts(rows, table::width())
}

/// Prose as wide as the terminal, each line after `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    table::wrapped(text, indent, table::width())
}

/// A time in microseconds since 1970 as `2026-01-31 23:59:59.999999`, in UTC.
pub fn utc(time_us: u64) -> String {
    let (seconds, micros) = (time_us / 1_000_000, time_us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is a year's last: 400 of them have 146,097
    // days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// Prints a line to stdout. A reader that went away (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    match write(&mut std::io::stdout(), &format!("{text}\n")) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("stdout: cannot write the result: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn write(to: &mut impl Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Prints a message to stderr. Ignores errors of writing.
pub fn say(words: &str) {
    let _ = write(&mut std::io::stderr(), &format!("{words}\n"));
}

/// Prints advice to stderr.
pub fn hint(words: &str) {
    say(&format!("hint: {words}"));
}

/// Prints part of a command's output to stdout at once.
pub fn print_piece(text: &str) {
    // A reader that went away is no failure.
    let _ = write(&mut std::io::stdout(), text);
}

/// Prints a failure, in the format of all commands.
pub fn report_failure(failure: &Failure) {
    say(&format!("error: {failure}"));
    if let Some(advice) = failure.advice() {
        hint(advice);
    }
}

/// Progress of countable work that may take longer than a second; silent if stderr is no terminal.
/// It clears its line when dropped, even if the work fails.
pub fn progress(what: &'static str, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").expect("the template is ours");
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(steps) } else { ProgressBar::hidden() };
    bar.with_style(style).with_message(what).with_finish(ProgressFinish::AndClear)
}

/// Progress of work without steps. If stderr is no terminal, it is one line. It clears its line
/// when dropped.
pub fn spinner(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        say(&format!("{what} …"));
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what.to_owned()).with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Form of log lines.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, place, message and fields.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to stderr with this filter.
pub fn start_logging(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::new(format!("--log `{filter}`: {error}")))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call in one process (tests) keeps the first.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_printed_by_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00.000001"),
            (951_782_399, "2000-02-28 23:59:59.000001"),
            (951_782_400, "2000-02-29 00:00:00.000001"),
            (951_868_800, "2000-03-01 00:00:00.000001"),
            (1_704_067_199, "2023-12-31 23:59:59.000001"),
            (4_107_542_400, "2100-03-01 00:00:00.000001"),
        ] {
            assert_eq!(utc(seconds * 1_000_000 + 1), text);
        }
        assert!(utc(u64::MAX).ends_with(".551615"), "whatever a region says");
    }
}
