//! Encoded blocks: the frames of all pages, concatenated and padded to whole lines.

use cenote_codec::{
    BlockPage, CodecId, Codecs, DecodeError, Frame, Page, PageCodec, PageKind, PageMut, PlacedFrame, encode,
    encode_block,
};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a line of the region.
const LINE: usize = 64;

/// Codecs that encode an engine's pages, and all codecs that can decode them.
pub struct BlockCodec {
    /// The pages of a block.
    kinds: Vec<PageKind>,
    /// Codecs that encode them.
    fresh: Vec<Arc<dyn PageCodec>>,
    /// Codecs for the pages of cold blocks; empty: cold blocks are evicted instead.
    cold: Vec<Arc<dyn PageCodec>>,
    known: Codecs,
}

impl BlockCodec {
    /// Creates a codec for blocks of these pages, in the engine's page order. Pages in memory may
    /// be followed by padding.
    #[must_use]
    pub fn new(pages: Vec<(PageKind, Arc<dyn PageCodec>)>) -> Self {
        let mut known = Codecs::default();
        pages.iter().for_each(|(_, codec)| known.add(Arc::clone(codec)));
        let (kinds, fresh) = pages.into_iter().unzip();
        Self { kinds, fresh, cold: Vec::new(), known }
    }

    /// Adds one codec per page that re-encodes blocks without recent use before any is evicted.
    ///
    /// # Panics
    /// The number of codecs differs from the number of pages (a bug in the caller).
    #[must_use]
    pub fn with_cold(mut self, codecs: Vec<Arc<dyn PageCodec>>) -> Self {
        assert_eq!(codecs.len(), self.kinds.len(), "one codec for each page");
        codecs.iter().for_each(|codec| self.known.add(Arc::clone(codec)));
        self.cold = codecs;
        self
    }

    /// Whether blocks are saved raw.
    pub(crate) fn saves_raw(&self) -> bool {
        self.fresh.iter().all(|codec| codec.id() == CodecId::Raw)
    }

    pub(crate) fn has_cold(&self) -> bool {
        !self.cold.is_empty()
    }

    /// Encodes a block, the number `depth` of its sequence, into `frames`, padded to whole lines.
    pub(crate) fn encode(&self, depth: u32, pages: &[&[u8]], frames: &mut Vec<u8>) {
        self.encode_with(&self.fresh, depth, pages, frames);
    }

    /// Encodes a cold block into `frames`. Frames are decoded into `pages` first.
    pub(crate) fn encode_cold(
        &self,
        depth: u32,
        payload: &[u8],
        are_frames: bool,
        pages: &mut Vec<u8>,
        frames: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let kinds = &self.kinds;
        let page_bytes =
            if are_frames { kinds.iter().map(PageKind::bytes).max() } else { payload.len().checked_div(kinds.len()) };
        let page_bytes = page_bytes.unwrap_or(0);
        let raw: Vec<&[u8]> = if are_frames {
            pages.resize(page_bytes * kinds.len(), 0);
            let decoded = kinds.iter().zip(pages.chunks_exact_mut(page_bytes));
            let decoded = decoded.map(|(kind, page)| PageMut::new(*kind, &mut page[..kind.bytes()])).collect();
            let len = self.known.decode_block(payload, decoded)?;
            check_padding(payload, len)?;
            pages.chunks_exact(page_bytes).collect()
        } else {
            payload.chunks_exact(page_bytes).collect()
        };
        self.encode_with(&self.cold, depth, &raw, frames);
        Ok(())
    }

    fn encode_with(&self, codecs: &[Arc<dyn PageCodec>], depth: u32, pages: &[&[u8]], frames: &mut Vec<u8>) {
        frames.clear();
        let all = self.kinds.iter().zip(codecs).zip(pages);
        let block: Vec<BlockPage<'_>> = all
            .map(|((kind, codec), page)| BlockPage { kind, bytes: &page[..kind.bytes()], codec: &**codec })
            .collect();
        let block_tokens = self.kinds.first().map_or(0, |kind| u32::from(kind.shape.tokens));
        // A wrong position would cost bytes and no bits: it is part of the frames.
        encode_block(&block, depth.wrapping_mul(block_tokens), frames);
        Self::seal(frames);
    }

    /// Appends the frame of page `index`, for callers that produce a block page by page.
    /// [`Self::seal`] ends the block.
    ///
    /// # Panics
    /// There is no such page, or `page` is shorter than its kind (a bug in the caller).
    pub fn encode_page(&self, index: usize, page: &[u8], frames: &mut Vec<u8>) {
        let kind = self.kinds[index];
        encode(&*self.fresh[index], &Page::new(kind, &page[..kind.bytes()]), frames);
    }

    /// Pads the frames of a block to whole lines.
    pub fn seal(frames: &mut Vec<u8>) {
        frames.resize(frames.len().next_multiple_of(LINE), 0);
    }

    /// Splits a block into frames and checks everything except the payloads' content: checksums are
    /// valid, codecs and profiles are known, and the pages are those of the block.
    ///
    /// # Errors
    /// The bytes are not a block of this codec.
    pub fn split(&self, frames: &[u8]) -> Result<Vec<PageFrame>, DecodeError> {
        let (pages, len) = self.known.split_block(&self.kinds, frames)?;
        check_padding(frames, len)?;
        let page = |PlacedFrame { frame, payload }| PageFrame { frame, payload };
        Ok(pages.into_iter().map(page).collect())
    }

    /// Decodes page `index` of a split block into `bytes`.
    ///
    /// # Errors
    /// The payload is invalid. The content of `bytes` is then undefined.
    ///
    /// # Panics
    /// There is no such page, or `bytes` is shorter than the page (a bug in the caller).
    pub fn decode(&self, index: usize, page: &PageFrame, frames: &[u8], bytes: &mut [u8]) -> Result<(), DecodeError> {
        let kind = self.kinds[index];
        let frame = Frame { payload: &frames[page.payload.clone()], ..page.frame };
        self.known.decode_frame(&frame, &mut PageMut::new(kind, &mut bytes[..kind.bytes()]))
    }

    /// Whether blocks have `num_pages` pages that fit into `page_bytes` bytes each.
    pub(crate) fn fits(&self, num_pages: usize, page_bytes: usize) -> bool {
        self.kinds.len() == num_pages && self.kinds.iter().all(|kind| kind.bytes() <= page_bytes)
    }
}

/// Less than a line may follow the frames of a block.
fn check_padding(block: &[u8], len: usize) -> Result<(), DecodeError> {
    let rest = block.len() - len;
    if rest < LINE { Ok(()) } else { Err(DecodeError::Trailing(rest)) }
}

/// The frame of a page, or of several: its header, and the range of its payload in the block.
pub struct PageFrame {
    frame: Frame<'static>,
    payload: Range<usize>,
}

impl PageFrame {
    /// The range of its payload in the block.
    pub(crate) fn payload(&self) -> Range<usize> {
        self.payload.clone()
    }

    /// The same frame in the bytes from `start` of the block on.
    pub(crate) fn moved_back(self, start: usize) -> Self {
        Self { payload: self.payload.start - start..self.payload.end - start, ..self }
    }
}
