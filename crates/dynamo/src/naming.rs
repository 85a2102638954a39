//! Names of a prompt's blocks, as the engines that publish them give them.

use crate::{sglang, vllm};
use cenote_base::{BlockHash, CacheSalt, ChainHasher};
use cenote_mem::files;
use sha2::{Digest, Sha256};
use std::io;
use std::path::PathBuf;

/// Longest file that names a version of the weights.
const WEIGHTS_VERSION_BYTES_MAX: u64 = 16 << 20;

/// The engine that named the blocks.
#[derive(Clone, Debug)]
pub enum Naming {
    /// `cenote serve`.
    Cenote,
    /// vLLM with Cenote's connector.
    Vllm(Vllm),
    /// SGLang with Cenote's storage backend, without EAGLE, which names pages by pairs of tokens.
    Sglang,
}

/// What decides vLLM's names beside the tokens.
#[derive(Clone, Debug)]
pub struct Vllm {
    /// `--prefix-caching-hash-algo`.
    pub algorithm: vllm::Algorithm,
    /// `PYTHONHASHSEED`, or vLLM's own seed.
    pub seed: String,
    /// Tokens that one hash covers, if they are fewer than a block's.
    pub hash_tokens: Option<u32>,
    /// The connector's setting of this name.
    pub weights_version_file: Option<PathBuf>,
}

impl Default for Vllm {
    fn default() -> Self {
        Self {
            algorithm: vllm::Algorithm::Sha256,
            seed: vllm::DEFAULT_SEED.to_owned(),
            hash_tokens: None,
            weights_version_file: None,
        }
    }
}

impl Naming {
    /// The version of the weights, which precedes each of vLLM's hashes; empty without one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn weights(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Vllm(Vllm { weights_version_file: Some(file), .. }) => {
                Ok(Sha256::digest(files::read_input(file, WEIGHTS_VERSION_BYTES_MAX)?)[..16].to_vec())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The names of one prompt's blocks in a namespace. `None`: blocks of this size have none.
    pub(crate) fn begin<'a>(
        &self,
        hasher: &'a ChainHasher,
        weights: &[u8],
        block_tokens: usize,
        salt: Option<&str>,
    ) -> Option<Names<'a>> {
        let how = match self {
            Self::Cenote => How::Cenote(CacheSalt::of(None, salt).map(|salt| hasher.root(&salt))),
            Self::Vllm(vllm) => {
                let each = vllm.hash_tokens.map_or(block_tokens, |tokens| tokens as usize);
                if each == 0 || !block_tokens.is_multiple_of(each) {
                    return None;
                }
                let chain = vllm::Chain::new(vllm.algorithm, &vllm.seed, salt, each)?;
                How::Vllm { chain, each, key: weights.to_vec() }
            }
            Self::Sglang => How::Sglang(sglang::Chain::new(salt)),
        };
        Some(Names { hasher, how })
    }
}

/// The names of one prompt's blocks, block after block.
pub(crate) struct Names<'a> {
    hasher: &'a ChainHasher,
    how: How,
}

enum How {
    /// The parent.
    Cenote(Option<BlockHash>),
    /// `key` begins with the version of the weights.
    Vllm {
        chain: vllm::Chain,
        each: usize,
        key: Vec<u8>,
    },
    Sglang(sglang::Chain),
}

impl Names<'_> {
    pub fn next(&mut self, tokens: &[u32]) -> BlockHash {
        match &mut self.how {
            How::Cenote(parent) => {
                let hash = self.hasher.block(*parent, tokens);
                *parent = Some(hash);
                hash
            }
            How::Vllm { chain, each, key } => {
                let mut hash = [0; 32];
                tokens.chunks(*each).for_each(|part| hash = chain.next(part));
                let prefix = key.len();
                key.extend_from_slice(&hash);
                let name = self.hasher.alias(key);
                key.truncate(prefix);
                name
            }
            How::Sglang(chain) => self.hasher.alias(chain.next(tokens).as_bytes()),
        }
    }
}

/// The names of a prompt's full blocks, for programs that look them up themselves. `None`: blocks of
/// this size have none, or the version of the weights cannot be read.
#[must_use]
pub fn names(
    naming: &Naming,
    hasher: &ChainHasher,
    tokens: &[u32],
    block_tokens: usize,
    salt: Option<&str>,
) -> Option<Vec<BlockHash>> {
    if block_tokens == 0 {
        return None;
    }
    let mut names = naming.begin(hasher, &naming.weights().ok()?, block_tokens, salt)?;
    Some(tokens.chunks_exact(block_tokens).map(|block| names.next(block)).collect())
}
