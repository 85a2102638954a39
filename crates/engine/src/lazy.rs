//! Lazy blocks: their pages are decoded layer by layer while earlier layers compute.
//!
//! Decoding of a layer starts with the attention of the previous layer and ends before the layer's
//! own attention. It runs on the compute threads: idle threads take the tasks, and a single thread
//! decodes just before it needs the pages. A layer's memory is borrowed by either decoding or
//! attention, so neither sees a half-written layer.

use crate::kv::KvLayer;
use cenote_policy::kv_blocks::BlockId;
use cenote_store::{FarBlock, PendingBlock};
use rayon::Scope;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of pages that one task decodes; a task takes at least one block. The task outweighs its
/// spawn cost, but is short enough for a compute thread that takes it while waiting.
const TASK_BYTES: usize = 32 << 10;

/// A block that a forward pass fills layer by layer.
pub struct LazyBlock {
    block: BlockId,
    pages: Box<dyn PendingBlock>,
    failed: AtomicBool,
}

/// A spilled block that returns to L1, and the number of its parts of a page.
struct Promoted(Arc<dyn FarBlock>, usize);

impl PendingBlock for Promoted {
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool {
        let part_bytes = bytes.len() / self.1;
        let mut parts = (page * self.1..).zip(bytes.chunks_exact_mut(part_bytes));
        parts.all(|(part, bytes)| self.0.read(part, bytes, true))
    }
}

impl LazyBlock {
    /// Creates a lazy block that decodes `pages` into block `block` of the arena.
    #[must_use]
    pub const fn new(block: BlockId, pages: Box<dyn PendingBlock>) -> Self {
        Self { block, pages, failed: AtomicBool::new(false) }
    }

    /// Creates a lazy block that copies a spilled block, whose pages have `parts` parts, into block
    /// `block` of the arena.
    #[must_use]
    pub fn promoted(block: BlockId, far: Arc<dyn FarBlock>, parts: usize) -> Self {
        Self::new(block, Box::new(Promoted(far, parts)))
    }

    /// The arena block to fill.
    #[must_use]
    pub const fn block(&self) -> BlockId {
        self.block
    }

    /// True if some page could not be decoded. Results computed with the block are then
    /// invalid.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Decodes all pages, K and V of each layer in order.
    pub fn decode_all<'a>(&self, pages: impl IntoIterator<Item = &'a mut [u8]>) {
        pages.into_iter().enumerate().for_each(|(index, page)| self.decode(index, page));
    }

    /// Decodes a page, unless an earlier decode failed.
    fn decode(&self, index: usize, page: &mut [u8]) {
        if !self.has_failed() && !self.pages.decode(index, page) {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

/// Spawns the decoding of one layer of `lazy`, sorted by block, on `scope`. All tasks finish before
/// the scope ends.
pub(crate) fn decode_layer<'scope>(
    scope: &Scope<'scope>,
    lazy: &'scope [&LazyBlock],
    index: usize,
    layer: &'scope mut KvLayer,
) {
    let page_bytes = layer.layout().page_bytes();
    let mut pages = layer.pages_of(lazy.iter().map(|lazy| lazy.block)).into_iter();
    for blocks in lazy.chunks((TASK_BYTES / (2 * page_bytes)).max(1)) {
        let pages: Vec<&mut [u8]> = pages.by_ref().take(blocks.len()).collect();
        scope.spawn(move |_| {
            for (block, pages) in blocks.iter().zip(pages) {
                let (k, v) = pages.split_at_mut(page_bytes);
                block.decode(2 * index, k);
                block.decode(2 * index + 1, v);
            }
        });
    }
}
