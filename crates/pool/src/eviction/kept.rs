//! Kept bytes of namespaces: what stays with a model while others need room
//! (docs/internals/protocol.md#kept-bytes).

use super::Evictor;
use cenote_base::BlockIndex;
use cenote_mem::{Fabric, HostLocal, Word};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// What others have to leave. Sums are those of one look, under the heap lock.
pub(super) struct Kept {
    /// By the word of a charge: bytes beyond what is kept. Only namespaces that keep some.
    spare: BTreeMap<u32, u64>,
}

impl<F: Fabric, H: HostLocal> Evictor<F, H> {
    /// What is kept from `asker`: the bytes of all namespaces but its own.
    pub(super) fn kept_from(&self, asker: Option<u16>) -> Kept {
        let of_others = (0..self.space.known()).filter(|&row| asker.is_none_or(|asker| row != u64::from(asker)));
        let keeps = of_others.filter_map(|row| {
            let kept = self.region.kept(row).load(Relaxed);
            (kept > 0).then(|| (row as u32 + 1, self.space.used_bytes(row).saturating_sub(kept)))
        });
        Kept { spare: keeps.collect() }
    }

    /// The charge of a slot, and its bytes.
    fn charge(&self, block: BlockIndex) -> (u32, u64) {
        let (region, chunk) = (&self.region, self.region.layout.chunk_of(block));
        let class = region.class_of_chunk(chunk).or_else(|| region.class_of_offered(chunk));
        let bytes = class.map_or(0, |class| region.class_bytes(class).load(Relaxed));
        (self.region.slot_namespace(block).load(Relaxed), bytes)
    }
}

impl Kept {
    /// Whether this block may leave.
    pub fn lets<F: Fabric, H: HostLocal>(&self, of: &Evictor<F, H>, block: BlockIndex) -> bool {
        self.spare.is_empty() || {
            let (charge, bytes) = of.charge(block);
            self.spare.get(&charge).is_none_or(|&spare| bytes <= spare)
        }
    }

    /// Of blocks that may leave, those that may leave together, in their order.
    pub fn spared<F: Fabric, H: HostLocal>(&self, of: &Evictor<F, H>, mut blocks: Vec<BlockIndex>) -> Vec<BlockIndex> {
        if !self.spare.is_empty() {
            let mut spare = self.spare.clone();
            blocks.retain(|&block| takes(&mut spare, of.charge(block)));
        }
        blocks
    }

    /// Whether all blocks of a chunk may leave together.
    pub fn lets_chunk<F: Fabric, H: HostLocal>(&self, of: &Evictor<F, H>, chunk: u64) -> bool {
        self.spare.is_empty() || {
            let mut spare = self.spare.clone();
            of.published(chunk).all(|block| takes(&mut spare, of.charge(block)))
        }
    }
}

/// Takes a charge's bytes from what its namespace has to spare, if it has.
fn takes(spare: &mut BTreeMap<u32, u64>, (charge, bytes): (u32, u64)) -> bool {
    spare.get_mut(&charge).is_none_or(|spare| {
        let left = spare.checked_sub(bytes);
        *spare = left.unwrap_or(*spare);
        left.is_some()
    })
}
