//! Memory beside the region: regions of other hosts, which a promotion may copy from.

use crate::Promotion;
use crate::encoding::BlockCodec;
use crate::region::{COLD_FRAMES, FRAMES};
use cenote_base::BlockHash;
use cenote_mem::{Fabric, LINE};
use cenote_policy::fetch::{Missing, Prefill, Way};
use cenote_pool::{Names, Namespace, NewBlock, Pool, Publish};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which of the named blocks a request can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The leading ones: a block behind one that is nowhere is of no use.
    Leading,
    /// All that are found.
    All,
}

/// What computing the blocks would take that a request lacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Computing {
    /// Measured times.
    pub prefill: Prefill,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Tokens before the first missing block.
    pub before_tokens: u64,
}

impl Computing {
    /// So many missing blocks, behind `skipped` others that will be here.
    #[must_use]
    pub const fn missing(&self, skipped: usize, blocks: usize, block_bytes: u64) -> Missing {
        let before_tokens = self.before_tokens + skipped as u64 * self.block_tokens;
        Missing { blocks: blocks as u64, block_bytes, block_tokens: self.block_tokens, before_tokens }
    }
}

/// Other hosts' regions, as a store uses them. No call waits.
pub trait Peers: Send + Sync {
    /// Whether asking would reach a peer now. What peers hold is not known here.
    fn may_have(&self) -> bool;

    /// What the peer offers now that would be asked first for a sequence whose first missing block is this.
    /// `None`: no peer would be asked.
    fn way(&self, namespace: &Namespace, first: BlockHash) -> Option<Way>;

    /// Begins to seek blocks of one sequence at peers, as far as that takes less time than computing, and to
    /// publish in the region those that are wanted, found and readable. `None`: there is nothing to wait for.
    /// The promotion ends by its deadline, whatever the peers do.
    fn promote(
        &self,
        namespace: &Namespace,
        missing: &[BlockHash],
        readable: &Readable,
        wanted: Wanted,
        computing: &Computing,
    ) -> Option<Promotion>;

    /// Counters and gauges by Prometheus name, without prefix.
    fn stats(&self) -> BTreeMap<String, f64>;

    /// Why peers are not asked now; `None`: all are.
    fn trouble(&self) -> Option<String>;
}

/// Blocks that a store can read. Another one, published in the store's region, would be found, missed by
/// each load, and keep the store from publishing its own block under the name.
#[derive(Clone, Default)]
pub struct Readable(Option<Arc<BlockCodec>>);

impl Readable {
    /// Raw blocks, and those that the codec decodes.
    #[must_use]
    pub const fn of(codec: Option<Arc<BlockCodec>>) -> Self {
        Self(codec)
    }

    /// Whether payloads of this encoding may be readable: [`Readable::reads`] needs the payload.
    #[must_use]
    pub const fn may_read(&self, encoding: u8) -> bool {
        encoding == 0 || (self.0.is_some() && matches!(encoding, FRAMES | COLD_FRAMES))
    }

    /// Whether a payload is readable: it is raw, or frames of the codec's pages, codecs and profiles.
    #[must_use]
    pub fn reads(&self, encoding: u8, payload: &[u8]) -> bool {
        self.may_read(encoding) && self.0.as_ref().is_none_or(|codec| encoding == 0 || codec.split(payload).is_ok())
    }
}

/// A copy of a block of another tier or host.
#[derive(Clone, Copy, Debug)]
pub struct BlockCopy {
    /// The block's name.
    pub hash: BlockHash,
    /// Its number in its sequence.
    pub depth: u32,
    /// Encoding of its payload.
    pub encoding: u8,
    /// Names by which other programs know it.
    pub names: Names,
}

/// Publishes a copy. False: it does not suit its namespace, or there is no room.
pub fn publish_copy<F: Fabric>(pool: &Pool<F>, namespace: &Namespace, copy: &BlockCopy, payload: &[u8]) -> bool {
    if !suits(namespace, copy.encoding, payload.len() as u64) {
        return false;
    }
    let new =
        NewBlock { encoding: copy.encoding, names: copy.names, ..NewBlock::new(namespace, copy.hash, copy.depth) };
    matches!(pool.publish(&new, &[payload]), Publish::Published | Publish::Duplicate)
}

/// Whether a payload of this encoding and length suits its namespace, so that publishing it is no mistake.
#[must_use]
pub fn suits(namespace: &Namespace, encoding: u8, length: u64) -> bool {
    match encoding {
        0 => length == namespace.block_bytes,
        _ => length > 0 && length <= namespace.block_bytes && length.is_multiple_of(LINE),
    }
}
