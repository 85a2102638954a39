//! Formats of stored rows, and the bf16 values that models compute with.
//!
//! | format | a row | values |
//! |---|---|---|
//! | `e4m3-ue8m0` | the values, then one scale byte for each 32 of them | bf16(e4m3 × 2^(scale - 127)) |
//! | `e4m3` | the values; one f32 scale for the table | bf16(bf16(e4m3) × bf16(scale)) |
//! | `f16` | the values | bf16(f16) |
//! | `bf16` | the values | as stored |
//!
//! bf16() rounds to the nearest, ties to even. The published code makes an exponent field of a
//! scale byte, so byte 0 is the factor 0 and byte 255 is infinity. Every result that is not a
//! number has the bits 7fc0, as on torch's CPU path; accelerators have other bits there.

use crate::error::FormatError;
use pulp::{Arch, Simd, WithSimd};
use std::fmt;
use std::str::FromStr;

/// Values that share a ue8m0 scale.
const BLOCK: usize = 32;
/// Bits of a bf16 that is not a number.
const NAN: u16 = 0x7FC0;

/// A row format by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// 8-bit floats in blocks of 32 with a scale each.
    E4m3Ue8m0,
    /// 8-bit floats with one scale for the table.
    E4m3,
    /// IEEE half precision.
    F16,
    /// The upper half of f32.
    Bf16,
}

impl Stored {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::E4m3Ue8m0, Self::E4m3, Self::F16, Self::Bf16];

    /// The name of the format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::E4m3Ue8m0 => "e4m3-ue8m0",
            Self::E4m3 => "e4m3",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// `(bytes, values)` that a row has a whole multiple of.
    const fn unit(self) -> (usize, usize) {
        match self {
            Self::E4m3Ue8m0 => (BLOCK + 1, BLOCK),
            Self::E4m3 => (1, 1),
            Self::F16 | Self::Bf16 => (2, 1),
        }
    }

    /// Bytes of a row of `values` values.
    ///
    /// # Errors
    /// The values do not fill whole blocks, or there are none.
    pub const fn row_bytes(self, values: usize) -> Result<usize, FormatError> {
        let (bytes, block) = self.unit();
        if values == 0 || !values.is_multiple_of(block) {
            return Err(FormatError::Values { format: self.name(), block, values });
        }
        Ok(values / block * bytes)
    }

    /// Values of a row of `bytes` bytes.
    ///
    /// # Errors
    /// The bytes are no whole number of values, or there are none.
    pub const fn row_values(self, bytes: usize) -> Result<usize, FormatError> {
        let (unit, values) = self.unit();
        if bytes == 0 || !bytes.is_multiple_of(unit) {
            return Err(FormatError::RowBytes { format: self.name(), bytes, unit });
        }
        Ok(bytes / unit * values)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Stored {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| FormatError::Unknown(text.to_owned()))
    }
}

/// A format with what its values depend on: turns rows into bf16.
#[derive(Clone, Debug)]
pub struct RowFormat {
    stored: Stored,
    /// The table's scale, rounded to bf16.
    scale: f32,
    arch: Arch,
}

impl RowFormat {
    /// A format; `scale` is the table's f32 scale, which `e4m3` has.
    ///
    /// # Errors
    /// The scale is missing or has no meaning.
    pub fn new(stored: Stored, scale: Option<f32>) -> Result<Self, FormatError> {
        let scale = match (stored, scale) {
            (Stored::E4m3, Some(given)) => match f32::from_bits(u32::from(bf16_bits(given)) << 16) {
                scale if scale.is_finite() => scale,
                _ => return Err(FormatError::ScaleInfinite(given)),
            },
            (Stored::E4m3, None) => return Err(FormatError::ScaleMissing),
            (other, Some(_)) => return Err(FormatError::ScaleUnused(other.name())),
            (_, None) => 1.0,
        };
        Ok(Self { stored, scale, arch: Arch::new() })
    }

    /// The format's name and sizes.
    #[must_use]
    pub const fn stored(&self) -> Stored {
        self.stored
    }

    /// Writes the bf16 bits of a row's values.
    ///
    /// # Errors
    /// The row has no whole number of values.
    ///
    /// # Panics
    /// `out` has another length than the row has values.
    pub fn to_bf16(&self, row: &[u8], out: &mut [u16]) -> Result<(), FormatError> {
        let values = self.stored.row_values(row.len())?;
        assert_eq!(out.len(), values, "one place for each value");
        self.arch.dispatch(Job { format: self, row, out });
        Ok(())
    }

    #[inline(always)]
    fn write(&self, row: &[u8], out: &mut [u16]) {
        let words = row.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        match self.stored {
            Stored::E4m3Ue8m0 => {
                let (codes, scales) = row.split_at(out.len());
                for ((out, codes), scale) in out.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK)).zip(scales) {
                    let scale = f32::from_bits(u32::from(*scale) << 23);
                    out.iter_mut().zip(codes).for_each(|(out, code)| *out = bf16_bits(e4m3(*code) * scale));
                }
            }
            // A code has four significant bits, so bf16 holds its value.
            Stored::E4m3 => out.iter_mut().zip(row).for_each(|(out, code)| *out = bf16_bits(e4m3(*code) * self.scale)),
            Stored::F16 => out.iter_mut().zip(words).for_each(|(out, word)| *out = bf16_bits(f16(word))),
            Stored::Bf16 => out.iter_mut().zip(words).for_each(|(out, word)| *out = word),
        }
    }
}

struct Job<'a> {
    format: &'a RowFormat,
    row: &'a [u8],
    out: &'a mut [u16],
}

impl WithSimd for Job<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.format.write(self.row, self.out);
    }
}

/// The value of an e4m3 code: a sign, four bits of exponent with bias 7, three of mantissa. Codes
/// with all seven bits set are no number, and there are no infinities.
#[inline(always)]
fn e4m3(code: u8) -> f32 {
    let (sign, magnitude) = (u32::from(code & 0x80) << 24, u32::from(code & 0x7F));
    // Exponents move from bias 7 to 127. Codes without one are multiples of 2^-9.
    let normal = (magnitude << 20) + (120 << 23);
    let bits = if magnitude < 8 { (magnitude as f32 * (1.0 / 512.0)).to_bits() } else { normal };
    f32::from_bits(sign | if magnitude == 0x7F { f32::NAN.to_bits() } else { bits })
}

/// The value of a half-precision float, without a call per value, so that it is computed in lanes.
#[inline(always)]
fn f16(word: u16) -> f32 {
    let (sign, magnitude) = (u32::from(word & 0x8000) << 16, u32::from(word & 0x7FFF));
    // Exponents move from bias 15 to 127, and the highest stays the highest.
    let exponents = if magnitude < 0x7C00 { 112 << 23 } else { 224 << 23 };
    let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
    f32::from_bits(sign | if magnitude < 0x400 { subnormal } else { (magnitude << 13) + exponents })
}

/// The upper half of an f32, rounded to the nearest, ties to even.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16;
    if value.is_nan() { NAN } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bf16(stored: Stored, scale: Option<f32>, row: &[u8]) -> Vec<u16> {
        let mut levels = vec![Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(pulp::x86::V3::try_new().map(Arch::V3));
            levels.extend(pulp::x86::V4::try_new().map(Arch::V4));
        }
        let mut format = RowFormat::new(stored, scale).unwrap();
        let results: Vec<Vec<u16>> = levels
            .iter()
            .map(|arch| {
                format.arch = *arch;
                let mut out = vec![0; stored.row_values(row.len()).unwrap()];
                format.to_bf16(row, &mut out).unwrap();
                out
            })
            .collect();
        assert!(results.iter().all(|result| *result == results[0]), "levels agree");
        results[0].clone()
    }

    /// The value by the format's definition, in f64.
    fn defined(code: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let magnitude = match (exponent, mantissa) {
            (15, 7.0) => f64::NAN,
            (0, mantissa) => mantissa * 2f64.powi(-9),
            (exponent, mantissa) => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        };
        if code & 0x80 != 0 { -magnitude } else { magnitude }
    }

    #[test]
    fn every_code_has_its_value() {
        for code in 0..=255 {
            let (ours, defined) = (f64::from(e4m3(code)), defined(code));
            assert!(ours == defined || (ours.is_nan() && defined.is_nan()), "{code}: {ours} {defined}");
            assert_eq!(ours.is_sign_negative(), code & 0x80 != 0, "{code}");
        }
        assert_eq!(e4m3(0x7E), 448.0);
    }

    #[test]
    fn every_code_and_scale_byte_has_its_product() {
        for scale in 0..=255u8 {
            for codes in (0..=255u8).collect::<Vec<_>>().chunks(BLOCK) {
                let row = [codes, &[scale]].concat();
                for (code, bits) in codes.iter().zip(bf16(Stored::E4m3Ue8m0, None, &row)) {
                    let factor = match scale {
                        0 => 0.0,
                        255 => f64::INFINITY,
                        scale => 2f64.powi(i32::from(scale) - 127),
                    };
                    // Codes have four significant bits, so the product is exact in f64 and in f32.
                    let product = (defined(*code) * factor) as f32;
                    let expected = if product.is_nan() { NAN } else { half::bf16::from_f32(product).to_bits() };
                    assert_eq!(bits, expected, "code {code}, scale {scale}");
                }
            }
        }
    }

    #[test]
    fn a_row_of_blocks_takes_each_scale_for_its_block() {
        let mut row = vec![0x38; 256];
        row.extend((0..8).map(|block| 127 + block));
        let values = bf16(Stored::E4m3Ue8m0, None, &row);
        let first: Vec<f32> = values.chunks(BLOCK).map(|block| half::bf16::from_bits(block[0]).to_f32()).collect();
        assert_eq!(first, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]);
        assert_eq!(row.len(), 264);
    }

    #[test]
    fn a_table_scale_is_rounded_before_the_product() {
        // 1.001 is 1 in bf16, and 1.005 is 1.0078125.
        let (one, next) = (half::bf16::from_f32(1.125).to_bits(), half::bf16::from_f32(1.125 * 1.007_812_5).to_bits());
        assert_eq!(bf16(Stored::E4m3, Some(1.001), &[0x39]), [one]);
        assert_eq!(bf16(Stored::E4m3, Some(1.005), &[0x39]), [next]);
        assert_eq!(bf16(Stored::E4m3, Some(0.5), &[0x7F, 0xFF, 0x80, 0x01]), [NAN, NAN, 0x8000, 0x3A80]);
    }

    #[test]
    fn sizes_are_those_of_the_models() {
        for (stored, values, bytes) in
            [(Stored::E4m3Ue8m0, 256, 264), (Stored::E4m3, 160, 160), (Stored::F16, 160, 320), (Stored::Bf16, 160, 320)]
        {
            assert_eq!((stored.row_bytes(values), stored.row_values(bytes)), (Ok(bytes), Ok(values)), "{stored}");
            assert_eq!(stored.name().parse(), Ok(stored));
        }
    }

    #[test]
    fn what_is_no_row_is_refused() {
        let refused = |error: FormatError, words: &str| assert!(error.to_string().contains(words), "{error}");
        refused("nvfp4".parse::<Stored>().unwrap_err(), "`nvfp4` is no row format");
        refused(RowFormat::new(Stored::E4m3, None).unwrap_err(), "need the scale");
        for scale in [f32::NAN, f32::INFINITY, f32::MAX] {
            refused(RowFormat::new(Stored::E4m3, Some(scale)).unwrap_err(), "finite number that bf16 can hold");
        }
        refused(RowFormat::new(Stored::Bf16, Some(1.0)).unwrap_err(), "have no table scale");
        refused(Stored::E4m3Ue8m0.row_bytes(100).unwrap_err(), "multiple of 32 values; 100 is none");
        refused(Stored::E4m3Ue8m0.row_values(263).unwrap_err(), "multiple of 33 bytes");
        refused(Stored::F16.row_values(3).unwrap_err(), "a row of 3 bytes");
        refused(Stored::Bf16.row_values(0).unwrap_err(), "a row of 0 bytes");
    }

    proptest! {
        #[test]
        fn rounding_is_that_of_half(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            let expected = if value.is_nan() { NAN } else { half::bf16::from_f32(value).to_bits() };
            prop_assert_eq!(bf16_bits(value), expected);
        }

        #[test]
        fn half_precision_is_widened_and_rounded(bits in any::<u16>()) {
            let row = bits.to_le_bytes();
            let value = half::f16::from_bits(bits).to_f32();
            let expected = if value.is_nan() { NAN } else { half::bf16::from_f32(value).to_bits() };
            prop_assert_eq!(bf16(Stored::F16, None, &row), vec![expected]);
            prop_assert_eq!(bf16(Stored::Bf16, None, &row), vec![bits]);
        }
    }
}
