//! Floor 3: moves KV blocks between an engine's own memory (L1) and a shared region (L3).
//!
//! The engine sees [`PrefixStore`] only: match a prompt's prefix, load blocks into its pages, save the
//! blocks it computed. Nothing here can fail an engine: what is not there, or not whole, is a miss.
#![forbid(unsafe_code)]

pub mod content;
mod encoding;
mod pending;
mod region;

pub use encoding::{BlockCodec, PageFrame};
pub use region::{FRAMES, RegionStore};

use cenote_base::{BlockHash, CacheSalt, Health, TokenId};
use std::collections::BTreeMap;

/// What makes two engines able to share KV: equal in every field, or they never see each other's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSpec {
    /// blake3 of the model's content: weights (and adapters), and every config value that changes KV.
    pub model_fingerprint: [u8; 32],
    /// For people: the model's name.
    pub label: String,
    /// Element type of stored KV: `f32`, `bf16` or `f16`.
    pub dtype: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Layers of this shard; a block holds a K and a V page for each.
    pub num_layers: u32,
    /// Bytes of one page (one layer's K *or* V part of a block); a multiple of 64.
    pub page_bytes: u32,
    /// Name of the order of values within a page, e.g. `k:[head][dim][token] v:[head][token][dim]`.
    pub page_layout: String,
    /// `rank/size` of the tensor-parallel shard, `0/1` when not sharded.
    pub shard: String,
    /// Tenants with different salts never share a block.
    pub tenant_salt: String,
}

impl NamespaceSpec {
    /// Payload bytes of a block: a K and a V page for each layer.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.num_layers as u64 * 2 * self.page_bytes as u64
    }

    /// What the fingerprint covers, by name, for people who compare two of them. The tenant salt is named by a digest.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<String, String> {
        let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
        let salt = if self.tenant_salt.is_empty() { "none".to_owned() } else { digest(self.tenant_salt.as_bytes()) };
        let model: String = self.model_fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        [
            ("made by", "cenote serve, names v1".to_owned()),
            ("model", model),
            ("dtype", self.dtype.clone()),
            ("block tokens", self.block_tokens.to_string()),
            ("layers", self.num_layers.to_string()),
            ("page bytes", self.page_bytes.to_string()),
            ("page layout", self.page_layout.clone()),
            ("shard", self.shard.clone()),
            ("tenant salt", salt),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// blake3 over every field but the label, each with its length, so that no two specs run together.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let numbers = [self.block_tokens, self.num_layers, self.page_bytes].map(u32::to_le_bytes).concat();
        for field in [
            b"cenote namespace v1".as_slice(),
            &self.model_fingerprint,
            self.dtype.as_bytes(),
            &numbers,
            self.page_layout.as_bytes(),
            self.shard.as_bytes(),
            self.tenant_salt.as_bytes(),
        ] {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        *hasher.finalize().as_bytes()
    }
}

/// The prefix of a prompt that the region holds.
#[derive(Clone, Debug, Default)]
pub struct PrefixMatch {
    /// Hashes of all full blocks of the prompt.
    pub hashes: Vec<BlockHash>,
    /// How many of them, from the first, were found.
    pub num_matched: usize,
}

/// A block on its way into an engine's pages: out of the region and whole, not decoded yet. Threads may decode pages of one
/// block at the same time. Dropping it gives its memory back.
pub trait PendingBlock: Send + Sync {
    /// Decodes page `page` of the block, counted as in [`PrefixStore::load`], into `bytes`. `false`: it cannot be decoded, so
    /// the block counts as a miss and none of its pages may be used.
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool;
}

/// What loading a block came to.
#[must_use]
pub enum Loaded {
    /// Gone, torn or damaged; the pages' content is undefined.
    Miss,
    /// The pages are filled.
    Whole,
    /// The pages are untouched, and to be decoded from this.
    Pending(Box<dyn PendingBlock>),
}

impl Loaded {
    /// Fills the pages now, whatever is left to do. Returns whether the block is there.
    pub fn finish(self, pages: &mut [&mut [u8]]) -> bool {
        match self {
            Self::Miss => false,
            Self::Whole => true,
            Self::Pending(block) => pages.iter_mut().enumerate().all(|(index, page)| block.decode(index, page)),
        }
    }
}

/// A block that an engine has swapped out. Nobody else can find it. Dropping it gives its memory back.
pub trait SwappedBlock: Send {
    /// Copies it back into pages as they were given to [`PrefixStore::swap_out`]. `false`: it is not what it was, the pages' content is
    /// undefined, and the engine computes the block again.
    fn swap_in(&self, pages: &mut [&mut [u8]]) -> bool;
}

/// Shared KV as an engine uses it. One value per engine thread.
pub trait PrefixStore: Send {
    /// What takes the place of the first block's parent in requests with this salt.
    fn root(&self, salt: &CacheSalt) -> BlockHash;

    /// Hashes the full blocks of `tokens`, below the [`root`](Self::root) of the request's salt if it has one, and looks
    /// all of them up.
    fn match_prefix(&mut self, root: Option<BlockHash>, tokens: &[TokenId]) -> PrefixMatch;

    /// Copies block `hash` into `pages`: K then V of layer 0, K then V of layer 1, and so on, each of
    /// `page_bytes`. A block that is stored encoded is only copied out and checked; decoding it is left to the caller.
    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded;

    /// Publishes a block, block number `depth` of its sequence, unless it is there already. `false` when there was
    /// no room; the engine goes on without.
    fn save(&mut self, hash: BlockHash, depth: u32, pages: &[&[u8]]) -> bool;

    /// Copies a block out for this engine alone, byte for byte, whole or in the making. `None`: there is no room.
    fn swap_out(&mut self, pages: &[&[u8]]) -> Option<Box<dyn SwappedBlock>>;

    /// Hash of the full block `tokens` that follows `parent`: a block, or the root of a salt.
    fn block_hash(&self, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash;

    /// Keeps these blocks from being evicted until [`PrefixStore::release`] or `ttl_ms` passes: a prefill
    /// worker does so for a request it hands over. Returns a ticket.
    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64;

    /// Ends a hold; unknown tickets are ignored.
    fn release(&mut self, ticket: u64);

    /// Counters by Prometheus name (`pool_hits_total`, …).
    fn stats(&self) -> BTreeMap<String, f64>;

    /// Whether the store can still match, load and save. The engine asks with the counters, and about
    /// once a second while it is idle; the answer must not wait.
    fn health(&self) -> Health {
        Health::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut NamespaceSpec);

    #[test]
    fn one_fact_differs_wherever_the_fingerprint_does() {
        let spec = NamespaceSpec {
            model_fingerprint: [1; 32],
            label: "demo".to_owned(),
            dtype: "f32".to_owned(),
            block_tokens: 16,
            num_layers: 2,
            page_bytes: 128,
            page_layout: "k:[head]".to_owned(),
            shard: "0/1".to_owned(),
            tenant_salt: String::new(),
        };
        let changes: [(&str, Change); 8] = [
            ("model", |spec| spec.model_fingerprint[31] = 2),
            ("dtype", |spec| spec.dtype.push('x')),
            ("block tokens", |spec| spec.block_tokens += 1),
            ("layers", |spec| spec.num_layers += 1),
            ("page bytes", |spec| spec.page_bytes += 64),
            ("page layout", |spec| spec.page_layout.push('x')),
            ("shard", |spec| spec.shard.push('x')),
            ("tenant salt", |spec| spec.tenant_salt.push_str("a secret")),
        ];
        for (name, change) in changes {
            let mut other = spec.clone();
            change(&mut other);
            assert_ne!(other.fingerprint(), spec.fingerprint(), "{name}");
            let (one, other) = (spec.facts(), other.facts());
            let differing: Vec<&String> = one.keys().filter(|name| one[*name] != other[*name]).collect();
            assert_eq!(differing, [name]);
            assert!(!other.values().any(|value| value.contains("a secret")));
        }
        let renamed = NamespaceSpec { label: "other".to_owned(), ..spec.clone() };
        assert_eq!((renamed.facts(), renamed.fingerprint()), (spec.facts(), spec.fingerprint()));
    }
}
