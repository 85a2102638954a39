//! SpecKV's compression (SpecKV §3.5, Algorithm 2): INT8 with one scale a page, then differences between neighbouring
//! channels, then run lengths.
//!
//! The algorithm as printed divides by `s = max|X| / 127` and multiplies by 127 once more, which gives numbers up to 16,129
//! where eight bits are meant, and it rounds down. Here a code is `round(x / s)`, to nearest. "Run lengths" are those of
//! zeros, which are all that pays for values that are no symbols: `0, n` stands for `n + 1` zeros. Differences wrap at eight
//! bits, so they need no ninth. A payload that would be shorter without its last step is stored without it.
//!
//! Payload: `u8` steps (0 codes, 1 differences, 2 differences and runs) · `f32` scale · codes `[head][token][channel]`.
//! The error is at most half a scale, but for the rounding of the page's element type.

use crate::page::{Page, PageMut, Shape};
use crate::{CodecId, Declined, DecodeError, Frame, PageCodec};

const HEAD: usize = 5;
/// The largest code.
const CODE_MAX: f32 = 127.0;
/// Zeros that one pair of bytes stands for.
const RUN_MAX: usize = 256;

/// How many of the algorithm's steps are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecKvMode {
    /// Codes.
    Int8 = 0,
    /// Differences of codes along channels.
    Delta = 1,
    /// The same with runs of zeros shortened: the paper's algorithm.
    #[default]
    DeltaRle = 2,
}

/// INT8, differences, run lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecKv {
    /// How far encoding goes; decoding knows from the payload.
    pub mode: SpecKvMode,
}

impl PageCodec for SpecKv {
    fn id(&self) -> CodecId {
        CodecId::SpecKv
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let shape = page.kind().shape;
        let mut values = vec![0.0; shape.values()];
        for (head, values) in values.chunks_exact_mut(shape.head_values()).enumerate() {
            page.read_head(head, values);
        }
        let mut codes = vec![0; values.len()];
        let scale = quantize(&values, &mut codes).ok_or(Declined)?;
        let mut mode = self.mode;
        if mode >= SpecKvMode::Delta {
            differences(&mut codes, shape);
        }
        let start = payload.len();
        payload.push(mode as u8);
        payload.extend(scale.to_le_bytes());
        if mode == SpecKvMode::DeltaRle {
            shorten_runs(&codes, payload);
            if payload.len() - start >= HEAD + codes.len() {
                mode = SpecKvMode::Delta;
                payload.truncate(start + HEAD);
                payload[start] = mode as u8;
            }
        }
        if mode != SpecKvMode::DeltaRle {
            payload.extend(codes.iter().map(|code| code.cast_unsigned()));
        }
        Ok(())
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let shape = frame.shape;
        let (head, rest) = frame.payload.split_at_checked(HEAD).ok_or(DecodeError::Payload("no scale"))?;
        let scale = f32::from_le_bytes(head[1..].try_into().expect("four bytes"));
        if !(0.0..f32::INFINITY).contains(&scale) {
            return Err(DecodeError::Payload("the scale is no scale"));
        }
        let mut codes: Vec<i8> = match head[0] {
            0 | 1 => rest.iter().map(|byte| byte.cast_signed()).collect(),
            2 => lengthen_runs(rest, shape.values())?,
            _ => return Err(DecodeError::Payload("no such steps")),
        };
        if codes.len() != shape.values() {
            return Err(DecodeError::Payload("codes are missing"));
        }
        if head[0] > 0 {
            sums(&mut codes, shape);
        }
        let mut values = vec![0.0; shape.head_values()];
        for (head, codes) in codes.chunks_exact(shape.head_values()).enumerate() {
            values.iter_mut().zip(codes).for_each(|(value, &code)| *value = f32::from(code) * scale);
            page.write_head(head, &values);
        }
        Ok(())
    }
}

/// Codes of values, and the scale; `None` where some are no numbers, or so small that there is none.
fn quantize(values: &[f32], codes: &mut [i8]) -> Option<f32> {
    let mut largest = 0.0_f32;
    for value in values {
        if !value.is_finite() {
            return None;
        }
        largest = largest.max(value.abs());
    }
    if largest == 0.0 {
        codes.fill(0);
        return Some(0.0);
    }
    let inverse = CODE_MAX / largest;
    if !inverse.is_finite() {
        return None;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse).round_ties_even().clamp(-CODE_MAX, CODE_MAX) as i8;
    }
    Some(largest / CODE_MAX)
}

/// Each code but the first of a token and head becomes its difference to the one before it.
fn differences(codes: &mut [i8], shape: Shape) {
    for row in codes.chunks_exact_mut(shape.dim as usize) {
        for channel in (1..row.len()).rev() {
            row[channel] = row[channel].wrapping_sub(row[channel - 1]);
        }
    }
}

fn sums(codes: &mut [i8], shape: Shape) {
    for row in codes.chunks_exact_mut(shape.dim as usize) {
        for channel in 1..row.len() {
            row[channel] = row[channel].wrapping_add(row[channel - 1]);
        }
    }
}

fn shorten_runs(codes: &[i8], bytes: &mut Vec<u8>) {
    let mut rest = codes;
    while let Some((&code, behind)) = rest.split_first() {
        bytes.push(code.cast_unsigned());
        rest = behind;
        if code == 0 {
            let more = rest.iter().take(RUN_MAX - 1).take_while(|&&code| code == 0).count();
            bytes.push(more as u8);
            rest = &rest[more..];
        }
    }
}

fn lengthen_runs(bytes: &[u8], count: usize) -> Result<Vec<i8>, DecodeError> {
    let mut codes = Vec::with_capacity(count);
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next() {
        codes.push(byte.cast_signed());
        if byte == 0 {
            let &more = rest.next().ok_or(DecodeError::Payload("a run without a length"))?;
            codes.resize(codes.len() + usize::from(more), 0);
        }
        if codes.len() > count {
            return Err(DecodeError::Payload("more codes than values"));
        }
    }
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_come_back() {
        for zeros in [0, 1, 2, 255, 256, 257, 600] {
            let mut codes = vec![5, -3];
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
        let shape = Shape { heads: 1, tokens: 2, dim: 4 };
        let codes = [127, -127, 127, 0, -128, 127, 1, 1];
        let mut changed = codes;
        differences(&mut changed, shape);
        assert_eq!(changed[..2], [127, 2]);
        sums(&mut changed, shape);
        assert_eq!(changed, codes);
    }
}
