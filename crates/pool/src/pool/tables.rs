//! Namespaces, their quotas, and objects.

use super::Pool;
use super::roots::Over;
use crate::error::PoolError;
use crate::region::lines::{KeyLine, NameLine, QuotaLine};
use crate::region::seal::key_names;
use crate::space::Limits;
use crate::tables::Thing;
use crate::tables::namespaces::{Namespace, NamespaceRecord};
use cenote_base::NamespaceId;
use cenote_base::seal::{KEYS_MAX, KeyId, Seal, SealKeys};
use cenote_mem::{Fabric, HostLocal, LINE};
use std::collections::BTreeSet;

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Opens the namespace of this fingerprint, or enters a new one. It stays open until this
    /// worker leaves the region. If no row is free, a row is reclaimed that no worker has open and
    /// that has no block; an earlier namespace with the same number is gone then.
    ///
    /// The handle is good for workers that have opened the namespace. Others publish nothing with
    /// it.
    ///
    /// # Errors
    /// Its blocks do not fit into a chunk, no row can be reclaimed, or the row says another block
    /// size.
    pub fn namespace(&self, record: &NamespaceRecord) -> Result<Namespace, PoolError> {
        let member = &*self.0;
        if record.block_bytes == 0 || record.block_bytes > member.region.layout.chunk_bytes {
            return Err(PoolError::BlockTooLarge {
                block_bytes: record.block_bytes,
                chunk_bytes: member.region.layout.chunk_bytes,
            });
        }
        if !record.block_bytes.is_multiple_of(LINE) {
            return Err(PoolError::Config(format!(
                "blocks of {} bytes: a block is a multiple of {LINE}",
                record.block_bytes
            )));
        }
        member.renew_rows();
        let open = || {
            let tables = member.tables.lock(member.locks.patient()).map_err(PoolError::lock("table"))?;
            member.tables.open_namespace(&tables, record)
        };
        match open() {
            // Dead workers of this host may have the last rows open.
            Err(PoolError::TableFull { .. }) if member.recover_dead().is_ok_and(|dead| dead.workers > 0) => open(),
            opened => opened,
        }
    }

    /// Limits the bytes that a namespace's blocks may take in the region, over all hosts; 0 removes
    /// the limit. It applies to this host at once, to other hosts from their next tick. Nothing is
    /// evicted before the next publish.
    ///
    /// # Errors
    /// There is no such namespace, or the table was busy for too long.
    pub fn set_quota(&self, namespace: NamespaceId, bytes: u64) -> Result<(), PoolError> {
        self.set_limits(namespace, |limits| Ok(Limits { quota: bytes, ..limits }))
    }

    /// Keeps bytes for a namespace's blocks: while they take no more than these, over all hosts, none of
    /// them is evicted for another namespace, an object or memory of users. Other hosts heed it from
    /// their next tick on.
    ///
    /// # Errors
    /// As [`Pool::set_quota`]; or the region is of the plain design, or would keep more than half of its
    /// bytes for its namespaces, so that others might find no room.
    pub fn keep(&self, namespace: NamespaceId, bytes: u64) -> Result<(), PoolError> {
        let region = &self.0.region;
        if region.is_plain() {
            return Err(PoolError::Config("the plain design evicts the oldest block of all models".to_owned()));
        }
        self.set_limits(namespace, |limits| {
            let others = (0..region.layout.num_namespaces).filter(|&row| row != u64::from(namespace.0));
            // A row without a model keeps nothing, whatever its limits say.
            let others = others.filter(|&row| self.0.space.namespace_line(row).is_some());
            let others: u64 = others.map(|row| self.0.space.read_limits(row).kept).fold(0, u64::saturating_add);
            let most = region.layout.num_chunks * region.layout.chunk_bytes / 2;
            if bytes > 0 && others.saturating_add(bytes) > most {
                return Err(PoolError::Config(format!(
                    "the region may keep {most} bytes, half of its own, and keeps {others} for other models; give at \
                     most {}",
                    most.saturating_sub(others)
                )));
            }
            Ok(Limits { kept: bytes, ..limits })
        })
    }

    /// Changes a row's limits, with fresh rows and under the lock of their table.
    fn set_limits(
        &self,
        namespace: NamespaceId,
        change: impl FnOnce(Limits) -> Result<Limits, PoolError>,
    ) -> Result<(), PoolError> {
        let member = &*self.0;
        let row = u64::from(namespace.0);
        let tables = member.tables.lock(member.locks.patient()).map_err(PoolError::lock("table"))?;
        member.region.refresh_namespaces();
        if row >= member.region.layout.num_namespaces || member.space.namespace_line(row).is_none() {
            return Err(PoolError::Config(format!("the region has no namespace {row}")));
        }
        let limits = change(member.space.read_limits(row))?;
        member.tables.claim(&tables, Thing::Namespace(row))?;
        let at = member.region.layout.quota(row);
        member.region.write(at, QuotaLine { bytes: limits.quota, kept: limits.kept, ..QuotaLine::default() });
        member.space.know_limits(row, limits);
        Ok(())
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Names of the keys that payloads of the region may have, the newest first; none without a seal.
    #[must_use]
    pub fn keys(&self) -> Vec<KeyId> {
        if self.seal() == Seal::None { Vec::new() } else { self.0.region.admitted_keys() }
    }

    /// Lets workers attach that seal with the first of these keys, too, or with `only` no others. What other keys
    /// have sealed stays readable for workers that have them, and is a miss for others. Returns the
    /// names of the region's keys.
    ///
    /// # Errors
    /// The region is not sealed, the names of six keys are taken, or the table was busy for too long.
    pub fn admit_key(&self, keys: &SealKeys, only: bool) -> Result<Vec<KeyId>, PoolError> {
        let region = &self.0.region;
        if self.seal() == Seal::None {
            return Err(PoolError::NotSealed);
        }
        let key = key_names(&region.superblock.config.uuid, self.seal(), keys)[0];
        let tables = self.0.tables.lock(self.0.locks.patient()).map_err(PoolError::lock("table"))?;
        let others = region.admitted_keys().into_iter().filter(|id| *id != key && !only);
        let ids: Vec<KeyId> = std::iter::once(key).chain(others).collect();
        if ids.len() > KEYS_MAX {
            return Err(PoolError::Config(format!(
                "the region has the names of {KEYS_MAX} keys; when no block has an older one any more, drop them with \
                 --only"
            )));
        }
        self.0.tables.claim(&tables, Thing::Keys)?;
        let at = region.layout.keys();
        let changes = region.read::<KeyLine>(at).map_or(0, |line| line.changes) + 1;
        let mut line = KeyLine { changes, ..KeyLine::default() };
        line.ids.iter_mut().zip(&ids).for_each(|(to, id)| *to = id.0);
        region.write(at, line);
        Ok(ids)
    }
}

impl<F: Fabric, H: HostLocal> Pool<F, H> {
    /// Publishes `bytes` under `key`, in place of an earlier object.
    ///
    /// # Errors
    /// The key is empty or too long, the object is longer than a chunk, or there is no room.
    pub fn put_object(&self, key: &str, bytes: &[u8]) -> Result<(), PoolError> {
        self.put_object_over(key, bytes, Over::Any).map(|_| ())
    }

    /// The bytes published under `key`, or `None`.
    ///
    /// # Errors
    /// The key is empty or too long.
    pub fn get_object(&self, key: &str) -> Result<Option<Vec<u8>>, PoolError> {
        Ok(self.get_root(key)?.map(|(_, bytes)| bytes))
    }

    /// The keys of all objects.
    #[must_use]
    pub fn object_keys(&self) -> Vec<String> {
        let member = &*self.0;
        let keys = member.tables.all_rows().filter_map(|(row, _)| {
            let at = member.region.layout.object(row) + LINE;
            Some(member.region.read::<NameLine>(at)?.text())
        });
        let keys: BTreeSet<String> = keys.collect();
        keys.into_iter().collect()
    }

    /// Removes the object under `key`, and frees it; returns whether there was one.
    ///
    /// # Errors
    /// The key is empty or too long, or the table was busy for too long.
    pub fn destroy_object(&self, key: &str) -> Result<bool, PoolError> {
        let member = &*self.0;
        let hash = member.tables.object_hash(key)?;
        let tables = member.tables.lock_alive()?;
        let rows = member.tables.rows_of(hash);
        let existed = !rows.is_empty();
        let unused = member.tables.forget_rows(&tables, rows)?;
        drop(tables);
        member.tables.free_objects(&unused);
        Ok(existed)
    }
}
