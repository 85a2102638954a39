//! What each layer of a model keeps per token and per sequence, from any `config.json` that states
//! it. Keys lie in `text_config` or beside it; names of older configurations count too.

mod attention;
pub(crate) mod blocks;
mod compressed;
pub(crate) mod json;
pub(crate) mod keys;
mod kinds;
mod states;
#[cfg(test)]
mod tests;
mod unread;

use crate::error::PlanError;
use crate::layer::Layer;
use keys::Keys;
use kinds::Kind;
use serde_json::Value;

/// The layers of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What each layer keeps.
    pub layers: Vec<Layer>,
    /// Bytes of a value of KV: by the checkpoint's scheme for KV, or by the model's own type.
    pub value_bytes: u64,
    /// Longest sequence, if stated.
    pub context: Option<u64>,
}

const LAYERS_MAX: u64 = 1 << 16;
const COUNTS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];

impl Model {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// It is no JSON object, a key that the memory of a token depends on is absent or impossible, a
    /// layer is of an unknown type, or a key that may change the memory is not known.
    pub fn parse(json: &[u8]) -> Result<Self, PlanError> {
        let root = json::object(json)?;
        let keys = Keys::of(&root);
        if keys.flag("is_encoder_decoder")?.unwrap_or(false) {
            return Err(keys.invalid("is_encoder_decoder", "false: only decoders are known"));
        }
        let count = layer_count(&keys)?;
        let model_bytes = model_bytes(&keys)?;
        let (mut layers, has_states) = layers(&keys, count as usize, model_bytes)?;
        share(&keys, &mut layers)?;
        let value_bytes = kv_bytes(&keys, &layers)?.unwrap_or(model_bytes);
        let context = keys.tokens(&["max_position_embeddings", "n_positions", "max_seq_len"])?;
        let lists_all = ["layer_types", "layers_block_type", "block_configs"].iter().any(|key| keys.has(key));
        unread::refuse(&keys, has_states || lists_all)?;
        Ok(Self { layers, value_bytes, context })
    }

    /// Bytes of one more token of a long sequence, in all layers.
    #[must_use]
    pub fn token_bytes(&self) -> f64 {
        self.layers.iter().map(|layer| layer.token_bytes(self.value_bytes)).sum()
    }

    /// Bytes of a sequence of `tokens` tokens, in all layers.
    #[must_use]
    pub fn sequence_bytes(&self, tokens: u64) -> f64 {
        self.layers.iter().map(|layer| layer.sequence_bytes(tokens, self.value_bytes)).sum()
    }
}

fn layer_count(keys: &Keys<'_>) -> Result<u64, PlanError> {
    // LongCat counts its layers twice: those with two attentions each, and attentions.
    let names = if keys.class() == "longcat_flash" { &COUNTS[3..] } else { &COUNTS };
    let count = keys.needed(names)?;
    if names.len() == 1 {
        keys.settle("num_hidden_layers");
    }
    if count > LAYERS_MAX {
        return Err(keys.invalid("num_hidden_layers", format!("at most {LAYERS_MAX}")));
    }
    Ok(count)
}

/// The layers, and whether some have states.
fn layers(keys: &Keys<'_>, count: usize, model_bytes: u64) -> Result<(Vec<Layer>, bool), PlanError> {
    if keys.has("block_configs") {
        return Ok((blocks::layers(keys, count)?, false));
    }
    if compressed::is_stated(keys) {
        return Ok(((0..count).map(|layer| compressed::layer(keys, layer)).collect::<Result<_, _>>()?, false));
    }
    let kinds = kinds::kinds(keys, count)?;
    let state = || Ok(Layer::State { bytes: states::bytes(keys, model_bytes)? });
    let layer = |(number, kind): (usize, &Kind)| match kind {
        Kind::State => state(),
        Kind::Both => Ok(attention::layer(keys, Kind::Full, number)?.with(state()?)),
        Kind::Twice => {
            let one = attention::layer(keys, Kind::Full, number)?;
            Ok(one.clone().with(one))
        }
        Kind::Nothing => Ok(Layer::Nothing),
        Kind::Full | Kind::Window | Kind::Chunk => attention::layer(keys, *kind, number),
    };
    let layers = kinds.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
    if kinds.iter().all(|kind| matches!(kind, Kind::State | Kind::Nothing)) {
        attention::settle_sizes(keys);
    }
    Ok((layers, kinds.iter().any(|kind| matches!(kind, Kind::State | Kind::Both))))
}

/// Gemma-3n and Gemma-4: the last layers read KV of the last layer of their kind before them.
fn share(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), PlanError> {
    let shared = keys.number(&["num_kv_shared_layers"])?.unwrap_or(0) as usize;
    if shared == 0 {
        return Ok(());
    }
    let own = layers.len().checked_sub(shared).filter(|own| *own > 0);
    let own = own.ok_or_else(|| keys.invalid("num_kv_shared_layers", "below the number of layers"))?;
    let (own, others) = layers.split_at_mut(own);
    for other in others {
        let is_alike = |layer: &Layer| std::mem::discriminant(layer) == std::mem::discriminant(other);
        let with = own.iter().rposition(is_alike);
        let with = with.ok_or_else(|| keys.invalid("num_kv_shared_layers", "such that each kind has a layer"))?;
        *other = Layer::Shared { with: with as u64 };
    }
    Ok(())
}

/// Bytes of a value by the model's own type. Engines take two without one.
pub(crate) fn model_bytes(keys: &Keys<'_>) -> Result<u64, PlanError> {
    let Some(key) = ["dtype", "torch_dtype"].into_iter().find(|key| keys.has(key)) else { return Ok(2) };
    match keys.text(&[key])?.map(|name| name.strip_prefix("torch.").unwrap_or(name)) {
        Some("float32" | "float") => Ok(4),
        Some("bfloat16" | "float16" | "half" | "auto") => Ok(2),
        Some(dtype) if dtype.starts_with("float8") => Ok(1),
        _ => Err(keys.invalid(key, "bfloat16, float16, float32 or float8")),
    }
}

/// Bytes of a value of KV by the checkpoint's quantization, if that covers KV.
fn kv_bytes(keys: &Keys<'_>, layers: &[Layer]) -> Result<Option<u64>, PlanError> {
    let mut stated = Vec::new();
    // Older files have the second name.
    for of in ["quantization_config", "compression_config"] {
        match keys.get(of) {
            None | Some(Value::Null) => {}
            Some(Value::Object(quantization)) => stated.push((of, quantization)),
            Some(_) => return Err(keys.invalid(of, "an object")),
        }
    }
    let is_modelopt = |quantization: &serde_json::Map<String, Value>| {
        quantization.get("quant_method").and_then(Value::as_str).is_some_and(|of| of.starts_with("modelopt"))
    };
    let mut bytes = None;
    let each = stated.into_iter().flat_map(|(of, quantization)| {
        let inner = quantization.get("quantization").and_then(Value::as_object);
        let all = inner.into_iter().flatten().chain(quantization).filter(|(_, value)| !value.is_null());
        all.map(move |(key, value)| (of, is_modelopt(quantization), key, value))
    });
    for (of, by_modelopt, key, value) in each {
        let name = format!("{of}.{key}");
        let bits = match key.as_str() {
            "kv_cache_scheme" => value.get("num_bits").and_then(Value::as_u64),
            "kv_cache_quant_algo" => value.as_str().filter(|algo| algo.eq_ignore_ascii_case("fp8")).map(|_| 8),
            _ if key.contains("kv") => None,
            _ => continue,
        };
        match bits {
            Some(8) if !layers.iter().all(|layer| layer.has_plain_fp8(by_modelopt)) => {
                let expected = "absent: engines keep latent vectors in other formats than this one".to_owned();
                return Err(PlanError::Invalid { key: name, value: value.to_string(), expected });
            }
            Some(bits @ (8 | 16)) => bytes = Some(bits / 8),
            _ => return Err(PlanError::Unread { key: name }),
        }
    }
    Ok(bytes)
}
