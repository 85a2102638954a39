//! Extents: files of records on a local disk, each with an index file beside it
//! (docs/internals/cold-format.md#extents).
//!
//! A process writes to extents and locks the one that it appends to; a kernel lock ends with the
//! process. All processes tail the index files of the others. To keep the limit, a writer that needs
//! an extent removes the oldest unlocked ones; it holds the lock of the directory meanwhile. Bytes of
//! a named file never change their meaning, so a reader with an old offset reads the right record or
//! none.

mod follow;
mod format;
mod list;
mod place;
mod space;
mod writer;

use crate::backend::{Backend, Refreshed, Sealed, Used};
use crate::disk::Disk;
use crate::error::ColdError;
use crate::identity::Identity;
use crate::record::{Aligned, Head, Name, record_bytes};
use crate::settings::DEFAULT_BYTES;
use crate::sums::Sealing;
use cenote_base::{Clock, HashSeed};
use follow::Follow;
use list::{List, OpenFiles};
use place::Place;
pub use place::identity_of;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use writer::Writer;

/// A directory of extents.
#[derive(Clone, Debug)]
pub struct ExtentsConfig {
    /// The directory.
    pub directory: PathBuf,
    /// The wanted limit of its bytes. It makes the limit that lies in the directory larger, never
    /// smaller. `None`: what lies there, or [`DEFAULT_BYTES`] for a new one.
    pub bytes: Option<u64>,
}

/// Bytes of an extent: a sixteenth of the limit, at most 256 MiB. A longer record gets an extent of its
/// own.
fn extent_bytes(bytes_max: u64) -> u64 {
    (bytes_max / 16).clamp(64 << 10, 256 << 20)
}

/// A directory of extents, as one process sees it.
pub struct Extents {
    config: ExtentsConfig,
    disk: Arc<dyn Disk>,
    clock: Clock,
    sealing: Sealing,
    place: Mutex<Option<Place>>,
    /// The wanted limit was compared with the directory's. What a command sets later stays.
    has_asked: AtomicBool,
    list: RwLock<List>,
    follow: Mutex<Follow>,
    writer: Mutex<Writer>,
    open_files: OpenFiles,
    /// Extents that this process removed since the last report.
    removed: AtomicU64,
    /// Failures since the last report that cost no call.
    damage: Mutex<Vec<ColdError>>,
}

impl Extents {
    /// A directory that is not open yet.
    #[must_use]
    pub fn new(config: ExtentsConfig, disk: Arc<dyn Disk>, clock: Clock) -> Self {
        Self {
            config,
            disk,
            clock,
            sealing: None,
            place: Mutex::default(),
            has_asked: AtomicBool::new(false),
            list: RwLock::default(),
            follow: Mutex::default(),
            writer: Mutex::default(),
            open_files: OpenFiles::default(),
            removed: AtomicU64::new(0),
            damage: Mutex::default(),
        }
    }

    /// The same directory below a region with this seal.
    #[must_use]
    pub fn sealed_by(self, sealing: Sealing) -> Self {
        Self { sealing, ..self }
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

    /// Notes a failure for the next report.
    fn note(&self, error: ColdError) {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).push(error);
    }

    /// Makes the directory's limit as large as this process wants it.
    fn ask_for_limit(&self, found: u64) -> Result<(), ColdError> {
        let Some(wanted) = self.config.bytes.filter(|_| !self.has_asked.swap(true, Relaxed)) else { return Ok(()) };
        if wanted > found {
            self.set_limit(wanted).inspect_err(|_| self.has_asked.store(false, Relaxed))?;
        } else if wanted < found {
            let at = self.config.directory.display();
            tracing::warn!(
                "{at}: the place keeps its limit of {found} bytes, above size={wanted}; \
                 `cenote pool cold --cold {at} --size {wanted}` makes it smaller"
            );
        }
        Ok(())
    }
}

impl Backend for Extents {
    fn open(&self, seed: &HashSeed) -> Result<(), ColdError> {
        let directory = &self.config.directory;
        let own = Identity { seed: *seed, bytes_max: self.config.bytes.unwrap_or(DEFAULT_BYTES) };
        let found = identity_of(&*self.disk, directory, &own, &self.sealing)?;
        if found.seed != *seed {
            return Err(ColdError::Foreign(directory.display().to_string()));
        }
        *self.place() = Some(Place::of(found, &self.sealing));
        // A full or read-only disk keeps the old key's identity.
        self.renew_seal().unwrap_or_else(|error| self.note(error));
        *self.follow() = Follow::default();
        self.ask_for_limit(found.bytes_max)
    }

    fn length(&self, name: &Name) -> Option<u64> {
        self.list().find(name).map(|spot| spot.length)
    }

    fn used(&self) -> Used {
        let bytes_max = self.place().as_ref().map_or(0, |place| place.identity.bytes_max);
        Used { bytes_max, ..self.list().used() }
    }

    fn survey(&self) -> Result<Used, ColdError> {
        self.look_from_outside()?;
        while self.learn()?.has_more {}
        Ok(self.used())
    }

    fn read(&self, name: &Name, length_max: u64, memory: &mut Aligned) -> Result<Head, ColdError> {
        let Some(spot) = self.list().find(name) else {
            return Err(ColdError::Gone(self.config.directory.display().to_string()));
        };
        let (_, sums) = self.known_place()?;
        let mut read = || {
            let at = spot.extent.name();
            if spot.length > length_max {
                return Err(ColdError::Damaged { at: at.to_owned(), what: "a record is longer than its block" });
            }
            memory.resize(record_bytes(spot.length) as usize);
            let file = spot.extent.file(&*self.disk, &self.open_files)?;
            file.read_at(memory.bytes_mut(), spot.offset).map_err(|error| ColdError::of(at, &error))?;
            let (head, _) = sums.open(memory.bytes_mut(), Some(name), at)?;
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
        if let Some(repaired) = self.watch_identity()? {
            self.note(repaired);
        }
        self.writer().leave_if_gone(self)?;
        self.obey_limit()?;
        self.learn()
    }

    fn sync(&self) -> Result<(), ColdError> {
        self.writer().sync()
    }

    fn resize(&self, bytes_max: u64) -> Result<(), ColdError> {
        self.look_from_outside()?;
        self.set_limit(bytes_max)?;
        let owner = self.own()?;
        match self.make_room(&owner, 0) {
            // Running processes end their extents and remove them when they learn of the limit.
            Err(ColdError::Full { .. }) => Ok(()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests;
