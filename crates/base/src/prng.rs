//! A small deterministic generator: a seed gives the same numbers on every machine.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one 64-bit word of state, full period.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// A generator that starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of one position of one stream. Sampling step `n` of a request depends on
    /// `(seed, n)` only, so another worker can continue an interrupted request at any token.
    #[must_use]
    pub fn at(seed: u64, position: u64) -> Self {
        let mut mixed = Self(seed);
        let key = mixed.next_u64();
        Self(key ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniform number in `[0, 1)`, with 53 random bits.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A uniform number in `0..bound`. Panics if `bound` is zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a draw below zero has no value");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_independent_of_history() {
        let direct = Prng::at(7, 3).next_u64();
        let _ = Prng::at(7, 2).next_u64();
        assert_eq!(direct, Prng::at(7, 3).next_u64());
        assert_ne!(direct, Prng::at(7, 4).next_u64());
        assert_ne!(direct, Prng::at(8, 3).next_u64());
    }

    #[test]
    fn bounds_hold() {
        let mut prng = Prng::new(1);
        assert!((0..10_000).all(|_| prng.below(7) < 7 && (0.0..1.0).contains(&prng.next_f64())));
    }
}
