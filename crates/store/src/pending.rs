//! Blocks that were copied out of the region as frames, to be decoded page by page when an engine needs them.

use crate::encoding::PageFrame;
use crate::{BlockCodec, PendingBlock};
use cenote_base::BlockHash;
use cenote_pool::Hit;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers of frames that are kept for the next block: together as long as this at most.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// Bad blocks remembered at most; then the memory starts anew, which costs a request a step that is thrown away.
const BAD_MAX: usize = 1 << 12;

/// What a store and its pending blocks share.
#[derive(Default)]
pub(crate) struct Desk(Mutex<State>);

#[derive(Default)]
struct State {
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
    /// Blocks whose frames looked right and whose payloads were none of their codecs: not to be tried again.
    bad: HashMap<BlockHash, Hit>,
    unreadable: u64,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of so many bytes, of any value.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut state = self.state();
        let mut buffer = state.spare.pop().unwrap_or_default();
        state.spare_bytes -= buffer.capacity();
        drop(state);
        buffer.resize(bytes, 0);
        buffer
    }

    /// Takes a buffer back.
    pub fn give_back(&self, buffer: Vec<u8>) {
        let mut state = self.state();
        if state.spare_bytes + buffer.capacity() <= SPARE_BYTES_MAX {
            state.spare_bytes += buffer.capacity();
            state.spare.push(buffer);
        }
    }

    /// Counts a load of a block that was found and whole, and cannot be decoded.
    pub fn count_unreadable(&self) {
        self.state().unreadable += 1;
    }

    /// How many there were.
    pub fn unreadable(&self) -> u64 {
        self.state().unreadable
    }

    /// Whether the payload of just this block did not decode before.
    pub fn is_bad(&self, hit: &Hit) -> bool {
        self.state().bad.get(&hit.hash) == Some(hit)
    }

    /// Remembers a block, and counts it once, however many of its pages did not decode.
    fn remember_bad(&self, hit: &Hit) {
        let mut state = self.state();
        if state.bad.len() >= BAD_MAX {
            state.bad.clear();
        }
        if state.bad.insert(hit.hash, *hit) != Some(*hit) {
            state.unreadable += 1;
        }
    }
}

/// The frames of a block, whole and checked as far as that goes without decoding.
pub(crate) struct PendingFrames {
    pub hit: Hit,
    pub frames: Vec<u8>,
    pub pages: Vec<PageFrame>,
    pub codec: Arc<BlockCodec>,
    pub desk: Arc<Desk>,
}

impl PendingBlock for PendingFrames {
    fn decode(&self, page: usize, bytes: &mut [u8]) -> bool {
        let decoded = self.codec.decode(page, &self.pages[page], &self.frames, bytes);
        if decoded.is_err() {
            self.desk.remember_bad(&self.hit);
        }
        decoded.is_ok()
    }
}

impl Drop for PendingFrames {
    fn drop(&mut self) {
        self.desk.give_back(std::mem::take(&mut self.frames));
    }
}
