//! Flags of the commands that observe a region: `top`, `stat`, `ui`, `doctor`.

use cenote_console::args::{RegionArgs, parse_seconds};
use cenote_console::output::OutputArgs;
use cenote_store::cold::Settings;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub every: Duration,
    /// Print one picture, of an interval of --every, and end
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StatArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Seconds between two lines
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub every: Duration,
    /// Number of lines [default: until SIGINT or SIGTERM]
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print each line as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct UiArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Address to listen on; port 0 picks one and prints it. All that can reach it can read the page
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9471")]
    pub listen: SocketAddr,
    /// Seconds between two looks while a browser shows the page
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub every: Duration,
}

#[derive(Args, Debug)]
pub struct RecordArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The file to write; `-`: standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// Record for so many seconds from now on
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "follow")]
    pub seconds: Option<Duration>,
    /// Record from now on, until SIGINT or SIGTERM
    #[arg(long, short)]
    pub follow: bool,
    /// The model: its name, its number, or a prefix of its fingerprint, as in `pool info` [default: the one
    /// with the most requests]
    #[arg(long, value_name = "NAMESPACE")]
    pub model: Option<String>,
    /// Write a sample of blocks too, if the region has recorded no more: for a cache of that part of the
    /// size
    #[arg(long)]
    pub sampled: bool,
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Seconds for which a region is observed
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    pub every: Duration,
    /// Cold tier of the region's users, to see whether it can be read and its disk has room
    #[arg(long, value_name = "PLACE")]
    pub cold: Option<Settings>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Seconds between two looks: each reads 64 bytes of every block.
fn interval(text: &str) -> Result<Duration, String> {
    match parse_seconds(text)? {
        interval if interval < Duration::from_millis(100) => Err("must be at least 0.1 seconds".to_owned()),
        interval => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_leaves_time_for_a_look() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert!(interval("0").is_err() && interval("0.05").is_err() && interval("soon").is_err());
    }
}
