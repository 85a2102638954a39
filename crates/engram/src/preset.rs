//! The table sizes of the Engram paper, which publishes no configuration.

use crate::config::{NgramConfig, Scheme};
use crate::error::ConfigError;
use crate::hash::layers_of;

/// Table sizes of the Engram paper, with DeepSeek's hash and vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Engram-27B: 2,262,400 rows per head.
    Engram27B,
    /// Engram-40B: 7,239,680 rows per head.
    Engram40B,
}

impl Preset {
    /// The presets and their names.
    pub const ALL: [(&'static str, Self); 2] = [("engram-27b", Self::Engram27B), ("engram-40b", Self::Engram40B)];

    /// Rows of a head by the paper (§5.2).
    #[must_use]
    pub const fn rows(self) -> u64 {
        match self {
            Self::Engram27B => 2_262_400,
            Self::Engram40B => 7_239_680,
        }
    }

    /// Orders 2 and 3, 8 heads, rows of 160 values in layers 2 and 15. The paper counts layers
    /// from one: its window before layer 2 is one layer.
    ///
    /// # Errors
    /// Never; the type is that of other configurations.
    pub fn config(self) -> Result<NgramConfig, ConfigError> {
        let mut config = NgramConfig {
            scheme: Scheme::DeepSeek { declared_rows: Vec::new(), image_token: None },
            layer_ids: vec![1, 14],
            order_max: 3,
            heads: 8,
            prime_start: self.rows(),
            row_values: 160,
            ids: 99_092,
            pad_token: 2,
        };
        let rows = layers_of(&config)?.iter().map(|layer| layer.rows).collect();
        config.scheme = Scheme::DeepSeek { declared_rows: rows, image_token: None };
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_sizes_are_configurations() {
        for (name, preset) in Preset::ALL {
            let config = preset.config().unwrap();
            assert_eq!(config.rows_per_token() * config.row_values * 2, 5120, "{name}: 5 KB a token and layer");
            let layers = layers_of(&config).unwrap();
            assert!(layers.iter().all(|layer| layer.primes[0][0] >= preset.rows()), "{name}");
        }
    }
}
