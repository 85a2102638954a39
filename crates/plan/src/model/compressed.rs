//! DeepSeek-V4: vectors of a window, and of compressed runs where the layer has a ratio.

use super::attention;
use super::keys::Keys;
use crate::error::PlanError;
use crate::layer::Layer;
use serde_json::Value;

/// The ratio of layers whose runs overlap and are chosen by an index.
const INDEXED: u64 = 4;

/// What a layer keeps in vLLM's types.
pub(super) fn layer(keys: &Keys<'_>, layer: usize) -> Result<Layer, PlanError> {
    let ratio = keys.list("compress_ratios").and_then(|ratios| ratios.get(layer)).and_then(Value::as_u64);
    let ratio = ratio.ok_or_else(|| keys.invalid("compress_ratios", "a whole number for each layer"))?;
    let (values, window) = (keys.needed(&["head_dim"])?, keys.needed_tokens(&["sliding_window"])?);
    let index = keys.number(&["index_head_dim"])?.filter(|_| ratio == INDEXED);
    attention::settle_sizes(keys);
    attention::settle_latents(keys);
    ["compress_rates", "layer_types", "compress_rope_theta", "o_groups"].iter().for_each(|key| keys.settle(key));
    let kept = Layer::Compressed { values, ratio, window, index_bytes: index.map_or(0, attention::index_key_bytes) };
    let bytes = [Some(values), index].into_iter().flatten().map(|dim| inputs(dim, ratio)).sum();
    Ok(if ratio > 1 { kept.with(Layer::State { bytes }) } else { kept })
}

/// Bytes of a compressor's recent inputs, values and scores in f32: of a run, or of two that overlap.
const fn inputs(dim: u64, ratio: u64) -> u64 {
    let runs = if ratio == INDEXED { 2 } else { 1 };
    runs * ratio * 2 * runs * dim * 4
}
