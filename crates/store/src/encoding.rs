//! Blocks as codecs make them: the frames of all pages, one after the other.

use cenote_codec::{Codecs, DecodeError, Frame, Page, PageCodec, PageKind, PageMut, encode};
use std::ops::Range;
use std::sync::Arc;

/// Lines of a region.
const LINE: usize = 64;

/// How an engine's pages are encoded, and what it can decode.
pub struct BlockCodec {
    /// Each page of a block, and what it is encoded with.
    pages: Vec<(PageKind, Arc<dyn PageCodec>)>,
    known: Codecs,
}

impl BlockCodec {
    /// For blocks of such pages, in the order in which the engine has them. Pages may be followed by padding.
    #[must_use]
    pub fn new(pages: Vec<(PageKind, Arc<dyn PageCodec>)>) -> Self {
        let mut known = Codecs::default();
        pages.iter().for_each(|(_, codec)| known.add(Arc::clone(codec)));
        Self { pages, known }
    }

    /// The frames of a block, in whole lines.
    pub(crate) fn encode(&self, pages: &[&[u8]], frames: &mut Vec<u8>) {
        frames.clear();
        for ((kind, codec), page) in self.pages.iter().zip(pages) {
            encode(&**codec, &Page::new(*kind, &page[..kind.bytes()]), frames);
        }
        frames.resize(frames.len().next_multiple_of(LINE), 0);
    }

    /// Splits a block into frames and checks all of them but what their payloads say: checksums hold, codecs and profiles are
    /// known, pages are those of the block.
    pub(crate) fn split(&self, frames: &[u8]) -> Result<Vec<PageFrame>, DecodeError> {
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
    pub(crate) fn decode(
        &self,
        index: usize,
        page: &PageFrame,
        frames: &[u8],
        bytes: &mut [u8],
    ) -> Result<(), DecodeError> {
        let (kind, _) = self.pages[index];
        let frame = Frame { payload: &frames[page.payload.clone()], ..page.frame };
        self.known.decode_frame(&frame, &mut PageMut::new(kind, &mut bytes[..kind.bytes()]))
    }

    /// Whether these are the pages that it is for.
    pub(crate) fn fits(&self, num_pages: usize, page_bytes: usize) -> bool {
        self.pages.len() == num_pages && self.pages.iter().all(|(kind, _)| kind.bytes() <= page_bytes)
    }
}

/// One page's frame: what its header says, and where in the block its payload is.
pub(crate) struct PageFrame {
    frame: Frame<'static>,
    payload: Range<usize>,
}
