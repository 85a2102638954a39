//! Floor 1: n-gram embedding tables of language models, as pure functions.
//!
//! A model with such tables hashes the last tokens of a position to row numbers and adds the rows
//! to its residual stream (Engram, arXiv 2601.07372). [`NgramConfig`] reads a model's
//! `config.json`, [`TokenMap`] compresses token ids, [`Addresses`] computes rows, and
//! [`RowFormat`] turns stored rows into bf16. Results are bit for bit those of the models'
//! published code; docs/guides/engram.md states the rules.
//!
//! | family | models | ids | multipliers | where an n-gram ends |
//! |---|---|---|---|---|
//! | [`Family::DeepSeek`] | DeepSeek-V4.1 Engram, the paper's sizes | compressed | numpy's PCG64 | masked tokens, start |
//! | [`Family::Qwen`] | Qwen3.8 PLE | raw | splitmix64 | end-of-sequence tokens, start |
#![forbid(unsafe_code)]

mod addresses;
mod config;
mod digest;
mod error;
mod format;
mod hash;
mod kernel;
mod preset;
mod primes;
mod random;
mod token_map;

pub use addresses::{Addresses, History, Tokens};
pub use config::{Family, NgramConfig, Scheme};
pub use digest::{RUN_ROWS, TableDigest, run_digests};
pub use error::{ConfigError, FormatError, MapError, TokenError};
pub use format::{RowFormat, Stored};
pub use hash::{LayerHash, layers_of as layer_hashes};
pub use kernel::vector_level;
pub use preset::Preset;
pub use token_map::TokenMap;
