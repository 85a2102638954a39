//! Trains the recurrent predictor of sparse attention's choices (`policy/src/choice/lstm.rs`).
//!
//! `cenote-lab study sparse --record` writes the pages of a text: their features in each decode step,
//! and whether the step chose them. The network reads a page's steps and says before each whether it
//! will be chosen. The last windows of the file are held out.

use crate::error::{Error, Result, write_whole};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::rnn::{LSTMConfig, RNN, lstm};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder};
use cenote_base::prng::Prng;
use indicatif::ProgressBar;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Values that describe a page in a step, and cells: those of `policy/src/choice/lstm.rs`.
const FEATURES: usize = 4;
const HIDDEN: usize = 8;
/// Share of the sequences that is held out.
const HELD_OUT: f64 = 0.1;

/// Flags of `cenote-train predictor`.
#[derive(clap::Args)]
pub struct PredictorFlags {
    /// A file that `cenote-lab study sparse --record` wrote
    #[arg(long, value_name = "FILE")]
    records: PathBuf,
    /// The weights to write
    #[arg(long, value_name = "FILE", default_value = "crates/policy/src/choice/lstm.weights")]
    out: PathBuf,
    /// Batches to train with
    #[arg(long, default_value_t = 1500)]
    batches: usize,
    /// Sequences of a batch
    #[arg(long, default_value_t = 256)]
    sequences: usize,
    /// Steps of a sequence
    #[arg(long, default_value_t = 48)]
    steps: usize,
    /// Learning rate at the start; it falls to 0
    #[arg(long, default_value_t = 0.01)]
    rate: f64,
    /// Seed of the weights and of the order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Losses in nats per page and step.
#[derive(Serialize)]
pub struct Trained {
    sequences: usize,
    held_out: usize,
    /// Of a guess by the share of chosen pages.
    loss_of_share: f64,
    /// Of a guess by whether the last step chose the page.
    loss_of_last: f64,
    /// Of the network, on the held-out sequences.
    loss: f64,
}

struct Records {
    features: Vec<f32>,
    chosen: Vec<u8>,
    steps: usize,
}

impl Records {
    fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::content(path, error))?;
        let tensor = |name: &str| file.tensor(name).map_err(|error| Error::content(path, error));
        let (features, chosen) = (tensor("features")?, tensor("chosen")?);
        let is_sound = features.dtype() == Dtype::F32
            && chosen.dtype() == Dtype::U8
            && features.shape().len() == 3
            && features.shape()[..2] == *chosen.shape()
            && features.shape()[2] == FEATURES;
        if !is_sound {
            return Err(Error::content(path, "not a record of choices"));
        }
        let values = features.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Ok(Self { features: values.collect(), chosen: chosen.data().to_vec(), steps: chosen.shape()[1] })
    }

    const fn sequences(&self) -> usize {
        self.chosen.len() / self.steps
    }

    /// Inputs `[sequence][step][feature]` and the next steps' choices of some sequences from a step on.
    fn batch(&self, sequences: &[(usize, usize)], steps: usize) -> Result<(Tensor, Tensor)> {
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        for (sequence, first) in sequences {
            let at = sequence * self.steps + first;
            inputs.extend_from_slice(&self.features[at * FEATURES..(at + steps) * FEATURES]);
            labels.extend(self.chosen[at + 1..=at + steps].iter().map(|chosen| f32::from(*chosen)));
        }
        let shape = (sequences.len(), steps, FEATURES);
        Ok((
            Tensor::from_vec(inputs, shape, &Device::Cpu)?,
            Tensor::from_vec(labels, (sequences.len(), steps), &Device::Cpu)?,
        ))
    }
}

/// The weights under training.
struct Network {
    vars: Vec<(&'static str, Var)>,
    lstm: candle_nn::rnn::LSTM,
}

impl Network {
    fn random(seed: u64) -> Result<Self> {
        let mut prng = Prng::new(seed);
        let bound = 1.0 / (HIDDEN as f64).sqrt();
        let mut random = |shape: &[usize]| -> Result<Var> {
            let count = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|_| ((2.0 * prng.next_f64() - 1.0) * bound) as f32).collect();
            Ok(Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)?)
        };
        let vars = [
            ("weight_ih_l0", vec![4 * HIDDEN, FEATURES]),
            ("weight_hh_l0", vec![4 * HIDDEN, HIDDEN]),
            ("bias_ih_l0", vec![4 * HIDDEN]),
            ("bias_hh_l0", vec![4 * HIDDEN]),
            ("output", vec![1, HIDDEN]),
            ("output_bias", vec![1]),
        ];
        let vars = vars.into_iter().map(|(name, shape)| Ok((name, random(&shape)?))).collect::<Result<Vec<_>>>()?;
        let tensors: HashMap<String, Tensor> =
            vars.iter().map(|(name, var)| ((*name).to_owned(), var.as_tensor().clone())).collect();
        let builder = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let lstm = lstm(FEATURES, HIDDEN, LSTMConfig::default(), builder)?;
        Ok(Self { vars, lstm })
    }

    fn var(&self, name: &str) -> &Tensor {
        let found = self.vars.iter().find(|(known, _)| *known == name);
        found.expect("all weights have names").1.as_tensor()
    }

    /// Mean loss of a batch.
    fn loss(&self, inputs: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let states = self.lstm.seq(inputs)?;
        let hidden = self.lstm.states_to_tensor(&states)?.reshape((labels.elem_count(), HIDDEN))?;
        let logits = hidden.matmul(&self.var("output").t()?)?.broadcast_add(self.var("output_bias"))?;
        Ok(candle_nn::loss::binary_cross_entropy_with_logit(&logits.flatten_all()?, &labels.flatten_all()?)?)
    }

    /// The weights in the order of the predictor; both biases are one there.
    fn bytes(&self) -> Result<Vec<u8>> {
        let flat = |tensor: &Tensor| -> Result<Vec<f32>> { Ok(tensor.flatten_all()?.to_vec1()?) };
        let bias = (self.var("bias_ih_l0") + self.var("bias_hh_l0"))?;
        let parts =
            [self.var("weight_ih_l0"), self.var("weight_hh_l0"), &bias, self.var("output"), self.var("output_bias")];
        let values = parts.iter().map(|part| flat(part)).collect::<Result<Vec<_>>>()?;
        Ok(values.concat().iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// Trains and writes the weights.
pub fn run(flags: &PredictorFlags) -> Result<Trained> {
    let records = Records::read(&flags.records)?;
    let steps = flags.steps;
    if steps == 0 || steps >= records.steps {
        return Err(Error::Flag(format!("--steps {steps}: the record has {} steps", records.steps)));
    }
    let held_out = ((records.sequences() as f64 * HELD_OUT) as usize).max(1);
    let training = records.sequences().saturating_sub(held_out);
    if training == 0 {
        return Err(Error::content(&flags.records, "too few pages to train with"));
    }
    let network = Network::random(flags.seed)?;
    let vars = network.vars.iter().map(|(_, var)| var.clone()).collect();
    let mut optimizer = AdamW::new(vars, ParamsAdamW { lr: flags.rate, weight_decay: 0.0, ..ParamsAdamW::default() })?;
    let mut prng = Prng::at(flags.seed, 1);
    let bar = ProgressBar::new(flags.batches as u64);
    for batch in 0..flags.batches {
        optimizer.set_learning_rate(flags.rate * (1.0 - batch as f64 / flags.batches as f64));
        let mut draw = |most: usize| prng.below(most as u64) as usize;
        let chosen: Vec<(usize, usize)> =
            (0..flags.sequences).map(|_| (draw(training), draw(records.steps - steps))).collect();
        let (inputs, labels) = records.batch(&chosen, steps)?;
        optimizer.backward_step(&network.loss(&inputs, &labels)?)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (mut sum, mut batches) = (0.0, 0);
    let held: Vec<usize> = (training..records.sequences()).collect();
    for part in held.chunks(flags.sequences) {
        let chosen: Vec<(usize, usize)> = part.iter().map(|sequence| (*sequence, 0)).collect();
        let (inputs, labels) = records.batch(&chosen, steps)?;
        sum += f64::from(network.loss(&inputs, &labels)?.to_scalar::<f32>()?) * part.len() as f64;
        batches += part.len();
    }
    write_whole(&flags.out, &network.bytes()?)?;
    let [loss_of_share, loss_of_last] = guesses(&records, &held, steps);
    Ok(Trained { sequences: training, held_out, loss_of_share, loss_of_last, loss: sum / batches as f64 })
}

/// Losses of two guesses on the held-out sequences, with the best probabilities for them.
fn guesses(records: &Records, held: &[usize], steps: usize) -> [f64; 2] {
    // By the choice before: pages, and chosen ones among them.
    let mut counts = [[0_u64; 2]; 2];
    for sequence in held {
        let chosen = &records.chosen[sequence * records.steps..][..=steps];
        for pair in chosen.windows(2) {
            counts[usize::from(pair[0])][0] += 1;
            counts[usize::from(pair[0])][1] += u64::from(pair[1]);
        }
    }
    let nats = |[all, chosen]: [u64; 2]| {
        let share = chosen as f64 / all.max(1) as f64;
        let term = |count: f64, share: f64| if count > 0.0 { -count * share.ln() } else { 0.0 };
        term(chosen as f64, share) + term((all - chosen) as f64, 1.0 - share)
    };
    let all = (counts[0][0] + counts[1][0]).max(1) as f64;
    let together = [counts[0][0] + counts[1][0], counts[0][1] + counts[1][1]];
    [nats(together) / all, (nats(counts[0]) + nats(counts[1])) / all]
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    /// Pages that are chosen in every third step: the step before says nothing, the state does.
    #[test]
    fn a_rhythm_that_the_last_step_does_not_show_is_learned() {
        let folder = tempfile::tempdir().unwrap();
        let (sequences, steps) = (120_usize, 24_usize);
        let chosen: Vec<u8> =
            (0..sequences * steps).map(|at| u8::from((at % steps + at / steps).is_multiple_of(3))).collect();
        let features: Vec<u8> =
            chosen.iter().flat_map(|chosen| [0.5, 0.0, f32::from(*chosen), 0.1]).flat_map(f32::to_le_bytes).collect();
        let records = folder.path().join("records.safetensors");
        let views = [
            ("features", TensorView::new(Dtype::F32, vec![sequences, steps, FEATURES], &features).unwrap()),
            ("chosen", TensorView::new(Dtype::U8, vec![sequences, steps], &chosen).unwrap()),
        ];
        safetensors::serialize_to_file(views, None, &records).unwrap();
        let out = folder.path().join("weights");
        let flags =
            PredictorFlags { records, out: out.clone(), batches: 200, sequences: 32, steps: 16, rate: 0.03, seed: 1 };
        let trained = run(&flags).unwrap();
        assert!(trained.loss < 0.5 * trained.loss_of_last, "{} {}", trained.loss, trained.loss_of_last);
        assert!(trained.loss_of_last <= trained.loss_of_share);
        assert_eq!(
            std::fs::metadata(out).unwrap().len(),
            4 * (4 * HIDDEN * (FEATURES + HIDDEN + 1) + HIDDEN + 1) as u64
        );
    }
}
