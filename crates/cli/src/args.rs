//! Every flag, with the variable that stands for it. What flags mean is said here, in the words of `--help`.

mod bench;
mod headings;
mod pool;
mod shell;
mod sim;
mod study;

pub use bench::{
    BenchChildArgs, BenchCodecArgs, BenchCommands, BenchCoreArgs, BenchTraceArgs, BenchTtftArgs, PageElementArg,
    RivalArg,
};
pub use headings::with_headings;
pub use pool::{
    PoolArgs, PoolCheckArgs, PoolCommands, PoolCreateArgs, PoolDestroyArgs, PoolDiffArgs, PoolEventsArgs,
    PoolFenceArgs, PoolHistoryArgs, PoolListArgs, PoolManageArgs, PoolQuotaArgs,
};
pub use shell::{CompletionsArgs, ManArgs};
pub use sim::{CapacityArg, InstantArg, LoadArg, SimArgs, TraceFormatArg};
pub use study::{StudyCommands, StudyEngineArgs, StudySwapArgs, StudyWatermarkArgs};

use crate::failure::Failure;
use crate::output::OutputArgs;
use crate::usage;
use cenote_base::units::ByteSize;
use cenote_codec::{LayerSpecs, SpecError};
use cenote_engine::ElementType;
use cenote_mem::{Flush, RegionSource};
use cenote_policy::Watermark;
use cenote_pool::{Design, Eviction, HostsLock};
use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A shared, crash-proof KV-cache pool for LLM serving.
#[derive(Parser, Debug)]
#[command(name = "cenote", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// Settings file; ./cenote.toml is read if it exists
    #[arg(long, global = true, value_name = "FILE", env = "CENOTE_CONFIG")]
    pub config: Option<PathBuf>,
    /// What to log to stderr, as in `info` or `cenote_serve=debug`
    #[arg(long, global = true, value_name = "FILTER", env = "CENOTE_LOG", default_value = "warn")]
    pub log: String,
    #[command(subcommand)]
    pub command: Commands,
}

#[derive(Subcommand, Debug)]
pub enum Commands {
    /// Show the whole thing at work: two workers, one region, a warm start against a cold one
    Demo(DemoArgs),
    /// Serve a model over OpenAI-compatible HTTP, with its KV cache in a shared region
    Serve(ServeArgs),
    /// Generate text from one prompt, without a server
    Generate(GenerateArgs),
    /// Create, inspect and destroy regions
    #[command(subcommand)]
    Pool(PoolCommands),
    /// Tell what this machine offers, and which region to choose
    Doctor(DoctorArgs),
    /// Look at a model at work on a text, and write down what KV codecs need to know of it
    Profile(ProfileArgs),
    /// Run a text through a model with all past KV through codecs, and tell what each saves and costs
    Eval(EvalArgs),
    /// Measure codecs on each layer of a model, and write down which to take where, for `--codec auto`
    ///
    /// Harms of layers add up nearly, not quite: what is chosen is measured with all layers together, and layers get less
    /// until every choice stays within the limit on this text.
    Choose(ChooseArgs),
    /// Make a model whose keys have outlier channels, as large models have, out of one that has none
    Outliers(OutliersArgs),
    /// Simulate engines and a shared pool under a load, and tell what a pool of a given size would do
    ///
    /// The scheduler, eviction and watermarks are those that serve; engines and links are models
    /// (docs/evidence/simulator.md). The same flags and seed print the same bytes.
    Sim(Box<SimArgs>),
    /// Study the scheduler, in the simulator and in the engine: watermarks, whether swaps can be foreseen, how far the two are apart
    #[command(subcommand)]
    Study(StudyCommands),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommands),
    /// Kill processes at work on a full region, and see that nothing is wrong, lost or stuck
    ///
    /// Exits with 3 if bytes were wrong or anything was lost, 4 if a process hung, and 5 if all is well but a run of a
    /// minute or more saw too few deaths or was not full.
    Torture(TortureArgs),
    /// Print a script that lets a shell complete commands and flags
    Completions(CompletionsArgs),
    /// Print a manual page, or write those of all commands
    Man(ManArgs),
    /// A process of `torture`; not started by hand
    #[command(hide = true)]
    TortureChild(TortureChildArgs),
    /// A process of `bench`; not started by hand
    #[command(hide = true)]
    BenchChild(BenchChildArgs),
    /// A worker process of `serve`; not started by hand
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Which region, and how to map it.
#[derive(Args, Clone, Debug)]
pub struct RegionArgs {
    /// The shared region: `shm:NAME`, a file on tmpfs or hugetlbfs, or /dev/daxX.Y
    #[arg(long, value_name = "REGION", env = "CENOTE_REGION")]
    pub region: Option<RegionSource>,
    /// Place the region's memory on this NUMA node
    #[arg(long, value_name = "NODE", env = "CENOTE_NUMA_NODE")]
    pub numa_node: Option<u32>,
    /// Do not ask for huge pages
    #[arg(long, env = "CENOTE_NO_HUGE_PAGES")]
    pub no_huge_pages: bool,
    /// Which of the region's hosts this machine is; every machine that shares the region has another one
    #[arg(long, value_name = "N", env = "CENOTE_HOST_SLOT", default_value_t = 0, value_parser = host_slot())]
    pub host_slot: u8,
}

fn host_slot() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=63)
}

/// How workers look after other hosts; on one host nothing comes of it.
#[derive(Args, Clone, Debug)]
pub struct WatchArgs {
    /// Seconds that a host's heart may stand still before this host declares it dead
    #[arg(long, value_name = "SECONDS", env = "CENOTE_HOST_TIMEOUT", default_value = "10", value_parser = parse_timeout)]
    pub host_timeout: Duration,
    /// Seconds more that a dead host's space is left alone, in case it only slept
    #[arg(long, value_name = "SECONDS", env = "CENOTE_QUARANTINE", default_value = "30", value_parser = parse_seconds)]
    pub quarantine: Duration,
}

impl Default for WatchArgs {
    fn default() -> Self {
        Self { host_timeout: Duration::from_secs(10), quarantine: Duration::from_secs(30) }
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{text} seconds cannot be waited for"))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_seconds(text)? {
        timeout if timeout < Duration::from_millis(100) => Err("must be at least 0.1 seconds".to_owned()),
        timeout => Ok(timeout),
    }
}

/// How lines reach other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushArg {
    /// The best instruction of this processor.
    Auto,
    /// This one.
    Fixed(Flush),
}

fn parse_flush(text: &str) -> Result<FlushArg, String> {
    if text == "auto" {
        return Ok(FlushArg::Auto);
    }
    text.parse()
        .map(FlushArg::Fixed)
        .map_err(|_| format!("`{text}` is no flush instruction: none, auto, clflush, clflushopt, clwb or dc-civac"))
}

/// How hosts exclude each other.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostsLockArg {
    Bakery,
    Manager,
}

impl HostsLockArg {
    pub const fn kind(self) -> HostsLock {
        match self {
            Self::Bakery => HostsLock::Bakery,
            Self::Manager => HostsLock::Manager,
        }
    }
}

/// How blocks are found and kept.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesignArg {
    Cenote,
    Plain,
}

impl DesignArg {
    pub const fn kind(self) -> Design {
        match self {
            Self::Cenote => Design::Cenote,
            Self::Plain => Design::Plain,
        }
    }
}

/// What a new region is like.
#[derive(Args, Clone, Debug)]
pub struct NewRegionArgs {
    /// Bytes of the region, as in 4GiB (a DAX device is taken whole)
    #[arg(long, value_name = "SIZE", env = "CENOTE_REGION_SIZE")]
    pub size: Option<ByteSize>,
    /// Unit in which hosts take space; a block must fit into one
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub chunk_size: ByteSize,
    /// Smallest block; smaller ones waste space
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    pub min_block: ByteSize,
    /// Host slots
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub max_hosts: u8,
    /// Instruction that carries lines between hosts: none (all processes are on one host), auto (the best
    /// this processor has), clflush, clflushopt, clwb or dc-civac
    #[arg(long, value_name = "INSTRUCTION", default_value = "none", value_parser = parse_flush)]
    pub flush: FlushArg,
    /// How hosts exclude each other; `manager` needs `cenote pool manage` running on one of them
    #[arg(long, value_enum, value_name = "KIND", default_value = "bakery")]
    pub hosts_lock: HostsLockArg,
    /// How blocks are found and kept: `plain` is TraCT's way, for comparison (one lock, reference counts, an LRU list)
    #[arg(long, value_enum, value_name = "DESIGN", default_value = "cenote")]
    pub design: DesignArg,
    /// Which blocks leave when a host's space is full: lru, sieve, s3-fifo, or cost-aware
    #[arg(long, value_name = "POLICY", default_value_t = Eviction::Lru)]
    pub eviction: Eviction,
    /// Blocks that one process can keep in place at once [default: 1792, or 448 in a region of less than 256MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=7168))]
    pub pins_per_worker: Option<u32>,
    /// Lines of each host's event log, which tells routers what came and what left: some 1024, or none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub events: u32,
    /// Permissions of the region's file, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    pub mode: u32,
    /// Touch every page now, and not while the first prompts are served
    #[arg(long, env = "CENOTE_PREFAULT")]
    pub prefault: bool,
    /// Secret from which block names derive, 64 hex digits; drawn if not given
    #[arg(long, value_name = "HEX", env = "CENOTE_HASH_SEED", hide_env_values = true, value_parser = parse_seed)]
    pub hash_seed: Option<[u8; 32]>,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode =
        u32::from_str_radix(text.trim_start_matches("0o"), 8).map_err(|_| format!("`{text}` is not an octal mode"))?;
    if mode <= 0o777 && mode & 0o600 == 0o600 {
        Ok(mode)
    } else {
        Err(format!("mode {text} does not let its owner read and write"))
    }
}

fn parse_seed(text: &str) -> Result<[u8; 32], String> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !text.is_ascii() {
        return Err(format!("a hash seed has 64 hex digits, not {}", digits.len()));
    }
    let mut seed = [0; 32];
    for (byte, pair) in seed.iter_mut().zip(0..32) {
        *byte = u8::from_str_radix(&text[pair * 2..pair * 2 + 2], 16)
            .map_err(|_| "a hash seed is written in hex".to_owned())?;
    }
    Ok(seed)
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Element type of weights and KV.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtypeArg {
    F32,
    Bf16,
}

impl DtypeArg {
    pub const fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::Bf16 => ElementType::Bf16,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// What blocks are stored as.
#[derive(Clone, Debug, PartialEq)]
pub enum CodecArg {
    /// What a codec table says.
    Auto,
    /// These codecs.
    Named(LayerSpecs),
}

impl FromStr for CodecArg {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Named) }
    }
}

impl fmt::Display for CodecArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Named(specs) => specs.fmt(f),
        }
    }
}

/// The reference engine.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// Hugging Face directory of a Llama-family model; the demo model if not given
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// Name under which the model is served; the directory's name if not given
    #[arg(long, value_name = "NAME", env = "CENOTE_MODEL_NAME")]
    pub model_name: Option<String>,
    /// Element type of weights and KV
    #[arg(long, value_enum, env = "CENOTE_DTYPE", default_value = "f32")]
    pub dtype: DtypeArg,
    /// Threads that compute; all cores if not given
    #[arg(long, value_name = "N", env = "CENOTE_THREADS")]
    pub threads: Option<usize>,
    /// Most tokens of prompt and output together; the model's own limit if not given
    #[arg(long, value_name = "N", env = "CENOTE_MAX_MODEL_LEN")]
    pub max_model_len: Option<u32>,
    /// Tokens of a KV block
    #[arg(long, value_name = "N", env = "CENOTE_BLOCK_TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(16..=256))]
    pub block_tokens: u32,
    /// Memory for the engine's own KV blocks (L1)
    #[arg(long, value_name = "SIZE", env = "CENOTE_KV_SIZE", default_value = "256MiB")]
    pub kv_size: ByteSize,
    /// Requests that run at once
    #[arg(long, value_name = "N", env = "CENOTE_MAX_NUM_SEQS", default_value_t = 64, value_parser = positive)]
    pub max_num_seqs: usize,
    /// Tokens computed in one step
    #[arg(long, value_name = "N", env = "CENOTE_MAX_NUM_BATCHED_TOKENS", default_value_t = 512, value_parser = positive)]
    pub max_num_batched_tokens: usize,
    /// Requests that may wait; more are told to come back later
    #[arg(long, value_name = "N", env = "CENOTE_MAX_WAITING", default_value_t = 512, value_parser = positive)]
    pub max_waiting: usize,
    /// What admission leaves free of these blocks: fixed:SHARE, opt:FACTOR, avg-above:BLOCKS, avg-below:BLOCKS or learned
    /// (docs/internals/policies.md)
    #[arg(long, value_name = "KIND", env = "CENOTE_WATERMARK", default_value = "fixed:0.01")]
    pub watermark: Watermark,
    /// Memory of the region to which requests are swapped out that must make room; without it they are computed again
    #[arg(long, value_name = "SIZE", env = "CENOTE_SWAP", default_value = "0")]
    pub swap: ByteSize,
    /// Swap also where computing again would be quicker
    #[arg(long, env = "CENOTE_ALWAYS_SWAP")]
    pub always_swap: bool,
    /// Write what is swapped, a line of JSON each (docs/guides/serve.md); workers add their names
    /// to the file's
    #[arg(long, value_name = "FILE", env = "CENOTE_SWAP_TRACE")]
    pub swap_trace: Option<PathBuf>,
    /// What KV is stored as in the region: raw, int8, oaken, qpack:RATE or qpackz:RATE, for all layers or as in
    /// `0-1=int8,qpack:0.5`, or auto: what the codec table says
    #[arg(long, value_name = "CODEC", env = "CENOTE_CODEC")]
    pub codec: Option<CodecArg>,
    /// What blocks become that nobody has asked for in a while, where the region is full and blocks would have to leave, as
    /// for --codec: all workers that share the blocks should have the same
    #[arg(long, value_name = "CODEC", env = "CENOTE_COLD_CODEC")]
    pub cold_codec: Option<CodecArg>,
    /// What `cenote profile` wrote for the model; oaken and qpack need it
    #[arg(long, value_name = "FILE", env = "CENOTE_PROFILE")]
    pub profile: Option<PathBuf>,
    /// What `cenote choose` wrote for the model and this profile; `--codec auto` needs it
    #[arg(long, value_name = "FILE", env = "CENOTE_CODEC_TABLE")]
    pub codec_table: Option<PathBuf>,
    /// Divergence from the model without codecs that `--codec auto` may cause, nats a token; the table's own limit if not given,
    /// and no more than that
    #[arg(long, value_name = "KL", env = "CENOTE_KL_MAX")]
    pub kl_max: Option<f64>,
    /// Tenants with different salts never share a block
    #[arg(long, value_name = "TEXT", env = "CENOTE_TENANT_SALT", hide_env_values = true, default_value = "")]
    pub tenant_salt: String,
    /// Not for the command line: a measurement compares both.
    #[arg(skip)]
    pub decode_first: bool,
}

impl EngineArgs {
    /// Variables and defaults, for commands that take no flag of an engine's but the model.
    pub fn of_model(model: Option<PathBuf>) -> Result<Self, Failure> {
        let mut command = Self::augment_args(clap::Command::new("engine"));
        let defaults = command
            .try_get_matches_from_mut(["engine"])
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|error| usage::explain(&error, &command, &[], None).unwrap_or_else(|| error.into()))?;
        Ok(Self { model: model.or_else(|| defaults.model.clone()), ..defaults })
    }

    /// Whether blocks may be shorter in the region than they are in the engine.
    pub const fn encodes(&self) -> bool {
        self.codec.is_some() || self.cold_codec.is_some()
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("`{text}` is not a number")),
    }
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Make the region with this size if it does not exist; without --region it is one of this server's own
    #[arg(long, value_name = "SIZE", env = "CENOTE_REGION_SIZE")]
    pub region_size: Option<ByteSize>,
    /// Serve without a region
    #[arg(long, env = "CENOTE_NO_POOL", conflicts_with_all = ["prefill", "decode"])]
    pub no_pool: bool,
    /// Prefill worker processes; 0 is one combined process
    #[arg(long, value_name = "N", env = "CENOTE_PREFILL", default_value_t = 0)]
    pub prefill: usize,
    /// Decode worker processes
    #[arg(long, value_name = "M", env = "CENOTE_DECODE", default_value_t = 1)]
    pub decode: usize,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", env = "CENOTE_HOST", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 picks one and prints it
    #[arg(long, value_name = "PORT", env = "CENOTE_PORT", default_value_t = 8000)]
    pub port: u16,
    /// Key that clients must present as a bearer token
    #[arg(long, value_name = "KEY", env = "CENOTE_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File of further keys: on each line a key, then a salt or nothing; KV is shared among equal salts
    #[arg(long, value_name = "FILE", env = "CENOTE_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Seconds a request may take
    #[arg(long, value_name = "SECONDS", env = "CENOTE_REQUEST_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub request_timeout: u64,
    /// Most open connections; an idle or slow one is cut for a new one, and if all are busy the new one gets 503
    #[arg(long, value_name = "N", env = "CENOTE_MAX_CONNECTIONS", default_value_t = 4096, value_parser = connections)]
    pub max_connections: usize,
    /// Seconds a client may take to send a request's head, and a kept connection may be idle
    #[arg(long, value_name = "SECONDS", env = "CENOTE_IDLE_TIMEOUT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub idle_timeout: u64,
    /// Most memory for the bodies of all requests together; more are answered with 503
    #[arg(long, value_name = "SIZE", env = "CENOTE_BODY_MEMORY", default_value = "256MiB")]
    pub body_memory: ByteSize,
    /// Seconds that running requests get to finish after SIGTERM
    #[arg(long, value_name = "SECONDS", env = "CENOTE_DRAIN_TIMEOUT", default_value_t = 30)]
    pub drain_timeout: u64,
}

/// A number of connections: at least one.
fn connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "not a number of connections".to_owned())
}

/// Which part a worker process plays.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleArg {
    Prefill,
    Decode,
}

#[derive(Args, Debug)]
pub struct WorkerArgs {
    #[arg(long, value_enum)]
    pub role: RoleArg,
    #[arg(long)]
    pub index: usize,
    #[arg(long)]
    pub drain_timeout: u64,
    /// Most open connections of this worker's port
    #[arg(long, value_name = "N", env = "CENOTE_WORKER_MAX_CONNECTIONS", default_value_t = 4096, value_parser = connections)]
    pub max_connections: usize,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
}

#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The text to continue; `-` reads it from stdin
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Treat the prompt as a user's turn and apply the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Keep the smallest set of tokens with this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Keep this many of the most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Seed; drawn if not given
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Text at which to end; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on past the end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Tokens of the shared prefix
    #[arg(long, value_name = "N", default_value_t = 1792, value_parser = clap::value_parser!(u32).range(64..))]
    pub prompt_tokens: u32,
    /// Tokens to generate for each prompt
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub max_tokens: u32,
    /// Prompts of each kind; medians are told
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A model that is looked at, not served.
#[derive(Args, Debug)]
pub struct StudiedModelArgs {
    /// Hugging Face directory of a Llama-family model; the demo model if not given
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// Element type of weights and of KV that no codec touches
    #[arg(long, value_enum, env = "CENOTE_DTYPE", default_value = "f32")]
    pub dtype: DtypeArg,
    /// Threads that compute; all cores if not given
    #[arg(long, value_name = "N", env = "CENOTE_THREADS")]
    pub threads: Option<usize>,
}

#[derive(Args, Debug)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// The text, of any length; as much of it is read as is used
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Where the profile goes
    #[arg(long, value_name = "FILE", default_value = "profile.safetensors")]
    pub out: PathBuf,
    /// Prompts to look at, cut from the text end to end
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
    pub prompts: usize,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub context: usize,
}

#[derive(Args, Debug)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// The text, of any length; as much of it is read as is used
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// What `cenote profile` wrote for this model; if neither this nor --profile-text is given, a profile is made from the
    /// beginning of the text, which is not looked at then
    #[arg(long, value_name = "FILE", conflicts_with = "profile_text")]
    pub profile: Option<PathBuf>,
    /// Make the profile from this text first; given several times, profiles of all of them are compared (Oaken, Figure 6)
    #[arg(long, value_name = "FILE")]
    pub profile_text: Vec<PathBuf>,
    /// Codecs, as in `qpack:0.5,oaken,int8+delta`, and for comparison `group:BITS:CHANNELS`, `kivi:BITS`, `kvquant:BITS`; all of
    /// them at several rates if not given
    #[arg(long, value_name = "CODEC,CODEC", value_delimiter = ',')]
    pub codec: Vec<String>,
    /// The codecs of CXL-SpecKV's Table 9 and Oaken's Table 3, beside what the papers say of them
    #[arg(long, conflicts_with = "codec")]
    pub papers: bool,
    /// Windows of the text
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = positive)]
    pub windows: usize,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub context: usize,
    /// Tokens of a KV block: what goes through a codec at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    pub block_tokens: usize,
    /// Write the table and a plot as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct ChooseArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// The text, of any length; as much of it is read as is used
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// What `cenote profile` wrote for this model; oaken and qpack need it
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Codecs to choose from; int8, qpack and qpackz at rates from 0.25 to 1.7 if not given. A layer may always stay raw
    #[arg(long, value_name = "CODEC,CODEC", value_delimiter = ',')]
    pub codec: Vec<String>,
    /// Most divergence from the model without codecs, nats a token
    #[arg(long, value_name = "KL", conflicts_with = "loss_max")]
    pub kl_max: Option<f64>,
    /// Most loss of perplexity, percent; divergence then is limited to the logarithm of that
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    pub loss_max: f64,
    /// Windows of the text
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = positive)]
    pub windows: usize,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub context: usize,
    /// Tokens of a KV block: what goes through a codec at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    pub block_tokens: usize,
    /// Where the table goes
    #[arg(long, value_name = "FILE", default_value = "codecs.json")]
    pub out: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct OutliersArgs {
    /// Hugging Face directory of a Llama-family model; the demo model if not given
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// What decides which channels
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

#[derive(Args, Debug)]
pub struct TortureArgs {
    /// Processes at work at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    pub processes: u64,
    /// Seconds to go on for
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_run)]
    pub seconds: f64,
    /// Bytes of the region, which is made for this and goes with it
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub size: ByteSize,
    /// Seed of all that is drawn; how the processes meet is never the same
    #[arg(long, value_name = "K")]
    pub seed: Option<u64>,
    /// Hosts that the processes play, each with memory of its own beside the region
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub hosts: u8,
    /// Flush instruction as in `pool create`; none for one host, auto for several
    #[arg(long, value_name = "INSTRUCTION", value_parser = parse_flush)]
    pub flush: Option<FlushArg>,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn parse_run(text: &str) -> Result<f64, String> {
    match parse_seconds(text)?.as_secs_f64() {
        seconds if (1.0..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("must be 1 to 1000000".to_owned()),
    }
}

#[derive(Args, Debug)]
pub struct TortureChildArgs {
    #[arg(long)]
    pub index: u64,
    #[arg(long)]
    pub seed: u64,
    #[arg(long)]
    pub ledger: RegionSource,
    #[arg(long)]
    pub fault: Option<String>,
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flush_instructions_and_seconds_are_checked() {
        assert_eq!(parse_flush("auto"), Ok(FlushArg::Auto));
        assert_eq!(parse_flush("clwb"), Ok(FlushArg::Fixed(Flush::Clwb)));
        assert!(parse_flush("cflush").unwrap_err().contains("`cflush`"));
        assert_eq!(parse_timeout("0.5"), Ok(Duration::from_millis(500)));
        assert!(parse_timeout("0").is_err() && parse_seconds("-1").is_err() && parse_seconds("soon").is_err());
    }

    #[test]
    fn modes_and_seeds_are_checked() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert!(parse_mode("066").is_err() && parse_mode("rw").is_err() && parse_mode("1777").is_err());
        assert_eq!(parse_seed(&"0f".repeat(32)), Ok([15; 32]));
        assert!(
            parse_seed("0f").is_err() && parse_seed(&"zz".repeat(32)).is_err() && parse_seed(&"é".repeat(32)).is_err()
        );
    }
}
