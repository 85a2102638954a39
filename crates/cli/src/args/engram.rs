//! The flags of `cenote engram`.

use cenote_console::args::{RegionArgs, parse_seconds};
use cenote_console::output::OutputArgs;
use cenote_engram::{Preset, Stored};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub enum EngramCommands {
    /// Compute the rows that tokens read in a model's n-gram tables
    Rows(EngramRowsArgs),
    /// Decode stored rows to bf16
    Dequant(EngramDequantArgs),
    /// Load a model's tables into a region, or go on with a load that was interrupted
    Load(EngramLoadArgs),
    /// List the tables of a region
    Info(EngramInfoArgs),
    /// Compare tables with their checksums; exits with 2 if one is damaged
    Check(EngramCheckArgs),
    /// Free a table; engines that read it get errors from then on
    Drop(EngramDropArgs),
}

#[derive(Args, Debug)]
pub struct EngramLoadArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Folder of a model with n-gram tables: config.json and safetensors files
    #[arg(long, value_name = "FOLDER", required_unless_present = "weights", conflicts_with = "weights")]
    pub model: Option<PathBuf>,
    /// Only the table of this layer, as config.json counts; may be repeated
    #[arg(long = "layer", value_name = "N", requires = "model")]
    pub layers: Vec<u64>,
    /// A safetensors file with a table, instead of a model
    #[arg(long, value_name = "FILE", requires = "tensor")]
    pub weights: Option<PathBuf>,
    /// Name of the table's values in --weights
    #[arg(long, value_name = "NAME", requires = "weights")]
    pub tensor: Option<String>,
    /// Name of the ue8m0 scales in --weights
    #[arg(long, value_name = "NAME", requires = "weights")]
    pub scales: Option<String>,
    /// Scale of the whole table, for e4m3 values without scales
    #[arg(long, value_name = "F32", requires = "weights", conflicts_with = "scales", value_parser = finite)]
    pub scale: Option<f32>,
    /// Name of the table in the region; a model's tables get `.L` and their layer behind it. Unless
    /// given, the folder's name and a digest of its path
    #[arg(long, value_name = "NAME", required_unless_present = "model")]
    pub table: Option<String>,
    /// How long to wait for another process that loads the table
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = parse_seconds)]
    pub wait: Duration,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct EngramInfoArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct EngramCheckArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Tables to check; all unless given
    #[arg(value_name = "TABLE")]
    pub tables: Vec<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct EngramDropArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Tables to free
    #[arg(value_name = "TABLE", required = true)]
    pub tables: Vec<String>,
    /// How long to wait for another process that loads or drops the table
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub wait: Duration,
}

/// The model of a command about n-gram tables.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct TablesArgs {
    /// Configuration of a model with n-gram tables (DeepSeek Engram, Qwen PLE)
    #[arg(long, value_name = "FILE")]
    pub model_config: Option<PathBuf>,
    /// Table sizes of the Engram paper, with DeepSeek's hash: engram-27b or engram-40b
    #[arg(long, value_name = "NAME", value_parser = preset)]
    pub preset: Option<Preset>,
}

#[derive(Args, Debug)]
pub struct EngramRowsArgs {
    #[command(flatten)]
    pub tables: TablesArgs,
    /// Tokenizer of the model, from which DeepSeek's ids are compressed
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// JSON with the sequences, and perhaps a token map
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// Add the token map to the result
    #[arg(long)]
    pub map: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct EngramDequantArgs {
    /// Format of the rows: e4m3-ue8m0, e4m3, f16 or bf16
    #[arg(long, value_name = "FORMAT")]
    pub format: Stored,
    /// Scale of the table, for e4m3
    #[arg(long, value_name = "F32", value_parser = finite)]
    pub scale: Option<f32>,
    /// JSON with the rows in hexadecimal
    #[arg(long, value_name = "FILE")]
    pub rows: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn preset(text: &str) -> Result<Preset, String> {
    let found = Preset::ALL.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, preset)| preset).ok_or_else(|| "it must be engram-27b or engram-40b".to_owned())
}

fn finite(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|scale: &f32| scale.is_finite()).ok_or_else(|| "not a finite number".to_owned())
}
