//! A region by copies of its lines, for a reader that has no mapping of it: it fetches bytes by
//! offset, from another host, and asks here what they say.
//!
//! Nothing here fetches. Every byte may be forged, torn or of another time: an [`Outline`] names only
//! places inside the region, and its answers are hints until [`Outline::accept`].

use crate::error::PoolError;
use crate::index::{Probe, named};
use crate::log::events::Names;
use crate::region::config::Design;
use crate::region::hit::Hit;
use crate::region::layout::Layout;
use crate::region::lines::{Descriptor, Line, NamespaceLine};
use crate::region::seal::{Facts, RegionSeal};
use crate::region::superblock::Superblock;
use crate::tables::namespaces::Namespace;
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::{BlockHash, BlockIndex};
use cenote_mem::PayloadSum;

/// A line of the region.
pub type Words = [u64; 8];

/// What a superblock says of a region: where everything is, and how it is checked.
pub struct Outline {
    superblock: Superblock,
    layout: Layout,
    salt: u64,
    seal: RegionSeal,
}

impl Outline {
    /// Bytes of a region's begin that [`Outline::new`] wants.
    pub const SUPERBLOCK_BYTES: usize = 192;

    /// The region whose first three lines these are, of which `mapped` bytes can be fetched.
    ///
    /// # Errors
    /// As for [`Superblock::read`]. The region has the plain design, whose readers write. It is sealed
    /// and `keys` are missing, or the reverse.
    pub fn new(lines: [Words; 3], mapped: u64, keys: Option<&SealKeys>) -> Result<Self, PoolError> {
        let superblock = Superblock::open(lines, mapped)?;
        let config = &superblock.config;
        if config.design == Design::Plain {
            return Err(PoolError::Config(
                "a region of the plain design is read by its own hosts only: reads write counts".to_owned(),
            ));
        }
        match (config.seal, keys) {
            (Seal::None, Some(_)) => return Err(PoolError::NotSealed),
            (Seal::Mac | Seal::Encrypt, None) => {
                return Err(PoolError::Sealed { seal: config.seal, keys: "those of its other hosts".to_owned() });
            }
            _ => {}
        }
        let seal = RegionSeal::new(config.seal, &config.uuid, keys)?;
        let layout = Layout::new(config, superblock.region_bytes)?;
        Ok(Self { salt: superblock.salt(), superblock, layout, seal })
    }

    /// The settings that the region's creator chose.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Offsets of the buckets that may have this hash, in the order of a probe.
    pub fn buckets(&self, hash: BlockHash) -> impl Iterator<Item = u64> + '_ {
        let probe = Probe::of(hash, &self.layout);
        (0..probe.steps()).map(move |step| self.layout.bucket(probe.bucket(step)))
    }

    /// The blocks that a bucket names for this hash.
    pub fn named(&self, bucket: &Words, hash: BlockHash) -> impl Iterator<Item = BlockIndex> {
        let [entries @ .., _] = *bucket;
        entries.into_iter().filter_map(move |entry| named(entry, hash, &self.layout))
    }

    /// Whether a probe that has not found its hash in this bucket goes on.
    #[must_use]
    pub const fn goes_on(bucket: &Words) -> bool {
        bucket[7] != 0
    }

    /// Offset of a block's descriptor, a line. The block is one of [`Outline::named`].
    #[must_use]
    pub const fn descriptor(&self, block: BlockIndex) -> u64 {
        self.layout.descriptor(block)
    }

    /// The block, if this is the descriptor of a readable one with this hash.
    #[must_use]
    pub fn open(&self, words: Words, block: BlockIndex, hash: BlockHash) -> Option<Hit> {
        let descriptor = Descriptor::open(words, self.descriptor(block), self.salt)?;
        let is_it = descriptor.is_ready() && descriptor.hash == hash.words() && descriptor.lies_in(&self.layout);
        is_it.then(|| Hit::of(block, &descriptor))
    }

    /// Offset and length in bytes of the payload of a block that [`Outline::open`] returned: both are
    /// multiples of 64 and inside of the region.
    #[must_use]
    pub const fn payload(&self, hit: &Hit) -> (u64, u64) {
        (hit.offset, hit.length)
    }

    /// Offset of the line that says of which namespace a block is; `None`: the table has no such row.
    #[must_use]
    pub fn namespace(&self, hit: &Hit) -> Option<u64> {
        let row = u64::from(hit.namespace.0);
        (row < self.layout.num_namespaces).then(|| self.layout.namespace(row))
    }

    /// Whether the line at [`Outline::namespace`] is of this namespace.
    #[must_use]
    pub fn is_of(&self, words: Words, hit: &Hit, namespace: &Namespace) -> bool {
        self.namespace(hit)
            .and_then(|at| NamespaceLine::open(words, at, self.salt))
            .is_some_and(|line| line.fingerprint == namespace.fingerprint && line.block_bytes == namespace.block_bytes)
    }

    /// Offset of the 16 bytes with a block's names in other programs; `None`: the region keeps none.
    #[must_use]
    pub fn names(&self, block: BlockIndex) -> Option<u64> {
        (self.layout.events_per_host > 0).then(|| self.layout.names(block))
    }

    /// The names in those 16 bytes.
    #[must_use]
    pub const fn names_of([name, parent]: [u64; 2]) -> Names {
        Names { name, parent }
    }

    /// Offset of the 16 bytes with a block's seal; `None`: the region is not sealed.
    #[must_use]
    pub fn seal(&self, block: BlockIndex) -> Option<u64> {
        (self.superblock.config.seal != Seal::None).then(|| self.layout.seal(block))
    }

    /// Whether these bytes are the block's payload as it was published, by the keyed checksum or the
    /// seal. An encrypted payload is decrypted in its place.
    pub fn accept(&self, hit: &Hit, seal: [u64; 2], payload: &mut [u8]) -> bool {
        let Some((guard, tag)) = self.seal.guard_of(&Facts::of(hit), hit.checksum, || seal) else { return false };
        if payload.len() as u64 != hit.length {
            return false;
        }
        let mut sum = PayloadSum::reading(&guard);
        sum.incoming(payload);
        sum.matches(&tag)
    }
}
