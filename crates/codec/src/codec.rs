//! The traits of codecs.

use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{Page, PageKind, PageMut};
use std::ops::Range;

/// A way to encode pages.
pub trait PageCodec: Send + Sync {
    /// The id in frames.
    fn id(&self) -> CodecId;

    /// The version of its payloads.
    fn version(&self) -> u8 {
        1
    }

    /// The id of the profile that decoding needs; 0: none.
    fn profile(&self) -> u32 {
        0
    }

    /// Appends the payload of a page.
    ///
    /// # Errors
    /// The codec declines the page. The appended bytes are undefined.
    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined>;

    /// A growing payload of an empty page, for [`PageWriter`](crate::PageWriter). `None`: payloads
    /// cannot grow and are encoded anew.
    fn grow(&self, kind: &PageKind) -> Option<Box<dyn GrowingPayload + '_>> {
        let _ = kind;
        None
    }

    /// Decodes a payload of this codec, version and profile to a page of the same kind; the element
    /// type and the layout may differ.
    ///
    /// # Errors
    /// The payload is invalid. The page is undefined then.
    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError>;

    /// The same codec, if a frame of it has the pages of several layers. It then declines single
    /// pages.
    fn as_group(&self) -> Option<&dyn GroupCodec> {
        None
    }
}

/// A codec with one side of several layers in a frame. The frame names the first layer.
pub trait GroupCodec: Send + Sync {
    /// The group of a layer; one of a model with fewer layers may be empty.
    fn layers(&self, layer: u16) -> Range<u16>;

    /// Appends the payload of the pages of one side of a group, in the order of layers. `position`:
    /// that of the first token in its sequence.
    ///
    /// # Errors
    /// The codec declines the pages. The appended bytes are undefined.
    fn encode_group(&self, pages: &[Page<'_>], position: u32, payload: &mut Vec<u8>) -> Result<(), Declined>;

    /// Decodes some pages of a group.
    ///
    /// # Errors
    /// The payload is invalid, or a page is not of this group and side. All pages are undefined then.
    fn decode_group(&self, frame: &Frame<'_>, pages: &mut [PageMut<'_>]) -> Result<(), DecodeError>;
}

/// A payload that grows with its page.
pub trait GrowingPayload {
    /// Takes the tokens of a page from `first` on; earlier calls took those before.
    ///
    /// # Errors
    /// The codec declines the page. No other call follows.
    fn append(&mut self, page: &Page<'_>, first: usize) -> Result<(), Declined>;

    /// Appends the payload of all tokens of the page of the last call.
    ///
    /// # Errors
    /// As for [`PageCodec::encode_payload`].
    fn payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined>;
}
