//! Makes a model with outlier key channels, as in large models; small models have none.
//!
//! A checkpoint is changed in two ways. First, each pair of K channels that rotary embedding turns
//! together is scaled, and the same pair of Q by the inverse. No product of a query and a key
//! changes, so the model computes the same. Second, some channels of the slowest pairs get a bias
//! of several standard deviations. These pairs hardly turn within a context, so the bias adds
//! nearly the same to all products of a query, which softmax ignores. The model still changes
//! slightly, so it must be compared with itself.

use cenote_base::prng::Prng;
use cenote_console::input;
use cenote_quality::StudyError;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// Standard deviation of the logarithm of the scales.
const SPREAD: f64 = 0.7;
/// On average one of this many pairs is scaled by the additional factor `LOUD`.
const LOUD_PAIRS: u64 = 16;
const LOUD: f64 = 6.0;
/// Magnitude of a bias, in standard deviations of its channel.
const BIAS: f64 = 8.0;
/// Number of slowest pairs per KV head in which one channel gets a bias.
const BIASED_PAIRS: usize = 2;

struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Writes the changed model: the files of `from`, with changed weights in a single file. Returns
/// the number of K channels with a bias.
///
/// # Errors
/// A file cannot be read or written, or the model's attention is not of the Llama kind.
pub fn write(from: &Path, to: &Path, seed: u64) -> Result<usize, StudyError> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| StudyError::Model(format!("{}: {error}", path.display()));
    let config_path = from.join("config.json");
    let text = input::text(&config_path).map_err(|error| failed(&config_path, &error))?;
    let mut config: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(&config_path, &error))?;
    let number = |name: &str| config[name].as_u64().map(|number| number as usize);
    let heads = number("num_attention_heads").ok_or_else(|| failed(&config_path, &"no num_attention_heads"))?;
    let hidden = number("hidden_size").ok_or_else(|| failed(&config_path, &"no hidden_size"))?;
    let layers = number("num_hidden_layers").ok_or_else(|| failed(&config_path, &"no num_hidden_layers"))?;
    let kv_heads = number("num_key_value_heads").unwrap_or(heads);
    let dim = number("head_dim").unwrap_or(hidden / heads.max(1));
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) || dim == 0 || !dim.is_multiple_of(2) {
        return Err(failed(&config_path, &"its head counts are not those of a Llama"));
    }
    std::fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(from).map_err(|error| failed(from, &error))? {
        let path = entry.map_err(|error| failed(from, &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            read(&path, &mut tensors)?;
        } else if path.is_file() && name != "config.json" && !name.ends_with(".index.json") {
            let bytes = input::bytes(&path).map_err(|error| failed(&path, &error))?;
            std::fs::write(to.join(&name), bytes).map_err(|error| failed(to, &error))?;
        }
    }
    let mut prng = Prng::new(seed);
    let mut biased = 0;
    for layer in 0..layers {
        let shape = Heads { heads, kv_heads, dim };
        biased += change_layer(&mut tensors, layer, &shape, &mut prng).map_err(|fact| failed(from, &fact))?;
    }
    config["attention_bias"] = true.into();
    config["torch_dtype"] = "float32".into();
    let text = serde_json::to_string_pretty(&config).expect("it was JSON") + "\n";
    std::fs::write(to.join("config.json"), text).map_err(|error| failed(to, &error))?;
    save(&tensors, &to.join("model.safetensors")).map_err(|error| failed(to, &error))?;
    Ok(biased)
}

struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

fn change_layer(
    tensors: &mut BTreeMap<String, Tensor>,
    layer: usize,
    shape: &Heads,
    prng: &mut Prng,
) -> Result<usize, String> {
    let name = |part: &str| format!("model.layers.{layer}.{part}");
    let Heads { heads, kv_heads, dim } = *shape;
    let (half, group) = (dim / 2, heads / kv_heads);
    let mut scales = vec![1.0_f32; kv_heads * dim];
    for head in 0..kv_heads {
        for pair in 0..half {
            let loud = if prng.below(LOUD_PAIRS) == 0 { LOUD } else { 1.0 };
            let scale = (SPREAD * gaussian(prng)).exp() * loud;
            (scales[head * dim + pair], scales[head * dim + pair + half]) = (scale as f32, scale as f32);
        }
    }
    let norm = find(tensors, &name("input_layernorm.weight"), dim.min(1))?.values.clone();
    let mut deviations = Vec::new();
    scale_rows(tensors, &name("self_attn.k_proj"), kv_heads * dim, &|row| scales[row])?;
    scale_rows(tensors, &name("self_attn.q_proj"), heads * dim, &|row| {
        1.0 / scales[row / dim / group * dim + row % dim]
    })?;
    let keys = find(tensors, &name("self_attn.k_proj.weight"), kv_heads * dim)?;
    // The norm's output has a mean square of one before multiplication with its weight.
    for row in keys.values.chunks_exact(norm.len()) {
        let square: f64 = row.iter().zip(&norm).map(|(weight, norm)| f64::from(weight * norm).powi(2)).sum();
        deviations.push(square.sqrt());
    }
    let mut count = 0;
    for (part, rows) in [("q_proj", heads * dim), ("k_proj", kv_heads * dim), ("v_proj", kv_heads * dim)] {
        let bias = tensors.entry(name(&format!("self_attn.{part}.bias")));
        let bias = bias.or_insert_with(|| Tensor { shape: vec![rows], values: vec![0.0; rows] });
        if part == "k_proj" {
            for head in 0..kv_heads {
                for pair in half - BIASED_PAIRS.min(half)..half {
                    let channel = head * dim + pair + if prng.below(2) == 0 { 0 } else { half };
                    let sign = if prng.below(2) == 0 { -1.0 } else { 1.0 };
                    bias.values[channel] += (sign * BIAS * deviations[channel]) as f32;
                    count += 1;
                }
            }
        }
    }
    let out = find(tensors, &name("self_attn.o_proj.weight"), 1)?.shape[0];
    let zero = Tensor { shape: vec![out], values: vec![0.0; out] };
    tensors.entry(name("self_attn.o_proj.bias")).or_insert(zero);
    Ok(count)
}

/// Approximately normal with mean 0 and deviation 1: the sum of twelve uniform numbers less six.
pub(crate) fn gaussian(prng: &mut Prng) -> f64 {
    (0..12).map(|_| prng.next_f64()).sum::<f64>() - 6.0
}

/// Finds a tensor of at least `rows` rows.
fn find<'a>(tensors: &'a mut BTreeMap<String, Tensor>, name: &str, rows: usize) -> Result<&'a mut Tensor, String> {
    let tensor = tensors.get_mut(name).ok_or_else(|| format!("there is no tensor `{name}`"))?;
    if tensor.shape.first().is_none_or(|&first| first < rows) {
        Err(format!("`{name}` has an unexpected shape"))
    } else {
        Ok(tensor)
    }
}

fn scale_rows(
    tensors: &mut BTreeMap<String, Tensor>,
    name: &str,
    rows: usize,
    scale: &dyn Fn(usize) -> f32,
) -> Result<(), String> {
    for part in ["weight", "bias"] {
        let name = format!("{name}.{part}");
        if part == "bias" && !tensors.contains_key(&name) {
            continue;
        }
        let tensor = find(tensors, &name, rows)?;
        let width = tensor.values.len() / tensor.shape[0];
        for (row, values) in tensor.values.chunks_exact_mut(width).enumerate().take(rows) {
            values.iter_mut().for_each(|value| *value *= scale(row));
        }
    }
    Ok(())
}

fn read(path: &Path, tensors: &mut BTreeMap<String, Tensor>) -> Result<(), StudyError> {
    let failed = |error: &dyn std::fmt::Display| StudyError::Model(format!("{}: {error}", path.display()));
    let bytes = input::bytes(path).map_err(|error| failed(&error))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| failed(&error))?;
    for (name, view) in file.tensors() {
        let values = match view.dtype() {
            Dtype::F32 => view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            Dtype::F16 => view.data().chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::BF16 => view.data().chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            other => return Err(failed(&format!("`{name}` is of type {other:?}"))),
        };
        tensors.insert(name, Tensor { shape: view.shape().to_vec(), values });
    }
    Ok(())
}

fn save(tensors: &BTreeMap<String, Tensor>, path: &Path) -> Result<(), String> {
    let bytes: Vec<(&String, &Tensor, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| (name, tensor, tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect()))
        .collect();
    let views: Result<Vec<_>, _> = bytes
        .iter()
        .map(|(name, tensor, bytes)| {
            TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).map(|view| (name.as_str(), view))
        })
        .collect();
    let views = views.map_err(|error| error.to_string())?;
    let bytes = safetensors::serialize(views, None).map_err(|error| error.to_string())?;
    std::fs::write(path, bytes).map_err(|error| error.to_string())
}
