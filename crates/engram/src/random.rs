//! The two generators that models take hash multipliers from, bit for bit.
//!
//! [`NumpyRng`] is numpy's `default_rng(seed)`: `SeedSequence` (O'Neill's `seed_seq_fe128`), PCG64
//! with the XSL-RR output, and Lemire's bounded integers. [`splitmix64`] is Vigna's.

/// SplitMix64's increment, 2^64 / φ.
pub const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One step of SplitMix64 from the state `value`: the increment comes first.
pub fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Words of a seed sequence's pool.
const POOL: usize = 4;

/// The hash of the seed sequence, whose constant changes with each use.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn word(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let word = word.wrapping_mul(self.constant);
        word ^ (word >> 16)
    }
}

fn mix(x: u32, y: u32) -> u32 {
    let mixed = x.wrapping_mul(0xCA01_F9DD).wrapping_sub(y.wrapping_mul(0x4973_F715));
    mixed ^ (mixed >> 16)
}

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_words(seed: u64) -> [u64; POOL] {
    let mut hash = Hash { constant: 0x43B0_D7E5, multiplier: 0x931E_8875 };
    // A seed of one word and one of two words with a zero above fill the pool alike.
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.word(word));
    for from in 0..POOL {
        for to in (0..POOL).filter(|to| *to != from) {
            pool[to] = mix(pool[to], hash.word(pool[from]));
        }
    }
    let mut hash = Hash { constant: 0x8B51_F9DD, multiplier: 0x58F3_8DED };
    let mut words = pool.iter().chain(&pool).map(|word| u64::from(hash.word(*word)));
    std::array::from_fn(|_| {
        let (low, high) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        high << 32 | low
    })
}

/// numpy's `default_rng`.
#[derive(Clone, Debug)]
pub struct NumpyRng {
    state: u128,
    increment: u128,
    /// The upper half of a draw whose lower half was used.
    half: Option<u32>,
}

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

impl NumpyRng {
    /// `default_rng(seed)`.
    pub fn new(seed: u64) -> Self {
        let words = seed_words(seed).map(u128::from);
        let increment = (words[2] << 64 | words[3]) << 1 | 1;
        let mut rng = Self { state: 0, increment, half: None };
        rng.step();
        rng.state = rng.state.wrapping_add(words[0] << 64 | words[1]);
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The halves of a draw, the lower one first.
    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let word = self.next_u64();
        self.half = Some((word >> 32) as u32);
        word as u32
    }

    /// `integers(0, bound)`: below `bound`, which is at least one.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        match bound - 1 {
            0 => 0,
            // numpy draws 32 bits for bounds of 32 bits.
            0xFFFF_FFFF => u64::from(self.next_u32()),
            last if last < 0xFFFF_FFFF => u64::from(self.below_u32(bound as u32)),
            _ => self.below_u64(bound),
        }
    }

    fn below_u64(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            // The first values of each bucket are refused, so that all buckets are equal.
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    fn below_u32(&mut self, bound: u32) -> u32 {
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            let low = product as u32;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 32) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vigna's reference: the first outputs from the state 0.
    #[test]
    fn splitmix64_is_the_reference() {
        assert_eq!(splitmix64(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(splitmix64(GAMMA), 0x6E78_9E6A_A1B9_65F4);
    }

    #[derive(serde::Deserialize)]
    struct Draws {
        seed: u64,
        bound: u64,
        draws: Vec<u64>,
    }

    /// Values that numpy gave (`tests/vectors/make_vectors.py`): seeds of one and two words,
    /// bounds of 32 and of 64 bits.
    #[test]
    fn draws_are_those_of_numpy() {
        let cases: Vec<Draws> = serde_json::from_str(include_str!("../tests/vectors/numpy.json")).unwrap();
        for case in cases {
            let mut rng = NumpyRng::new(case.seed);
            let draws: Vec<u64> = case.draws.iter().map(|_| rng.below(case.bound)).collect();
            assert_eq!(draws, case.draws, "seed {}, bound {}", case.seed, case.bound);
        }
    }
}
