//! A random model with tables of n-grams, one for each row format, and its weights.

use cenote_base::prng::Prng;
use cenote_engram::{Addresses, NgramConfig, Stored, TokenMap, layer_hashes};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub const HIDDEN: usize = 64;
pub const LAYERS: usize = 3;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const MIDDLE: usize = 96;
pub const EPS: f64 = 1e-5;
pub const ROW_VALUES: usize = 32;
/// The layers with tables, in the order of the configuration, and the formats of their rows.
pub const TABLES: [(usize, Stored); 3] = [(2, Stored::Bf16), (0, Stored::E4m3), (1, Stored::E4m3Ue8m0)];
/// Scale of the table that has one.
pub const SCALE: f32 = 1.0 / 64.0;
/// Values of a token's rows in one layer: two orders, two heads.
pub const WIDTH: usize = 2 * 2 * ROW_VALUES;

/// The model in a folder, and what is in it.
pub struct Tiny {
    pub dir: tempfile::TempDir,
    pub vocab: usize,
    /// Weights besides the tables, row-major.
    pub weights: BTreeMap<String, Vec<f32>>,
    shapes: BTreeMap<String, Vec<usize>>,
    /// Stored rows by layer: of formats with a scale for each block, the scales behind all values.
    pub rows: BTreeMap<usize, Vec<u8>>,
    pub addresses: Addresses,
}

pub fn tables_file(dir: &Path) -> PathBuf {
    dir.join("engram.safetensors")
}

/// `count` random values around `center`.
fn random(prng: &mut Prng, count: usize, center: f32, spread: f32) -> Vec<f32> {
    (0..count).map(|_| center + spread * (2.0 * prng.next_f64() as f32 - 1.0)).collect()
}

impl Tiny {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        for entry in std::fs::read_dir(fixtures).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        let map = TokenMap::of_tokenizer(&std::fs::read(dir.path().join("tokenizer.json")).unwrap()).unwrap();
        let vocab = map.ids().len();
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": HIDDEN,
            "intermediate_size": MIDDLE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": EPS,
            "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": null,
            "engram_layer_ids": TABLES.map(|(layer, _)| layer), "engram_num_embeddings": vec![u64::MAX; 3],
            "engram_max_ngram_size": 3, "engram_n_heads": 2, "engram_head_dim": ROW_VALUES,
            "engram_vocab_size": 70, "engram_compressed_vocab_size": map.size(), "engram_pad_token_id": 0,
        });
        let parse = |config: &Value| NgramConfig::parse(config.to_string().as_bytes()).unwrap();
        let counts: Vec<u64> = layer_hashes(&parse(&config)).unwrap().iter().map(|hash| hash.rows).collect();
        config["engram_num_embeddings"] = json!(counts);
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let addresses = Addresses::new(parse(&config), Some(map)).unwrap();

        let mut prng = Prng::new(11);
        let mut weights = BTreeMap::new();
        let mut shapes = BTreeMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let center = if shape.len() == 1 { 1.0 } else { 0.0 };
            weights.insert(name.clone(), random(&mut prng, shape.iter().product(), center, 0.2));
            shapes.insert(name, shape.to_vec());
        };
        add("model.embed_tokens.weight".to_owned(), &[vocab, HIDDEN]);
        add("model.norm.weight".to_owned(), &[HIDDEN]);
        for layer in 0..LAYERS {
            for (part, shape) in [
                ("input_layernorm", &[HIDDEN][..]),
                ("post_attention_layernorm", &[HIDDEN]),
                ("self_attn.q_proj", &[HEADS * HEAD_DIM, HIDDEN]),
                ("self_attn.k_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]),
                ("self_attn.v_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]),
                ("self_attn.o_proj", &[HIDDEN, HEADS * HEAD_DIM]),
                ("mlp.gate_proj", &[MIDDLE, HIDDEN]),
                ("mlp.up_proj", &[MIDDLE, HIDDEN]),
                ("mlp.down_proj", &[HIDDEN, MIDDLE]),
                ("engram.wkv", &[2 * HIDDEN, WIDTH]),
                ("engram.q_norm", &[HIDDEN]),
                ("engram.k_norm", &[HIDDEN]),
            ] {
                add(format!("model.layers.{layer}.{part}.weight"), shape);
            }
        }
        let rows = TABLES.iter().zip(&counts).map(|(&(layer, stored), count)| {
            let values = *count as usize * ROW_VALUES;
            let bytes = match stored {
                Stored::Bf16 => {
                    let values = random(&mut prng, values, 0.0, 1.0);
                    values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
                }
                // No exponent of 15, whose last code is no number.
                _ => {
                    let codes = (0..values).map(|_| (prng.below(0x78) + 0x80 * prng.below(2)) as u8);
                    let mut bytes: Vec<u8> = codes.collect();
                    let blocks = if stored == Stored::E4m3Ue8m0 { values / 32 } else { 0 };
                    bytes.extend((0..blocks).map(|_| 120 + prng.below(3) as u8));
                    bytes
                }
            };
            (layer, bytes)
        });
        let rows = rows.collect();
        let tiny = Self { dir, vocab, weights, shapes, rows, addresses };
        tiny.write_all(&[]);
        tiny.write_tables(&tiny.tensors());
        tiny
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The tensors of `engram.safetensors`.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        for ((layer, stored), hash) in TABLES.into_iter().zip(self.addresses.layers()) {
            let name = |part: &str| format!("model.layers.{layer}.engram.embed.{part}");
            let (rows, bytes) = (hash.padded_rows as usize, &self.rows[&layer]);
            let (weight, scales) = bytes.split_at(rows * ROW_VALUES * if stored == Stored::Bf16 { 2 } else { 1 });
            let dtype = if stored == Stored::Bf16 { Dtype::BF16 } else { Dtype::F8_E4M3 };
            tensors.push((name("weight"), dtype, vec![rows, ROW_VALUES], weight.to_vec()));
            match stored {
                Stored::E4m3 => {
                    tensors.push((name("weight_scale"), Dtype::F32, vec![1], SCALE.to_le_bytes().to_vec()));
                }
                Stored::E4m3Ue8m0 => tensors.push((name("scale"), Dtype::F8_E8M0, vec![rows, 1], scales.to_vec())),
                _ => {}
            }
        }
        tensors
    }

    pub fn write_tables(&self, tensors: &[Tensor]) {
        write(&tables_file(self.path()), tensors);
    }

    /// Writes the checkpoint, with more tensors.
    pub fn write_all(&self, more: &[Tensor]) {
        let own = self.weights.iter().map(|(name, values)| tensor(name, values, &self.shapes[name]));
        write(&self.path().join("model.safetensors"), &own.chain(more.iter().cloned()).collect::<Vec<_>>());
    }

    /// Writes the checkpoint with another weight in place of its own.
    pub fn write_weights(&self, other: &str, values: &[f32], shape: &[usize]) {
        let own = self.weights.iter().filter(|(name, _)| *name != other);
        let own = own.map(|(name, values)| tensor(name, values, &self.shapes[name]));
        write(&self.path().join("model.safetensors"), &own.chain([tensor(other, values, shape)]).collect::<Vec<_>>());
    }

    /// Random tokens.
    pub fn tokens(&self, seed: u64, length: usize) -> Vec<u32> {
        let mut prng = Prng::new(seed);
        (0..length).map(|_| prng.below(self.vocab as u64) as u32).collect()
    }
}

pub type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn tensor(name: &str, values: &[f32], shape: &[usize]) -> Tensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (name.to_owned(), Dtype::F32, shape.to_vec(), bytes)
}

pub fn write(path: &Path, tensors: &[Tensor]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}
