//! Names of a sequence's blocks. They are computed once, and everything behind takes them.

use crate::NamespaceSpec;
use cenote_base::{BlockHash, CacheSalt, ChainHasher, HashSeed, TenantKey, TokenId};
use std::ops::Deref;
use std::sync::Arc;

/// How one engine's blocks are named. Any thread may use it.
#[derive(Clone)]
pub struct Naming {
    hasher: ChainHasher,
    block_tokens: usize,
    /// The tenant whose blocks it names; `None`: the engine itself.
    tenant: Option<TenantKey>,
    /// What the names of tenants derive from, if the store has tenants.
    tenants: Option<Arc<(HashSeed, NamespaceSpec)>>,
}

impl Naming {
    /// Names by this namespace's hasher, of blocks with so many tokens.
    #[must_use]
    pub const fn new(hasher: ChainHasher, block_tokens: usize) -> Self {
        Self { hasher, block_tokens, tenant: None, tenants: None }
    }

    /// Also names blocks of tenants, whose namespaces derive from the engine's own, `spec`.
    #[must_use]
    pub fn with_tenants(self, seed: HashSeed, spec: NamespaceSpec) -> Self {
        Self { tenants: Some(Arc::new((seed, spec))), ..self }
    }

    /// The naming of this tenant's blocks, in its own namespace; `None`: the engine's own, for `None`.
    /// Returns `None` if the store has no tenants: such a request has no names, so it shares nothing.
    #[must_use]
    pub fn of(&self, tenant: Option<TenantKey>) -> Option<Self> {
        let Some(key) = tenant else { return Some(self.clone()) };
        let (seed, spec) = &**self.tenants.as_ref()?;
        let hasher = ChainHasher::new(seed, &spec.of_tenant(key, "").fingerprint());
        Some(Self { hasher, tenant, ..self.clone() })
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
    /// The tenant whose blocks these are; `None`: the engine's own.
    #[must_use]
    pub const fn tenant(&self) -> Option<TenantKey> {
        self.naming.tenant
    }

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

    /// A client's own salt counts within its tenant's namespace only, whatever it is.
    #[test]
    fn no_salt_of_a_client_reaches_another_tenant() {
        let (seed, spec) = (HashSeed([7; 32]), crate::tests::spec());
        let own = ChainHasher::new(&seed, &spec.fingerprint());
        let naming = Naming::new(own, 16).with_tenants(seed, spec);
        let tokens: Vec<TokenId> = (0..32).collect();
        let tenants =
            [None, Some(TenantKey::of_salt("a")), Some(TenantKey::of_salt("b")), Some(TenantKey::of_name("a"))];
        let salts = [None, Some("a"), Some("b")];
        let mut all = std::collections::BTreeSet::new();
        for tenant in tenants {
            let naming = naming.of(tenant).expect("it names those of tenants");
            for salt in salts {
                let names = naming.names(CacheSalt::of(None, salt).as_ref(), &tokens);
                assert_eq!(names.tenant(), tenant);
                all.extend(names.iter().copied());
            }
        }
        assert_eq!(all.len(), 2 * tenants.len() * salts.len(), "no block has the name of another");
        assert!(Naming::new(ChainHasher::new(&seed, &[1; 32]), 16).of(tenants[1]).is_none());
    }
}
