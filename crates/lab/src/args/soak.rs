//! Flags of `cenote-lab soak`.

use cenote_base::units::ByteSize;
use cenote_console::args::parse_seconds;
use cenote_console::output::OutputArgs;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct SoakArgs {
    /// Duration in hours, over all calls with the same folder
    #[arg(long, value_name = "H", default_value = "1", value_parser = parse_hours)]
    pub hours: f64,
    /// Instead of for a time, run until so many processes were killed and a host has restarted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "hours")]
    pub kills: Option<u64>,
    /// Seconds between two kills; a host restarts every twelfth time
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub kill_every: Duration,
    /// Folder of models, cold tier, samples and report; an ended run goes on where it was
    #[arg(long, value_name = "DIR", default_value = "soak")]
    pub resume: PathBuf,
    /// Bytes of the region; it should be smaller than the prompts' KV, so that it evicts
    #[arg(long, value_name = "SIZE", default_value = "96MiB")]
    pub size: ByteSize,
    /// Seed of prompts and kills
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::seed())]
    pub seed: u64,
    /// The demo model's folder, with `demo-engram` beside it [default: those of the checkout]
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// The command `cenote` [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn parse_hours(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(hours) if hours > 0.0 && hours <= 1000.0 => Ok(hours),
        _ => Err("must be above 0 and at most 1000".to_owned()),
    }
}
