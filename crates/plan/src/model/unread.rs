//! The rule that no statement of layers is passed over.
//!
//! A file of an unknown class states its layers in keys of its own. A key whose name speaks of
//! layers, attention, windows, heads, states or caches is therefore read, or is known to change no
//! bytes, or the file is refused by the key's name.

use super::keys::Keys;
use super::states;
use crate::error::PlanError;
use serde_json::Value;

/// Words of names that speak of what layers keep.
const CONCERNS: [&str; 55] = [
    "layer",
    "layers",
    "block",
    "blocks",
    "attn",
    "attention",
    "attentions",
    "window",
    "windows",
    "swa",
    "sliding",
    "slide",
    "chunk",
    "chunks",
    "chunked",
    "kv",
    "head",
    "heads",
    "headdim",
    "state",
    "states",
    "ssm",
    "mamba",
    "conv",
    "recurrent",
    "recurrence",
    "cache",
    "caches",
    "hybrid",
    "pattern",
    "interval",
    "period",
    "latent",
    "compress",
    "compression",
    "compressed",
    "ratio",
    "ratios",
    "index",
    "indexer",
    "global",
    "local",
    "linear",
    "reuse",
    "cross",
    "memory",
    "lru",
    "retention",
    "delta",
    "lightning",
    "sparse",
    "kda",
    "gla",
    "yoco",
    "quantization",
];

/// Words of names that speak of the arithmetic instead: of rates, norms, experts and tokens.
const NEUTRAL: [&str; 59] = [
    "dropout",
    "pdrop",
    "layerdrop",
    "drop",
    "bias",
    "norm",
    "norms",
    "layernorm",
    "layernorms",
    "eps",
    "epsilon",
    "theta",
    "scale",
    "scaling",
    "scales",
    "multiplier",
    "multipliers",
    "expert",
    "experts",
    "moe",
    "mlp",
    "ffn",
    "ff",
    "init",
    "initializer",
    "softcapping",
    "softcap",
    "softmax",
    "vision",
    "image",
    "video",
    "audio",
    "mtp",
    "nextn",
    "router",
    "loss",
    "rope",
    "yarn",
    "rotary",
    "token",
    "tokens",
    "prob",
    "act",
    "activation",
    "gate",
    "gating",
    "dense",
    "factor",
    "scalar",
    "temperature",
    "tuning",
    "vocab",
    "labels",
    "embedding",
    "embeddings",
    "laurel",
    "dtype",
    "input",
    "fp32",
];

/// Words that are a concern whatever stands beside them.
const STRONG: [&str; 8] = ["window", "sliding", "chunk", "chunked", "kv", "cache", "state", "states"];

/// Names that are known to change no bytes.
const HARMLESS: [&str; 52] = [
    "use_cache",
    "cache_implementation",
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "attention_k_eq_v",
    "use_bidirectional_attention",
    "clip_qkv",
    "parallel_attn",
    "alibi",
    "query_pre_attn_scalar",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "n_group",
    "topk_group",
    "num_dense_layers",
    "head_dtype",
    "adapter_rank",
    "num_mem_blocks",
    "attention_hidden_size",
    "kv_channels",
    "num_query_groups",
    "use_shared_attention_adapter",
    "num_attention_heads_per_layer",
    "block_auto_adjust_ff_dim",
    "block_ffn_dim_multiplier",
    "block_multiple_of",
    "block_ff_dim",
    "block_dim",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "do_layer_norm_before",
    "attn_output_gate",
    "use_qk_norm",
    "qk_layernorm",
    "apply_residual_connection_post_layernorm",
    "add_cross_attention",
    "interleaved_sliding_window",
    "num_ln_in_parallel_attn",
    "expert_layer_period",
    "expert_layer_offset",
    "use_mem_eff_path",
    "attention_method",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    "prefix_dense_sliding_window_pattern",
    "mla_scale_q_lora",
    "mla_scale_kv_lora",
    "downsample_ratio",
    "insert_layer_id",
    "num_hash_layers",
];

/// Objects with keys of their own that describe no layers of the text model.
const OTHERS: [&str; 15] = [
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "vision_config",
    "audio_config",
    "quantization_config",
    "rope_parameters",
    "rope_scaling",
    "auto_map",
    "id2label",
    "label2id",
    "generation_config",
    "task_specific_params",
    "compression_config",
];

/// Refuses a file with a key that may change what a layer keeps and that was not read. Keys of states
/// are settled if a state's formula has read those that it needs, or if a list names all layers.
pub(super) fn refuse(keys: &Keys<'_>, states_are_settled: bool) -> Result<(), PlanError> {
    let unread = keys.unread().into_iter().find(|(key, value)| {
        let is_settled = is_off(value) || OTHERS.contains(key) || (states_are_settled && speaks_of_states(key));
        concerns(key) && !is_settled
    });
    match unread {
        Some((key, _)) => Err(PlanError::Unread { key: key.to_owned() }),
        None => Ok(()),
    }
}

fn words(key: &str) -> impl Iterator<Item = &str> {
    key.split('_').filter(|word| !word.is_empty())
}

/// Whether a key's name speaks of what layers keep.
pub(super) fn concerns(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let has = |list: &[&str]| words(&key).any(|word| list.contains(&word));
    // Tables of n-grams hold rows, no keys and values.
    if HARMLESS.contains(&key.as_str()) || key.starts_with("engram_") {
        return false;
    }
    has(&STRONG) && !has(&["vision", "audio", "video", "image", "mtp", "dtype"]) || has(&CONCERNS) && !has(&NEUTRAL)
}

fn speaks_of_states(key: &str) -> bool {
    key == "chunk_size" || words(key).any(|word| states::WORDS.contains(&word))
}

/// A feature that is off changes nothing.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_layers_are_a_concern_and_names_of_arithmetic_are_none() {
        let concerning = [
            "attn_every_n_layers",
            "memory_layers",
            "retention_heads",
            "kv_reuse_interval",
            "conv_kernel_size",
            "cache_token_ratio",
            "yoco_start",
            "hybrid_ratio",
            "num_latents_per_block",
        ];
        let neutral = [
            "attention_bias",
            "attention_dropout",
            "rope_theta",
            "layer_norm_eps",
            "num_local_experts",
            "mlp_layer_types",
            "hidden_act",
            "vocab_size",
            "attn_logit_softcapping",
            "vision_chunk_size",
            "tie_word_embeddings",
            "swa_rope_theta",
            "engram_head_dim",
            "engram_layer_ids",
        ];
        assert_eq!(concerning.into_iter().filter(|key| !concerns(key)).collect::<Vec<_>>(), Vec::<&str>::new());
        assert_eq!(neutral.into_iter().filter(|key| concerns(key)).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
