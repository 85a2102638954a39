//! SpecKV's compression (SpecKV §3.5, Algorithm 2): INT8 with one scale a page, then differences
//! between adjacent channels, then run lengths.
//!
//! The printed algorithm divides by `s = max|X| / 127` and multiplies by 127 again, which gives
//! numbers up to 16,129 for eight bits; and it rounds down. Here a code is `round(x / s)`, to nearest. Run lengths count zeros only: `0, n`
//! stands for `n + 1` zeros. Differences wrap at eight bits, so they need no ninth. If the last
//! step does not shorten a payload, it is left out.
//!
//! Payload: `u8` steps (0 and 3 codes, 1 differences, 2 differences and runs) · `f32` scale ·
//! codes. Differences and runs are in the order `[head][token][channel]`. Codes alone follow the
//! order of the writer's page, so equal pages stream: `[head][token / 16][channel / 16]`, then by
//! token and channel (0) or by channel and token (3). The error is at most half a scale, plus the
//! rounding to the page's element type.

use crate::codec::PageCodec;
use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{Page, PageMut};
use crate::simd::ByLevel;
use crate::tile::{Axis, EDGE, Span, Tile};
use std::borrow::Cow;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod rows;

/// The kernels of INT8. Callers must guarantee that the machine has the level.
struct Kernels {
    largest: unsafe fn(&Page<'_>) -> f32,
    quantize: unsafe fn(&Page<'_>, f32, &mut [u8]),
    quantize_tiles: unsafe fn(&Page<'_>, f32, &mut Vec<u8>),
    restore: unsafe fn(&[u8], f32, &mut PageMut<'_>),
    restore_tiles: unsafe fn(&[u8], Axis, f32, &mut PageMut<'_>),
    sums: unsafe fn(&mut [u8], usize),
}

static KERNELS: ByLevel<Kernels> = ByLevel {
    scalar: Kernels { largest, quantize, quantize_tiles, restore, restore_tiles, sums },
    #[cfg(target_arch = "x86_64")]
    avx2: Kernels {
        largest: avx2::largest,
        quantize: avx2::quantize,
        quantize_tiles: avx2::quantize_tiles,
        restore: avx2::restore,
        restore_tiles: avx2::restore_tiles,
        sums: avx2::sums,
    },
    #[cfg(target_arch = "x86_64")]
    avx512: Kernels {
        largest: avx512::largest,
        quantize: avx2::quantize,
        quantize_tiles: avx512::quantize_tiles,
        restore: avx2::restore,
        restore_tiles: avx512::restore_tiles,
        sums: avx2::sums,
    },
};

const HEAD: usize = 5;
/// Steps of a payload: codes by token, or by channel, within tiles.
const BY_TOKEN: u8 = SpecKvMode::Int8 as u8;
const BY_CHANNEL: u8 = 3;
/// The largest code.
const CODE_MAX: f32 = 127.0;
/// The most zeros of a run.
const RUN_MAX: usize = 256;

/// The steps of the algorithm that encoding takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecKvMode {
    /// Codes.
    Int8 = 0,
    /// Differences of codes along channels.
    Delta = 1,
    /// Differences with runs of zeros shortened: the paper's algorithm.
    #[default]
    DeltaRle = 2,
}

/// INT8, differences, run lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecKv {
    /// The steps of encoding. Decoding reads them from the payload.
    pub mode: SpecKvMode,
}

impl PageCodec for SpecKv {
    fn id(&self) -> CodecId {
        CodecId::SpecKv
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let kernels = KERNELS.current();
        let (count, dim) = (page.kind().shape.values(), usize::from(page.kind().shape.dim));
        // SAFETY: `current` returns kernels of a level of this machine.
        let (scale, inverse) = scale_of(unsafe { (kernels.largest)(page) }).ok_or(Declined)?;
        let start = payload.len();
        payload.push(self.mode as u8);
        payload.extend(scale.to_le_bytes());
        if self.mode == SpecKvMode::Int8 {
            payload[start] = if page.axis() == Axis::Tokens { BY_TOKEN } else { BY_CHANNEL };
            // SAFETY: `current` returns kernels of a level of this machine.
            unsafe { (kernels.quantize_tiles)(page, inverse, payload) };
            return Ok(());
        }
        let mut codes = vec![0; count];
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (kernels.quantize)(page, inverse, &mut codes) };
        if self.mode == SpecKvMode::DeltaRle {
            let mut changes = vec![0; count];
            differences(&codes, &mut changes, dim);
            shorten_runs(&changes, payload);
            if payload.len() - start < HEAD + count {
                return Ok(());
            }
            payload[start] = SpecKvMode::Delta as u8;
        }
        payload.resize(start + HEAD + count, 0);
        differences(&codes, &mut payload[start + HEAD..], dim);
        Ok(())
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let shape = frame.shape;
        let (head, rest) = frame.payload.split_at_checked(HEAD).ok_or(DecodeError::Payload("the scale is missing"))?;
        let scale = f32::from_le_bytes(head[1..].try_into().expect("four bytes"));
        if !(0.0..f32::INFINITY).contains(&scale) {
            return Err(DecodeError::Payload("the scale is negative or not finite"));
        }
        let mut codes: Cow<'_, [u8]> = match head[0] {
            BY_TOKEN | BY_CHANNEL | 1 => rest.into(),
            2 => lengthen_runs(rest, shape.values())?.into(),
            _ => return Err(DecodeError::Payload("unknown steps")),
        };
        if codes.len() != shape.values() {
            return Err(DecodeError::Payload("codes are missing"));
        }
        let kernels = KERNELS.current();
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe {
            match head[0] {
                BY_TOKEN => (kernels.restore_tiles)(&codes, Axis::Tokens, scale, page),
                BY_CHANNEL => (kernels.restore_tiles)(&codes, Axis::Channels, scale, page),
                _ => {
                    (kernels.sums)(codes.to_mut(), shape.dim.into());
                    (kernels.restore)(&codes, scale, page);
                }
            }
        }
        Ok(())
    }
}

/// The largest magnitude of a page; NaN or infinite if a value is.
fn largest(page: &Page<'_>) -> f32 {
    let (mut largest, mut tile) = (0.0_f32, Tile::ZERO);
    for span in Span::all(page.kind().shape) {
        page.load_tile(&span, Axis::Tokens, &mut tile);
        for value in tile.0 {
            if !value.is_finite() {
                return f32::INFINITY;
            }
            largest = largest.max(value.abs());
        }
    }
    largest
}

/// The scale of values up to `largest`, and its inverse; `None`: one of them is not finite.
fn scale_of(largest: f32) -> Option<(f32, f32)> {
    if largest == 0.0 {
        return Some((0.0, 0.0));
    }
    let inverse = CODE_MAX / largest;
    (largest.is_finite() && inverse.is_finite()).then_some((largest / CODE_MAX, inverse))
}

/// Stores the codes of a page's values, `[head][token][channel]`.
fn quantize(page: &Page<'_>, inverse: f32, codes: &mut [u8]) {
    let shape = page.kind().shape;
    let mut tile = Tile::ZERO;
    for span in Span::all(shape) {
        page.load_tile(&span, Axis::Tokens, &mut tile);
        for (token, values) in tile.0.chunks_exact(EDGE).enumerate().take(span.tokens) {
            for (code, value) in codes[span.first_of(shape, token)..][..span.channels].iter_mut().zip(values) {
                *code = code_of(*value, inverse);
            }
        }
    }
}

#[inline]
fn code_of(value: f32, inverse: f32) -> u8 {
    let scaled = (value * inverse).round_ties_even().clamp(-CODE_MAX, CODE_MAX);
    (scaled as i8).cast_unsigned()
}

/// Appends the codes of a page's values by tiles, with rows as the page has them.
fn quantize_tiles(page: &Page<'_>, inverse: f32, payload: &mut Vec<u8>) {
    let (axis, mut tile) = (page.axis(), Tile::ZERO);
    for span in Span::all(page.kind().shape) {
        page.load_tile(&span, axis, &mut tile);
        let (count, len) = span.rows(axis);
        for values in tile.0.chunks_exact(EDGE).take(count) {
            payload.extend(values[..len].iter().map(|value| code_of(*value, inverse)));
        }
    }
}

/// Stores the values of codes by tiles with rows of `axis`.
fn restore_tiles(codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>) {
    let (mut tile, mut rest) = (Tile::ZERO, codes);
    for span in Span::all(page.kind().shape) {
        let (count, len) = span.rows(axis);
        let (codes, behind) = rest.split_at(count * len);
        rest = behind;
        for (values, codes) in tile.0.chunks_exact_mut(EDGE).zip(codes.chunks_exact(len)) {
            values.iter_mut().zip(codes).for_each(|(value, code)| *value = f32::from(code.cast_signed()) * scale);
        }
        page.store_tile(&span, axis, &tile);
    }
}

/// Stores the values of codes, `[head][token][channel]`.
fn restore(codes: &[u8], scale: f32, page: &mut PageMut<'_>) {
    let shape = page.kind().shape;
    let mut tile = Tile::ZERO;
    for span in Span::all(shape) {
        for (token, values) in tile.0.chunks_exact_mut(EDGE).enumerate().take(span.tokens) {
            for (value, code) in values.iter_mut().zip(&codes[span.first_of(shape, token)..][..span.channels]) {
                *value = f32::from(code.cast_signed()) * scale;
            }
        }
        page.store_tile(&span, Axis::Tokens, &tile);
    }
}

/// Replaces codes by differences to the code before, except the first of a token and head.
fn differences(codes: &[u8], changes: &mut [u8], dim: usize) {
    for (codes, changes) in codes.chunks_exact(dim).zip(changes.chunks_exact_mut(dim)) {
        changes[0] = codes[0];
        for (change, pair) in changes[1..].iter_mut().zip(codes.windows(2)) {
            *change = pair[1].wrapping_sub(pair[0]);
        }
    }
}

/// Replaces differences by codes.
fn sums(codes: &mut [u8], dim: usize) {
    for row in codes.chunks_exact_mut(dim) {
        for channel in 1..row.len() {
            row[channel] = row[channel].wrapping_add(row[channel - 1]);
        }
    }
}

fn shorten_runs(codes: &[u8], bytes: &mut Vec<u8>) {
    let mut rest = codes;
    while let Some(zero) = rest.iter().position(|&code| code == 0) {
        let more = rest[zero + 1..].iter().take(RUN_MAX - 1).take_while(|&&code| code == 0).count();
        bytes.extend_from_slice(&rest[..=zero]);
        bytes.push(more as u8);
        rest = &rest[zero + 1 + more..];
    }
    bytes.extend_from_slice(rest);
}

fn lengthen_runs(bytes: &[u8], count: usize) -> Result<Vec<u8>, DecodeError> {
    let mut codes = Vec::with_capacity(count);
    let mut rest = bytes;
    while let Some(zero) = rest.iter().position(|&byte| byte == 0) {
        let &more = rest.get(zero + 1).ok_or(DecodeError::Payload("a run without a length"))?;
        if codes.len() + zero + 1 + usize::from(more) > count {
            return Err(DecodeError::Payload("more codes than values"));
        }
        codes.extend_from_slice(&rest[..=zero]);
        codes.resize(codes.len() + usize::from(more), 0);
        rest = &rest[zero + 2..];
    }
    codes.extend_from_slice(rest);
    if codes.len() > count { Err(DecodeError::Payload("more codes than values")) } else { Ok(codes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_come_back() {
        for zeros in [0, 1, 2, 255, 256, 257, 600] {
            let mut codes = vec![5, 250];
            codes.resize(2 + zeros, 0);
            codes.push(7);
            let mut bytes = Vec::new();
            shorten_runs(&codes, &mut bytes);
            assert_eq!(lengthen_runs(&bytes, codes.len()), Ok(codes.clone()));
            assert!(lengthen_runs(&bytes, codes.len() - 1).is_err());
            assert_eq!(bytes.len(), 3 + 2 * zeros.div_ceil(RUN_MAX));
        }
    }

    #[test]
    fn differences_wrap_and_come_back() {
        let codes = [127, -127, 127, 0, -128, 127, 1, 1].map(i8::cast_unsigned);
        let mut changes = [0; 8];
        differences(&codes, &mut changes, 4);
        assert_eq!(changes[..2], [127, 2]);
        sums(&mut changes, 4);
        assert_eq!(changes, codes);
    }
}
