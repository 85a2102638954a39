//! Number of different hashes among many, from a few kilobytes: HyperLogLog (Flajolet et al., 2007) with
//! the estimator of Ertl ("New cardinality estimation algorithms for HyperLogLog sketches", 2017,
//! algorithm 6), which is unbiased from the first hash on.
//!
//! The hashes must be uniform. Any bytes are valid registers. Sketches of several sets merge by the
//! maximum of each register.

/// Bits of a hash that choose its register.
const INDEX_BITS: u32 = 12;
/// Registers of a sketch, of a byte each.
pub const REGISTERS: usize = 1 << INDEX_BITS;
/// Highest value of a register.
const RANK_MAX: usize = (u64::BITS - INDEX_BITS + 1) as usize;
/// Standard error of an estimate, as a part of it: 1.04 / √4096.
pub const ERROR: f64 = 0.016_25;

/// The register of a hash, and its value for this hash.
#[inline]
#[must_use]
pub const fn place(hash: u64) -> (usize, u8) {
    let rest = hash << INDEX_BITS | 1 << (INDEX_BITS - 1);
    ((hash >> (u64::BITS - INDEX_BITS)) as usize, rest.leading_zeros() as u8 + 1)
}

/// Merges a sketch into another one.
pub fn merge(into: &mut [u8; REGISTERS], other: &[u8; REGISTERS]) {
    into.iter_mut().zip(other).for_each(|(register, other)| *register = (*register).max(*other));
}

/// The number of different hashes in a sketch.
#[must_use]
pub fn estimate(registers: &[u8; REGISTERS]) -> f64 {
    let mut counts = [0_u32; RANK_MAX + 1];
    registers.iter().for_each(|&register| counts[usize::from(register).min(RANK_MAX)] += 1);
    let all = REGISTERS as f64;
    let mut sum = all * tau(1.0 - f64::from(counts[RANK_MAX]) / all);
    for &count in counts[1..RANK_MAX].iter().rev() {
        sum = 0.5 * (sum + f64::from(count));
    }
    sum += all * sigma(f64::from(counts[0]) / all);
    all * all / (2.0 * std::f64::consts::LN_2 * sum)
}

/// The part of registers without a hash.
fn sigma(mut empty: f64) -> f64 {
    if empty >= 1.0 {
        return f64::INFINITY;
    }
    let (mut power, mut sum) = (1.0, empty);
    loop {
        empty *= empty;
        let before = sum;
        sum += empty * power;
        power += power;
        if sum <= before {
            return sum;
        }
    }
}

/// The part of registers that are full.
fn tau(mut rest: f64) -> f64 {
    if rest <= 0.0 || rest >= 1.0 {
        return 0.0;
    }
    let (mut power, mut sum) = (1.0, 1.0 - rest);
    loop {
        rest = rest.sqrt();
        let before = sum;
        power *= 0.5;
        sum -= (1.0 - rest) * (1.0 - rest) * power;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::prng::Prng;

    fn sketch(hashes: impl Iterator<Item = u64>) -> [u8; REGISTERS] {
        let mut registers = [0; REGISTERS];
        for hash in hashes {
            let (at, value) = place(hash);
            registers[at] = registers[at].max(value);
        }
        registers
    }

    fn drawn(seed: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |at| Prng::at(seed, at).next_u64())
    }

    #[test]
    fn sets_of_known_sizes_are_estimated_within_the_stated_error() {
        for count in [0, 1, 10, 1_000, 5_000, 20_000, 100_000, 400_000] {
            let errors: Vec<f64> = (0..16)
                .map(|seed| estimate(&sketch(drawn(seed, count))) - count as f64)
                .map(|error| error / (count as f64).max(1.0))
                .collect();
            let bias = errors.iter().sum::<f64>() / errors.len() as f64;
            let spread = (errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64).sqrt();
            // Of 16 sketches the mean is within a third, and their spread within half as much again.
            assert!(bias.abs() <= ERROR && spread <= 1.5 * ERROR, "{count}: bias {bias}, spread {spread}");
            assert!(errors.iter().all(|error| error.abs() <= 4.0 * ERROR), "{count}: {errors:?}");
        }
    }

    #[test]
    fn repeated_hashes_change_nothing_and_a_merged_sketch_is_that_of_the_union() {
        let once = sketch(drawn(1, 3_000));
        assert_eq!(once, sketch(drawn(1, 3_000).chain(drawn(1, 3_000))));
        let mut merged = sketch(drawn(1, 2_000));
        merge(&mut merged, &sketch(drawn(1, 3_000).skip(1_000)));
        assert_eq!(merged, once);
    }

    #[test]
    fn any_bytes_are_registers() {
        for byte in [0, 1, 53, 54, 255] {
            let estimated = estimate(&[byte; REGISTERS]);
            assert!(estimated >= 0.0 && !estimated.is_nan(), "{byte}: {estimated}");
        }
        assert_eq!(estimate(&[0; REGISTERS]), 0.0);
        assert_eq!([place(0), place(u64::MAX)], [(0, 53), (REGISTERS - 1, 1)]);
    }
}
