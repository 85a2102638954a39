//! Encoded blocks: the frames of all pages, concatenated and padded to whole lines.

use cenote_codec::{CodecId, Codecs, DecodeError, Frame, Page, PageCodec, PageKind, PageMut, encode};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a line of the region.
const LINE: usize = 64;

/// Codecs that encode an engine's pages, and all codecs that can decode them.
pub struct BlockCodec {
    /// Each page of a block with the codec that encodes it.
    pages: Vec<(PageKind, Arc<dyn PageCodec>)>,
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
        Self { pages, cold: Vec::new(), known }
    }

    /// Adds one codec per page that re-encodes blocks without recent use before any is evicted.
    ///
    /// # Panics
    /// The number of codecs differs from the number of pages (a bug in the caller).
    #[must_use]
    pub fn with_cold(mut self, codecs: Vec<Arc<dyn PageCodec>>) -> Self {
        assert_eq!(codecs.len(), self.pages.len(), "one codec for each page");
        codecs.iter().for_each(|codec| self.known.add(Arc::clone(codec)));
        self.cold = codecs;
        self
    }

    /// Whether blocks are saved raw.
    pub(crate) fn saves_raw(&self) -> bool {
        self.pages.iter().all(|(_, codec)| codec.id() == CodecId::Raw)
    }

    pub(crate) fn has_cold(&self) -> bool {
        !self.cold.is_empty()
    }

    /// Encodes a block into `frames`, padded to whole lines.
    pub(crate) fn encode(&self, pages: &[&[u8]], frames: &mut Vec<u8>) {
        encode_with(self.pages.iter().map(|(kind, codec)| (kind, &**codec)), pages, frames);
    }

    /// Encodes a cold block into `frames`. Frames are decoded into `pages` first.
    pub(crate) fn encode_cold(
        &self,
        payload: &[u8],
        are_frames: bool,
        pages: &mut Vec<u8>,
        frames: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let kinds = || self.pages.iter().map(|(kind, _)| kind);
        let page_bytes =
            if are_frames { kinds().map(PageKind::bytes).max() } else { payload.len().checked_div(kinds().len()) };
        let page_bytes = page_bytes.unwrap_or(0);
        let raw: Vec<&[u8]> = if are_frames {
            pages.resize(page_bytes * kinds().len(), 0);
            for (index, (frame, page)) in
                self.split(payload)?.iter().zip(pages.chunks_exact_mut(page_bytes)).enumerate()
            {
                self.decode(index, frame, payload, page)?;
            }
            pages.chunks_exact(page_bytes).collect()
        } else {
            payload.chunks_exact(page_bytes).collect()
        };
        encode_with(kinds().zip(self.cold.iter().map(|codec| &**codec)), &raw, frames);
        Ok(())
    }

    /// Appends the frame of page `index`, for callers that produce a block page by page.
    /// [`Self::seal`] ends the block.
    ///
    /// # Panics
    /// There is no such page, or `page` is shorter than its kind (a bug in the caller).
    pub fn encode_page(&self, index: usize, page: &[u8], frames: &mut Vec<u8>) {
        let (kind, codec) = &self.pages[index];
        encode(&**codec, &Page::new(*kind, &page[..kind.bytes()]), frames);
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
        let mut rest = frames;
        let mut pages = Vec::with_capacity(self.pages.len());
        for (kind, _) in &self.pages {
            let (frame, behind) = Frame::split(rest)?;
            self.known.codec_of(&frame, kind)?;
            let end = frames.len() - behind.len();
            pages.push(PageFrame { frame: Frame { payload: &[], ..frame }, payload: end - frame.payload.len()..end });
            rest = behind;
        }
        if rest.len() < LINE { Ok(pages) } else { Err(DecodeError::Trailing(rest.len())) }
    }

    /// Decodes page `index` of a split block into `bytes`.
    ///
    /// # Errors
    /// The payload is invalid. The content of `bytes` is then undefined.
    ///
    /// # Panics
    /// There is no such page, or `bytes` is shorter than the page (a bug in the caller).
    pub fn decode(&self, index: usize, page: &PageFrame, frames: &[u8], bytes: &mut [u8]) -> Result<(), DecodeError> {
        let (kind, _) = self.pages[index];
        let frame = Frame { payload: &frames[page.payload.clone()], ..page.frame };
        self.known.decode_frame(&frame, &mut PageMut::new(kind, &mut bytes[..kind.bytes()]))
    }

    /// Whether blocks have `num_pages` pages that fit into `page_bytes` bytes each.
    pub(crate) fn fits(&self, num_pages: usize, page_bytes: usize) -> bool {
        self.pages.len() == num_pages && self.pages.iter().all(|(kind, _)| kind.bytes() <= page_bytes)
    }
}

fn encode_with<'a>(
    codecs: impl Iterator<Item = (&'a PageKind, &'a dyn PageCodec)>,
    pages: &[&[u8]],
    frames: &mut Vec<u8>,
) {
    frames.clear();
    for ((kind, codec), page) in codecs.zip(pages) {
        encode(codec, &Page::new(*kind, &page[..kind.bytes()]), frames);
    }
    BlockCodec::seal(frames);
}

/// One page's frame: its header, and the range of its payload in the block.
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
