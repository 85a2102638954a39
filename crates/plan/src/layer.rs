//! What a layer keeps for later tokens, and the bytes of it.
//!
//! A plan adds these bytes and knows nothing else of a model, so a kind of layer that is not here
//! cannot be counted as another one.

use serde::Serialize;

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Heads {
    /// Key and value heads.
    pub heads: u64,
    /// Values of a key.
    pub key_dim: u64,
    /// Values of a value vector.
    pub value_dim: u64,
}

impl Heads {
    /// Values of a token.
    const fn values(&self) -> u64 {
        self.heads * (self.key_dim + self.value_dim)
    }
}

/// What a layer keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Layer {
    /// Keys and values of every token.
    Full {
        /// Heads.
        #[serde(flatten)]
        heads: Heads,
    },
    /// Keys and values of the most recent tokens.
    Window {
        /// Heads.
        #[serde(flatten)]
        heads: Heads,
        /// Most recent tokens.
        tokens: u64,
    },
    /// Keys and values of the tokens since the last multiple of `tokens`.
    Chunk {
        /// Heads.
        #[serde(flatten)]
        heads: Heads,
        /// Tokens of a chunk.
        tokens: u64,
    },
    /// One latent vector per token for all heads (MLA).
    Latent {
        /// Values of the vector, with the rotary part.
        values: u64,
        /// Bytes of the indexer's key of a token; zero: no indexer.
        index_bytes: u64,
    },
    /// A recent window of vectors, and one vector for each run of `ratio` tokens.
    Compressed {
        /// Bytes of a vector, which is key and value, in a format of its own: no type of KV changes them.
        bytes: u64,
        /// Tokens of a run; zero: no runs.
        ratio: u64,
        /// Most recent tokens.
        window: u64,
        /// Bytes of the indexer's key of a run; zero: no indexer.
        index_bytes: u64,
    },
    /// A state of fixed size per sequence.
    State {
        /// Bytes, in the types that the model computes with.
        bytes: u64,
    },
    /// Keys and values that an earlier layer keeps.
    Shared {
        /// That layer, counted from zero.
        with: u64,
    },
    /// Two or more of these side by side.
    Several {
        /// The parts.
        parts: Vec<Layer>,
    },
    /// Nothing: the layer has no memory.
    Nothing,
}

impl Layer {
    /// Attention, and a state of the same layer.
    pub(crate) fn with(self, other: Self) -> Self {
        match self {
            Self::Several { mut parts } => {
                parts.push(other);
                Self::Several { parts }
            }
            one => Self::Several { parts: vec![one, other] },
        }
    }

    /// Whether KV in FP8 has a byte for each value. Engines keep latents with an index in a packed format, and
    /// others in the model's type unless `by_modelopt`.
    pub(crate) fn has_plain_fp8(&self, by_modelopt: bool) -> bool {
        match self {
            Self::Latent { index_bytes, .. } => by_modelopt && *index_bytes == 0,
            Self::Several { parts } => parts.iter().all(|part| part.has_plain_fp8(by_modelopt)),
            _ => true,
        }
    }

    /// Whether bytes of a token have a format that no type of KV changes.
    #[must_use]
    pub fn has_own_format(&self) -> bool {
        match self {
            Self::Compressed { .. } => true,
            Self::Several { parts } => parts.iter().any(Self::has_own_format),
            _ => false,
        }
    }

    /// Bytes for one more token of a sequence that is longer than every window, if a value of KV
    /// has `value_bytes` bytes.
    #[must_use]
    pub fn token_bytes(&self, value_bytes: u64) -> f64 {
        let bytes = |values: u64| (values * value_bytes) as f64;
        match self {
            Self::Full { heads } => bytes(heads.values()),
            Self::Latent { values, index_bytes } => bytes(*values) + *index_bytes as f64,
            Self::Compressed { bytes, ratio, index_bytes, .. } if *ratio > 0 => {
                (*bytes + *index_bytes) as f64 / *ratio as f64
            }
            Self::Several { parts } => parts.iter().map(|part| part.token_bytes(value_bytes)).sum(),
            Self::Window { .. }
            | Self::Chunk { .. }
            | Self::Compressed { .. }
            | Self::State { .. }
            | Self::Shared { .. }
            | Self::Nothing => 0.0,
        }
    }

    /// Bytes of a token that the layer keeps for a while: also those of windows and chunks.
    #[must_use]
    pub fn written_bytes(&self, value_bytes: u64) -> f64 {
        match self {
            Self::Window { heads, .. } | Self::Chunk { heads, .. } => (heads.values() * value_bytes) as f64,
            Self::Several { parts } => parts.iter().map(|part| part.written_bytes(value_bytes)).sum(),
            Self::Compressed { bytes, .. } => self.token_bytes(value_bytes) + *bytes as f64,
            _ => self.token_bytes(value_bytes),
        }
    }

    /// Bytes that do not depend on the length of the sequence.
    #[must_use]
    pub fn state_bytes(&self) -> f64 {
        match self {
            Self::State { bytes } => *bytes as f64,
            Self::Several { parts } => parts.iter().map(Self::state_bytes).sum(),
            _ => 0.0,
        }
    }

    /// Bytes for a sequence of `tokens` tokens: at most, for windows and chunks.
    #[must_use]
    pub fn sequence_bytes(&self, tokens: u64, value_bytes: u64) -> f64 {
        let bytes = |kept: u64, values: u64| kept as f64 * values as f64 * value_bytes as f64;
        match self {
            Self::Full { .. } | Self::Latent { .. } => tokens as f64 * self.token_bytes(value_bytes),
            Self::Window { heads, tokens: most } | Self::Chunk { heads, tokens: most } => {
                bytes(tokens.min(*most), heads.values())
            }
            Self::Compressed { bytes, ratio, window, index_bytes } => {
                let runs = tokens.checked_div(*ratio).unwrap_or(0);
                (tokens.min(*window) + runs) as f64 * *bytes as f64 + runs as f64 * *index_bytes as f64
            }
            Self::Several { parts } => parts.iter().map(|part| part.sequence_bytes(tokens, value_bytes)).sum(),
            Self::State { .. } | Self::Shared { .. } | Self::Nothing => self.state_bytes(),
        }
    }

    /// Bytes for one more token on one of `ranks` ranks that divide the heads.
    #[must_use]
    pub fn rank_token_bytes(&self, value_bytes: u64, ranks: u64) -> f64 {
        match self {
            Self::Full { heads: Heads { heads, .. } } => {
                self.token_bytes(value_bytes) * heads.div_ceil(ranks) as f64 / (*heads).max(1) as f64
            }
            Self::Several { parts } => parts.iter().map(|part| part.rank_token_bytes(value_bytes, ranks)).sum(),
            // Every rank has the latent.
            _ => self.token_bytes(value_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { heads: 8, key_dim: 192, value_dim: 128 };

    #[test]
    fn only_full_layers_grow_with_the_sequence() {
        let per_token = 8.0 * 320.0 * 2.0;
        let state = Layer::State { bytes: 100 };
        for (layer, token, at_40, at_1000) in [
            (Layer::Full { heads: HEADS }, per_token, 40.0 * per_token, 1000.0 * per_token),
            (Layer::Window { heads: HEADS, tokens: 64 }, 0.0, 40.0 * per_token, 64.0 * per_token),
            (Layer::Chunk { heads: HEADS, tokens: 64 }, 0.0, 40.0 * per_token, 64.0 * per_token),
            (Layer::Latent { values: 576, index_bytes: 132 }, 1284.0, 40.0 * 1284.0, 1_284_000.0),
            (state.clone(), 0.0, 100.0, 100.0),
            (Layer::Shared { with: 3 }, 0.0, 0.0, 0.0),
            (Layer::Nothing, 0.0, 0.0, 0.0),
            (Layer::Full { heads: HEADS }.with(state), per_token, 40.0 * per_token + 100.0, 1000.0 * per_token + 100.0),
        ] {
            let bytes = (layer.token_bytes(2), layer.sequence_bytes(40, 2), layer.sequence_bytes(1000, 2));
            assert_eq!(bytes, (token, at_40, at_1000), "{layer:?}");
        }
    }

    #[test]
    fn states_and_index_keys_ignore_the_type_of_kv() {
        assert_eq!(Layer::State { bytes: 100 }.sequence_bytes(9, 1), 100.0);
        assert_eq!(Layer::Latent { values: 576, index_bytes: 132 }.token_bytes(1), 708.0);
    }

    #[test]
    fn a_window_is_written_with_each_token() {
        let window = Layer::Window { heads: HEADS, tokens: 64 };
        assert_eq!((window.token_bytes(2), window.written_bytes(2)), (0.0, 5120.0));
    }
}
