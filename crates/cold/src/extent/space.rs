//! The limit of a directory: which extents are removed for a new one.

use super::format::{EXTENT, INDEX, stem_of};
use super::{Extents, extent_bytes};
use crate::disk::{Access, DiskFile, unique};
use crate::error::ColdError;
use cenote_policy::temperature::{StoredPart, leaving_parts};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Name of the file with the directory's lock and mark.
pub(super) const OWNER: &str = "owner";
/// Longest wait for the directory's lock. Its holders list a directory and remove files.
pub(super) const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two attempts. A kernel lock can be waited for only without a deadline.
const OWNER_RETRY: Duration = Duration::from_millis(2);

/// Holds the directory's lock: one process at a time counts, removes, begins and continues extents.
pub struct Owner(Box<dyn DiskFile>);

impl Owner {
    /// Tells other processes that names changed. They find it out later if this fails.
    pub fn mark(&self) {
        let _ = self.0.write_at(&unique().to_le_bytes(), 0);
    }
}

/// The extents of a directory: bytes of both files by name.
pub type Stored = BTreeMap<String, u64>;

impl Extents {
    /// Takes the directory's lock.
    pub fn own(&self) -> Result<Owner, ColdError> {
        let path = self.config.directory.join(OWNER);
        let failed = |error: &std::io::Error| ColdError::of(path.display(), error);
        let file = match self.disk.open(&path, Access::Create, false) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                self.disk.open(&path, Access::Write, false)
            }
            opened => opened,
        };
        let file = file.map_err(|error| failed(&error))?;
        let deadline = self.clock.after(OWNER_TIMEOUT);
        while !file.try_lock().map_err(|error| failed(&error))? {
            if deadline.passed() {
                return Err(ColdError::Slow { at: path.display().to_string(), ms: OWNER_TIMEOUT.as_millis() as u64 });
            }
            std::thread::park_timeout(deadline.block_for().min(OWNER_RETRY));
        }
        // A file that was removed meanwhile keeps no other process out.
        match file.is_named() {
            Ok(true) => Ok(Owner(file)),
            Ok(false) => Err(ColdError::Gone(path.display().to_string())),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Tells other processes to look at all files.
    pub fn mark_unlocked(&self) {
        if let Ok(file) = self.disk.open(&self.config.directory.join(OWNER), Access::Write, false) {
            Owner(file).mark();
        }
    }

    /// What is stored, whole extents and halves.
    pub fn stored(&self) -> Result<Stored, ColdError> {
        let directory = &self.config.directory;
        let mut extents = Stored::new();
        for (name, length) in self.disk.list(directory).map_err(|error| ColdError::of(directory.display(), &error))? {
            if let Some(stem) = stem_of(&name) {
                *extents.entry(stem.to_owned()).or_default() += length;
            }
        }
        Ok(extents)
    }

    /// Removes extents until `wanted` bytes fit below the limit.
    pub fn make_room(&self, owner: &Owner, wanted: u64) -> Result<(), ColdError> {
        let directory = &self.config.directory;
        let bytes_max = self.known_place()?.0.bytes_max;
        let counted = |(key, bytes): (String, u64)| {
            let is_open = self.is_open(&key);
            // An open extent counts as a full one.
            let bytes = if is_open { bytes.max(extent_bytes(bytes_max)) } else { bytes };
            StoredPart { key, bytes, is_open }
        };
        let parts = self.stored()?.into_iter().map(counted).collect();
        let victims = bytes_max.checked_sub(wanted).and_then(|most| leaving_parts(parts, most));
        let victims = victims.ok_or_else(|| ColdError::Full {
            at: directory.display().to_string(),
            what: "other processes write to all extents of its limit; raise size=".to_owned(),
        })?;
        if !victims.is_empty() {
            owner.mark();
        }
        for stem in victims {
            self.list_mut().drop_file(&stem);
            // The index first: an extent without index is found by no one and removed next time.
            for end in [INDEX, EXTENT] {
                match self.disk.remove(&directory.join(format!("{stem}{end}"))) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(ColdError::of(directory.display(), &error));
                    }
                    _ => {}
                }
            }
            self.removed.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Whether a living process holds an extent's lock.
    fn is_open(&self, stem: &str) -> bool {
        let path = self.config.directory.join(format!("{stem}{EXTENT}"));
        // A file that cannot be opened or locked is not removed, unless it is not there.
        match self.disk.open(&path, Access::Read, false).and_then(|file| file.try_lock()) {
            Ok(is_free) => !is_free,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }
}
