//! Blocks of a bench: one namespace of them, with numbers for names.

use cenote_base::BlockHash;
use cenote_console::failure::Failure;
use cenote_mem::Fabric;
use cenote_pool::{Namespace, NamespaceRecord, NewBlock, Pool, Publish};

/// A pool with the namespace of a bench.
pub struct Blocks<F: Fabric> {
    pub pool: Pool<F>,
    pub namespace: Namespace,
}

impl<F: Fabric> Blocks<F> {
    /// Blocks of so many bytes.
    pub fn of(pool: Pool<F>, block_bytes: u64) -> Result<Self, Failure> {
        let namespace = pool.namespace(&NamespaceRecord {
            fingerprint: [5; 32],
            label: "bench".to_owned(),
            block_bytes,
            block_tokens: 16,
            num_layers: 1,
        })?;
        Ok(Self { pool, namespace })
    }

    /// Name of a block.
    pub fn name(&self, number: u64) -> BlockHash {
        self.namespace.hasher.alias(&number.to_le_bytes())
    }

    /// Publishes a block, which must not be there.
    pub fn put(&self, number: u64, payload: &[u8]) -> Result<(), Failure> {
        let new = NewBlock::new(&self.namespace, self.name(number), 0);
        match self.pool.publish(&new, &[payload]) {
            Publish::Published => Ok(()),
            outcome => Err(Failure::new(format!("a put ended with {outcome:?}"))),
        }
    }
}
