//! Lists blocks with all that their publishers said about them, for tiers below the region and for
//! snapshots.

use super::Pool;
use crate::log::events::Names;
use crate::members::Member;
use crate::region::hit::Hit;
use crate::region::lines::{BlockState, Descriptor};
use cenote_base::{BlockIndex, NamespaceId};
use cenote_mem::{Fabric, HostLocal, LINE};

/// A readable block.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Reads it.
    pub hit: Hit,
    /// The row of its namespace.
    pub namespace: NamespaceId,
    /// Its number in its sequence.
    pub depth: u32,
    /// Names by which other programs know it.
    pub names: Names,
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Describes a block that a lookup found; `None`: it has left since.
    #[must_use]
    pub fn describe(&self, hit: &Hit) -> Option<Listed> {
        if self.0.is_out() { None } else { self.0.listed(hit.block).filter(|listed| listed.hit == *hit) }
    }

    /// All readable blocks of all hosts, in the order of their slots. One pass, without locks: a
    /// block that is published or leaves meanwhile may be missing.
    #[must_use]
    pub fn blocks(&self) -> Vec<Listed> {
        let region = &self.0.region;
        if self.0.is_out() {
            return Vec::new();
        }
        region.refresh_chunks();
        let of_chunk = |chunk| {
            let slots = region.read_chunk(chunk).map_or(0, |line| region.layout.slots(line.slot_bytes));
            let first = chunk * region.layout.descriptors_per_chunk;
            if slots > 0 {
                region.refresh_descriptors(first..first + slots);
            }
            first..first + slots
        };
        (0..region.layout.num_chunks).flat_map(of_chunk).filter_map(|slot| self.0.listed(BlockIndex(slot))).collect()
    }
}

impl<F: Fabric, H: HostLocal> Member<F, H> {
    /// Names are written before the descriptor and stay until the next one, so they belong to it if
    /// it is the same before and after reading them.
    fn listed(&self, block: BlockIndex) -> Option<Listed> {
        let read = || self.region.read_descriptor(block).filter(|found| found.block_state() == Some(BlockState::Ready));
        let descriptor: Descriptor = read()?;
        if self.region.has_events() {
            self.region.fabric.refresh(&[self.region.layout.names(block) / LINE * LINE]);
        }
        let names = self.log.names_of(block);
        let hit = Hit::of(block, &descriptor);
        (Hit::of(block, &read()?) == hit).then(|| Listed {
            hit,
            namespace: NamespaceId(descriptor.namespace()),
            depth: descriptor.depth(),
            names,
        })
    }
}
