//! Nemotron-NAS: each block states its attention and its MLP.

use super::attention::{HEAD_DIM, KV_HEADS};
use super::keys::Keys;
use crate::error::PlanError;
use crate::layer::{Heads, Layer};
use serde_json::Value;

/// Widths of MLPs are multiples of this.
const WIDTH: u64 = 256;

fn list<'a>(keys: &Keys<'a>, count: usize, part: &str) -> Result<impl Iterator<Item = &'a Value>, PlanError> {
    let wrong = || keys.invalid("block_configs", format!("a list of {count} blocks with `{part}`"));
    let blocks = keys.list("block_configs").filter(|blocks| blocks.len() >= count).ok_or_else(wrong)?;
    let parts: Option<Vec<&Value>> = blocks[..count].iter().map(|block| block.get(part)).collect();
    parts.map(Vec::into_iter).ok_or_else(wrong)
}

fn says(part: &Value, key: &str) -> bool {
    part.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// What each block keeps. Heads are those of queries over a group's.
pub(super) fn layers(keys: &Keys<'_>, count: usize) -> Result<Vec<Layer>, PlanError> {
    let wrong = || keys.invalid("block_configs", format!("a list of {count} blocks with heads"));
    let queries = keys.needed(&["num_attention_heads"])?;
    let dim = match keys.number(&HEAD_DIM)? {
        Some(dim) => dim,
        None => keys.needed(&["hidden_size"])? / queries,
    };
    if dim == 0 {
        return Err(keys.invalid("hidden_size", format!("at least {queries}, the number of heads")));
    }
    let of_block = |attention: &Value| -> Result<Layer, PlanError> {
        if says(attention, "no_op") || says(attention, "replace_with_linear") {
            return Ok(Layer::Nothing);
        }
        if let Some(key) = ["window_length", "num_sink_tokens", "sparsify", "llama4", "mamba"]
            .into_iter()
            .find(|key| attention.get(key).is_some_and(|value| !value.is_null()))
        {
            return Err(PlanError::Unread { key: format!("block_configs.attention.{key}") });
        }
        let whole = |key: &str| attention.get(key).and_then(Value::as_u64);
        let heads = match (whole("n_heads_in_group"), whole("num_key_value_heads")) {
            (Some(group), _) if group > 0 => queries / group,
            (None, Some(heads)) => heads.min(queries),
            _ => 0,
        };
        if heads == 0 {
            return Err(wrong());
        }
        Ok(Layer::Full { heads: Heads { heads, key_dim: dim, value_dim: dim } })
    };
    KV_HEADS.iter().for_each(|key| keys.settle(key));
    list(keys, count, "attention")?.map(of_block).collect()
}

/// Weights of each block's MLP.
pub(crate) fn mlps(keys: &Keys<'_>, count: usize, hidden: u64) -> Result<Vec<u64>, PlanError> {
    let of_block = |mlp: &Value| -> Result<u64, PlanError> {
        if says(mlp, "no_op") {
            return Ok(0);
        }
        if says(mlp, "replace_with_linear") {
            return Ok(hidden * hidden);
        }
        let width =
            match (mlp.get("intermediate_size").and_then(Value::as_u64), mlp.get("ffn_mult").and_then(Value::as_f64)) {
                (Some(width), _) => Some(width),
                (None, Some(times)) if (0.0..1024.0).contains(&times) => {
                    Some(((2.0 * times * hidden as f64 / 3.0) as u64).next_multiple_of(WIDTH))
                }
                _ => None,
            };
        let has_experts = mlp.get("moe").is_some_and(|moe| !moe.is_null());
        let width = width.filter(|width| *width < 1 << 20 && !has_experts);
        let wrong =
            || keys.invalid("block_configs", "a list of blocks whose `ffn` has `intermediate_size` or `ffn_mult`");
        Ok(3 * hidden * width.ok_or_else(wrong)?)
    };
    list(keys, count, "ffn")?.map(of_block).collect()
}
