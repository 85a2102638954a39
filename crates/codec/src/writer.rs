//! Pages that fill: tokens are appended as they come, and there is a frame of all so far at any time.
//!
//! A frame is what [`encode`] makes of the same tokens at once, byte for byte. Codecs whose payloads grow say so
//! ([`PageCodec::grow`]): Oaken keeps what tokens became, QPack what whole sixteens of tokens became. Where all values of a page
//! have a part in every code, as a scale has or the states of a coder, a frame is encoded anew, which nobody can avoid.

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
    /// What was kept of its payload; none: nothing can be.
    growing: Option<Box<dyn GrowingPayload + 'a>>,
}

impl<'a> PageWriter<'a> {
    /// An empty page with room for as many tokens as its layout has.
    #[must_use]
    pub fn new(codec: &'a dyn PageCodec, mut kind: PageKind) -> Self {
        kind.shape.tokens = 0;
        Self { codec, kind, bytes: vec![0; kind.bytes()], growing: codec.grow(&kind) }
    }

    /// What it is by now.
    #[must_use]
    pub const fn kind(&self) -> &PageKind {
        &self.kind
    }

    /// Appends tokens, `[token][head][channel]`, rounded to the page's element type.
    ///
    /// # Panics
    /// There is a part of a token, or more than there is room for.
    pub fn append(&mut self, values: &[f32]) {
        let (shape, layout) = (self.kind.shape, self.kind.layout);
        assert!(values.len().is_multiple_of(shape.token_values()), "whole tokens");
        let more = values.len() / shape.token_values();
        assert!(more <= usize::from(layout.capacity - shape.tokens), "room for all tokens");
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

    /// Appends the frame of all tokens so far, and returns how they were encoded. `None`: there are none.
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
