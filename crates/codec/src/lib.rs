//! Floor 1: codecs for pages of a KV cache.
//!
//! A codec turns one [`Page`] into the payload of a [`Frame`] and back, without looking at any other page. A frame says
//! how it was made, so pages of different codecs may lie side by side. Frames are input: whatever bytes they are, decoding
//! ends in a page or in a [`DecodeError`].
//!
//! | codec | bits a value | what it is |
//! |---|---|---|
//! | [`Raw`] | as the page | the values |
//! | [`SpecKv`] | 8 and less | INT8 with a scale a page; differences along channels; runs of zeros (SpecKV §3.5) |
//! | [`Oaken`] | 4.8 and scales | three groups by magnitude, thresholds known beforehand (Oaken §4) |
//! | [`QPack`] | what a bound on the error takes | a mean and a step for each channel known beforehand, widths by page |
//! | [`QPackZ`] | half a bit less | the same codes, entropy-coded with tables known beforehand |
#![deny(unsafe_code)]

mod frame;
mod oaken;
mod page;
pub mod profile;
mod qpack;
mod qpackz;
mod raw;
#[allow(unsafe_code, reason = "vector instructions")]
mod simd;
mod spec;
mod speckv;
mod tile;
mod writer;

pub use frame::{Frame, HEADER_BYTES};
pub use oaken::{Groups, Oaken, OakenWriter, Thresholds};
pub use page::{Element, Layout, Order, Page, PageKind, PageMut, Shape, Side};
pub use profile::{Profile, ProfileError, SideProfile};
pub use qpack::{Channels, QPack};
pub use qpackz::QPackZ;
pub use raw::Raw;
pub use simd::{Level, at_level};
pub use spec::{CodecSpec, LayerSpecs, SpecError};
pub use speckv::{SpecKv, SpecKvMode};
pub use writer::{GrowingPayload, PageWriter};

use frame::FrameWriter;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which codec made a payload: a byte that frames bear for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CodecId {
    /// [`Raw`]
    Raw = 0,
    /// [`SpecKv`]
    SpecKv = 1,
    /// [`Oaken`]
    Oaken = 2,
    /// [`QPack`]
    QPack = 3,
    /// [`QPackZ`]
    QPackZ = 4,
}

impl CodecId {
    /// The codec of this number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raw),
            1 => Some(Self::SpecKv),
            2 => Some(Self::Oaken),
            3 => Some(Self::QPack),
            4 => Some(Self::QPackZ),
            _ => None,
        }
    }
}

/// Why bytes do not decode to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are fewer than a frame takes.
    #[error("the frame is cut short")]
    Truncated,
    /// There are more than the frame takes: by so many.
    #[error("{0} bytes follow the frame")]
    Trailing(usize),
    /// They are not what was written.
    #[error("the frame's checksum does not hold")]
    Checksum,
    /// A field of the header has a value without a meaning.
    #[error("the frame's header does not hold: {0}")]
    Header(&'static str),
    /// No codec has this number.
    #[error("no codec has the number {0}")]
    UnknownCodec(u8),
    /// A version of a payload that this program does not know.
    #[error("version {version} of codec {codec:?} is not known")]
    UnknownVersion {
        /// Whose.
        codec: CodecId,
        /// Which.
        version: u8,
    },
    /// A profile that nobody has given to this program.
    #[error("profile {0:08x} is not known")]
    UnknownProfile(u32),
    /// The frame is of a page of another shape, side or layer.
    #[error("the frame is of another kind of page")]
    OtherPage,
    /// The payload is none of this codec.
    #[error("the payload does not hold: {0}")]
    Payload(&'static str),
}

/// A page that a codec leaves to [`Raw`]: it has values that are no numbers, or would not become smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declined;

/// One way of encoding pages.
pub trait PageCodec: Send + Sync {
    /// Its number.
    fn id(&self) -> CodecId;

    /// Version of the payloads that it makes.
    fn version(&self) -> u8 {
        1
    }

    /// What frames must be decoded with; 0: nothing.
    fn profile(&self) -> u32 {
        0
    }

    /// Appends the payload of a page.
    ///
    /// # Errors
    /// The page is not for this codec. What was appended is of no use then.
    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined>;

    /// What keeps the payload of a page that grows ([`PageWriter`]), empty now, from being made anew; none: it has to be.
    fn grow(&self, kind: &PageKind) -> Option<Box<dyn GrowingPayload + '_>> {
        let _ = kind;
        None
    }

    /// Decodes a payload of this codec, version and profile, of a page of just this kind (but its element type).
    ///
    /// # Errors
    /// The payload does not hold. What the page has then is undefined.
    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError>;
}

/// Appends the frame of a page, and returns how it was encoded: where the codec declines, or would not make the page
/// smaller, as it is (SpecKV's early exit, §3.5.3).
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

/// Codecs by what frames say of themselves.
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
    /// From now on frames of this codec and profile decode.
    pub fn add(&mut self, codec: Arc<dyn PageCodec>) {
        self.0.insert((codec.id(), codec.profile()), codec);
    }

    /// Decodes a frame into a page of the same kind, of any element type and layout.
    ///
    /// # Errors
    /// The bytes are not one whole frame, its codec or profile is not known, or it is of another kind of page.
    pub fn decode(&self, frame: &[u8], page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        self.decode_frame(&Frame::parse(frame)?, page)
    }

    /// The same of a frame that was parsed.
    ///
    /// # Errors
    /// As for [`Self::decode`].
    pub fn decode_frame(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        self.codec_of(frame, page.kind())?.decode_payload(frame, page)
    }

    /// What decodes a frame into such a page: all that can be said without a look at the payload.
    ///
    /// # Errors
    /// The frame's codec or profile is not known, or it is of another kind of page.
    pub fn codec_of(&self, frame: &Frame<'_>, kind: &PageKind) -> Result<&dyn PageCodec, DecodeError> {
        if (frame.shape, frame.side, frame.layer) != (kind.shape, kind.side, kind.layer) {
            return Err(DecodeError::OtherPage);
        }
        let codec = self.0.get(&(frame.codec, frame.profile)).ok_or(DecodeError::UnknownProfile(frame.profile))?;
        if frame.version != codec.version() {
            return Err(DecodeError::UnknownVersion { codec: frame.codec, version: frame.version });
        }
        Ok(&**codec)
    }
}
