//! A Llama with random weights, for measurements of speed: its tokens mean nothing.

use crate::outliers::gaussian;
use cenote_base::prng::Prng;
use cenote_console::input;
use cenote_quality::StudyError;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::path::Path;

/// Dimensions of a head.
const HEAD_DIM: usize = 64;
/// Longest context.
const CONTEXT: usize = 1 << 15;
/// Standard deviation of a weight.
const DEVIATION: f64 = 0.02;

/// Size of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream, a multiple of 64.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// KV heads, a divisor of `hidden / 64`.
    pub kv_heads: usize,
}

impl Shape {
    /// About 100 million weights.
    pub const HUNDRED_MILLION: Self = Self { layers: 14, hidden: 768, intermediate: 2048, kv_heads: 12 };

    /// Names and shapes of all tensors.
    fn tensors(&self, vocabulary: usize) -> Vec<(String, Vec<usize>)> {
        let Self { layers, hidden, intermediate, kv_heads } = *self;
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ];
        for layer in 0..layers {
            let mut add = |part: &str, shape: Vec<usize>| {
                tensors.push((format!("model.layers.{layer}.{part}.weight"), shape));
            };
            add("input_layernorm", vec![hidden]);
            add("post_attention_layernorm", vec![hidden]);
            add("self_attn.q_proj", vec![hidden, hidden]);
            add("self_attn.k_proj", vec![kv_heads * HEAD_DIM, hidden]);
            add("self_attn.v_proj", vec![kv_heads * HEAD_DIM, hidden]);
            add("self_attn.o_proj", vec![hidden, hidden]);
            add("mlp.gate_proj", vec![intermediate, hidden]);
            add("mlp.up_proj", vec![intermediate, hidden]);
            add("mlp.down_proj", vec![hidden, intermediate]);
        }
        tensors
    }
}

/// Writes the model into `to`, with the tokenizer of the model in `tokenizer`. Returns the number of
/// weights.
///
/// # Errors
/// A file cannot be read or written, or the shape is not one of a Llama.
pub fn write(shape: &Shape, tokenizer: &Path, to: &Path, seed: u64) -> Result<usize, StudyError> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| StudyError::Model(format!("{}: {error}", path.display()));
    let heads = shape.hidden / HEAD_DIM;
    if !shape.hidden.is_multiple_of(HEAD_DIM) || heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
        let fact = format!("a width of {} and {} KV heads do not make heads of 64", shape.hidden, shape.kv_heads);
        return Err(failed(to, &fact));
    }
    let config_path = tokenizer.join("config.json");
    let text = input::text(&config_path).map_err(|error| failed(&config_path, &error))?;
    let like: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(&config_path, &error))?;
    let vocabulary = like["vocab_size"].as_u64().ok_or_else(|| failed(&config_path, &"no vocab_size"))? as usize;
    std::fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let bytes = input::bytes(tokenizer.join(name)).map_err(|error| failed(&tokenizer.join(name), &error))?;
        std::fs::write(to.join(name), bytes).map_err(|error| failed(to, &error))?;
    }
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": HEAD_DIM, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
        "bos_token_id": like["bos_token_id"], "eos_token_id": like["eos_token_id"], "torch_dtype": "bfloat16",
    });
    let text = serde_json::to_string_pretty(&config).expect("it is JSON") + "\n";
    std::fs::write(to.join("config.json"), text).map_err(|error| failed(to, &error))?;

    let mut prng = Prng::new(seed);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shape
        .tensors(vocabulary)
        .into_iter()
        .map(|(name, shape)| {
            let mut value = || if shape.len() == 1 { 1.0 } else { DEVIATION * gaussian(&mut prng) };
            let values = (0..shape.iter().product()).flat_map(|_| bf16::from_f64(value()).to_le_bytes()).collect();
            (name, shape, values)
        })
        .collect();
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            TensorView::new(Dtype::BF16, shape.clone(), bytes).map(|view| (name.as_str(), view))
        })
        .collect();
    let path = to.join("model.safetensors");
    let views = views.map_err(|error| failed(&path, &error))?;
    safetensors::serialize_to_file(views, None, &path).map_err(|error| failed(&path, &error))?;
    Ok(tensors.iter().map(|(_, shape, _)| shape.iter().product::<usize>()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_engine::{EngineConfig, LoadedModel};

    #[test]
    fn a_random_model_loads() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let dir = tempfile::tempdir().expect("a directory");
        let shape = Shape { layers: 1, hidden: 128, intermediate: 64, kv_heads: 1 };
        let weights = write(&shape, &demo, dir.path(), 3).expect("it can be written");
        let model =
            LoadedModel::load(&EngineConfig::new(dir.path(), cenote_base::Clock::stopped())).expect("it is a Llama");
        assert_eq!(model.llama().config().num_heads, 2);
        assert!(model.llama().weight_bytes() >= 4 * (weights - 3 * 128));
        assert!(write(&Shape { kv_heads: 3, ..shape }, &demo, dir.path(), 3).is_err());
    }
}
