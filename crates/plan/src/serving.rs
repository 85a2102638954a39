//! What an engine's time and memory depend on beside KV: weights, those that a token uses, and the
//! arithmetic of attention. From the same `config.json`.

use crate::error::PlanError;
use crate::layer::Layer;
use crate::model::keys::Keys;
use crate::model::{Model, blocks};
use serde_json::Value;

/// A model as a simulated engine serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// What its layers keep.
    pub model: Model,
    /// All weights.
    pub parameters: u64,
    /// Weights that a token is multiplied with: of experts, those that it uses.
    pub active_parameters: u64,
    /// Bytes of a weight.
    pub weight_bytes: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// The fewest KV heads of a layer: ranks beyond it hold copies. One for latents.
    pub kv_heads: u64,
    /// Products and sums of a token's attention to another one, for each layer.
    pair_flops: Vec<u64>,
}

impl Served {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// As [`Model::parse`]. A layer has a state, or weights are quantized in a way that is not known.
    pub fn parse(json: &[u8]) -> Result<Self, PlanError> {
        let model = Model::parse(json)?;
        let root = crate::model::json::object(json)?;
        let keys = Keys::of(&root);
        let hidden = keys.needed(&["hidden_size", "n_embd", "d_model"])?;
        let heads = keys.needed(&["num_attention_heads", "n_head", "n_heads"])?;
        let weight_bytes = weight_bytes(&keys)?;
        let attentions: Result<Vec<Attention>, _> =
            model.layers.iter().enumerate().map(|at| Attention::of(&keys, at, hidden, heads)).collect();
        let attentions = attentions?;
        let mlps = Mlps::of(&keys, hidden, model.layers.len())?;
        let vocabulary = keys.needed_tokens(&["vocab_size"])?;
        let embedding = vocabulary.saturating_mul(hidden);
        let tables = if keys.flag("tie_word_embeddings")?.unwrap_or(false) { 1 } else { 2 };
        let sum = |parts: &[u64]| {
            let all = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part));
            all.ok_or_else(|| keys.invalid("hidden_size", "a size of a model whose weights can be counted"))
        };
        let attention = sum(&attentions.iter().map(|one| one.weights).collect::<Vec<_>>())?;
        let fewest = attentions.iter().map(|one| one.kv_heads).filter(|heads| *heads > 0).min();
        Ok(Self {
            parameters: sum(&[
                attention,
                mlps.all,
                embedding.saturating_mul(tables),
                layer_embeddings(&keys, model.layers.len())?,
            ])?,
            active_parameters: sum(&[attention, mlps.active, embedding])?,
            weight_bytes,
            hidden,
            heads,
            kv_heads: fewest.unwrap_or(heads),
            pair_flops: attentions.iter().map(|one| one.pair_flops).collect(),
            model,
        })
    }

    /// Bytes of KV of a token, as the mean over a sequence of `tokens` tokens: windows are shorter.
    #[must_use]
    pub fn token_bytes(&self, tokens: u64) -> u64 {
        (self.model.sequence_bytes(tokens) / tokens as f64).ceil() as u64
    }

    /// Products and sums of a token's attention to each of the tokens before it, as the mean over a
    /// sequence of `tokens` tokens: layers with windows skip the earlier ones.
    #[must_use]
    pub fn pair_flops(&self, tokens: u64) -> u64 {
        let share = |layer: &Layer| match layer {
            Layer::Window { tokens: window, .. } | Layer::Chunk { tokens: window, .. } => {
                // Of all pairs of a sequence, those within the window.
                let (all, near) = (tokens as f64, tokens.min(*window) as f64);
                (near * (near + 1.0) / 2.0 + (all - near) * near) / (all * (all + 1.0) / 2.0)
            }
            _ => 1.0,
        };
        let flops = self.model.layers.iter().zip(&self.pair_flops);
        flops.map(|(layer, flops)| share(layer) * *flops as f64).sum::<f64>() as u64
    }
}

fn weight_bytes(keys: &Keys<'_>) -> Result<u64, PlanError> {
    if keys.has("compression_config") {
        return Err(keys.invalid("compression_config", "absent"));
    }
    match keys.get("quantization_config").map(|config| config.get("quant_method").and_then(Value::as_str)) {
        None => crate::model::model_bytes(keys),
        Some(Some("fp8")) => Ok(1),
        Some(_) => Err(keys.invalid("quantization_config", "absent or of the method fp8")),
    }
}

/// Gemma-3n and Gemma-4: a small embedding for each layer.
fn layer_embeddings(keys: &Keys<'_>, layers: usize) -> Result<u64, PlanError> {
    let width = keys.number(&["hidden_size_per_layer_input"])?.unwrap_or(0);
    let vocabulary = keys.tokens(&["vocab_size_per_layer_input"])?.unwrap_or(0);
    Ok(vocabulary.saturating_mul(width).saturating_mul(layers as u64))
}

/// Attention of a layer.
struct Attention {
    weights: u64,
    kv_heads: u64,
    pair_flops: u64,
}

impl Attention {
    fn of(keys: &Keys<'_>, (number, layer): (usize, &Layer), hidden: u64, queries: u64) -> Result<Self, PlanError> {
        match layer {
            // Latents of which engines keep each head's key and value.
            Layer::Full { heads } if keys.has("kv_lora_rank") => {
                Ok(Self { kv_heads: heads.heads, ..Self::latent(keys, hidden, queries)? })
            }
            Layer::Full { heads } | Layer::Window { heads, .. } | Layer::Chunk { heads, .. } => {
                let queries = keys.of_layer(number, &["num_attention_heads_per_layer"])?.unwrap_or(queries);
                let (key, value) = (heads.key_dim, heads.value_dim);
                let weights = hidden * (queries + heads.heads) * (key + value);
                Ok(Self { weights, kv_heads: heads.heads, pair_flops: 2 * queries * (key + value) })
            }
            Layer::Latent { .. } => Self::latent(keys, hidden, queries),
            Layer::Shared { .. } | Layer::Nothing => Ok(Self { weights: 0, kv_heads: 0, pair_flops: 0 }),
            _ => Err(PlanError::NotServed { layer: number }),
        }
    }

    /// MLA, computed with its heads, as for prompts.
    fn latent(keys: &Keys<'_>, hidden: u64, queries: u64) -> Result<Self, PlanError> {
        let (rank, rotary) = (keys.needed(&["kv_lora_rank"])?, keys.needed(&["qk_rope_head_dim"])?);
        let (plain, value) = (keys.needed(&["qk_nope_head_dim"])?, keys.needed(&["v_head_dim"])?);
        let query = queries * (plain + rotary);
        let queries_of = match keys.number(&["q_lora_rank"])? {
            Some(low) if low > 0 => low * (hidden + query),
            _ => hidden * query,
        };
        let keys_of = hidden * (rank + rotary) + rank * queries * (plain + value);
        Ok(Self {
            weights: queries_of + keys_of + queries * value * hidden,
            kv_heads: 1,
            pair_flops: 2 * queries * (plain + rotary + value),
        })
    }
}

/// Classes whose MLPs have two matrices: no gate.
const UNGATED: [&str; 16] = [
    "arcee",
    "bloom",
    "codegen",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "mpt",
    "nemotron",
    "opt",
    "persimmon",
    "phi",
    "starcoder2",
    "xglm",
];

/// Weights of all layers' MLPs.
struct Mlps {
    all: u64,
    active: u64,
}

impl Mlps {
    fn of(keys: &Keys<'_>, hidden: u64, layers: usize) -> Result<Self, PlanError> {
        if keys.has("block_configs") {
            let all = blocks::mlps(keys, layers, hidden)?.iter().sum();
            return Ok(Self { all, active: all });
        }
        let matrices = if UNGATED.contains(&keys.class()) { 2 } else { 3 };
        let weights = |width: u64| matrices * hidden * width;
        let dense = || match keys.number(&["intermediate_size_mlp"])? {
            Some(width) => Ok(width),
            None => keys.needed(&["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"]),
        };
        let experts = keys.number(&["num_local_experts", "num_experts", "n_routed_experts"])?.unwrap_or(0);
        if experts == 0 {
            let all = weights(dense()?) * layers as u64;
            return Ok(Self { all, active: all });
        }
        let used = keys.needed(&["num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"])?;
        let width = keys.needed(&["moe_intermediate_size", "intermediate_size"])?;
        let shared = match keys.number(&["shared_expert_intermediate_size", "shared_intermediate_size"])? {
            Some(width) => width,
            None => keys.number(&["n_shared_experts", "num_shared_experts"])?.unwrap_or(0) * width,
        };
        let mut sum = Self { all: 0, active: 0 };
        for layer in 0..layers {
            let (all, active) = if is_sparse(keys, layer)? {
                (experts * weights(width) + weights(shared), used.min(experts) * weights(width) + weights(shared))
            } else {
                (weights(dense()?), weights(dense()?))
            };
            (sum.all, sum.active) = (sum.all + all, sum.active + active);
        }
        Ok(sum)
    }
}

/// Whether a layer has experts.
fn is_sparse(keys: &Keys<'_>, layer: usize) -> Result<bool, PlanError> {
    let number = layer as u64;
    if let Some(kinds) = keys.list("mlp_layer_types") {
        return Ok(kinds.get(layer).and_then(Value::as_str) != Some("dense"));
    }
    let lists = |key: &str| keys.list(key).filter(|list| !list.is_empty());
    if let Some(sparse) = lists("moe_layers") {
        return Ok(sparse.iter().any(|other| other.as_u64() == Some(number)));
    }
    if lists("mlp_only_layers").is_some_and(|dense| dense.iter().any(|other| other.as_u64() == Some(number))) {
        return Ok(false);
    }
    if let Some(frequencies) = lists("moe_layer_freq") {
        return Ok(frequencies.get(layer).and_then(Value::as_u64) != Some(0));
    }
    let first = keys.number(&["first_k_dense_replace", "num_dense_layers"])?.unwrap_or(0);
    let step = keys.number(&["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"])?.unwrap_or(1);
    Ok(number >= first && (step <= 1 || (number + 1).is_multiple_of(step)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Served {
        Served::parse(value.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn near(weights: u64, billions: f64) -> bool {
        (weights as f64 / 1e9 / billions - 1.0).abs() < 0.01
    }

    /// Sizes that the models' cards state: 8.03 billion; 46.7 and 12.9; 671 and 37; 30.5 and 3.3.
    #[test]
    fn weights_are_those_of_the_models_cards() {
        let llama = parse(&json!({
            "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 14336, "vocab_size": 128256,
        }));
        assert!(near(llama.parameters, 8.03) && llama.kv_heads == 8, "{llama:?}");
        assert_eq!((llama.token_bytes(1000), llama.pair_flops(1000)), (131_072, 4 * 32 * 32 * 128));
        let mixtral = parse(&json!({
            "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
        }));
        assert!(near(mixtral.parameters, 46.7) && near(mixtral.active_parameters, 12.75), "{mixtral:?}");
        let qwen = parse(&json!({
            "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
        }));
        assert!(near(qwen.parameters, 30.5) && near(qwen.active_parameters, 3.04), "{qwen:?}");
        let deepseek = parse(&json!({
            "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
            "intermediate_size": 18432, "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
            "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128] },
        }));
        assert!(near(deepseek.parameters, 671.0) && near(deepseek.active_parameters, 36.6), "{deepseek:?}");
        assert_eq!((deepseek.weight_bytes, deepseek.kv_heads, deepseek.token_bytes(9)), (1, 1, 70_272));
    }

    #[test]
    fn windows_make_long_sequences_cheaper() {
        let gemma = parse(&json!({
            "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 262208,
            "sliding_window": 1024, "tie_word_embeddings": true,
        }));
        assert!(near(gemma.parameters, 27.0), "{gemma:?}");
        let all = 62 * 2 * 16 * 128 * 2;
        assert_eq!(gemma.token_bytes(1024), all);
        assert_eq!(gemma.token_bytes(1 << 20), 81_920 + 52 * 8192 / 1024);
        assert_eq!(gemma.pair_flops(1), 62 * 4 * 32 * 128);
        // Of 4,096 tokens a window of 1,024 covers 3,670,528 of 8,390,656 pairs.
        let layer = 4.0 * 32.0 * 128.0;
        let expected = 10.0 * layer + 52.0 * layer * 3_670_528.0 / 8_390_656.0;
        assert_eq!(gemma.pair_flops(4096), expected as u64);
    }

    #[test]
    fn what_is_not_simulated_is_named() {
        let base = json!({
            "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 9,
        });
        let with = |more: &[(&str, Value)]| {
            let mut config = base.clone();
            more.iter().for_each(|(key, value)| config[*key] = value.clone());
            Served::parse(config.to_string().as_bytes()).unwrap_err().to_string()
        };
        let awq = with(&[("quantization_config", json!({ "quant_method": "awq" }))]);
        assert!(awq.contains("quantization_config"), "{awq}");
        let state = with(&[("layer_types", json!(["full_attention", "conv"])), ("conv_L_cache", json!(3))]);
        assert!(state.contains("layer 1"), "{state}");
    }
}
