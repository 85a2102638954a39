//! A store whose blocks are kept in host memory when they were loaded.

use super::{KV, NearMemory};
use cenote_base::engine::Retain;
use cenote_base::{BlockHash, Health, TenantKey};
use cenote_store::{Computed, FarBlock, Loaded, Miss, Naming, PrefixStore, Promotion, Tenants};
use std::collections::BTreeMap;

pub(super) struct NearStore {
    pub far: Box<dyn PrefixStore>,
    pub near: NearMemory,
    pub block_tokens: u64,
}

impl NearStore {
    /// Copies a kept block into `pages`. Reports the access, whether it was kept or not.
    fn copy(&self, hash: BlockHash, pages: &mut [&mut [u8]]) -> bool {
        let begin_ns = self.near.clock.now_ns();
        let mut state = self.near.state();
        state.ask(KV, hash.words()[0]);
        state.serve(self.block_tokens);
        let Some(mut kept) = state.blocks.get(&hash) else { return false };
        for page in pages {
            let (own, rest) = kept.split_at(page.len());
            page.copy_from_slice(own);
            kept = rest;
        }
        let ns = self.near.clock.now_ns() - begin_ns;
        state.costs[KV].near.observe(1, ns);
        true
    }
}

impl PrefixStore for NearStore {
    fn load(&mut self, hash: BlockHash, pages: &mut [&mut [u8]]) -> Loaded {
        if self.copy(hash, pages) {
            return Loaded::Whole;
        }
        let begin_ns = self.near.clock.now_ns();
        let loaded = self.far.load(hash, pages);
        let ns = self.near.clock.now_ns() - begin_ns;
        if matches!(loaded, Loaded::Whole) {
            let mut state = self.near.state();
            state.costs[KV].far.observe(1, ns);
            state.blocks.insert(hash, pages.concat().into());
        }
        loaded
    }

    fn naming(&self) -> Naming {
        self.far.naming()
    }

    fn tenants(&self) -> Option<Box<dyn Tenants>> {
        self.far.tenants()
    }

    fn match_prefix(&mut self, names: &[BlockHash]) -> usize {
        self.far.match_prefix(names)
    }

    fn count_lookup(&mut self, blocks: usize, found: usize) {
        self.far.count_lookup(blocks, found);
    }

    fn record_request(&mut self, of: Option<TenantKey>, names: &[BlockHash], tokens: u32) -> Option<u64> {
        self.far.record_request(of, names, tokens)
    }

    fn record_answer(&mut self, number: u64, tokens: u32) {
        self.far.record_answer(number, tokens);
    }

    fn missed(&mut self, miss: Miss) {
        self.far.missed(miss);
    }

    fn promotable(&self, of: Option<TenantKey>, names: &[BlockHash]) -> usize {
        self.far.promotable(of, names)
    }

    fn promote(&mut self, of: Option<TenantKey>, names: &[BlockHash]) -> Option<Promotion> {
        self.far.promote(of, names)
    }

    fn has_computed(&mut self, tokens: u64, pairs: u64, ns: u64) {
        self.far.has_computed(tokens, pairs, ns);
    }

    fn save_all(&mut self, of: Option<TenantKey>, blocks: &[Computed<'_>]) -> usize {
        self.far.save_all(of, blocks)
    }

    fn swap_out(&mut self, of: Option<TenantKey>, parts: &[&[u8]]) -> Option<Box<dyn FarBlock>> {
        self.far.swap_out(of, parts)
    }

    fn open(&mut self, hash: BlockHash, parts: usize) -> Option<Box<dyn FarBlock>> {
        self.far.open(hash, parts)
    }

    fn is_exact(&self) -> bool {
        self.far.is_exact()
    }

    fn hold(&mut self, hashes: &[BlockHash], ttl_ms: u64) -> u64 {
        self.far.hold(hashes, ttl_ms)
    }

    fn release(&mut self, ticket: u64) {
        self.far.release(ticket);
    }

    fn retain(&mut self, of: Option<TenantKey>, names: &[BlockHash], retain: &Retain) {
        self.far.retain(of, names, retain);
    }

    fn stats(&self) -> BTreeMap<String, f64> {
        self.far.stats()
    }

    fn health(&self) -> Health {
        self.far.health()
    }
}
