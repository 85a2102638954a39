//! Raw: elements of 16 bits between a page and `[head][token][channel]`, as they are.

use crate::page::{Page, PageMut};
use crate::simd::avx2::{BF16, bytes_at, load_bytes, store_bytes};
use crate::simd::rows::Rows;
use crate::tile::{Axis, EDGE, PageRows, ROW_BYTES, Span};

/// Gathers the elements of a page.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn read(page: &Page<'_>, payload: &mut [u8]) {
    let kind = page.kind();
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        // Bits are only moved, so kernels for bfloats serve halves too.
        rows.load::<BF16>(page.bytes(), &PageRows::of(kind, &span), Axis::Tokens);
        for token in 0..span.tokens {
            let to = &mut payload[2 * span.first_of(kind.shape, token)..][..2 * span.channels];
            if let Some(to) = to.as_mut_array() {
                store_bytes(to, rows.bits[token]);
            } else {
                let mut all = [0; ROW_BYTES];
                store_bytes(&mut all, rows.bits[token]);
                to.copy_from_slice(&all[..2 * span.channels]);
            }
        }
    }
}

/// Scatters elements to a page.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn write(payload: &[u8], page: &mut PageMut<'_>) {
    let kind = *page.kind();
    let mut rows = Rows::zero();
    for span in Span::all(kind.shape) {
        for token in 0..span.tokens {
            let at = 2 * span.first_of(kind.shape, token);
            rows.bits[token] = if span.channels == EDGE {
                load_bytes(bytes_at(payload, at))
            } else {
                let mut some = [0; ROW_BYTES];
                some[..2 * span.channels].copy_from_slice(&payload[at..][..2 * span.channels]);
                load_bytes(&some)
            };
        }
        rows.store::<BF16>(page.bytes_mut(), &PageRows::of(&kind, &span), Axis::Tokens);
    }
}
