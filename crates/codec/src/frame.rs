//! Frames: encoded pages with a header that names their codec and kind.
//!
//! | bytes | |
//! |---|---|
//! | 0 | codec ([`CodecId`]) |
//! | 1 | version of its payload |
//! | 2 | element type of the encoded page: 0 f16, 1 bf16, 2 f32; 16 is added for V |
//! | 3 | 0 |
//! | 4..6, 6..8, 8..10 | heads, channels of a head, tokens |
//! | 10..12 | layer |
//! | 12..16 | profile, 0: none |
//! | 16..20 | bytes of the payload |
//! | 20..24 | CRC-32 of bytes 0 to 20 and of the payload |
//! | 24.. | payload |
//!
//! All numbers are little-endian. [`Frame::parse`] accepts any bytes and returns an error unless
//! they are a frame.

use crate::error::{CodecId, DecodeError};
use crate::page::{Element, PageKind, Shape, Side};

/// Bytes of the header, before the payload.
pub const HEADER_BYTES: usize = 24;

const V_BIT: u8 = 16;

/// A frame with a verified checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The codec.
    pub codec: CodecId,
    /// The version of the payload.
    pub version: u8,
    /// The element type of the encoded page. Decoding may write another type.
    pub element: Element,
    /// Keys or values.
    pub side: Side,
    /// The number of values.
    pub shape: Shape,
    /// The layer of the model, from 0.
    pub layer: u16,
    /// The profile of the encoder; 0: none.
    pub profile: u32,
    /// Bytes for the codec.
    pub payload: &'a [u8],
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl<'a> Frame<'a> {
    /// Splits bytes into their first frame and the rest.
    ///
    /// # Errors
    /// The bytes do not begin with a whole frame of a known codec.
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(DecodeError::Truncated)?;
        let (payload, rest) = rest.split_at_checked(word(header, 16) as usize).ok_or(DecodeError::Truncated)?;
        if checksum(header, payload) != word(header, 20) {
            return Err(DecodeError::Checksum);
        }
        let side = if header[2] & V_BIT == 0 { Side::K } else { Side::V };
        let element = match header[2] & !V_BIT {
            0 => Element::F16,
            1 => Element::Bf16,
            2 => Element::F32,
            _ => return Err(DecodeError::Header("element type")),
        };
        if header[3] != 0 {
            return Err(DecodeError::Header("reserved byte"));
        }
        let shape = Shape { heads: half(header, 4), dim: half(header, 6), tokens: half(header, 8) };
        if shape.values() == 0 {
            return Err(DecodeError::Header("a page without values"));
        }
        let frame = Self {
            codec: CodecId::of(header[0]).ok_or(DecodeError::UnknownCodec(header[0]))?,
            version: header[1],
            element,
            side,
            shape,
            layer: half(header, 10),
            profile: word(header, 12),
            payload,
        };
        Ok((frame, rest))
    }

    /// Parses bytes that are one frame.
    ///
    /// # Errors
    /// The bytes are not one whole frame of a known codec.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match Self::split(bytes)? {
            (frame, []) => Ok(frame),
            (_, rest) => Err(DecodeError::Trailing(rest.len())),
        }
    }
}

/// A frame that is being written at the end of a buffer.
pub(crate) struct FrameWriter<'a> {
    buffer: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> FrameWriter<'a> {
    /// Begins the frame of a page. The payload follows, through [`Self::payload`].
    pub fn begin(buffer: &'a mut Vec<u8>, codec: CodecId, version: u8, kind: &PageKind, profile: u32) -> Self {
        let start = buffer.len();
        let element = match kind.element {
            Element::F16 => 0,
            Element::Bf16 => 1,
            Element::F32 => 2,
        };
        let side = if kind.side == Side::V { V_BIT } else { 0 };
        buffer.extend([codec as u8, version, element | side, 0]);
        for number in [kind.shape.heads, kind.shape.dim, kind.shape.tokens, kind.layer] {
            buffer.extend(number.to_le_bytes());
        }
        buffer.extend(profile.to_le_bytes());
        buffer.extend([0; 8]);
        Self { buffer, start }
    }

    /// The buffer; the payload grows at its end.
    pub const fn payload(&mut self) -> &mut Vec<u8> {
        self.buffer
    }

    /// Bytes of the payload so far.
    pub const fn payload_len(&self) -> usize {
        self.buffer.len() - self.start - HEADER_BYTES
    }

    /// Fills in length and checksum.
    pub fn end(self) {
        let len = u32::try_from(self.payload_len()).expect("a page is less than 4 GiB");
        let (header, payload) = self.buffer[self.start..].split_at_mut(HEADER_BYTES);
        header[16..20].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(header, payload);
        header[20..24].copy_from_slice(&sum.to_le_bytes());
    }

    /// Removes the frame from the buffer.
    pub fn abandon(self) {
        self.buffer.truncate(self.start);
    }
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..20]);
    hasher.update(payload);
    hasher.finalize()
}
