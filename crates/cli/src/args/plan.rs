//! The flags of `cenote plan`.

use super::engram::TablesArgs;
use cenote_base::units::ByteSize;
use cenote_console::args::positive;
use cenote_console::output::OutputArgs;
use cenote_engram::Stored;
use cenote_plan::cost::{Prices, RackPrices};
use cenote_plan::traffic::Link;
use cenote_serving_sim::workload::TraceFormat;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum PlanCommands {
    /// Plan a model's n-gram tables: bytes, windows, copies, ranks, costs; the Engram paper beside
    Engram(PlanEngramArgs),
    /// Plan a model's KV: bytes per token, links, copies, ranks, costs
    Kv(PlanKvArgs),
    /// Plan a rack for a load and a time to the first token: hosts, memory for KV and its link, by simulation
    ///
    /// Simulates racks with KV in the engines alone, in DRAM of each host, in a pool over RDMA, and in a
    /// pool behind a CXL switch, with the product's scheduler and eviction. Prints the cheapest rack of
    /// each kind that meets the goal.
    Rack(PlanRackArgs),
}

#[derive(Args, Debug)]
pub struct PlanEngramArgs {
    #[command(flatten)]
    pub tables: TablesArgs,
    /// Format of the rows: e4m3-ue8m0, e4m3, f16 or bf16 [default: the family's]
    #[arg(long, value_name = "FORMAT")]
    pub row_format: Option<Stored>,
    /// Layers of the model [default: the configuration's, or 64]
    #[arg(long, value_name = "N")]
    pub layers: Option<u64>,
    #[command(flatten)]
    pub setting: SettingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PlanKvArgs {
    /// Configuration of any model
    #[arg(long, value_name = "FILE")]
    pub model_config: PathBuf,
    /// Bytes of a value [default: by the model's type]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8))]
    pub value_bytes: Option<u64>,
    /// Tokens of a sequence [default: the model's longest, at most 32768]
    #[arg(long, value_name = "N")]
    pub context: Option<u64>,
    /// Sequences to keep
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub sequences: u64,
    #[command(flatten)]
    pub setting: SettingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Format of a trace.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackTraceArg {
    /// Lines of JSON with `timestamp`, `input_length`, `output_length` and `hash_ids`
    Mooncake,
    /// CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`
    Azure,
    /// CSV with `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`
    Burstgpt,
}

impl From<RackTraceArg> for TraceFormat {
    fn from(format: RackTraceArg) -> Self {
        match format {
            RackTraceArg::Mooncake => Self::Mooncake,
            RackTraceArg::Azure => Self::Azure,
            RackTraceArg::Burstgpt => Self::BurstGpt,
        }
    }
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
    pub format: Option<RackTraceArg>,
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
    /// Tokens of a block [default: 512 for Mooncake's format, else 16]
    #[arg(long, help_heading = "Load", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub block_tokens: Option<u32>,
    /// Seed of drawn requests
    #[arg(long, help_heading = "Load", value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Model: llama-8b, llama-70b, qwen3-32b or another of `cenote-lab sim`
    #[arg(long, help_heading = "Engine", value_name = "NAME", default_value = "llama-8b")]
    pub model: String,
    /// Configuration of a dense model, instead of --model
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
    /// Dollars for an RDMA card with its share of a switch; our assumption
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = RackPrices::ASSUMED.card)]
    pub card_price: f64,
    #[command(flatten)]
    pub memory_prices: MemoryPriceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Prices of memory and of a pool behind a switch.
#[derive(Args, Debug)]
pub struct MemoryPriceArgs {
    /// Dollars for a gigabyte of DRAM
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.dram_gb)]
    pub dram_price: f64,
    /// Dollars for a CXL switch
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.switch)]
    pub switch_price: f64,
    /// Dollars for a host's adapter
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.adapter)]
    pub adapter_price: f64,
    /// Dollars for a memory controller, one per host
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.controller)]
    pub controller_price: f64,
    /// Ports of a switch; a node takes two
    #[arg(long, help_heading = "Prices", value_name = "N", default_value_t = Prices::PAPER.switch_ports)]
    pub switch_ports: u32,
}

/// The engine, the machines and the prices.
#[derive(Args, Debug)]
pub struct SettingArgs {
    /// Tokens per second of a node
    #[arg(long, help_heading = "Engine", value_name = "T", default_value_t = 70_000.0)]
    pub tokens_per_second: f64,
    /// Milliseconds of a step
    #[arg(long, help_heading = "Engine", value_name = "MS", default_value_t = 3.6)]
    pub step_ms: f64,
    /// Tokens of a step
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 256)]
    pub batch: u64,
    /// Replicas on a node
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 1)]
    pub dp: u32,
    /// Ranks that share each layer
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 1)]
    pub tp: u32,
    /// Stages of layers
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 1)]
    pub pp: u32,
    /// Nodes with such an engine
    #[arg(long, help_heading = "Engine", value_name = "N", default_value_t = 2)]
    pub nodes: u32,
    /// Link to the pool in GB/s; may be repeated [default: PCIe 5.0 x16 of 64, 100GbE of 12.5]
    #[arg(long, help_heading = "Machines", value_name = "NAME=GB/S", value_parser = link)]
    pub link: Vec<Link>,
    /// Memory of a node
    #[arg(long, help_heading = "Machines", value_name = "SIZE", default_value = "1TiB")]
    pub host_memory: ByteSize,
    /// Memory of the pool
    #[arg(long, help_heading = "Machines", value_name = "SIZE", default_value = "4TiB")]
    pub pool_memory: ByteSize,
    /// Numbers of nodes to price
    #[arg(long, help_heading = "Prices", value_name = "N,…", value_delimiter = ',', default_value = "2,4,8,16")]
    pub priced_nodes: Vec<u32>,
    #[command(flatten)]
    pub memory_prices: MemoryPriceArgs,
}

fn positive_number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("it must be above 0".to_owned()) }
}

impl MemoryPriceArgs {
    /// The prices of the flags.
    pub const fn prices(&self) -> Prices {
        Prices {
            dram_gb: self.dram_price,
            switch: self.switch_price,
            adapter: self.adapter_price,
            controller: self.controller_price,
            switch_ports: self.switch_ports,
        }
    }
}

fn link(text: &str) -> Result<Link, String> {
    let (name, gigabytes) = text.split_once('=').ok_or_else(|| "it must be NAME=GB/S, as in CXL=64".to_owned())?;
    let gigabytes: f64 = gigabytes.parse().map_err(|_| format!("`{gigabytes}` is no number of GB/s"))?;
    Ok(Link { name: name.to_owned(), bytes_per_second: gigabytes * 1e9 })
}
