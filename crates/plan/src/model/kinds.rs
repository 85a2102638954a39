//! Which kind each layer is of, from any of the statements of it.

use super::keys::Keys;
use crate::error::PlanError;
use serde_json::Value;

/// What a layer computes with, before its sizes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Attention to all tokens.
    Full,
    /// Attention to the most recent tokens.
    Window,
    /// Attention to the tokens of a chunk.
    Chunk,
    /// A recurrence or a convolution.
    State,
    /// Attention to all tokens beside a recurrence.
    Both,
    /// Two attentions to all tokens.
    Twice,
    /// No memory.
    Nothing,
}

/// Names of kinds in lists of layers.
const NAMES: [(&str, Kind); 30] = [
    ("full_attention", Kind::Full),
    ("attention", Kind::Full),
    ("full", Kind::Full),
    ("global", Kind::Full),
    ("global_attention", Kind::Full),
    ("hybrid_indexed", Kind::Full),
    ("deepseek_sparse_attention", Kind::Full),
    ("indexed_attention", Kind::Full),
    ("*", Kind::Full),
    ("G", Kind::Full),
    ("sliding_attention", Kind::Window),
    ("sliding_window", Kind::Window),
    ("local", Kind::Window),
    ("local_attention", Kind::Window),
    ("L", Kind::Window),
    ("chunked_attention", Kind::Chunk),
    ("linear_attention", Kind::State),
    ("gated_delta_net", Kind::State),
    ("kda", Kind::State),
    ("mamba", Kind::State),
    ("mamba2", Kind::State),
    ("conv", Kind::State),
    ("short_conv", Kind::State),
    ("M", Kind::State),
    ("hybrid", Kind::Both),
    ("mlp", Kind::Nothing),
    ("moe", Kind::Nothing),
    ("-", Kind::Nothing),
    ("E", Kind::Nothing),
    ("none", Kind::Nothing),
];

/// How a class uses `sliding_window` if its file has no list and no pattern.
enum Windows {
    /// All layers have the window.
    All,
    /// Each layer but every n-th.
    AllBut(u64),
    /// Those from `max_window_layers` on.
    Late,
}

/// The classes' defaults, from their configuration classes in transformers 5.
const CLASSES: [(&str, Windows); 22] = [
    ("gemma2", Windows::AllBut(2)),
    ("vaultgemma", Windows::AllBut(2)),
    ("gpt_oss", Windows::AllBut(2)),
    ("cohere2", Windows::AllBut(4)),
    ("exaone4", Windows::AllBut(4)),
    ("exaone_moe", Windows::AllBut(4)),
    ("olmo3", Windows::AllBut(4)),
    ("gemma3n", Windows::AllBut(5)),
    ("gemma3", Windows::AllBut(6)),
    ("gemma4", Windows::AllBut(6)),
    ("mistral", Windows::All),
    ("ministral", Windows::All),
    ("mixtral", Windows::All),
    ("phi3", Windows::All),
    ("phimoe", Windows::All),
    ("starcoder2", Windows::All),
    ("qwen2", Windows::Late),
    ("qwen2_moe", Windows::Late),
    ("qwen2_vl", Windows::Late),
    ("qwen3", Windows::Late),
    ("qwen3_moe", Windows::Late),
    ("dots1", Windows::Late),
];

/// Reads the kinds of so many layers from a key.
type Read = fn(&Keys<'_>, &str, usize) -> Result<Vec<Kind>, PlanError>;

/// Keys that state layers, the most explicit first. The first one that is there decides.
const STATEMENTS: [(&str, Read); 18] = [
    ("hybrid_override_pattern", letters),
    ("layer_types", names),
    ("layers_block_type", names),
    ("block_types", repeated),
    ("attn_type_list", ones_are_full),
    ("linear_attn_config", lists_from_one),
    ("attn_layer_indices", indices),
    ("full_attn_idxs", indices),
    ("attn_layer_period", period),
    ("hybrid_layer_pattern", ones_are_windows),
    ("layer_group_size", every_linear),
    ("full_attention_interval", every_linear),
    ("global_attn_every_n_layers", every_windowed),
    ("sliding_window_pattern", pattern),
    ("_sliding_window_pattern", pattern),
    ("no_rope_layers", zeros_are_full),
    ("no_rope_layer_interval", every_chunked),
    ("attention_chunk_size", chunked),
];

/// The kind of each layer.
pub(super) fn kinds(keys: &Keys<'_>, count: usize) -> Result<Vec<Kind>, PlanError> {
    let class = keys.class();
    // Elsewhere these say which layers have rotary embeddings.
    let is_about_rotation = |key: &str| key.starts_with("no_rope") && class != "llama4";
    let there = |key: &str| match keys.peek(key) {
        Some(Value::Array(list)) => !list.is_empty() && !is_about_rotation(key),
        Some(Value::Number(number)) => number.as_u64() != Some(0) && !is_about_rotation(key),
        Some(_) => true,
        None => false,
    };
    let stated = STATEMENTS.iter().find(|(key, _)| there(key));
    let Some((key, read)) = stated else { return by_class(keys, class, count) };
    let kinds = read(keys, key, count)?;
    // The others say the same in other words.
    STATEMENTS.iter().for_each(|(key, _)| keys.settle(key));
    ["attn_layer_offset", "hybrid_layer_ids", "max_window_layers"].iter().for_each(|key| keys.settle(key));
    if !kinds.contains(&Kind::Window) {
        ["sliding_window", "use_sliding_window"].iter().for_each(|key| keys.settle(key));
    }
    Ok(kinds)
}

/// The kinds of a model whose file does not list them.
fn by_class(keys: &Keys<'_>, class: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    match class {
        "mamba" | "mamba2" | "falcon_mamba" => return Ok(vec![Kind::State; count]),
        "falcon_h1" => return Ok(vec![Kind::Both; count]),
        "longcat_flash" => return Ok(vec![Kind::Twice; count]),
        "llama4" => return each(count, |layer| Ok(every(layer, 4, Kind::Chunk))),
        _ => {}
    }
    let is_used = keys.flag("use_sliding_window")?.unwrap_or(true);
    let late = keys.number(&["max_window_layers"])?;
    if keys.tokens(&["sliding_window"])?.is_none_or(|window| window == 0) || !is_used {
        return Ok(vec![Kind::Full; count]);
    }
    let Some((_, windows)) = CLASSES.iter().find(|(known, _)| *known == class) else {
        let key = "sliding_window".to_owned();
        return Err(PlanError::NoPattern { key, class: class.to_owned() });
    };
    let mut kinds = each(count, |layer| {
        Ok(match windows {
            Windows::All => Kind::Window,
            Windows::AllBut(interval) => every(layer, *interval, Kind::Window),
            Windows::Late if (layer as u64) < late.unwrap_or(0) => Kind::Full,
            Windows::Late => Kind::Window,
        })
    })?;
    if class == "gemma4" {
        // Its class makes the last layer a full one.
        kinds.last_mut().into_iter().for_each(|kind| *kind = Kind::Full);
    }
    Ok(kinds)
}

fn each(count: usize, kind: impl Fn(usize) -> Result<Kind, PlanError>) -> Result<Vec<Kind>, PlanError> {
    (0..count).map(kind).collect()
}

/// Every n-th layer is a full one.
const fn every(layer: usize, interval: u64, other: Kind) -> Kind {
    if (layer as u64 + 1).is_multiple_of(interval) { Kind::Full } else { other }
}

fn named(layer: usize, name: &str) -> Result<Kind, PlanError> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(|| {
        let known = NAMES.map(|(name, _)| name).join(", ");
        PlanError::UnknownLayer { layer, kind: name.to_owned(), known }
    })
}

fn names(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    let list = keys.list(key).filter(|list| list.len() >= count);
    let list = list.ok_or_else(|| keys.invalid(key, format!("a list of {count} names of layer types")))?;
    each(count, |layer| match list[layer].as_str() {
        Some(name) => named(layer, name),
        None => Err(keys.invalid(key, format!("a list of {count} names of layer types"))),
    })
}

/// RecurrentGemma's `block_types` repeat, and its attention has a window; others list all layers.
fn repeated(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    let window = keys.peek("attention_window_size").is_some();
    if !window {
        return names(keys, key, count);
    }
    Err(keys.invalid(key, "absent: the state of these recurrent blocks is not known"))
}

fn letters(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    let text = keys.text(&[key])?.filter(|text| text.chars().count() == count);
    let text = text.ok_or_else(|| keys.invalid(key, format!("{count} letters, one for each layer")))?;
    text.chars().enumerate().map(|(layer, letter)| named(layer, letter.encode_utf8(&mut [0; 4]))).collect()
}

/// A list of 0 and 1.
fn bits(keys: &Keys<'_>, key: &str, count: usize, [zero, one]: [Kind; 2]) -> Result<Vec<Kind>, PlanError> {
    let wrong = || keys.invalid(key, format!("a list of {count} zeros and ones"));
    let list = keys.list(key).filter(|list| list.len() >= count).ok_or_else(wrong)?;
    each(count, |layer| match list[layer].as_u64() {
        Some(0) => Ok(zero),
        Some(1) => Ok(one),
        _ => Err(wrong()),
    })
}

fn ones_are_full(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    bits(keys, key, count, [Kind::State, Kind::Full])
}

fn ones_are_windows(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    bits(keys, key, count, [Kind::Full, Kind::Window])
}

/// Llama-4: layers without rotary embeddings see all tokens.
fn zeros_are_full(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    keys.needed_tokens(&["attention_chunk_size"])?;
    bits(keys, key, count, [Kind::Full, Kind::Chunk])
}

/// Kimi-Linear: two lists of layers, counted from one.
fn lists_from_one(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    keys.only(key, &["full_attn_layers", "kda_layers", "head_dim", "num_heads", "short_conv_kernel_size"])?;
    let lists = ["full_attn_layers", "kda_layers"].map(|name| keys.get(key)?.get(name)?.as_array());
    let [Some(full), Some(linear)] = lists else {
        return Err(keys.invalid(key, "an object with `full_attn_layers` and `kda_layers`"));
    };
    let has = |list: &[Value], layer: usize| list.iter().any(|other| other.as_u64() == Some(layer as u64 + 1));
    each(count, |layer| match (has(full, layer), has(linear, layer)) {
        (true, false) => Ok(Kind::Full),
        (false, true) => Ok(Kind::State),
        _ => Err(keys.invalid(key, format!("two lists, of which one has layer {}", layer + 1))),
    })
}

/// A list of the layers with attention; the others have states.
fn indices(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    let wrong = || keys.invalid(key, format!("a list of layers, counted from zero to {}", count - 1));
    let list = keys.list(key).ok_or_else(wrong)?;
    if list.iter().any(|other| other.as_u64().is_none_or(|other| other >= count as u64)) {
        return Err(wrong());
    }
    let has = |layer: usize| list.iter().any(|other| other.as_u64() == Some(layer as u64));
    each(count, |layer| Ok(if has(layer) { Kind::Full } else { Kind::State }))
}

/// Jamba: attention each so many layers, from an offset on.
fn period(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    let (period, offset) = (keys.needed(&[key])?, keys.number(&["attn_layer_offset"])?.unwrap_or(0));
    if offset >= period {
        return Err(keys.invalid("attn_layer_offset", format!("below the period, {period}")));
    }
    each(count, |layer| Ok(if layer as u64 % period == offset { Kind::Full } else { Kind::State }))
}

fn interval(keys: &Keys<'_>, key: &str, count: usize, other: Kind) -> Result<Vec<Kind>, PlanError> {
    let interval = keys.needed(&[key])?;
    each(count, |layer| Ok(every(layer, interval, other)))
}

fn every_linear(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    interval(keys, key, count, Kind::State)
}

fn every_windowed(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    interval(keys, key, count, Kind::Window)
}

fn every_chunked(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    keys.needed_tokens(&["attention_chunk_size"])?;
    interval(keys, key, count, Kind::Chunk)
}

/// Llama-4's default interval.
fn chunked(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    match keys.class() {
        "llama4" => each(count, |layer| Ok(every(layer, 4, Kind::Chunk))),
        class => Err(PlanError::NoPattern { key: key.to_owned(), class: class.to_owned() }),
    }
}

/// An interval, or letters that repeat. Without a window all layers are full.
fn pattern(keys: &Keys<'_>, key: &str, count: usize) -> Result<Vec<Kind>, PlanError> {
    let is_used = keys.flag("use_sliding_window")?.unwrap_or(true);
    if !is_used || keys.tokens(&["sliding_window"])?.is_none_or(|window| window == 0) {
        keys.settle(key);
        return Ok(vec![Kind::Full; count]);
    }
    let Some(text) = keys.get(key).and_then(Value::as_str) else { return every_windowed(keys, key, count) };
    let letters: Vec<char> = text.chars().collect();
    if letters.is_empty() {
        return Err(keys.invalid(key, "an interval, or letters such as LLLG"));
    }
    each(count, |layer| named(layer, letters[layer % letters.len()].encode_utf8(&mut [0; 4])))
}
