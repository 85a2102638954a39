//! Generated loads: Poisson arrivals, TraCT's workloads and CPEN 511's prompts.

use super::draw::{Length, exponential};
use super::{Builder, Workload};
use cenote_base::prng::Prng;

const SECOND_NS: f64 = 1e9;
/// Longest generated prompt or answer, in tokens.
const DRAWN_MAX: u32 = 131_072;

/// A Poisson process of requests. The prompts of a group share a prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Number of requests.
    pub requests: usize,
    /// Requests per second. 0: all at once.
    pub rate: f64,
    /// Length of a prompt.
    pub input: Length,
    /// Length of an answer.
    pub output: Length,
    /// Length of the end of a prompt that no other prompt shares. `None`: the whole prompt.
    pub unique: Option<Length>,
    /// Number of groups, all with the same probability. The prompts of a group share their prefix.
    pub groups: u64,
    /// Tokens per block.
    pub block_tokens: u32,
}

impl Synthetic {
    /// TraCT's workloads A, B and C (§5.1, Table 1), from Dynamo's generator with vLLM's blocks of
    /// 16 tokens. They differ in the unshared part of the prompts. The paper does not give the
    /// number of groups; this uses 64. Returns `None` for other names.
    #[must_use]
    pub fn tract(name: char, requests: usize, rate: f64) -> Option<Self> {
        let (mean, deviation) = match name.to_ascii_uppercase() {
            'A' => (1_073.0, 1_549.0),
            'B' => (1_215.0, 1_693.0),
            'C' => (1_631.0, 2_027.0),
            _ => return None,
        };
        Some(Self {
            requests,
            rate,
            input: Length { mean: 4_449.0, deviation: 2_424.0 },
            output: Length { mean: 215.0, deviation: 263.0 },
            unique: Some(Length { mean, deviation }),
            groups: 64,
            block_tokens: 16,
        })
    }

    /// Generates the requests of a seed.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Workload {
        let mut prng = Prng::new(seed);
        let mut builder = Builder::new(self.block_tokens);
        let (mut at, mut names) = (0.0, Vec::new());
        // The name of a shared block is (group, depth). The name of an unshared block is
        // (request, depth) with the highest bit set.
        let name = |owner: u64, depth: u32| owner << 24 | u64::from(depth);
        for request in 0..self.requests as u64 {
            if self.rate > 0.0 {
                at += exponential(&mut prng, SECOND_NS / self.rate);
            }
            let input = self.input.draw(&mut prng, DRAWN_MAX);
            let output = self.output.draw(&mut prng, DRAWN_MAX);
            let unique = self.unique.map_or(input, |unique| unique.draw(&mut prng, input));
            let group = prng.below(self.groups.max(1));
            let shared = (input - unique) / self.block_tokens;
            let blocks = input.div_ceil(self.block_tokens);
            names.clear();
            names.extend((0..shared).map(|depth| name(group, depth)));
            names.extend((shared..blocks).map(|depth| name(request, depth) | 1 << 63));
            builder.push(at as u64, input, output, &names);
        }
        builder.finish()
    }
}

/// Lengths of a published trace's prompts and answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// Prompts.
    pub input: Length,
    /// Answers.
    pub output: Length,
}

impl Lengths {
    /// Azure's conversations of 2023 (Splitwise, ISCA '24): the moments of the file's 19,366 requests.
    pub const AZURE_CONVERSATION: Self =
        Self { input: Length { mean: 1_154.7, deviation: 1_108.8 }, output: Length { mean: 211.1, deviation: 162.9 } };
    /// BurstGPT (KDD '25): the means of its first file, which MLPerf Storage's KV cache benchmark states.
    /// Our assumption: deviations as large as the means.
    pub const BURSTGPT: Self =
        Self { input: Length { mean: 621.0, deviation: 621.0 }, output: Length { mean: 126.0, deviation: 126.0 } };
    /// BurstGPT's conversations without its API calls: the moments of the first 38 requests of its first
    /// file, failures left out.
    pub const BURSTGPT_CONVERSATION: Self =
        Self { input: Length { mean: 754.8, deviation: 584.7 }, output: Length { mean: 354.4, deviation: 262.6 } };
}

/// Number of prompts that CPEN 511 submits at once (§V-B, §VII).
pub const CPEN_PROMPTS: usize = 400;
/// Length of a prompt. The mean is the paper's two blocks of 16 tokens (§VII-C).
const CPEN_PROMPT: Length = Length { mean: 32.0, deviation: 12.0 };
/// Mean length of an answer, in tokens. An answer ends after each token with the same probability.
/// A running request then has 7.5 blocks on average (§VII-B): two for its prompt, and the rest for
/// 88 generated tokens. The mean age of a memoryless answer equals its mean length.
const CPEN_OUTPUT_MEAN: f64 = 88.0;
/// Longest answer, in tokens, as in vLLM's examples. Without a limit one request could exceed the
/// memory.
const CPEN_OUTPUT_MAX: u32 = 512;

/// CPEN 511's load, with all arrivals at 0. `scale` multiplies the lengths of answers.
#[must_use]
pub fn cpen(prompts: usize, scale: f64, seed: u64) -> Workload {
    let mut prng = Prng::new(seed);
    let mut builder = Builder::new(16);
    for _ in 0..prompts {
        let input = CPEN_PROMPT.draw(&mut prng, 96);
        let output = exponential(&mut prng, CPEN_OUTPUT_MEAN * scale).ceil() as u32;
        builder.push_alone(0, input, output.clamp(1, (f64::from(CPEN_OUTPUT_MAX) * scale) as u32));
    }
    builder.finish()
}
