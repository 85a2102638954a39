//! Names of a sequence's blocks. They are computed once, and everything behind takes them.

use cenote_base::{BlockHash, CacheSalt, ChainHasher, TokenId};
use std::ops::Deref;

/// How one engine's blocks are named. Any thread may use it.
#[derive(Clone)]
pub struct Naming {
    hasher: ChainHasher,
    block_tokens: usize,
}

impl Naming {
    /// Names by this namespace's hasher, of blocks with so many tokens.
    #[must_use]
    pub const fn new(hasher: ChainHasher, block_tokens: usize) -> Self {
        Self { hasher, block_tokens }
    }

    /// Names the full blocks of a sequence. `salt`: its request's, if it has one.
    #[must_use]
    pub fn names(&self, salt: Option<&CacheSalt>, tokens: &[TokenId]) -> Names {
        let root = salt.map(|salt| self.hasher.root(salt));
        let mut names = Names { naming: self.clone(), root, hashes: Vec::new() };
        names.extend(tokens);
        names
    }

    /// Number of hashes computed since the namespace was opened.
    #[must_use]
    pub fn computed(&self) -> u64 {
        self.hasher.computed()
    }
}

/// The names of a sequence's first full blocks.
pub struct Names {
    naming: Naming,
    /// Parent of the first block; `None` without a salt.
    root: Option<BlockHash>,
    hashes: Vec<BlockHash>,
}

impl Names {
    /// Names the full blocks of `tokens` that have no name yet. `tokens` is the sequence from its first
    /// token on, which only grows.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        let named = self.hashes.len() * self.naming.block_tokens;
        let parent = self.hashes.last().copied().or(self.root);
        let new = tokens.get(named..).unwrap_or_default();
        self.hashes.extend(self.naming.hasher.chain_from(parent, new, self.naming.block_tokens));
    }
}

impl Deref for Names {
    type Target = [BlockHash];

    fn deref(&self) -> &[BlockHash] {
        &self.hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::HashSeed;

    /// A sequence that grows token by token has the same names as one that is named at once, and
    /// each block is hashed once.
    #[test]
    fn a_growing_sequence_is_named_once() {
        let tokens: Vec<TokenId> = (0..70).collect();
        for salt in [None, CacheSalt::of(Some("a"), None)] {
            let naming = Naming::new(ChainHasher::new(&HashSeed([7; 32]), &[1; 32]), 16);
            let whole = naming.names(salt.as_ref(), &tokens);
            assert_eq!(whole.len(), 4);
            let before = naming.computed();
            let mut growing = naming.names(salt.as_ref(), &tokens[..5]);
            (5..=70).for_each(|end| growing.extend(&tokens[..end]));
            growing.extend(&tokens[..20]);
            assert_eq!(*growing, *whole);
            assert_eq!(naming.computed() - before, 4 + u64::from(salt.is_some()));
        }
    }
}
