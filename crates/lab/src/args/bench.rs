//! Flags of `cenote-lab bench`.

use super::sessions::BenchSessionsArgs;
use super::sim::{SessionArgs, TraceFormatArg};
use cenote_base::units::ByteSize;
use cenote_console::args::{CodecArg, DesignArg, EngineArgs, RegionArgs, positive};
use cenote_console::output::OutputArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of them")]
pub enum BenchCommands {
    /// Time to first token by prompt length and share of the prompt in the region
    Ttft(Box<BenchTtftArgs>),
    /// Publish and read blocks, beside plain copies of as many bytes; pins; attaching
    Pool(BenchCoreArgs),
    /// Replay a trace on an engine with a region that is too small, with and without a codec
    Trace(Box<BenchTraceArgs>),
    /// Replay sessions of agents against servers: time to first token and hit rate by turn
    ///
    /// Starts `cenote serve` without a region, with one, with one that is too small, and with that and L4; or
    /// asks running servers of the OpenAI API. Clients wait for an answer and a think time before the next turn.
    Sessions(Box<BenchSessionsArgs>),
    /// Look up prompts, beside a bare hash table of the same size
    Index(BenchCoreArgs),
    /// Take locks between emulated hosts: the bakery beside the manager
    Lock(BenchCoreArgs),
    /// Publish small blocks into free and full regions, and claim chunks
    Alloc(BenchCoreArgs),
    /// Gather random rows of pinned blocks, beside the same gather from private memory
    Gather(BenchCoreArgs),
    /// Memory by handle, requests in batches, polling, NUMA binding and huge pages
    Memory(BenchCoreArgs),
    /// Write to a disk and read from it, beside plain files; first tokens from there
    Cold(BenchColdArgs),
    /// N-gram tables: row numbers, gathers beside private memory, the paper's figures, hot rows, kills
    Engram(BenchCoreArgs),
    /// Publish and read blocks of sealed regions, beside an unsealed one
    Seal(BenchCoreArgs),
    /// Look up and read blocks of another process's region by NIXL, beside NIXL's own batches
    Reach(BenchReachArgs),
    /// Run pool, index, lock and alloc, beside TraCT's plain design
    All(BenchCoreArgs),
    /// Decode with more KV than the engine's own memory holds, beside an engine that holds it all
    Tiers(BenchTiersArgs),
    /// Encode and decode pages on one core, beside copies of as many bytes
    Codec(BenchCodecArgs),
    /// Guess the next tokens of a text: time, accuracy, and rows of n-gram tables fetched early
    Predict(BenchPredictArgs),
}

fn whole_panels(text: &str) -> Result<u16, String> {
    let tokens: u16 = text.parse().map_err(|_| "no number of tokens".to_owned())?;
    let fits = (16..=128).contains(&tokens) && tokens.is_multiple_of(16);
    if fits { Ok(tokens) } else { Err("tokens are a multiple of 16 up to 128".to_owned()) }
}

fn codec_level(name: &str) -> Result<cenote_codec::Level, String> {
    let all = cenote_codec::Level::available();
    let names = || all.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|level| level.name() == name).ok_or_else(|| format!("this machine has {}", names()))
}

/// Element type of a bench's pages.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageElementArg {
    /// The upper half of a single
    Bf16,
    /// IEEE half
    F16,
}

#[derive(Args, Debug)]
pub struct BenchCodecArgs {
    /// Use less memory and fewer passes; rows named `dram` are then partly from caches
    #[arg(long)]
    pub quick: bool,
    /// Only these codecs, such as `qpack` or `int8`
    #[arg(long, value_name = "CODEC,CODEC", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Instruction set of the kernels: scalar, avx2 or avx512 [default: the fastest of this
    /// machine]
    #[arg(long, value_name = "LEVEL", value_parser = codec_level)]
    pub level: Option<cenote_codec::Level>,
    /// Element type of the pages
    #[arg(long, value_enum, value_name = "TYPE", default_value = "bf16")]
    pub element: PageElementArg,
    /// Tokens per page: a multiple of 16, so that no page has padding
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole_panels)]
    pub tokens: u16,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl BenchCodecArgs {
    /// Whether a codec of this name is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

#[derive(Args, Debug)]
pub struct BenchPredictArgs {
    /// Fewer calls, a tenth of the text and one request; figures differ
    #[arg(long)]
    pub quick: bool,
    /// Directory of a tokenizer and of `token_predictor.weights` [default: the demo model]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Text; its last 5 % is held out [default: WikiText-2's validation split in ../shared/data,
    /// if it is there]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct BenchCoreArgs {
    /// Use smaller regions and fewer measurements; names of rows state a different size
    #[arg(long)]
    pub quick: bool,
    /// Only these parts of the bench, such as `copies` or `pins`
    #[arg(long, value_name = "PART,PART", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Designs of the region [default: cenote, and for `all` plain beside it]
    #[arg(long, value_enum, value_name = "DESIGN,DESIGN", value_delimiter = ',')]
    pub design: Vec<DesignArg>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct BenchColdArgs {
    /// Also measure L4 in this Redis or Valkey server, as in redis://HOST:PORT; it keeps the blocks of a run for ten minutes
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    #[command(flatten)]
    pub core: BenchCoreArgs,
}

#[derive(Args, Debug)]
pub struct BenchReachArgs {
    /// NIXL's library libnixl_capi.so [default: the dynamic linker looks for it]
    #[arg(long, value_name = "FILE", env = "CENOTE_NIXL")]
    pub nixl: Option<PathBuf>,
    /// Also measure Mooncake Store: a Python with `mooncake-transfer-engine-non-cuda` and `numpy`
    #[arg(long, value_name = "PYTHON")]
    pub mooncake: Option<PathBuf>,
    #[command(flatten)]
    pub core: BenchCoreArgs,
}

#[derive(Args, Debug)]
pub struct ReachShareChildArgs {
    #[arg(long)]
    pub nixl: Option<PathBuf>,
    #[command(flatten)]
    pub region: RegionArgs,
}

/// A part of `bench tiers`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiersPart {
    /// Attention to all pages
    Dense,
    /// Attention to the pages that its queries choose
    Sparse,
    /// The cold tier, with the demo model
    Cold,
}

#[derive(Args, Debug)]
pub struct BenchTiersArgs {
    /// Shorter contexts and fewer steps; goals do not hold for them
    #[arg(long)]
    pub quick: bool,
    /// Model to measure [default: the demo model, then one of 100 million random weights]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Shares of the working set that the engine's own memory holds
    #[arg(long, value_name = "SHARE,SHARE", value_delimiter = ',', default_values_t = [0.25])]
    pub l1: Vec<f64>,
    /// Codec of encoded blocks, which are streamed beside raw ones
    #[arg(long, value_name = "SPEC", default_value = "int8")]
    pub codec: CodecArg,
    /// Profile of the model, for codecs that need one
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    pub only: Option<TiersPart>,
    /// Compute threads [default: all cores but one, which copies]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct BenchChildArgs {
    /// Grants locks, and does no jobs
    #[arg(long)]
    pub manager: bool,
    #[command(flatten)]
    pub region: RegionArgs,
}

#[derive(Args, Debug)]
pub struct EngramLoadChildArgs {
    #[command(flatten)]
    pub region: RegionArgs,
}

/// A rival to measure.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalArg {
    /// PyPI `transformers` with the same checkpoint, prompt, threads and element type
    Transformers,
}

#[derive(Args, Debug)]
pub struct BenchTtftArgs {
    /// Prompt lengths in tokens [default: 256, doubled up to the context]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub lengths: Vec<u32>,
    /// Shares of the prompt that the region holds
    #[arg(long, value_name = "F,F", value_delimiter = ',', default_values_t = [0.0, 0.25, 0.5, 0.75, 1.0])]
    pub hits: Vec<f64>,
    /// Measurements per point
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Also measure a rival
    #[arg(long, value_enum, value_name = "RIVAL")]
    pub against: Option<RivalArg>,
    /// Python with the rival installed
    #[arg(long, value_name = "FILE", env = "CENOTE_PYTHON", default_value = "python3")]
    pub python: PathBuf,
    /// Bytes of the region for the measurement
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub region_size: ByteSize,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct BenchTraceArgs {
    /// The trace: one line of JSON per request with its `hash_ids`, Mooncake's format; or sessions of
    /// agents
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Format of the trace: mooncake or agentic [default: mooncake]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<TraceFormatArg>,
    /// Seed of drawn sessions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub sessions: SessionArgs,
    /// Requests, from the first
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = positive)]
    pub requests: usize,
    /// Tokens per hash id, 512 in Mooncake's trace, 64 in sessions; the same id gives the same tokens
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive)]
    pub tokens_per_id: usize,
    /// Bytes of the region, as a share of all distinct blocks at 16 bits per value
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    pub share: f64,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
