//! Flags of `cenote bench`.

use super::{DesignArg, EngineArgs, RegionArgs, positive};
use crate::output::OutputArgs;
use cenote_base::units::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of them")]
pub enum BenchCommands {
    /// Time to first token over prompt length and share of the prompt found in the region
    Ttft(BenchTtftArgs),
    /// Blocks in and out of a region, beside plain copies of as many bytes; pins; attaching
    Pool(BenchCoreArgs),
    /// A trace's prompts through an engine whose region is too small for them, with a codec and without
    Trace(BenchTraceArgs),
    /// Lookups of prompts, beside a bare hash table of the same size
    Index(BenchCoreArgs),
    /// Locks between hosts, which processes of this machine play: the bakery beside the manager
    Lock(BenchCoreArgs),
    /// Small blocks published with room and without, and chunks claimed
    Alloc(BenchCoreArgs),
    /// Pool, index, lock and alloc, in one table, beside TraCT's plain design
    All(BenchCoreArgs),
    /// Pages encoded and decoded by one core, beside copies of as many bytes; no region
    Codec(BenchCodecArgs),
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

/// What pages of a bench are made of.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageElementArg {
    /// The upper half of a single
    Bf16,
    /// IEEE half
    F16,
}

#[derive(Args, Debug)]
pub struct BenchCodecArgs {
    /// Less memory and fewer passes; rows called `dram` then partly come from caches
    #[arg(long)]
    pub quick: bool,
    /// Only these codecs, such as `qpack` or `int8`
    #[arg(long, value_name = "CODEC,CODEC", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Kernels of this instruction set: `scalar`, `avx2`, `avx512`; by default the fastest that the machine has
    #[arg(long, value_name = "LEVEL", value_parser = codec_level)]
    pub level: Option<cenote_codec::Level>,
    /// Element type of the pages
    #[arg(long, value_enum, value_name = "TYPE", default_value = "bf16")]
    pub element: PageElementArg,
    /// Tokens of a page: 16 or a multiple, so that no page has padding
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
pub struct BenchCoreArgs {
    /// Smaller regions and fewer measurements; where a row is of another size than usual, its name says so
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
pub struct BenchChildArgs {
    /// Grants locks, and does no jobs
    #[arg(long)]
    pub manager: bool,
    #[command(flatten)]
    pub region: RegionArgs,
}

/// Who to measure beside us.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalArg {
    /// PyPI `transformers` on the same checkpoint, prompt, threads and element type
    Transformers,
}

#[derive(Args, Debug)]
pub struct BenchTtftArgs {
    /// Prompt lengths in tokens; from 256 in doublings to the context if not given
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub lengths: Vec<u32>,
    /// Shares of the prompt that the region holds
    #[arg(long, value_name = "F,F", value_delimiter = ',', default_values_t = [0.0, 0.25, 0.5, 0.75, 1.0])]
    pub hits: Vec<f64>,
    /// Measurements of each point
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Also measure a rival
    #[arg(long, value_enum, value_name = "RIVAL")]
    pub against: Option<RivalArg>,
    /// Python that has the rival installed
    #[arg(long, value_name = "FILE", env = "CENOTE_PYTHON", default_value = "python3")]
    pub python: PathBuf,
    /// Bytes of the region made for the measurement
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub region_size: ByteSize,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct BenchTraceArgs {
    /// The trace: a line of JSON for each request, with its `hash_ids` (as Mooncake publishes them)
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Requests, from the first
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = positive)]
    pub requests: usize,
    /// Tokens that stand for each hash id, which in the trace are 512: always the same for the same id
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive)]
    pub tokens_per_id: usize,
    /// Bytes of the region, as a share of what all different blocks take with 16 bits a value
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    pub share: f64,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
