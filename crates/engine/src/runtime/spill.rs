//! Blocks of running requests that lie in the region because L1 has no room for them.
//!
//! The scheduler (`cenote_policy`) selects them, and [`Streamer`] brings their pages to each step.
//! This module keeps them. A published block is read where it lies, if the store returns it byte for
//! byte. Any other block is copied out for this engine alone, so the tokens equal those of an engine
//! with everything in L1. A block that is damaged or gone is recomputed.

use crate::kv::KvArena;
use crate::lazy::LazyBlock;
use crate::model::LoadedModel;
use crate::stream::Streamer;
use cenote_base::{BlockHash, TenantKey};
use cenote_policy::kv_blocks::BlockId;
use cenote_policy::scheduler::{SpillTransfer, StreamedStep};
use cenote_store::PrefixStore;
use std::collections::BTreeSet;

/// The spilled blocks of all requests.
pub(super) struct Spills {
    streamer: Streamer,
    capacity: usize,
    block_bytes: usize,
    page_bytes: usize,
    /// Parts of a page that are read by themselves.
    parts: usize,
    totals: Totals,
    /// Nanoseconds that all steps have waited for copies.
    waited_ns: u64,
}

/// Monotonic counters.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    copied_blocks: u64,
    opened_blocks: u64,
    promoted_blocks: u64,
    refused_blocks: u64,
    lost_blocks: u64,
}

impl Spills {
    /// Space for `capacity` blocks. `is_exact`: of the store.
    pub fn start(model: &LoadedModel, capacity: usize, is_exact: bool) -> Self {
        let (config, layout) = (model.config(), *model.layout());
        let parts = model.page_parts(is_exact);
        // With sparse decode only prompts are streamed, and the next step reads other blocks.
        let ahead = if config.sparse.is_some() { 1 } else { 2 };
        let streamer = Streamer::start(layout, parts, model.kv_blocks(), capacity, &config.mover_config(), ahead);
        let (streamer, capacity) = streamer.map(|streamer| (streamer, capacity)).unwrap_or_else(|error| {
            tracing::error!(%error, "no thread for the mover: requests that exceed the KV memory are preempted");
            (Streamer::off(), 0)
        });
        let (block_bytes, page_bytes) = (layout.block_bytes(), layout.page_bytes());
        Self { streamer, capacity, block_bytes, page_bytes, parts, totals: Totals::default(), waited_ns: 0 }
    }

    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    pub const fn streamer(&mut self) -> &mut Streamer {
        &mut self.streamer
    }

    pub fn is_spilled(&self, block: BlockId) -> bool {
        self.streamer.is_spilled(block)
    }

    /// Copies a block out of L1. `published`: its name, if the store has it; `of`: its tenant. Returns
    /// `false` if no place was found.
    pub fn copy_out(
        &mut self,
        moved: &SpillTransfer,
        published: Option<BlockHash>,
        of: Option<TenantKey>,
        kv: &KvArena,
        store: Option<&mut (dyn PrefixStore + '_)>,
    ) -> bool {
        let far = store.and_then(|store| {
            let opened = published.filter(|_| store.is_exact()).and_then(|hash| store.open(hash, self.parts));
            self.totals.opened_blocks += u64::from(opened.is_some());
            opened.or_else(|| {
                let copied = store.swap_out(of, &kv.parts(moved.block, self.parts));
                self.totals.copied_blocks += u64::from(copied.is_some());
                copied
            })
        });
        let Some(far) = far else {
            self.totals.refused_blocks += 1;
            return false;
        };
        self.streamer.insert(moved.spilled, far);
        true
    }

    /// Reads a matched block of the store where it lies. Returns `false` if it is gone.
    pub fn open(&mut self, block: BlockId, hash: BlockHash, store: &mut dyn PrefixStore) -> bool {
        let Some(far) = store.open(hash, self.parts) else { return false };
        self.totals.opened_blocks += 1;
        self.streamer.insert(block, far);
        true
    }

    /// A spilled block that the next step copies into L1.
    pub fn promote(&mut self, moved: &SpillTransfer) -> Option<LazyBlock> {
        let far = self.streamer.remove(moved.spilled)?;
        self.totals.promoted_blocks += 1;
        Some(LazyBlock::promoted(moved.block, far, self.parts))
    }

    /// Drops blocks that no request owns.
    pub fn drop_all(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|block| drop(self.streamer.remove(*block)));
    }

    /// All pages of a spilled block. `None`: it is in L1, damaged or gone.
    pub fn bytes(&self, block: BlockId) -> Option<Vec<u8>> {
        let far = self.streamer.get(block)?;
        let mut bytes = vec![0; self.block_bytes];
        far.read_all(&mut bytes.chunks_exact_mut(self.page_bytes / self.parts).collect::<Vec<_>>()).then_some(bytes)
    }

    /// Blocks of the last step that were damaged or gone.
    pub fn take_failed(&mut self) -> BTreeSet<BlockId> {
        let failed = self.streamer.take_failed();
        self.totals.lost_blocks += failed.len() as u64;
        failed
    }

    /// What the last step took. `None`: there is no spill space.
    pub fn streamed(&mut self, ns: u64) -> Option<StreamedStep> {
        let stall_ns = self.streamer.counts().staging.stall_ns;
        let waited_ns = stall_ns - std::mem::replace(&mut self.waited_ns, stall_ns);
        let blocks = u32::try_from(self.streamer.num_read()).unwrap_or(u32::MAX);
        (self.capacity > 0).then_some(StreamedStep { ns, waited_ns, blocks })
    }

    /// Counters by Prometheus name; none without spill space.
    pub fn stats(&self) -> Vec<(String, f64)> {
        if self.capacity == 0 {
            return Vec::new();
        }
        let (counts, totals) = (self.streamer.counts(), &self.totals);
        let (staging, page) = (&counts.staging, counts.page_bytes);
        [
            ("spill_blocks", self.capacity as u64),
            ("spilled_blocks", self.streamer.num_blocks() as u64),
            ("spill_copied_blocks_total", totals.copied_blocks),
            ("spill_opened_blocks_total", totals.opened_blocks),
            ("spill_promoted_blocks_total", totals.promoted_blocks),
            ("spill_refused_blocks_total", totals.refused_blocks),
            ("spill_lost_blocks_total", totals.lost_blocks),
            ("staged_pages_total", staging.pages),
            ("staged_bytes_total", staging.pages * page),
            ("staged_late_pages_total", staging.late + staging.cold),
            ("staged_by_compute_pages_total", counts.taken),
            ("staged_wasted_pages_total", staging.wasted),
            ("staging_stall_ns_total", staging.stall_ns),
            ("staging_hidden_ns_total", staging.hidden_ns),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64))
        .into()
    }
}
