//! Flags of `cenote-lab plan`.

use super::sim::{SessionArgs, TraceFormatArg};
use cenote_base::units::ByteSize;
use cenote_console::args::{MemoryPriceArgs, positive};
use cenote_console::output::OutputArgs;
use cenote_plan::cost::RackPrices;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum PlanCommands {
    /// Plan a rack for a load and a time to the first token: hosts, memory for KV and its link, by simulation
    ///
    /// Simulates racks with KV in the engines alone, in DRAM of each host, in DRAM of hosts that read each
    /// other's by TCP or RDMA, in a pool over RDMA, and in a pool behind a CXL switch, with the product's scheduler and eviction. Prints the cheapest rack of
    /// each kind that meets the goal.
    Rack(Box<PlanRackArgs>),
}

/// The statistic that a goal limits.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticArg {
    /// The mean
    Mean,
    /// The median
    P50,
    /// The 99th percentile
    P99,
}

#[derive(Args, Debug)]
pub struct PlanRackArgs {
    /// Goal: milliseconds to the first token
    #[arg(long, help_heading = "Goal", value_name = "MS", value_parser = positive_number)]
    pub ttft_ms: f64,
    /// Statistic of the times to the first token that must meet it
    #[arg(long, help_heading = "Goal", value_name = "STATISTIC", default_value = "p99")]
    pub statistic: StatisticArg,
    /// Trace of requests
    #[arg(long, help_heading = "Load", value_name = "FILE", required_unless_present = "rate")]
    pub trace: Option<PathBuf>,
    /// Format of the trace [default: azure for .csv, else mooncake]
    #[arg(long, help_heading = "Load", value_name = "FORMAT", requires = "trace")]
    pub format: Option<TraceFormatArg>,
    /// Factor on the trace's rate of requests
    #[arg(long, help_heading = "Load", value_name = "FACTOR", default_value_t = 1.0, value_parser = positive_number)]
    pub speed: f64,
    /// Instead of a trace: requests per second with prompts of TraCT's workload A, about 4,449 tokens of
    /// which three quarters are shared
    #[arg(long, help_heading = "Load", value_name = "R", value_parser = positive_number, conflicts_with = "trace")]
    pub rate: Option<f64>,
    /// Requests to simulate [default: the whole trace, or 2000]
    #[arg(long, help_heading = "Load", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub requests: Option<u64>,
    /// Tokens of a block [default: 512 for Mooncake's format, 64 for sessions, else 16]
    #[arg(long, help_heading = "Load", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub block_tokens: Option<u32>,
    /// Seed of drawn requests and sessions
    #[arg(long, help_heading = "Load", value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub sessions: SessionArgs,
    /// Model: llama-8b, llama-70b, qwen3-32b or another of `cenote-lab sim`
    #[arg(long, help_heading = "Engine", value_name = "NAME", default_value = "llama-8b")]
    pub model: String,
    /// Configuration of a model with attention in all layers, instead of --model
    #[arg(long, help_heading = "Engine", value_name = "FILE", conflicts_with = "model")]
    pub model_config: Option<PathBuf>,
    /// GPU: a100, a100-40, h200, l20 or a6000
    #[arg(long, help_heading = "Engine", value_name = "NAME", default_value = "h200")]
    pub gpu: String,
    /// GPUs that share each layer of an engine
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tp: u32,
    /// Most requests that an engine runs at once
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 256, value_parser = positive)]
    pub max_num_seqs: usize,
    /// Most tokens of a step
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(16..))]
    pub max_num_batched_tokens: u32,
    /// Numbers of GPUs of a host to try
    #[arg(long, help_heading = "Machines", value_name = "N,…", value_delimiter = ',', default_value = "8", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus_per_host: Vec<u32>,
    /// Most hosts of the rack
    #[arg(long, help_heading = "Machines", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub hosts_max: u32,
    /// Sizes of memory for KV to try, of each host or of the pool
    #[arg(
        long,
        help_heading = "Machines",
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "256GiB,512GiB,1TiB,2TiB,4TiB"
    )]
    pub memory: Vec<ByteSize>,
    /// Dollars for a GPU; our assumption
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = RackPrices::ASSUMED.gpu)]
    pub gpu_price: f64,
    /// Dollars for a host without GPUs; our assumption
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = RackPrices::ASSUMED.host)]
    pub host_price: f64,
    /// Dollars for a card of 100 Gb/s with its share of a switch; our assumption
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = RackPrices::ASSUMED.card)]
    pub card_price: f64,
    #[command(flatten)]
    pub memory_prices: MemoryPriceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn positive_number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("it must be above 0".to_owned()) }
}
