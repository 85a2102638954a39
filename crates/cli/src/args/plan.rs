//! The flags of `cenote plan`.

use super::engram::TablesArgs;
use cenote_base::units::ByteSize;
use cenote_console::args::MemoryPriceArgs;
use cenote_console::output::OutputArgs;
use cenote_engram::Stored;
use cenote_plan::traffic::Link;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum PlanCommands {
    /// Plan a model's n-gram tables: bytes, windows, copies, ranks, costs; the Engram paper beside
    Engram(PlanEngramArgs),
    /// Plan a model's KV: bytes per token, links, copies, ranks, costs
    Kv(PlanKvArgs),
    /// Names the program that plans racks
    #[command(hide = true, disable_help_flag = true)]
    Rack {
        /// Flags of `cenote-lab plan rack`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
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

fn link(text: &str) -> Result<Link, String> {
    let (name, gigabytes) = text.split_once('=').ok_or_else(|| "it must be NAME=GB/S, as in CXL=64".to_owned())?;
    let gigabytes: f64 = gigabytes.parse().map_err(|_| format!("`{gigabytes}` is no number of GB/s"))?;
    Ok(Link { name: name.to_owned(), bytes_per_second: gigabytes * 1e9 })
}
