//! Random numbers for names, secrets and seeds. Only a request's seed affects results; once drawn,
//! it makes the request reproducible.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;

/// 64 bits that are expensive to predict from earlier ones: request names, seeds.
#[must_use]
pub fn number() -> u64 {
    // Each `RandomState` is keyed from the system's generator, so this needs no state and cannot
    // fail.
    RandomState::new().build_hasher().finish()
}

/// 256 secret bits as hexadecimal text.
///
/// # Errors
/// The system's generator cannot be read.
pub fn secret() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// Compares two secrets, in a time that depends on their lengths only.
#[must_use]
pub fn secrets_equal(given: &[u8], expected: &[u8]) -> bool {
    if given.len() != expected.len() {
        return false;
    }
    let difference = given.iter().zip(expected).fold(0_u8, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_different() {
        let (one, two) = (secret().expect("the system has a generator"), secret().expect("and it goes on"));
        assert_eq!(one.len(), 64);
        assert_ne!(one, two);
        assert_ne!(number(), number());
    }

    #[test]
    fn comparison_is_equality() {
        assert!(secrets_equal(b"abc", b"abc"));
        assert!(!secrets_equal(b"abc", b"abd"));
        assert!(!secrets_equal(b"abc", b"abcd"));
        assert!(secrets_equal(b"", b""));
    }
}
