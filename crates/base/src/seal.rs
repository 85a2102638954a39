//! Keys that seal KV: a forged payload does not verify, and an encrypted one is unreadable for users
//! of the medium without the key (docs/internals/threats.md#seals).
//!
//! A [`SealKeys`] is what an operator hands to a process. The first key seals, and all keys open, so
//! that keys can be changed while old blocks are still there. A [`PlaceKey`] is derived from it for
//! one region, cold tier or snapshot, and a [`PayloadKey`] from that for one payload. No crate below
//! the engine knows tenants, and none needs to: a payload's key covers the block's name, which covers
//! the model, the tenant's salt and all tokens. So two tenants never share a key.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// How the payloads of a region, cold tier or snapshot are sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Seal {
    /// A checksum, which detects accidents. Its key is in the region.
    #[default]
    None = 0,
    /// A message authentication code: a payload cannot be forged without the key.
    Mac = 1,
    /// Authenticated encryption: nor can it be read.
    Encrypt = 2,
}

impl Seal {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::None, Self::Mac, Self::Encrypt];

    /// The way with this number in a format.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|seal| *seal as u64 == number)
    }

    /// The way with this name in settings.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|seal| seal.name() == name)
    }

    /// Name in settings and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mac => "mac",
            Self::Encrypt => "encrypt",
        }
    }
}

impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Public name of a key: 64 bits that say nothing about it. Headers name keys by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub u64);

impl KeyId {
    /// The part that a payload's [`SealWord`] has room for. The keys of a [`SealKeys`] differ in it.
    #[must_use]
    pub const fn short(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Most keys of a process: the one that seals, and older ones that still open.
pub const KEYS_MAX: usize = 6;

/// Reasons for which a text is no list of keys. None of them shows a part of a key.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// A line is not a key.
    #[error("line {0} is no key: a key is 64 hexadecimal digits (32 random bytes), e.g. from `openssl rand -hex 32`")]
    Line(usize),
    /// There is none.
    #[error("no key; write 64 hexadecimal digits (32 random bytes), e.g. from `openssl rand -hex 32`")]
    Empty,
    /// There are too many.
    #[error("{0} keys; at most {KEYS_MAX} are possible: the first seals, the others open what older ones sealed")]
    TooMany(usize),
    /// Two of them cannot be told apart.
    #[error("lines {0} and {1} have the same key, or keys with the same short name; draw another one")]
    Twice(usize, usize),
    /// A key of zeros, or of one repeated byte, was not drawn at random.
    #[error("line {0}: a key of one repeated byte is no secret; draw one, e.g. with `openssl rand -hex 32`")]
    Weak(usize),
}

#[derive(Zeroize, ZeroizeOnDrop)]
struct Master([u8; 32]);

impl Master {
    fn derive(&self, context: &str, place: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&self.0);
        hasher.update(place);
        let derived = *hasher.finalize().as_bytes();
        hasher.zeroize();
        derived
    }

    fn id(&self) -> KeyId {
        let id = self.derive("cenote seal key id v1", &[]);
        KeyId(u64::from_le_bytes(id[..8].try_into().expect("8 bytes")).max(1))
    }
}

/// The keys of a process. Memory of keys is zeroed when the last copy is dropped.
#[derive(Clone)]
pub struct SealKeys(Arc<[(KeyId, Master)]>);

impl PartialEq for SealKeys {
    /// Compares the keys' public names.
    fn eq(&self, other: &Self) -> bool {
        self.ids().eq(other.ids())
    }
}

impl Eq for SealKeys {}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl SealKeys {
    /// Keys from a text: one a line, the one that seals first. Empty lines and lines that begin with
    /// `#` are left out.
    ///
    /// # Errors
    /// Names the line, never its content.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let mut found: Vec<(usize, Master)> = Vec::new();
        for (number, line) in keys {
            let key = Master(bytes_of(line).ok_or(KeyError::Line(number))?);
            if key.0.iter().all(|byte| *byte == key.0[0]) {
                return Err(KeyError::Weak(number));
            }
            let is_same = |(_, other): &&(usize, Master)| other.id().short() == key.id().short();
            if let Some((other, _)) = found.iter().find(is_same) {
                return Err(KeyError::Twice(*other, number));
            }
            found.push((number, key));
        }
        match found.len() {
            0 => Err(KeyError::Empty),
            1..=KEYS_MAX => Ok(Self(found.into_iter().map(|(_, key)| (key.id(), key)).collect())),
            many => Err(KeyError::TooMany(many)),
        }
    }

    /// Public names of the keys, that of the key which seals first.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.0.iter().map(|(id, _)| *id)
    }

    /// Public name of the key that seals.
    #[must_use]
    pub fn sealing(&self) -> KeyId {
        self.0[0].0
    }

    /// The same keys, of which the one with this name seals.
    #[must_use]
    pub fn sealing_with(&self, name: KeyId) -> Self {
        let mut keys: Vec<_> = self.0.iter().map(|(id, key)| (*id, Master(key.0))).collect();
        keys.sort_by_key(|(id, _)| *id != name);
        Self(keys.into())
    }

    /// The keys for a place with this seal: `context` names its kind, and `place` tells it from all others
    /// of it. No key makes both MACs and ciphertexts.
    #[must_use]
    pub fn at(&self, context: &str, place: &[u8], seal: Seal) -> PlaceKeys {
        let place = [place, &[seal as u8]].concat();
        let derived = |(id, key): &(KeyId, Master)| (*id, PlaceKey(key.derive(context, &place)));
        PlaceKeys(self.0.iter().map(derived).collect())
    }
}

/// 32 bytes from 64 hexadecimal digits.
fn bytes_of(line: &str) -> Option<[u8; 32]> {
    let digits = line.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

/// The keys of one region, cold tier or snapshot: useless elsewhere.
#[derive(Clone)]
pub struct PlaceKeys(Arc<[(KeyId, PlaceKey)]>);

impl fmt::Debug for PlaceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(id, _)| id)).finish()
    }
}

impl PlaceKeys {
    /// The key that seals.
    #[must_use]
    pub fn sealing(&self) -> (KeyId, &PlaceKey) {
        (self.0[0].0, &self.0[0].1)
    }

    /// Names of the keys for a place with this seal, in their order.
    pub fn names(&self, seal: Seal) -> impl Iterator<Item = KeyId> + '_ {
        self.0.iter().map(move |(_, key)| key.name(seal))
    }

    /// The key with this short name.
    #[must_use]
    pub fn opening(&self, short: u16) -> Option<&PlaceKey> {
        self.0.iter().find(|(id, _)| id.short() == short).map(|(_, key)| key)
    }

    /// Public names of all keys.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.0.iter().map(|(id, _)| *id)
    }
}

/// One key of a place.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct PlaceKey([u8; 32]);

impl PlaceKey {
    /// A key from random bytes, for what no other process reads.
    #[must_use]
    pub const fn random(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key of the payload that these words tell from every other one of the place. For
    /// encryption they must never come twice for different bytes.
    #[must_use]
    pub fn payload(&self, words: [u64; 8]) -> PayloadKey {
        let mut bytes = [0; 64];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.payload_of(&bytes)
    }

    /// Public name of this key for a place with this seal. Without the key it cannot be made for another
    /// seal or place, so a header that has it was written by a holder of the key.
    #[must_use]
    pub fn name(&self, seal: Seal) -> KeyId {
        let tag = self.tag(&[b"cenote seal name v1".as_slice(), &[seal as u8]].concat());
        KeyId(u64::from_le_bytes(tag[..8].try_into().expect("8 bytes")).max(1))
    }

    /// As [`PlaceKey::payload`], for a payload that these bytes tell from every other one.
    #[must_use]
    pub fn payload_of(&self, bytes: &[u8]) -> PayloadKey {
        let mut derived = *blake3::keyed_hash(&self.0, bytes).as_bytes();
        let (key, nonce) = derived.split_at(16);
        let both = PayloadKey { key: key.try_into().expect("16 bytes"), nonce: nonce.try_into().expect("16 bytes") };
        derived.zeroize();
        both
    }

    /// BLAKE3 of `bytes` under this key, for records that are read whole.
    #[must_use]
    pub fn tag(&self, bytes: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, bytes).as_bytes()
    }
}

/// Key and nonce of one payload.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PayloadKey {
    /// The cipher's key.
    pub key: [u8; 16],
    /// Its nonce.
    pub nonce: [u8; 16],
}

/// A word beside each sealed payload: 48 random bits, which no two payloads of a slot share, and the
/// [short name](KeyId::short) of the key in the low 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealWord(pub u64);

impl SealWord {
    /// A word from 48 of these random bits and a key's name.
    #[must_use]
    pub const fn new(random: u64, key: KeyId) -> Self {
        Self(random << 16 | key.short() as u64)
    }

    /// Short name of the key.
    #[must_use]
    pub const fn key(self) -> u16 {
        self.0 as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "f00102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

    #[test]
    fn a_list_of_keys_is_read_and_errors_name_the_line_only() {
        let keys = SealKeys::parse(&format!("# new\n\n {TWO} \n# old\n{ONE}\n")).expect("two keys");
        assert_eq!(keys.ids().count(), 2);
        assert_eq!(keys.sealing(), SealKeys::parse(TWO).expect("one key").sealing());
        let short = &ONE[..63];
        let wrong = [
            (String::new(), KeyError::Empty),
            (format!("{ONE}\n{short}"), KeyError::Line(2)),
            (format!("{short}g"), KeyError::Line(1)),
            (format!("{ONE}\n\n{ONE}"), KeyError::Twice(1, 3)),
            ("00".repeat(32), KeyError::Weak(1)),
            ((1..8).map(|n| format!("{n:02x}{}\n", &ONE[2..])).collect(), KeyError::TooMany(7)),
        ];
        for (text, error) in wrong {
            let found = SealKeys::parse(&text).expect_err(&text);
            assert_eq!(found, error);
            assert!(!found.to_string().contains(&ONE[8..24]), "an error shows no key");
        }
        let shown = format!("{keys:?} {:?}", keys.at("cenote test", &[], Seal::Mac));
        assert!(!shown.contains("0001") && !shown.to_lowercase().contains("f001"), "{shown}");
    }

    #[test]
    fn every_place_key_name_and_word_gives_another_key() {
        let keys = SealKeys::parse(&format!("{ONE}\n{TWO}")).expect("two keys");
        let mut all = std::collections::BTreeSet::new();
        let mut count = 0;
        let [mac, encrypt] = [Seal::Mac, Seal::Encrypt];
        for (context, place, seal) in
            [("cenote a", b"1", mac), ("cenote a", b"2", mac), ("cenote b", b"1", mac), ("cenote a", b"1", encrypt)]
        {
            let place = keys.at(context, place, seal);
            for id in place.ids() {
                let key = place.opening(id.short()).expect("it has it");
                for word in 0..9 {
                    let words: [u64; 8] = std::array::from_fn(|at| u64::from(at == word));
                    let one = key.payload(words);
                    all.extend([one.key, one.nonce]);
                    count += 2;
                }
            }
        }
        assert_eq!(all.len(), count);
    }
}
