//! The limit of a directory: which extents are removed for a new one.

use super::Extents;
use super::format::{EXTENT, INDEX};
use crate::disk::DiskFile;
use crate::error::ColdError;
use cenote_policy::temperature::{StoredPart, leaving_parts};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Name of the file with the directory's lock.
const OWNER: &str = "owner";
/// Longest wait for the directory's lock. Its holders list a directory and remove files.
pub(super) const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two attempts. A kernel lock can be waited for only without a deadline.
const OWNER_RETRY: Duration = Duration::from_millis(2);

/// Holds the directory's lock: one process at a time counts, removes and begins extents.
pub struct Owner(#[expect(dead_code, reason = "the lock ends with the file")] Box<dyn DiskFile>);

impl Extents {
    /// Takes the directory's lock.
    pub fn own(&self) -> Result<Owner, ColdError> {
        let path = self.config.directory.join(OWNER);
        let failed = |error: &std::io::Error| ColdError::of(path.display(), error);
        let file = match self.disk.open(&path, true, false) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => self.disk.open(&path, false, false),
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
        Ok(Owner(file))
    }

    /// Removes extents until `wanted` bytes fit below the limit.
    pub fn make_room(&self, _owner: &Owner, wanted: u64) -> Result<(), ColdError> {
        let directory = &self.config.directory;
        let named = |error| ColdError::of(directory.display(), &error);
        let mut extents: BTreeMap<String, u64> = BTreeMap::new();
        for (name, length) in self.disk.list(directory).map_err(named)? {
            let Some(stem) = name.strip_suffix(EXTENT).or_else(|| name.strip_suffix(INDEX)) else { continue };
            *extents.entry(stem.to_owned()).or_default() += length;
        }
        let counted = |(key, bytes): (String, u64)| {
            let is_open = self.is_open(&key);
            // An open extent counts as a full one.
            let bytes = if is_open { bytes.max(self.config.extent_bytes) } else { bytes };
            StoredPart { key, bytes, is_open }
        };
        let parts = extents.into_iter().map(counted).collect();
        let victims = self.config.bytes.checked_sub(wanted).and_then(|most| leaving_parts(parts, most));
        let victims = victims.ok_or_else(|| ColdError::Full {
            at: directory.display().to_string(),
            what: "other processes write to all extents of its limit; raise size=".to_owned(),
        })?;
        for stem in victims {
            self.list_mut().drop_file(&stem);
            // The index first: an extent without index is found by no one and removed next time.
            for end in [INDEX, EXTENT] {
                match self.disk.remove(&directory.join(format!("{stem}{end}"))) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(named(error)),
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
        match self.disk.open(&path, false, false).and_then(|file| file.try_lock()) {
            Ok(is_free) => !is_free,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }
}
