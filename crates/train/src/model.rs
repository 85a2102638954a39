//! A Llama for training, with the layout and names of Hugging Face's `LlamaForCausalLM`: whole
//! sequences, no cache, `f32`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor, Var};
use cenote_base::prng::Prng;
use cenote_engram::{Addresses, ConfigError, NgramConfig};
use serde::{Deserialize, Serialize};

use crate::engram::{self, Keys, Module};
use crate::error::{Error, Result};
use crate::fused::{CausalSoftmax, CrossEntropy, RmsNorm, Rope, RopeTable, SwiGlu};
use crate::tokens::{BOS_ID, EOS_ID};

/// `config.json`, every field under its Hugging Face name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Config {
    pub architectures: Vec<String>,
    pub model_type: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub hidden_act: String,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub max_position_embeddings: usize,
    pub tie_word_embeddings: bool,
    pub attention_bias: bool,
    pub mlp_bias: bool,
    pub attention_dropout: f64,
    pub initializer_range: f64,
    pub bos_token_id: u32,
    pub eos_token_id: u32,
    pub use_cache: bool,
    pub torch_dtype: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub engram: Option<Keys>,
}

/// Width of an attention head, fixed at a realistic value for the codecs and the tests of other
/// crates.
pub const HEAD_DIM: usize = 64;

impl Config {
    /// A configuration of `layers` layers, `heads` query heads and `kv_heads` key-value heads.
    /// `context` is in tokens.
    pub fn new(
        vocab: usize,
        hidden: usize,
        intermediate: usize,
        layers: usize,
        heads: usize,
        kv_heads: usize,
        context: usize,
    ) -> Result<Self> {
        let all = [vocab, hidden, intermediate, layers, heads, kv_heads, context];
        if all.contains(&0) || !heads.is_multiple_of(kv_heads) {
            return Err(Error::Flag(format!("--heads {heads} must be a multiple of --kv-heads {kv_heads}, none zero")));
        }
        Ok(Self {
            architectures: vec!["LlamaForCausalLM".into()],
            model_type: "llama".into(),
            vocab_size: vocab,
            hidden_size: hidden,
            intermediate_size: intermediate,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim: HEAD_DIM,
            hidden_act: "silu".into(),
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            max_position_embeddings: context,
            tie_word_embeddings: true,
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            initializer_range: 0.02,
            bos_token_id: BOS_ID,
            eos_token_id: EOS_ID,
            use_cache: true,
            torch_dtype: "bfloat16".into(),
            engram: None,
        })
    }

    /// Every weight's name and shape; a projection is `[out, in]`.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let mut shapes = self.llama_shapes();
        shapes.extend(self.engram.iter().flat_map(|keys| keys.shapes(self.hidden_size)));
        shapes
    }

    fn llama_shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let (hidden, middle) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim);
        let mut shapes = BTreeMap::from([
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ]);
        for layer in 0..self.num_hidden_layers {
            for (name, shape) in [
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![queries, hidden]),
                ("self_attn.k_proj", vec![keys, hidden]),
                ("self_attn.v_proj", vec![keys, hidden]),
                ("self_attn.o_proj", vec![hidden, queries]),
                ("mlp.gate_proj", vec![middle, hidden]),
                ("mlp.up_proj", vec![middle, hidden]),
                ("mlp.down_proj", vec![hidden, middle]),
            ] {
                shapes.insert(format!("model.layers.{layer}.{name}.weight"), shape);
            }
        }
        shapes
    }
}

/// One layer's weights, in the order of use.
struct Layer {
    engram: Option<Module>,
    attention_norm: Var,
    query: Var,
    key: Var,
    value: Var,
    output: Var,
    feed_norm: Var,
    gate: Var,
    up: Var,
    down: Var,
}

/// The model and its trainable weights.
pub struct Model {
    config: Config,
    weights: BTreeMap<String, Var>,
    embedding: Var,
    norm: Var,
    layers: Vec<Layer>,
    rope: Arc<RopeTable>,
    /// Rows of the tables, if the model has some.
    addresses: Option<Addresses>,
}

impl Model {
    /// Creates random weights: normal with deviation 0.02, norms 1. Projections into the residual
    /// stream are smaller by √(2 · layers), as in GPT-2. Equal seeds give a model with tables and
    /// one without them the same other weights. `tokenizer` is read if the model has tables.
    pub fn random(config: Config, seed: u64, tokenizer: &Path) -> Result<Self> {
        let residual = 1.0 / (2.0 * config.num_hidden_layers as f64).sqrt();
        let mut tensors = BTreeMap::new();
        let of_tables = config.engram.iter().flat_map(|keys| keys.shapes(config.hidden_size)).collect();
        for (shapes, seed) in [(config.llama_shapes(), seed), (of_tables, seed ^ 0xE46A)] {
            let mut prng = Prng::new(seed);
            for (name, shape) in shapes {
                let deviation = if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
                    config.initializer_range * residual
                } else {
                    config.initializer_range
                };
                let count = shape.iter().product::<usize>();
                let data = (0..count)
                    .map(|_| if shape.len() == 1 { 1.0 } else { (normal(&mut prng) * deviation) as f32 })
                    .collect::<Vec<_>>();
                tensors.insert(name, Tensor::from_vec(data, Shape::from(shape), &Device::Cpu)?);
            }
        }
        Self::from_tensors(config, tensors, tokenizer)
    }

    /// Reads `config.json` and `model.safetensors` of `folder`, and its tables if it has some.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = crate::error::read_text(&path)?;
        let config: Config = serde_json::from_str(&text).map_err(|error| Error::content(&path, error))?;
        // A damaged key makes the flattened part absent.
        match NgramConfig::parse(text.as_bytes()) {
            Err(ConfigError::NoTables) => {}
            Ok(_) if config.engram.is_none() => {
                return Err(Error::content(&path, "its n-gram tables are of Qwen's kind"));
            }
            Ok(_) => {}
            Err(error) => return Err(Error::content(&path, error)),
        }
        let path = folder.join("model.safetensors");
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let mut loaded = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
            .map_err(|error| Error::content(&path, error))?;
        if config.engram.is_some() {
            loaded.extend(engram::load(folder)?);
        }
        let mut tensors = BTreeMap::new();
        for (name, shape) in config.shapes() {
            match loaded.get(&name) {
                Some(tensor) if tensor.dims() == shape => {
                    tensors.insert(name, tensor.to_dtype(DType::F32)?);
                }
                Some(tensor) => {
                    let fact = format!("{name} has shape {:?}, config.json asks for {shape:?}", tensor.dims());
                    return Err(Error::content(&path, fact));
                }
                None => return Err(Error::content(&path, format!("{name} is missing"))),
            }
        }
        Self::from_tensors(config, tensors, &folder.join("tokenizer.json"))
    }

    fn from_tensors(config: Config, tensors: BTreeMap<String, Tensor>, tokenizer: &Path) -> Result<Self> {
        let addresses = config.engram.as_ref().map(|keys| keys.addresses(tokenizer)).transpose()?;
        let weights = tensors
            .into_iter()
            .map(|(name, tensor)| Ok((name, Var::from_tensor(&tensor)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let layers = (0..config.num_hidden_layers)
            .map(|layer| {
                let weight = |name: &str| weights[&format!("model.layers.{layer}.{name}.weight")].clone();
                let has_table = config.engram.as_ref().is_some_and(|keys| keys.engram_layer_ids.contains(&layer));
                Layer {
                    engram: has_table.then(|| Module {
                        embed: weight("engram.embed"),
                        wkv: weight("engram.wkv"),
                        q_norm: weight("engram.q_norm"),
                        k_norm: weight("engram.k_norm"),
                    }),
                    attention_norm: weight("input_layernorm"),
                    query: weight("self_attn.q_proj"),
                    key: weight("self_attn.k_proj"),
                    value: weight("self_attn.v_proj"),
                    output: weight("self_attn.o_proj"),
                    feed_norm: weight("post_attention_layernorm"),
                    gate: weight("mlp.gate_proj"),
                    up: weight("mlp.up_proj"),
                    down: weight("mlp.down_proj"),
                }
            })
            .collect();
        let embedding = weights["model.embed_tokens.weight"].clone();
        let norm = weights["model.norm.weight"].clone();
        let rope = Arc::new(RopeTable::new(config.max_position_embeddings, config.head_dim, config.rope_theta));
        Ok(Self { config, weights, embedding, norm, layers, rope, addresses })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The trainable weights by Hugging Face name.
    pub fn weights(&self) -> &BTreeMap<String, Var> {
        &self.weights
    }

    /// Number of trained parameters; the tied output head counts once.
    pub fn parameter_count(&self) -> usize {
        self.weights.values().map(|var| var.elem_count()).sum()
    }

    /// Logits `[batch · length, vocab]` for `batch` concatenated sequences of `length` ids, each
    /// from position 0.
    pub fn logits(&self, ids: &[u32], batch: usize) -> Result<Tensor> {
        let length = ids.len() / batch;
        let eps = self.config.rms_norm_eps as f32;
        let rows = self.addresses.as_ref().map(|addresses| engram::rows(addresses, ids, batch)).transpose()?;
        let ids = Tensor::from_slice(ids, ids.len(), &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if let (Some(module), Some(rows), Some(keys)) = (&layer.engram, &rows, &self.config.engram)
                && let Some(table) = keys.engram_layer_ids.iter().position(|id| *id == index)
            {
                x = (&x + module.forward(&x, &rows[table], eps)?)?;
            }
            let normed = x.apply_op2(&layer.attention_norm, RmsNorm(eps))?;
            x = (x + self.attention(layer, &normed, batch, length)?)?;
            let normed = x.apply_op2(&layer.feed_norm, RmsNorm(eps))?;
            let gated = project(&normed, &layer.gate)?.apply_op2(&project(&normed, &layer.up)?, SwiGlu)?;
            x = (x + project(&gated, &layer.down)?)?;
        }
        project(&x.apply_op2(&self.norm, RmsNorm(eps))?, &self.embedding)
    }

    /// Mean cross-entropy of `targets` under the logits for `ids`, in nats per token.
    pub fn loss(&self, ids: &[u32], targets: &[u32], batch: usize) -> Result<Tensor> {
        Ok(self.logits(ids, batch)?.apply_op1(CrossEntropy(Arc::from(targets)))?)
    }

    /// Causal grouped-query attention: `[batch · length, hidden]` in and out. The query heads of
    /// one key-value head are stacked as rows, so that keys and values are not repeated in memory.
    fn attention(&self, layer: &Layer, x: &Tensor, batch: usize, length: usize) -> Result<Tensor> {
        let Config { num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } = self.config;
        let rotated = |weight: &Var, heads: usize| -> Result<Tensor> {
            let projected = project(x, weight)?.reshape((batch, length, heads, head_dim))?;
            Ok(projected.apply_op1(Rope { table: self.rope.clone(), forward: true })?)
        };
        let rows = heads / kv_heads * length;
        let query = rotated(&layer.query, heads)?.reshape((batch * kv_heads, rows, head_dim))?;
        let key = rotated(&layer.key, kv_heads)?.reshape((batch * kv_heads, length, head_dim))?;
        let value = project(x, &layer.value)?.reshape((batch, length, kv_heads, head_dim))?;
        let value = value.transpose(1, 2)?.contiguous()?.reshape((batch * kv_heads, length, head_dim))?;
        let scores = query.matmul(&key.t()?)?;
        let mixed = scores.apply_op1(CausalSoftmax(1.0 / (head_dim as f32).sqrt()))?.matmul(&value)?;
        let mixed = mixed.reshape((batch, heads, length, head_dim))?.transpose(1, 2)?.contiguous()?;
        project(&mixed.reshape((batch * length, heads * head_dim))?, &layer.output)
    }
}

/// `x · weightᵀ`, with `x` `[N, in]` and `weight` `[out, in]`.
fn project(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(x.matmul(&weight.t()?)?)
}

/// A standard normal number (Box-Muller, one of the pair).
fn normal(prng: &mut Prng) -> f64 {
    let radius = (-2.0 * (1.0 - prng.next_f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * prng.next_f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Model {
        Model::random(Config::new(30, 64, 96, 2, 2, 1, 32).unwrap(), 5, Path::new("")).unwrap()
    }

    #[test]
    fn a_later_token_changes_no_earlier_logit_and_sequences_of_a_batch_do_not_mix() {
        let model = tiny();
        let logits = |ids: &[u32], batch| model.logits(ids, batch).unwrap().to_vec2::<f32>().unwrap();
        let (alone, changed) = (logits(&[3, 1, 4, 1], 1), logits(&[3, 1, 4, 20], 1));
        assert_eq!(alone[..3], changed[..3]);
        assert_ne!(alone[3], changed[3]);
        let together = logits(&[9, 9, 9, 9, 3, 1, 4, 1], 2);
        for (alone, together) in alone.iter().flatten().zip(together[4..].iter().flatten()) {
            assert!((alone - together).abs() < 1e-5);
        }
    }

    #[test]
    fn a_step_against_the_gradient_lowers_the_loss() {
        let model = tiny();
        let (ids, targets) = ([3, 1, 4, 1, 5, 9, 2, 6], [1, 4, 1, 5, 9, 2, 6, 5]);
        let loss = || model.loss(&ids, &targets, 1).unwrap();
        let before = loss();
        let grads = before.backward().unwrap();
        for var in model.weights().values() {
            var.set(&(var.as_tensor() - (grads.get(var).unwrap() * 0.05).unwrap()).unwrap()).unwrap();
        }
        assert!(loss().to_scalar::<f32>().unwrap() < before.to_scalar::<f32>().unwrap() - 0.01);
    }

    #[test]
    fn head_counts_that_do_not_divide_are_refused() {
        assert!(Config::new(30, 64, 96, 2, 3, 2, 32).is_err());
    }
}
