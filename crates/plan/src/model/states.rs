//! Bytes of the states that recurrences and convolutions keep for a sequence.

use super::keys::Keys;
use crate::error::PlanError;

/// Bytes of a state: of the last inputs of a convolution, and of the recurrence.
struct State {
    conv: u64,
    recurrence: u64,
    /// Whether the recurrence is kept in f32 if the file does not say so.
    is_wide: bool,
}

/// Names of the states' keys begin with these words. A state's formula reads what it needs of them,
/// and a list without states needs none.
pub(super) const WORDS: [&str; 9] = ["mamba", "ssm", "linear", "conv", "lightning", "lru", "time", "dt", "kda"];

/// Bytes of a layer's state. The model's values have `value_bytes`.
pub(super) fn bytes(keys: &Keys<'_>, value_bytes: u64) -> Result<u64, PlanError> {
    let state = if keys.has("linear_num_key_heads") {
        gated_delta_net(keys)?
    } else if keys.has("linear_attn_config") || keys.has("linear_num_heads") {
        delta_attention(keys)?
    } else if keys.has("conv_L_cache") {
        short_convolution(keys)?
    } else if keys.has("attn_type_list") || keys.has("layer_group_size") || keys.class().starts_with("minimax") {
        // Its blocks are parts of the computation.
        keys.settle("block_size");
        lightning(keys)?
    } else if keys.has("mamba_dt_rank") || keys.has("time_step_rank") && keys.class() != "mamba2" {
        mamba(keys)?
    } else {
        mamba2(keys)?
    };
    let wide = match keys.text(&["mamba_ssm_cache_dtype", "mamba_ssm_dtype"])? {
        Some("float32") => 4,
        Some("float16" | "bfloat16") => 2,
        Some(_) => return Err(keys.invalid("mamba_ssm_dtype", "float32, float16 or bfloat16")),
        // vLLM's default for this class.
        None if state.is_wide || keys.class() == "nemotron_h" => 4,
        None => value_bytes,
    };
    Ok(state.conv * value_bytes + state.recurrence * wide)
}

const fn narrow(conv: u64, recurrence: u64) -> State {
    State { conv, recurrence, is_wide: false }
}

/// A convolution over queries, keys and values, and a matrix per value head.
fn gated_delta_net(keys: &Keys<'_>) -> Result<State, PlanError> {
    let [key_heads, value_heads] = [&["linear_num_key_heads"], &["linear_num_value_heads"]].map(|key| keys.needed(key));
    let [key_dim, value_dim] = [&["linear_key_head_dim"], &["linear_value_head_dim"]].map(|key| keys.needed(key));
    let (key_heads, value_heads, key_dim, value_dim) = (key_heads?, value_heads?, key_dim?, value_dim?);
    let taps = keys.needed(&["linear_conv_kernel_dim"])? - 1;
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    Ok(narrow(channels * taps, value_heads * key_dim * value_dim))
}

/// Kimi's delta attention: as above with equal heads, in f32.
fn delta_attention(keys: &Keys<'_>) -> Result<State, PlanError> {
    let inner = |name: &str| {
        let value = keys.get("linear_attn_config").and_then(|config| config.get(name)?.as_u64());
        value.filter(|value| (1..1 << 20).contains(value))
    };
    let read = |name: &str, key: &str| match inner(name) {
        Some(value) => Ok(value),
        None => keys.needed(&[key]),
    };
    let (heads, dim) = (read("num_heads", "linear_num_heads")?, read("head_dim", "linear_head_dim")?);
    let taps = read("short_conv_kernel_size", "linear_conv_kernel_dim")? - 1;
    Ok(State { conv: 3 * heads * dim * taps, recurrence: heads * dim * dim, is_wide: true })
}

/// LFM2: the last inputs of a convolution.
fn short_convolution(keys: &Keys<'_>) -> Result<State, PlanError> {
    Ok(narrow(keys.needed(&["conv_dim", "hidden_size"])? * (keys.needed(&["conv_L_cache"])? - 1), 0))
}

/// Lightning attention: a matrix per head.
fn lightning(keys: &Keys<'_>) -> Result<State, PlanError> {
    let heads = keys.needed(&["num_attention_heads"])?;
    let dim = match keys.number(&["head_dim"])? {
        Some(dim) => dim,
        None => keys.needed(&["hidden_size"])? / heads,
    };
    Ok(narrow(0, heads * dim * dim))
}

const STATE_SIZE: [&str; 3] = ["mamba_d_state", "ssm_state_size", "state_size"];
const TAPS: [&str; 2] = ["mamba_d_conv", "conv_kernel"];
const EXPAND: [&str; 2] = ["mamba_expand", "expand"];

/// Mamba: a convolution over the inner values, and a state per channel.
fn mamba(keys: &Keys<'_>) -> Result<State, PlanError> {
    let inner = match keys.class() {
        "mamba" | "falcon_mamba" if keys.has("intermediate_size") => keys.needed(&["intermediate_size"])?,
        _ => keys.needed(&["hidden_size"])? * keys.number(&EXPAND)?.unwrap_or(2),
    };
    Ok(narrow(inner * (keys.needed(&TAPS)? - 1), inner * keys.needed(&STATE_SIZE)?))
}

/// Mamba2: the convolution also covers both projections of the state.
fn mamba2(keys: &Keys<'_>) -> Result<State, PlanError> {
    let state = keys.needed(&STATE_SIZE)?;
    let groups = keys.number(&["mamba_n_groups", "mamba_ngroups", "n_groups"])?.unwrap_or(1);
    let mut heads = vec!["mamba_n_heads", "mamba_num_heads", "n_mamba_heads"];
    let mut dims = vec!["mamba_d_head", "mamba_head_dim", "mamba_headdim"];
    if keys.class() == "mamba2" {
        heads.push("num_heads");
        dims.push("head_dim");
    }
    let inner = match (keys.number(&["mamba_d_ssm"])?, keys.number(&heads)?) {
        (Some(inner), _) => inner,
        (None, Some(heads)) => heads * keys.needed(&dims)?,
        (None, None) => keys.needed(&["hidden_size"])? * keys.number(&EXPAND)?.unwrap_or(2),
    };
    Ok(narrow((inner + 2 * groups * state) * (keys.needed(&TAPS)? - 1), inner * state))
}
