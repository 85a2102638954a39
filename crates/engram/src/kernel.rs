//! Rows of one layer for a run of positions.
//!
//! A hash is reduced by known primes, so no division is needed. With `x < 2^63` and a prime `p`,
//! `q = round(x / p)` is computed in f64 from a stored reciprocal. Three roundings of at most
//! 2^-53 each and `x / p < 2^49` keep the error of the quotient below 0.2, so `q` is at most one
//! from the true quotient and `x - q p` lies between `-p` and `p`. It fits 32 bits, in which the
//! remainder is computed: `x - q p`, or `p` more if that is negative. Adding 2^52 rounds `q` and
//! leaves it in the low bits of the sum. Heads of an order share `x`, so a group of heads is one
//! loop of fixed length, which the compiler turns into the vector instructions that [`pulp`]
//! selects at run time. Primes outside 2^14 to 2^31 take the processor's division.

use crate::hash::LayerHash;
use pulp::{Arch, Simd, WithSimd};

/// Adding it to a non-negative f64 below it rounds to a whole number and puts that number into
/// the low bits.
const ROUNDING: f64 = (1u64 << 52) as f64;
const PRIME_MIN: u64 = 1 << 14;
const PRIME_MAX: u64 = 1 << 31;

/// Constants of `W` heads of one order.
#[derive(Clone, Debug)]
struct Group<const W: usize> {
    inverses: [f64; W],
    primes: [u32; W],
    offsets: [u64; W],
}

/// Constants of all heads, order-major, in groups as wide as divide the heads of an order.
#[derive(Clone, Debug)]
enum Heads {
    Eights(Vec<Group<8>>),
    Fours(Vec<Group<4>>),
    Ones(Vec<Group<1>>),
    /// `(prime, offset)`: for primes that the reciprocal does not serve.
    Divided(Vec<(u64, u64)>),
}

/// What a layer's hash reads of a run of positions.
pub(crate) struct Run<'a> {
    /// Ids of `N - 1` positions before the run, then of the run.
    pub ids: &'a [u32],
    /// For each position of the run, how many ids its n-gram may read, itself included.
    pub reach: &'a [u8],
    /// The id in place of all others.
    pub pad: u32,
    /// Rows of a position in all layers.
    pub stride: usize,
}

/// The hash of one layer, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    multipliers: Vec<u64>,
    /// Heads of an order.
    heads: usize,
    constants: Heads,
}

impl Kernel {
    pub fn new(layer: &LayerHash) -> Self {
        let heads = layer.primes.first().map_or(0, Vec::len);
        let (primes, offsets) = (layer.primes.concat(), layer.offsets.concat());
        let constants = if primes.iter().any(|prime| !(PRIME_MIN..PRIME_MAX).contains(prime)) {
            Heads::Divided(primes.into_iter().zip(offsets).collect())
        } else if heads.is_multiple_of(8) {
            Heads::Eights(groups(&primes, &offsets))
        } else if heads.is_multiple_of(4) {
            Heads::Fours(groups(&primes, &offsets))
        } else {
            Heads::Ones(groups(&primes, &offsets))
        };
        Self { multipliers: layer.multipliers.clone(), heads, constants }
    }

    /// Rows of a position in this layer.
    pub fn columns(&self) -> usize {
        (self.multipliers.len() - 1) * self.heads
    }

    /// Writes the rows of each position, order-major. Position `i` starts at `out[i * stride]`.
    pub fn rows(&self, arch: Arch, run: &Run<'_>, out: &mut [u64]) {
        arch.dispatch(Job { kernel: self, run, out });
    }

    #[inline(always)]
    fn write(&self, run: &Run<'_>, out: &mut [u64]) {
        match &self.constants {
            Heads::Eights(groups) => self.each_ngram(run, out, groups, self.heads / 8, reduced),
            Heads::Fours(groups) => self.each_ngram(run, out, groups, self.heads / 4, reduced),
            Heads::Ones(groups) => self.each_ngram(run, out, groups, self.heads, reduced),
            Heads::Divided(heads) => self.each_ngram(run, out, heads, self.heads, |x, heads, out| {
                out.iter_mut().zip(heads).for_each(|(row, (prime, offset))| *row = x % prime + offset);
            }),
        }
    }

    /// Calls `reduce` with the hash of each n-gram, the constants of its order, and its rows.
    #[inline(always)]
    fn each_ngram<C>(
        &self,
        run: &Run<'_>,
        out: &mut [u64],
        constants: &[C],
        per_order: usize,
        reduce: impl Fn(u64, &[C], &mut [u64]),
    ) {
        let order_max = self.multipliers.len();
        let positions = run.ids.windows(order_max).zip(run.reach).zip(out.chunks_mut(run.stride));
        for ((window, reach), out) in positions {
            let at = |shift: usize| {
                let id = if shift < usize::from(*reach) { window[order_max - 1 - shift] } else { run.pad };
                u64::from(id).wrapping_mul(self.multipliers[shift])
            };
            let orders = constants.chunks_exact(per_order).zip(out.chunks_exact_mut(self.heads));
            let mut hash = at(0);
            for (shift, (constants, out)) in (1..order_max).zip(orders) {
                hash ^= at(shift);
                reduce(hash, constants, out);
            }
        }
    }
}

fn groups<const W: usize>(primes: &[u64], offsets: &[u64]) -> Vec<Group<W>> {
    let group = |(primes, offsets): (&[u64], &[u64])| Group {
        inverses: std::array::from_fn(|head| 1.0 / primes[head] as f64),
        primes: std::array::from_fn(|head| primes[head] as u32),
        offsets: std::array::from_fn(|head| offsets[head]),
    };
    primes.chunks_exact(W).zip(offsets.chunks_exact(W)).map(group).collect()
}

/// The hash modulo each prime, behind the head's offset.
#[inline(always)]
fn reduced<const W: usize>(hash: u64, groups: &[Group<W>], out: &mut [u64]) {
    // Below 2^63, so the cheaper signed conversion is right.
    let (float, low) = (hash as i64 as f64, hash as u32);
    for (group, out) in groups.iter().zip(out.chunks_exact_mut(W)) {
        for (head, row) in out.iter_mut().enumerate() {
            let quotient = (float * group.inverses[head] + ROUNDING).to_bits() as u32;
            let remainder = low.wrapping_sub(quotient.wrapping_mul(group.primes[head]));
            let remainder = remainder.min(remainder.wrapping_add(group.primes[head]));
            *row = u64::from(remainder) + group.offsets[head];
        }
    }
}

struct Job<'a> {
    kernel: &'a Kernel,
    run: &'a Run<'a>,
    out: &'a mut [u64],
}

impl WithSimd for Job<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.kernel.write(self.run, self.out);
    }
}

/// The name of the instruction set that computes rows on this machine.
#[must_use]
pub fn vector_level() -> &'static str {
    match Arch::new() {
        Arch::Scalar => "scalar",
        #[cfg(target_arch = "x86_64")]
        Arch::V3(_) => "avx2",
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) => "avx512",
        #[allow(unreachable_patterns, reason = "other processors have other levels")]
        _ => "vector",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every instruction set of this machine.
    fn levels() -> Vec<Arch> {
        let mut levels = vec![Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(pulp::x86::V3::try_new().map(Arch::V3));
            levels.extend(pulp::x86::V4::try_new().map(Arch::V4));
        }
        levels
    }

    fn layer(orders: usize, heads: usize, multipliers: Vec<u64>, prime: impl Fn(usize) -> u64) -> LayerHash {
        let primes: Vec<Vec<u64>> =
            (0..orders).map(|order| (0..heads).map(|head| prime(order * heads + head)).collect()).collect();
        let offsets = primes.iter().enumerate().map(|(at, heads)| vec![at as u64 * 7; heads.len()]).collect();
        LayerHash { layer: 0, multipliers, primes, offsets, rows: 0, padded_rows: 0 }
    }

    /// The rule as it is stated, with divisions.
    fn stated(layer: &LayerHash, run: &Run<'_>) -> Vec<u64> {
        let order_max = layer.multipliers.len();
        let mut rows = Vec::new();
        for (position, reach) in run.reach.iter().enumerate() {
            for order in 2..=order_max {
                let hash = (0..order).fold(0, |hash, shift| {
                    let id = run.ids[position + order_max - 1 - shift];
                    let id = if shift < usize::from(*reach) { id } else { run.pad };
                    hash ^ (u64::from(id) * layer.multipliers[shift])
                });
                let heads = layer.primes[order - 2].iter().zip(&layer.offsets[order - 2]);
                rows.extend(heads.map(|(prime, offset)| hash % prime + offset));
            }
        }
        rows
    }

    fn expect_stated(layer: &LayerHash, run: &Run<'_>) {
        let kernel = Kernel::new(layer);
        let expected = stated(layer, run);
        assert_eq!(kernel.columns(), run.stride);
        for level in levels() {
            let mut rows = vec![0; expected.len()];
            kernel.rows(level, run, &mut rows);
            assert_eq!(rows, expected, "{level:?}");
        }
    }

    proptest! {
        #[test]
        fn every_level_computes_the_stated_rows(
            heads in 1usize..18,
            orders in 1usize..5,
            start in 0u32..33,
            pad in 0u32..100_000,
            ids in prop::collection::vec(0u32..100_000, 12..40),
            factors in prop::array::uniform5(0u64..(1 << 63) / 100_000),
            reach in prop::collection::vec(0u8..6, 40),
        ) {
            let order_max = orders + 1;
            let prime = |at: usize| (1u64 << start) - 1 + 2 * at as u64 + 1;
            let layer = layer(orders, heads, factors[..order_max].to_vec(), prime);
            let reach = &reach[..ids.len() - orders];
            expect_stated(&layer, &Run { ids: &ids, reach, pad, stride: orders * heads });
        }
    }

    /// Quotients next to a whole number are the ones that rounding may miss.
    #[test]
    fn hashes_around_multiples_of_the_prime_are_exact() {
        for prime in [(1 << 14) + 1, 99_991, 16_000_057, 20_000_003, (1 << 31) - 1, 1 << 31, 3, 1] {
            let layer = layer(1, 8, vec![1, 0], |_| prime);
            let kernel = Kernel::new(&layer);
            let top = (1u64 << 63) / prime;
            for quotient in [0, 1, 2, top / 3, top / 2, top - 1].into_iter().chain((0..60).map(|bit| top >> bit)) {
                for hash in [0, 1, prime - 1, prime, prime + 1, prime / 2, prime / 2 + 1] {
                    let hash = (quotient * prime).saturating_add(hash).min((1 << 63) - 1);
                    let mut rows = [0; 8];
                    match &kernel.constants {
                        Heads::Eights(groups) => reduced(hash, groups, &mut rows),
                        Heads::Divided(_) => rows = [hash % prime; 8],
                        other => panic!("{other:?}"),
                    }
                    assert_eq!(rows, [hash % prime; 8], "{hash} mod {prime}");
                }
            }
        }
    }
}
