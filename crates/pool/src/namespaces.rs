//! Namespaces: who may share blocks with whom. A row binds a fingerprint to a block size.

use crate::error::PoolError;
use crate::locks::Name;
use crate::pool::{Inner, Pool};
use crate::region::layout::NAMESPACES;
use crate::region::lines::{NameLine, NamespaceLine};
use cenote_base::{ChainHasher, NamespaceId, fault};
use cenote_mem::{Fabric, HostLocal, LINE};

/// What a namespace is, as its first user declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRecord {
    /// Covers everything in which two users must agree to share a block.
    pub fingerprint: [u8; 32],
    /// For people; cut at 56 bytes.
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
    /// Names its blocks.
    pub hasher: ChainHasher,
}

impl Namespace {
    pub(crate) const fn slot_bytes(&self) -> u64 {
        self.block_bytes.next_multiple_of(LINE)
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Finds the namespace of this fingerprint, or enters it.
    ///
    /// # Errors
    /// Its blocks do not fit into a chunk, the table is full, or the row says another block size.
    pub fn namespace(&self, record: &NamespaceRecord) -> Result<Namespace, PoolError> {
        let inner = &*self.0;
        if record.block_bytes == 0 || record.block_bytes > inner.layout.chunk_bytes {
            return Err(PoolError::BlockTooLarge {
                block_bytes: record.block_bytes,
                chunk_bytes: inner.layout.chunk_bytes,
            });
        }
        if !record.block_bytes.is_multiple_of(LINE) {
            return Err(PoolError::Config(format!(
                "blocks of {} bytes: a block is a multiple of {LINE}",
                record.block_bytes
            )));
        }
        let _tables = inner.lock_patiently(Name::Tables).map_err(PoolError::lock("table"))?;
        let row = inner.namespace_row(record)?;
        inner.know_quota(row, inner.read_quota(row));
        Ok(Namespace {
            id: NamespaceId(row as u16),
            block_bytes: record.block_bytes,
            hasher: ChainHasher::new(&inner.superblock.config.seed, &record.fingerprint),
        })
    }
}

impl<F: Fabric, H: HostLocal> Inner<F, H> {
    fn namespace_row(&self, record: &NamespaceRecord) -> Result<u64, PoolError> {
        let fingerprint: [u64; 4] = zerocopy::transmute!(record.fingerprint);
        let mut free = None;
        for row in 0..NAMESPACES {
            let at = self.layout.namespace(row);
            match self.read::<NamespaceLine>(at) {
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
        let at = self.layout.namespace(row);
        let name = NameLine::new(&record.label);
        self.write(at + LINE, name);
        fault::point("namespace.named");
        // The row's last owner may have had a limit.
        if self.read_quota(row) != 0 {
            self.clear(self.layout.quota(row));
        }
        // A host that loses power leaves no row that bears another's limit, or no name.
        self.fabric.fence();
        let line = NamespaceLine {
            fingerprint,
            block_bytes: record.block_bytes,
            shape: u64::from(record.block_tokens) | u64::from(record.num_layers) << 32,
            created: self.area.unix_seconds(),
            check: 0,
        };
        self.write(at, line);
        Ok(row)
    }
}
