//! Reductions and the exponential over `f32` slices in eight independent lanes. A plain loop adds
//! in order, which a compiler may not change; it is several times slower.

const LANES: usize = 8;

fn fold(values: &[f32], start: f32, step: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *value);
        }
    }
    lanes.iter().chain(rest).fold(start, |total, value| step(total, *value))
}

/// The sum.
pub fn sum(values: &[f32]) -> f32 {
    fold(values, 0.0, |total, value| total + value)
}

/// The largest value; negative infinity for an empty slice.
pub fn max(values: &[f32]) -> f32 {
    fold(values, f32::NEG_INFINITY, |largest, value| if value > largest { value } else { largest })
}

/// The dot product of two slices of equal length.
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            lanes[lane] += left[lane] * right[lane];
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum::<f32>();
    lanes.iter().sum::<f32>() + rest
}

/// e to the `x`, branch-free so that it vectorises. Relative error below 8e-7 for |x| < 87; the
/// argument is clamped to -87 and 88.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 × 2^23 rounds to the nearest integer. The polynomial is Cephes'
    // `expf`.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let biased = x * std::f32::consts::LOG2_E + ROUND;
    let power = biased - ROUND;
    let r = x - power * LN2_HIGH - power * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = p * r + c;
    }
    let mantissa = p * r * r + r + 1.0;
    let exponent = biased.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    mantissa * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_standard_library() {
        for step in -8600..8700 {
            let x = step as f32 / 100.0;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(((ours - exact) / exact).abs() < 8e-7, "exp({x}) = {ours}, not {exact}");
        }
        assert!(exp(-1e9) < 1e-37);
    }

    #[test]
    fn reductions_cover_every_element() {
        let values = (0..21).map(|value| value as f32).collect::<Vec<_>>();
        assert_eq!((sum(&values), max(&values), dot(&values, &values)), (210.0, 20.0, 2870.0));
    }
}
