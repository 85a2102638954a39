//! Namespaces: engines with the same fingerprint share blocks. A row binds a fingerprint to a block
//! size.

use super::opened::Fingerprint;
use super::{HeldTables, Thing};
use crate::error::PoolError;
use crate::region::lines::{NameLine, NamespaceLine};
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
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Computes the hashes of its blocks.
    pub hasher: ChainHasher,
    /// The row may belong to another namespace when this worker is gone.
    pub(crate) fingerprint: Fingerprint,
}

impl Namespace {
    /// Covers every fact that two users must share before they may share a block.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        zerocopy::transmute!(self.fingerprint)
    }

    pub(crate) const fn slot_bytes(&self) -> u64 {
        self.block_bytes.next_multiple_of(LINE)
    }
}

impl<F: Fabric, H: HostLocal> super::Tables<F, H> {
    /// Opens the row of a fingerprint for this worker. Enters the fingerprint if there is none.
    pub fn open_namespace(
        &self,
        tables: &HeldTables<'_, F, H>,
        record: &NamespaceRecord,
    ) -> Result<Namespace, PoolError> {
        self.region.refresh_namespaces();
        let fingerprint: Fingerprint = zerocopy::transmute!(record.fingerprint);
        let mut rows =
            (0..self.region.layout.num_namespaces).filter_map(|row| Some((row, self.space.namespace_line(row)?)));
        let row = match rows.find(|(_, line)| line.fingerprint == fingerprint) {
            Some((row, line)) if line.block_bytes != record.block_bytes => {
                return Err(PoolError::Damaged(format!(
                    "namespace {row} has blocks of {} bytes, this model's are {}",
                    line.block_bytes, record.block_bytes
                )));
            }
            Some((row, _)) => row,
            None => self.enter_namespace(tables, record)?,
        };
        self.open_row(tables, row, fingerprint);
        self.space.know_limits(row, self.space.read_limits(row));
        Ok(Namespace {
            id: NamespaceId(row as u16),
            block_bytes: record.block_bytes,
            block_tokens: record.block_tokens,
            hasher: ChainHasher::new(&self.region.superblock.config.seed, &record.fingerprint),
            fingerprint,
        })
    }

    fn enter_namespace(&self, tables: &HeldTables<'_, F, H>, record: &NamespaceRecord) -> Result<u64, PoolError> {
        let row = self.row_for_new(tables)?;
        self.claim(tables, Thing::Namespace(row))?;
        let at = self.region.layout.namespace(row);
        if self.region.fabric.load_line(at) != [0; 8] {
            self.region.clear(at);
            // A host that loses power must not leave the earlier namespace with another one's name.
            self.region.fabric.fence();
            fault::point(Point::NamespaceReclaimed);
        }
        self.region.write(at + LINE, NameLine::new(&record.label));
        fault::point(Point::NamespaceNamed);
        // An earlier namespace of this row may have had limits.
        if !self.space.read_limits(row).is_none() {
            self.region.clear(self.region.layout.quota(row));
        }
        // A host that loses power must not leave a row with another namespace's limits or without a
        // name.
        self.region.fabric.fence();
        let line = NamespaceLine {
            fingerprint: zerocopy::transmute!(record.fingerprint),
            block_bytes: record.block_bytes,
            shape: u64::from(record.block_tokens) | u64::from(record.num_layers) << 32,
            created: self.region.area.unix_seconds(),
            check: 0,
        };
        self.region.write(at, line);
        Ok(row)
    }
}
