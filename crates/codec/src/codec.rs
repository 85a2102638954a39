//! The trait of codecs.

use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{Page, PageKind, PageMut};

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

    /// What keeps the payload of a page that grows ([`PageWriter`](crate::PageWriter)), empty now, from being made anew; none: it has to be.
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

/// A payload that grows with its page.
pub trait GrowingPayload {
    /// Takes the tokens of a page from `first` on; those before were there at the last call.
    ///
    /// # Errors
    /// The page is no longer for this codec. No other call follows.
    fn append(&mut self, page: &Page<'_>, first: usize) -> Result<(), Declined>;

    /// Appends the payload of all tokens of the page that was given last.
    ///
    /// # Errors
    /// As for [`PageCodec::encode_payload`].
    fn payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined>;
}
