//! What proves that bytes of a place or a snapshot are its own: digests of heads, lines and headers,
//! and guards of payloads (docs/internals/cold-format.md#sums).

use crate::disk::unique;
use cenote_base::HashSeed;
use cenote_base::seal::{KeyId, PlaceKey, PlaceKeys, Seal, SealKeys, SealWord};
use cenote_mem::Guard;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Version of places: their identities, extents and keyed records.
pub const VERSION: u32 = 2;
/// Version of records in snapshots.
const SNAPSHOT_VERSION: u32 = 1;
/// Kinds of places for key derivation.
const PLACE: &str = "cenote cold seal v1";
const SNAPSHOT: &str = "cenote snapshot seal v1";
/// Odd, so that a counter in its steps visits all words.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The seal of the region above, with the keys of this process; `None`: it is not sealed.
pub type Sealing = Option<(Seal, SealKeys)>;

/// How sums of a place or of a snapshot are computed. Those of a place have a key, so only a process
/// that knows the place's seed, or a key of its seal, makes a record that another one believes.
#[derive(Clone)]
pub struct Sums {
    version: u32,
    key: Key,
}

#[derive(Clone)]
enum Key {
    /// No key: the sums find accidents only.
    None,
    /// Made of the place's seed, which lies in the place.
    Seed([u8; 32]),
    /// Not in the place.
    Seal(Arc<Sealed>),
}

/// The seal of one place.
struct Sealed {
    seal: Seal,
    keys: PlaceKeys,
    /// Keys of all that is no payload.
    digests: Vec<(KeyId, PlaceKey)>,
    /// Source of [`SealWord`]s.
    random: AtomicU64,
}

impl fmt::Debug for Sums {
    /// Does not show the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sums(version {}, seal {})", self.version, self.seal_mode())
    }
}

impl Sums {
    /// Sums without a key, which find accidents only: those of unsealed snapshots.
    pub const PLAIN: Self = Self { version: SNAPSHOT_VERSION, key: Key::None };

    /// The sums of the unsealed place with this seed.
    #[must_use]
    pub fn of(seed: &HashSeed) -> Self {
        let key = blake3::derive_key("cenote cold tier v2: key of a place's sums", &seed.0);
        Self { version: VERSION, key: Key::Seed(key) }
    }

    /// The sums of the place with this seed and seal.
    #[must_use]
    pub fn of_place(seed: &HashSeed, sealing: &Sealing) -> Self {
        let sealed = |(seal, keys): &(Seal, SealKeys)| Self::sealed(VERSION, *seal, keys.at(PLACE, &seed.0, *seal));
        sealing.as_ref().map_or_else(|| Self::of(seed), sealed)
    }

    /// The sums of the snapshot with this random number and seal.
    #[must_use]
    pub fn of_snapshot(id: &[u8; 16], sealing: &Sealing) -> Self {
        let sealed =
            |(seal, keys): &(Seal, SealKeys)| Self::sealed(SNAPSHOT_VERSION, *seal, keys.at(SNAPSHOT, id, *seal));
        sealing.as_ref().map_or(Self::PLAIN, sealed)
    }

    fn sealed(version: u32, seal: Seal, keys: PlaceKeys) -> Self {
        let digests =
            |id: KeyId| Some((id, PlaceKey::random(keys.opening(id.short())?.tag(b"cenote key of digests v1"))));
        let digests = keys.ids().filter_map(digests).collect();
        Self { version, key: Key::Seal(Arc::new(Sealed { seal, keys, digests, random: AtomicU64::new(unique()) })) }
    }

    pub(crate) const fn version(&self) -> u32 {
        self.version
    }

    /// How payloads are sealed.
    #[must_use]
    pub fn seal_mode(&self) -> Seal {
        match &self.key {
            Key::Seal(sealed) => sealed.seal,
            Key::None | Key::Seed(_) => Seal::None,
        }
    }

    /// [Short name](KeyId::short) of the key that new sums have; 0 without a seal.
    #[must_use]
    pub fn key_name(&self) -> u16 {
        match &self.key {
            Key::Seal(sealed) => sealed.keys.sealing().0.short(),
            Key::None | Key::Seed(_) => 0,
        }
    }

    /// Whether this process can tell a sum under this key from a wrong one.
    #[must_use]
    pub fn has_key(&self, name: u16) -> bool {
        match &self.key {
            Key::Seal(sealed) => sealed.keys.opening(name).is_some(),
            Key::None | Key::Seed(_) => true,
        }
    }

    /// First word of a digest under the key with this short name, which no name has without a seal.
    /// `None`: this process does not have it.
    #[must_use]
    pub fn digest(&self, name: u16, context: &[u8], bytes: &[u8]) -> Option<u64> {
        let mut hasher = match &self.key {
            Key::Seal(_) => return self.tag(name, context, bytes).map(|tag| first_word(&tag)),
            Key::None => blake3::Hasher::new(),
            Key::Seed(key) => blake3::Hasher::new_keyed(key),
        };
        hasher.update(context).update(bytes);
        Some(first_word(hasher.finalize().as_bytes()))
    }

    /// A whole digest under the key with this short name. `None`: there is no seal, or this process does
    /// not have that key.
    #[must_use]
    pub fn tag(&self, name: u16, context: &[u8], bytes: &[u8]) -> Option<[u8; 32]> {
        let Key::Seal(sealed) = &self.key else { return None };
        let (_, key) = sealed.digests.iter().find(|(id, _)| id.short() == name)?;
        Some(key.tag(&[context, bytes].concat()))
    }

    /// The word beside a new payload; 0 without a seal.
    #[must_use]
    pub fn new_word(&self) -> SealWord {
        match &self.key {
            Key::Seal(sealed) => SealWord::new(sealed.random.fetch_add(STEP, Relaxed), sealed.keys.sealing().0),
            Key::None | Key::Seed(_) => SealWord(0),
        }
    }

    /// What guards the payload with this word that `facts` tell from every other one, the word among
    /// them. `None`: this process does not have its key.
    #[must_use]
    pub fn guard(&self, word: SealWord, context: &[u8], facts: &[u8]) -> Option<Guard> {
        let Key::Seal(sealed) = &self.key else { return self.digest(0, context, facts).map(Guard::Sum) };
        let key = sealed.keys.opening(word.key())?.payload_of(facts);
        Some(if sealed.seal == Seal::Encrypt { Guard::Encrypt(key) } else { Guard::Mac(key) })
    }
}

fn first_word(digest: &[u8; 32]) -> u64 {
    u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"))
}
