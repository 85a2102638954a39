//! Primes above a number: sizes of hash heads.

/// A composite number below 2^64 has a witness among the first twelve primes (Sorenson and
/// Webster, 2015).
const WITNESSES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];

/// Whether `n` is prime (Miller-Rabin, certain for 64 bits).
pub fn is_prime(n: u64) -> bool {
    if n < 2 {
        return false;
    }
    if let Some(divisor) = WITNESSES.iter().find(|prime| n.is_multiple_of(**prime)) {
        return n == *divisor;
    }
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    WITNESSES.iter().all(|witness| {
        let mut power = power(*witness, odd, n);
        if power == 1 || power == n - 1 {
            return true;
        }
        for _ in 1..twos {
            power = product(power, power, n);
            if power == n - 1 {
                return true;
            }
        }
        false
    })
}

fn product(x: u64, y: u64, modulus: u64) -> u64 {
    (u128::from(x) * u128::from(y) % u128::from(modulus)) as u64
}

fn power(base: u64, exponent: u64, modulus: u64) -> u64 {
    let mut result = 1;
    let mut square = base % modulus;
    let mut left = exponent;
    while left > 0 {
        if left & 1 == 1 {
            result = product(result, square, modulus);
        }
        square = product(square, square, modulus);
        left >>= 1;
    }
    result
}

/// All primes from `start` on, ascending. It ends before 2^64.
pub fn primes_from(start: u64) -> impl Iterator<Item = u64> {
    (start..=u64::MAX).filter(|n| is_prime(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_primes_are_those_of_a_sieve() {
        let mut composite = vec![false; 10_000];
        for n in 2..composite.len() {
            assert_eq!(is_prime(n as u64), !composite[n], "{n}");
            (n * n..composite.len()).step_by(n).for_each(|multiple| composite[multiple] = true);
        }
        assert!(!is_prime(0) && !is_prime(1));
    }

    #[test]
    fn large_numbers_are_decided() {
        // Pseudoprimes to the bases 2, 3, 5, 7 (and up to 37 for the last), and their neighbours.
        for composite in [3_215_031_751, 3_474_749_660_383, 341_550_071_728_321, 3_825_123_056_546_413_051] {
            assert!(!is_prime(composite), "{composite}");
        }
        for prime in [2_147_483_647, 16_000_057, 4_294_967_291, 18_446_744_073_709_551_557] {
            assert!(is_prime(prime), "{prime}");
        }
    }

    #[test]
    fn primes_start_at_their_start() {
        assert_eq!(primes_from(0).take(5).collect::<Vec<_>>(), [2, 3, 5, 7, 11]);
        assert_eq!(primes_from(7).take(2).collect::<Vec<_>>(), [7, 11]);
        assert_eq!(primes_from(8).next(), Some(11));
    }
}
