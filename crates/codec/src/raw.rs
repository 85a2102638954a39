//! Pages as they are: `[head][token][channel]`, without padding.

use crate::page::{self, Order, Page, PageKind, PageMut};
use crate::{CodecId, Declined, DecodeError, Frame, PageCodec};

/// Leaves every value as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

/// Calls `run` with places of the page and of the payload, in bytes, and how many bytes lie together at both.
fn runs(kind: &PageKind, mut run: impl FnMut(usize, usize, usize)) {
    let (shape, size) = (kind.shape, kind.element.bytes());
    let together = if kind.layout.order == Order::TokenMajor { shape.dim as usize } else { 1 };
    let mut at = 0;
    for head in 0..shape.heads as usize {
        for token in 0..shape.tokens as usize {
            for channel in (0..shape.dim as usize).step_by(together) {
                run(kind.layout.place(shape, head, token, channel) * size, at, together * size);
                at += together * size;
            }
        }
    }
}

pub(crate) fn encode(page: &Page<'_>, payload: &mut Vec<u8>) {
    runs(page.kind(), |place, _, len| payload.extend_from_slice(&page.bytes()[place..place + len]));
}

impl PageCodec for Raw {
    fn id(&self) -> CodecId {
        CodecId::Raw
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        encode(page, payload);
        Ok(())
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let kind = *page.kind();
        if frame.payload.len() != kind.shape.values() * frame.element.bytes() {
            return Err(DecodeError::Payload("values are missing"));
        }
        let bytes = page.bytes_mut();
        if frame.element == kind.element {
            runs(&kind, |place, at, len| bytes[place..place + len].copy_from_slice(&frame.payload[at..at + len]));
        } else {
            let to = kind.element.bytes();
            runs(&kind, |place, at, len| {
                for value in 0..len / to {
                    let number = page::load(frame.element, frame.payload, (at / to) + value);
                    page::store(kind.element, &mut bytes[place..], value, number);
                }
            });
        }
        Ok(())
    }
}
