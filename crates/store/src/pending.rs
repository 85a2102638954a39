//! Encoded blocks copied out of the region, which an engine decodes page by page.

use crate::encoding::PageFrame;
use crate::{BlockCodec, PendingBlock};
use cenote_base::BlockHash;
use cenote_pool::Hit;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of buffers that are kept for reuse, in total.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// Most remembered bad blocks. Beyond this all are forgotten, which costs a request one discarded
/// step.
const BAD_MAX: usize = 1 << 12;

/// State that a store and its pending blocks share.
#[derive(Default)]
pub(crate) struct DecodeState(Mutex<State>);

#[derive(Default)]
struct State {
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
    /// Blocks with valid frames and invalid payloads, which must not be loaded again.
    bad: HashMap<BlockHash, Hit>,
    unreadable: u64,
}

impl DecodeState {
    fn state(&self) -> MutexGuard<'_, State> {
        // No statement leaves the state inconsistent, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a buffer of `bytes` bytes with arbitrary content.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut state = self.state();
        let mut buffer = state.spare.pop().unwrap_or_default();
        state.spare_bytes -= buffer.capacity();
        drop(state);
        buffer.resize(bytes, 0);
        buffer
    }

    /// Returns a buffer for reuse.
    pub fn give_back(&self, buffer: Vec<u8>) {
        let mut state = self.state();
        if state.spare_bytes + buffer.capacity() <= SPARE_BYTES_MAX {
            state.spare_bytes += buffer.capacity();
            state.spare.push(buffer);
        }
    }

    /// Counts a load of a block that is intact but cannot be decoded.
    pub fn count_unreadable(&self) {
        self.state().unreadable += 1;
    }

    /// Number of such loads.
    pub fn unreadable(&self) -> u64 {
        self.state().unreadable
    }

    /// Whether a payload of exactly this hit failed to decode before.
    pub fn is_bad(&self, hit: &Hit) -> bool {
        self.state().bad.get(&hit.hash) == Some(hit)
    }

    /// Remembers a bad block. Counts it once, even if several of its pages fail to decode.
    pub fn remember_bad(&self, hit: &Hit) {
        let mut state = self.state();
        if state.bad.len() >= BAD_MAX {
            state.bad.clear();
        }
        if state.bad.insert(hit.hash, *hit) != Some(*hit) {
            state.unreadable += 1;
        }
    }
}

/// The frames of an intact block, checked as far as possible without decoding.
pub(crate) struct PendingFrames {
    pub hit: Hit,
    pub frames: Vec<u8>,
    pub pages: Vec<PageFrame>,
    pub codec: Arc<BlockCodec>,
    pub decoding: Arc<DecodeState>,
}

impl PendingBlock for PendingFrames {
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool {
        let decoded = self.codec.decode(page, &self.pages[page], &self.frames, bytes);
        if decoded.is_err() {
            self.decoding.remember_bad(&self.hit);
        }
        decoded.is_ok()
    }
}

impl Drop for PendingFrames {
    fn drop(&mut self) {
        self.decoding.give_back(std::mem::take(&mut self.frames));
    }
}
