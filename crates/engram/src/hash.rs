//! Multipliers, primes and offsets of each layer.

use crate::config::{NgramConfig, Scheme};
use crate::error::ConfigError;
use crate::primes::primes_from;
use crate::random::{GAMMA, NumpyRng, splitmix64};

/// Layers' seeds lie so far apart, in both families.
const SEED_STEP: u64 = 10_007;

/// The hash of one layer's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerHash {
    /// The layer's id in the configuration.
    pub layer: u64,
    /// The factor of the token `s` positions back, for `s` from 0 to `N - 1`.
    pub multipliers: Vec<u64>,
    /// Rows of each head, `[order][head]`.
    pub primes: Vec<Vec<u64>>,
    /// First row of each head, `[order][head]`.
    pub offsets: Vec<Vec<u64>>,
    /// Rows of all heads.
    pub rows: u64,
    /// Rows of the table: those that DeepSeek declares, or `rows` rounded up to Qwen's multiple.
    pub padded_rows: u64,
}

/// The hashes of all layers, in the configuration's order.
///
/// # Errors
/// The heads of a layer need more rows than the configuration declares.
pub fn layers_of(config: &NgramConfig) -> Result<Vec<LayerHash>, ConfigError> {
    // Heads of all layers share one ascending run of primes.
    let mut primes = primes_from(config.prime_start);
    let mut layers = Vec::with_capacity(config.layer_ids.len());
    for (at, layer) in config.layer_ids.iter().enumerate() {
        let heads = (0..config.orders()).map(|_| primes.by_ref().take(config.heads).collect()).collect();
        let mut layer = with_offsets(*layer, multipliers(config, at as u64), heads, config);
        if let Scheme::DeepSeek { declared_rows, .. } = &config.scheme
            && let Some(declared) = declared_rows.get(at).copied()
        {
            if declared < layer.rows {
                let (needed, layer) = (layer.rows, layer.layer);
                return Err(ConfigError::TooFewRows { layer, needed, declared });
            }
            layer.padded_rows = declared;
        }
        layers.push(layer);
    }
    Ok(layers)
}

fn with_offsets(layer: u64, multipliers: Vec<u64>, primes: Vec<Vec<u64>>, config: &NgramConfig) -> LayerHash {
    let mut rows = 0;
    let mut first = |prime: &u64| {
        rows += prime;
        rows - prime
    };
    let offsets = primes.iter().map(|heads| heads.iter().map(&mut first).collect()).collect();
    let multiple = match config.scheme {
        Scheme::DeepSeek { .. } => 1,
        Scheme::Qwen { row_multiple, .. } => row_multiple,
    };
    LayerHash { layer, multipliers, primes, offsets, rows, padded_rows: rows.next_multiple_of(multiple) }
}

/// Odd factors, so small that no product with an id has a sign.
fn multipliers(config: &NgramConfig, at: u64) -> Vec<u64> {
    let bound = (i64::MAX as u64 / config.ids / 2).max(1);
    match config.scheme {
        Scheme::DeepSeek { .. } => {
            let mut rng = NumpyRng::new(SEED_STEP * config.layer_ids[at as usize]);
            (0..config.order_max).map(|_| 2 * rng.below(bound) + 1).collect()
        }
        Scheme::Qwen { seed, .. } => {
            // The place among the sorted layers counts here, not the id.
            let seed = (seed as u64).wrapping_add(SEED_STEP * at);
            let draw = |shift: u64| splitmix64(seed.wrapping_add(GAMMA.wrapping_mul(shift + 1)));
            (0..config.order_max as u64).map(|shift| 2 * (draw(shift) % bound) + 1).collect()
        }
    }
}

impl LayerHash {
    /// The hash that a checkpoint publishes, which replaces the computed one: Qwen's
    /// `layer_multipliers`, `ngram_heads_vocab_sizes` and `ngram_heads_offsets`, the last two
    /// order-major.
    ///
    /// # Errors
    /// A list has another length, a head is empty or ends behind the table, or a product with an id
    /// would overflow.
    pub fn published(
        &self,
        config: &NgramConfig,
        multipliers: &[u64],
        primes: &[u64],
        offsets: &[u64],
    ) -> Result<Self, ConfigError> {
        let refused = |what: String| Err(ConfigError::Published { layer: self.layer, what });
        let columns = config.rows_per_token();
        for (name, found, expected) in [
            ("multipliers", multipliers.len(), config.order_max),
            ("head sizes", primes.len(), columns),
            ("head offsets", offsets.len(), columns),
        ] {
            if found != expected {
                return refused(format!("{name} have {found} numbers; the configuration has {expected}"));
            }
        }
        let limit = i64::MAX as u64 / (config.ids - 1).max(1);
        if let Some(large) = multipliers.iter().find(|factor| **factor > limit) {
            return refused(format!("multiplier {large} is above {limit}, which overflows with the largest id"));
        }
        for (size, offset) in primes.iter().zip(offsets) {
            if *size == 0 || offset.checked_add(*size).is_none_or(|end| end > self.padded_rows) {
                return refused(format!(
                    "head of {size} rows from row {offset} is outside the {} rows of the table",
                    self.padded_rows
                ));
            }
        }
        let nested = |flat: &[u64]| flat.chunks(config.heads).map(<[u64]>::to_vec).collect();
        Ok(Self {
            multipliers: multipliers.to_vec(),
            primes: nested(primes),
            offsets: nested(offsets),
            rows: offsets.iter().zip(primes).map(|(offset, size)| offset + size).max().unwrap_or(0),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deepseek(rows: [u64; 2]) -> NgramConfig {
        let text = format!(
            r#"{{"engram_layer_ids": [1, 14], "engram_num_embeddings": {rows:?}, "engram_max_ngram_size": 3,
                "engram_n_heads": 8, "engram_head_dim": 160, "engram_vocab_size": 2262400,
                "engram_compressed_vocab_size": 99092, "engram_pad_token_id": 2}}"#
        );
        NgramConfig::parse(text.as_bytes()).unwrap()
    }

    fn qwen(layers: &str) -> NgramConfig {
        let text = format!(r#"{{"ple_layer_ids": {layers}, "ple_embed_dim": 2560, "eos_token_id": 248044}}"#);
        NgramConfig::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn heads_lie_side_by_side_and_share_no_prime() {
        let layers = layers_of(&deepseek([u64::MAX; 2])).unwrap();
        let mut primes: Vec<u64> = layers.iter().flat_map(|layer| layer.primes.concat()).collect();
        for layer in &layers {
            let ends =
                layer.offsets.concat().into_iter().zip(layer.primes.concat()).map(|(offset, size)| offset + size);
            let mut starts = layer.offsets.concat();
            starts.remove(0);
            starts.push(layer.rows);
            assert_eq!(ends.collect::<Vec<_>>(), starts);
        }
        assert!(primes.is_sorted() && primes[0] >= 2_262_400);
        primes.dedup();
        assert_eq!(primes.len(), 32);
    }

    #[test]
    fn the_published_table_of_qwen_has_its_size() {
        let layers = layers_of(&qwen("[2]")).unwrap();
        assert_eq!((layers[0].rows, layers[0].padded_rows), (320_001_446, 320_001_536));
    }

    #[test]
    fn a_place_and_not_an_id_seeds_qwens_multipliers() {
        let (one, two) = (layers_of(&qwen("[2]")).unwrap(), layers_of(&qwen("[5, 9]")).unwrap());
        assert_eq!(one[0].multipliers, two[0].multipliers);
        assert_ne!(two[0].multipliers, two[1].multipliers);
    }

    #[test]
    fn a_table_with_too_few_rows_is_refused() {
        let rows = layers_of(&deepseek([u64::MAX; 2])).unwrap().iter().map(|layer| layer.rows).collect::<Vec<_>>();
        assert!(layers_of(&deepseek([rows[0], rows[1]])).is_ok());
        let error = layers_of(&deepseek([rows[0], rows[1] - 1])).unwrap_err();
        assert!(matches!(error, ConfigError::TooFewRows { layer: 14, .. }), "{error}");
    }

    #[test]
    fn published_hashes_are_checked() {
        let config = qwen("[2]");
        let layer = &layers_of(&config).unwrap()[0];
        let (primes, offsets) = (layer.primes.concat(), layer.offsets.concat());
        assert_eq!(layer.published(&config, &layer.multipliers, &primes, &offsets).as_ref(), Ok(layer));
        let refuse = |multipliers: &[u64], primes: &[u64], offsets: &[u64], words: &str| {
            let error = layer.published(&config, multipliers, primes, offsets).unwrap_err().to_string();
            assert!(error.contains(words), "`{error}` lacks `{words}`");
        };
        refuse(&[1, 3], &primes, &offsets, "multipliers have 2 numbers");
        refuse(&layer.multipliers, &primes[1..], &offsets, "head sizes have 15 numbers");
        refuse(&[u64::MAX, 1, 1], &primes, &offsets, "overflows");
        let mut behind = offsets.clone();
        behind[15] = layer.padded_rows;
        refuse(&layer.multipliers, &primes, &behind, "outside");
        let mut empty = primes;
        empty[3] = 0;
        refuse(&layer.multipliers, &empty, &offsets, "head of 0 rows");
    }
}
