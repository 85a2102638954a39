//! Cache-line-aligned memory for weights and KV, viewed as `f32` or as bf16 bits.

use zerocopy::{FromBytes, IntoBytes};

/// Storage type of weights and KV. Arithmetic is f32 in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// bfloat16: the upper half of a single.
    Bf16,
}

impl ElementType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// `f32` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ElementType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" | "float32" => Ok(Self::F32),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            other => Err(format!("`{other}` is not an element type of this engine; it computes in f32 or bf16")),
        }
    }
}

/// bf16 to f32: exact.
#[inline(always)]
#[must_use]
pub const fn widen(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// f32 to bf16, to nearest, ties to even; NaN stays NaN.
#[inline(always)]
#[must_use]
pub const fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + (0x7fff + ((bits >> 16) & 1))) >> 16) as u16
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Zeroed memory that begins on a cache line, because loads that straddle two lines cost double.
/// The operating system provides zeroed pages lazily, so an arena costs only the memory that it
/// uses.
pub struct AlignedBuffer {
    /// One cache line longer than requested, so that an aligned range of the requested length fits.
    words: Vec<u32>,
    /// Byte offset of the aligned range. It stays valid because the vector never grows or moves.
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// Creates a buffer of `bytes` zero bytes.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        let words = vec![0_u32; bytes.div_ceil(4) + LINE / 4];
        let start = words.as_ptr().addr().next_multiple_of(LINE) - words.as_ptr().addr();
        Self { words, start, bytes }
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.words.as_bytes()[self.start..self.start + self.bytes]
    }

    /// The bytes, writable.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.words.as_mut_bytes()[self.start..self.start + self.bytes]
    }

    /// The buffer as f32 values. Its length must be a multiple of 4 bytes.
    #[inline]
    #[must_use]
    pub fn as_f32(&self) -> &[f32] {
        <[f32]>::ref_from_bytes(self.as_bytes()).expect("the start is aligned and the owner asked for whole elements")
    }

    /// As [`Self::as_f32`], writable.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        <[f32]>::mut_from_bytes(self.as_bytes_mut())
            .expect("the start is aligned and the owner asked for whole elements")
    }

    /// The buffer as bf16 bits. Its length must be a multiple of 2 bytes.
    #[inline]
    #[must_use]
    pub fn as_bf16(&self) -> &[u16] {
        <[u16]>::ref_from_bytes(self.as_bytes()).expect("the start is aligned and the owner asked for whole elements")
    }

    /// As [`Self::as_bf16`], writable.
    pub fn as_bf16_mut(&mut self) -> &mut [u16] {
        <[u16]>::mut_from_bytes(self.as_bytes_mut())
            .expect("the start is aligned and the owner asked for whole elements")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_matches_the_half_crate() {
        let mut prng = cenote_base::prng::Prng::new(3);
        let mut cases = vec![0.0_f32, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45];
        cases.extend((0..10_000).map(|_| f32::from_bits(prng.next_u64() as u32)).filter(|value| !value.is_nan()));
        for value in cases {
            assert_eq!(narrow(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(widen(narrow(value)), half::bf16::from_f32(value).to_f32(), "{value:e}");
        }
        assert!(widen(narrow(f32::NAN)).is_nan());
    }

    #[test]
    fn buffers_begin_on_a_cache_line() {
        for bytes in [4, 64, 1000, 4096] {
            let mut buffer = AlignedBuffer::zeroed(bytes);
            assert_eq!(buffer.as_bytes().len(), bytes);
            assert_eq!(buffer.as_bytes().as_ptr().addr() % 64, 0);
            buffer.as_f32_mut()[0] = 1.5;
            assert_eq!(buffer.as_bf16()[1], 0x3fc0, "f32 1.5 ends in its bf16 bits (little endian)");
        }
    }
}
