//! The flags of `cenote engram`.

use cenote_console::output::OutputArgs;
use cenote_engram::{Preset, Stored};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum EngramCommands {
    /// Compute the rows that tokens read in a model's n-gram tables
    Rows(EngramRowsArgs),
    /// Decode stored rows to bf16
    Dequant(EngramDequantArgs),
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
