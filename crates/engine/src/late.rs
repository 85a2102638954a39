//! Blocks whose pages are decoded layer by layer while earlier layers compute.
//!
//! The decoding of a layer is done when its attention begins and begins when the attention of the layer before does, on the
//! threads that compute: those with nothing better to do take it, and with one thread it comes just before it is needed.
//! A layer's memory is lent to either decoding or attention, so neither can see the other's half of the work.

use crate::kv::KvLayer;
use cenote_policy::kv_blocks::BlockId;
use cenote_store::PendingBlock;
use rayon::Scope;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of pages that one task decodes, at least a block's: long enough to be worth a task, and short enough that a thread
/// of the model's which takes one while it waits is soon back.
const TASK_BYTES: usize = 32 << 10;

/// A block that a pass over the model fills as it goes.
pub struct LateBlock {
    block: BlockId,
    pages: Box<dyn PendingBlock>,
    failed: AtomicBool,
}

impl LateBlock {
    /// Block `block` of the arena is to have these pages.
    #[must_use]
    pub const fn new(block: BlockId, pages: Box<dyn PendingBlock>) -> Self {
        Self { block, pages, failed: AtomicBool::new(false) }
    }

    /// Which block of the arena it fills.
    #[must_use]
    pub const fn block(&self) -> BlockId {
        self.block
    }

    /// Some page could not be decoded. What was computed with the block then is of no use.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Decodes all pages, K and V of each layer.
    pub fn decode_all<'a>(&self, pages: impl IntoIterator<Item = &'a mut [u8]>) {
        pages.into_iter().enumerate().for_each(|(index, page)| self.decode(index, page));
    }

    /// Decodes a page, unless another one could not be.
    fn decode(&self, index: usize, page: &mut [u8]) {
        if !self.has_failed() && !self.pages.decode(index, page) {
            self.failed.store(true, Ordering::Relaxed);
        }
    }
}

/// Has a layer of these blocks, which ascend, decoded by whichever threads are free before the scope ends.
pub(crate) fn decode_layer<'scope>(
    scope: &Scope<'scope>,
    late: &'scope [&LateBlock],
    index: usize,
    layer: &'scope mut KvLayer,
) {
    let page_bytes = layer.layout().page_bytes();
    let mut pages = layer.pages_of(late.iter().map(|late| late.block)).into_iter();
    for blocks in late.chunks((TASK_BYTES / (2 * page_bytes)).max(1)) {
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
