//! Eigenvalues and eigenvectors of symmetric matrices: Householder's reduction to a tridiagonal
//! matrix, then QL steps with implicit shifts (Golub and Van Loan, Matrix Computations, §8.3).
//!
//! Vectors are rows, so that each rotation changes two adjacent pieces of memory.

/// Most QL steps for an eigenvalue. Some two are usual.
const STEPS_MAX: usize = 64;

/// Eigenvalues of a symmetric matrix, the greatest first, and its eigenvectors as rows in their
/// order. `None`: numbers are not finite.
pub(crate) fn eigen(mut matrix: Vec<f64>, size: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    assert_eq!(matrix.len(), size * size, "a square matrix");
    if !matrix.iter().all(|value| value.is_finite()) {
        return None;
    }
    let (mut diagonal, mut beside, mut rows) = reduce(&mut matrix, size);
    rotate(&mut diagonal, &mut beside, &mut rows, size)?;
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|a, b| diagonal[*b].total_cmp(&diagonal[*a]));
    let values = order.iter().map(|at| diagonal[*at]).collect();
    let vectors = order.iter().flat_map(|at| rows[at * size..][..size].iter().copied()).collect();
    Some((values, vectors))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Four sums, which the compiler computes side by side.
    let mut sums = [0.0; 4];
    let ((a_fours, a_rest), (b_fours, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    for (a, b) in a_fours.iter().zip(b_fours) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// `to += factor * from`.
fn add(to: &mut [f64], factor: f64, from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

/// Reduces a matrix `A` to the tridiagonal `T`. Returns its diagonal, the numbers beside it (the
/// last is zero), and `Q'` of `A = Q T Q'`.
fn reduce(matrix: &mut [f64], size: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let mut rows = vec![0.0; size * size];
    (0..size).for_each(|at| rows[at * size + at] = 1.0);
    let mut beside = vec![0.0; size];
    let (mut mirror, mut product) = (vec![0.0; size], vec![0.0; size]);
    for column in 0..size.saturating_sub(1) {
        let first = column + 1;
        let below: Vec<f64> = (first..size).map(|row| matrix[row * size + column]).collect();
        let norm = dot(&below, &below).sqrt();
        if dot(&below[1..], &below[1..]) == 0.0 {
            beside[column] = below[0];
            continue;
        }
        let image = if below[0] > 0.0 { -norm } else { norm };
        beside[column] = image;
        mirror[first..].copy_from_slice(&below);
        mirror[first] -= image;
        let mirror = &mirror[first..];
        let factor = 2.0 / dot(mirror, mirror);
        for row in first..size {
            product[row] = factor * dot(&matrix[row * size + first..(row + 1) * size], mirror);
        }
        let half = factor / 2.0 * dot(&product[first..], mirror);
        add(&mut product[first..], -half, mirror);
        for row in first..size {
            let values = &mut matrix[row * size + first..(row + 1) * size];
            add(values, -mirror[row - first], &product[first..]);
            add(values, -product[row], mirror);
        }
        let mut sums = vec![0.0; size];
        for (row, weight) in (first..size).zip(mirror) {
            add(&mut sums, *weight, &rows[row * size..][..size]);
        }
        for (row, weight) in (first..size).zip(mirror) {
            add(&mut rows[row * size..][..size], -factor * weight, &sums);
        }
    }
    let diagonal = (0..size).map(|at| matrix[at * size + at]).collect();
    (diagonal, beside, rows)
}

/// Turns a tridiagonal matrix into a diagonal one, and the rows with it.
fn rotate(diagonal: &mut [f64], beside: &mut [f64], rows: &mut [f64], size: usize) -> Option<()> {
    for first in 0..size {
        for step in 0.. {
            let is_small = |at: &usize| {
                let around = diagonal[*at].abs() + diagonal[at + 1].abs();
                beside[*at].abs() <= f64::EPSILON * around
            };
            let last = (first..size - 1).find(is_small).unwrap_or(size - 1);
            if last == first {
                break;
            }
            if step == STEPS_MAX {
                return None;
            }
            let spread = (diagonal[first + 1] - diagonal[first]) / (2.0 * beside[first]);
            let root = spread.hypot(1.0).copysign(spread);
            let mut gap = diagonal[last] - diagonal[first] + beside[first] / (spread + root);
            let (mut sin, mut cos, mut shift) = (1.0, 1.0, 0.0);
            let mut is_split = false;
            for at in (first..last).rev() {
                let (leaves, stays) = (sin * beside[at], cos * beside[at]);
                let length = leaves.hypot(gap);
                beside[at + 1] = length;
                if length == 0.0 {
                    diagonal[at + 1] -= shift;
                    beside[last] = 0.0;
                    is_split = true;
                    break;
                }
                (sin, cos) = (leaves / length, gap / length);
                gap = diagonal[at + 1] - shift;
                let turned = (diagonal[at] - gap) * sin + 2.0 * cos * stays;
                shift = sin * turned;
                diagonal[at + 1] = gap + shift;
                gap = cos * turned - stays;
                let (before, behind) = rows.split_at_mut((at + 1) * size);
                for (low, high) in before[at * size..].iter_mut().zip(&mut behind[..size]) {
                    let both = (*low, *high);
                    *high = sin * both.0 + cos * both.1;
                    *low = cos * both.0 - sin * both.1;
                }
            }
            if !is_split {
                diagonal[first] -= shift;
                beside[first] = gap;
                beside[last] = 0.0;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    #[test]
    fn vectors_are_orthogonal_and_rebuild_the_matrix() {
        let mut prng = Prng::new(5);
        for size in [1, 2, 3, 17, 64] {
            for rank in [size, size / 2] {
                let factors: Vec<f64> = (0..size * rank).map(|_| prng.next_f64() - 0.5).collect();
                let row = |at: usize| &factors[at * rank..][..rank];
                let matrix: Vec<f64> = (0..size * size).map(|at| dot(row(at / size), row(at % size))).collect();
                let (values, vectors) = eigen(matrix.clone(), size).expect("finite");
                assert!(values.is_sorted_by(|a, b| a >= b));
                let vector = |at: usize| &vectors[at * size..][..size];
                for i in 0..size {
                    for j in 0..size {
                        let one = f64::from(u8::from(i == j));
                        assert!((dot(vector(i), vector(j)) - one).abs() < 1e-12, "{size} {rank}: {i} {j}");
                        let entry: f64 = (0..size).map(|at| values[at] * vector(at)[i] * vector(at)[j]).sum();
                        assert!((entry - matrix[i * size + j]).abs() < 1e-12, "{size} {rank}: {i} {j}");
                    }
                }
            }
        }
        assert!(eigen(vec![f64::NAN], 1).is_none());
        assert_eq!(eigen(vec![0.0; 9], 3).expect("finite").0, [0.0; 3]);
    }
}
