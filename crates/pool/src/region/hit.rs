//! A block as a reader found it: a copy of its descriptor's fields.

use crate::region::Region;
use crate::region::lines::{BlockState, Descriptor};
use crate::region::seal::Facts;
use cenote_base::{BlockHash, BlockIndex, Generation, NamespaceId};
use cenote_mem::{Fabric, HostLocal, PayloadSum};

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
    /// The descriptor's word with namespace, encoding, worker and depth.
    pub(crate) kind: u64,
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
            kind: descriptor.kind,
            offset,
            checksum: descriptor.checksum,
        }
    }
}

impl Hit {
    /// Its number in its sequence.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        (self.kind >> 48) as u32
    }
}

impl<F: Fabric, H: HostLocal> Region<F, H> {
    /// Whether the payload is still as it was published. `None`: this participant has no key of it.
    pub fn verify(&self, hit: &Hit) -> Option<bool> {
        let (guard, tag) = self.guard_of(&Facts::of(hit), hit.checksum)?;
        let mut sum = PayloadSum::reading(&guard);
        self.fabric.absorb_payload(hit.offset, hit.length, &mut sum);
        Some(sum.matches(&tag))
    }

    /// Copies the payload out, and returns whether the copy is as it was published. `None`: nothing is
    /// copied, because this participant has no key of it.
    pub fn copy_out(&self, hit: &Hit, parts: &mut [&mut [u8]]) -> Option<bool> {
        let (guard, tag) = self.guard_of(&Facts::of(hit), hit.checksum)?;
        let whole = parts.iter().map(|part| part.len() as u64).sum();
        let (mut at, mut sum) = (hit.offset, PayloadSum::reading(&guard));
        for part in parts {
            self.fabric.read_payload_part(at, part, whole, &mut sum);
            at += part.len() as u64;
        }
        Some(sum.matches(&tag))
    }

    pub fn hit(&self, block: BlockIndex) -> Option<Hit> {
        let descriptor = self.read_descriptor(block)?;
        (descriptor.block_state() == Some(BlockState::Ready)).then(|| Hit::of(block, &descriptor))
    }
}
