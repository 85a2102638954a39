//! QPack's encoding on AVX2: codes of channels, their widths, and the bits of the payload.

use super::{Narrow, Tiles, WholeTile, has_halves, words};
use crate::error::Declined;
use crate::page::Page;
use crate::qpack::{HALVES, HALVES_BYTES, Known, TileCodes, WIDTHS, WINDOW};
use crate::simd::avx2::{BF16, F16, F32, Room, round, store_half, with_element};
use crate::simd::rows::{Rows, whole};
use crate::tile::{Axis, EDGE, PageRows, Span};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Bits of the least number that rounds to an infinite half.
const HALF_OVERFLOW: i32 = 0x477f_f000;

/// Appends the codes of up to sixteen tokens of a head from `token` on.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn encode_group(page: &Page<'_>, known: &Known<'_>, token: usize, payload: &mut Vec<u8>) -> Result<(), Declined> {
    // SAFETY: AVX2 is enabled in this function.
    unsafe { encode_by::<Narrow>(page, known, token, payload) }
}

/// As [`encode_group`], with whole tiles encoded by `T`.
///
/// # Safety
/// Callers must guarantee that the machine has AVX2 and the instruction set of `T`.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub unsafe fn encode_by<T: Tiles>(
    page: &Page<'_>,
    known: &Known<'_>,
    token: usize,
    payload: &mut Vec<u8>,
) -> Result<(), Declined> {
    // Room for whole tiles, and for the last window.
    let channels = known.means.len();
    let most = channels.div_ceil(2) + channels.next_multiple_of(EDGE) * HALVES_BYTES + WINDOW;
    let mut room = Room::behind(payload, most);
    // SAFETY: the caller guarantees the instruction set of `T`.
    with_element!(page.kind().element, E, unsafe { encode_as::<E, T>(page, known, token, &mut room)? });
    let filled = room.filled;
    // SAFETY: `encode_as` wrote so many bytes behind the others.
    unsafe { payload.set_len(payload.len() + filled) };
    Ok(())
}

/// # Safety
/// As for [`encode_by`].
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
unsafe fn encode_as<const E: u8, T: Tiles>(
    page: &Page<'_>,
    &Known { head, means, steps, .. }: &Known<'_>,
    token: usize,
    room: &mut Room<'_>,
) -> Result<(), Declined> {
    let kind = page.kind();
    let (mut rows, mut codes) = (Rows::zero(), [_mm256_setzero_si256(); EDGE]);
    room.filled = means.len().div_ceil(2);
    for (number, (means, steps)) in means.chunks(EDGE).zip(steps.chunks(EDGE)).enumerate() {
        let span = Span::at(kind.shape, head, token, number * EDGE);
        let of_page = PageRows::of(kind, &span);
        if let Some((place, stride)) = whole::<E>(&of_page)
            && let (Some(means), Some(steps)) = (means.as_array(), steps.as_array())
            && let Some(to) = room.room[room.filled..].first_chunk_mut()
        {
            let (bytes, tile) = (&page.bytes()[place], WholeTile { means, steps, axis: of_page.axis, stride });
            // SAFETY: the caller guarantees the instruction set of `T`.
            if let Some((nibbles, len)) = unsafe { T::encode::<E>(bytes, tile, to) } {
                room.filled += len;
                room.room[number * EDGE / 2..][..EDGE / 2].write_copy_of_slice(&nibbles.to_le_bytes());
                continue;
            }
        }
        rows.load::<E>(page.bytes(), &of_page, Axis::Channels);
        codes_of::<E>(&rows, span.tokens, means, steps, &mut codes)?;
        let indices = width_indices(&codes);
        let nibbles = _mm_maddubs_epi16(indices, _mm_set1_epi16(0x1001));
        let nibbles = _mm_cvtsi128_si64(_mm_packus_epi16(nibbles, nibbles)).cast_unsigned();
        let mut all = [0; EDGE];
        store_half(&mut all, indices);
        if has_halves(nibbles) {
            for (channel, index) in all.map(usize::from).into_iter().enumerate().take(means.len()) {
                if index == HALVES {
                    room.put(round::<F16, false>(rows.get::<E>(channel)));
                } else {
                    room.put_half(pack([codes[channel]; 2], [index; 2])[0], WEIGHTS[index].len());
                }
            }
        } else {
            pack_tile(&codes, &all, room);
        }
        let nibbles = nibbles.to_le_bytes();
        let to = &mut room.room[number * EDGE / 2..][..means.len().div_ceil(2)];
        if let Some(to) = to.as_mut_array() {
            *to = nibbles.map(MaybeUninit::new);
        } else {
            to.write_copy_of_slice(&nibbles[..to.len()]);
        }
    }
    Ok(())
}

/// Packs the channels of a tile without halves. Missing channels take no bytes.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn pack_tile(codes: &[__m256i; EDGE], indices: &[u8; EDGE], room: &mut Room<'_>) {
    let (to, mut at) = (&mut room.room[room.filled..][..EDGE * WINDOW], 0);
    for (codes, indices) in codes.as_chunks::<2>().0.iter().zip(indices.as_chunks::<2>().0) {
        let indices = [usize::from(indices[0] & 15), usize::from(indices[1] & 15)];
        let [first, second] = pack(*codes, indices);
        // SAFETY: `to` has sixteen windows, and each channel takes at most one.
        unsafe {
            _mm_storeu_si128(to.as_mut_ptr().add(at).cast(), first);
            at += WEIGHTS[indices[0]].len();
            _mm_storeu_si128(to.as_mut_ptr().add(at).cast(), second);
        }
        at += WEIGHTS[indices[1]].len();
    }
    room.filled += at;
}

/// Codes of a tile, by channel, saturated to 16 bits; zeros where the page has no values.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
pub fn codes(
    page: &Page<'_>,
    span: &Span,
    means: &[f32],
    steps: &[f32],
    codes: &mut TileCodes,
) -> Result<(), Declined> {
    let of_page = PageRows::of(page.kind(), span);
    let mut rows = Rows::zero();
    let mut all = [_mm256_setzero_si256(); EDGE];
    with_element!(page.kind().element, E, {
        rows.load::<E>(page.bytes(), &of_page, Axis::Channels);
        codes_of::<E>(&rows, span.tokens, means, steps, &mut all)?;
    });
    for (row, codes) in all.iter().zip(codes.as_chunks_mut::<EDGE>().0) {
        // SAFETY: `codes` has sixteen words; the store needs no alignment.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), *row) };
    }
    Ok(())
}

/// Codes of a tile's channels, saturated to 16 bits, by token; zeros of missing channels.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn codes_of<const E: u8>(
    rows: &Rows,
    tokens: usize,
    means: &[f32],
    steps: &[f32],
    codes: &mut [__m256i; EDGE],
) -> Result<(), Declined> {
    let mut largest = _mm256_setzero_si256();
    if means.len() < EDGE {
        *codes = [_mm256_setzero_si256(); EDGE];
    }
    let inverses = inverses(steps);
    for (channel, &mean) in means.iter().enumerate().take(EDGE) {
        let (mean, inverse) = (_mm256_set1_ps(mean), _mm256_set1_ps(inverses[channel]));
        let values = rows.get::<E>(channel);
        if E == F32 {
            for values in values {
                let magnitude = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(i32::MAX));
                largest = _mm256_max_epu32(largest, magnitude);
            }
        } else {
            let magnitude = _mm256_and_si256(rows.bits[channel], _mm256_set1_epi16(i16::MAX));
            largest = _mm256_max_epu16(largest, magnitude);
        }
        // To nearest, ties to even. Overflow gives the least number, which fits halves only.
        let [first, second] = values;
        let first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(first, mean), inverse));
        let second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(second, mean), inverse));
        codes[channel] = _mm256_packs_epi32(first, second);
    }
    // The largest magnitude of an element that rounds to a finite half.
    let beyond = match E {
        F32 => _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(HALF_OVERFLOW - 1)),
        BF16 => _mm256_subs_epu16(largest, _mm256_set1_epi16((HALF_OVERFLOW >> 16) as i16)),
        _ => _mm256_subs_epu16(largest, _mm256_set1_epi16(0x7bff)),
    };
    if _mm256_testz_si256(beyond, beyond) == 0 {
        return Err(Declined);
    }
    if tokens < EDGE {
        let token = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let is_there = _mm256_cmpgt_epi16(_mm256_set1_epi16(tokens as i16), token);
        codes.iter_mut().for_each(|codes| *codes = _mm256_and_si256(*codes, is_there));
    }
    Ok(())
}

/// The inverses of up to sixteen steps.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn inverses(steps: &[f32]) -> [f32; EDGE] {
    let mut all = [1.0; EDGE];
    all[..steps.len()].copy_from_slice(steps);
    for some in all.as_chunks_mut::<8>().0 {
        // SAFETY: `some` has eight numbers; loads and stores need no alignment.
        unsafe {
            let inverses = _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_loadu_ps(some.as_ptr()));
            _mm256_storeu_ps(some.as_mut_ptr(), inverses);
        }
    }
    all
}

/// The operands of packing a width.
#[repr(C, align(128))]
struct Weights {
    /// The mean codes of two tokens.
    centers: [u32; 8],
    /// The factors of the codes of a pair, and of two pairs: each in 16 bits.
    codes: [u32; 8],
    pairs: [u32; 8],
    /// Bits of two pairs.
    bits: [u64; 4],
}

impl Weights {
    /// Bytes of a channel.
    #[inline]
    const fn len(&self) -> usize {
        self.bits[0] as usize / 2
    }
}

/// By width index; the entry of halves is unused.
static WEIGHTS: [Weights; HALVES + 1] = {
    let mut all = [const { Weights { centers: [0; 8], codes: [0; 8], pairs: [0; 8], bits: [0; 4] } }; HALVES + 1];
    let mut index = 0;
    while index < HALVES {
        let width = WIDTHS[index];
        all[index] = Weights {
            centers: [width.center as u32 * 0x1_0001; 8],
            codes: [1 | (width.levels as u32) << 16; 8],
            pairs: [1 | 1 << (16 + width.pair_bits); 8],
            bits: [2 * width.pair_bits as u64; 4],
        };
        index += 1;
    }
    all
};

/// The bits of two channels' codes, which must fit the widths.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn pack(codes: [__m256i; 2], indices: [usize; 2]) -> [__m128i; 2] {
    let [first, second] = [&WEIGHTS[indices[0]], &WEIGHTS[indices[1]]];
    // Four pairs to a quarter of a register: the first channel's and the second's alternate.
    let pairs = _mm256_packus_epi32(pairs_of(codes[0], first), pairs_of(codes[1], second));
    let weigh = _mm256_blend_epi32::<0b1100_1100>(words(&first.pairs), words(&second.pairs));
    // Two pairs to a lane of 32 bits, then four pairs to one of 64.
    let twos = _mm256_madd_epi16(pairs, weigh);
    let bits = _mm256_blend_epi32::<0b1100_1100>(quarters(&first.bits), quarters(&second.bits));
    let low = _mm256_blend_epi32::<0b1010_1010>(twos, _mm256_setzero_si256());
    let fours = _mm256_or_si256(low, _mm256_sllv_epi64(_mm256_srli_epi64::<32>(twos), bits));
    let (low, high) = (_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
    let bits = _mm256_castsi256_si128(bits);
    let bits = _mm_add_epi64(bits, bits);
    let near = _mm_or_si128(low, _mm_sllv_epi64(high, bits));
    let far = _mm_srlv_epi64(high, _mm_sub_epi64(_mm_set1_epi64x(64), bits));
    [_mm_unpacklo_epi64(near, far), _mm_unpackhi_epi64(near, far)]
}

/// Pairs of sixteen codes, in lanes of 32 bits.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn pairs_of(codes: __m256i, weights: &Weights) -> __m256i {
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    let codes = _mm256_add_epi16(_mm256_shuffle_epi8(codes, order), words(&weights.centers));
    _mm256_madd_epi16(codes, words(&weights.codes))
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn quarters(from: &[u64; 4]) -> __m256i {
    // SAFETY: `from` has four words; the load needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// The reach of codes on one side at which the next width is needed, and how much larger its index
/// is.
const fn rooms(is_below: bool) -> [(i8, i8); 12] {
    let mut rooms = [(0, 0); 12];
    let (mut count, mut before, mut index) = (0, 0, 0);
    let mut room = 0;
    while index <= HALVES {
        let here = match index {
            HALVES => i8::MAX,
            _ if is_below => WIDTHS[index].center as i8,
            _ => (WIDTHS[index].levels - 1 - WIDTHS[index].center) as i8,
        };
        if here > room {
            rooms[count] = (room, (index - before) as i8);
            (count, before, room) = (count + 1, index, here);
        }
        index += 1;
    }
    assert!(count == rooms.len());
    rooms
}

/// Thresholds of the least code and of the complement of the greatest, a byte each, the least
/// first; and the increments of the index beyond them.
const STEPS: [(i16, i16); 12] = {
    let (below, above) = (rooms(true), rooms(false));
    let mut steps = [(0, 0); 12];
    let mut step = 0;
    while step < steps.len() {
        let (below, above) = (below[step], above[step]);
        let ends = i16::from_le_bytes([(-below.0).cast_unsigned(), (!above.0).cast_unsigned()]);
        steps[step] = (ends, i16::from_le_bytes([below.1.cast_unsigned(), above.1.cast_unsigned()]));
        step += 1;
    }
    steps
};

/// The width index of each of sixteen channels, as [`crate::qpack::Width::index_of`].
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
pub fn width_indices(codes: &[__m256i; EDGE]) -> __m128i {
    // Codes beyond eight bits fit halves only, so saturating to bytes is safe. Halves of registers
    // are channels eight apart, so the rest stays within halves. Each channel keeps the least, and
    // the complements of the greatest, of two bytes.
    let mut least = [_mm256_setzero_si256(); 4];
    let mut greatest = [_mm256_setzero_si256(); 4];
    for (at, first) in [0, 1, 4, 5].into_iter().enumerate() {
        let a = _mm256_packs_epi16(codes[first], codes[first + 2]);
        let b = _mm256_packs_epi16(codes[first + 8], codes[first + 10]);
        let [low, high] = [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)];
        least[at] = _mm256_min_epi8(low, high);
        greatest[at] = _mm256_xor_si256(_mm256_max_epi8(low, high), _mm256_set1_epi8(-1));
    }
    let [least, greatest] = [least_of_eight(&least), least_of_eight(&greatest)];
    // The least of a channel in the lower byte, the complement of the greatest in the upper.
    let low = _mm256_min_epi8(least, _mm256_srli_epi16::<8>(least));
    let high = _mm256_min_epi8(greatest, _mm256_slli_epi16::<8>(greatest));
    let ends = _mm256_or_si256(
        _mm256_and_si256(low, _mm256_set1_epi16(0xff)),
        _mm256_andnot_si256(_mm256_set1_epi16(0xff), high),
    );
    let mut both = _mm256_setzero_si256();
    for (end, more) in STEPS {
        let is_beyond = _mm256_cmpgt_epi8(_mm256_set1_epi16(end), ends);
        both = _mm256_add_epi8(both, _mm256_and_si256(is_beyond, _mm256_set1_epi16(more)));
    }
    let (below, above) = (_mm256_and_si256(both, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(both));
    // Two widths of one size lean to different sides: the next width fits both.
    let leans = _mm256_cmpeq_epi16(_mm256_add_epi16(below, _mm256_set1_epi16(1)), above);
    let leans = _mm256_and_si256(leans, _mm256_cmpgt_epi16(_mm256_set1_epi16(5), above));
    let indices = _mm256_sub_epi16(_mm256_max_epi16(below, above), leans);
    _mm_packus_epi16(_mm256_castsi256_si128(indices), _mm256_extracti128_si256::<1>(indices))
}

/// The least two of eight bytes of each channel, by channel. A quarter of each register is a
/// channel: 0 and 2, 1 and 3, 4 and 6, 5 and 7 in the halves of the four registers.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt")]
#[inline]
fn least_of_eight([a, b, c, d]: &[__m256i; 4]) -> __m256i {
    let four = |a: __m256i, b: __m256i| {
        let [a, b] = [_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)];
        let [even, odd] = [_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b)];
        _mm256_min_epi8(_mm256_castps_si256(even), _mm256_castps_si256(odd))
    };
    let [even, odd] = [four(*a, *c), four(*b, *d)];
    let near = _mm256_blend_epi16::<0xaa>(even, _mm256_slli_epi32::<16>(odd));
    let far = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(even), odd);
    _mm256_min_epi8(near, far)
}
