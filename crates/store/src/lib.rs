//! Floor 3: moves KV blocks between an engine's own memory (L1), a shared region (L3), and a cold
//! tier that outlives the region (L4, [`cold`]).
//!
//! The engine uses only [`PrefixStore`]: match a prompt's prefix, load blocks into its pages, save
//! the blocks that it computed. Nothing here fails an engine: a block that is missing or damaged is
//! a miss.
#![forbid(unsafe_code)]

mod beside;
pub mod cold;
pub mod content;
mod encoding;
pub mod facts;
mod far;
mod misses;
pub mod mover;
mod names;
mod pending;
mod promoting;
mod region;
mod retained;
pub mod snapshot;
mod tenants;

pub use beside::{BlockCopy, Computing, Peers, Readable, Wanted, publish_copy, suits};
pub use cenote_cold::Promotion;
pub use encoding::{BlockCodec, PageFrame};
pub use misses::{MESSAGE as MISS_MESSAGE, Miss, Reason as MissReason};
pub use names::{Names, Naming};
pub use promoting::promote;
pub use region::{FRAMES, RegionStore};
pub use retained::Retained;
pub use tenants::Tenants;

use cenote_base::engine::Retain;
use cenote_base::{BlockHash, Health, TenantKey};
use std::collections::BTreeMap;

/// Identity of shareable KV. Engines share blocks only if all fields except `label` are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSpec {
    /// blake3 of the model's content: weights (and adapters), and every configuration value that
    /// changes KV.
    pub model_fingerprint: [u8; 32],
    /// The model's name, for display only.
    pub label: String,
    /// Element type of stored KV: `f32`, `bf16` or `f16`.
    pub dtype: String,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Layers in this shard; a block holds a K and a V page for each.
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

    /// The namespace of a tenant of this engine, in reports `MODEL/name`. Its fingerprint does not
    /// depend on the name.
    #[must_use]
    pub fn of_tenant(&self, key: TenantKey, name: &str) -> Self {
        let tenant_salt = key.namespace_salt(&self.tenant_salt);
        Self { label: label_of_tenant(&self.label, name), tenant_salt, ..self.clone() }
    }

    /// The fields that the fingerprint covers, by display name, for comparing two namespaces. The
    /// tenant salt appears only as a digest.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<String, String> {
        let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
        let salt = if self.tenant_salt.is_empty() { "none".to_owned() } else { digest(self.tenant_salt.as_bytes()) };
        let model = hex::encode(self.model_fingerprint);
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

    /// blake3 over every field except the label. Each field is preceded by its length, so that
    /// different specs never hash the same bytes.
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

/// Longest label of a row of a region, which cuts longer ones at their end.
const LABEL_BYTES: usize = 56;

/// `MODEL/name`. A long one has a short digest in place of the model's end, so that labels of two tenants, or
/// of tenants of two models, stay different.
fn label_of_tenant(model: &str, name: &str) -> String {
    let whole = format!("{model}/{name}");
    if whole.len() <= LABEL_BYTES {
        return whole;
    }
    let end = format!("~{}/{name}", &blake3::hash(model.as_bytes()).to_hex()[..6]);
    let begin = model.floor_char_boundary(LABEL_BYTES.saturating_sub(end.len()));
    format!("{}{end}", &model[..begin])
}

/// A block that an engine has computed.
#[derive(Clone, Copy)]
pub struct Computed<'a> {
    /// Its name.
    pub hash: BlockHash,
    /// Its index in the sequence.
    pub depth: u32,
    /// Its pages, as in [`PrefixStore::load`].
    pub pages: &'a [&'a [u8]],
}

/// A block copied whole out of the region, but not decoded yet. Threads may decode different pages
/// at the same time. Dropping it releases its memory.
pub trait PendingBlock: Send + Sync {
    /// Decodes page `page`, numbered as in [`PrefixStore::load`], into `bytes`. Returns `false` if
    /// it cannot be decoded. The block is then a miss, and none of its pages may be used.
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool;
}

/// Result of loading a block.
#[must_use]
pub enum Loaded {
    /// The block is gone, torn or damaged; the pages' content is undefined.
    Miss,
    /// The pages are filled.
    Whole,
    /// The pages are untouched; the caller decodes them from this block.
    Pending(Box<dyn PendingBlock>),
}

impl Loaded {
    /// Decodes the remaining pages. Returns whether the block is complete.
    pub fn finish(self, pages: &mut [&mut [u8]]) -> bool {
        match self {
            Self::Miss => false,
            Self::Whole => true,
            Self::Pending(block) => pages.iter_mut().enumerate().all(|(index, page)| block.decode(index, page)),
        }
    }
}

/// A block outside L1 that an engine reads part by part, perhaps in each step anew. Threads may read
/// at the same time. Dropping it releases what it holds of the region.
pub trait FarBlock: Send + Sync {
    /// Copies or decodes part `part` into `bytes`. Parts are numbered as the pages in
    /// [`PrefixStore::load`], or as the parts of pages that the engine asked for. Returns
    /// `false` if it is damaged or gone. The content of `bytes` is then undefined, and the engine
    /// recomputes the block. `around`: around the processor's caches, if it can, for bytes that are
    /// read so late that they would have left them.
    fn read(&self, part: usize, bytes: &mut [u8], around: bool) -> bool;

    /// Bytes that reading a part of `bytes` bytes moves: fewer, if it is encoded.
    fn moved_bytes(&self, _part: usize, bytes: usize) -> usize {
        bytes
    }

    /// Copies all parts. Returns `false` as [`Self::read`] does.
    fn read_all(&self, parts: &mut [&mut [u8]]) -> bool {
        parts.iter_mut().enumerate().all(|(index, part)| self.read(index, part, false))
    }
}

/// Shared KV as an engine uses it. Each engine thread has its own store. No method has a default: a store
/// around another one that forwards all but one would switch off what the one is for.
pub trait PrefixStore: Send {
    /// How blocks are named here. The methods below take names, so that a sequence is hashed once.
    fn naming(&self) -> Naming;

    /// The parts of tenants, which any thread may change; `None`: the store has none. Methods that take a
    /// tenant do nothing for one without a part.
    fn tenants(&self) -> Option<Box<dyn Tenants>>;

    /// Looks up the blocks of a sequence, given the names of all its full blocks. Returns how many of
    /// the first ones are here. Counts nothing: an engine asks for a waiting request in each step.
    fn match_prefix(&mut self, names: &[BlockHash]) -> usize;

    /// Counts what an admitted request has asked for, and the blocks found that the engine loads or fails
    /// to load. So the hits are at most the loads and failures.
    fn count_lookup(&mut self, blocks: usize, found: usize);

    /// Notes a request in the record of requests, once, with its tenant, the names of all its prompt's full
    /// blocks and the prompt's tokens. Returns its number for [`PrefixStore::record_answer`]; `None`: it is not in the
    /// record.
    fn record_request(&mut self, of: Option<TenantKey>, names: &[BlockHash], tokens: u32) -> Option<u64>;

    /// Notes that the answer to a recorded request has ended, after so many tokens.
    fn record_answer(&mut self, number: u64, tokens: u32);

    /// An admitted request lacks this block. A store with a log of misses says why.
    fn missed(&mut self, miss: Miss);

    /// Number of a sequence's blocks that a slower tier lists, plus one if peers or a tier without a list may
    /// have more: what they have is not known before they are asked, and bounded on its way by them. 0:
    /// [`PrefixStore::promote`] would copy nothing. Never waits.
    fn promotable(&self, of: Option<TenantKey>, names: &[BlockHash]) -> usize;

    /// Begins to copy the sequence's blocks that only a slower tier has into the store, where
    /// [`PrefixStore::match_prefix`] finds them. `None`: there is nothing to wait for. Never waits;
    /// the engine asks the promotion, and does not admit the request before it is over.
    fn promote(&mut self, of: Option<TenantKey>, names: &[BlockHash]) -> Option<Promotion>;

    /// A step computed the KV of so many prompt tokens in `ns`, with so many pairs of a token and one that it
    /// attends to: what a read from a slower tier saves.
    fn has_computed(&mut self, tokens: u64, pairs: u64, ns: u64);

    /// Copies block `hash` into `pages`: K then V of layer 0, K then V of layer 1, and so on,
    /// `page_bytes` each. An encoded block is only copied out and checked; the caller decodes it.
    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded;

    /// Publishes blocks of one sequence, in order, unless they are in the store already. Returns
    /// how many of the first blocks are in the store now. Fewer than all: there is no space for the
    /// next one, and the engine continues without sharing it.
    fn save_all(&mut self, of: Option<TenantKey>, blocks: &[Computed<'_>]) -> usize;

    /// Copies a full or partial block out, byte for byte, for this engine only. No other engine can
    /// find it. `None`: no space.
    fn swap_out(&mut self, of: Option<TenantKey>, parts: &[&[u8]]) -> Option<Box<dyn FarBlock>>;

    /// Block `hash` for reading part by part: the pages that [`Self::load`] would fill, each in
    /// `parts` equal parts of whole lines (64 bytes). It is protected from eviction if the store can.
    /// `None`: a miss.
    fn open(&mut self, hash: BlockHash, parts: usize) -> Option<Box<dyn FarBlock>>;

    /// Whether a saved block returns byte for byte.
    fn is_exact(&self) -> bool;

    /// Protects these blocks from eviction until [`PrefixStore::release`], or until `ttl_ms`
    /// milliseconds pass. A prefill worker holds the blocks of a request that it hands over.
    /// Returns a ticket.
    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64;

    /// Ends a hold; unknown tickets are ignored.
    fn release(&mut self, ticket: u64);

    /// Keeps the first blocks of a sequence from eviction as a client asked for, softly and within a limit
    /// ([`cenote_policy::retention`]). No time releases them. Never waits.
    fn retain(&mut self, of: Option<TenantKey>, names: &[BlockHash], retain: &Retain);

    /// Counters by Prometheus name (`pool_hits_total`, …).
    fn stats(&self) -> BTreeMap<String, f64>;

    /// Whether the store can match, load and save. The engine calls this with [`Self::stats`], and
    /// about once a second while it is idle, so it must not block.
    fn health(&self) -> Health;
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut NamespaceSpec);

    pub fn spec() -> NamespaceSpec {
        NamespaceSpec {
            model_fingerprint: [1; 32],
            label: "demo".to_owned(),
            dtype: "f32".to_owned(),
            block_tokens: 16,
            num_layers: 2,
            page_bytes: 128,
            page_layout: "k:[head]".to_owned(),
            shard: "0/1".to_owned(),
            tenant_salt: String::new(),
        }
    }

    #[test]
    fn every_fingerprint_change_shows_as_one_differing_fact() {
        let spec = spec();
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
