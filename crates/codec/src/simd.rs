//! Kernels for instruction sets, and which of them are used. What they give is bit for bit what the plain code gives,
//! which every codec has beside them and which runs on all other machines.
//!
//! Kernels are functions with `target_feature`, safe but for being called from elsewhere: the calls are here, and
//! what proves them is that [`Level::current`] only ever gives what the machine has.

#![cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only kernels look at some arguments"))]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::error::{Declined, DecodeError};
use crate::oaken::{Coder, Groups, Restorer};
use crate::page::{Page, PageMut};
use crate::qpack::{GROUP, Known};
use crate::qpackz::{Decoder, Part, Place, push_all};
use crate::tile::{Axis, EDGE, Span};
use std::cell::Cell;

thread_local! {
    /// What [`at_level`] asks for.
    static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Instruction sets that codecs tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every machine.
    Scalar,
    /// x86-64 with AVX2, FMA, F16C, BMI and POPCNT.
    Avx2,
    /// The same with AVX-512 (F, BW, VL, DQ, VBMI and VBMI2: Ice Lake, Zen 4 and what came later).
    Avx512,
}

/// Groups for which there are kernels that encode.
#[cfg(target_arch = "x86_64")]
const GROUPS_MAX: usize = 4;

impl Level {
    /// All levels of this machine, the fastest last.
    #[must_use]
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! has {
                ($($feature:tt),*) => { $(std::is_x86_feature_detected!($feature))&&* };
            }
            if has!("avx2", "fma", "f16c", "bmi1", "bmi2", "popcnt") {
                let has_more = has!("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512vbmi2");
                return if has_more { &[Self::Scalar, Self::Avx2, Self::Avx512] } else { &[Self::Scalar, Self::Avx2] };
            }
        }
        &[Self::Scalar]
    }

    /// The level that codecs use: the fastest, but inside of [`at_level`].
    #[must_use]
    pub fn current() -> Self {
        FORCED.get().or(Self::available().last().copied()).unwrap_or(Self::Scalar)
    }

    /// Whether registers have 64 bytes.
    #[cfg(target_arch = "x86_64")]
    const fn is_wide(self) -> bool {
        matches!(self, Self::Avx512)
    }

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Runs something with codecs of this thread at a level. For tests and benches.
///
/// # Panics
/// The machine does not have the level.
#[doc(hidden)]
pub fn at_level<T>(level: Level, run: impl FnOnce() -> T) -> T {
    /// Puts back what was, also where `run` panics.
    struct Before(Option<Level>);
    impl Drop for Before {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    assert!(Level::available().contains(&level), "this machine has no {level:?}");
    let _before = Before(FORCED.replace(Some(level)));
    run()
}

/// Appends the codes of up to sixteen tokens of a head that begin with `token`; `None`: the level has no kernel.
pub(crate) fn qpack_encode_group(
    level: Level,
    page: &Page<'_>,
    head: usize,
    token: usize,
    means: &[f32],
    steps: &[f32],
    payload: &mut Vec<u8>,
) -> Option<Result<(), Declined>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            Some(unsafe { avx2::qpack::encode_group(page, head, token, means, steps, payload, level.is_wide()) })
        }
        _ => None,
    }
}

/// Decodes up to sixteen tokens of a head that begin with `token`; returns what follows them, or that bytes are missing.
/// `None`: the level has no kernel.
pub(crate) fn qpack_decode_group<'a>(
    level: Level,
    payload: &'a [u8],
    known: &Known<'_>,
    page: &mut PageMut<'_>,
    head: usize,
    token: usize,
) -> Option<Option<&'a [u8]>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            Some(unsafe { avx2::qpack::decode_group(payload, known, page, head, token, level.is_wide()) })
        }
        _ => None,
    }
}

/// QPack's codes of a tile, by channel, as 16 bits or the nearest that these have; `None`: the level has no kernel.
pub(crate) fn qpack_codes(
    level: Level,
    page: &Page<'_>,
    span: &Span,
    means: &[f32],
    steps: &[f32],
    codes: &mut [i16; EDGE * EDGE],
) -> Option<Result<(), Declined>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this level.
        Level::Avx2 | Level::Avx512 => Some(unsafe { avx2::qpack::codes(page, span, means, steps, codes) }),
        _ => None,
    }
}

/// Takes sixteen symbols of a channel into their states, compiled for the level. Returns where words begin in the room.
#[inline]
pub(crate) fn qpackz_push(
    level: Level,
    states: &mut [u32; GROUP],
    symbols: &[i8; GROUP],
    places: &[Place; 256],
    room: &mut [u8; 2 * GROUP],
) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this level.
        Level::Avx2 | Level::Avx512 => unsafe { avx2::qpackz::push(states, symbols, places, room) },
        _ => push_all(states, symbols, places, room, GROUP),
    }
}

/// Decodes to a page; `None`: the level has no kernel. Sixteen slots gathered by one instruction of AVX-512 took longer, where
/// that was measured (Zen 4), than loads one by one, so AVX2's kernel is for both.
pub(crate) fn qpackz_decode(
    level: Level,
    decoder: &mut Decoder<'_>,
    part: &Part,
    page: &mut PageMut<'_>,
) -> Option<Result<(), DecodeError>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this level.
        Level::Avx2 | Level::Avx512 => Some(unsafe { avx2::qpackz::decode(decoder, part, page) }),
        _ => None,
    }
}

/// The largest magnitude of a page, which is no number or infinite where some value is so; `None`: the level has no kernel.
pub(crate) fn speckv_largest(level: Level, page: &Page<'_>) -> Option<f32> {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this level.
        Level::Avx2 | Level::Avx512 => Some(unsafe { avx2::speckv::largest(page, level.is_wide()) }),
        _ => None,
    }
}

/// Codes of a page's values, and whether the level has a kernel for that.
pub(crate) fn speckv_quantize(level: Level, page: &Page<'_>, inverse: f32, codes: &mut [u8]) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::speckv::quantize(page, inverse, codes) };
            true
        }
        _ => false,
    }
}

/// Stores what codes stand for, if the level has a kernel for that.
pub(crate) fn speckv_restore(level: Level, codes: &[u8], scale: f32, page: &mut PageMut<'_>) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::speckv::restore(codes, scale, page) };
            true
        }
        _ => false,
    }
}

/// Appends codes of a page's values by tiles, with rows as the page has them, if the level has a kernel for that.
pub(crate) fn speckv_quantize_tiles(level: Level, page: &Page<'_>, inverse: f32, payload: &mut Vec<u8>) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::speckv::quantize_tiles(page, inverse, payload, level.is_wide()) };
            true
        }
        _ => false,
    }
}

/// Stores what codes by tiles stand for, whose rows are of `axis`, if the level has a kernel for that.
pub(crate) fn speckv_restore_tiles(level: Level, codes: &[u8], axis: Axis, scale: f32, page: &mut PageMut<'_>) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::speckv::restore_tiles(codes, axis, scale, page, level.is_wide()) };
            true
        }
        _ => false,
    }
}

/// Codes from differences, if the level has a kernel for that.
pub(crate) fn speckv_sums(level: Level, codes: &mut [u8], dim: usize) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::speckv::sums(codes, dim) };
            true
        }
        _ => false,
    }
}

/// The values of a page as `[token][head][channel]`, if the level has a kernel for that.
pub(crate) fn oaken_read_tokens(level: Level, page: &Page<'_>, values: &mut [f32]) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::oaken::read_tokens(page, values) };
            true
        }
        _ => false,
    }
}

/// Appends the payload of a page that is whole and of 16-bit elements; `None`: it is not, or the level has no kernel.
pub(crate) fn oaken_encode(
    level: Level,
    groups: &Groups,
    intervals: &[(f32, f32)],
    page: &Page<'_>,
    payload: &mut Vec<u8>,
) -> Option<Result<(), Declined>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 if intervals.len() < GROUPS_MAX => {
            // SAFETY: the machine has this level.
            unsafe { avx2::oaken::encode(groups, intervals, page, payload, level.is_wide()) }
        }
        _ => None,
    }
}

/// Widens bounds of what is left of values in each group. Returns a last few values that it leaves to plain code, or that
/// some are no numbers. `None`: the level has no kernel.
pub(crate) fn oaken_bounds<'a>(
    level: Level,
    intervals: &[(f32, f32)],
    values: &'a [f32],
    bounds: &mut [(f32, f32)],
) -> Option<Option<&'a [f32]>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 if intervals.len() < GROUPS_MAX => {
            // SAFETY: the machine has this level.
            Some(unsafe { avx2::oaken::bounds(intervals, values, bounds) })
        }
        _ => None,
    }
}

/// Appends what a token's values, `[head][channel]`, are coded as, if the level has a kernel for that.
pub(crate) fn oaken_code_token(
    level: Level,
    coder: &Coder<'_>,
    values: &[f32],
    dim: usize,
    heads: &mut [[Vec<u8>; 3]],
) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 if coder.intervals.len() < GROUPS_MAX => {
            // SAFETY: the machine has this level.
            unsafe { avx2::oaken::code_token(coder, values, dim, heads) };
            true
        }
        _ => false,
    }
}

/// Decodes to a page of 16-bit elements; `None`: the level has no kernel.
pub(crate) fn oaken_decode(
    level: Level,
    restorer: &mut Restorer<'_>,
    page: &mut PageMut<'_>,
) -> Option<Result<(), DecodeError>> {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this level.
        Level::Avx2 | Level::Avx512 => Some(unsafe { avx2::oaken::decode(restorer, page, level.is_wide()) }),
        _ => None,
    }
}

/// Gathers a page's 16-bit elements as `[head][token][channel]`, if the level has a kernel for that.
pub(crate) fn raw_read(level: Level, page: &Page<'_>, payload: &mut [u8]) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::raw::read(page, payload) };
            true
        }
        _ => false,
    }
}

/// Puts 16-bit elements, `[head][token][channel]`, where a page has them, if the level has a kernel for that.
pub(crate) fn raw_write(level: Level, payload: &[u8], page: &mut PageMut<'_>) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the machine has this level.
            unsafe { avx2::raw::write(payload, page) };
            true
        }
        _ => false,
    }
}
