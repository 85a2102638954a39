//! Loads that are drawn: Poisson arrivals, TraCT's workloads, CPEN 511's prompts.

use super::draw::{Length, exponential};
use super::{Builder, Workload};
use cenote_base::prng::Prng;

const SECOND_NS: f64 = 1e9;
/// Longest drawn prompt or answer.
const DRAWN_MAX: u32 = 131_072;

/// Requests that come as a Poisson process; of each prompt a part is shared with the others of its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// How many.
    pub requests: usize,
    /// Requests a second; 0: all at once.
    pub rate: f64,
    /// Tokens of a prompt.
    pub input: Length,
    /// Tokens of an answer.
    pub output: Length,
    /// Tokens at the end of a prompt that no other has; `None`: all of them.
    pub unique: Option<Length>,
    /// Groups whose prompts begin alike, equally popular.
    pub groups: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
}

impl Synthetic {
    /// TraCT §5.1, Table 1: the workloads A, B and C, from Dynamo's generator with vLLM's blocks of 16 tokens. They differ in
    /// what prompts do not share. The paper does not say among how many groups: 64 here.
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

    /// Draws the requests.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Workload {
        let mut prng = Prng::new(seed);
        let mut builder = Builder::new(self.block_tokens);
        let (mut at, mut names) = (0.0, Vec::new());
        // Names of shared blocks are (group, depth), of the others (request, depth) with the highest bit set.
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

/// CPEN 511 §V-B, §VII: the prompts that are fed in at once.
pub const CPEN_PROMPTS: usize = 400;
/// Mean of a prompt: the paper's two blocks of 16 tokens (§VII-C).
const CPEN_PROMPT: Length = Length { mean: 32.0, deviation: 12.0 };
/// Mean of an answer, which ends at random after any token. With it a request that runs has 7.5 blocks on average (§VII-B): the two
/// of its prompt, and 88 tokens, because an answer without memory is on average as old as it will be.
const CPEN_OUTPUT_MEAN: f64 = 88.0;
/// vLLM's examples end an answer there at the latest; some end is needed, or one request could outgrow the memory.
const CPEN_OUTPUT_MAX: u32 = 512;

/// CPEN 511's load, all at once; `scale` stretches answers.
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
