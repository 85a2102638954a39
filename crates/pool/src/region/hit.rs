//! A block as a reader found it: a copy of what its descriptor said.

use crate::region::Region;
use crate::region::lines::{BlockState, Descriptor, checksum_key};
use cenote_base::{BlockHash, BlockIndex, Generation};
use cenote_mem::{Fabric, HostLocal};

/// A block that a lookup found. A hint like everything from a lookup: reading it may still miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Where it is.
    pub block: BlockIndex,
    /// Which use of the descriptor.
    pub generation: Generation,
    /// Whose content.
    pub hash: BlockHash,
    /// Bytes of its payload, in whole lines.
    pub length: u64,
    /// Encoding of the payload, as its publisher set in [`crate::NewBlock`]; 0: as the engine has it.
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
            length,
            encoding: descriptor.encoding(),
            offset,
            checksum: descriptor.checksum,
        }
    }
}

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// Whether the payload that a hit names still has its checksum.
    pub fn verify(&self, hit: &Hit) -> bool {
        let key = checksum_key(hit.hash, hit.generation);
        self.fabric.checksum_payload(hit.offset, hit.length, key) == hit.checksum
    }

    pub fn hit(&self, block: BlockIndex) -> Option<Hit> {
        let descriptor = self.read_descriptor(block)?;
        (descriptor.block_state() == Some(BlockState::Ready)).then(|| Hit::of(block, &descriptor))
    }
}
