//! Flags of the studies of the scheduler.

use super::positive;
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
    /// Write the table and figures as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}
