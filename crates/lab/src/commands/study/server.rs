//! `cenote-lab study server`: the same requests at the same times through a running server of
//! completions, such as `vllm serve`, and through the simulator.
//!
//! The server reports no steps, so its clients time them. A prompt alone is one step. The tokens behind
//! it, of one request or of a crowd of equal ones, are a step each. The way to the engine and back is
//! what a prompt of one token takes beyond the step of a token.

use super::compared::{self, Load, Row, simulated};
use super::real::measured;
use crate::args::StudyServerArgs;
use crate::commands::client::{Answered, Client};
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_serving_sim::model::{Calibration, Link, Machine, Sample};
use cenote_serving_sim::workload::{Length, Synthetic};
use cenote_serving_sim::{Setup, Workload};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest time of one answer: a crowd's last one waits for all others.
const TIMEOUT: Duration = Duration::from_secs(900);
/// Lengths of prompts alone, and of a crowd's prompts.
const PROMPTS: [u32; 8] = [1, 16, 64, 128, 256, 512, 1024, 2048];
const CROWD_PROMPT: u32 = 16;
/// Sizes of crowds.
const CROWDS: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// Tokens of a block of a server that does not tell.
const BLOCK_TOKENS: u32 = 16;
/// Tokens of answers to time the steps behind a prompt.
const ANSWER: u32 = 32;
/// Repetitions of each.
const REPEATS: usize = 2;
/// Ids of prompts' tokens: every vocabulary has them, and they are no special tokens.
const TOKENS: std::ops::Range<u64> = 100..600;

pub fn run(args: &StudyServerArgs) -> Result<(), Failure> {
    compared::check(&args.load)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        let mut server = Server::connect(args).await?;
        let mut rows = Vec::new();
        for repeat in 0..args.load.repeats {
            rows.extend(server.compare(args, args.load.seed + u64::from(repeat)).await?);
        }
        Ok::<_, Failure>(rows)
    })?;
    compared::show(&args.load, rows, &args.output)
}

struct Server {
    client: Client,
    model: String,
    max_model_len: u32,
    kv_blocks: u32,
    block_tokens: u32,
    prng: Prng,
}

impl Server {
    async fn connect(args: &StudyServerArgs) -> Result<Self, Failure> {
        let client = Client::new(&args.url, TIMEOUT)?;
        let models: Value = serde_json::from_str(&client.get("/v1/models").await?)?;
        let model = &models["data"][0];
        let name =
            model["id"].as_str().ok_or_else(|| Failure::new(format!("{}/v1/models names no model", args.url)))?;
        let max_model_len = model["max_model_len"].as_u64().and_then(|length| u32::try_from(length).ok());
        // Any server has completions; not every one has metrics.
        let metrics = client.get("/metrics").await.unwrap_or_default();
        let kv_blocks = args.kv_blocks.or_else(|| reported(&metrics, "num_gpu_blocks")).ok_or_else(|| {
            Failure::new(format!("{}/metrics does not tell the number of blocks", args.url)).hint("give --kv-blocks")
        })?;
        let block_tokens = args.block_tokens.or_else(|| reported(&metrics, "block_size")).unwrap_or(BLOCK_TOKENS);
        let prng = Prng::new(args.load.seed);
        Ok(Self {
            client,
            model: name.to_owned(),
            max_model_len: max_model_len.unwrap_or(u32::MAX),
            kv_blocks,
            block_tokens,
            prng,
        })
    }

    async fn compare(&mut self, args: &StudyServerArgs, seed: u64) -> Result<Vec<Row>, Failure> {
        let mut timed = Timed::default();
        timed.more(self, args).await?;
        let before = self.setup(args, &timed.fit(self));
        let mut served = Vec::new();
        for Load { name, requests } in compared::loads(&args.load, seed, |load| simulated(&before, load))? {
            let bar = output::progress("serving", u64::from(args.load.requests));
            let answers = self.replay(&requests, &|| bar.inc(1)).await?;
            bar.finish_and_clear();
            served.push((name, measured(&requests, &answers), requests));
        }
        // Calibrate before and after, because a shared machine's speed changes within a minute.
        timed.more(self, args).await?;
        let fitted = timed.fit(self);
        let setup = self.setup(args, &fitted);
        served
            .into_iter()
            .map(|(name, real, load)| Ok(Row::new(name, &real, &simulated(&setup, &load)?, fitted.mean_error)))
            .collect()
    }

    /// Prompts are random, so that no two share a block.
    async fn replay(&mut self, load: &Workload, progress: &dyn Fn()) -> Result<Vec<Answered>, Failure> {
        let bodies = load.requests().iter().map(|request| {
            let tokens = TOKENS.end - TOKENS.start;
            let prompt: Vec<u64> = (0..request.input_tokens).map(|_| TOKENS.start + self.prng.below(tokens)).collect();
            json!({
                "model": self.model, "prompt": prompt, "temperature": 0, "max_tokens": request.output_tokens,
                "ignore_eos": true, "stream": true,
            })
        });
        let bodies = bodies.collect();
        self.client.replay(load, bodies, progress).await
    }

    fn setup(&self, args: &StudyServerArgs, fitted: &Calibration) -> Setup {
        Setup {
            instances: 1,
            cost: fitted.cost(),
            front_ns: fitted.machine.front_ns,
            kv_bytes_per_token: fitted.machine.kv_bytes_per_token,
            l1_blocks: self.kv_blocks,
            l1_block_tokens: self.block_tokens,
            max_num_seqs: args.max_num_seqs,
            max_num_batched_tokens: args.max_num_batched_tokens,
            watermark: cenote_policy::Watermark::default(),
            swap_blocks: 0,
            has_prefix_cache: false,
            swap_link: Link { bytes_per_s: fitted.machine.copy_bytes_per_s, latency_ns: 0 },
            always_swap: false,
            spill: None,
            private: None,
            shared: None,
            hosts: None,
            eviction: cenote_policy::Eviction::Lru,
        }
    }
}

/// Timings of a server.
#[derive(Default)]
struct Timed {
    samples: Vec<Sample>,
    /// Tokens and time to the first token of prompts alone.
    prompts: Vec<(u32, u64)>,
    /// Times of a step of one token behind a prompt of one token.
    single: Vec<u64>,
}

impl Timed {
    async fn more(&mut self, server: &mut Server, args: &StudyServerArgs) -> Result<(), Failure> {
        let most = args.max_num_batched_tokens.min(server.max_model_len.saturating_sub(ANSWER));
        let prompts: Vec<u32> = PROMPTS.into_iter().filter(|&length| length <= most).collect();
        let crowds: Vec<usize> = CROWDS.into_iter().filter(|&count| count <= args.max_num_seqs).collect();
        let requests = REPEATS * (prompts.len() + crowds.iter().sum::<usize>());
        let bar = output::progress("timing steps", requests as u64);
        // Once untimed, to warm caches.
        server.replay(&equal(2, CROWD_PROMPT), &|| ()).await?;
        for _ in 0..REPEATS {
            for (count, length) in
                prompts.iter().map(|&length| (1, length)).chain(crowds.iter().map(|&count| (count, CROWD_PROMPT)))
            {
                let answers = server.replay(&equal(count, length), &|| bar.inc(1)).await?;
                self.add(&answers, length);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Equal requests that came together.
    fn add(&mut self, answers: &[Answered], length: u32) {
        let (count, steps) = (answers.len() as u64, u64::from(ANSWER - 1));
        let mut steps_ns: Vec<u64> = answers
            .iter()
            .map(|answer| (answer.whole.saturating_sub(answer.first)).as_nanos() as u64 / steps)
            .collect();
        steps_ns.sort_unstable();
        let ns = steps_ns[steps_ns.len() / 2];
        let context = count * u64::from(length + ANSWER / 2);
        self.samples.push(Sample { count: steps, requests: count, tokens: count, pairs: context, context, ns });
        if count == 1 {
            self.prompts.push((length, answers[0].first.as_nanos() as u64));
        }
        if (count, length) == (1, 1) {
            self.single.push(ns);
        }
    }

    fn fit(&self, server: &Server) -> Calibration {
        let shortest = self.prompts.iter().filter(|(length, _)| *length == 1).map(|(_, ns)| *ns).min().unwrap_or(0);
        let front_ns = shortest.saturating_sub(self.single.iter().copied().min().unwrap_or(0));
        let prompts = self.prompts.iter().map(|&(length, ns)| {
            let tokens = u64::from(length);
            let (pairs, ns) = (tokens * (tokens + 1) / 2, ns.saturating_sub(front_ns));
            Sample { count: 1, requests: 1, tokens, pairs, context: tokens, ns }
        });
        let samples: Vec<Sample> = self.samples.iter().copied().chain(prompts).collect();
        // No link is used: KV of a byte a token, and copies of a byte a nanosecond, have no effect.
        let machine = Machine {
            of: server.model.clone(),
            kv_bytes_per_token: 1,
            kv_tokens: u64::from(server.kv_blocks),
            copy_bytes_per_s: 1_000_000_000,
            front_ns,
        };
        Calibration::fit(machine, Sample::merged(&samples))
    }
}

/// Equal requests at once.
fn equal(requests: usize, length: u32) -> Workload {
    let (input, output) = (Length::fixed(length), Length::fixed(ANSWER));
    Synthetic { requests, rate: 0.0, input, output, unique: None, groups: 1, block_tokens: 16 }.draw(1)
}

/// A label of the cache configuration in vLLM's metrics: `num_gpu_blocks`, on CPUs too, or `block_size`.
fn reported(metrics: &str, label: &str) -> Option<u32> {
    let line = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    let value = line.split(&format!("{label}=\"")).nth(1)?;
    value.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_from_metrics() {
        let line = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"512\"} 1.0\n";
        let metrics = format!("# HELP x\n{line}");
        assert_eq!(["num_gpu_blocks", "block_size"].map(|label| reported(&metrics, label)), [Some(512), Some(16)]);
        assert_eq!(reported("cenote_kv_blocks 3\n", "num_gpu_blocks"), None);
        assert_eq!(reported(&line.replace("512", "None"), "num_gpu_blocks"), None);
    }

    /// Times of a server with known rates give these rates.
    #[test]
    fn a_server_of_known_rates_is_fitted() {
        let step =
            |requests: u64, tokens: u64, context: u64| 2_000_000 + 10_000 * requests + 50_000 * tokens + 100 * context;
        let front = 700_000;
        let mut timed = Timed::default();
        for length in PROMPTS {
            let tokens = u64::from(length);
            let first = front + step(1, tokens, tokens);
            let whole = first + u64::from(ANSWER - 1) * step(1, 1, tokens + u64::from(ANSWER / 2));
            let answer = Answered {
                asked: Duration::ZERO,
                first: Duration::from_nanos(first),
                whole: Duration::from_nanos(whole),
            };
            timed.add(&[answer], length);
        }
        for count in CROWDS {
            let tokens = count as u64;
            let steps = u64::from(ANSWER - 1) * step(tokens, tokens, tokens * u64::from(CROWD_PROMPT + ANSWER / 2));
            let answer = Answered { asked: Duration::ZERO, first: Duration::ZERO, whole: Duration::from_nanos(steps) };
            timed.add(&vec![answer; count], CROWD_PROMPT);
        }
        let client = Client::new("http://localhost", TIMEOUT).unwrap();
        let server = Server {
            client,
            model: "m".to_owned(),
            max_model_len: 4096,
            kv_blocks: 64,
            block_tokens: 16,
            prng: Prng::new(1),
        };
        let fitted = timed.fit(&server);
        assert!(fitted.mean_error < 0.01, "{fitted:?}");
        assert!((fitted.token_ns / 50_000.0 - 1.0).abs() < 0.02, "{fitted:?}");
        assert!(fitted.machine.front_ns.abs_diff(front) < 5_000, "{fitted:?}");
    }
}
