//! Engram for the trained model: n-gram tables of some layers, added through a gate (arXiv
//! 2601.07372). Addresses are those of `cenote-engram`, so that the reference engine and other
//! readers find the same rows.
//!
//! Tables are stored in `engram.safetensors`, as 8-bit floats with one scale a table, because they
//! are most of the parameters that a token does not touch.

use std::path::Path;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Device, Layout, Shape, Tensor, Var};
use cenote_engram::{Addresses, NgramConfig, RowFormat, Stored, TokenMap, Tokens, layer_hashes};
use half::bf16;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, write_whole};
use crate::fused::{RmsNorm, made, values};
use crate::tokens::EOS_ID;

/// The file with the tables, beside `model.safetensors`.
pub const TABLES_FILE: &str = "engram.safetensors";
/// A product of this size or less has the gate's least root.
const LEAST_PRODUCT: f32 = 1e-6;

/// Keys of `config.json`, under DeepSeek's names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Keys {
    pub engram_layer_ids: Vec<usize>,
    pub engram_max_ngram_size: usize,
    pub engram_n_heads: usize,
    pub engram_head_dim: usize,
    pub engram_vocab_size: u64,
    pub engram_num_embeddings: Vec<u64>,
    pub engram_compressed_vocab_size: u64,
    pub engram_pad_token_id: u32,
}

/// Sizes of the tables.
#[derive(Debug, Clone, clap::Args)]
pub struct EngramFlags {
    /// Add n-gram tables to some layers
    #[arg(long)]
    pub engram: bool,
    /// Layers with a table, from 0
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    pub engram_layers: Vec<usize>,
    /// Longest n-gram
    #[arg(long, default_value_t = 3)]
    pub engram_ngram: usize,
    /// Heads of each n-gram length
    #[arg(long, default_value_t = 4)]
    pub engram_heads: usize,
    /// Values of a row
    #[arg(long, default_value_t = 16)]
    pub engram_head_dim: usize,
    /// Least rows of a head; each has a prime number of them
    #[arg(long, default_value_t = 4000)]
    pub engram_rows: u64,
}

impl EngramFlags {
    /// The keys of a model with this tokenizer and this many layers; `None` without `--engram`.
    pub fn keys(&self, tokenizer: &Path, layers: usize) -> Result<Option<Keys>> {
        if !self.engram {
            return Ok(None);
        }
        let mut sorted = self.engram_layers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != self.engram_layers.len() || sorted.last().is_none_or(|last| *last >= layers) {
            let fact = format!("--engram-layers {:?} must be different layers below {layers}", self.engram_layers);
            return Err(Error::Flag(fact));
        }
        let mut keys = Keys {
            engram_layer_ids: self.engram_layers.clone(),
            engram_max_ngram_size: self.engram_ngram,
            engram_n_heads: self.engram_heads,
            engram_head_dim: self.engram_head_dim,
            engram_vocab_size: self.engram_rows,
            // Only the sum of the primes is known to fit; it is counted below.
            engram_num_embeddings: vec![u64::MAX; self.engram_layers.len()],
            engram_compressed_vocab_size: token_map(tokenizer)?.size(),
            engram_pad_token_id: EOS_ID,
        };
        let hashes = layer_hashes(&keys.parsed()?).map_err(|error| Error::Flag(error.to_string()))?;
        keys.engram_num_embeddings = hashes.iter().map(|hash| hash.rows).collect();
        Ok(Some(keys))
    }
}

impl Keys {
    fn parsed(&self) -> Result<NgramConfig> {
        let json = serde_json::to_vec(self).map_err(|error| Error::Flag(error.to_string()))?;
        NgramConfig::parse(&json).map_err(|error| Error::Flag(error.to_string()))
    }

    /// The addresses of a model with this `tokenizer.json`.
    pub fn addresses(&self, tokenizer: &Path) -> Result<Addresses> {
        let map = token_map(tokenizer)?;
        Addresses::new(self.parsed()?, Some(map)).map_err(|error| Error::content(tokenizer, error))
    }

    /// Values of all rows of a token in one layer.
    pub const fn width(&self) -> usize {
        (self.engram_max_ngram_size - 1) * self.engram_n_heads * self.engram_head_dim
    }

    /// Every weight's name and shape.
    pub fn shapes(&self, hidden: usize) -> Vec<(String, Vec<usize>)> {
        let of_layer = |(layer, rows): (&usize, &u64)| {
            let name = |part: &str| format!("model.layers.{layer}.engram.{part}.weight");
            [
                (name("embed"), vec![*rows as usize, self.engram_head_dim]),
                (name("wkv"), vec![2 * hidden, self.width()]),
                (name("q_norm"), vec![hidden]),
                (name("k_norm"), vec![hidden]),
            ]
        };
        self.engram_layer_ids.iter().zip(&self.engram_num_embeddings).flat_map(of_layer).collect()
    }
}

fn token_map(tokenizer: &Path) -> Result<TokenMap> {
    let json = std::fs::read(tokenizer).map_err(Error::io(tokenizer))?;
    TokenMap::of_tokenizer(&json).map_err(|error| Error::content(tokenizer, error))
}

/// Whether a weight is a table.
pub fn is_table(name: &str) -> bool {
    name.ends_with(".engram.embed.weight")
}

/// The rows of each layer for `batch` concatenated sequences, `[layer][token · head]`.
pub fn rows(addresses: &Addresses, ids: &[u32], batch: usize) -> Result<Vec<Vec<u32>>> {
    let columns = addresses.config().rows_per_token();
    let mut all = Vec::new();
    for ids in ids.chunks_exact((ids.len() / batch).max(1)) {
        let mut history = addresses.start();
        addresses.rows(&mut history, Tokens::from(ids), &mut all).map_err(|error| Error::Flag(error.to_string()))?;
    }
    let mut layers = vec![Vec::with_capacity(ids.len() * columns); addresses.layers().len()];
    for (at, rows) in all.chunks_exact(columns).enumerate() {
        let layer = at % addresses.layers().len();
        layers[layer].extend(rows.iter().map(|row| *row as u32));
    }
    Ok(layers)
}

/// One layer's module.
pub struct Module {
    pub embed: Var,
    pub wkv: Var,
    pub q_norm: Var,
    pub k_norm: Var,
}

impl Module {
    /// What the module adds to `x` `[N, hidden]`, for the rows of each token.
    pub fn forward(&self, x: &Tensor, rows: &[u32], eps: f32) -> Result<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let rows = Tensor::from_slice(rows, rows.len(), &Device::Cpu)?;
        let flat = self.embed.index_select(&rows, 0)?.reshape((tokens, ()))?;
        let both = flat.matmul(&self.wkv.t()?)?;
        let key = both.narrow(1, 0, hidden)?.contiguous()?.apply_op2(&self.k_norm, RmsNorm(eps))?;
        let query = x.apply_op2(&self.q_norm, RmsNorm(eps))?;
        let product = ((query * key)?.sum_keepdim(1)? / (hidden as f64).sqrt())?;
        let gate = product.apply_op1(Gate)?;
        Ok(both.narrow(1, hidden, hidden)?.broadcast_mul(&gate)?)
    }
}

/// `sigmoid(±√max(|d|, 1e-6))`, negative iff `d` is.
struct Gate;

fn gate(d: f32) -> f32 {
    let root = d.abs().max(LEAST_PRODUCT).sqrt();
    1.0 / (1.0 + (if d < 0.0 { root } else { -root }).exp())
}

impl CustomOp1 for Gate {
    fn name(&self) -> &'static str {
        "engram-gate"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        made(values(storage, layout)?.iter().map(|d| gate(*d)).collect(), layout.shape().clone())
    }

    fn bwd(&self, product: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(product.apply_op2_no_bwd(&grad.contiguous()?, &GateBack)?))
    }
}

struct GateBack;

impl CustomOp2 for GateBack {
    fn name(&self) -> &'static str {
        "engram-gate-back"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let derivative = |d: f32| {
            let open = gate(d);
            if d.abs() > LEAST_PRODUCT { open * (1.0 - open) / (2.0 * d.abs().sqrt()) } else { 0.0 }
        };
        let grads = values(s1, l1)?.iter().zip(values(s2, l2)?).map(|(d, grad)| grad * derivative(*d));
        made(grads.collect(), l1.shape().clone())
    }
}

/// Writes the tables of `weights`; removes the file if there are none.
pub fn save<'a>(weights: impl Iterator<Item = (&'a String, &'a Var)>, folder: &Path) -> Result<()> {
    let path = folder.join(TABLES_FILE);
    let mut tensors = Vec::new();
    for (name, var) in weights.filter(|(name, _)| is_table(name)) {
        let (codes, scale) = quantized(&var.flatten_all()?.to_vec1::<f32>()?);
        let scale_name = name.replace("embed.weight", "embed.weight_scale");
        tensors.push((name.clone(), Dtype::F8_E4M3, var.dims().to_vec(), codes));
        tensors.push((scale_name, Dtype::F32, vec![1], scale.to_le_bytes().to_vec()));
    }
    if tensors.is_empty() {
        return match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(&path)(error)),
            _ => Ok(()),
        };
    }
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| Error::content(&path, error))?;
    let bytes = safetensors::serialize(views, None).map_err(|error| Error::content(&path, error))?;
    write_whole(&path, &bytes)
}

/// Reads the tables that [`save`] wrote, as `f32`.
pub fn load(folder: &Path) -> Result<Vec<(String, Tensor)>> {
    let path = folder.join(TABLES_FILE);
    let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::content(&path, error))?;
    let mut tables = Vec::new();
    for (name, view) in file.tensors().into_iter().filter(|(name, _)| is_table(name)) {
        let scale = file.tensor(&name.replace("embed.weight", "embed.weight_scale"));
        let scale = scale.map_err(|error| Error::content(&path, error))?;
        let scale = <[u8; 4]>::try_from(scale.data()).map_err(|_| Error::content(&path, "a scale is no F32"))?;
        let format = RowFormat::new(Stored::E4m3, Some(f32::from_le_bytes(scale)));
        let mut bits = vec![0; view.data().len()];
        format
            .and_then(|format| format.to_bf16(view.data(), &mut bits))
            .map_err(|error| Error::content(&path, error))?;
        let decoded = bits.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect::<Vec<_>>();
        tables.push((name, Tensor::from_vec(decoded, view.shape(), &Device::Cpu)?));
    }
    Ok(tables)
}

/// Nearest 8-bit codes of `values`, and the scale by which the codes are multiplied. The largest
/// value has the largest code.
fn quantized(values: &[f32]) -> (Vec<u8>, f32) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // The format rounds a scale to bf16, so the codes are chosen for the rounded one.
    let scale = bf16::from_f32(if largest > 0.0 { largest / 448.0 } else { 1.0 }).to_f32();
    let magnitudes = magnitudes();
    let code = |value: &f32| {
        let wanted = (value / scale).abs();
        let above = magnitudes.partition_point(|magnitude| *magnitude < wanted).min(magnitudes.len() - 1);
        let below = above.saturating_sub(1);
        let nearest = if wanted - magnitudes[below] <= magnitudes[above] - wanted { below } else { above };
        nearest as u8 | if *value < 0.0 { 0x80 } else { 0 }
    };
    (values.iter().map(code).collect(), scale)
}

/// Values of the codes 0 to 0x7E, ascending.
fn magnitudes() -> Vec<f32> {
    let codes = (0..=0x7E).collect::<Vec<u8>>();
    let mut bits = vec![0; codes.len()];
    let format = RowFormat::new(Stored::E4m3, Some(1.0)).expect("a scale is given");
    format.to_bf16(&codes, &mut bits).expect("one value for each code");
    bits.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint;
    use crate::model::{Config, Model};
    use crate::tokens;
    use cenote_engine::kv::KvArena;
    use cenote_engine::llama::{LogitsOf, SeqChunk};
    use cenote_engine::{EngineConfig, LoadedModel};

    const TEXT: &str = "the pool, the region and the host of the pool";

    /// A folder with a tokenizer, and a model with tables of layers 1 and 0.
    fn tiny() -> (tempfile::TempDir, Model) {
        let folder = tempfile::tempdir().unwrap();
        tokens::save(&tokens::train([TEXT].into_iter(), 300).unwrap(), folder.path(), 64).unwrap();
        let model = Model::random(config(folder.path(), true), 5, &tokenizer(folder.path())).unwrap();
        (folder, model)
    }

    fn tokenizer(folder: &Path) -> std::path::PathBuf {
        folder.join("tokenizer.json")
    }

    fn config(folder: &Path, engram: bool) -> Config {
        let flags = EngramFlags {
            engram,
            engram_layers: vec![1, 0],
            engram_ngram: 3,
            engram_heads: 2,
            engram_head_dim: 8,
            engram_rows: 50,
        };
        let vocab = tokens::load(&tokenizer(folder)).unwrap().get_vocab_size(true);
        let mut config = Config::new(vocab, 64, 96, 2, 2, 1, 64).unwrap();
        config.engram = flags.keys(&tokenizer(folder), 2).unwrap();
        config
    }

    fn ids(folder: &Path) -> Vec<u32> {
        tokens::encode(&tokens::load(&tokenizer(folder)).unwrap(), TEXT).unwrap()
    }

    #[test]
    fn the_gate_and_its_derivative_have_their_values() {
        // sigmoid(2), sigmoid(-2), and the least root on the positive side of zero.
        for (d, open) in [(4.0, 0.880_797), (-4.0, 0.119_203), (0.0, 0.500_25), (-0.0, 0.500_25)] {
            assert!((gate(d) - open).abs() < 1e-6, "gate({d}) is {}", gate(d));
        }
        let points = [-3.0_f32, -0.2, 0.3, 5.0];
        let x = Var::from_tensor(&Tensor::new(&points, &Device::Cpu).unwrap()).unwrap();
        let grads = x.apply_op1(Gate).unwrap().sum_all().unwrap().backward().unwrap();
        let analytic = grads.get(&x).unwrap().to_vec1::<f32>().unwrap();
        for (d, analytic) in points.into_iter().zip(analytic) {
            let numeric = (gate(d + 1e-2) - gate(d - 1e-2)) / 2e-2;
            assert!((numeric - analytic).abs() < 1e-3, "at {d}: {numeric} {analytic}");
        }
    }

    #[test]
    fn a_row_is_quantized_to_its_nearest_code() {
        let values = [0.0, 1.0, -0.5, 0.01, -0.013, 3.7e-4];
        let (codes, scale) = quantized(&values);
        let magnitudes = magnitudes();
        for (value, code) in values.into_iter().zip(codes) {
            let decoded = magnitudes[usize::from(code & 0x7F)] * scale * if code & 0x80 == 0 { 1.0 } else { -1.0 };
            let nearest = magnitudes.iter().map(|magnitude| (value.abs() - magnitude * scale).abs());
            let least = nearest.fold(f32::INFINITY, f32::min);
            assert!((value - decoded).abs() <= least * 1.001, "{value} became {decoded}");
        }
        assert_eq!(quantized(&[0.0, 0.0]).0, [0, 0]);
    }

    #[test]
    fn tables_leave_all_other_weights_as_they_were() {
        let (folder, with) = tiny();
        let without = Model::random(config(folder.path(), false), 5, Path::new("")).unwrap();
        let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (name, var) in without.weights() {
            assert_eq!(values(var), values(&with.weights()[name]), "{name}");
        }
        assert_eq!(with.weights().len(), without.weights().len() + 2 * 4);
        let ids = ids(folder.path());
        let logits = |model: &Model| model.logits(&ids, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_ne!(logits(&with), logits(&without));
    }

    #[test]
    fn sequences_of_a_batch_do_not_share_their_n_grams() {
        let (folder, model) = tiny();
        let ids = &ids(folder.path())[..8];
        let logits = |ids: &[u32], batch| model.logits(ids, batch).unwrap().to_vec2::<f32>().unwrap();
        let alone = logits(ids, 1);
        let together = logits(&[&[9; 8], ids].concat(), 2);
        for (alone, together) in alone.iter().flatten().zip(together[8..].iter().flatten()) {
            assert!((alone - together).abs() < 1e-5);
        }
    }

    #[test]
    fn every_part_of_a_module_learns_and_only_rows_that_were_read_do() {
        let (folder, model) = tiny();
        let ids = ids(folder.path());
        let targets = ids.iter().copied().cycle().skip(1).take(ids.len()).collect::<Vec<_>>();
        let grads = model.loss(&ids, &targets, 1).unwrap().backward().unwrap();
        for (name, var) in model.weights().iter().filter(|(name, _)| name.contains(".engram.")) {
            let grad = grads.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert!(grad.iter().any(|value| *value != 0.0), "{name} does not learn");
        }
        let keys = model.config().engram.clone().unwrap();
        let read = &rows(&keys.addresses(&tokenizer(folder.path())).unwrap(), &ids, 1).unwrap()[0];
        let grad = grads.get(&model.weights()["model.layers.1.engram.embed.weight"]).unwrap().to_vec2::<f32>().unwrap();
        for (row, grad) in grad.iter().enumerate() {
            let learns = grad.iter().any(|value| *value != 0.0);
            assert_eq!(learns, read.contains(&(row as u32)), "row {row}");
        }
    }

    /// The engine reads what the trainer writes, and computes what the trainer computes.
    #[test]
    fn the_engine_has_the_trainers_logits() {
        let (folder, model) = tiny();
        checkpoint::save(&model, folder.path()).unwrap();
        let saved = Model::load(folder.path()).unwrap();
        let ids = ids(folder.path());
        let ours = saved.logits(&ids, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let engine = LoadedModel::load(&EngineConfig {
            threads: 1,
            ..EngineConfig::new(folder.path(), cenote_base::Clock::stopped())
        })
        .unwrap();
        let mut kv = KvArena::new(*engine.layout(), 4);
        let table = [0, 1, 2, 3];
        let chunk =
            SeqChunk { tokens: &ids, before: &[], start_position: 0, block_table: &table, logits: LogitsOf::All };
        let theirs = engine.forward(&[chunk], &mut kv);
        assert_eq!(ours.len(), theirs.len());
        let largest = ours.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!((ours - theirs).abs() < 1e-4 * largest, "{ours} {theirs}");
        }
    }

    #[test]
    fn a_model_without_its_tables_is_refused() {
        let (folder, model) = tiny();
        checkpoint::save(&model, folder.path()).unwrap();
        let path = folder.path().join("config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, config.replace("\"engram_n_heads\": 2", "\"engram_n_heads\": \"2\"")).unwrap();
        assert!(Model::load(folder.path()).err().unwrap().to_string().contains("engram_n_heads"));
        std::fs::write(&path, config).unwrap();
        std::fs::remove_file(folder.path().join(TABLES_FILE)).unwrap();
        assert!(Model::load(folder.path()).err().unwrap().to_string().contains(TABLES_FILE));
    }
}
