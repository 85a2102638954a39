//! Trains the token predictor of CXL-SpecKV §3.4.1 (`crates/predict/src/lstm.rs`): embeddings of 64
//! values, two LSTM layers of 128 cells, and a projection whose product with a token's embedding is
//! that token's logit.
//!
//! Windows begin with an empty state. Each of their tokens is predicted from those before it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::rnn::{LSTM, LSTMConfig, LSTMState, RNN, lstm};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder};
use cenote_base::prng::Prng;
use cenote_predict::{EMBEDDING, FloatLayer, FloatNetwork, HIDDEN, LstmPlace};
use indicatif::{ProgressBar, ProgressStyle};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Serialize;

use crate::TextFlags;
use crate::data::{Batch, Streams};
use crate::error::{Error, Result, write_whole};
use crate::fused::{CrossEntropy, row_losses};
use crate::tokens;

/// Windows of the held-out text that are evaluated together, and their length in tokens.
const HELD_OUT_WINDOWS: usize = 64;
const HELD_OUT_LENGTH: usize = 128;

/// Flags of `cenote-train token-predictor`.
#[derive(clap::Args)]
pub struct TokenPredictorFlags {
    #[command(flatten)]
    texts: TextFlags,
    /// The tokenizer whose tokens are predicted
    #[arg(long, value_name = "FILE", default_value = "models/demo/tokenizer.json")]
    tokenizer: PathBuf,
    /// File for the weights in int8
    #[arg(long, value_name = "FILE", default_value = "models/demo/token_predictor.weights")]
    out: PathBuf,
    /// File for the weights in f32
    #[arg(long, value_name = "FILE")]
    float: PathBuf,
    /// Start from the weights in `--float` instead of random ones
    #[arg(long)]
    resume: bool,
    /// Batches to train with
    #[arg(long, default_value_t = 3000)]
    batches: usize,
    /// Stop after this many minutes, with the schedule stretched to fit; 0: no limit (then equal
    /// seeds give equal weights)
    #[arg(long, default_value_t = 0.0)]
    minutes: f64,
    /// Windows of a batch
    #[arg(long, default_value_t = 32)]
    windows: usize,
    /// Tokens of a window
    #[arg(long, default_value_t = 64)]
    length: usize,
    /// Highest learning rate; it rises in the first twentieth of the run and falls to 0
    #[arg(long, default_value_t = 4e-3)]
    rate: f64,
    /// Weight decay of the matrices
    #[arg(long, default_value_t = 0.05)]
    decay: f64,
    /// Share of values that each layer drops in training
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    /// Shares of windows cut from the main text, the documentation and the conversations
    #[arg(long, value_delimiter = ',', num_args = 3, default_values_t = [0.8, 0.2, 0.0])]
    shares: Vec<f64>,
    /// Seed of weights, windows and dropped values
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Result of a run. Losses are in nats per token.
#[derive(Serialize)]
pub struct Trained {
    parameters: usize,
    /// Tokens predicted in training.
    tokens: u64,
    seconds: f64,
    /// Mean over the last batches.
    train_loss: f64,
    /// Of the f32 weights, on the held-out text in windows of 128 tokens.
    held_out_loss: f64,
    /// Of the int8 weights.
    held_out_loss_int8: f64,
    /// Bytes of the int8 weights' file.
    bytes: usize,
}

/// The weights under training.
struct Network {
    vars: Vec<(&'static str, Var)>,
    layers: [LSTM; 2],
}

/// Names and shapes of the weights.
fn shapes(vocabulary: usize) -> [(&'static str, Vec<usize>); 9] {
    [
        ("embedding", vec![vocabulary, EMBEDDING]),
        ("weight_ih_l0", vec![4 * HIDDEN, EMBEDDING]),
        ("weight_hh_l0", vec![4 * HIDDEN, HIDDEN]),
        ("bias_ih_l0", vec![4 * HIDDEN]),
        ("weight_ih_l1", vec![4 * HIDDEN, HIDDEN]),
        ("weight_hh_l1", vec![4 * HIDDEN, HIDDEN]),
        ("bias_ih_l1", vec![4 * HIDDEN]),
        ("projection", vec![EMBEDDING, HIDDEN]),
        ("output_bias", vec![vocabulary]),
    ]
}

impl Network {
    fn new(vars: Vec<(&'static str, Var)>) -> Result<Self> {
        let tensors = vars.iter().map(|(name, var)| ((*name).to_owned(), var.as_tensor().clone())).collect();
        let builder = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let layer = |layer_idx, inputs| {
            lstm(inputs, HIDDEN, LSTMConfig { b_hh_init: None, layer_idx, ..LSTMConfig::default() }, builder.clone())
        };
        Ok(Self { layers: [layer(0, EMBEDDING)?, layer(1, HIDDEN)?], vars })
    }

    /// Uniform weights. Biases are 0, but for those of the forget gates, which are 1, and those of the
    /// logits, which begin with the tokens' frequencies.
    fn random(frequencies: &[f64], seed: u64) -> Result<Self> {
        let vocabulary = frequencies.len();
        let mut prng = Prng::new(seed);
        let mut vars = Vec::new();
        for (name, shape) in shapes(vocabulary) {
            let bound = if name == "embedding" { 0.2 } else { 1.0 / (HIDDEN as f64).sqrt() };
            let mut value = |at: usize| match (shape.len(), name) {
                (1, "output_bias") => frequencies[at].max(1e-7).ln() as f32,
                (1, _) => f32::from(u8::from(at / HIDDEN == 1)),
                _ => ((2.0 * prng.next_f64() - 1.0) * bound) as f32,
            };
            let values: Vec<f32> = (0..shape.iter().product()).map(&mut value).collect();
            vars.push((name, Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)?));
        }
        Self::new(vars)
    }

    fn load(path: &Path, vocabulary: usize) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::content(path, error))?;
        let mut vars = Vec::new();
        for (name, shape) in shapes(vocabulary) {
            let tensor = file.tensor(name).map_err(|error| Error::content(path, error))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                return Err(Error::content(path, format!("{name} is not f32 {shape:?}")));
            }
            let values: Vec<f32> =
                tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            vars.push((name, Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)?));
        }
        Self::new(vars)
    }

    fn save(&self, path: &Path) -> Result<()> {
        let mut parts = Vec::new();
        for (name, var) in &self.vars {
            let values = var.flatten_all()?.to_vec1::<f32>()?;
            parts.push((*name, var.dims().to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect()));
        }
        let views = parts
            .iter()
            .map(|(name, shape, bytes): &(_, _, Vec<u8>)| {
                Ok((*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?))
            })
            .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(|error| Error::content(path, error))?;
        write_whole(path, &safetensors::serialize(views, None).map_err(|error| Error::content(path, error))?)
    }

    fn to_float(&self) -> Result<FloatNetwork> {
        let values = |name: &str| -> Result<Vec<f32>> { Ok(self.var(name).flatten_all()?.to_vec1()?) };
        let layer = |at: usize| -> Result<FloatLayer> {
            Ok(FloatLayer {
                input: values(&format!("weight_ih_l{at}"))?,
                state: values(&format!("weight_hh_l{at}"))?,
                bias: values(&format!("bias_ih_l{at}"))?,
            })
        };
        Ok(FloatNetwork {
            embedding: values("embedding")?,
            layers: [layer(0)?, layer(1)?],
            projection: values("projection")?,
            output_bias: values("output_bias")?,
        })
    }

    fn var(&self, name: &str) -> &Var {
        let found = self.vars.iter().find(|(known, _)| *known == name);
        &found.expect("all weights have names").1
    }

    /// Logits of `windows` windows, one row per token, ordered by place and then by window.
    fn logits(&self, ids: &[u32], windows: usize, mut drop: Option<&mut Dropout>) -> Result<Tensor> {
        let length = ids.len() / windows;
        let mut states: Vec<LSTMState> =
            self.layers.iter().map(|layer| layer.zero_state(windows)).collect::<std::result::Result<_, _>>()?;
        let mut rows = Vec::with_capacity(length);
        for place in 0..length {
            let ids: Vec<u32> = (0..windows).map(|window| ids[window * length + place]).collect();
            let ids = Tensor::from_vec(ids, windows, &Device::Cpu)?;
            let mut values = self.var("embedding").index_select(&ids, 0)?;
            for (layer, state) in self.layers.iter().zip(&mut states) {
                values = dropped(&values, &mut drop)?;
                *state = layer.step(&values, state)?;
                values = state.h.clone();
            }
            rows.push(values);
        }
        let rows = dropped(&Tensor::cat(&rows, 0)?, &mut drop)?;
        let rows = rows.matmul(&self.var("projection").t()?)?;
        Ok(rows.matmul(&self.var("embedding").t()?)?.broadcast_add(self.var("output_bias"))?)
    }

    /// Mean loss on a text, in windows that each begin with an empty state.
    fn loss_on(&self, text: &[u32]) -> Result<f64> {
        let (mut sum, mut count) = (0.0, 0);
        let starts: Vec<usize> = (0..text.len().saturating_sub(HELD_OUT_LENGTH)).step_by(HELD_OUT_LENGTH).collect();
        for starts in starts.chunks(HELD_OUT_WINDOWS) {
            let cut = |from: usize| starts.iter().flat_map(move |start| &text[start + from..][..HELD_OUT_LENGTH]);
            let ids: Vec<u32> = cut(0).copied().collect();
            let targets: Vec<u32> = by_place(&cut(1).copied().collect::<Vec<_>>(), starts.len());
            let logits = self.logits(&ids, starts.len(), None)?.flatten_all()?.to_vec1::<f32>()?;
            sum += row_losses(&logits, &targets).iter().map(|loss| f64::from(*loss)).sum::<f64>();
            count += targets.len();
        }
        Ok(sum / f64::from(count.max(1) as u32))
    }
}

/// As [`Network::loss_on`], of the network in int8.
fn loss_of(network: &cenote_predict::Network, text: &[u32]) -> f64 {
    let (mut sum, mut count) = (0.0, 0_u32);
    let mut row = vec![0.0; network.vocabulary()];
    for start in (0..text.len().saturating_sub(HELD_OUT_LENGTH)).step_by(HELD_OUT_LENGTH) {
        let mut place = LstmPlace::EMPTY;
        for pair in text[start..=start + HELD_OUT_LENGTH].windows(2) {
            network.evaluate(&mut [&mut place], &pair[..1], 0, &mut row);
            sum -= f64::from(row[pair[1] as usize]).ln();
            count += 1;
        }
    }
    sum / f64::from(count.max(1))
}

/// Window after window, reordered by place and then by window.
fn by_place(ids: &[u32], windows: usize) -> Vec<u32> {
    let length = ids.len() / windows;
    (0..length).flat_map(|place| (0..windows).map(move |window| ids[window * length + place])).collect()
}

/// Drops a share of values and scales the others up.
struct Dropout {
    share: f64,
    prng: Prng,
}

fn dropped(values: &Tensor, dropout: &mut Option<&mut Dropout>) -> Result<Tensor> {
    let Some(Dropout { share, prng }) = dropout.as_deref_mut().filter(|dropout| dropout.share > 0.0) else {
        return Ok(values.clone());
    };
    let kept = (1.0 / (1.0 - *share)) as f32;
    let mask: Vec<f32> = (0..values.elem_count()).map(|_| if prng.next_f64() < *share { 0.0 } else { kept }).collect();
    Ok((values * Tensor::from_vec(mask, values.shape(), &Device::Cpu)?)?)
}

/// Linear warm-up, then a cosine down to 0. `progress` is the share of the run that is done.
fn rate_at(rate: f64, progress: f64) -> f64 {
    let warm = (0.01 + progress * 20.0).min(1.0);
    rate * warm * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
}

fn optimizer(network: &Network, is_matrix: bool, decay: f64) -> Result<AdamW> {
    let vars = network.vars.iter().filter(|(_, var)| (var.rank() > 1) == is_matrix).map(|(_, var)| var.clone());
    let weight_decay = if is_matrix { decay } else { 0.0 };
    Ok(AdamW::new(vars.collect(), ParamsAdamW { lr: 0.0, weight_decay, ..ParamsAdamW::default() })?)
}

/// Trains and writes the weights.
pub fn run(flags: &TokenPredictorFlags) -> Result<Trained> {
    if flags.windows == 0 || flags.length == 0 || !(0.0..1.0).contains(&flags.dropout) {
        return Err(Error::Flag("--windows and --length are at least 1, --dropout is in 0.0..1.0".into()));
    }
    let start = std::time::Instant::now();
    let texts = flags.texts.read(flags.seed)?;
    let tokenizer = tokens::load(&flags.tokenizer)?;
    let vocabulary = tokenizer.get_vocab_size(true);
    let shares = <[f64; 3]>::try_from(flags.shares.as_slice())
        .map_err(|_| Error::Flag(format!("--shares wants 3 numbers, not {}", flags.shares.len())))?;
    let streams = Streams::new(&texts, &tokenizer, shares, 0.0)?;
    let held_out = tokens::encode(&tokenizer, &texts.held_out)?;
    let network = if flags.resume {
        Network::load(&flags.float, vocabulary)?
    } else {
        Network::random(&streams.frequencies(vocabulary), flags.seed)?
    };
    let (train_loss, batches) = train(&network, &streams, flags)?;
    network.save(&flags.float)?;
    let float = network.to_float()?;
    let weights = float.quantize();
    let bytes = weights.to_bytes();
    write_whole(&flags.out, &bytes)?;
    Ok(Trained {
        parameters: float.parameters(),
        tokens: (batches * flags.windows * flags.length) as u64,
        seconds: start.elapsed().as_secs_f64(),
        train_loss,
        held_out_loss: network.loss_on(&held_out)?,
        held_out_loss_int8: loss_of(&cenote_predict::Network::new(&weights), &held_out),
        bytes: bytes.len(),
    })
}

/// The loss of the last batches, and the number of all.
fn train(network: &Network, streams: &Streams, flags: &TokenPredictorFlags) -> Result<(f64, usize)> {
    let mut optimizers = [optimizer(network, true, flags.decay)?, optimizer(network, false, 0.0)?];
    let mut prng = Prng::at(flags.seed, 1);
    let mut dropout = Dropout { share: flags.dropout, prng: Prng::at(flags.seed, 2) };
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg}");
    let bar = ProgressBar::new(flags.batches as u64).with_style(style.unwrap_or(ProgressStyle::default_bar()));
    let (mut recent, mut batch, start) = (f64::NAN, 0, std::time::Instant::now());
    loop {
        let by_time = if flags.minutes > 0.0 { start.elapsed().as_secs_f64() / (60.0 * flags.minutes) } else { 0.0 };
        let progress = by_time.max(batch as f64 / flags.batches as f64);
        if progress >= 1.0 {
            break;
        }
        let Batch { ids, targets } = streams.batch(flags.windows, flags.length, &mut prng);
        let logits = network.logits(&ids, flags.windows, Some(&mut dropout))?;
        let loss = logits.apply_op1(CrossEntropy(Arc::from(by_place(&targets, flags.windows))))?;
        let gradients = loss.backward()?;
        for optimizer in &mut optimizers {
            optimizer.set_learning_rate(rate_at(flags.rate, progress));
            optimizer.step(&gradients)?;
        }
        let loss = f64::from(loss.to_scalar::<f32>()?);
        if !loss.is_finite() {
            return Err(Error::Flag(format!("the loss of batch {batch} is {loss}; lower --rate")));
        }
        recent = if recent.is_nan() { loss } else { recent + (loss - recent) * 0.02 };
        bar.set_message(format!("loss {recent:.3}"));
        bar.inc(1);
        batch += 1;
    }
    bar.finish_and_clear();
    Ok((recent, batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network::random(&[1.0 / 12.0; 12], 3).unwrap()
    }

    /// The state machine that runs is the one that is trained.
    #[test]
    fn trained_weights_run_as_they_were_trained() {
        let trained = network();
        let float = trained.to_float().unwrap();
        let ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];
        // Two windows of six tokens: rows are ordered by place.
        let rows = trained.logits(&ids, 2, None).unwrap().to_vec2::<f32>().unwrap();
        for window in 0..2 {
            let mut state = float.start();
            for place in 0..6 {
                float.step(&mut state, ids[window * 6 + place]);
                for (ours, theirs) in float.logits(&state).iter().zip(&rows[place * 2 + window]) {
                    assert!((ours - theirs).abs() < 1e-4, "{ours} {theirs}");
                }
            }
        }
        assert_eq!(by_place(&[0, 1, 2, 10, 11, 12], 2), [0, 10, 1, 11, 2, 12]);
    }

    #[test]
    fn weights_are_read_back_and_others_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("float.safetensors");
        let trained = network();
        trained.save(&path).unwrap();
        let read = Network::load(&path, 12).unwrap();
        assert_eq!(read.to_float().unwrap(), trained.to_float().unwrap());
        let error = Network::load(&path, 13).err().unwrap().to_string();
        assert!(error.contains("embedding") && error.contains("[13, 64]"), "{error}");
    }

    #[test]
    fn a_rhythm_is_learned_and_the_int8_file_has_learned_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text.txt");
        std::fs::write(&text, "the pool, the region and the host\n".repeat(400)).unwrap();
        let texts = TextFlags { text, corpus: None, held_out: 0.1 };
        let tokenizer = folder.path().join("tokenizer.json");
        let learned = tokens::train(texts.read(1).unwrap().training(), 300).unwrap();
        std::fs::write(&tokenizer, learned.to_string(false).unwrap()).unwrap();
        let flags = TokenPredictorFlags {
            texts,
            tokenizer,
            out: folder.path().join("weights"),
            float: folder.path().join("float.safetensors"),
            resume: false,
            batches: 60,
            minutes: 0.0,
            windows: 4,
            length: 16,
            rate: 0.01,
            decay: 0.0,
            dropout: 0.0,
            shares: vec![1.0, 0.0, 0.0],
            seed: 1,
        };
        let trained = run(&flags).unwrap();
        assert!(trained.held_out_loss < 1.0, "{}", trained.held_out_loss);
        assert!((trained.held_out_loss_int8 - trained.held_out_loss).abs() < 0.1, "{}", trained.held_out_loss_int8);
        let weights = cenote_predict::Weights::from_bytes(&std::fs::read(&flags.out).unwrap()).unwrap();
        assert_eq!(weights.parameters(), trained.parameters);
    }
}
