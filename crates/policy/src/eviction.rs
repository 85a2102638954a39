//! Which blocks leave the pool when it is full.
//!
//! A policy owns one opaque 64-bit word per block and a few shared words of its own ([`State`]). The words lie in
//! memory that all processes of a host map, or in a simulator's vector; the policy itself is a constant, so every
//! process decides alike.
//!
//! - A hit is a relaxed load, a pure function and at most one relaxed store. Nobody waits, and of two hits at
//!   once one may be lost, which costs accuracy and nothing else.
//! - Making room is rare and is done by one process at a time. It gets copies of the words and returns what it wants
//!   changed as *from → to*, so that the caller can compare and exchange: a hit that came meanwhile is kept.
//! - Shared words are handed over as atomics and not as `&mut`: a publisher asks for one bucket of the ghost table
//!   without any lock, and copying a table of millions of words to hand it over would cost more than the decision.
//! - Any bit pattern is a valid word and a valid state. Zeroed memory, another policy's words and lost stores
//!   give worse decisions, never a panic.
//!
//! Time is the number of lookups. What one lookup found and what is then published for it bear one instant, so an
//! instant names a prompt. A block without its predecessors can never be found again; therefore **among blocks of one
//! instant the deepest goes first**, in every policy. Where a policy keeps an order of its own (SIEVE's and S3-FIFO's
//! queues are ordered by arrival, and a prompt's head arrived first) its choice is taken as the choice of a *place*
//! in the queue: the deepest block of that instant leaves, and the chosen block moves to the place that became free.
//! With one block per instant that is exactly the published algorithm.
//!
//! What it does not give: a predecessor that another prompt touched later has another instant, and a queue ordered by
//! arrival may still drop it before its older successors. On an hour of public conversations (Mooncake) that happened
//! to at most four of 200,000 victims of S3-FIFO and to none of SIEVE's; by arrival alone, to one in a hundred of
//! S3-FIFO's. And a prompt whose publication other lookups interrupt bears several instants until it is found again,
//! under every policy; a caller that knows the instant of the prompt's own lookup should publish with that one.
//!
//! [`Plan`] takes victims one at a time from choices made ahead; for LRU that gives exactly what asking each time would.
//!
//! Which one: on that trace of 183,000 blocks S3-FIFO finds more than LRU in a pool of 4,096 blocks (11.5 % against
//! 8.7 %) and less in one of 16,384 (23 % against 26 %), where SIEVE finds 18 %; with 65,536 all find 36 %. Most likely
//! conversations that come back once after minutes look like a scan to both queues: the published algorithms, run on
//! the same blocks, find as little. The cost-aware one finds 9.6 %, 27.6 % and 36 % there. LRU is the default.

mod cost_aware;
mod lru;
mod plan;
mod s3_fifo;
mod sieve;
mod tails;
mod word;

pub use cost_aware::CostAware;
pub use lru::Lru;
pub use plan::Plan;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;

use cenote_base::BlockIndex;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicU64;

/// A policy's shared words: [`EvictionPolicy::state_words`] of them, zero at first.
pub type State = [AtomicU64];

/// A block that may be evicted: published, unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The block.
    pub block: BlockIndex,
    /// What the policy wrote last for it.
    pub word: u64,
    /// Its place in the sequence it belongs to: 0 is the first block of a prompt.
    pub depth: u32,
    /// 64 uniform bits of its hash, the same ones that [`EvictionPolicy::inserted`] gets.
    pub key: u64,
}

/// A word to change, if it still is what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Whose word.
    pub block: BlockIndex,
    /// What the candidate had.
    pub from: u64,
    /// What it should have.
    pub to: u64,
}

/// What making room came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Who leaves, the first to go first.
    pub victims: Vec<BlockIndex>,
    /// Words of blocks that stay.
    pub rewrites: Vec<Rewrite>,
}

/// Chooses victims. One conformance test runs for all implementations.
pub trait EvictionPolicy: Send + Sync {
    /// Name on command lines and in reports.
    fn name(&self) -> &'static str;

    /// Shared words needed for a pool of at most `num_blocks` blocks.
    fn state_words(&self, num_blocks: u64) -> usize;

    /// The word of a block that is published at `clock`. May run at any time, in any process.
    fn inserted(&self, clock: u64, key: u64, state: &State) -> u64;

    /// The word after a hit at `clock`; equal to `word` where there is nothing to store. Touching a block twice in one
    /// instant is one hit, and touching it in the instant of its publication is none.
    fn accessed(&self, word: u64, clock: u64) -> u64;

    /// Lookups since the block was last touched.
    fn idle(&self, word: u64, clock: u64) -> u64;

    /// Picks `want` of `candidates`, or all if there are fewer. Calls must not overlap. `clock` is best read after
    /// the words: words from its future count as new.
    ///
    /// Costs time in proportion to the candidates, with a logarithm only of those that are passed over.
    fn victims(&self, clock: u64, state: &State, candidates: &[Candidate], want: usize) -> Choice;
}

/// The policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Eviction {
    /// [`Lru`].
    #[default]
    Lru,
    /// [`Sieve`].
    Sieve,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`CostAware`].
    CostAware,
}

impl Eviction {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Sieve, Self::S3Fifo, Self::CostAware];

    /// The policy itself.
    #[must_use]
    pub const fn policy(self) -> &'static dyn EvictionPolicy {
        match self {
            Self::Lru => &Lru,
            Self::Sieve => &Sieve,
            Self::S3Fifo => &S3Fifo,
            Self::CostAware => &CostAware,
        }
    }

    /// Marks the blocks whose words these are as hit at `clock`, by loading and storing them. The policy is chosen once
    /// for all of them.
    #[inline]
    pub fn touch<W>(
        self,
        clock: u64,
        words: impl IntoIterator<Item = W>,
        load: impl Fn(&W) -> u64,
        store: impl Fn(&W, u64),
    ) {
        match self {
            Self::Lru => touch_all(&Lru, clock, words, load, store),
            Self::Sieve => touch_all(&Sieve, clock, words, load, store),
            Self::S3Fifo => touch_all(&S3Fifo, clock, words, load, store),
            Self::CostAware => touch_all(&CostAware, clock, words, load, store),
        }
    }
}

#[inline]
fn touch_all<W>(
    policy: &impl EvictionPolicy,
    clock: u64,
    words: impl IntoIterator<Item = W>,
    load: impl Fn(&W) -> u64,
    store: impl Fn(&W, u64),
) {
    for word in words {
        let known = load(&word);
        let touched = policy.accessed(known, clock);
        if touched != known {
            store(&word, touched);
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.policy().name())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEviction(String);

impl fmt::Display for UnknownEviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Eviction::ALL.iter().map(|eviction| eviction.policy().name()).collect();
        write!(f, "no eviction policy is called `{}`; there are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownEviction {}

impl FromStr for Eviction {
    type Err = UnknownEviction;

    fn from_str(name: &str) -> Result<Self, UnknownEviction> {
        let named = |eviction: &Self| eviction.policy().name() == name;
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownEviction(name.to_owned()))
    }
}

/// The rewrites that turn the candidates' words into `words`, for those that stay.
fn rewrites(candidates: &[Candidate], words: &[u64], mut gone: Vec<usize>) -> Vec<Rewrite> {
    gone.sort_unstable();
    let changed = candidates.iter().zip(words).enumerate().filter(|(_, (candidate, to))| candidate.word != **to);
    changed
        .filter(|(index, _)| gone.binary_search(index).is_err())
        .map(|(_, (candidate, &to))| Rewrite { block: candidate.block, from: candidate.word, to })
        .collect()
}

#[cfg(test)]
mod tests;
