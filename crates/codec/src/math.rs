//! Functions of single and double precision that return the same bits on every machine.
//!
//! The standard library calls the platform's mathematics, whose last bits differ. Tables and angles
//! that decoding depends on use these instead: sums and products in a fixed order, without fused
//! multiply-adds.

/// The natural logarithm of two.
const LN_2: f64 = std::f64::consts::LN_2;
/// Terms of the series of the exponential: on half of [`LN_2`] the next one is below 1e-17.
const EXP_TERMS: u32 = 16;
/// Terms of the series of the logarithm: on a third the next one is below 1e-17.
const LN_TERMS: u32 = 20;
/// Terms of the series of sine and cosine: on a quarter of π the next one is below 1e-17.
const TURN_TERMS: u32 = 9;

/// `e^x`; 0 below -700, and the value at 700 above it.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let x = x.min(700.0);
    let twos = (x / LN_2).round();
    let rest = x - twos * LN_2;
    let mut sum = 1.0;
    for term in (1..=EXP_TERMS).rev() {
        sum = 1.0 + sum * rest / f64::from(term);
    }
    sum * two_to(twos as i32)
}

/// Two to a power between -1022 and 1023.
fn two_to(power: i32) -> f64 {
    f64::from_bits(((power + 1023) as u64) << 52)
}

/// The natural logarithm of a normal positive number.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let power = (bits >> 52) as i32 - 1023;
    // Between 1 and 2.
    let part = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let ratio = (part - 1.0) / (part + 1.0);
    let square = ratio * ratio;
    let mut sum = 0.0;
    for term in (0..LN_TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    2.0 * ratio * sum + f64::from(power) * LN_2
}

/// The cosine and the sine of an angle in parts of a turn: 2^64 are a whole one.
pub(crate) fn cos_sin(turn: u64) -> [f32; 2] {
    // The nearest quarter of a turn, and the rest to it.
    let quarter = turn.wrapping_add(1 << 61) >> 62;
    let rest = turn.wrapping_sub(quarter << 62).cast_signed() as f64;
    let angle = rest * (2.0 * std::f64::consts::PI / 18_446_744_073_709_551_616.0);
    let square = angle * angle;
    let (mut cos, mut sin) = (1.0, 1.0);
    for term in (1..=TURN_TERMS).rev() {
        let at = f64::from(2 * term);
        cos = 1.0 - cos * square / (at * (at - 1.0));
        sin = 1.0 - sin * square / (at * (at + 1.0));
    }
    let (cos, sin) = (cos as f32, (sin * angle) as f32);
    match quarter % 4 {
        0 => [cos, sin],
        1 => [-sin, cos],
        2 => [-cos, -sin],
        _ => [sin, -cos],
    }
}

/// The parts of a turn in an angle from 0 to below 2π: 2^64 are a whole one.
pub(crate) fn turn_of(angle: f64) -> u64 {
    (angle * (18_446_744_073_709_551_616.0 / (2.0 * std::f64::consts::PI))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_close_to_those_of_the_platform() {
        for at in -3000..3000 {
            let x = f64::from(at) / 97.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-14, "{x}");
            let positive = (x / 3.0).exp();
            assert!((ln(positive) - positive.ln()).abs() < 1e-13, "{positive}");
            let angle = x.rem_euclid(2.0 * std::f64::consts::PI);
            let [cos, sin] = cos_sin(turn_of(angle));
            assert!((f64::from(cos) - angle.cos()).abs() < 1e-7, "{angle}");
            assert!((f64::from(sin) - angle.sin()).abs() < 1e-7, "{angle}");
        }
        assert_eq!(exp(-800.0), 0.0);
        assert!(exp(1e9).is_finite());
    }

    #[test]
    fn bits_never_change() {
        let bits = [exp(1.0), exp(-3.25), ln(10.0), ln(0.003)].map(f64::to_bits);
        assert_eq!(bits, BITS);
        let turns = [1, 0x1234_5678_9abc_def0, u64::MAX / 3, u64::MAX].map(cos_sin);
        assert_eq!(turns.map(|pair| pair.map(f32::to_bits)), TURNS);
    }

    /// From the same operations in another language; a change of any bit makes stored blocks unreadable.
    const BITS: [u64; 4] = [0x4005_bf0a_8b14_576a, 0x3fa3_da36_8521_902d, 0x4002_6bb1_bbb5_5515, 0xc017_3c8f_fae4_bede];
    const TURNS: [[u32; 2]; 4] = [
        [0x3f80_0000, 0x20c9_0fdb],
        [0x3f66_de7f, 0x3edd_3a58],
        [0xbf00_0000, 0x3f5d_b3d7],
        [0x3f80_0000, 0xa0c9_0fdb],
    ];
}
