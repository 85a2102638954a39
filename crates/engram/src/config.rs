//! The table's shape from a model's `config.json`.
//!
//! Keys lie in `text_config` or beside it. DeepSeek's family has no defaults; those of Qwen's
//! family are transformers'. A key that is `null` counts as absent.

use crate::error::ConfigError;
use serde_json::{Map, Value};

/// Limits that keep a hostile configuration from filling memory.
const ORDER_MAX: u64 = 32;
const HEADS_MAX: u64 = 4096;
const LAYERS_MAX: usize = 4096;
/// Heads of all orders and layers.
const COLUMNS_MAX: usize = 1 << 16;
/// Row numbers and sums of primes stay below 2^63 with this many rows per head.
const PRIME_START_MAX: u64 = 1 << 40;

/// How a model hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Compressed ids, PCG64 multipliers, masked tokens.
    DeepSeek,
    /// Raw ids, splitmix64 multipliers, segments between end-of-sequence tokens.
    Qwen,
}

impl Family {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeepSeek => "deepseek",
            Self::Qwen => "qwen",
        }
    }
}

/// What only one family has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// DeepSeek's Engram.
    DeepSeek {
        /// `engram_num_embeddings`: rows of each layer's table.
        declared_rows: Vec<u64>,
        /// `image_token_id`: stands at each position of an image, which is masked.
        image_token: Option<u32>,
    },
    /// Qwen's per-layer embedding.
    Qwen {
        /// `seed` of the multipliers.
        seed: i64,
        /// `make_ngram_vocab_size_divisible_by`: a table's rows are padded to a multiple.
        row_multiple: u64,
        /// `split_ngram_parts`: shards of the checkpoint.
        parts: u64,
        /// `ple_embedding_dtype`.
        embedding_dtype: Option<String>,
    },
}

/// A model's n-gram tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramConfig {
    /// What only the family has.
    pub scheme: Scheme,
    /// Layers with a table. DeepSeek counts from zero and keeps the order; Qwen counts from one,
    /// sorted.
    pub layer_ids: Vec<u64>,
    /// Longest n-gram, `N`. Orders are 2 to `N`.
    pub order_max: usize,
    /// Heads of each order, `H`.
    pub heads: usize,
    /// Where the primes start.
    pub prime_start: u64,
    /// Values of a row.
    pub row_values: usize,
    /// Number of ids that are hashed: compressed ones for DeepSeek.
    pub ids: u64,
    /// The token that stands where an n-gram has none.
    pub pad_token: u32,
}

impl NgramConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// It is no JSON object, names no table, or a key is absent or has an impossible value.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let root: Map<String, Value> =
            serde_json::from_slice(json).map_err(|error| ConfigError::Json(error.to_string()))?;
        let inner = root.get("text_config").and_then(Value::as_object);
        let keys = Keys { objects: inner.into_iter().chain([&root]).collect() };
        let config = match (keys.lists("engram_layer_ids"), keys.lists("ple_layer_ids")) {
            (true, _) => deepseek(&keys)?,
            (false, true) => qwen(&keys)?,
            (false, false) => return Err(ConfigError::NoTables),
        };
        match config.rows_per_token() * config.layer_ids.len() {
            columns if columns > COLUMNS_MAX => Err(ConfigError::TooManyHeads { columns, most: COLUMNS_MAX }),
            _ => Ok(config),
        }
    }

    /// The family.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self.scheme {
            Scheme::DeepSeek { .. } => Family::DeepSeek,
            Scheme::Qwen { .. } => Family::Qwen,
        }
    }

    /// Orders of n-grams: `N - 1`.
    #[must_use]
    pub const fn orders(&self) -> usize {
        self.order_max - 1
    }

    /// Rows that a token reads in one layer: orders times heads.
    #[must_use]
    pub const fn rows_per_token(&self) -> usize {
        self.orders() * self.heads
    }

    /// The token whose positions are masked, if the model has one.
    #[must_use]
    pub const fn masked_token(&self) -> Option<u32> {
        match self.scheme {
            Scheme::DeepSeek { image_token, .. } => image_token,
            Scheme::Qwen { .. } => None,
        }
    }

    /// Layers that the model computes before layer `id` of the configuration.
    #[must_use]
    pub const fn layers_before(&self, id: u64) -> u64 {
        match self.family() {
            Family::DeepSeek => id,
            Family::Qwen => id.saturating_sub(1),
        }
    }
}

fn deepseek(keys: &Keys<'_>) -> Result<NgramConfig, ConfigError> {
    let layer_ids = keys.numbers("engram_layer_ids")?.unwrap_or_default();
    let declared = "engram_num_embeddings";
    let declared_rows = keys.numbers(declared)?.ok_or(ConfigError::Missing(declared))?;
    if declared_rows.len() != layer_ids.len() {
        return Err(keys.invalid(declared, format!("a list of {} numbers, one for each layer", layer_ids.len())));
    }
    // The seed of a layer's generator is its id times 10,007.
    if layer_ids.iter().any(|id| *id > u64::from(u32::MAX)) {
        return Err(keys.invalid("engram_layer_ids", "numbers of layers".to_owned()));
    }
    let image_token = keys.within("image_token_id", 0, u64::from(u32::MAX))?.map(|token| token as u32);
    Ok(NgramConfig {
        scheme: Scheme::DeepSeek { declared_rows, image_token },
        layer_ids,
        order_max: keys.needed("engram_max_ngram_size", 2, ORDER_MAX)? as usize,
        heads: keys.needed("engram_n_heads", 1, HEADS_MAX)? as usize,
        prime_start: keys.needed("engram_vocab_size", 0, PRIME_START_MAX)?,
        row_values: keys.needed("engram_head_dim", 1, 1 << 24)? as usize,
        ids: keys.needed("engram_compressed_vocab_size", 1, u64::from(u32::MAX))?,
        pad_token: keys.needed("engram_pad_token_id", 0, u64::from(u32::MAX))? as u32,
    })
}

fn qwen(keys: &Keys<'_>) -> Result<NgramConfig, ConfigError> {
    let mut layer_ids = keys.numbers("ple_layer_ids")?.unwrap_or_default();
    layer_ids.sort_unstable();
    layer_ids.dedup();
    let layers = keys.within("num_hidden_layers", 1, LAYERS_MAX as u64)?;
    if layer_ids.iter().any(|id| *id == 0 || layers.is_some_and(|layers| *id > layers)) {
        let last = layers.map_or_else(String::new, |layers| format!(" to {layers}"));
        return Err(keys.invalid("ple_layer_ids", format!("numbers of layers, counted from 1{last}")));
    }
    let order_max = keys.within("ngram_size", 2, ORDER_MAX)?.unwrap_or(3) as usize;
    let heads = keys.within("heads_per_ngram", 1, HEADS_MAX)?.unwrap_or(8) as usize;
    let (dim, columns) = ("ple_embed_dim", (order_max - 1) * heads);
    let key = if keys.get(dim).is_some() { dim } else { "hidden_size" };
    let values = keys.within(key, 1, 1 << 32)?.ok_or(ConfigError::Missing(dim))? as usize;
    if !values.is_multiple_of(columns) {
        return Err(keys.invalid(key, format!("a multiple of {columns}, the rows that a token reads")));
    }
    let ids = keys.within("vocab_size", 1, u64::from(u32::MAX))?.unwrap_or(248_320);
    let eos = "eos_token_id";
    let first = match keys.get(eos) {
        Some(Value::Array(ids)) => ids.first(),
        other => other,
    };
    let pad_token = match first.map(Value::as_u64) {
        None => return Err(ConfigError::Missing(eos)),
        Some(Some(token)) if token <= u64::from(u32::MAX) => token as u32,
        Some(_) => return Err(keys.invalid(eos, "a token, or a list of tokens".to_owned())),
    };
    if u64::from(pad_token) >= ids {
        return Err(ConfigError::PadOutside { key: eos, token: pad_token, tokens: ids });
    }
    let seed = match keys.get("seed").map(Value::as_i64) {
        None => 1234,
        Some(Some(seed)) => seed,
        Some(None) => return Err(keys.invalid("seed", "a whole number".to_owned())),
    };
    let scheme = Scheme::Qwen {
        seed,
        row_multiple: keys.within("make_ngram_vocab_size_divisible_by", 1, 1 << 32)?.unwrap_or(128),
        parts: keys.within("split_ngram_parts", 1, 1 << 32)?.unwrap_or(512),
        embedding_dtype: keys.get("ple_embedding_dtype").and_then(Value::as_str).map(str::to_owned),
    };
    let prime_start = keys.within("ngram_vocab_size_base", 0, PRIME_START_MAX)?.unwrap_or(20_000_000);
    let row_values = values / columns;
    Ok(NgramConfig { scheme, layer_ids, order_max, heads, prime_start, row_values, ids, pad_token })
}

/// Keys of the configuration's objects, the innermost first.
struct Keys<'a> {
    objects: Vec<&'a Map<String, Value>>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.objects.iter().find_map(|object| object.get(key).filter(|value| !value.is_null()))
    }

    /// Whether the key is there and is no empty list.
    fn lists(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()))
    }

    fn invalid(&self, key: &'static str, expected: String) -> ConfigError {
        let value = self.get(key).map(Value::to_string).unwrap_or_default();
        ConfigError::Invalid { key, value, expected }
    }

    /// A number in `least..=most`, if the key is there.
    fn within(&self, key: &'static str, least: u64, most: u64) -> Result<Option<u64>, ConfigError> {
        match self.get(key).map(Value::as_u64) {
            None => Ok(None),
            Some(Some(number)) if (least..=most).contains(&number) => Ok(Some(number)),
            Some(_) => Err(self.invalid(key, format!("a whole number from {least} to {most}"))),
        }
    }

    fn needed(&self, key: &'static str, least: u64, most: u64) -> Result<u64, ConfigError> {
        self.within(key, least, most)?.ok_or(ConfigError::Missing(key))
    }

    /// A list of numbers, if the key is there.
    fn numbers(&self, key: &'static str) -> Result<Option<Vec<u64>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().filter(|list| list.len() <= LAYERS_MAX);
        let numbers: Option<Vec<u64>> = list.and_then(|list| list.iter().map(Value::as_u64).collect());
        numbers.map(Some).ok_or_else(|| self.invalid(key, format!("a list of at most {LAYERS_MAX} whole numbers")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<NgramConfig, ConfigError> {
        NgramConfig::parse(value.to_string().as_bytes())
    }

    fn v41() -> Value {
        json!({
            "engram_layer_ids": [1, 14], "engram_num_embeddings": [384_006_168, 384_016_682],
            "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
            "engram_vocab_size": 16_000_000, "engram_compressed_vocab_size": 99_092, "engram_pad_token_id": 2,
        })
    }

    fn with(mut config: Value, key: &str, value: Value) -> Value {
        config[key] = value;
        config
    }

    #[test]
    fn keys_lie_beside_text_config_or_in_it() {
        let flat = parse(&v41()).unwrap();
        assert_eq!(parse(&json!({ "model_type": "deepseek_v41", "text_config": v41() })).unwrap(), flat);
        assert_eq!((flat.family(), flat.orders(), flat.rows_per_token()), (Family::DeepSeek, 3, 24));
        assert_eq!((flat.layers_before(1), flat.layer_ids), (1, vec![1, 14]));
    }

    /// Only DeepSeek masks images. The published configuration has the key beside `text_config`.
    #[test]
    fn the_image_token_is_a_key_of_deepseeks_family() {
        assert_eq!(parse(&v41()).unwrap().masked_token(), None);
        let beside = json!({ "image_token_id": 129_264, "text_config": v41() });
        assert_eq!(parse(&beside).unwrap().masked_token(), Some(129_264));
        assert_eq!(parse(&with(v41(), "image_token_id", json!(7))).unwrap().masked_token(), Some(7));
        let qwen = json!({ "ple_layer_ids": [2], "ple_embed_dim": 32, "eos_token_id": 1, "image_token_id": 7 });
        assert_eq!(parse(&qwen).unwrap().masked_token(), None);
        let error = parse(&with(v41(), "image_token_id", json!("7"))).unwrap_err().to_string();
        assert!(error.contains("`image_token_id` is \"7\""), "{error}");
    }

    #[test]
    fn qwen_has_the_defaults_of_transformers() {
        let config = parse(&json!({ "ple_layer_ids": [3, 2, 3], "ple_embed_dim": 2560, "eos_token_id": [7, 8] }));
        let config = config.unwrap();
        assert_eq!((config.family(), config.layer_ids.clone(), config.pad_token), (Family::Qwen, vec![2, 3], 7));
        assert_eq!((config.order_max, config.heads, config.row_values), (3, 8, 160));
        assert_eq!((config.prime_start, config.ids, config.layers_before(2)), (20_000_000, 248_320, 1));
        let scheme = Scheme::Qwen { seed: 1234, row_multiple: 128, parts: 512, embedding_dtype: None };
        assert_eq!(config.scheme, scheme);
    }

    #[test]
    fn a_wrong_key_is_named() {
        for (config, words) in [
            (json!([1]), "not a JSON object"),
            (json!({ "hidden_size": 64 }), "no n-gram tables"),
            (json!({ "engram_layer_ids": [], "ple_layer_ids": null }), "no n-gram tables"),
            (with(v41(), "engram_n_heads", Value::Null), "`engram_n_heads` is missing"),
            (with(v41(), "engram_n_heads", json!(0)), "`engram_n_heads` is 0"),
            (with(v41(), "engram_max_ngram_size", json!(1)), "from 2 to"),
            (with(v41(), "engram_num_embeddings", json!([1])), "a list of 2 numbers"),
            (with(v41(), "engram_layer_ids", json!("1")), "`engram_layer_ids` is \"1\""),
            (with(v41(), "engram_layer_ids", json!([-1, 2])), "[-1,2]"),
            (json!({ "ple_layer_ids": [2], "eos_token_id": 1 }), "`ple_embed_dim` is missing"),
            (json!({ "ple_layer_ids": [2], "ple_embed_dim": 33, "eos_token_id": 1 }), "multiple of 16"),
            (json!({ "ple_layer_ids": [0], "ple_embed_dim": 32, "eos_token_id": 1 }), "counted from 1"),
            (json!({ "ple_layer_ids": [9], "num_hidden_layers": 4 }), "counted from 1 to 4"),
            (json!({ "ple_layer_ids": [2], "ple_embed_dim": 32 }), "`eos_token_id` is missing"),
            (json!({ "ple_layer_ids": [2], "ple_embed_dim": 32, "eos_token_id": 9, "vocab_size": 9 }), "9 tokens"),
            (json!({ "ple_layer_ids": [2], "ple_embed_dim": 32, "eos_token_id": "x" }), "`eos_token_id` is \"x\""),
            (json!({ "ple_layer_ids": [2], "ple_embed_dim": 32, "eos_token_id": 1, "seed": 0.5 }), "`seed` is 0.5"),
        ] {
            let error = parse(&config).unwrap_err().to_string();
            assert!(error.contains(words), "`{error}` lacks `{words}`");
        }
    }
}
