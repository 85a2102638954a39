//! The identity of a directory: its seed, its limit, and its repair.

use super::format::{EXTENT, HEAD_BYTES, open_extent, stem_of};
use super::{Extents, extent_bytes};
use crate::disk::{Access, Disk};
use crate::error::ColdError;
use crate::identity::{self, FILE, Identity};
use crate::sums::{Sealing, Sums};
use cenote_mem::files::Stamp;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

/// Extents whose copies of the identity are tried.
const COPIES_MAX: usize = 16;

/// What this process knows of the directory's identity.
pub(super) struct Place {
    pub identity: Identity,
    pub sums: Sums,
    /// Of the file `tier` when it was read; `None`: it is read again.
    pub stamp: Option<Stamp>,
    /// The limit is lower than before, so extents may have to leave.
    pub is_lowered: bool,
}

impl Place {
    pub fn of(identity: Identity, sealing: &Sealing) -> Self {
        Self { identity, sums: Sums::of_place(&identity.seed, sealing), stamp: None, is_lowered: false }
    }
}

/// The identity of a directory; one without gets `own`.
///
/// # Errors
/// The directory cannot be made or is not this user's; its identity is damaged or of another version, or
/// its seal is not that of the region above.
pub fn identity_of(
    disk: &dyn Disk,
    directory: &Path,
    own: &Identity,
    sealing: &Sealing,
) -> Result<Identity, ColdError> {
    disk.make_dir(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
    for _ in 0..2 {
        match identity::read(disk, directory, sealing) {
            Err(ColdError::Gone(_)) => {}
            found => return found,
        }
        let own = copied(disk, directory, sealing)?.unwrap_or(*own);
        if identity::write(disk, directory, &own, false, sealing)? {
            return Ok(own);
        }
    }
    Err(ColdError::Gone(directory.join(FILE).display().to_string()))
}

/// The identity that the heads of extents have copies of. The youngest counts.
pub(super) fn copied(disk: &dyn Disk, directory: &Path, sealing: &Sealing) -> Result<Option<Identity>, ColdError> {
    let listed = disk.list(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
    let stems: BTreeSet<&str> = listed.iter().filter_map(|(name, _)| stem_of(name)).collect();
    let read = |stem: &str| {
        let path = directory.join(format!("{stem}{EXTENT}"));
        let failed = |error| ColdError::of(path.display(), &error);
        let file = disk.open(&path, Access::Read, false).map_err(failed)?;
        let mut head = [0; HEAD_BYTES as usize];
        file.read_at(&mut head, 0).map_err(failed)?;
        open_extent(&head, &path.display().to_string(), sealing)
    };
    for stem in stems.iter().rev().take(COPIES_MAX) {
        match read(stem) {
            Ok((_, identity)) => return Ok(Some(identity)),
            // What is not believed is no reason to make a place of one's own between sealed blocks.
            Err(error) if error.is_refusal() => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

impl Extents {
    pub(super) fn place(&self) -> MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory's identity and sums, as far as it is open.
    pub(super) fn known_place(&self) -> Result<(Identity, Sums), ColdError> {
        let place = self.place();
        let known = place.as_ref().map(|place| (place.identity, place.sums.clone()));
        known.ok_or_else(|| ColdError::Gone(self.config.directory.join(FILE).display().to_string()))
    }

    /// Follows the identity's file: its limit may change. Writes it again if it is gone or damaged.
    /// Returns what was repaired.
    pub(super) fn watch_identity(&self) -> Result<Option<ColdError>, ColdError> {
        let (directory, path) = (&self.config.directory, self.config.directory.join(FILE));
        // A directory that is gone is opened anew.
        self.disk.stamp(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
        let stamp = self.disk.stamp(&path).ok();
        // Without the lock while the disk is asked: statistics need it.
        let (known, _) = self.known_place()?;
        if stamp.is_some() && self.place().as_ref().is_some_and(|place| place.stamp == stamp) {
            return Ok(None);
        }
        let (found, stamp, repaired) = match identity::read(&*self.disk, directory, &self.sealing) {
            Ok(found) if found.seed != known.seed => return Err(ColdError::Foreign(directory.display().to_string())),
            Ok(found) => (found, stamp, None),
            Err(error @ (ColdError::Gone(_) | ColdError::Damaged { .. })) => {
                let replaces = !matches!(error, ColdError::Gone(_));
                identity::write(&*self.disk, directory, &known, replaces, &self.sealing)?;
                (known, None, Some(error))
            }
            Err(error) => return Err(error),
        };
        if let Some(place) = self.place().as_mut() {
            place.is_lowered |= found.bytes_max < known.bytes_max;
            (place.identity, place.stamp) = (found, stamp);
        }
        Ok(repaired)
    }

    /// Changes the limit that lies in the directory.
    pub(super) fn set_limit(&self, bytes_max: u64) -> Result<(), ColdError> {
        self.rewrite(|found| Identity { bytes_max, ..found })
    }

    /// Seals an identity of an older key with the first key, so that the older one can leave.
    pub(super) fn renew_seal(&self) -> Result<(), ColdError> {
        let is_outdated = self.sealing.is_some()
            && identity::is_outdated(&identity::read_bytes(&*self.disk, &self.config.directory)?, &self.sealing);
        if is_outdated { self.rewrite(|found| found) } else { Ok(()) }
    }

    fn rewrite(&self, change: impl FnOnce(Identity) -> Identity) -> Result<(), ColdError> {
        let (disk, directory) = (&*self.disk, &self.config.directory);
        let _owner = self.own()?;
        let identity = change(identity::read(disk, directory, &self.sealing)?);
        identity::write(disk, directory, &identity, true, &self.sealing)?;
        *self.place() = Some(Place::of(identity, &self.sealing));
        Ok(())
    }

    /// Removes extents if the limit was lowered.
    pub(super) fn obey_limit(&self) -> Result<(), ColdError> {
        let is_lowered = self.place().as_mut().is_some_and(|place| std::mem::take(&mut place.is_lowered));
        if !is_lowered {
            return Ok(());
        }
        let bytes_max = self.known_place()?.0.bytes_max;
        self.writer().end_above(self, extent_bytes(bytes_max))?;
        let owner = self.own()?;
        match self.make_room(&owner, 0) {
            // Other processes end their extents when they learn of it.
            Err(ColdError::Full { .. }) => Ok(()),
            done => done,
        }
    }
}
