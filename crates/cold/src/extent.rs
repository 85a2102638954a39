//! Extents: files of records on a local disk, each with an index file beside it
//! (docs/internals/cold-format.md#extents).
//!
//! A process writes extents of its own and locks the one that it appends to; a kernel lock ends with
//! the process. All processes tail the index files of the others. A full extent is never written
//! again. To keep the limit, a writer that needs a new extent removes the oldest unlocked ones; it
//! holds the lock of the directory meanwhile. Bytes of a named file never change their meaning, so a
//! reader with an old offset reads the right record or none.

mod format;
mod list;
mod space;
mod writer;

use crate::backend::{Backend, Refreshed, Sealed, Used};
use crate::disk::Disk;
use crate::error::ColdError;
use crate::identity;
use crate::record::{self, Aligned, Head, Name, record_bytes};
use cenote_base::{Clock, HashSeed};
use list::{List, News};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use writer::Writer;

/// Records that are entered under one lock. It keeps serving threads waiting for a fraction of a
/// millisecond.
const LEARNED_TOGETHER: usize = 1024;

/// Limits of a directory of extents.
#[derive(Clone, Debug)]
pub struct ExtentsConfig {
    /// The directory.
    pub directory: PathBuf,
    /// Limit of its bytes.
    pub bytes: u64,
    /// Bytes of an extent. A longer record gets an extent of its own.
    pub extent_bytes: u64,
}

impl ExtentsConfig {
    /// A directory with extents of a sixteenth of the limit, at most 256 MiB.
    #[must_use]
    pub fn new(directory: PathBuf, bytes: u64) -> Self {
        Self { directory, bytes, extent_bytes: (bytes / 16).clamp(64 << 10, 256 << 20) }
    }
}

/// A directory of extents, as one process sees it.
pub struct Extents {
    config: ExtentsConfig,
    disk: Arc<dyn Disk>,
    clock: Clock,
    list: RwLock<List>,
    writer: Mutex<Writer>,
    /// Extents that this process removed since the last report.
    removed: AtomicU64,
}

impl Extents {
    /// A directory that is not open yet. Names of extents begin with the time of `clock`.
    #[must_use]
    pub fn new(config: ExtentsConfig, disk: Arc<dyn Disk>, clock: Clock) -> Self {
        let (list, writer) = (RwLock::default(), Mutex::default());
        Self { config, disk, clock, list, writer, removed: AtomicU64::new(0) }
    }

    /// A panic elsewhere leaves the list usable, because its entries are hints.
    fn list(&self) -> RwLockReadGuard<'_, List> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn list_mut(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Extents {
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError> {
        let directory = &self.config.directory;
        let found = identity::of_directory(&*self.disk, directory, seed)?;
        if found != *seed {
            return Err(identity::of_others(&directory.display().to_string()));
        }
        Ok(())
    }

    fn length(&self, name: &Name) -> Option<u64> {
        self.list().find(name).map(|spot| spot.length)
    }

    fn used(&self) -> Used {
        self.list().used()
    }

    fn survey(&self) -> Result<Used, ColdError> {
        while self.refresh()?.has_more {}
        Ok(self.used())
    }

    fn read(&self, name: &Name, memory: &mut Aligned) -> Result<Head, ColdError> {
        let Some(spot) = self.list().find(name) else {
            return Err(ColdError::Gone(self.config.directory.display().to_string()));
        };
        let mut read = || {
            memory.resize(record_bytes(spot.length) as usize);
            let at = spot.extent.name();
            let file = spot.extent.file(&*self.disk)?;
            file.read_at(memory.bytes_mut(), spot.offset).map_err(|error| ColdError::of(at, &error))?;
            let (head, _) = record::open(memory.bytes(), Some(name), at)?;
            Ok(head)
        };
        read().inspect_err(|error| {
            // A disk that is gone or slow may return; anything else stays as it is.
            if !matches!(error, ColdError::Io { .. } | ColdError::Slow { .. }) {
                self.list_mut().forget(name, &spot);
            }
        })
    }

    fn write(&self, records: &[Sealed<'_>], bytes: &[u8]) -> Result<(), ColdError> {
        self.writer().append(self, records, bytes)
    }

    fn refresh(&self) -> Result<Refreshed, ColdError> {
        // Read without the lock: the list's readers are serving threads.
        let known = self.list().known();
        let News { files, entries, damage, has_more } = list::look(&*self.disk, &self.config.directory, &known)?;
        self.list_mut().learn_files(files);
        for part in entries.chunks(LEARNED_TOGETHER) {
            self.list_mut().learn(part);
            // Serving threads that wait for the list go first.
            std::thread::yield_now();
        }
        // A directory that was removed takes its open extent with it.
        self.writer().leave_unless(|stem| self.list().has_file(stem));
        Ok(Refreshed { removed: self.removed.swap(0, Relaxed), damage, has_more })
    }

    fn sync(&self) -> Result<(), ColdError> {
        self.writer().sync()
    }
}

#[cfg(test)]
mod tests;
