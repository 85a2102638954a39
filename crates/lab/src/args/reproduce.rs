//! Flags of `reproduce`.

use super::seed;
use cenote_console::args::positive;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct ReproduceArgs {
    /// Papers, experiments, tables or rows, as in `speckv`, `speckv.table3` [default: all]
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Seed of loads and drawn values
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    pub seed: u64,
    /// Draw one seed instead of ten, and leave out costly settings; values have no intervals
    #[arg(long, conflicts_with = "markdown")]
    pub quick: bool,
    /// Threads; results do not depend on them [default: processors]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Write all rows with their verdicts as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write tables and plots as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace the generated tables of this Markdown file; papers that are selected whole
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print the experiments and what they compute, and run nothing
    #[arg(long)]
    pub list: bool,
}
