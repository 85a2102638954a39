//! Pages that fill: tokens are appended, and a frame of all tokens is available at any time.
//!
//! A frame equals that of [`encode`] for the same tokens, byte for byte. Codecs with growing
//! payloads ([`PageCodec::grow`]) keep what they encoded: Oaken each token, QPack each sixteen
//! tokens. In other codecs all values of a page share a scale or coder states, so each frame is
//! encoded anew.

use crate::codec::{GrowingPayload, PageCodec};
use crate::codecs::encode;
use crate::error::CodecId;
use crate::frame::FrameWriter;
use crate::page::{self, Page, PageKind};

/// A page that grows.
pub struct PageWriter<'a> {
    codec: &'a dyn PageCodec,
    kind: PageKind,
    bytes: Vec<u8>,
    /// The payload so far; `None`: each frame is encoded anew.
    growing: Option<Box<dyn GrowingPayload + 'a>>,
}

impl<'a> PageWriter<'a> {
    /// An empty page with room for the tokens of its layout.
    #[must_use]
    pub fn new(codec: &'a dyn PageCodec, mut kind: PageKind) -> Self {
        kind.shape.tokens = 0;
        Self { codec, kind, bytes: vec![0; kind.bytes()], growing: codec.grow(&kind) }
    }

    /// The kind of the page so far.
    #[must_use]
    pub const fn kind(&self) -> &PageKind {
        &self.kind
    }

    /// Appends tokens, `[token][head][channel]`, rounded to the page's element type.
    ///
    /// # Panics
    /// A token is incomplete, or there are more tokens than room.
    pub fn append(&mut self, values: &[f32]) {
        let (shape, layout) = (self.kind.shape, self.kind.layout);
        assert!(values.len().is_multiple_of(shape.token_values()), "incomplete token: append whole tokens");
        let more = values.len() / shape.token_values();
        assert!(more <= usize::from(layout.capacity - shape.tokens), "the page has no room for {more} tokens");
        let first = usize::from(shape.tokens);
        self.kind.shape.tokens += more as u16;
        for (row, values) in values.chunks_exact(shape.dim.into()).enumerate() {
            let (token, head) = (first + row / usize::from(shape.heads), row % usize::from(shape.heads));
            for (channel, value) in values.iter().enumerate() {
                let place = layout.place(self.kind.shape, head, token, channel);
                page::store(self.kind.element, &mut self.bytes, place, *value);
            }
        }
        let page = Page::new(self.kind, &self.bytes);
        if let Some(growing) = &mut self.growing
            && more > 0
            && growing.append(&page, first).is_err()
        {
            self.growing = None;
        }
    }

    /// Appends the frame of all tokens so far and returns its codec; `None`: there are no tokens.
    pub fn frame(&self, frames: &mut Vec<u8>) -> Option<CodecId> {
        if self.kind.shape.values() == 0 {
            return None;
        }
        let page = Page::new(self.kind, &self.bytes);
        if let Some(growing) = &self.growing {
            let (id, raw_bytes) = (self.codec.id(), self.kind.shape.values() * self.kind.element.bytes());
            let mut frame = FrameWriter::begin(frames, id, self.codec.version(), &self.kind, self.codec.profile());
            if growing.payload(&page, frame.payload()).is_ok() && frame.payload_len() < raw_bytes {
                frame.end();
                return Some(id);
            }
            frame.abandon();
        }
        Some(encode(self.codec, &page, frames))
    }
}
