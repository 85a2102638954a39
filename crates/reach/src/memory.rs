//! A region's memory, registered for peers. Over some transports a peer can read and write all memory of the
//! process that has registered, so that process may be another one than that which has the key and answers
//! readers ([`Share`](crate::Share)): what it says of the memory is a [`Registration`].
//!
//! It follows the region's name: a region that is removed and made anew is registered anew.

use crate::nixl::{Nixl, NixlError, Registered};
use cenote_mem::{Flush, MapError, ReadMapping, ReadOnly, RegionSource};
use cenote_pool::{PoolError, Superblock};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// A registered region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The region's identity, in hex: it is another one after the region was made anew.
    pub region: String,
    /// Seconds since 1970 of its making.
    pub created: u64,
    /// Its hash seed. Readers of the region know it.
    pub(crate) seed: [u8; 32],
    /// Bytes of the mapping.
    pub region_bytes: u64,
    /// Address of its first byte in the process that has registered it.
    pub(crate) base: u64,
    /// Number of this registration in that process.
    pub registration: u64,
    /// NIXL's metadata, in hex.
    pub(crate) metadata: String,
}

/// Why a region is not shared now.
#[derive(Debug, Error)]
pub enum ShareError {
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It is no region of this version.
    #[error(transparent)]
    Region(#[from] PoolError),
    /// Hosts whose caches are not coherent share it: NIXL reads through this host's caches.
    #[error(
        "its {hosts} hosts flush lines ({flush}), and peers would read this host's stale copies of them; make the \
         region for one host, with --max-hosts 1 or --flush none"
    )]
    Flushed {
        /// Host slots.
        hosts: u8,
        /// Its instruction.
        flush: Flush,
    },
    /// NIXL refuses.
    #[error(transparent)]
    Nixl(#[from] NixlError),
    /// The file cannot be looked at.
    #[error(transparent)]
    Io(#[from] io::Error),
}

struct Shown {
    registered: Registered,
    registration: Registration,
    file: Option<(u64, u64)>,
    identity: [u8; 16],
}

/// The memory of the region with a name, which need not exist yet.
pub struct Memory {
    source: RegionSource,
    nixl: Arc<Nixl>,
    shown: Option<Shown>,
    registrations: u64,
}

impl Memory {
    /// Registers nothing yet: see [`Memory::follow`].
    #[must_use]
    pub const fn new(source: RegionSource, nixl: Arc<Nixl>) -> Self {
        Self { source, nixl, shown: None, registrations: 0 }
    }

    /// Looks at the region's name, and registers what is there unless it is registered. The caller calls it about
    /// once a second.
    ///
    /// # Errors
    /// There is no such region, or it cannot be shared. Nothing is registered then.
    pub fn follow(&mut self) -> Result<Registration, ShareError> {
        let outcome = self.look();
        if outcome.is_err() {
            self.shown = None;
        }
        outcome
    }

    fn look(&mut self) -> Result<Registration, ShareError> {
        let file = self.source.file().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                ShareError::Map(MapError::Missing { path: self.source.path().unwrap_or_default() })
            }
            _ => error.into(),
        })?;
        if let Some(shown) = &self.shown
            && shown.file == file
            && Superblock::read(shown.registered.fabric())?.config.uuid == shown.identity
        {
            return Ok(shown.registration.clone());
        }
        // The old one ends before the new one begins.
        self.shown = None;
        let shown = self.register(file)?;
        let registration = shown.registration.clone();
        self.shown = Some(shown);
        Ok(registration)
    }

    fn register(&mut self, file: Option<(u64, u64)>) -> Result<Shown, ShareError> {
        // Of this process's own reads: another host may have made the region.
        let flush = Flush::best().unwrap_or(Flush::None);
        let fabric = ReadOnly::new(ReadMapping::open(&self.source)?, flush).expect("this processor has it");
        let fabric = Arc::new(fabric);
        let superblock = Superblock::read(&fabric)?;
        let config = &superblock.config;
        if !superblock.flush.is_coherent() && config.max_hosts > 1 {
            return Err(ShareError::Flushed { hosts: config.max_hosts, flush: superblock.flush });
        }
        self.registrations += 1;
        let region = hex::encode(config.uuid);
        let name = format!("cenote-{region}-{}-{}", std::process::id(), self.registrations);
        let registered = Registered::new(&self.nixl, &name, Arc::clone(&fabric))?;
        let registration = Registration {
            region,
            created: config.created,
            seed: config.seed.0,
            region_bytes: superblock.region_bytes,
            base: registered.address() as u64,
            registration: self.registrations,
            metadata: hex::encode(registered.metadata()),
        };
        Ok(Shown { registered, registration, file, identity: config.uuid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nixl::tests::{fake, registers};
    use cenote_base::HashSeed;
    use cenote_mem::{MapOptions, Mapped, Mapping};
    use cenote_pool::PoolConfig;

    /// What is said of a region with such hosts and flushes.
    fn shared(max_hosts: u8, flush: Flush) -> Result<Registration, ShareError> {
        let folder = tempfile::tempdir().expect("a folder");
        memory_of(folder.path(), max_hosts, flush).follow()
    }

    fn memory_of(folder: &std::path::Path, max_hosts: u8, flush: Flush) -> Memory {
        let path = folder.join("region").display().to_string();
        let source: RegionSource = path.parse().expect("a file");
        let mapping = Mapping::create(&source, 2 << 20, 0o600, &MapOptions::default()).expect("a file");
        let fabric = Arc::new(Mapped::new(mapping, flush).expect("this processor has it"));
        let config = PoolConfig {
            chunk_bytes: 64 << 10,
            min_block_bytes: 1 << 10,
            max_hosts,
            workers_per_host: 4,
            ..PoolConfig::new(HashSeed([7; 32]), [1; 16])
        };
        Superblock::format(&fabric, &config).expect("it fits");
        Memory::new(source, fake())
    }

    #[test]
    fn a_region_is_shared_when_there_is_a_registration_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut memory = memory_of(folder.path(), 1, Flush::None);
        registers(false);
        let error = memory.follow().expect_err("there is none").to_string();
        assert!(error.contains("register memory"), "{error}");
        assert!(memory.shown.is_none(), "peers are told of nothing");
        registers(true);
        assert!(memory.follow().is_ok());
    }

    /// NIXL reads through this host's caches, which keep lines that other hosts have written since.
    #[test]
    fn a_region_of_hosts_that_flush_is_not_shared() {
        for flush in Flush::available() {
            let error = shared(2, flush).expect_err("peers would read stale lines").to_string();
            assert!(error.contains(flush.name()) && error.contains("--max-hosts 1"), "{error}");
            assert!(shared(1, flush).is_ok(), "one host's caches are coherent");
        }
        assert!(shared(2, Flush::None).is_ok());
    }
}
