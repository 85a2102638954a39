//! What guards a payload: the checksum of an unsealed region, or a seal under a key that is not in
//! the region (docs/internals/format.md#seals). Every payload of blocks, objects and swap space goes
//! through here.

use crate::error::PoolError;
use crate::region::Region;
use crate::region::hit::Hit;
use crate::region::lines::{KeyLine, checksum_key};
use crate::region::make::random_bytes;
use cenote_base::seal::{KeyId, PayloadKey, PlaceKey, PlaceKeys, Seal, SealKeys, SealWord};
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, Guard, HostLocal, LINE, Offset, Tag};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Kind of place for key derivation.
const CONTEXT: &str = "cenote region seal v1";
/// Last word of the facts from which a payload's key derives: of what publishers share, and of what
/// one worker keeps to itself.
const PUBLISHED: u64 = 1;
const PRIVATE: u64 = 2;
/// Odd, so that a counter in its steps visits all words.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Names of keys in a region with this identity and seal, in the keys' order. They depend on the seal, so
/// a writer of the region cannot turn encryption into less.
pub fn key_names(uuid: &[u8; 16], seal: Seal, keys: &SealKeys) -> Vec<KeyId> {
    place_keys(uuid, seal, keys).names(seal).collect()
}

fn place_keys(uuid: &[u8; 16], seal: Seal, keys: &SealKeys) -> PlaceKeys {
    keys.at(CONTEXT, uuid, seal)
}

/// The keys of a participant.
pub(crate) struct RegionSeal {
    mode: Seal,
    /// `None`: the region is not sealed, or this participant only looks at it.
    keys: Option<PlaceKeys>,
    /// What the participant was given: for places below the region, and to refuse keys without a seal.
    given: Option<SealKeys>,
    /// For payloads that no other worker reads.
    own: PlaceKey,
    /// Source of [`SealWord`]s.
    random: AtomicU64,
}

impl RegionSeal {
    /// The seal of a region of this mode.
    pub fn new(mode: Seal, uuid: &[u8; 16], keys: Option<&SealKeys>) -> Result<Self, PoolError> {
        if mode == Seal::None {
            let (own, random) = (PlaceKey::random([0; 32]), AtomicU64::new(0));
            return Ok(Self { mode, keys: None, given: keys.cloned(), own, random });
        }
        let drawn: [u8; 40] = random_bytes().map_err(|error| PoolError::Config(error.to_string()))?;
        let (own, random) = drawn.split_at(32);
        Ok(Self {
            mode,
            keys: keys.map(|keys| place_keys(uuid, mode, keys)),
            given: keys.cloned(),
            own: PlaceKey::random(own.try_into().expect("32 bytes")),
            random: AtomicU64::new(u64::from_le_bytes(random.try_into().expect("8 bytes"))),
        })
    }

    fn draw(&self) -> u64 {
        self.random.fetch_add(STEP, Relaxed)
    }

    /// As [`Region::guard_of`]; `words` loads the block's two words of the seals, if there are any.
    pub fn guard_of(&self, facts: &Facts, checksum: u64, words: impl FnOnce() -> [u64; 2]) -> Option<(Guard, Tag)> {
        if self.mode == Seal::None {
            return Some((Guard::Sum(checksum_key(facts.hash, facts.generation)), Tag { low: checksum, high: 0 }));
        }
        let [word, high] = words();
        let word = SealWord(word);
        let key = self.keys.as_ref()?.opening(word.key())?;
        Some((self.guard(key.payload(facts.words(word))), Tag { low: checksum, high }))
    }

    fn guard(&self, key: PayloadKey) -> Guard {
        if self.mode == Seal::Encrypt { Guard::Encrypt(key) } else { Guard::Mac(key) }
    }
}

/// What tells a payload from all others of the region. The name covers model, tenant and tokens.
pub(crate) struct Facts {
    pub hash: BlockHash,
    pub block: BlockIndex,
    pub generation: Generation,
    /// The descriptor's word with namespace, encoding, worker and depth.
    pub kind: u64,
    /// Bytes of the payload.
    pub length: u64,
}

impl Facts {
    pub const fn of(hit: &Hit) -> Self {
        Self { hash: hit.hash, block: hit.block, generation: hit.generation, kind: hit.kind, length: hit.length }
    }

    fn words(&self, seal: SealWord) -> [u64; 8] {
        let [low, high] = self.hash.words();
        let lines = self.length.div_ceil(LINE);
        [low, high, self.block.0, self.generation.0, self.kind, lines, seal.0, PUBLISHED]
    }
}

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// How payloads of this region are sealed.
    #[inline]
    pub const fn seal_mode(&self) -> Seal {
        self.superblock.config.seal
    }

    /// The keys that this participant was given for a sealed region.
    pub fn seal_keys(&self) -> Option<&SealKeys> {
        self.seal.given.as_ref()
    }

    /// Whether payloads have seals. Then they are never used in their place: a writer of the region could
    /// change them after the check, or before a seal is made of them.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.seal_mode() != Seal::None
    }

    /// Whether payloads are unreadable in their place.
    #[inline]
    pub fn is_encrypted(&self) -> bool {
        self.seal_mode() == Seal::Encrypt
    }

    /// What guards a payload that this worker is about to write, and the word that a reader needs.
    pub fn guard_new(&self, facts: &Facts) -> (Guard, SealWord) {
        if !self.is_sealed() {
            return (Guard::Sum(checksum_key(facts.hash, facts.generation)), SealWord(0));
        }
        let (id, key) = self.seal.keys.as_ref().expect("no worker attaches without keys").sealing();
        let word = SealWord::new(self.seal.draw(), id);
        (self.seal.guard(key.payload(facts.words(word))), word)
    }

    /// What guards a published payload, and the tag that it must have. `None`: this participant has
    /// no key of it.
    pub fn guard_of(&self, facts: &Facts, checksum: u64) -> Option<(Guard, Tag)> {
        let words = || {
            let at = self.layout.seal(facts.block);
            [at, at + 8].map(|at| self.fabric.load(Offset::new(at)))
        };
        self.seal.guard_of(facts, checksum, words)
    }

    /// What guards a payload that only this worker reads: `words` name it. Each call for an encrypted
    /// region returns another key, so a payload's guard is to be kept.
    pub fn guard_own(&self, words: [u64; 3]) -> Guard {
        if self.seal.mode == Seal::None {
            let [at, key, part] = words;
            return Guard::Sum(key ^ at.rotate_left(32) ^ (part + 1).wrapping_mul(STEP));
        }
        let [a, b, c] = words;
        self.seal.guard(self.seal.own.payload([a, b, c, self.seal.draw(), 0, 0, 0, PRIVATE]))
    }

    /// Stores what a reader needs besides the descriptor. The caller fences before a reader can
    /// accept the descriptor.
    #[inline]
    pub fn put_seal(&self, block: BlockIndex, word: SealWord, tag: &Tag) {
        if self.seal.mode != Seal::None {
            let at = self.layout.seal(block);
            self.fabric.write_word(Offset::new(at), word.0);
            self.fabric.write_word(Offset::new(at + 8), tag.high);
        }
    }

    /// Drops the cached copy of a block's seal.
    #[track_caller]
    pub fn refresh_seal(&self, block: BlockIndex) {
        if self.seal.mode != Seal::None {
            self.fabric.refresh(&[self.layout.seal(block) / LINE * LINE]);
        }
    }

    /// The keys that the region's payloads may have: the creator's, or those of later changes.
    pub fn admitted_keys(&self) -> Vec<KeyId> {
        let at = self.layout.keys();
        self.fabric.refresh(&[at]);
        let line: Option<KeyLine> = self.read(at);
        let ids = line.map_or([self.superblock.config.seal_key, 0, 0, 0, 0, 0], |line| line.ids);
        ids.into_iter().filter(|id| *id != 0).map(KeyId).collect()
    }

    /// Refuses a worker that could not read what others write, or that has keys for a region without a
    /// seal: its operator believes that it has one.
    pub fn demand_keys(&self) -> Result<(), PoolError> {
        if self.seal.mode == Seal::None {
            return if self.seal.given.is_some() { Err(PoolError::NotSealed) } else { Ok(()) };
        }
        let admitted = self.admitted_keys();
        let names = || admitted.iter().map(KeyId::to_string).collect::<Vec<_>>().join(", ");
        match &self.seal.keys {
            None => Err(PoolError::Sealed { seal: self.seal.mode, keys: names() }),
            Some(keys) => {
                let given = keys.sealing().1.name(self.seal.mode);
                if admitted.contains(&given) { Ok(()) } else { Err(PoolError::OtherKey { given, keys: names() }) }
            }
        }
    }
}
