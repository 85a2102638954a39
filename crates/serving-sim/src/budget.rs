//! A host whose local memory holds two caches before a slower pool: KV blocks, and rows of n-gram
//! tables. The pool has all blocks that were published and all rows, so a miss costs the link's time.
//!
//! [`cenote_policy::budget`] divides the memory, or a fixed share does. All other things are equal:
//! both caches are LRU, reading local memory costs nothing, and nothing hides the link's time. So the
//! result is the time that the link is busy, an upper bound of what requests wait.
//!
//! A token computed, not loaded, reads two n-grams: of orders 2 and 3. An n-gram has a row in each head
//! of each layer with a table. These rows are always read together, so they are one entry of the
//! cache. One entry in [`Setup::thinning`] is simulated, chosen by its hash, and stands for so many of
//! them.

mod load;

pub use load::{Job, MixedLoad};

use crate::cache::BlockCache;
use crate::model::{Link, NIAGARA};
use cenote_base::prng::Prng;
use cenote_policy::Eviction;
use cenote_policy::budget::{Arbiter, Share, UNITS};
use serde::Serialize;

/// Consumers of the budget, in the order of [`Arbiter`]'s caches.
const KV: usize = 0;
const ROWS: usize = 1;
/// Orders of n-grams: 2 and 3.
const ORDERS: u64 = 2;
/// Bytes of a row's tag and age in the product's cache (`tables/src/hot.rs`).
const TAG_BYTES: u64 = 9;

/// The host, its model and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// Bytes that both caches share.
    pub budget_bytes: u64,
    /// Bytes of a token's KV.
    pub kv_token_bytes: u64,
    /// Rows that a head's table has.
    pub rows_per_head: u64,
    /// Rows of an n-gram: heads times layers.
    pub rows_per_ngram: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Exponent of Zipf's law by which n-grams are drawn.
    pub zipf: f64,
    /// Number of different n-grams of an order.
    pub ngrams: u64,
    /// The link to the pool.
    pub link: Link,
    /// Row reads in flight, which share the latency.
    pub outstanding: u64,
    /// Entries of rows that one simulated entry stands for.
    pub thinning: u64,
    /// Tokens after which the arbiter decides.
    pub period_tokens: u64,
    /// Seed of the n-grams.
    pub seed: u64,
}

impl Setup {
    /// Engram-40B's tables ("Conditional Memory via Scalable Lookup" §5.2: 7,239,680 rows per head, 8
    /// heads, layers 2 and 15, 160 values of 16 bits) beside the KV of a model of 30 layers with
    /// latent attention (512 and 64 values of 16 bits a token and layer, as DeepSeek-V3), before
    /// TraCT's Niagara 2.0 (§5.1). Our assumptions: 16 row reads in flight, 134 million n-grams of each
    /// order drawn by Zipf's law with exponent 1.
    #[must_use]
    pub const fn engram_40b(budget_bytes: u64, seed: u64) -> Self {
        Self {
            budget_bytes,
            kv_token_bytes: 30 * (512 + 64) * 2,
            rows_per_head: 7_239_680,
            rows_per_ngram: 8 * 2,
            row_bytes: 320,
            zipf: 1.0,
            ngrams: 1 << 27,
            link: NIAGARA,
            outstanding: 16,
            thinning: 16,
            period_tokens: 1 << 19,
            seed,
        }
    }

    /// Bytes of a simulated entry of rows.
    #[must_use]
    pub const fn entry_bytes(&self) -> u64 {
        self.thinning * self.rows_per_ngram * (self.row_bytes + TAG_BYTES)
    }

    /// Nanoseconds of the link to read a simulated entry of rows.
    #[must_use]
    pub const fn entry_ns(&self) -> u64 {
        let rows = self.thinning * self.rows_per_ngram;
        let bytes = (rows * self.row_bytes) as u128 * 1_000_000_000 / self.link.bytes_per_s as u128;
        bytes as u64 + rows * self.link.latency_ns / self.outstanding
    }
}

/// The division of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Division {
    /// KV has this percentage.
    Fixed(u64),
    /// The arbiter divides, from halves on.
    Arbiter,
}

/// The division at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Requests before it.
    pub requests: usize,
    /// Share of KV.
    pub kv_share: f64,
}

/// What a load cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The division.
    pub division: Division,
    /// Tokens served: of prompts and of answers.
    pub tokens: u64,
    /// Nanoseconds of the link for KV blocks.
    pub kv_ns: u64,
    /// Nanoseconds of the link for rows.
    pub rows_ns: u64,
    /// Blocks that the pool or the local cache had.
    pub reused_blocks: u64,
    /// Of them, those in the local cache.
    pub kv_hits: u64,
    /// Simulated entries of rows that were read.
    pub ngrams: u64,
    /// Of them, those in the local cache.
    pub row_hits: u64,
    /// Changes of the division.
    pub moves: u64,
    /// The division over time: at the start, and after each change.
    pub shares: Vec<Point>,
}

impl Outcome {
    /// Nanoseconds of the link per token.
    #[must_use]
    pub fn ns_per_token(&self) -> f64 {
        (self.kv_ns + self.rows_ns) as f64 / self.tokens.max(1) as f64
    }
}

/// Serves a load.
#[must_use]
pub fn serve(setup: &Setup, load: &MixedLoad, division: Division) -> Outcome {
    let mut host = Host::new(setup, load, division);
    for (at, job) in load.jobs().iter().enumerate() {
        if let Some(split) = host.job(job, load.blocks(job), load.ngrams(at)) {
            host.resize(split);
            let kv_share = split[KV] as f64 / setup.budget_bytes.max(1) as f64;
            host.outcome.shares.push(Point { requests: at + 1, kv_share });
        }
    }
    host.outcome.moves = host.arbiter.as_ref().map_or(0, Arbiter::moves);
    host.outcome
}

struct Host<'a> {
    setup: &'a Setup,
    block_bytes: u64,
    block_tokens: u64,
    block_ns: u64,
    kv: BlockCache,
    rows: BlockCache,
    /// Blocks that the pool has.
    published: Vec<bool>,
    arbiter: Option<Arbiter<2>>,
    instant: u64,
    outcome: Outcome,
}

impl<'a> Host<'a> {
    fn new(setup: &'a Setup, load: &MixedLoad, division: Division) -> Self {
        let block_tokens = u64::from(load.block_tokens());
        let block_bytes = block_tokens * setup.kv_token_bytes;
        let half = UNITS / 2;
        let arbiter = (division == Division::Arbiter).then(|| {
            let kv = Share { entry_bytes: block_bytes, units: half };
            let rows = Share { entry_bytes: setup.entry_bytes(), units: UNITS - half };
            Arbiter::new(setup.budget_bytes, setup.period_tokens, [kv, rows])
        });
        let kv_bytes = match division {
            Division::Fixed(percent) => setup.budget_bytes / 100 * percent,
            Division::Arbiter => setup.budget_bytes / 2,
        };
        let kv_share = kv_bytes as f64 / setup.budget_bytes.max(1) as f64;
        let mut host = Self {
            setup,
            block_bytes,
            block_tokens,
            block_ns: setup.link.time(block_bytes),
            kv: BlockCache::new(Eviction::Lru, Some(0), load.num_blocks()),
            rows: BlockCache::new(Eviction::Lru, Some(0), load.num_entries()),
            published: vec![false; load.num_blocks()],
            arbiter,
            instant: 0,
            outcome: Outcome {
                division,
                tokens: 0,
                kv_ns: 0,
                rows_ns: 0,
                reused_blocks: 0,
                kv_hits: 0,
                ngrams: 0,
                row_hits: 0,
                moves: 0,
                shares: vec![Point { requests: 0, kv_share }],
            },
        };
        host.resize([kv_bytes, setup.budget_bytes - kv_bytes]);
        host
    }

    fn resize(&mut self, [kv, rows]: [u64; 2]) {
        self.kv.resize((kv / self.block_bytes) as usize, self.instant);
        self.rows.resize((rows / self.setup.entry_bytes()) as usize, self.instant);
    }

    /// Serves a request. Returns the new division if it changes.
    fn job(&mut self, job: &Job, blocks: &[u32], ngrams: &[u32]) -> Option<[u64; 2]> {
        let reused = blocks.iter().take_while(|&&block| self.published[block as usize]).count();
        let local = blocks[..reused].iter().filter(|&&block| self.kv.contains(block)).count();
        self.outcome.reused_blocks += reused as u64;
        self.outcome.kv_hits += local as u64;
        self.outcome.kv_ns += (reused - local) as u64 * self.block_ns;
        self.instant += 1;
        for (depth, &block) in (0..).zip(blocks) {
            self.kv.touch(block, depth, self.instant);
            self.published[block as usize] = true;
        }
        let tokens = u64::from(job.input_tokens) + u64::from(job.output_tokens);
        let computed = tokens - (reused as u64 * self.block_tokens).min(u64::from(job.input_tokens));
        // The load has n-grams for all tokens; a loaded token reads none.
        let read = (ngrams.len() as u64 * computed).div_ceil(tokens) as usize;
        for &entry in &ngrams[..read] {
            self.instant += 1;
            let is_hit = self.rows.touch(entry, 0, self.instant);
            self.outcome.row_hits += u64::from(is_hit);
            self.outcome.rows_ns += if is_hit { 0 } else { self.setup.entry_ns() };
        }
        self.outcome.ngrams += read as u64;
        self.outcome.tokens += tokens;
        let arbiter = self.arbiter.as_mut()?;
        // A block that is new to the pool saves nothing: no cache has it.
        blocks.iter().enumerate().rev().for_each(|(depth, &block)| {
            arbiter.record(KV, u64::from(block), if depth < reused { self.block_ns } else { 0 });
        });
        ngrams[..read].iter().for_each(|&entry| arbiter.record(ROWS, u64::from(entry), self.setup.entry_ns()));
        arbiter.serve(tokens)
    }
}

/// The n-grams of a load's tokens, as numbers of simulated entries.
struct Ngrams {
    setup: Setup,
    prng: Prng,
    /// Zipf's distribution with exponent *s* has about the inverse `((1 − u) + u · n^(1−s))^(1/(1−s))`.
    power: f64,
}

impl Ngrams {
    fn new(setup: &Setup) -> Self {
        Self { setup: *setup, prng: Prng::new(setup.seed), power: 1.0 - setup.zipf }
    }

    /// Number of different entries.
    const fn num_entries(setup: &Setup) -> u64 {
        ORDERS * setup.rows_per_head.div_ceil(setup.thinning)
    }

    /// Draws the n-grams of so many tokens and appends the simulated ones.
    fn draw(&mut self, tokens: u64, to: &mut Vec<u32>) {
        let Setup { rows_per_head, thinning, ngrams, .. } = self.setup;
        for at in 0..tokens * ORDERS {
            let uniform = self.prng.next_f64();
            let rank = if self.power.abs() < 1e-9 {
                (ngrams as f64).powf(uniform)
            } else {
                uniform.mul_add((ngrams as f64).powf(self.power) - 1.0, 1.0).powf(1.0 / self.power)
            };
            let order = at % ORDERS;
            let row = Prng::at(order, rank as u64).below(rows_per_head);
            if row.is_multiple_of(thinning) {
                to.push((order * rows_per_head.div_ceil(thinning) + row / thinning) as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests;
