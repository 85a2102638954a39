//! Namespaces: engines with the same fingerprint share blocks. A row binds a fingerprint to a block
//! size.

use crate::error::PoolError;
use crate::region::layout::NAMESPACES;
use crate::region::lines::{NameLine, NamespaceLine};
use crate::sync::{Holds, Tables};
use cenote_base::fault::{self, Point};
use cenote_base::{ChainHasher, NamespaceId};
use cenote_mem::{Fabric, HostLocal, LINE};

/// A namespace as its first user declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRecord {
    /// Covers every fact that two users must share before they may share a block.
    pub fingerprint: [u8; 32],
    /// Shown in reports; cut at 56 bytes.
    pub label: String,
    /// Payload bytes of every block.
    pub block_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Layers of a block.
    pub num_layers: u32,
}

/// A namespace of an open region.
#[derive(Clone)]
pub struct Namespace {
    /// Its row.
    pub id: NamespaceId,
    /// Payload bytes of every block.
    pub block_bytes: u64,
    /// Computes the hashes of its blocks.
    pub hasher: ChainHasher,
}

impl Namespace {
    pub(crate) const fn slot_bytes(&self) -> u64 {
        self.block_bytes.next_multiple_of(LINE)
    }
}

impl<F: Fabric, H: HostLocal> super::Tables<F, H> {
    /// The row of a fingerprint, which is entered if there is none.
    pub fn namespace_row(&self, _: &Holds<Tables>, record: &NamespaceRecord) -> Result<u64, PoolError> {
        self.region.refresh_namespaces();
        let fingerprint: [u64; 4] = zerocopy::transmute!(record.fingerprint);
        let mut free = None;
        for row in 0..NAMESPACES {
            let at = self.region.layout.namespace(row);
            match self.region.read::<NamespaceLine>(at) {
                Some(line) if line.fingerprint == fingerprint => {
                    return if line.block_bytes == record.block_bytes {
                        Ok(row)
                    } else {
                        Err(PoolError::Damaged(format!(
                            "namespace {row} has blocks of {} bytes, this model's are {}",
                            line.block_bytes, record.block_bytes
                        )))
                    };
                }
                Some(_) => {}
                None if free.is_none() => free = Some(row),
                None => {}
            }
        }
        let fact = "; models and versions that are gone keep theirs until a new region is made";
        let row = free.ok_or(PoolError::TableFull { table: "namespace", rows: NAMESPACES, fact })?;
        let at = self.region.layout.namespace(row);
        let name = NameLine::new(&record.label);
        self.region.write(at + LINE, name);
        fault::point(Point::NamespaceNamed);
        // An earlier namespace of this row may have had a limit.
        if self.space.read_quota(row) != 0 {
            self.region.clear(self.region.layout.quota(row));
        }
        // A host that loses power must not leave a row with another namespace's limit or without a
        // name.
        self.region.fabric.fence();
        let line = NamespaceLine {
            fingerprint,
            block_bytes: record.block_bytes,
            shape: u64::from(record.block_tokens) | u64::from(record.num_layers) << 32,
            created: self.region.area.unix_seconds(),
            check: 0,
        };
        self.region.write(at, line);
        Ok(row)
    }
}
