//! The flags of `cenote-lab`, with the variables that set them. The doc comments are the text of
//! `--help`.

mod bench;
mod plan;
mod reproduce;
mod sessions;
mod sim;
mod soak;
mod study;
mod torture;

pub use bench::{
    BenchChildArgs, BenchCodecArgs, BenchCommands, BenchCoreArgs, BenchPredictArgs, BenchTiersArgs, BenchTraceArgs,
    BenchTtftArgs, EngramLoadChildArgs, PageElementArg, ReachShareChildArgs, RivalArg, TiersPart,
};
pub use plan::{PlanCommands, PlanRackArgs, StatisticArg};
pub use reproduce::ReproduceArgs;
pub use sessions::BenchSessionsArgs;
pub use sim::{CapacityArg, InstantArg, LoadArg, RoutingArg, SimArgs, pool_name};
pub use soak::SoakArgs;
pub use study::{
    ComparedLoadArgs, ScaleMemory, StudyAgentsArgs, StudyBudgetArgs, StudyCommands, StudyEngineArgs, StudyOakenArgs,
    StudyPrefetchArgs, StudyRecordArgs, StudyScaleArgs, StudyServerArgs, StudySparseArgs, StudySwapArgs,
    StudyWatermarkArgs, StudyWeightsArgs,
};
pub use torture::{ColdChildArgs, ColdFullChildArgs, TortureArgs, TortureChildArgs};

use cenote_console::args::{CompletionsArgs, ManArgs, StudiedModelArgs, positive};
use cenote_console::output::OutputArgs;
use cenote_console::program::ProcessArgs;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Seeds. Repeated runs count on from one.
fn seed() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..1 << 53)
}

/// Measurements, studies and simulations of Cenote.
#[derive(Parser, Debug)]
#[command(name = "cenote-lab", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(subcommand)]
    pub command: Commands,
}

#[derive(Subcommand, Debug)]
pub enum Commands {
    /// Measure codecs on a model: compression, divergence and loss on a text
    Eval(EvalArgs),
    /// Choose a codec for each layer of a model, and write a table for `--codec auto`
    ///
    /// The harm of single layers adds up only approximately. Each choice is measured with all
    /// layers together, and the budget of the layers shrinks until all choices hold the limit on
    /// this text.
    Choose(ChooseArgs),
    /// Write a copy of a model with outlier key channels, as large models have
    Outliers(OutliersArgs),
    /// Write a model with random weights, for measurements of speed
    RandomModel(RandomModelArgs),
    /// Simulate engines and a shared pool under a load or a trace
    ///
    /// Scheduler, eviction and watermarks are the code that serves; engines and links are models
    /// (docs/evidence/simulator.md). The same flags and seed print the same bytes.
    Sim(Box<SimArgs>),
    /// Plan a rack for a load, by simulation; `cenote plan` plans tables and KV
    #[command(subcommand)]
    Plan(PlanCommands),
    /// Recompute tables and figures of five papers, with a verdict for each row
    ///
    /// The policies are the product's, the hardware is modelled (docs/evidence/papers.md). The same
    /// seed gives the same bytes. Times go to stderr.
    Reproduce(ReproduceArgs),
    /// Study the scheduler in the simulator and the engine: watermarks, swap prediction, deviation
    #[command(subcommand)]
    Study(StudyCommands),
    /// Measure the pool, the codecs and the engine beside what the machine can do
    #[command(subcommand)]
    Bench(BenchCommands),
    /// Kill processes at work on a full region, and check for wrong bytes, leaks and hangs
    ///
    /// Exits with 3 if bytes were wrong or memory leaked, 4 if a process hung, and 5 if a run of a
    /// minute or more had too few deaths or a region that was not full.
    Torture(Box<TortureArgs>),
    /// Serve three models by four engines for hours while processes and a host die, and plot what changes
    ///
    /// Every answer is compared with the one without the region. Exits with 3 if an answer was wrong, memory
    /// leaked or a process failed, 4 if a request got no answer, and 5 if memory, descriptors, hit rate or
    /// latency did not stay flat in half an hour or more.
    Soak(Box<SoakArgs>),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a manual page, or write the pages of all commands
    Man(ManArgs),
    /// Child process of `torture`
    #[command(hide = true)]
    TortureChild(TortureChildArgs),
    /// Child process of `torture --cold`
    #[command(hide = true)]
    ColdChild(ColdChildArgs),
    /// Child process of `bench cold`
    #[command(hide = true)]
    ColdFullChild(ColdFullChildArgs),
    /// Child process of `bench engram`
    #[command(hide = true)]
    EngramLoadChild(EngramLoadChildArgs),
    /// Child process of `bench reach`
    #[command(hide = true)]
    ReachShareChild(ReachShareChildArgs),
    /// Child process of `bench`
    #[command(hide = true)]
    BenchChild(BenchChildArgs),
}

#[derive(Args, Debug)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// Text file; only the needed part is read
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Profile of this model, from `cenote profile` [default: made from the beginning of the text,
    /// which is then not evaluated; with `--task` there is none]
    #[arg(long, value_name = "FILE", conflicts_with = "profile_text")]
    pub profile: Option<PathBuf>,
    /// Text to make the profile from; several are compared (Oaken, Figure 6)
    #[arg(long, value_name = "FILE")]
    pub profile_text: Vec<PathBuf>,
    /// Codecs, as in `qpack:0.5,oaken,int8+delta`, and for comparison `group:BITS:CHANNELS`,
    /// `kivi:BITS`, `kvquant:BITS`, `tender:BITS`, `atom:BITS`, `qserve:BITS`, `oaken-sign`
    /// [default: all at several rates]
    #[arg(long, value_name = "CODEC,CODEC", value_delimiter = ',')]
    pub codec: Vec<String>,
    /// Codecs of CXL-SpecKV's Table 9 and Oaken's Table 3, beside the papers' figures
    #[arg(long, conflicts_with = "codec")]
    pub papers: bool,
    /// Number of windows of the text
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = positive)]
    pub windows: usize,
    /// Tokens per window
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub context: usize,
    /// Tokens per KV block, the unit of a codec
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    pub block_tokens: usize,
    /// Encode each token as soon as it is computed, so that a token reads nothing raw but itself; for
    /// codecs that quantize each token alone, with `--codec`
    #[arg(long, requires = "codec")]
    pub by_token: bool,
    /// Write the table and a plot as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Score tasks over several seeds instead: `perplexity`, `choices`, `retrieval` and `bleu` are
    /// drawn from the first 16 MiB of the text; a file of multiple choices has a JSON object per line
    /// (HellaSwag, ARC, Winogrande, PIQA with its labels joined, or `query`, `choices` and `gold`)
    #[arg(long, value_name = "TASK,TASK", value_delimiter = ',')]
    pub task: Vec<String>,
    /// Seeds of tasks
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=21))]
    pub seeds: u64,
    /// Items, facts or prompts of a task, for each seed; seeds share none, so a small file or text
    /// has fewer
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = positive)]
    pub items: usize,
    /// Tokens of the contexts of `retrieval` [default: 256,1024]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub lengths: Vec<usize>,
    /// Write the items of `choices`, those of all seeds, to a file
    #[arg(long, value_name = "FILE", requires = "task")]
    pub items_out: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct ChooseArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// Text file; only the needed part is read
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Profile of this model, from `cenote profile`; oaken and qpack need it
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Candidate codecs [default: int8, and qpack and qpackz at rates from 0.25 to 1.7]; raw is
    /// always one
    #[arg(long, value_name = "CODEC,CODEC", value_delimiter = ',')]
    pub codec: Vec<String>,
    /// Maximum divergence from the model without codecs, nats per token
    #[arg(long, value_name = "KL", conflicts_with = "loss_max")]
    pub kl_max: Option<f64>,
    /// Maximum rise of perplexity, percent; limits the divergence to its logarithm
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    pub loss_max: f64,
    /// Number of windows of the text
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = positive)]
    pub windows: usize,
    /// Tokens per window
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub context: usize,
    /// Tokens per KV block, the unit of a codec
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    pub block_tokens: usize,
    /// Output file
    #[arg(long, value_name = "FILE", default_value = "codecs.json")]
    pub out: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct OutliersArgs {
    /// Hugging Face directory of a Llama-family model [default: the demo model]
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Seed of the channels
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Args, Debug)]
pub struct RandomModelArgs {
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Model with the tokenizer [default: the demo model]
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// Layers; 14 with the other defaults make 102 million weights
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = positive)]
    pub layers: usize,
    /// Width of the residual stream, a multiple of 64: heads have 64 dimensions
    #[arg(long, value_name = "N", default_value_t = 768, value_parser = positive)]
    pub hidden: usize,
    /// Width of the MLP
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive)]
    pub intermediate: usize,
    /// KV heads [default: as many as query heads]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub kv_heads: Option<usize>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_console::args::with_headings;
    use clap::{Arg, Command, CommandFactory};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The flags of a command that have no heading.
    fn bare(command: &Command) -> Vec<String> {
        let bare = command.get_arguments().filter(|flag| flag.get_help_heading().is_none());
        bare.map(|flag| flag.get_id().to_string()).collect()
    }

    #[test]
    fn every_flag_of_a_long_list_has_a_heading() {
        let command = with_headings(Cli::command());
        let find = |path: &str| path.split(' ').fold(&command, |at, name| at.find_subcommand(name).expect("a command"));
        for path in ["bench ttft", "bench trace"] {
            assert_eq!(bare(find(path)), ["json"], "{path}");
        }
        let load = find("sim").get_arguments().find(|flag| flag.get_id() == "trace");
        assert_eq!(load.and_then(Arg::get_help_heading), Some("Load"), "its own heading stays");
    }
}
