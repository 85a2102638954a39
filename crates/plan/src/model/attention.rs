//! Heads, latents and windows of a layer with attention.

use super::keys::Keys;
use super::kinds::Kind;
use crate::error::PlanError;
use crate::layer::{Heads, Layer};

pub(super) const KV_HEADS: [&str; 4] =
    ["num_key_value_heads", "n_head_kv", "num_kv_heads", "num_key_value_heads_per_layer"];
pub(super) const HEAD_DIM: [&str; 3] = ["head_dim", "attention_head_dim", "d_head"];
/// vLLM's indexer keeps a key in 8 bits, and an f32 for each so many values.
const INDEX_BLOCK: u64 = 128;

/// What an attention of this kind keeps.
pub(super) fn layer(keys: &Keys<'_>, kind: Kind, layer: usize) -> Result<Layer, PlanError> {
    if keys.class() == "minicpm3" && kind == Kind::Full {
        return expanded(keys);
    }
    if kind != Kind::Chunk && keys.has("kv_lora_rank") {
        return latent(keys, kind, layer);
    }
    let heads = heads(keys, kind, layer)?;
    Ok(match kind {
        Kind::Window => Layer::Window { heads, tokens: window(keys)? },
        Kind::Chunk => Layer::Chunk { heads, tokens: keys.needed_tokens(&["attention_chunk_size"])? },
        _ => Layer::Full { heads },
    })
}

fn window(keys: &Keys<'_>) -> Result<u64, PlanError> {
    let tokens = keys.needed_tokens(&["sliding_window", "sliding_window_size"])?;
    // Cohere counts the tokens before the own one.
    Ok(tokens + u64::from(keys.class().starts_with("cohere2")))
}

fn heads(keys: &Keys<'_>, kind: Kind, layer: usize) -> Result<Heads, PlanError> {
    let queries = keys.of_layer(layer, &["num_attention_heads", "n_head", "n_heads", "num_heads"])?;
    let queries = match queries {
        Some(queries) if queries > 0 => queries,
        _ => keys.needed(&["num_attention_heads"])?,
    };
    let of_kind = |window: &'static str, full: &'static str| -> Result<Option<u64>, PlanError> {
        match kind {
            Kind::Window => keys.of_layer(layer, &[window]),
            _ => keys.number(&[full]),
        }
    };
    let (window_heads, full_heads) = ("swa_num_key_value_heads", "num_global_key_value_heads");
    let heads = match of_kind(window_heads, full_heads)? {
        Some(heads) => heads,
        None => kv_heads(keys, layer)?.unwrap_or(queries),
    };
    let own = of_kind("swa_head_dim", "global_head_dim")?;
    let key_dim = match own {
        Some(dim) => dim,
        None => match keys.number(&HEAD_DIM)? {
            Some(dim) => dim,
            None => keys.needed(&["hidden_size", "n_embd", "d_model"])? / queries,
        },
    };
    let value_dim = match (own, of_kind("swa_v_head_dim", "global_v_head_dim")?) {
        (_, Some(dim)) => dim,
        (Some(dim), None) => dim,
        (None, None) => keys.number(&["v_head_dim"])?.unwrap_or(key_dim),
    };
    if key_dim == 0 {
        return Err(keys.invalid("hidden_size", format!("at least {queries}, the number of heads")));
    }
    settle_other_sizes(keys);
    let heads = per_layer(keys, layer, Heads { heads, key_dim, value_dim })?;
    if heads.heads == 0 || heads.value_dim == 0 {
        let key = if heads.heads == 0 { KV_HEADS[0] } else { "v_head_dim" };
        return Err(keys.invalid(key, "above zero in a layer with attention"));
    }
    Ok(heads)
}

/// Sizes of heads say nothing of a model without attention, or whose vectors have sizes of their own.
pub(super) fn settle_sizes(keys: &Keys<'_>) {
    for key in ["num_attention_heads", "num_heads", "n_head", "n_heads", "attention_head_dim", "kv_channels"] {
        keys.settle(key);
    }
    KV_HEADS.iter().chain(&HEAD_DIM).for_each(|key| keys.settle(key));
    settle_other_sizes(keys);
}

/// Sizes of windowed layers say nothing of a model without them, and the reverse.
fn settle_other_sizes(keys: &Keys<'_>) {
    for name in ["num_key_value_heads", "head_dim", "v_head_dim", "num_attention_heads"] {
        keys.settle(&format!("swa_{name}"));
        keys.settle(&format!("global_{name}"));
    }
    keys.settle("num_global_key_value_heads");
}

/// Gemma-4: sizes of single layers.
fn per_layer(keys: &Keys<'_>, layer: usize, heads: Heads) -> Result<Heads, PlanError> {
    let Some(configs) = keys.get("per_layer_config") else { return Ok(heads) };
    let wrong = || keys.invalid("per_layer_config", "an object of objects with sizes of heads, by the layers' numbers");
    let configs = configs.as_object().ok_or_else(wrong)?;
    let Some((_, own)) = configs.iter().find(|(number, _)| number.parse() == Ok(layer)) else { return Ok(heads) };
    let own = own.as_object().ok_or_else(wrong)?;
    let number = |key: &str| match own.get(key) {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(value) => value.as_u64().filter(|number| *number < 1 << 20).map(Some).ok_or_else(wrong),
    };
    let dim = number("head_dim")?;
    Ok(Heads {
        heads: number("num_key_value_heads")?.unwrap_or(heads.heads),
        key_dim: dim.unwrap_or(heads.key_dim),
        value_dim: dim.unwrap_or(heads.value_dim),
    })
}

/// Key and value heads, or as many as there are of queries.
fn kv_heads(keys: &Keys<'_>, layer: usize) -> Result<Option<u64>, PlanError> {
    keys.only("attn_config", &["kv_n_heads", "attn_type", "attn_impl", "attn_uses_sequence_id"])?;
    if let Some(config) = keys.get("attn_config") {
        let kind = config.get("attn_type").and_then(serde_json::Value::as_str);
        return match config.get("kv_n_heads") {
            None if kind == Some("multiquery_attention") => Ok(Some(1)),
            None => Ok(None),
            Some(heads) => match heads.as_u64().filter(|heads| *heads < 1 << 20) {
                Some(heads) => Ok(Some(heads)),
                None => Err(keys.invalid("attn_config", "an object whose `kv_n_heads` is a whole number")),
            },
        };
    }
    // ChatGLM and Falcon share heads by a flag; Falcon's newer decoder counts them.
    if let Some(groups) = keys.number(&["multi_query_group_num"])? {
        return Ok(keys.flag("multi_query_attention")?.unwrap_or(false).then_some(groups));
    }
    let is_new = keys.flag("new_decoder_architecture")?.unwrap_or(false);
    if keys.flag("multi_query")?.unwrap_or(false) && !is_new {
        KV_HEADS.iter().for_each(|key| keys.settle(key));
        return Ok(Some(1));
    }
    keys.of_layer(layer, &KV_HEADS)
}

/// MLA of which engines keep each head's key and value, the value filled up to the key's size.
fn expanded(keys: &Keys<'_>) -> Result<Layer, PlanError> {
    let dim = keys.needed(&["qk_nope_head_dim"])? + keys.needed(&["qk_rope_head_dim"])?;
    let heads = Heads { heads: keys.needed(&["num_attention_heads"])?, key_dim: dim, value_dim: dim };
    settle_sizes(keys);
    settle_latents(keys);
    keys.settle("kv_lora_rank");
    Ok(Layer::Full { heads })
}

/// MLA, with the key of an indexer where the layer has one of its own.
fn latent(keys: &Keys<'_>, kind: Kind, layer: usize) -> Result<Layer, PlanError> {
    if kind == Kind::Window {
        return Err(keys.invalid("kv_lora_rank", "absent, since a window of latents is not known"));
    }
    settle_sizes(keys);
    settle_latents(keys);
    let values = keys.needed(&["kv_lora_rank"])? + keys.needed(&["qk_rope_head_dim"])?;
    Ok(Layer::Latent { values, index_bytes: index_bytes(keys, layer)? })
}

fn index_bytes(keys: &Keys<'_>, layer: usize) -> Result<u64, PlanError> {
    let Some(dim) = keys.number(&["index_head_dim"])? else { return Ok(0) };
    let of_class = keys.class() != "hy_v4" || keys.has("indexer_types") || layer == 0 || (layer - 1).is_multiple_of(4);
    let own = of_class
        && !skips_index(keys, layer)?
        && match keys.list("indexer_types").map(|types| types.get(layer).and_then(|kind| kind.as_str())) {
            None | Some(Some("full")) => true,
            Some(Some("shared")) => false,
            Some(_) => return Err(keys.invalid("indexer_types", "`full` or `shared` for each layer")),
        };
    Ok(if own { index_key_bytes(dim) } else { 0 })
}

/// Whether a layer takes the choice of an earlier layer's indexer, by letters or by an interval.
fn skips_index(keys: &Keys<'_>, layer: usize) -> Result<bool, PlanError> {
    let (every, first) = (keys.number(&["index_topk_freq"])?, keys.number(&["index_skip_topk_offset"])?.unwrap_or(2));
    if let Some(pattern) = keys.text(&["index_topk_pattern"])? {
        return Ok(pattern.chars().nth(layer) == Some('S'));
    }
    Ok(!(layer as u64 + 1).saturating_sub(first).is_multiple_of(every.unwrap_or(1).max(1)))
}

/// Bytes of the indexer's key of a token.
pub(super) const fn index_key_bytes(dim: u64) -> u64 {
    dim + dim / INDEX_BLOCK * 4
}

/// Ranks and parts of heads that latents replace, and the queries of an indexer.
pub(super) fn settle_latents(keys: &Keys<'_>) {
    let parts = ["q_lora_rank", "o_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"];
    let index = ["index_n_heads", "index_topk"];
    parts.iter().chain(&index).for_each(|key| keys.settle(key));
}
