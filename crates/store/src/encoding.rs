//! Blocks as codecs make them: the frames of all pages, one after the other.

use cenote_codec::{CodecId, Codecs, DecodeError, Frame, Page, PageCodec, PageKind, PageMut, encode};
use std::ops::Range;
use std::sync::Arc;

/// Lines of a region.
const LINE: usize = 64;

/// How an engine's pages are encoded, and what it can decode.
pub struct BlockCodec {
    /// Each page of a block, and what it is encoded with.
    pages: Vec<(PageKind, Arc<dyn PageCodec>)>,
    /// What the pages of blocks are encoded with that make way; none: such blocks leave.
    cold: Vec<Arc<dyn PageCodec>>,
    known: Codecs,
}

impl BlockCodec {
    /// For blocks of such pages, in the order in which the engine has them. Pages may be followed by padding.
    #[must_use]
    pub fn new(pages: Vec<(PageKind, Arc<dyn PageCodec>)>) -> Self {
        let mut known = Codecs::default();
        pages.iter().for_each(|(_, codec)| known.add(Arc::clone(codec)));
        Self { pages, cold: Vec::new(), known }
    }

    /// Blocks that nobody has asked for in a while are encoded anew, with a codec for each page, before any leaves.
    ///
    /// # Panics
    /// There are not as many codecs as pages: a bug of the caller.
    #[must_use]
    pub fn with_cold(mut self, codecs: Vec<Arc<dyn PageCodec>>) -> Self {
        assert_eq!(codecs.len(), self.pages.len(), "one codec for each page");
        codecs.iter().for_each(|codec| self.known.add(Arc::clone(codec)));
        self.cold = codecs;
        self
    }

    /// Whether blocks are saved as the engine has them.
    pub(crate) fn saves_raw(&self) -> bool {
        self.pages.iter().all(|(_, codec)| codec.id() == CodecId::Raw)
    }

    pub(crate) fn has_cold(&self) -> bool {
        !self.cold.is_empty()
    }

    /// The frames of a block, in whole lines.
    pub(crate) fn encode(&self, pages: &[&[u8]], frames: &mut Vec<u8>) {
        encode_with(self.pages.iter().map(|(kind, codec)| (kind, &**codec)), pages, frames);
    }

    /// The frames of a block that has become cold. Its pages are put one after the other into `pages`.
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

    /// Appends the frame of page `index`, for whoever has one page after the other; [`Self::seal`] ends the block.
    ///
    /// # Panics
    /// There is no such page, or it is shorter than its kind: bugs of the caller.
    pub fn encode_page(&self, index: usize, page: &[u8], frames: &mut Vec<u8>) {
        let (kind, codec) = &self.pages[index];
        encode(&**codec, &Page::new(*kind, &page[..kind.bytes()]), frames);
    }

    /// Ends the frames of a block, which are whole lines.
    pub fn seal(frames: &mut Vec<u8>) {
        frames.resize(frames.len().next_multiple_of(LINE), 0);
    }

    /// Splits a block into frames and checks all of them but what their payloads say: checksums hold, codecs and profiles are
    /// known, pages are those of the block.
    ///
    /// # Errors
    /// They are no block of this codec.
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

    /// Decodes page `index` of a block that was split.
    ///
    /// # Errors
    /// The payload does not hold. What the page has then is undefined.
    ///
    /// # Panics
    /// There is no such page, or `bytes` are fewer than it has: bugs of the caller.
    pub fn decode(&self, index: usize, page: &PageFrame, frames: &[u8], bytes: &mut [u8]) -> Result<(), DecodeError> {
        let (kind, _) = self.pages[index];
        let frame = Frame { payload: &frames[page.payload.clone()], ..page.frame };
        self.known.decode_frame(&frame, &mut PageMut::new(kind, &mut bytes[..kind.bytes()]))
    }

    /// Whether these are the pages that it is for.
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

/// One page's frame: what its header says, and where in the block its payload is.
pub struct PageFrame {
    frame: Frame<'static>,
    payload: Range<usize>,
}
