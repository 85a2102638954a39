//! Flags of the studies of the scheduler.

use super::{EngineArgs, positive};
use crate::output::OutputArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum StudyCommands {
    /// Watermarks: CPEN 511's Figures 5 to 10 redone, and all controllers beside fixed 1 %
    ///
    /// Loads that the learned watermark was not trained on are marked. Public traces come on top where they are named.
    Watermark(StudyWatermarkArgs),
    /// Whether the next request to be swapped in can be foreseen: CPEN 511's Figures 3 and 4 redone
    Swap(StudySwapArgs),
    /// How far the simulator is from the reference engine: the same requests at the same times through both
    ///
    /// The engine is timed first, as by `sim --calibrate`, and serves over HTTP. Two loads: requests that come one after the other, and
    /// all at once. Exits with 0 whatever the deviation; `goal` says whether it is within 15 %.
    Engine(Box<StudyEngineArgs>),
}

#[derive(Args, Debug)]
pub struct StudyEngineArgs {
    /// Requests of each load
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=512))]
    pub requests: u32,
    /// Requests a second that come one after the other; if not given, --share of what the engine can do
    #[arg(long, value_name = "R", value_parser = super::sim::parse_rate)]
    pub rate: Option<f64>,
    /// Share of the engine's throughput, as simulated, that comes where --rate is not given
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub share: f64,
    /// Tokens of a prompt, on average
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Tokens of an answer, on average
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..))]
    pub answer_tokens: u32,
    /// Seed of lengths and times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Times that all is done, calibration and loads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// What --calibrate wrote, instead of timing the engine now
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyWatermarkArgs {
    /// Train the learned watermark instead, and write its weights as a source file
    #[arg(long, value_name = "FILE")]
    pub train: Option<PathBuf>,
    /// Generations of the training
    #[arg(long, value_name = "N", default_value_t = 20, requires = "train", value_parser = positive)]
    pub generations: usize,
    /// Seed of the training
    #[arg(long, value_name = "N", default_value_t = 3, requires = "train")]
    pub seed: u64,
    /// A trace in Mooncake's format to hold out
    #[arg(long, value_name = "FILE")]
    pub mooncake: Option<PathBuf>,
    /// A trace in Azure's format to hold out
    #[arg(long, value_name = "FILE")]
    pub azure: Option<PathBuf>,
    /// Runs of each point of the figures; 0 leaves the figures out
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub repeats: u64,
    /// Instead, one point of each figure on the reference engine, which serves the demo model in little memory and really swaps, beside
    /// the simulator with this machine's calibration
    #[arg(long, conflicts_with_all = ["train", "mooncake", "azure", "html"])]
    pub real: bool,
    /// Write tables and figures as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudySwapArgs {
    /// Traces to learn from, each of 400 prompts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: u64,
    /// Learn from what the reference engine swaps when it serves the demo model in little memory
    #[arg(long)]
    pub real: bool,
    /// Learn from traces that engines wrote (`serve --swap-trace`)
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',', conflicts_with_all = ["real", "repeats"])]
    pub trace: Vec<PathBuf>,
    /// Write the table and figures as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}
