//! The identity of a token block: a chained, keyed 128-bit hash (TraCT §4.2).
//!
//! `h_i = H(key, h_{i-1}, tokens_i)`: within a namespace, equal hashes mean equal tokens from the
//! first one on. The key is derived from the region's seed and the namespace's fingerprint. Two
//! namespaces therefore never name the same block, and names cannot be guessed without the salt.

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Region-wide secret from which the hash keys of all namespaces are derived. Stored in the
/// superblock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSeed(pub [u8; 32]);

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashSeed({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// Identity of one token block. Never all zero: zero marks an empty descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockHash(pub [u8; 16]);

impl BlockHash {
    /// The hash as two little-endian words, as a descriptor stores it.
    #[must_use]
    #[inline]
    pub fn words(self) -> [u64; 2] {
        let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes of sixteen"));
        [word(&self.0[..8]), word(&self.0[8..])]
    }

    /// The inverse of its text: 32 hex digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).ok().map(|()| Self(bytes))
    }

    /// The inverse of [`BlockHash::words`].
    #[must_use]
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        Self(bytes)
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Separates the KV of requests with equal tokens: vLLM's `cache_salt` combined with the salt of
/// the request's API key. A digest of both, so that no message carries a client's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSalt([u8; 32]);

impl CacheSalt {
    /// Digest of the salts of an API key and a request. Returns `None` without either: such
    /// requests share KV with each other.
    #[must_use]
    pub fn of(key: Option<&str>, request: Option<&str>) -> Option<Self> {
        if key.is_none() && request.is_none() {
            return None;
        }
        let mut hasher = blake3::Hasher::new_derive_key("cenote cache salt v1");
        for part in [key, request] {
            // The length separates ("a", "bc") from ("ab", "c"), and a missing part from an empty
            // one.
            hasher.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            hasher.update(part.unwrap_or_default().as_bytes());
        }
        Some(Self(*hasher.finalize().as_bytes()))
    }
}

/// Names the part of a region that a tenant has: a digest of its salt, so that no message carries
/// the salt. Tenants of equal salts have one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TenantKey([u8; 32]);

impl TenantKey {
    /// The key of tenants with this salt.
    #[must_use]
    pub fn of_salt(salt: &str) -> Self {
        Self(blake3::derive_key("cenote tenant salt v1", salt.as_bytes()))
    }

    /// The key of the tenant with this name and no salt. No salt has this key.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        Self(blake3::derive_key("cenote tenant name v1", name.as_bytes()))
    }

    /// The salt of the tenant's namespace, of an engine whose own namespace has `engine_salt`.
    #[must_use]
    pub fn namespace_salt(&self, engine_salt: &str) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("cenote tenant namespace v1");
        hasher.update(&self.0);
        hasher.update(engine_salt.as_bytes());
        hasher.finalize().to_hex().to_string()
    }
}

/// Computes the chain of block hashes of token sequences within one namespace.
#[derive(Clone)]
pub struct ChainHasher {
    key: [u8; 32],
    /// Hashes that this hasher and its clones have computed.
    computed: Arc<AtomicU64>,
}

impl ChainHasher {
    /// The hasher of the namespace with this fingerprint, which already covers the tenant salt.
    #[must_use]
    pub fn new(seed: &HashSeed, namespace_fingerprint: &[u8; 32]) -> Self {
        let mut keyed = blake3::Hasher::new_keyed(&seed.0);
        keyed.update(b"cenote block hash v1");
        keyed.update(namespace_fingerprint);
        Self { key: *keyed.finalize().as_bytes(), computed: Arc::default() }
    }

    /// Number of hashes that this hasher and its clones have computed. A prompt's names cost more
    /// than its lookup, so they are computed once, and a test counts them.
    #[must_use]
    pub fn computed(&self) -> u64 {
        self.computed.load(Ordering::Relaxed)
    }

    /// Hash of the block `tokens` after `parent` (`None`: the first block of a sequence).
    #[must_use]
    pub fn block(&self, parent: Option<BlockHash>, tokens: &[TokenId]) -> BlockHash {
        let mut keyed = blake3::Hasher::new_keyed(&self.key);
        keyed.update(&parent.map_or([0; 16], |hash| hash.0));
        keyed.update(&(tokens.len() as u64).to_le_bytes());
        let mut buffer = [0_u8; 256];
        for group in tokens.chunks(64) {
            for (bytes, token) in buffer.chunks_exact_mut(4).zip(group) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            keyed.update(&buffer[..group.len() * 4]);
        }
        self.named(&keyed)
    }

    /// Identity of a block that another program names by `key`. The key must cover all tokens up to
    /// the block's end and all else that separates blocks there. Never equals the identity of a
    /// block that is named by its tokens.
    #[must_use]
    pub fn alias(&self, key: &[u8]) -> BlockHash {
        let mut keyed = blake3::Hasher::new_keyed(&self.key);
        keyed.update(b"cenote alias v1");
        keyed.update(key);
        self.named(&keyed)
    }

    /// Parent of the first block in sequences with this salt. No block has this name.
    #[must_use]
    pub fn root(&self, salt: &CacheSalt) -> BlockHash {
        let mut keyed = blake3::Hasher::new_keyed(&self.key);
        keyed.update(b"cenote cache salt v1");
        keyed.update(&salt.0);
        self.named(&keyed)
    }

    fn named(&self, keyed: &blake3::Hasher) -> BlockHash {
        self.computed.fetch_add(1, Ordering::Relaxed);
        let mut hash = [0; 16];
        hash.copy_from_slice(&keyed.finalize().as_bytes()[..16]);
        if hash == [0; 16] {
            hash[0] = 1;
        }
        BlockHash(hash)
    }

    /// Hashes of all full blocks of `tokens`, in order; `tokens.len() / block_tokens` hashes.
    #[must_use]
    pub fn chain(&self, tokens: &[TokenId], block_tokens: usize) -> Vec<BlockHash> {
        self.chain_from(None, tokens, block_tokens)
    }

    /// As [`Self::chain`], below a parent: a block, or the [`root`](Self::root) of a salt.
    #[must_use]
    pub fn chain_from(&self, parent: Option<BlockHash>, tokens: &[TokenId], block_tokens: usize) -> Vec<BlockHash> {
        let mut parent = parent;
        tokens
            .chunks_exact(block_tokens)
            .map(|block| {
                let hash = self.block(parent, block);
                parent = Some(hash);
                hash
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hasher(namespace: u8) -> ChainHasher {
        ChainHasher::new(&HashSeed([7; 32]), &[namespace; 32])
    }

    #[test]
    fn a_hash_names_the_whole_prefix() {
        let left: Vec<TokenId> = (0..64).collect();
        let mut right = left.clone();
        right[0] = 99;
        let (a, b) = (hasher(1).chain(&left, 16), hasher(1).chain(&right, 16));
        assert_eq!(a.len(), 4);
        assert!(a.iter().zip(&b).all(|(x, y)| x != y), "a changed first token renames every later block");
        right[0] = 0;
        right[63] = 99;
        let c = hasher(1).chain(&right, 16);
        assert_eq!(a[..3], c[..3]);
        assert_ne!(a[3], c[3]);
    }

    #[test]
    fn namespaces_never_share_a_name() {
        let tokens: Vec<TokenId> = (0..32).collect();
        assert_ne!(hasher(1).chain(&tokens, 16), hasher(2).chain(&tokens, 16));
    }

    #[test]
    fn an_alias_differs_between_namespaces_and_from_token_blocks() {
        let key = [[0; 16].as_slice(), &4_u64.to_le_bytes(), &[0; 16]].concat();
        assert_eq!(hasher(1).alias(&key), hasher(1).alias(&key));
        assert_ne!(hasher(1).alias(&key), hasher(2).alias(&key));
        assert_ne!(hasher(1).alias(&key), hasher(1).alias(&key[1..]));
        assert_ne!(hasher(1).alias(&key), hasher(1).block(None, &[0; 4]));
    }

    #[test]
    fn salts_keep_equal_tokens_apart() {
        let salt = |key, request| CacheSalt::of(key, request);
        assert_eq!(salt(None, None), None);
        let salts = [
            salt(Some("a"), None),
            salt(None, Some("a")),
            salt(Some("a"), Some("a")),
            salt(Some("ab"), Some("c")),
            salt(Some("a"), Some("bc")),
            salt(Some("a"), Some("")),
        ];
        let tokens: Vec<TokenId> = (0..32).collect();
        let chain = |salt: &Option<CacheSalt>| {
            let root = salt.as_ref().map(|salt| hasher(1).root(salt));
            hasher(1).chain_from(root, &tokens, 16)
        };
        let names: std::collections::BTreeSet<_> = salts.iter().chain([&None]).flat_map(chain).collect();
        assert_eq!(names.len(), 2 * (salts.len() + 1), "no block has the name of another");
        assert_eq!(chain(&salts[0]), chain(&salt(Some("a"), None)));
        assert_eq!(chain(&None), hasher(1).chain(&tokens, 16));
    }

    #[test]
    fn tenants_share_a_namespace_only_by_equal_salts() {
        let keys = [TenantKey::of_salt("a"), TenantKey::of_salt("b"), TenantKey::of_name("a"), TenantKey::of_name("b")];
        let salts: std::collections::BTreeSet<String> =
            keys.iter().flat_map(|key| ["", "a"].map(|engine| key.namespace_salt(engine))).collect();
        assert_eq!(salts.len(), 8);
        assert_eq!(keys[0], TenantKey::of_salt("a"));
    }

    #[test]
    fn a_partial_tail_has_no_name() {
        assert_eq!(hasher(1).chain(&[1, 2, 3], 16), []);
    }

    #[test]
    fn words_convert_back_to_the_same_hash() {
        let hash = hasher(1).block(None, &[1]);
        assert_eq!(BlockHash::from_words(hash.words()), hash);
    }
}
