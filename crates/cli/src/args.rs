//! The flags of `cenote`, with the variables that set them. The doc comments are the text of
//! `--help`.

mod engram;
mod observe;
mod plan;
mod pool;
mod worker;

pub use engram::{
    EngramCheckArgs, EngramCommands, EngramDequantArgs, EngramDropArgs, EngramInfoArgs, EngramLoadArgs, EngramRowsArgs,
    TablesArgs,
};
pub use observe::{DoctorArgs, RecordArgs, StatArgs, TopArgs, UiArgs};
pub use plan::{PlanCommands, PlanEngramArgs, PlanKvArgs, SettingArgs};
pub use pool::{
    MemoryOf, PoolArgs, PoolCheckArgs, PoolColdArgs, PoolCommands, PoolCreateArgs, PoolDestroyArgs, PoolDiffArgs,
    PoolEventsArgs, PoolExplainArgs, PoolFenceArgs, PoolGcArgs, PoolHistoryArgs, PoolListArgs, PoolManageArgs,
    PoolMetricsArgs, PoolQuotaArgs, PoolRestoreArgs, PoolRotateArgs, PoolShareArgs, PoolSnapshotArgs, PoolWhatifArgs,
};
pub use worker::{RoleArg, WorkerArgs, WorkerSettings};

use cenote_base::units::ByteSize;
use cenote_console::args::{
    CompletionsArgs, EngineArgs, ManArgs, RegionArgs, SealArgs, StudiedModelArgs, WatchArgs, positive,
};
use cenote_console::output::OutputArgs;
use cenote_console::program::ProcessArgs;
use clap::{Args, Parser, Subcommand};
use std::net::IpAddr;
use std::path::PathBuf;

/// A shared, crash-proof KV-cache pool for LLM serving.
#[derive(Parser, Debug)]
#[command(name = "cenote", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(subcommand)]
    pub command: Commands,
}

#[derive(Subcommand, Debug)]
pub enum Commands {
    /// Compare cold and warm time to first token: a prefill and a decode worker on one region
    Demo(DemoArgs),
    /// Serve a model over OpenAI-compatible HTTP, with its KV cache in a shared region
    Serve(ServeArgs),
    /// Generate text from one prompt, without a server
    Generate(GenerateArgs),
    /// Create, inspect and destroy regions
    #[command(subcommand)]
    Pool(PoolCommands),
    /// Share n-gram embedding tables (Engram, PLE): load, list, check, drop, addresses
    #[command(subcommand)]
    Engram(EngramCommands),
    /// Plan memory, bandwidth and costs of a model's n-gram tables or KV
    #[command(subcommand)]
    Plan(PlanCommands),
    /// Show a region live: fill, hit rate, models, hosts, workers, events; keys: `?`
    ///
    /// Looks from outside, so it needs no server, and shows a region without live processes. It takes the
    /// only region of this machine if --region names none. `--once --json` has the shape in
    /// docs/guides/operate.md.
    Top(TopArgs),
    /// Print a region's numbers, one line a second
    Stat(StatArgs),
    /// Serve a page that shows a region live in a browser: charts, a map of its chunks, a prompt's blocks
    ///
    /// Looks from outside, so it needs no server, and shows a region without live processes. It takes the
    /// only region of this machine if --region names none.
    Ui(UiArgs),
    /// Write the requests of a region as a trace in Mooncake's format: times, lengths, hashes of blocks
    ///
    /// With --seconds or --follow this process joins the region, and its host's engines record all blocks
    /// meanwhile. Otherwise it writes what the region has recorded. Names of blocks are numbers from 0 in
    /// the trace: docs/guides/operate.md#what-if.
    Record(RecordArgs),
    /// Say what is wrong with a region (--region), or show this machine and recommend a region
    ///
    /// With a region: each fault with its consequence and the next command; exits with 2 if there is one.
    Doctor(DoctorArgs),
    /// Profile a model's KV on a text, for codecs that need a profile
    Profile(ProfileArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a manual page, or write the pages of all commands
    Man(ManArgs),
    /// Worker process of `serve`
    #[command(hide = true)]
    Worker(WorkerArgs),
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
    /// Create the region with this size if it does not exist; without --region, a private one
    #[arg(long, value_name = "SIZE", env = "CENOTE_REGION_SIZE")]
    pub region_size: Option<ByteSize>,
    #[command(flatten)]
    pub sealing: SealArgs,
    /// Serve without a region
    #[arg(long, env = "CENOTE_NO_POOL", conflicts_with_all = ["prefill", "decode"])]
    pub no_pool: bool,
    /// Prefill worker processes; 0 is one combined process
    #[arg(long, value_name = "N", env = "CENOTE_PREFILL", default_value_t = 0)]
    pub prefill: usize,
    /// Decode worker processes
    #[arg(long, value_name = "M", env = "CENOTE_DECODE", default_value_t = 1, value_parser = positive)]
    pub decode: usize,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", env = "CENOTE_HOST", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 picks one and prints it
    #[arg(long, value_name = "PORT", env = "CENOTE_PORT", default_value_t = 8000)]
    pub port: u16,
    /// Bearer token that clients must present
    #[arg(long, value_name = "KEY", env = "CENOTE_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with one key per line, each with an optional salt; KV is shared among equal salts
    #[arg(long, value_name = "FILE", env = "CENOTE_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// TOML file of tenants: keys, salts, quotas, priorities; read again on SIGHUP
    #[arg(long, value_name = "FILE", env = "CENOTE_TENANTS", conflicts_with_all = ["api_key", "api_key_file"])]
    pub tenants: Option<PathBuf>,
    /// Timeout of a request in seconds
    #[arg(long, value_name = "SECONDS", env = "CENOTE_REQUEST_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub request_timeout: u64,
    /// Maximum open connections; a new one replaces an idle or slow one, or gets 503 if all are
    /// busy
    #[arg(long, value_name = "N", env = "CENOTE_MAX_CONNECTIONS", default_value_t = 4096, value_parser = connections)]
    pub max_connections: usize,
    /// Timeout in seconds for a request's headers and for idle keep-alive connections
    #[arg(long, value_name = "SECONDS", env = "CENOTE_IDLE_TIMEOUT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub idle_timeout: u64,
    /// Maximum memory for the bodies of all requests; more get 503
    #[arg(long, value_name = "SIZE", env = "CENOTE_BODY_MEMORY", default_value = "256MiB")]
    pub body_memory: ByteSize,
    /// Seconds for running requests to finish after SIGTERM
    #[arg(long, value_name = "SECONDS", env = "CENOTE_DRAIN_TIMEOUT", default_value_t = 30)]
    pub drain_timeout: u64,
}

/// A number of connections: at least one.
fn connections(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "not a number of connections".to_owned())
}

#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The text to continue; `-` reads it from stdin
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Apply the model's chat template to the prompt as a user message
    #[arg(long)]
    pub chat: bool,
    /// Maximum tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Sample from the smallest set of tokens with this total probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Sample from this many most likely tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Seed [default: random]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Stop text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Continue after the end-of-sequence token
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
    /// Prompts of each kind; the table has medians
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub model: StudiedModelArgs,
    /// Text file; only the needed part is read
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Output file
    #[arg(long, value_name = "FILE", default_value = "profile.safetensors")]
    pub out: PathBuf,
    /// Number of prompts, cut from the text
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
    pub prompts: usize,
    /// Tokens per prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub context: usize,
    /// Add the principal components that `prism` needs; of a large model, they take megabytes
    #[arg(long)]
    pub bases: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_console::args::with_headings;
    use clap::{Command, CommandFactory};

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
        for path in ["serve", "generate", "pool create", "demo"] {
            assert_eq!(bare(find(path)), if path == "serve" { vec![] } else { vec!["json"] }, "{path}");
        }
        assert!(bare(find("pool info")).contains(&"region".to_owned()), "a short list has none");
    }
}
