//! Blocks of a region that an engine reads part by part.

use crate::encoding::PageFrame;
use crate::pending::{DecodeState, PendingFrames};
use crate::{BlockCodec, FarBlock};
use cenote_mem::Fabric;
use cenote_pool::{Hit, PartReader, Pool, ReadOutcome, SwapSlot};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a line of the region.
const LINE: usize = 64;

/// A block that only this engine knows.
pub(crate) struct Swapped<F: Fabric>(pub SwapSlot<F>);

impl<F: Fabric> FarBlock for Swapped<F> {
    fn read(&self, part: usize, bytes: &mut [u8], around: bool) -> bool {
        self.0.read_part(part, bytes, around) == ReadOutcome::Whole
    }
}

/// A published block without a codec.
pub(crate) struct FarPages<F: Fabric>(PartReader<F>);

impl<F: Fabric> FarPages<F> {
    /// `payload` is the block's whole payload.
    /// `None`: the region is encrypted, so parts cannot be read.
    pub fn new(pool: &Pool<F>, hit: &Hit, payload: &[u8], part_bytes: usize) -> Option<Self> {
        let parts = (0..payload.len()).step_by(part_bytes).map(|at| at..at + part_bytes);
        pool.part_reader(hit, payload, &parts.collect::<Vec<_>>()).map(Self)
    }
}

impl<F: Fabric> FarBlock for FarPages<F> {
    fn read(&self, part: usize, bytes: &mut [u8], around: bool) -> bool {
        self.0.read(part, bytes, around) == ReadOutcome::Whole
    }
}

/// A published block of frames, each decoded when its page is read.
pub(crate) struct FarFrames<F: Fabric> {
    reader: PartReader<F>,
    hit: Hit,
    /// The lines that contain each page's frame.
    lines: Vec<Range<usize>>,
    pages: Vec<PageFrame>,
    /// Parts of a page. A frame is one, so a part is read by decoding its page.
    parts: usize,
    codec: Arc<BlockCodec>,
    decoding: Arc<DecodeState>,
}

impl<F: Fabric> FarFrames<F> {
    /// `None`: as in [`FarPages::new`].
    pub fn new(pool: &Pool<F>, mut frames: PendingFrames, parts: usize) -> Option<Self> {
        let pages = std::mem::take(&mut frames.pages);
        let lines: Vec<Range<usize>> = pages.iter().map(PageFrame::lines).collect();
        let reader = pool.part_reader(&frames.hit, &frames.frames, &lines)?;
        let pages = pages.into_iter().zip(&lines).map(|(page, lines)| page.moved_back(lines.start)).collect();
        let (codec, decoding) = (Arc::clone(&frames.codec), Arc::clone(&frames.decoding));
        Some(Self { reader, hit: frames.hit, lines, pages, parts, codec, decoding })
    }

    fn read_page(&self, page: usize, bytes: &mut [u8]) -> bool {
        let mut lines = self.decoding.buffer(self.lines[page].len());
        let is_whole = self.reader.read(page, &mut lines, false) == ReadOutcome::Whole;
        let is_read = is_whole && self.codec.decode(page, &self.pages[page], &lines, bytes).is_ok();
        if is_whole && !is_read {
            self.decoding.remember_bad(&self.hit);
        }
        self.decoding.give_back(lines);
        is_read
    }
}

impl<F: Fabric> FarBlock for FarFrames<F> {
    fn read(&self, part: usize, bytes: &mut [u8], _around: bool) -> bool {
        if self.parts == 1 {
            return self.read_page(part, bytes);
        }
        let mut page = self.decoding.buffer(bytes.len() * self.parts);
        let is_read = self.read_page(part / self.parts, &mut page);
        bytes.copy_from_slice(&page[part % self.parts * bytes.len()..][..bytes.len()]);
        self.decoding.give_back(page);
        is_read
    }

    fn moved_bytes(&self, part: usize, _bytes: usize) -> usize {
        self.lines[part / self.parts].len()
    }
}

impl PageFrame {
    /// The whole lines around the frame's payload, within its block.
    fn lines(&self) -> Range<usize> {
        let payload = self.payload();
        payload.start / LINE * LINE..payload.end.next_multiple_of(LINE)
    }
}
