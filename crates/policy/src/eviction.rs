//! Selects the blocks that leave the pool when it is full.
//!
//! A policy owns one opaque 64-bit word per block, and a few shared words ([`State`]). The words
//! lie in memory that all processes of a host map, or in a simulator's vector. The policy itself is
//! a constant, so every process decides alike.
//!
//! - A hit is a relaxed load, a pure function and at most one relaxed store. Hits never wait. Of
//!   two concurrent hits one may be lost, which costs accuracy only.
//! - Making room is rare, and one process does it at a time. The policy gets copies of the words
//!   and returns changes as *from → to*. The caller applies them with compare-and-exchange, so that
//!   a concurrent hit is kept.
//! - Shared words are passed as atomics, not as `&mut`. A publisher reads one bucket of the ghost
//!   table without a lock, and copying a table of millions of words would cost more than the
//!   decision.
//! - Any bit pattern is a valid word and a valid state. Zeroed memory, another policy's words and
//!   lost stores give worse decisions, never a panic.
//!
//! Time is the number of lookups. The blocks that one lookup finds, and the blocks that are then
//! published for it, carry the same instant, so an instant identifies a prompt. A block without its
//! predecessors can never be found again. Therefore **among blocks of one instant the deepest goes
//! first**, in every policy. The queues of SIEVE and S3-FIFO are ordered by arrival, and a prompt's
//! head arrived first. There, the policy's choice is read as a *place* in the queue. The deepest
//! block of that instant leaves, and the chosen block moves to the freed place. With one block per
//! instant this is exactly the published algorithm.
//!
//! Limits: a predecessor that another prompt touched later has another instant, and a queue ordered
//! by arrival may still drop it before its older successors. On an hour of public conversations
//! (Mooncake) that happened to at most four of 200,000 victims of S3-FIFO and to none of SIEVE's.
//! By arrival alone, it happened to one in a hundred of S3-FIFO's. A prompt with a publication that
//! other lookups interrupt carries several instants until the next lookup finds it, under every
//! policy. A caller that knows the instant of the prompt's own lookup should publish with that
//! instant.
//!
//! [`Plan`] hands out victims one at a time from choices made ahead. For LRU the result equals
//! choosing anew each time.
//!
//! Which policy: on that trace of 183,000 blocks, hit ratios by pool size are:
//!
//! - 4,096 blocks: S3-FIFO 11.5 %, LRU 8.7 %, cost-aware 9.6 %.
//! - 16,384 blocks: S3-FIFO 23 %, LRU 26 %, SIEVE 18 %, cost-aware 27.6 %.
//! - 65,536 blocks: 36 % for all.
//!
//! Conversations that return once after minutes probably look like a scan to both queues: the
//! published algorithms find as little on the same blocks. LRU is the default.

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

/// A policy's shared words: [`EvictionPolicy::state_words`] of them, initially zero.
pub type State = [AtomicU64];

/// One eviction evicts one in this many blocks, so that the walk over all of them is rare.
const BATCH_SHARE: usize = 64;

/// Number of victims that one eviction asks a policy for: a share of `blocks`, at least 1.
#[must_use]
pub const fn batch(blocks: usize) -> usize {
    if blocks < 2 * BATCH_SHARE { 1 } else { blocks / BATCH_SHARE }
}

/// A block that may be evicted: published and unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The block.
    pub block: BlockIndex,
    /// The word that the policy last stored for it.
    pub word: u64,
    /// Index of the block in its sequence; 0 is the first block of a prompt.
    pub depth: u32,
    /// 64 uniform bits of the block's hash, the same bits that [`EvictionPolicy::inserted`] gets.
    pub key: u64,
}

/// A change of a word, to apply only if the word is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The block of the word.
    pub block: BlockIndex,
    /// The candidate's word.
    pub from: u64,
    /// The new word.
    pub to: u64,
}

/// Result of making room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Blocks to evict, in order.
    pub victims: Vec<BlockIndex>,
    /// Changed words of blocks that stay.
    pub rewrites: Vec<Rewrite>,
}

/// Chooses victims. One conformance test runs for all implementations.
pub trait EvictionPolicy: Send + Sync {
    /// Name on command lines and in reports.
    fn name(&self) -> &'static str;

    /// Number of shared words for a pool of at most `num_blocks` blocks.
    fn state_words(&self, num_blocks: u64) -> usize;

    /// The word of a block that is published at `clock`. May run at any time, in any process.
    fn inserted(&self, clock: u64, key: u64, state: &State) -> u64;

    /// The word after a hit at `clock`; equal to `word` if there is nothing to store. Two touches
    /// in one instant are one hit. A touch in the instant of publication is no hit.
    fn accessed(&self, word: u64, clock: u64) -> u64;

    /// Number of lookups since the last touch of the block.
    fn idle(&self, word: u64, clock: u64) -> u64;

    /// Age of the block, in lookups: of blocks on different hosts or in chunks of different classes,
    /// the oldest leave first. A policy that keeps some blocks for longer counts them younger.
    fn age(&self, word: u64, clock: u64) -> u64 {
        self.idle(word, clock)
    }

    /// Whether blocks leave in the order of their ages. Then hosts whose oldest blocks are equally old
    /// evict like one.
    fn evicts_by_age(&self) -> bool {
        false
    }

    /// Picks `want` of `candidates`, or all if there are fewer. Calls must not overlap. Callers
    /// should read `clock` after the words: words from its future count as new.
    ///
    /// Takes time linear in the candidates, plus a logarithm for each candidate that is passed
    /// over.
    fn victims(&self, clock: u64, state: &State, candidates: &[Candidate], want: usize) -> Choice;
}

/// Declares the policies: each has a type of its own and its number in a region's superblock
/// (`docs/internals/format.md`), which never changes.
macro_rules! policies {
    ($first:ident = 0, $($name:ident = $number:literal,)*) => {
        /// The policies, by their numbers in a region's superblock. The first is the default.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Eviction {
            #[doc = concat!("[`", stringify!($first), "`].")]
            #[default]
            $first = 0,
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name = $number,)*
        }

        impl Eviction {
            /// Every policy.
            pub const ALL: [Self; [0, $($number),*].len()] = [Self::$first, $(Self::$name),*];

            /// The policy itself.
            #[must_use]
            pub const fn policy(self) -> &'static dyn EvictionPolicy {
                match self {
                    Self::$first => &$first,
                    $(Self::$name => &$name,)*
                }
            }

            /// Marks blocks as hit at `clock`, by loading and storing their words. Dispatches on the policy
            /// once for all words.
            #[inline]
            pub fn touch<W>(
                self,
                clock: u64,
                words: impl IntoIterator<Item = W>,
                load: impl Fn(&W) -> u64,
                store: impl Fn(&W, u64),
            ) {
                match self {
                    Self::$first => touch_all(&$first, clock, words, load, store),
                    $(Self::$name => touch_all(&$name, clock, words, load, store),)*
                }
            }
        }
    };
}

policies! {
    Lru = 0,
    Sieve = 1,
    S3Fifo = 2,
    CostAware = 3,
}

impl Eviction {
    /// The policy with this number in a superblock.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|eviction| *eviction as u64 == number)
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

/// Rewrites that turn the candidates' words into `words`, except for the candidates in `gone`.
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
