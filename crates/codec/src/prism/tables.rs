//! Tables of probabilities for components, by spread and shape.
//!
//! A component's values follow a generalized Gaussian distribution, `exp(-(|x| / a)^b)`. Its
//! deviation in steps, in quarters of an octave, and its shape `b` choose the table. The shape comes
//! from the mean magnitude over the deviation. Large codes are split: the table has the upper digit,
//! and the lower one is as likely as any other. All of it is computed with [`crate::math`], so
//! encoders and decoders of all machines agree.

use crate::math::{exp, ln};
use crate::qpackz::Table;
use std::collections::BTreeMap;
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, SQRT_2};

/// A distribution of deviation one.
struct Form {
    /// The exponent `b`.
    exponent: f64,
    /// The unit `a`.
    unit: f64,
    /// The mean magnitude.
    magnitude: f64,
}

/// Shapes from sharp with long tails to the bell. `a = √(Γ(1/b) / Γ(3/b))`, and the mean magnitude
/// is `a Γ(2/b) / Γ(1/b)`.
const FORMS: [Form; 8] = [
    Form { exponent: 0.4, unit: 0.026_653_343_325_007_288, magnitude: 0.481_201_237_462_119_3 },
    Form { exponent: 0.5, unit: 0.091_287_092_917_527_68, magnitude: 0.547_722_557_505_166_1 },
    Form { exponent: 0.65, unit: 0.254_828_862_758_111_6, magnitude: 0.616_818_488_127_182_2 },
    Form { exponent: 0.8, unit: 0.452_691_813_914_676_8, magnitude: 0.663_923_066_042_130_4 },
    Form { exponent: 1.0, unit: FRAC_1_SQRT_2, magnitude: FRAC_1_SQRT_2 },
    Form { exponent: 1.25, unit: 0.968_119_429_218_084_9, magnitude: 0.743_005_920_354_046_1 },
    Form { exponent: 1.6, unit: 1.226_606_103_864_201_5, magnitude: 0.775_032_557_009_453_6 },
    Form { exponent: 2.0, unit: SQRT_2, magnitude: 0.797_884_560_802_865_4 },
];

/// Tables in an octave of deviations.
const PER_OCTAVE: i32 = 4;
/// Components with deviations below this share of a step are not coded.
const LEAST_DEVIATION: f64 = 0.1;
/// Deviations in steps above this leave a lower digit.
const GREATEST_DEVIATION: f64 = 16.0;
/// Most bits of a lower digit.
const LOW_BITS_MAX: u32 = 7;
/// The most codes of a table on each side of zero.
const REACH: i32 = 127;
/// Deviations that a table reaches: beyond it codes are escaped.
const REACH_DEVIATIONS: f64 = 12.0;
/// Samples of the density in a code's interval.
const SAMPLES: u32 = 8;
/// Values below this share of a step become zero.
pub(super) const DEAD: f32 = 0.6;

/// The digits of a component's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digits {
    /// The table of the upper digit.
    pub upper: u16,
    /// Bits of the lower one; 0: there is none.
    pub low_bits: u32,
}

/// All tables that a codec uses.
#[derive(Debug)]
pub(super) struct Tables {
    tables: Vec<Table>,
    /// By bits of a lower digit.
    low: Vec<Table>,
    /// Numbers of tables by class and form. Class `c` is of a deviation of `2^(c / 4)` steps.
    numbers: BTreeMap<(i32, usize), u16>,
}

impl Tables {
    pub fn new() -> Self {
        let uniform = |bits: u32| {
            let count = 1_u32 << bits;
            Table::of_shares(0, &vec![1.0 / f64::from(count); count as usize])
        };
        Self { tables: Vec::new(), low: (0..=LOW_BITS_MAX).map(uniform).collect(), numbers: BTreeMap::new() }
    }

    /// Whether a component of this deviation, in steps, is worth coding: of others nearly all codes
    /// are zero.
    pub fn is_coded(deviation: f64) -> bool {
        deviation >= LEAST_DEVIATION
    }

    /// The digits of components of this deviation and mean magnitude, both in steps.
    pub fn digits(&mut self, deviation: f64, magnitude: f64) -> Digits {
        let deviation = deviation.max(LEAST_DEVIATION);
        let (mut low_bits, mut left) = (0, deviation);
        while left > GREATEST_DEVIATION && low_bits < LOW_BITS_MAX {
            left /= 2.0;
            low_bits += 1;
        }
        let class = (ln(left.min(1e6)) / LN_2 * f64::from(PER_OCTAVE)).round() as i32;
        let ratio = magnitude / deviation;
        let form = FORMS.windows(2).take_while(|pair| ratio > f64::midpoint(pair[0].magnitude, pair[1].magnitude));
        let form = form.count();
        let key = (class, form);
        // Split codes have no dead zone around the upper digit's zero, but a wide one is rare in
        // both, so they share tables with it.
        let upper = *self.numbers.entry(key).or_insert_with(|| {
            self.tables.push(table(&FORMS[form], exp(f64::from(class) / f64::from(PER_OCTAVE) * LN_2)));
            (self.tables.len() - 1) as u16
        });
        Digits { upper, low_bits }
    }

    #[inline]
    pub fn upper(&self, digits: Digits) -> &Table {
        &self.tables[usize::from(digits.upper)]
    }

    #[inline]
    pub fn low(&self, digits: Digits) -> &Table {
        &self.low[digits.low_bits as usize]
    }
}

/// The table of a form with a deviation in steps.
fn table(form: &Form, deviation: f64) -> Table {
    let reach = ((deviation * REACH_DEVIATIONS).ceil() as i32).clamp(1, REACH);
    let unit = form.unit * deviation;
    // The density without its factor, which the sum of all shares replaces.
    let density = |value: f64| if value <= 0.0 { 1.0 } else { exp(-exp(form.exponent * ln(value / unit))) };
    let within = |from: f64, to: f64, samples: u32| {
        let width = (to - from) / f64::from(samples);
        let sum: f64 = (0..samples).map(|sample| density(from + (f64::from(sample) + 0.5) * width)).sum();
        sum * width
    };
    let dead = f64::from(DEAD);
    // Sharp forms fall steeply at zero.
    let zero = 2.0 * within(0.0, dead, 64 * SAMPLES);
    let side: Vec<f64> = (1..=reach)
        .map(|code| {
            let from = if code == 1 { dead } else { f64::from(code) - 0.5 };
            within(from, f64::from(code) + 0.5, SAMPLES)
        })
        .collect();
    let sum = zero + 2.0 * side.iter().sum::<f64>();
    // A little less than one, so that rounding leaves no more than all.
    let share = |value: f64| value / sum * (1.0 - 1e-9);
    let mut shares: Vec<f64> = side.iter().rev().map(|value| share(*value)).collect();
    shares.push(share(zero));
    shares.extend(side.iter().map(|value| share(*value)));
    Table::of_shares(-reach, &shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_and_magnitude_choose_a_table() {
        let mut tables = Tables::new();
        assert!(!Tables::is_coded(0.05) && !Tables::is_coded(f64::NAN) && Tables::is_coded(0.1));
        let narrow = tables.digits(1.0, 0.798);
        let sharp = tables.digits(1.0, 0.5);
        let near = tables.digits(1.01, 0.8);
        assert_eq!((narrow, narrow.low_bits), (near, 0));
        assert_ne!(narrow.upper, sharp.upper);
        let wide = tables.digits(100.0, 79.8);
        assert_eq!(wide.low_bits, 3);
        // Beyond all bits of a lower digit, codes are escaped.
        assert_eq!(tables.digits(1e30, 8e29).low_bits, LOW_BITS_MAX);
        let codes: Vec<i8> = (-127..=127).map(|code| tables.upper(wide).symbol(code)).collect();
        assert_eq!(codes, (-127..=127).collect::<Vec<i8>>());
    }
}
