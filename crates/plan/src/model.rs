//! What each layer of a model keeps per token and per sequence, from any `config.json` that states
//! it. Keys lie in `text_config` or beside it; names of older configurations count too.

use crate::error::PlanError;
use serde::Serialize;
use serde_json::{Map, Value};

/// What a layer keeps for later tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Kept {
    /// Keys and values of every token.
    Attention {
        /// Key and value heads.
        heads: u64,
        /// Values of a head.
        head_dim: u64,
        /// Most recent tokens that the layer reads; none: all.
        window: Option<u64>,
    },
    /// One latent vector per token for all heads (MLA).
    Latent {
        /// Values of the vector, with the rotary part.
        values: u64,
    },
    /// A recent window of vectors, and one vector for each run of `ratio` tokens.
    Compressed {
        /// Values of a vector, which is key and value.
        values: u64,
        /// Tokens of a run; zero: no runs.
        ratio: u64,
        /// Most recent tokens.
        window: u64,
    },
    /// A state of fixed size per sequence.
    Recurrent {
        /// Values of the state in the model's type: the convolution's.
        values: u64,
        /// Values of the state in f32: the recurrence's.
        wide_values: u64,
    },
    /// Nothing: the layer has no memory.
    Nothing,
}

/// The layers of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What each layer keeps.
    pub layers: Vec<Kept>,
    /// Bytes of a value by the model's own type.
    pub value_bytes: u64,
    /// Longest sequence, if stated.
    pub context: Option<u64>,
}

const LAYERS_MAX: u64 = 1 << 16;
/// Sizes of heads, vectors and states are below this, so that products of three fit 64 bits.
const SIZE_MAX: u64 = 1 << 20;
/// Numbers of tokens are below this.
const TOKENS_MAX: u64 = 1 << 40;
const KNOWN: &str = "full_attention, sliding_attention, chunked_attention, linear_attention, mamba, mlp";

impl Model {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// It is no JSON object, a key that the memory of a token depends on is absent or impossible,
    /// or a layer is of an unknown type.
    pub fn parse(json: &[u8]) -> Result<Self, PlanError> {
        let root: Map<String, Value> =
            serde_json::from_slice(json).map_err(|error| PlanError::Json(error.to_string()))?;
        let inner = root.get("text_config").and_then(Value::as_object);
        let keys = Keys { objects: inner.into_iter().chain([&root]).collect() };
        let count = keys.needed(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?;
        if count > LAYERS_MAX {
            return Err(keys.invalid("num_hidden_layers", format!("at most {LAYERS_MAX}")));
        }
        let types = keys.layer_types(count)?;
        let layers: Result<_, _> = (0..count as usize).map(|layer| keys.kept(layer, &types[layer])).collect();
        let value_bytes = match keys.text(&["dtype", "torch_dtype"]) {
            Some("float32") => 4,
            Some(dtype) if dtype.starts_with("float8") => 1,
            _ => 2,
        };
        let context = keys.below(TOKENS_MAX, &["max_position_embeddings", "n_positions", "max_seq_len"])?;
        Ok(Self { layers: layers?, value_bytes, context })
    }
}

/// Keys of the configuration's objects, the innermost first.
struct Keys<'a> {
    objects: Vec<&'a Map<String, Value>>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.objects.iter().find_map(|object| object.get(key).filter(|value| !value.is_null()))
    }

    fn text(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| self.get(key)?.as_str())
    }

    fn invalid(&self, key: &str, expected: String) -> PlanError {
        let value = self.get(key).map(Value::to_string).unwrap_or_default();
        PlanError::Invalid { key: key.to_owned(), value, expected }
    }

    /// The first of these keys that is there, as a whole number below a limit.
    fn below(&self, limit: u64, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        let Some(key) = keys.iter().find(|key| self.get(key).is_some()) else { return Ok(None) };
        match self.get(key).and_then(Value::as_u64).filter(|number| *number < limit) {
            Some(number) => Ok(Some(number)),
            None => Err(self.invalid(key, format!("a whole number below {limit}"))),
        }
    }

    fn number(&self, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        self.below(SIZE_MAX, keys)
    }

    fn needed_below(&self, limit: u64, keys: &[&str]) -> Result<u64, PlanError> {
        match self.below(limit, keys)? {
            Some(0) => Err(self.invalid(keys[0], "above zero".to_owned())),
            Some(number) => Ok(number),
            None => Err(PlanError::Missing(keys[0].to_owned())),
        }
    }

    fn needed(&self, keys: &[&str]) -> Result<u64, PlanError> {
        self.needed_below(SIZE_MAX, keys)
    }

    /// The type of each layer: stated, or by an interval, or all alike.
    fn layer_types(&self, count: u64) -> Result<Vec<String>, PlanError> {
        let stated = ["layer_types", "layers_block_type", "block_types"];
        if let Some((key, value)) = stated.iter().find_map(|key| Some((*key, self.get(key)?))) {
            let types: Option<Vec<String>> =
                value.as_array().and_then(|list| list.iter().map(|kind| kind.as_str().map(str::to_owned)).collect());
            return types
                .filter(|types| types.len() as u64 >= count)
                .ok_or_else(|| self.invalid(key, format!("a list of {count} names of layer types")));
        }
        let with_interval = |interval: u64, others: &str| {
            let kind = |layer: u64| if (layer + 1).is_multiple_of(interval) { "full_attention" } else { others };
            (0..count).map(|layer| kind(layer).to_owned()).collect()
        };
        if let Some(interval) = self.number(&["full_attention_interval"])?.filter(|interval| *interval > 0) {
            return Ok(with_interval(interval, "linear_attention"));
        }
        let is_windowed = self.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(true);
        let window = self.below(TOKENS_MAX, &["sliding_window"])?.filter(|_| is_windowed);
        match (window, self.number(&["sliding_window_pattern"])?.filter(|pattern| *pattern > 0)) {
            (Some(_), Some(pattern)) => Ok(with_interval(pattern, "sliding_attention")),
            (Some(_), None) => Ok(vec!["sliding_attention".to_owned(); count as usize]),
            (None, _) => Ok(vec!["full_attention".to_owned(); count as usize]),
        }
    }

    fn kept(&self, layer: usize, kind: &str) -> Result<Kept, PlanError> {
        match kind {
            "linear_attention" | "gated_delta_net" => self.linear_attention(),
            "mamba" | "mamba2" => self.mamba(),
            "mlp" | "moe" => Ok(Kept::Nothing),
            _ if self.get("compress_ratios").is_some() => self.compressed(layer),
            "sliding_attention" => self.attention(Some(self.needed_below(TOKENS_MAX, &["sliding_window"])?)),
            "chunked_attention" => self.attention(Some(self.needed_below(TOKENS_MAX, &["attention_chunk_size"])?)),
            "full_attention" | "attention" | "global" | "hybrid_indexed" | "deepseek_sparse_attention" => {
                match self.number(&["kv_lora_rank"])? {
                    Some(rank) => Ok(Kept::Latent { values: rank + self.needed(&["qk_rope_head_dim"])? }),
                    None => self.attention(None),
                }
            }
            unknown => Err(PlanError::UnknownLayer { layer, kind: unknown.to_owned(), known: KNOWN.to_owned() }),
        }
    }

    fn attention(&self, window: Option<u64>) -> Result<Kept, PlanError> {
        let queries = self.needed(&["num_attention_heads", "n_head", "n_heads", "num_heads"])?;
        let is_single = self.get("multi_query").and_then(Value::as_bool).unwrap_or(false);
        let heads = match self.number(&["num_key_value_heads", "n_head_kv", "num_kv_heads"])? {
            Some(heads) => heads,
            None if is_single => 1,
            None => queries,
        };
        let head_dim = match self.number(&["head_dim"])? {
            Some(dim) => dim,
            None => self.needed(&["hidden_size", "n_embd", "d_model"])? / queries,
        };
        Ok(Kept::Attention { heads, head_dim, window })
    }

    /// DeepSeek-V4: vectors of a window, and of compressed runs where the layer has a ratio.
    fn compressed(&self, layer: usize) -> Result<Kept, PlanError> {
        let ratios = self.get("compress_ratios").and_then(Value::as_array);
        let ratio = ratios.and_then(|ratios| ratios.get(layer)).and_then(Value::as_u64);
        let ratio = ratio.ok_or_else(|| self.invalid("compress_ratios", "a whole number for each layer".to_owned()))?;
        let window = self.needed_below(TOKENS_MAX, &["sliding_window"])?;
        Ok(Kept::Compressed { values: self.needed(&["head_dim"])?, ratio, window })
    }

    /// Gated delta net: a convolution over queries, keys and values, and a matrix per value head.
    fn linear_attention(&self) -> Result<Kept, PlanError> {
        let key_heads = self.needed(&["linear_num_key_heads"])?;
        let value_heads = self.needed(&["linear_num_value_heads"])?;
        let (key_dim, value_dim) = (self.needed(&["linear_key_head_dim"])?, self.needed(&["linear_value_head_dim"])?);
        let taps = self.needed(&["linear_conv_kernel_dim"])? - 1;
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        Ok(Kept::Recurrent { values: channels * taps, wide_values: value_heads * key_dim * value_dim })
    }

    /// Mamba2: a convolution over the inner values and both projections, and a state per channel.
    fn mamba(&self) -> Result<Kept, PlanError> {
        let (state, groups) = (self.needed(&["mamba_d_state"])?, self.number(&["mamba_n_groups"])?.unwrap_or(1));
        let inner = match self.number(&["mamba_n_heads"])? {
            Some(heads) => heads * self.needed(&["mamba_d_head"])?,
            None => self.needed(&["hidden_size"])? * self.number(&["mamba_expand"])?.unwrap_or(2),
        };
        let taps = self.needed(&["mamba_d_conv"])? - 1;
        Ok(Kept::Recurrent { values: (inner + 2 * groups * state) * taps, wide_values: inner * state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<Model, PlanError> {
        Model::parse(value.to_string().as_bytes())
    }

    #[test]
    fn grouped_heads_are_read_from_both_generations_of_names() {
        let llama = json!({
            "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
            "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
        });
        let kept = Kept::Attention { heads: 8, head_dim: 128, window: None };
        let model = Model { layers: vec![kept.clone(), kept], value_bytes: 2, context: Some(8192) };
        assert_eq!(parse(&llama).unwrap(), model);
        let gpt = parse(&json!({ "n_layer": 1, "n_head": 12, "n_embd": 768, "dtype": "float32" })).unwrap();
        assert_eq!(
            (gpt.layers[0].clone(), gpt.value_bytes),
            (Kept::Attention { heads: 12, head_dim: 64, window: None }, 4)
        );
    }

    #[test]
    fn kinds_of_layers_are_told_apart() {
        let base = json!({
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "sliding_window": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
            "mamba_d_state": 16, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_conv": 4,
        });
        let layers = |key: &str, value: Value| {
            let mut config = base.clone();
            config[key] = value;
            parse(&json!({ "text_config": config })).unwrap().layers
        };
        let full = Kept::Attention { heads: 2, head_dim: 64, window: None };
        let window = Kept::Attention { heads: 2, head_dim: 64, window: Some(128) };
        let linear = Kept::Recurrent { values: 96 * 3, wide_values: 4 * 8 * 16 };
        let mamba = Kept::Recurrent { values: 64 * 3, wide_values: 32 * 16 };
        assert_eq!(layers("head_dim", json!(64)), vec![window.clone(); 4]);
        assert_eq!(layers("use_sliding_window", json!(false)), vec![full.clone(); 4]);
        let mixed = json!(["full_attention", "sliding_attention", "mamba", "mlp"]);
        assert_eq!(layers("layer_types", mixed), vec![full.clone(), window.clone(), mamba, Kept::Nothing]);
        let interval = vec![linear.clone(), linear.clone(), linear, full.clone()];
        assert_eq!(layers("full_attention_interval", json!(4)), interval);
        assert_eq!(layers("sliding_window_pattern", json!(2)), vec![window.clone(), full.clone(), window, full]);
        let compressed = |ratio| Kept::Compressed { values: 64, ratio, window: 128 };
        let ratios = layers("compress_ratios", json!([0, 4, 128, 4, 0]));
        assert_eq!(ratios, [0, 4, 128, 4].map(compressed));
    }

    #[test]
    fn latents_have_a_rotary_part() {
        let mla = json!({ "num_hidden_layers": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64 });
        assert_eq!(parse(&mla).unwrap().layers, [Kept::Latent { values: 576 }]);
    }

    #[test]
    fn what_cannot_be_counted_is_named() {
        for (config, words) in [
            (json!("x"), "not a JSON object"),
            (json!({}), "`num_hidden_layers` is missing"),
            (json!({ "num_hidden_layers": 0 }), "above zero"),
            (json!({ "num_hidden_layers": 1 }), "`num_attention_heads` is missing"),
            (json!({ "num_hidden_layers": 1, "num_attention_heads": 2 }), "`hidden_size` is missing"),
            (json!({ "num_hidden_layers": 1, "num_attention_heads": -2 }), "`num_attention_heads` is -2"),
            (json!({ "num_hidden_layers": 2, "layer_types": ["full_attention"] }), "a list of 2 names"),
            (json!({ "num_hidden_layers": 1, "layer_types": ["retention"] }), "layer 0 is of type `retention`"),
            (json!({ "num_hidden_layers": 1, "kv_lora_rank": 4 }), "`qk_rope_head_dim` is missing"),
        ] {
            let error = parse(&config).unwrap_err().to_string();
            assert!(error.contains(words), "`{error}` lacks `{words}`");
        }
    }
}
