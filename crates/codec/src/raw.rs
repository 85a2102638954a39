//! Raw: pages as they are, `[head][token][channel]`, without padding.

use crate::codec::PageCodec;
use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{self, Element, Order, Page, PageKind, PageMut};
use crate::simd::ByLevel;

#[cfg(target_arch = "x86_64")]
mod avx2;

/// Kernels for pages of 16-bit elements in another order than the payload. Callers must guarantee
/// that the machine has the level.
struct Kernels {
    read: unsafe fn(&Page<'_>, &mut [u8]),
    write: unsafe fn(&[u8], &mut PageMut<'_>),
}

static KERNELS: ByLevel<Kernels> = ByLevel {
    scalar: Kernels { read, write },
    #[cfg(target_arch = "x86_64")]
    avx2: Kernels { read: avx2::read, write: avx2::write },
    #[cfg(target_arch = "x86_64")]
    avx512: Kernels { read: avx2::read, write: avx2::write },
};

/// Stores values as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

/// Calls `run` with the places of a run in the page and in the payload, and its length: all in
/// bytes.
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

/// Whether a page has 16-bit elements in another order than the payload.
fn is_scattered(kind: &PageKind) -> bool {
    kind.element != Element::F32 && kind.layout.order != Order::TokenMajor
}

fn read(page: &Page<'_>, payload: &mut [u8]) {
    runs(page.kind(), |place, at, len| payload[at..at + len].copy_from_slice(&page.bytes()[place..place + len]));
}

fn write(payload: &[u8], page: &mut PageMut<'_>) {
    let (kind, bytes) = (*page.kind(), page.bytes_mut());
    runs(&kind, |place, at, len| bytes[place..place + len].copy_from_slice(&payload[at..at + len]));
}

pub(crate) fn encode(page: &Page<'_>, payload: &mut Vec<u8>) {
    if is_scattered(page.kind()) {
        let start = payload.len();
        payload.resize(start + page.kind().shape.values() * page.kind().element.bytes(), 0);
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (KERNELS.current().read)(page, &mut payload[start..]) };
    } else {
        runs(page.kind(), |place, _, len| payload.extend_from_slice(&page.bytes()[place..place + len]));
    }
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
        if frame.element == kind.element {
            let kernels = if is_scattered(&kind) { KERNELS.current() } else { &KERNELS.scalar };
            // SAFETY: `current` returns kernels of a level of this machine; scalar ones run on all.
            unsafe { (kernels.write)(frame.payload, page) };
            return Ok(());
        }
        let (bytes, to) = (page.bytes_mut(), kind.element.bytes());
        runs(&kind, |place, at, len| {
            for value in 0..len / to {
                let number = page::load(frame.element, frame.payload, (at / to) + value);
                page::store(kind.element, &mut bytes[place..], value, number);
            }
        });
        Ok(())
    }
}
