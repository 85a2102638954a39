//! Flags of the studies of the scheduler and of prefetching.

use super::seed;
use super::sim::{SessionArgs, TraceFormatArg};
use cenote_base::units::ByteSize;
use cenote_console::args::{EngineArgs, StudiedModelArgs, positive};
use cenote_console::output::OutputArgs;
use cenote_serving_sim::Link;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum StudyCommands {
    /// Compare watermark controllers: CPEN 511's Figures 5 to 10, and all beside fixed 1 %
    ///
    /// Loads outside the learned watermark's training set are marked. Named public traces are
    /// added.
    Watermark(StudyWatermarkArgs),
    /// Predict the next request to swap in: CPEN 511's Figures 3 and 4
    Swap(StudySwapArgs),
    /// Compare the simulator with the reference engine on the same requests at the same times
    ///
    /// Times the engine first, as `sim --calibrate` does; it serves over HTTP. The requests of one
    /// load arrive one after the other, those of the other all at once. Exits with 0 whatever the
    /// deviation; `goal` states whether it is within 15 %.
    Engine(Box<StudyEngineArgs>),
    /// Compare the simulator with a running server, such as `vllm serve`, on the same requests at the same times
    ///
    /// As `study engine`, but the server's steps are timed by its clients: prompts alone, and crowds of
    /// equal prompts. The server should have no other clients. Give its own limits as flags.
    Server(StudyServerArgs),
    /// Prefetch KV beyond the engine's memory: CXL-SpecKV's Tables 3 and 8 and Figure 3
    ///
    /// Dense and sparse attention at the paper's scale, simulated by the product's policies. `reproduce`
    /// compares the figures with the paper's. With a trace, also a cold tier below a small pool.
    Prefetch(StudyPrefetchArgs),
    /// Measure decode that reads only chosen pages: its quality, and how well choices are predicted
    ///
    /// Windows of a text are computed with all pages up to --prompt tokens, and token by token from
    /// there.
    Sparse(StudySparseArgs),
    /// Divide one memory between KV and rows of n-gram tables: fixed shares, and by measured hit curves
    ///
    /// A host with Engram-40B's tables before a slower pool, simulated with the product's policy. Loads
    /// are stationary or change in phases. `is_met`: on a stationary load, the arbiter is at most 5 %
    /// slower than the best fixed share; on a load with phases, it is faster than every fixed share.
    Budget(StudyBudgetArgs),
    /// Simulate up to thousands of hosts in racks, and report how the simulator's own time grows
    ///
    /// Each rack has one pool and each host one engine. A router before all racks sends a prompt to the rack
    /// that was sent its beginning, unless that one is busier. Load and racks grow together.
    Scale(StudyScaleArgs),
    /// Compare eviction policies on sessions of agents, and state why they differ
    ///
    /// Hit rates by the pool's size beside LRU, and beside a cache that knows the future. Then how soon
    /// blocks return by the time since their last use, and what each policy evicts. Takes other traces,
    /// too.
    Agents(Box<StudyAgentsArgs>),
    /// Measure the error of `pool whatif`: the sampled record of requests against the full trace
    ///
    /// The trace goes through a region's record. `is_met`: every hit rate, at 0.5, 1, 2 and 4 times the
    /// pool's blocks with each policy, is within one point of that of all blocks.
    Record(Box<StudyRecordArgs>),
    /// Schedule the attention of batches on Oaken's cores, beside the slower of all reads and all engines (§5.3)
    Oaken(StudyOakenArgs),
    /// Learn the weights by which codecs are chosen from an engine's throughput (CXL-SpecKV eq. 8)
    ///
    /// The engine serves prompts from a region that holds half of them raw. --codec-table names what
    /// `choose` has measured.
    Weights(Box<StudyWeightsArgs>),
}

#[derive(Args, Debug)]
pub struct StudyOakenArgs {
    /// Tokens of context of each request
    #[arg(long, value_name = "N", default_value_t = 1536, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub context: u32,
    /// Values a cycle of a core's engines [default: those of the model]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub lanes: Option<u32>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyAgentsArgs {
    /// Sessions of agents, one line of JSON per session
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub trace: PathBuf,
    /// Format of the trace
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "agentic", help_heading = "Load")]
    pub format: TraceFormatArg,
    #[command(flatten)]
    pub sessions: SessionArgs,
    /// Seed of the first draw of sessions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed(), help_heading = "Load")]
    pub seed: u64,
    /// Draws of sessions, with seeds one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000), help_heading = "Load")]
    pub draws: u64,
    /// Blocks that the pool holds
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "20000,40000,60000", value_parser = positive)]
    pub pool_blocks: Vec<usize>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyRecordArgs {
    /// A trace with names of blocks
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub trace: PathBuf,
    /// Format of the trace
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "mooncake", help_heading = "Load")]
    pub format: TraceFormatArg,
    #[command(flatten)]
    pub sessions: SessionArgs,
    /// Seed of the order of sessions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed(), help_heading = "Load")]
    pub seed: u64,
    /// Blocks that the pool holds
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "4096,16384", value_parser = clap::value_parser!(u64).range(256..=1 << 20))]
    pub pool_blocks: Vec<u64>,
    /// Lines of the record, of 64 bytes each
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "4096,16384,65536", value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub lines: Vec<u32>,
    /// Samples of each, by the seeds of regions
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub draws: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyBudgetArgs {
    /// Local memory of both caches
    #[arg(long, value_name = "SIZE", default_value = "64GiB")]
    pub budget: ByteSize,
    /// Requests of each kind
    #[arg(long, value_name = "N", default_value_t = 6000, value_parser = positive)]
    pub requests: usize,
    /// Exponent of Zipf's law by which n-grams are drawn
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub zipf: f64,
    /// A trace in Mooncake's format; its requests are the chat
    #[arg(long, value_name = "FILE")]
    pub mooncake: Option<PathBuf>,
    /// Seed of prompts and n-grams
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyWeightsArgs {
    /// Periods to learn in
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = positive)]
    pub periods: usize,
    /// Periods to measure each result with
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub repeats: usize,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub prompt_tokens: usize,
    /// Seed of prompts, order and trials
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    pub seed: u64,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudySparseArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// Text to measure with
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Windows of the text
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = positive)]
    pub windows: usize,
    /// Windows of the text to leave out before them
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: usize,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = positive)]
    pub context: usize,
    /// Tokens that are computed with all pages
    #[arg(long, value_name = "N", default_value_t = 3584, value_parser = positive)]
    pub prompt: usize,
    /// Tokens per page
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub block_tokens: usize,
    /// Pages that each group of heads reads
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [8, 16, 32, 64, 128])]
    pub pages: Vec<usize>,
    /// Write what a predictor is trained with, for the first number of pages
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyPrefetchArgs {
    /// A trace in Mooncake's format, to serve with a cold tier
    #[arg(long, value_name = "FILE")]
    pub mooncake: Option<PathBuf>,
    /// Seed of the drawn scores
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Where the hosts of `study scale` have KV.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleMemory {
    /// In a region behind a CXL switch that the hosts of a rack share
    Cxl,
    /// In a region of each host; the hosts of a rack read each other's by RDMA over 100 Gb/s
    Rdma,
    /// The same by TCP over 100 Gb/s
    Tcp,
    /// In a region of each host, and below all in one object store
    Objects,
    /// In a region of each host, which is a rack of its own to the router
    Alone,
}

#[derive(Args, Debug)]
pub struct StudyScaleArgs {
    /// Numbers of hosts
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,16,32,128,512,2048,4096", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub hosts: Vec<u32>,
    /// Hosts of a rack
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub hosts_per_rack: u32,
    /// Requests of each host
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub requests: u32,
    /// Requests per second of each host
    #[arg(long, value_name = "R", default_value_t = 4.0, value_parser = super::sim::parse_rate)]
    pub rate: f64,
    /// Groups of prompts with a common beginning, of each rack
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub groups: u64,
    /// Sessions of agents, instead of drawn requests: --sessions is the number of each host [default: 1],
    /// and --session-gap that between two starts at one host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["requests", "rate", "groups"])]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub sessions: SessionArgs,
    /// Pool of each rack; hosts without common memory have equal parts of it
    #[arg(long, value_name = "SIZE", default_value = "1TiB")]
    pub pool: ByteSize,
    /// Where KV lies and how hosts share it
    #[arg(long, value_enum, value_name = "KIND,…", value_delimiter = ',', default_value = "cxl")]
    pub memory: Vec<ScaleMemory>,
    /// Link of each host to the object store, in gigabytes a second and nanoseconds [default: four connections
    /// to S3, 0.34:100000000]
    #[arg(long, value_name = "GB/S:NS", value_parser = super::sim::parse_link)]
    pub object_link: Option<Link>,
    /// Seed of the requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Loads of a comparison with the simulator.
#[derive(Args, Debug)]
pub struct ComparedLoadArgs {
    /// Requests of each load
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=512))]
    pub requests: u32,
    /// Arrival rate in requests per second [default: --share of the engine's throughput]
    #[arg(long, value_name = "R", value_parser = super::sim::parse_rate)]
    pub rate: Option<f64>,
    /// Arrival rate as a share of the engine's simulated throughput, without --rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub share: f64,
    /// Mean tokens per prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Mean tokens per answer
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..))]
    pub answer_tokens: u32,
    /// Seed of lengths and times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    pub seed: u64,
    /// Repetitions of calibration and loads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
}

#[derive(Args, Debug)]
pub struct StudyEngineArgs {
    #[command(flatten)]
    pub load: ComparedLoadArgs,
    /// File that --calibrate wrote, instead of timing the engine now
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyServerArgs {
    /// Address of the server, as in http://127.0.0.1:8000
    #[arg(long, value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub load: ComparedLoadArgs,
    /// Requests that the server computes at once (vLLM's flag of this name)
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub max_num_seqs: usize,
    /// Tokens of one of its steps (vLLM's flag of this name)
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(16..))]
    pub max_num_batched_tokens: u32,
    /// Tokens of one of its blocks (vLLM's --block-size) [default: those that vLLM reports in /metrics, or 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub block_tokens: Option<u32>,
    /// Its blocks [default: those that vLLM reports in /metrics]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub kv_blocks: Option<u32>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudyWatermarkArgs {
    /// Train the learned watermark and write its weights as a source file
    #[arg(long, value_name = "FILE")]
    pub train: Option<PathBuf>,
    /// Generations of the training
    #[arg(long, value_name = "N", default_value_t = 20, requires = "train", value_parser = positive)]
    pub generations: usize,
    /// Seed of the training
    #[arg(long, value_name = "N", default_value_t = 3, requires = "train", value_parser = seed())]
    pub seed: u64,
    /// A trace in Mooncake's format to hold out
    #[arg(long, value_name = "FILE")]
    pub mooncake: Option<PathBuf>,
    /// A trace in Azure's format to hold out
    #[arg(long, value_name = "FILE")]
    pub azure: Option<PathBuf>,
    /// Runs per point of the figures; 0 omits the figures
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub repeats: u64,
    /// Measure one point of each figure on the reference engine, which swaps in little memory,
    /// beside the simulator with this machine's calibration
    #[arg(long, conflicts_with_all = ["train", "mooncake", "azure", "html"])]
    pub real: bool,
    /// Write tables and figures as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct StudySwapArgs {
    /// Training traces, of 400 prompts each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: u64,
    /// Hidden units of the perceptrons [default: 24 for regression, 32 for classes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub hidden: Option<u16>,
    /// Hidden units of the LSTM [default: 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub lstm_hidden: Option<u16>,
    /// Train on swaps of the reference engine with the demo model in little memory
    #[arg(long)]
    pub real: bool,
    /// Train on traces of `serve --swap-trace`
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',', conflicts_with_all = ["real", "repeats"])]
    pub trace: Vec<PathBuf>,
    /// Write the table and figures as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}
