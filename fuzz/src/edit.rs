//! Edits of a file's bytes by an input, whatever the file is.

use super::input::Input;
use cenote_base::prng::Prng;
use std::ops::Range;

/// Most bytes that an edit leaves in a file.
const BYTES_MAX: usize = 4 << 20;

/// What an edit left as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// All bytes but these, each in its place.
    Within(Range<usize>),
    /// Perhaps nothing: bytes have moved.
    Everything,
}

/// Numbers that often break code, more often than chance would draw them.
pub(crate) fn number(input: &mut Input<'_>) -> u64 {
    match input.byte() % 16 {
        0 | 1 => u64::from(input.byte()),
        2 => u64::MAX - u64::from(input.byte()),
        3 => 1 << (input.byte() % 64),
        4 => (1_u64 << (input.byte() % 64)).wrapping_sub(1),
        5 => (1_u64 << (input.byte() % 64)).wrapping_add(u64::from(input.byte())),
        6 | 7 => 4096 * input.below(64),
        8 => 64 * input.below(1 << 12),
        9 => input.below(1 << 16),
        10 => input.below(1 << 32),
        11 => u64::from(u32::MAX) - u64::from(input.byte()),
        12 => (1 << 63) - u64::from(input.byte()),
        _ => input.word(),
    }
}

/// Puts a number at a place, as many of its bytes as `width`. A place past the end changes less.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    let from = at.min(bytes.len());
    let to = (at + width).min(bytes.len());
    bytes[from..to].copy_from_slice(&value.to_le_bytes()[..to - from]);
}

/// A place in a file: mostly near the beginning of a unit, where headers lie.
pub(crate) fn place(input: &mut Input<'_>, length: usize, unit: usize) -> usize {
    if length == 0 {
        return 0;
    }
    let units = length.div_ceil(unit) as u64;
    let at = match input.byte() % 8 {
        0 => input.below(length as u64) as usize,
        1 => length - 1 - input.below((length as u64).min(unit as u64)) as usize,
        2 | 3 => input.below(units) as usize * unit,
        _ => input.below(units) as usize * unit + input.below((unit as u64).min(128)) as usize,
    };
    at.min(length - 1)
}

/// A run of bytes of a file, mostly of whole units.
fn run(input: &mut Input<'_>, length: usize, unit: usize) -> Range<usize> {
    let from = place(input, length, unit) / unit * unit;
    let bytes =
        if input.chance(200) { unit * (1 + input.below(4) as usize) } else { input.below(3 * unit as u64) as usize };
    from.min(length)..(from + bytes).min(length)
}

/// Changes one place and moves nothing.
pub(crate) fn in_place(input: &mut Input<'_>, bytes: &mut [u8], unit: usize) -> Range<usize> {
    let at = place(input, bytes.len(), unit);
    if bytes.is_empty() {
        return 0..0;
    }
    match input.byte() % 8 {
        0 | 1 => {
            bytes[at] ^= 1 << (input.byte() % 8);
            at..at + 1
        }
        2 => {
            bytes[at] = input.byte();
            at..at + 1
        }
        3 => {
            let length = (1 + input.below(unit as u64) as usize).min(bytes.len() - at);
            let mut prng = Prng::new(input.word());
            bytes[at..at + length].iter_mut().for_each(|byte| *byte = prng.next_u64() as u8);
            at..at + length
        }
        4 => {
            let length = unit.min(bytes.len() - at);
            bytes[at..at + length].fill(0);
            at..at + length
        }
        _ => {
            let (at, width) = (at / 4 * 4, [1, 2, 4, 8][usize::from(input.byte() % 4)]);
            put(bytes, at, number(input), width);
            at..(at + width).min(bytes.len())
        }
    }
}

/// Changes a file in any way. `other`: a file whose parts may come in. `unit`: what its parts begin at
/// multiples of.
pub(crate) fn edit(input: &mut Input<'_>, bytes: &mut Vec<u8>, other: &[u8], unit: usize) -> Touched {
    let length = bytes.len();
    match input.byte() % 16 {
        0 => bytes.truncate(place(input, length, unit)),
        1 => {
            let more = if input.chance(128) { unit * input.below(8) as usize } else { input.below(200) as usize };
            bytes.resize(length + more, if input.chance(200) { 0 } else { 0xa5 });
        }
        2 => {
            let part = run(input, other.len(), unit);
            bytes.extend_from_slice(&other[part]);
        }
        3 => {
            // Swaps two parts.
            let (one, two) = (run(input, length, unit), run(input, length, unit));
            let kept = bytes.clone();
            let count = one.len().min(two.len());
            bytes[one.start..one.start + count].copy_from_slice(&kept[two.start..two.start + count]);
            bytes[two.start..two.start + count].copy_from_slice(&kept[one.start..one.start + count]);
        }
        4 => {
            // Doubles a part, or moves it.
            let part = run(input, length, unit);
            let copy = bytes[part.clone()].to_vec();
            if input.chance(128) {
                bytes.drain(part);
            }
            let at = place(input, bytes.len(), unit) / unit * unit;
            let at = at.min(bytes.len());
            bytes.splice(at..at, copy);
        }
        5 => drop(bytes.drain(run(input, length, unit))),
        6 => {
            let part = run(input, other.len(), unit);
            let at = place(input, length, unit) / unit * unit;
            let at = at.min(length);
            bytes.splice(at..at, other[part].iter().copied());
        }
        7 | 8 => {
            // A part of another place lies here.
            let source = if input.chance(128) { bytes.clone() } else { other.to_vec() };
            let part = run(input, source.len(), unit);
            let at = (place(input, length, unit) / unit * unit).min(length);
            let count = part.len().min(length - at);
            bytes[at..at + count].copy_from_slice(&source[part.start..part.start + count]);
        }
        _ => return Touched::Within(in_place(input, bytes, unit)),
    }
    bytes.truncate(BYTES_MAX);
    Touched::Everything
}
