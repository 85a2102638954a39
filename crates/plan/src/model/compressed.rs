//! DeepSeek-V4: vectors of a window, and of compressed runs where the layer has a ratio.

use super::attention;
use super::keys::Keys;
use crate::error::PlanError;
use crate::layer::Layer;
use serde_json::Value;

/// The ratio of layers whose runs overlap and are chosen by an index.
const INDEXED: u64 = 4;
/// Values that share a scale of one byte, and bytes to which the scales are filled.
const SCALED: u64 = 64;
const SCALES: u64 = 8;
/// Types of layers in transformers' files, whose ratios `compress_rates` has.
const TYPES: [&str; 3] = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];
/// Ratios of these types if the file has none.
const RATES: [u64; 3] = [0, INDEXED, 128];

/// Whether the file states layers of this kind.
pub(super) fn is_stated(keys: &Keys<'_>) -> bool {
    keys.has("compress_ratios") || keys.class() == "deepseek_v4" && keys.has("layer_types")
}

/// What a layer keeps in vLLM's types.
pub(super) fn layer(keys: &Keys<'_>, layer: usize) -> Result<Layer, PlanError> {
    let ratio = ratio(keys, layer)?;
    let (values, window) = (keys.needed(&["head_dim"])?, keys.needed_tokens(&["sliding_window"])?);
    let index = keys.number(&["index_head_dim"])?.filter(|_| ratio == INDEXED);
    let bytes = vector_bytes(keys, values)?;
    attention::settle_sizes(keys);
    attention::settle_latents(keys);
    ["compress_rates", "layer_types", "compress_rope_theta", "o_groups"].iter().for_each(|key| keys.settle(key));
    let index_bytes = index.map_or(0, attention::index_key_bytes);
    // vLLM takes a run of one token for none.
    let kept = Layer::Compressed { bytes, ratio: if ratio > 1 { ratio } else { 0 }, window, index_bytes };
    let inputs = [Some(values), index].into_iter().flatten().filter(|_| ratio > 1).map(|dim| inputs(dim, ratio));
    Ok(inputs.fold(kept, |kept, bytes| kept.with(Layer::State { bytes })))
}

fn ratio(keys: &Keys<'_>, layer: usize) -> Result<u64, PlanError> {
    if keys.has("compress_ratios") {
        let ratio = keys.list("compress_ratios").and_then(|ratios| ratios.get(layer)).and_then(Value::as_u64);
        // A longer run than a context is no ratio.
        let ratio = ratio.filter(|ratio| *ratio < 1 << 20);
        return ratio.ok_or_else(|| keys.invalid("compress_ratios", "a whole number for each layer"));
    }
    let name = keys.list("layer_types").and_then(|types| types.get(layer)).and_then(Value::as_str);
    let name = name.ok_or_else(|| keys.invalid("layer_types", "a name for each layer"))?;
    let Some(at) = TYPES.iter().position(|known| *known == name) else {
        return Err(PlanError::UnknownLayer { layer, kind: name.to_owned(), known: TYPES.join(", ") });
    };
    match keys.get("compress_rates").and_then(|rates| rates.get(name)) {
        None => Ok(RATES[at]),
        Some(rate) => rate
            .as_u64()
            .filter(|rate| *rate < 1 << 20)
            .ok_or_else(|| keys.invalid("compress_rates", "an object with a whole number for each type of layers")),
    }
}

/// Bytes of a vector: FP8 with scales, and the rotary part in BF16, as vLLM keeps them by default.
fn vector_bytes(keys: &Keys<'_>, values: u64) -> Result<u64, PlanError> {
    let rotary = match keys.number(&["qk_rope_head_dim"])? {
        Some(rotary) => rotary,
        None => {
            let share = keys.get("partial_rotary_factor").and_then(Value::as_f64);
            let share = share.filter(|share| (0.0..=1.0).contains(share));
            let share = share.ok_or_else(|| PlanError::Missing("qk_rope_head_dim".to_owned()))?;
            (values as f64 * share) as u64
        }
    };
    let Some(plain) = values.checked_sub(rotary) else {
        return Err(keys.invalid("qk_rope_head_dim", format!("at most {values}, the size of the head")));
    };
    Ok(plain + 2 * rotary + plain.div_ceil(SCALED).next_multiple_of(SCALES))
}

/// Bytes of a compressor's recent inputs, values and scores in f32: of a run, or of two that overlap.
const fn inputs(dim: u64, ratio: u64) -> u64 {
    let runs = if ratio == INDEXED { 2 } else { 1 };
    runs * ratio * 2 * runs * dim * 4
}
