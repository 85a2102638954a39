//! The trait of codecs.

use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{Page, PageKind, PageMut};

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
