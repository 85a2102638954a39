//! The training loop: AdamW, a cosine schedule over steps or minutes, windows of four lengths,
//! checkpoints.
//!
//! A step allocates and frees gigabytes. With glibc set `MALLOC_MMAP_MAX_=0` and
//! `MALLOC_TRIM_THRESHOLD_=17179869184`. Freed memory is then reused instead of returned, which
//! avoids page faults worth a third of the processor time.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use cenote_base::prng::Prng;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use crate::checkpoint;
use crate::data::Streams;
use crate::engram;
use crate::error::{Error, Result, write_whole};
use crate::evaluate::{Evaluation, evaluate};
use crate::model::Model;

/// The training schedule. Lengths are in tokens.
#[derive(Debug, Clone, clap::Args)]
pub struct Schedule {
    /// Stop after this many steps
    #[arg(long, default_value_t = 1_000_000)]
    pub steps: u64,
    /// Stop after this many minutes, with the schedule stretched to fit; 0: no limit (then equal
    /// seeds give equal weights)
    #[arg(long, default_value_t = 0.0)]
    pub minutes: f64,
    /// Tokens per step: as many windows of one length as fit (at least one)
    #[arg(long, default_value_t = 1024)]
    pub step_tokens: usize,
    /// Length of most windows
    #[arg(long, default_value_t = 256)]
    pub length: usize,
    /// Length of the middle windows
    #[arg(long, default_value_t = 1024)]
    pub length_middle: usize,
    /// Steps between windows of the middle length
    #[arg(long, default_value_t = 4)]
    pub middle_every: u64,
    /// Length of the long windows
    #[arg(long, default_value_t = 2048)]
    pub length_long: usize,
    /// Steps between long windows
    #[arg(long, default_value_t = 16)]
    pub long_every: u64,
    /// Steps between windows of the model's whole context; 0: never
    #[arg(long, default_value_t = 192)]
    pub context_every: u64,
    /// Highest learning rate
    #[arg(long, default_value_t = 2e-3)]
    pub rate: f64,
    /// Steps until the learning rate reaches its highest value
    #[arg(long, default_value_t = 60)]
    pub warm_up: u64,
    /// Weight decay of the matrices; norms have none
    #[arg(long, default_value_t = 0.1)]
    pub decay: f64,
    /// Factor of the learning rate for rows of n-gram tables, which few tokens change
    #[arg(long, default_value_t = 5.0)]
    pub table_rate: f64,
    /// Largest norm of a step's gradient
    #[arg(long, default_value_t = 1.0)]
    pub clip: f64,
    /// Minutes between checkpoints, which also measure the held-out loss
    #[arg(long, default_value_t = 4.0)]
    pub checkpoint_minutes: f64,
    /// File for JSON lines, one per step and one per checkpoint
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Seeds weights, windows and conversations
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Schedule {
    fn check(&self, context: usize) -> Result<()> {
        let lengths = [self.length, self.length_middle, self.length_long];
        if lengths.iter().any(|length| *length == 0 || *length > context) {
            return Err(Error::Flag(format!("window lengths {lengths:?} must lie in 1..={context}, the context")));
        }
        if self.minutes.is_nan() || self.minutes < 0.0 || self.steps == 0 {
            return Err(Error::Flag("--steps must be at least 1 and --minutes not negative".into()));
        }
        Ok(())
    }

    /// The window length of a step; the longest due length wins.
    fn length_at(&self, step: u64, context: usize) -> usize {
        let due = |every: u64| every > 0 && step % every == every - 1;
        if due(self.context_every) {
            context
        } else if due(self.long_every) {
            self.length_long
        } else if due(self.middle_every) {
            self.length_middle
        } else {
            self.length
        }
    }

    /// Share of the work that is done, 0 to 1.
    fn progress(&self, step: u64, elapsed: Duration) -> f64 {
        let by_time = if self.minutes > 0.0 { elapsed.as_secs_f64() / (self.minutes * 60.0) } else { 0.0 };
        by_time.max(step as f64 / self.steps as f64)
    }

    /// The learning rate: linear warm-up, then a cosine down to a twentieth.
    fn rate_at(&self, step: u64, progress: f64) -> f64 {
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos());
        let warm = ((step + 1) as f64 / self.warm_up.max(1) as f64).min(1.0);
        self.rate * warm * (0.05 + 0.95 * cosine)
    }
}

/// Result of a run, written to `training.json`.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Number of trained parameters.
    pub parameters: usize,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens predicted in training.
    pub tokens: u64,
    /// Wall-clock time in seconds.
    pub seconds: f64,
    /// Running mean of the training loss in nats per token, over windows of every length. A step
    /// has weight 0.02.
    pub train_loss: f64,
    /// Losses of the saved, rounded weights on held-out text.
    pub held_out: Vec<Evaluation>,
}

/// An optimizer for each kind of weight, with the factor of its learning rate: matrices have weight
/// decay, norms and tables have none.
struct Optimizers([(AdamW, f64); 3]);

impl Optimizers {
    fn new(model: &Model, schedule: &Schedule) -> Result<Self> {
        let group = |kind: usize, decay: f64, factor: f64| -> Result<(AdamW, f64)> {
            let kind_of = |name: &str, var: &Var| match var.rank() {
                _ if engram::is_table(name) => 2,
                1 => 1,
                _ => 0,
            };
            let of_kind = model.weights().iter().filter(|(name, var)| kind_of(name, var) == kind);
            let weights = of_kind.map(|(_, var)| var.clone()).collect();
            let parameters = ParamsAdamW { lr: 0.0, beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: decay };
            Ok((AdamW::new(weights, parameters)?, factor))
        };
        Ok(Self([group(0, schedule.decay, 1.0)?, group(1, 0.0, 1.0)?, group(2, 0.0, schedule.table_rate)?]))
    }

    fn step(&mut self, gradients: &GradStore, rate: f64) -> Result<()> {
        for (optimizer, factor) in &mut self.0 {
            optimizer.set_learning_rate(rate * *factor);
            optimizer.step(gradients)?;
        }
        Ok(())
    }
}

/// Scales the gradients so that their joint norm is at most `limit`; returns the norm before
/// scaling.
fn clip(model: &Model, gradients: &mut GradStore, limit: f64) -> Result<f64> {
    let mut square = 0.0;
    for var in model.weights().values() {
        if let Some(gradient) = gradients.get(var) {
            square += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
    }
    let norm = square.sqrt();
    if norm > limit {
        for var in model.weights().values() {
            if let Some(gradient) = gradients.remove(var) {
                gradients.insert(var, (gradient * (limit / norm))?);
            }
        }
    }
    Ok(norm)
}

/// Trains `model` on `streams`. `out` always holds the newest checkpoint, at the end the trained
/// model.
pub fn run(model: &Model, streams: &Streams, held_out: &[u32], schedule: &Schedule, out: &Path) -> Result<Summary> {
    let context = model.config().max_position_embeddings;
    schedule.check(context)?;
    let mut log = schedule.log.as_deref().map(Log::create).transpose()?;
    let mut prng = Prng::new(schedule.seed ^ 0x5eed);
    let mut optimizers = Optimizers::new(model, schedule)?;
    let (start, mut saved) = (Instant::now(), Instant::now());
    let (mut step, mut tokens, mut recent) = (0, 0, f64::NAN);
    let bar = ProgressBar::new(1000).with_style(
        ProgressStyle::with_template("{wide_bar} {percent}% {msg}").unwrap_or(ProgressStyle::default_bar()),
    );
    checkpoint::save(model, out)?;
    loop {
        let progress = schedule.progress(step, start.elapsed());
        if progress >= 1.0 {
            break;
        }
        let length = schedule.length_at(step, context);
        let windows = (schedule.step_tokens / length).max(1);
        let batch = streams.batch(windows, length, &mut prng);
        let loss = model.loss(&batch.ids, &batch.targets, windows)?;
        let mut gradients = loss.backward()?;
        let norm = clip(model, &mut gradients, schedule.clip)?;
        let rate = schedule.rate_at(step, progress);
        optimizers.step(&gradients, rate)?;
        let loss = f64::from(loss.to_scalar::<f32>()?);
        if !loss.is_finite() {
            return Err(Error::Flag(format!("the loss at step {step} is {loss}; lower --rate")));
        }
        recent = if recent.is_nan() { loss } else { recent + (loss - recent) * 0.02 };
        (step, tokens) = (step + 1, tokens + batch.ids.len() as u64);
        let seconds = start.elapsed().as_secs_f64();
        bar.set_position((progress * 1000.0) as u64);
        bar.set_message(format!("step {step} loss {recent:.3} {:.0} tokens/s", tokens as f64 / seconds));
        if let Some(log) = &mut log {
            log.write(&json!({"step": step, "tokens": tokens, "seconds": seconds, "length": length, "loss": loss,
                "rate": rate, "gradient_norm": norm}))?;
        }
        if saved.elapsed().as_secs_f64() > schedule.checkpoint_minutes * 60.0 {
            checkpoint::save(model, out)?;
            let evaluation = evaluate(model, held_out, schedule.length_middle)?;
            if let Some(log) = &mut log {
                log.write(&json!({"step": step, "seconds": seconds, "recent_loss": recent, "held_out": evaluation}))?;
            }
            saved = Instant::now();
        }
    }
    bar.finish();
    checkpoint::save(model, out)?;
    let seconds = start.elapsed().as_secs_f64();
    let rounded = Model::load(out)?;
    let windows = [schedule.length, schedule.length_middle, schedule.length_long, context];
    let held_out = windows.iter().map(|window| evaluate(&rounded, held_out, *window)).collect::<Result<Vec<_>>>()?;
    let parameters = model.parameter_count();
    let summary = Summary { parameters, steps: step, tokens, seconds, train_loss: recent, held_out };
    let path = out.join("training.json");
    let text = serde_json::to_string_pretty(&summary).map_err(|error| Error::content(&path, error))?;
    write_whole(&path, format!("{text}\n").as_bytes())?;
    Ok(summary)
}

/// The loss log. Every line is written before the next step, so an interrupted run keeps its
/// history.
struct Log {
    path: PathBuf,
    file: std::fs::File,
}

impl Log {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), file: std::fs::File::create(path).map_err(Error::io(path))? })
    }

    fn write(&mut self, line: &serde_json::Value) -> Result<()> {
        writeln!(self.file, "{line}").map_err(Error::io(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        schedule: Schedule,
    }

    fn schedule(flags: &[&str]) -> Schedule {
        Flags::parse_from(["train"].iter().chain(flags)).schedule
    }

    #[test]
    fn the_rate_warms_up_and_falls_and_every_length_occurs() {
        let schedule = schedule(&["--steps", "100", "--warm-up", "10", "--rate", "1"]);
        assert!((schedule.rate_at(0, 0.0) - 0.1).abs() < 1e-9);
        assert!(schedule.rate_at(50, 0.5) < schedule.rate_at(10, 0.1));
        assert!((schedule.rate_at(100, 1.0) - 0.05).abs() < 1e-9);
        let lengths = [0, 3, 15, 191].map(|step| schedule.length_at(step, 4096));
        assert_eq!(lengths, [256, 1024, 2048, 4096]);
    }

    #[test]
    fn minutes_end_a_run_before_its_steps_do() {
        let schedule = schedule(&["--steps", "100", "--minutes", "1"]);
        assert_eq!(schedule.progress(10, Duration::from_secs(60)), 1.0);
        assert_eq!(schedule.progress(90, Duration::from_secs(6)), 0.9);
    }
}
