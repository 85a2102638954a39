//! Blocks as codecs make them: the frames of all pages, one after the other.

use cenote_codec::{Codecs, DecodeError, Frame, Page, PageCodec, PageKind, PageMut, encode};
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

    /// The pages of a block.
    pub(crate) fn decode(&self, mut frames: &[u8], pages: &mut [&mut [u8]]) -> Result<(), DecodeError> {
        for ((kind, _), page) in self.pages.iter().zip(pages) {
            let (frame, rest) = Frame::split(frames)?;
            self.known.decode_frame(&frame, &mut PageMut::new(*kind, &mut page[..kind.bytes()]))?;
            frames = rest;
        }
        if frames.len() < LINE { Ok(()) } else { Err(DecodeError::Trailing(frames.len())) }
    }

    /// Whether these are the pages that it is for.
    pub(crate) fn fits(&self, num_pages: usize, page_bytes: usize) -> bool {
        self.pages.len() == num_pages && self.pages.iter().all(|(kind, _)| kind.bytes() <= page_bytes)
    }
}
