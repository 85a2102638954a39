//! Rows of a model's tables for the tokens of a sequence.
//!
//! An n-gram of order `n` at a position reads the `n` ids that end there. It reads them back to
//! the first one that blocks; that one's predecessors, and all before the start, read as the pad
//! id. DeepSeek blocks at a masked token, which reads as pad itself; Qwen blocks at an
//! end-of-sequence token before the position. So each position has a *reach*, the number of ids
//! that its n-grams may read.
//!
//! A token that the configuration masks (`image_token_id`) is masked wherever it stands. Callers mark
//! further positions.

use crate::config::{Family, NgramConfig};
use crate::error::{ConfigError, TokenError};
use crate::hash::{LayerHash, layers_of};
use crate::kernel::{Kernel, Run};
use crate::token_map::TokenMap;
use pulp::Arch;

/// Positions whose rows are computed layer by layer: their ids stay in the first cache.
const BLOCK: usize = 64;

/// Tokens of a sequence, in their order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens<'a> {
    /// Token ids of the tokenizer.
    pub ids: &'a [u32],
    /// Masked positions besides those of [`NgramConfig::masked_token`], one flag per token, or none.
    /// DeepSeek masks what no text token stands for (images); Qwen's masked positions (padding) read
    /// as end-of-sequence tokens.
    pub masked: Option<&'a [bool]>,
}

impl<'a> From<&'a [u32]> for Tokens<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self { ids, masked: None }
    }
}

/// The end of a sequence, as far as the next position's n-grams read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The last `N - 1` ids, the newest last.
    ids: Vec<u32>,
    /// How many of them the next position may read.
    usable: u8,
}

/// Computes rows of a model's tables.
#[derive(Clone, Debug)]
pub struct Addresses {
    config: NgramConfig,
    map: Option<TokenMap>,
    layers: Vec<LayerHash>,
    kernels: Vec<Kernel>,
    /// The id that an n-gram reads where it has none.
    pad: u32,
    arch: Arch,
}

impl Addresses {
    /// The tables of a configuration. `map` compresses ids for the family that needs it; the other
    /// hashes raw ids and drops it.
    ///
    /// # Errors
    /// The map is missing, has another number of ids than the model or no pad token, or a table
    /// has too few rows.
    pub fn new(config: NgramConfig, map: Option<TokenMap>) -> Result<Self, ConfigError> {
        let (map, pad) = match config.family() {
            Family::Qwen => (None, config.pad_token),
            Family::DeepSeek => {
                let map = map.ok_or(ConfigError::NoMap)?;
                if map.size() != config.ids {
                    return Err(ConfigError::OtherVocabulary { found: map.size(), expected: config.ids });
                }
                let token = config.pad_token;
                let pad = map.ids().get(token as usize).copied().ok_or(ConfigError::PadOutside {
                    key: "engram_pad_token_id",
                    token,
                    tokens: map.ids().len() as u64,
                })?;
                (Some(map), pad)
            }
        };
        let layers = layers_of(&config)?;
        let kernels = layers.iter().map(Kernel::new).collect();
        Ok(Self { config, map, layers, kernels, pad, arch: Arch::new() })
    }

    /// The same with hashes that the checkpoint publishes, in the order of the layers
    /// ([`LayerHash::published`]).
    #[must_use]
    pub fn with_layers(mut self, layers: Vec<LayerHash>) -> Self {
        assert_eq!(layers.len(), self.layers.len(), "one hash for each layer");
        self.kernels = layers.iter().map(Kernel::new).collect();
        self.layers = layers;
        self
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &NgramConfig {
        &self.config
    }

    /// The token map, if the family has one.
    #[must_use]
    pub const fn map(&self) -> Option<&TokenMap> {
        self.map.as_ref()
    }

    /// The hash of each layer.
    #[must_use]
    pub fn layers(&self) -> &[LayerHash] {
        &self.layers
    }

    /// The id that n-grams read where they have none.
    #[must_use]
    pub const fn pad(&self) -> u32 {
        self.pad
    }

    /// Rows of one position in all layers.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.kernels.iter().map(Kernel::columns).sum()
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> u64 {
        self.map.as_ref().map_or(self.config.ids, |map| map.ids().len() as u64)
    }

    /// Whether the model has this token. The masked one needs no place in the map.
    #[must_use]
    pub fn knows(&self, token: u32) -> bool {
        u64::from(token) < self.vocabulary() || self.config.masked_token() == Some(token)
    }

    /// The history of a sequence without tokens.
    #[must_use]
    pub fn start(&self) -> History {
        History { ids: vec![self.pad; self.config.orders()], usable: 0 }
    }

    /// Appends the rows of `tokens` behind `history` to `rows`, as `[position][layer][order][head]`,
    /// and moves `history` behind them. A sequence in several calls has the rows of one call.
    ///
    /// # Errors
    /// A token is outside the vocabulary; `history` and `rows` are unchanged.
    ///
    /// # Panics
    /// `masked` has another length than `ids`.
    pub fn rows(&self, history: &mut History, tokens: Tokens<'_>, rows: &mut Vec<u64>) -> Result<(), TokenError> {
        let (ids, reach) = self.read(history, tokens)?;
        let (columns, back) = (self.columns(), self.config.orders());
        let start = rows.len();
        rows.resize(start + reach.len() * columns, 0);
        for (at, out) in rows[start..].chunks_mut(BLOCK * columns).enumerate() {
            let at = at * BLOCK;
            let reach = &reach[at..reach.len().min(at + BLOCK)];
            let run = Run { ids: &ids[at..at + back + reach.len()], reach, pad: self.pad, stride: columns };
            let mut column = 0;
            for kernel in &self.kernels {
                kernel.rows(self.arch, &run, &mut out[column..]);
                column += kernel.columns();
            }
        }
        Ok(())
    }

    /// Moves `history` behind `tokens` without computing rows.
    ///
    /// # Errors
    /// A token is outside the vocabulary; `history` is unchanged.
    ///
    /// # Panics
    /// `masked` has another length than `ids`.
    pub fn skip(&self, history: &mut History, tokens: Tokens<'_>) -> Result<(), TokenError> {
        self.read(history, tokens).map(drop)
    }

    /// Ids of the history and the tokens, and the reach of each token. Moves the history.
    fn read(&self, history: &mut History, tokens: Tokens<'_>) -> Result<(Vec<u32>, Vec<u8>), TokenError> {
        if let Some(masked) = tokens.masked {
            assert_eq!(masked.len(), tokens.ids.len(), "one flag for each token");
        }
        let back = self.config.orders();
        let mut ids = Vec::with_capacity(back + tokens.ids.len());
        ids.extend_from_slice(&history.ids);
        self.compress(tokens.ids, &mut ids)?;
        let masked_token = self.config.masked_token();
        let is_masked =
            |at: usize| masked_token == Some(tokens.ids[at]) || tokens.masked.is_some_and(|masked| masked[at]);
        let mut reach = Vec::with_capacity(tokens.ids.len());
        let mut usable = history.usable;
        match self.config.family() {
            Family::DeepSeek => reach.extend((0..tokens.ids.len()).map(|at| {
                let reach = if is_masked(at) { 0 } else { usable + 1 };
                usable = reach.min(back as u8);
                reach
            })),
            Family::Qwen => reach.extend(ids[back..].iter_mut().enumerate().map(|(at, id)| {
                if is_masked(at) {
                    *id = self.pad;
                }
                let reach = usable + 1;
                usable = if *id == self.pad { 0 } else { reach.min(back as u8) };
                reach
            })),
        }
        history.usable = usable;
        history.ids.copy_from_slice(&ids[ids.len() - back..]);
        Ok((ids, reach))
    }

    fn compress(&self, tokens: &[u32], ids: &mut Vec<u32>) -> Result<(), TokenError> {
        if let Some(index) = tokens.iter().position(|token| !self.knows(*token)) {
            return Err(TokenError { index, token: tokens[index], tokens: self.vocabulary() });
        }
        match &self.map {
            // No n-gram reads the id of a masked token.
            Some(map) => {
                ids.extend(tokens.iter().map(|token| map.ids().get(*token as usize).copied().unwrap_or(self.pad)));
            }
            None => ids.extend_from_slice(tokens),
        }
        Ok(())
    }
}
