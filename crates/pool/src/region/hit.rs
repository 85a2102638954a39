//! A block as a reader found it: a copy of its descriptor's fields.

use crate::region::Region;
use crate::region::lines::{BlockState, Descriptor, checksum_key};
use cenote_base::{BlockHash, BlockIndex, Generation, NamespaceId};
use cenote_mem::{Fabric, HostLocal};

/// A block that a lookup found. It is a hint: a read of it may still miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Number of its slot.
    pub block: BlockIndex,
    /// Generation of the slot.
    pub generation: Generation,
    /// Hash of its tokens and namespace.
    pub hash: BlockHash,
    /// Row of the namespace in which it was published. A holder of a [`crate::Namespace`] whose
    /// hashes may be of another one compares it.
    pub namespace: NamespaceId,
    /// Bytes of its payload, in whole lines.
    pub length: u64,
    /// Encoding of the payload, set by its publisher in [`crate::NewBlock`]; 0: the engine's own
    /// layout.
    pub encoding: u8,
    pub(crate) offset: u64,
    pub(crate) checksum: u64,
}

impl Hit {
    #[inline]
    pub(crate) fn of(block: BlockIndex, descriptor: &Descriptor) -> Self {
        let (length, offset) = descriptor.extent();
        Self {
            block,
            generation: descriptor.generation(),
            hash: descriptor.block_hash(),
            namespace: NamespaceId(descriptor.namespace()),
            length,
            encoding: descriptor.encoding(),
            offset,
            checksum: descriptor.checksum,
        }
    }
}

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// Whether the payload still has the hit's checksum.
    pub fn verify(&self, hit: &Hit) -> bool {
        let key = checksum_key(hit.hash, hit.generation);
        self.fabric.checksum_payload(hit.offset, hit.length, key) == hit.checksum
    }

    pub fn hit(&self, block: BlockIndex) -> Option<Hit> {
        let descriptor = self.read_descriptor(block)?;
        (descriptor.block_state() == Some(BlockState::Ready)).then(|| Hit::of(block, &descriptor))
    }
}
