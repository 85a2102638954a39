//! Frames of a whole token block: a page each, or several layers together if the codec says so.
//!
//! Pages are in the order of layers, K before V. A frame stands where its first page does.

use crate::codec::PageCodec;
use crate::codecs::{Codecs, encode};
use crate::error::DecodeError;
use crate::frame::{Frame, FrameWriter};
use crate::page::{Page, PageKind, PageMut};
use std::ops::Range;

/// A page of a block, with the codec that encodes it.
#[derive(Clone, Copy)]
pub struct BlockPage<'a> {
    /// What it is.
    pub kind: &'a PageKind,
    /// Its bytes, as many as its kind has.
    pub bytes: &'a [u8],
    /// Its codec.
    pub codec: &'a dyn PageCodec,
}

impl BlockPage<'_> {
    fn page(&self) -> Page<'_> {
        Page::new(*self.kind, self.bytes)
    }
}

/// A frame without its payload, and the payload's place in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedFrame {
    /// The frame; its payload is empty.
    pub frame: Frame<'static>,
    /// The bytes of the payload.
    pub payload: Range<usize>,
}

/// The places of the pages of one side of a group, among the pages of a block.
fn places_of(kinds: impl Iterator<Item = (usize, PageKind)>, of: &PageKind, layers: &Range<u16>) -> Vec<usize> {
    kinds.filter(|(_, kind)| kind.side == of.side && layers.contains(&kind.layer)).map(|(place, _)| place).collect()
}

/// Appends the frames of a block. `position`: that of its first token in its sequence.
///
/// # Panics
/// The bytes of a page do not fit its kind.
pub fn encode_block(pages: &[BlockPage<'_>], position: u32, frames: &mut Vec<u8>) {
    let mut are_done = vec![false; pages.len()];
    for at in 0..pages.len() {
        if are_done[at] {
            continue;
        }
        let BlockPage { kind, codec, .. } = pages[at];
        if let Some(group) = codec.as_group() {
            let kinds = pages.iter().map(|page| *page.kind).enumerate();
            let places = places_of(kinds, kind, &group.layers(kind.layer));
            let same = |place: &usize| {
                let other = pages[*place].codec;
                (other.id(), other.profile()) == (codec.id(), codec.profile())
            };
            let raw_bytes = places.len() * kind.shape.values() * kind.element.bytes();
            if places.first() == Some(&at) && places.iter().all(same) {
                let of_group: Vec<Page<'_>> = places.iter().map(|place| pages[*place].page()).collect();
                let mut frame = FrameWriter::begin(frames, codec.id(), codec.version(), kind, codec.profile());
                if group.encode_group(&of_group, position, frame.payload()).is_ok() && frame.payload_len() < raw_bytes {
                    frame.end();
                    places.into_iter().for_each(|place| are_done[place] = true);
                    continue;
                }
                frame.abandon();
            }
        }
        encode(codec, &pages[at].page(), frames);
    }
}

impl PlacedFrame {
    /// The frame with its payload, from the bytes of the block.
    #[must_use]
    pub fn within<'a>(&self, bytes: &'a [u8]) -> Frame<'a> {
        Frame { payload: &bytes[self.payload.clone()], ..self.frame }
    }
}

impl Codecs {
    /// Decodes a block of these pages. Returns the number of bytes that it takes.
    ///
    /// # Errors
    /// The bytes do not begin with a block of these pages, or a payload is invalid.
    pub fn decode_block(&self, bytes: &[u8], pages: Vec<PageMut<'_>>) -> Result<usize, DecodeError> {
        let kinds: Vec<PageKind> = pages.iter().map(|page| *page.kind()).collect();
        let (frames, len) = self.split_block(&kinds, bytes)?;
        let mut pages: Vec<Option<PageMut<'_>>> = pages.into_iter().map(Some).collect();
        for at in 0..pages.len() {
            let placed = &frames[at];
            let of_frame = pages.iter_mut().zip(&frames).filter(|(_, other)| other.payload == placed.payload);
            let mut together: Vec<PageMut<'_>> = of_frame.filter_map(|(page, _)| page.take()).collect();
            let Some(first) = together.first().map(|page| *page.kind()) else { continue };
            let frame = placed.within(bytes);
            let codec = self.codec_of(&frame, &first)?;
            match codec.as_group() {
                Some(group) => group.decode_group(&frame, &mut together)?,
                None => together.iter_mut().try_for_each(|page| codec.decode_payload(&frame, page))?,
            }
        }
        Ok(len)
    }

    /// Splits the bytes of a block into the frames of its pages, in their order, and the number of
    /// bytes that they take. Pages of a group have the same frame. Checks everything except the
    /// payloads' content: checksums are valid, codecs and profiles are known, and the pages are those
    /// of the block.
    ///
    /// # Errors
    /// The bytes do not begin with a block of these pages.
    pub fn split_block(&self, kinds: &[PageKind], bytes: &[u8]) -> Result<(Vec<PlacedFrame>, usize), DecodeError> {
        let mut frames: Vec<Option<PlacedFrame>> = vec![None; kinds.len()];
        let mut rest = bytes;
        for (at, kind) in kinds.iter().enumerate() {
            if frames[at].is_some() {
                continue;
            }
            let (frame, behind) = Frame::split(rest)?;
            let group = self.codec_of(&frame, kind)?.as_group();
            let end = bytes.len() - behind.len();
            let placed =
                PlacedFrame { frame: Frame { payload: &[], ..frame }, payload: end - frame.payload.len()..end };
            rest = behind;
            let places = match group {
                None => vec![at],
                Some(group) => places_of(kinds.iter().copied().enumerate(), kind, &group.layers(kind.layer)),
            };
            for place in places {
                // Each page of the group must be one of this frame, and have no other.
                self.codec_of(&frame, &kinds[place])?;
                if frames[place].replace(placed.clone()).is_some() {
                    return Err(DecodeError::OtherPage);
                }
            }
        }
        let frames: Option<Vec<PlacedFrame>> = frames.into_iter().collect();
        Ok((frames.ok_or(DecodeError::OtherPage)?, bytes.len() - rest.len()))
    }
}
