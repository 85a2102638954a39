//! Products of int8 matrices and vectors, and what an LSTM does between them.
//!
//! Products are exact sums of integers, and everything else is computed value by value, in the same
//! order and with the same fused operations. So every instruction set gives the bits of the scalar
//! code.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lanes;
mod matrix;

pub(crate) use lanes::BLOCK;
use lanes::Part;
pub(crate) use matrix::{Matrix, Shape};

use std::cell::Cell;
use std::sync::LazyLock;

thread_local! {
    /// Set inside [`at_level`].
    static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Instruction sets that predictors tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every machine.
    Scalar,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// The same with AVX-512 (F, BW, VL, DQ) and its products of bytes (VNNI).
    Avx512,
}

static FASTEST: LazyLock<Level> = LazyLock::new(|| *Level::available().last().expect("scalar code runs everywhere"));

impl Level {
    /// All levels of this machine, the fastest last.
    #[must_use]
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! has {
                ($($feature:tt),*) => { $(std::is_x86_feature_detected!($feature))&&* };
            }
            if has!("avx2", "fma") {
                let has_more = has!("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni");
                return if has_more { &[Self::Scalar, Self::Avx2, Self::Avx512] } else { &[Self::Scalar, Self::Avx2] };
            }
        }
        &[Self::Scalar]
    }

    /// The level in use: the fastest, except inside [`at_level`].
    #[must_use]
    pub fn current() -> Self {
        FORCED.get().unwrap_or_else(|| *FASTEST)
    }

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-vnni",
        }
    }
}

/// Runs a closure with the predictors of this thread at a level. For tests and benches.
///
/// # Panics
/// The machine does not have the level.
#[doc(hidden)]
pub fn at_level<T>(level: Level, run: impl FnOnce() -> T) -> T {
    /// Restores the level before, also if `run` panics.
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

/// Calls a macro with the array of one to four inputs.
macro_rules! by_count {
    ($inputs:ident, $call:ident) => {
        match $inputs.len() {
            1 => $call!(1),
            2 => $call!(2),
            3 => $call!(3),
            4 => $call!(4),
            count => panic!("one to four inputs, not {count}"),
        }
    };
}

/// Sets `out[v]` to the bias and the product of the matrix and `inputs[v]`, times `factors[v]`.
/// Without a bias, adds the product. Inputs are signed bytes plus 128. A row's entry of the product is
/// `sum of integers × (scale of the row × factor)`.
///
/// # Panics
/// There are no inputs or more than four, or lengths do not fit the matrix.
pub(crate) fn multiply(
    matrix: &Matrix,
    inputs: &[&[u8]],
    factors: &[f32],
    bias: Option<&[f32]>,
    out: &mut [&mut [f32]],
) {
    matrix.check(inputs, factors, bias, out);
    macro_rules! dispatch {
        ($width:literal) => {{
            let inputs: &[&[u8]; $width] = inputs.try_into().expect("the length is matched");
            match Level::current() {
                // SAFETY: the machine has the level.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => unsafe { avx512::multiply(matrix, inputs, factors, bias, out) },
                // SAFETY: the machine has the level.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { avx2::multiply(matrix, inputs, factors, bias, out) },
                _ => {
                    let panel = |lines: &_, offsets: &_| matrix::panel(lines, offsets, inputs);
                    matrix.each_panel(factors, bias, out, panel, |_, _, _| {});
                }
            }
        }};
    }
    by_count!(inputs, dispatch)
}

/// As [`multiply`], and turns each `out[v]` from logits into probabilities. Fills `maxima[v]` with
/// the highest one of each [`BLOCK`]. Products wait for memory, so that exponentials beside them
/// take no time of their own.
///
/// # Panics
/// As [`multiply`].
pub(crate) fn probabilities(
    matrix: &Matrix,
    inputs: &[&[u8]],
    factors: &[f32],
    bias: Option<&[f32]>,
    out: &mut [&mut [f32]],
    maxima: &mut [Vec<f32>],
) {
    matrix.check(inputs, factors, bias, out);
    let blocks = matrix.shape().rows.div_ceil(BLOCK);
    let mut parts = vec![vec![Part::default(); blocks]; inputs.len()];
    macro_rules! dispatch {
        ($width:literal) => {{
            let inputs: &[&[u8]; $width] = inputs.try_into().expect("the length is matched");
            match Level::current() {
                // SAFETY: the machine has the level.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => unsafe { avx512::parts(matrix, inputs, factors, bias, out, &mut parts) },
                // SAFETY: the machine has the level.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { avx2::parts(matrix, inputs, factors, bias, out, &mut parts) },
                _ => {
                    let panel = |lines: &_, offsets: &_| matrix::panel(lines, offsets, inputs);
                    matrix.each_panel(factors, bias, out, panel, |vector, at, logits| {
                        parts[vector][at] = lanes::to_part(logits, lanes::highest(logits));
                    });
                }
            }
        }};
    }
    by_count!(inputs, dispatch);
    for ((values, parts), maxima) in out.iter_mut().zip(&mut parts).zip(maxima) {
        match Level::current() {
            // SAFETY: the machine has the level.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { avx512::join(values, parts) },
            // SAFETY: the machine has the level.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::join(values, parts) },
            _ => lanes::join(values, parts),
        }
        maxima.clear();
        maxima.extend(parts.iter().map(|part| part.highest));
    }
}

/// Moves LSTM cells by a step: `gates` has the sums of the input, forget, cell and output gates, and
/// `memory` the values of the cells. Writes what the cells show, as signed bytes plus 128 with
/// 1 = 127.
pub(crate) fn step_cells(gates: &[f32], memory: &mut [f32], shown: &mut [u8]) {
    assert!(gates.len() == 4 * memory.len() && memory.len() == shown.len(), "four gates for each cell");
    assert!(memory.len().is_multiple_of(lanes::LANES), "cells in whole vectors");
    match Level::current() {
        // SAFETY: the machine has the level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::step_cells(gates, memory, shown) },
        // SAFETY: the machine has the level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::step_cells(gates, memory, shown) },
        _ => lanes::step_cells(gates, memory, shown),
    }
}

/// The highest of some values; negative infinity if none is a number.
pub(crate) fn highest(values: &[f32]) -> f32 {
    match Level::current() {
        // SAFETY: the machine has the level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::highest(values) },
        // SAFETY: the machine has the level.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::highest(values) },
        _ => lanes::highest(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn every_level_multiplies_as_the_stated_sum(
            rows in 1usize..200,
            quads in 1usize..40,
            seed in any::<u64>(),
            count in 1usize..5,
            is_extreme in any::<bool>(),
        ) {
            let columns = 4 * quads;
            let mut prng = cenote_base::prng::Prng::new(seed);
            let mut byte = || if is_extreme { [-127, 127][prng.below(2) as usize] } else { prng.below(255) as i8 as i16 as i8 };
            let codes: Vec<i8> = (0..rows * columns).map(|_| byte().max(-127)).collect();
            let inputs: Vec<Vec<i8>> = (0..count).map(|_| (0..columns).map(|_| byte().max(-127)).collect()).collect();
            let scales: Vec<f32> = (0..rows).map(|row| 0.001 * (row + 1) as f32).collect();
            let factors: Vec<f32> = (0..count).map(|at| 0.5 + at as f32).collect();
            let mut expected = Vec::new();
            for (input, factor) in inputs.iter().zip(&factors) {
                for (codes, scale) in codes.chunks_exact(columns).zip(&scales) {
                    let sum: i32 = codes.iter().zip(input).map(|(code, value)| i32::from(*code) * i32::from(*value)).sum();
                    expected.push(1.0 + sum as f32 * (scale * factor));
                }
            }
            let matrix = Matrix::new(Shape { rows, columns }, &codes, &scales);
            let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| input.iter().map(|value| *value as u8 ^ 0x80).collect()).collect();
            let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            for level in Level::available() {
                // Onto a bias of 1, or onto 1.
                let bias = is_extreme.then(|| vec![1.0; rows]);
                let mut out = vec![if is_extreme { 5.0 } else { 1.0 }; count * rows];
                at_level(*level, || multiply(&matrix, &inputs, &factors, bias.as_deref(), &mut out.chunks_exact_mut(rows).collect::<Vec<_>>()));
                prop_assert_eq!(bits(&out), bits(&expected), "{:?}", level);
            }
        }

        #[test]
        fn every_level_steps_cells_as_the_scalar_code(
            values in prop::collection::vec(-30.0f32..30.0, 5 * 32),
        ) {
            let step = |level| at_level(level, || {
                let (mut memory, mut shown) = (values[128..].to_vec(), vec![0; 32]);
                step_cells(&values[..128], &mut memory, &mut shown);
                (bits(&memory), shown)
            });
            let expected = step(Level::Scalar);
            for at in 0..32 {
                let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
                let [input, forget, cell, output] = [0, 32, 64, 96].map(|gate| values[gate + at]);
                let memory = sigmoid(forget) * f64::from(values[128 + at]) + sigmoid(input) * f64::from(cell).tanh();
                prop_assert!((f64::from(f32::from_bits(expected.0[at])) - memory).abs() < 1e-5);
                let shown = 127.0 * sigmoid(output) * memory.tanh();
                prop_assert!((f64::from(expected.1[at]) - 128.0 - shown).abs() < 0.501, "{} {}", expected.1[at], shown);
            }
            for level in Level::available() {
                prop_assert_eq!(step(*level), expected.clone(), "{:?}", level);
            }
        }

        #[test]
        fn every_level_has_the_probabilities_of_the_scalar_code(logits in prop::collection::vec(-60.0f32..60.0, 1..300)) {
            // Codes of 0: the logits are what the product is added to.
            let shape = Shape { rows: logits.len(), columns: 4 };
            let matrix = Matrix::new(shape, &vec![0; 4 * logits.len()], &vec![1.0; logits.len()]);
            let of = |level| at_level(level, || {
                let (mut rows, mut maxima) = ([logits.clone(), logits.clone()], vec![Vec::new(); 2]);
                let [first, second] = &mut rows;
                probabilities(&matrix, &[&[7; 4], &[9; 4]], &[1.0, 2.0], None, &mut [first, second], &mut maxima);
                assert_eq!(rows[0], rows[1]);
                let stated = |row: &[f32]| row.chunks(BLOCK).map(highest).collect::<Vec<_>>();
                assert_eq!(maxima, [stated(&rows[0]), stated(&rows[1])]);
                rows[0].clone()
            });
            let expected = of(Level::Scalar);
            let highest = logits.iter().copied().fold(f32::MIN, f32::max);
            let exact: Vec<f64> = logits.iter().map(|logit| f64::from(logit - highest).exp()).collect();
            let sum: f64 = exact.iter().sum();
            for (found, exact) in expected.iter().zip(exact) {
                prop_assert!((f64::from(*found) - exact / sum).abs() < 1e-5 * (exact / sum) + 1e-9);
            }
            for level in Level::available() {
                prop_assert_eq!(bits(&of(*level)), bits(&expected), "{:?}", level);
            }
        }
    }
}
