//! Flags of the reference engine.

use super::wire::{optional_path, optional_text, text};
use crate::failure::Failure;
use crate::usage;
use cenote_base::units::ByteSize;
use cenote_codec::{LayerSpecs, SpecError};
use cenote_engine::ElementType;
use cenote_policy::Watermark;
use cenote_policy::choice::{ChoiceKind, UnknownChoice};
use cenote_store::cold;
use clap::{Args, FromArgMatches, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A model to measure, not to serve.
#[derive(Args, Debug)]
pub struct StudiedModelArgs {
    /// Hugging Face directory of a Llama-family model [default: the demo model]
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    pub model: Option<PathBuf>,
    /// Element type of weights and raw KV
    #[arg(long, value_enum, env = "CENOTE_DTYPE", default_value = "f32")]
    pub dtype: DtypeArg,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", env = "CENOTE_THREADS", value_parser = positive)]
    pub threads: Option<usize>,
}

/// Element type of weights and KV.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DtypeArg {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
}

impl DtypeArg {
    /// The engine's element type.
    #[must_use]
    pub const fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::Bf16 => ElementType::Bf16,
        }
    }

    /// The flag's value.
    #[must_use]
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

/// The reference engine. A front passes it to its workers as a whole.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineArgs {
    /// Hugging Face directory of a Llama-family model [default: the demo model]
    #[arg(long, value_name = "DIR", env = "CENOTE_MODEL")]
    #[serde(with = "optional_path")]
    pub model: Option<PathBuf>,
    /// Served model name [default: the directory's name]
    #[arg(long, value_name = "NAME", env = "CENOTE_MODEL_NAME")]
    pub model_name: Option<String>,
    /// Element type of weights and KV
    #[arg(long, value_enum, env = "CENOTE_DTYPE", default_value = "f32")]
    pub dtype: DtypeArg,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", env = "CENOTE_THREADS", value_parser = positive)]
    pub threads: Option<usize>,
    /// Maximum tokens of prompt and output [default: the model's limit]
    #[arg(long, value_name = "N", env = "CENOTE_MAX_MODEL_LEN")]
    pub max_model_len: Option<u32>,
    /// Tokens per KV block
    #[arg(long, value_name = "N", env = "CENOTE_BLOCK_TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(16..=256))]
    pub block_tokens: u32,
    /// Memory for the engine's own KV blocks (L1)
    #[arg(long, value_name = "SIZE", env = "CENOTE_KV_SIZE", default_value = "256MiB")]
    pub kv_size: ByteSize,
    /// Maximum requests that run at once
    #[arg(long, value_name = "N", env = "CENOTE_MAX_NUM_SEQS", default_value_t = 64, value_parser = positive)]
    pub max_num_seqs: usize,
    /// Maximum tokens computed in one step
    #[arg(long, value_name = "N", env = "CENOTE_MAX_NUM_BATCHED_TOKENS", default_value_t = 512, value_parser = positive)]
    pub max_num_batched_tokens: usize,
    /// Maximum waiting requests; more get 503
    #[arg(long, value_name = "N", env = "CENOTE_MAX_WAITING", default_value_t = 512, value_parser = positive)]
    pub max_waiting: usize,
    /// Blocks that admission leaves free: fixed:SHARE, opt:FACTOR, avg-above:BLOCKS,
    /// avg-below:BLOCKS or learned (docs/internals/policies.md)
    #[arg(long, value_name = "KIND", env = "CENOTE_WATERMARK", default_value = "fixed:0.01")]
    #[serde(with = "text")]
    pub watermark: Watermark,
    /// Bytes of the region for KV of running requests that the engine's own memory has no room for;
    /// each step streams it. Without it such requests are preempted or refused
    #[arg(long, value_name = "SIZE", env = "CENOTE_SPILL", default_value = "0")]
    pub spill: ByteSize,
    /// Threads that copy such KV beside the computation
    #[arg(long, value_name = "N", env = "CENOTE_MOVER_THREADS", default_value_t = 1, value_parser = positive)]
    pub mover_threads: usize,
    /// Pages that each group of heads reads in a decode step, besides the newest tokens: those that the
    /// query scores highest. Without it attention reads all pages
    #[arg(long, value_name = "N", env = "CENOTE_SPARSE_PAGES", value_parser = positive)]
    pub sparse_pages: Option<usize>,
    /// Pages that stay in the engine's own memory for each request, layer and group of heads [default:
    /// twice --sparse-pages]
    #[arg(long, value_name = "N", env = "CENOTE_SPARSE_HOT_PAGES", requires = "sparse_pages")]
    pub sparse_hot_pages: Option<usize>,
    /// What predicts the pages of the next step, to prefetch them: last, averaged, neighbor:LAYERS, lstm
    /// or none
    #[arg(long, value_name = "KIND", env = "CENOTE_SPARSE_PREDICTOR", default_value = "none")]
    #[serde(with = "text")]
    pub sparse_predictor: Predictor,
    /// Read n-gram tables from the region instead of the model's folder: those that `cenote engram load
    /// --table NAME` brought
    #[arg(long, value_name = "NAME", env = "CENOTE_ENGRAM_TABLES")]
    pub engram_tables: Option<String>,
    /// Memory for copies of KV blocks and n-gram rows that came from the region, if the region is slower
    /// than this memory; measured hit curves divide it
    #[arg(long, value_name = "SIZE", env = "CENOTE_NEAR_SIZE", default_value = "0")]
    pub near_size: ByteSize,
    /// Bytes of the region for preempted requests; without it they are recomputed
    #[arg(long, value_name = "SIZE", env = "CENOTE_SWAP", default_value = "0")]
    pub swap: ByteSize,
    /// Swap even where recomputing would be faster
    #[arg(long, env = "CENOTE_ALWAYS_SWAP")]
    pub always_swap: bool,
    /// Log and count why the region lacks the first missing block of a request (log target `misses`)
    #[arg(long, env = "CENOTE_LOG_MISSES")]
    pub log_misses: bool,
    /// Trace of swaps, one line of JSON each (docs/guides/serve.md); workers append their names to
    /// the file's
    #[arg(long, value_name = "FILE", env = "CENOTE_SWAP_TRACE")]
    #[serde(with = "optional_path")]
    pub swap_trace: Option<PathBuf>,
    /// Codec of blocks in the region: raw, int8, oaken, qpack:RATE, qpackz:RATE or prism:RATE, for all layers
    /// or by layer as in `0-1=int8,qpack:0.5`; auto reads the codec table
    #[arg(long, value_name = "CODEC", env = "CENOTE_CODEC")]
    #[serde(with = "optional_text")]
    pub codec: Option<CodecArg>,
    /// Codec for cold blocks of a full region, instead of evicting them; all workers that share the
    /// blocks should have the same
    #[arg(long, value_name = "CODEC", env = "CENOTE_COLD_CODEC")]
    #[serde(with = "optional_text")]
    pub cold_codec: Option<CodecArg>,
    /// Profile of the model, from `cenote profile`; oaken, qpack, qpackz and prism need it
    #[arg(long, value_name = "FILE", env = "CENOTE_PROFILE")]
    #[serde(with = "optional_path")]
    pub profile: Option<PathBuf>,
    /// Codec table of the model and profile, from `cenote-lab choose`; `--codec auto` needs it
    #[arg(long, value_name = "FILE", env = "CENOTE_CODEC_TABLE")]
    #[serde(with = "optional_path")]
    pub codec_table: Option<PathBuf>,
    /// Maximum divergence from the model without codecs under `--codec auto`, nats per token
    /// [default and maximum: the table's limit]
    #[arg(long, value_name = "KL", env = "CENOTE_KL_MAX")]
    #[serde(with = "optional_text")]
    pub kl_max: Option<f64>,
    /// Disk directory, object store (s3:, gs:, az:) or Redis server (redis:, redis-cluster:) for blocks that
    /// outlive the region, with options as in DIR,size=64GiB,write=published,deadline=2 (docs/guides/cold.md)
    #[arg(long, value_name = "PLACE", env = "CENOTE_COLD", hide_env_values = true, hide_default_value = true)]
    #[serde(with = "optional_text")]
    pub cold: Option<cold::Settings>,
    /// Other hosts, for blocks that are missing here: addresses of their `cenote pool share`, as
    /// HOST:PORT,HOST:PORT,deadline=0.5 (docs/guides/reach.md)
    #[arg(long, value_name = "PEERS", env = cenote_reach::PEERS_VARIABLE, requires = "peer_key_file")]
    #[serde(with = "optional_text")]
    pub peers: Option<cenote_reach::Settings>,
    /// The key of hosts that read each other's regions: 64 hex digits
    #[arg(long, value_name = "FILE", env = cenote_reach::KEY_FILE_VARIABLE)]
    #[serde(with = "optional_path")]
    pub peer_key_file: Option<PathBuf>,
    /// NIXL's library libnixl_capi.so [default: the dynamic linker looks for it]
    #[arg(long, value_name = "FILE", env = cenote_reach::NIXL_VARIABLE)]
    #[serde(with = "optional_path")]
    pub nixl: Option<PathBuf>,
    /// Salt of the tenant; different salts never share a block
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

/// Parses a count of at least 1.
///
/// # Errors
/// The text is no number, or 0.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("`{text}` is not a number")),
    }
}

/// A predictor, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictor(pub Option<ChoiceKind>);

impl FromStr for Predictor {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|kind| Self(Some(kind))) }
    }
}

impl fmt::Display for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("none"),
            Some(kind) => kind.fmt(f),
        }
    }
}
