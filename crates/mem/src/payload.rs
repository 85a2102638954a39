//! What guards a payload while it is copied: a checksum, or a seal of AEGIS-128X2
//! (draft-irtf-cfrg-aegis-aead), which is a MAC or encryption.
//!
//! A [`PayloadSum`] takes a payload piece by piece, in order, as a [`Fabric`](crate::Fabric) copies
//! it. The writer ends with [`PayloadSum::finish`] and stores the [`Tag`]. The reader ends with
//! [`PayloadSum::matches`]: until then the bytes that it has copied are not to be used.

mod cipher;

use crate::checksum::Checksummer;
use cenote_base::seal::PayloadKey;
use cipher::{Decryption, Encryption, Mac};

/// Bytes that a seal takes at a time: they stay in a core's first cache between the cipher and the
/// copy.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// What guards one payload.
#[derive(Clone)]
pub enum Guard {
    /// A checksum under this key.
    Sum(u64),
    /// A MAC.
    Mac(PayloadKey),
    /// Encryption.
    Encrypt(PayloadKey),
}

/// What a writer stores beside a payload, and a reader compares: 128 bits of a seal, or 64 of a
/// checksum in `low`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The first half.
    pub low: u64,
    /// The second half; 0 for a checksum.
    pub high: u64,
}

impl Tag {
    fn of(bytes: [u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Self { low: word(0), high: word(8) }
    }

    fn bytes(self) -> [u8; 16] {
        (u128::from(self.low) | u128::from(self.high) << 64).to_le_bytes()
    }
}

/// A payload that is copied piece by piece: each piece but the last is a multiple of 64 bytes long.
pub struct PayloadSum(State);

#[allow(clippy::large_enum_variant, reason = "an unsealed region allocates nothing for a payload")]
enum State {
    Sum(Checksummer),
    Mac(Mac),
    Encrypt(Encryption),
    Decrypt(Decryption),
}

impl PayloadSum {
    /// A checksum of no bytes yet, under `key`.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self(State::Sum(Checksummer::new(key)))
    }

    /// For a payload that is written.
    #[must_use]
    pub fn writing(guard: &Guard) -> Self {
        Self(match guard {
            Guard::Sum(key) => State::Sum(Checksummer::new(*key)),
            Guard::Mac(key) => State::Mac(Mac::new(key)),
            Guard::Encrypt(key) => State::Encrypt(Encryption::new(key)),
        })
    }

    /// For a payload that is read.
    #[must_use]
    pub fn reading(guard: &Guard) -> Self {
        Self(match guard {
            Guard::Sum(key) => State::Sum(Checksummer::new(*key)),
            Guard::Mac(key) => State::Mac(Mac::new(key)),
            Guard::Encrypt(key) => State::Decrypt(Decryption::new(key)),
        })
    }

    /// Adds bytes that no other thread writes, and leaves them as they are. Encrypted bytes that are
    /// read are only checked.
    pub fn absorb(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::Sum(sum) => sum.absorb(piece),
            State::Mac(mac) => mac.update(piece),
            State::Encrypt(cipher) => piece.chunks(PIECE_BYTES).for_each(|piece| _ = cipher.encrypt(piece)),
            State::Decrypt(cipher) => cipher.check(piece),
        }
    }

    /// Adds the next piece, of at most 4 KiB, and returns what is to be stored for it.
    pub fn outgoing<'a>(&'a mut self, piece: &'a [u8]) -> &'a [u8] {
        match &mut self.0 {
            State::Encrypt(cipher) => return cipher.encrypt(piece),
            State::Sum(sum) => sum.absorb(piece),
            State::Mac(mac) => mac.update(piece),
            State::Decrypt(cipher) => cipher.check(piece),
        }
        piece
    }

    /// Adds a piece of any length, and turns it into what is to be stored for it.
    pub fn outgoing_in_place(&mut self, piece: &mut [u8]) {
        for piece in piece.chunks_mut(PIECE_BYTES) {
            match &mut self.0 {
                State::Encrypt(cipher) => piece.copy_from_slice(cipher.encrypt(piece)),
                _ => self.absorb(piece),
            }
        }
    }

    /// Adds the next piece as it was stored, and turns it into what its writer had.
    pub fn incoming(&mut self, piece: &mut [u8]) {
        match &mut self.0 {
            State::Decrypt(cipher) => cipher.decrypt(piece),
            _ => self.absorb(piece),
        }
    }

    /// The checksum, if that is what guards the payload.
    pub(crate) const fn checksum(&mut self) -> Option<&mut Checksummer> {
        match &mut self.0 {
            State::Sum(sum) => Some(sum),
            _ => None,
        }
    }

    /// The tag of all pieces.
    ///
    /// # Panics
    /// The payload is read and encrypted, so only its writer's tag exists: a bug of the caller.
    #[must_use]
    pub fn finish(self) -> Tag {
        match self.0 {
            State::Sum(sum) => Tag { low: sum.finish(), high: 0 },
            State::Mac(mac) => Tag::of(mac.finish()),
            State::Encrypt(cipher) => Tag::of(cipher.finish()),
            State::Decrypt(_) => panic!("a reader has a tag to compare"),
        }
    }

    /// Whether all pieces are those that this tag was stored for. Seals are compared in constant
    /// time.
    #[must_use]
    pub fn matches(self, tag: &Tag) -> bool {
        match self.0 {
            State::Sum(sum) => sum.finish() == tag.low,
            State::Mac(mac) => mac.verify(&tag.bytes()),
            State::Encrypt(_) => panic!("a writer has no tag to compare"),
            State::Decrypt(cipher) => cipher.verify(&tag.bytes()),
        }
    }
}

#[cfg(test)]
mod tests;
