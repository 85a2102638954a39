//! Encoding with any codec, and decoding with the known ones.

use crate::codec::PageCodec;
use crate::error::{CodecId, DecodeError};
use crate::frame::{Frame, FrameWriter};
use crate::page::{Page, PageKind, PageMut};
use crate::raw::{self, Raw};
use crate::speckv::SpecKv;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Appends the frame of a page and returns its codec: [`Raw`] if the codec declines, or if the page
/// would not become smaller (SpecKV §3.5.3).
pub fn encode(codec: &dyn PageCodec, page: &Page<'_>, frames: &mut Vec<u8>) -> CodecId {
    let kind = page.kind();
    let raw_bytes = kind.shape.values() * kind.element.bytes();
    if codec.id() != CodecId::Raw {
        let mut frame = FrameWriter::begin(frames, codec.id(), codec.version(), kind, codec.profile());
        if codec.encode_payload(page, frame.payload()).is_ok() && frame.payload_len() < raw_bytes {
            frame.end();
            return codec.id();
        }
        frame.abandon();
    }
    let mut frame = FrameWriter::begin(frames, CodecId::Raw, Raw.version(), kind, 0);
    raw::encode(page, frame.payload());
    frame.end();
    CodecId::Raw
}

/// Codecs by id and profile.
#[derive(Clone)]
pub struct Codecs(BTreeMap<(CodecId, u32), Arc<dyn PageCodec>>);

impl Default for Codecs {
    fn default() -> Self {
        let mut codecs = Self(BTreeMap::new());
        codecs.add(Arc::new(Raw));
        codecs.add(Arc::new(SpecKv::default()));
        codecs
    }
}

impl Codecs {
    /// Adds a codec: frames of its id and profile decode from now on.
    pub fn add(&mut self, codec: Arc<dyn PageCodec>) {
        self.0.insert((codec.id(), codec.profile()), codec);
    }

    /// Decodes a frame into a page of the same kind, of any element type and layout.
    ///
    /// # Errors
    /// The bytes are not one whole frame, the codec or profile is unknown, or the kind of page
    /// differs.
    pub fn decode(&self, frame: &[u8], page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        self.decode_frame(&Frame::parse(frame)?, page)
    }

    /// As [`Self::decode`], of a parsed frame.
    ///
    /// # Errors
    /// As for [`Self::decode`].
    pub fn decode_frame(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        self.codec_of(frame, page.kind())?.decode_payload(frame, page)
    }

    /// The codec of a frame for a kind of page. It does not look at the payload.
    ///
    /// # Errors
    /// The codec or profile is unknown, or the kind of page differs.
    pub fn codec_of(&self, frame: &Frame<'_>, kind: &PageKind) -> Result<&dyn PageCodec, DecodeError> {
        if (frame.shape, frame.side) != (kind.shape, kind.side) {
            return Err(DecodeError::OtherPage);
        }
        let codec = self.0.get(&(frame.codec, frame.profile)).ok_or(DecodeError::UnknownProfile(frame.profile))?;
        if frame.version != codec.version() {
            return Err(DecodeError::UnknownVersion { codec: frame.codec, version: frame.version });
        }
        let has_page = match codec.as_group() {
            None => frame.layer == kind.layer,
            Some(group) => {
                let layers = group.layers(kind.layer);
                layers.contains(&kind.layer) && frame.layer == layers.start
            }
        };
        if !has_page {
            return Err(DecodeError::OtherPage);
        }
        Ok(&**codec)
    }
}
