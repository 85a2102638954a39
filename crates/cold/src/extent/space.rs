//! The limit of a directory: which extents are removed for a new one.

use super::Extents;
use super::format::{EXTENT, INDEX};
use crate::disk::DiskFile;
use crate::error::ColdError;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Name of the file with the directory's lock.
const OWNER: &str = "owner";
/// Longest wait for the directory's lock. Its holders list a directory and remove files.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two attempts. A kernel lock can be waited for only without a deadline.
const OWNER_RETRY: Duration = Duration::from_millis(2);

/// An extent, as the limit counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub stem: String,
    pub bytes: u64,
    /// A living process appends to it.
    pub is_open: bool,
}

/// The extents to remove for `wanted` bytes, the oldest first. An open extent counts as a full one
/// and stays. `None`: the others do not suffice.
pub fn victims(mut extents: Vec<Counted>, wanted: u64, limit: u64, extent_bytes: u64) -> Option<Vec<String>> {
    extents.sort_by(|a, b| a.stem.cmp(&b.stem));
    let size = |extent: &Counted| if extent.is_open { extent.bytes.max(extent_bytes) } else { extent.bytes };
    let mut used: u64 = extents.iter().map(size).sum();
    let mut victims = Vec::new();
    for extent in extents.iter().filter(|extent| !extent.is_open) {
        if used + wanted <= limit {
            break;
        }
        used -= extent.bytes;
        victims.push(extent.stem.clone());
    }
    (used + wanted <= limit).then_some(victims)
}

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
        let since = Instant::now();
        while !file.try_lock().map_err(|error| failed(&error))? {
            if since.elapsed() > OWNER_TIMEOUT {
                return Err(ColdError::Slow { at: path.display().to_string(), ms: OWNER_TIMEOUT.as_millis() as u64 });
            }
            std::thread::park_timeout(OWNER_RETRY);
        }
        Ok(Owner(file))
    }

    /// Removes extents until `wanted` bytes fit below the limit.
    pub fn make_room(&self, _owner: &Owner, wanted: u64) -> Result<(), ColdError> {
        let directory = &self.config.directory;
        let named = |error| ColdError::of(directory.display(), &error);
        let mut extents: BTreeMap<String, Counted> = BTreeMap::new();
        for (name, length) in self.disk.list(directory).map_err(named)? {
            let Some(stem) = name.strip_suffix(EXTENT).or_else(|| name.strip_suffix(INDEX)) else { continue };
            let empty = || Counted { stem: stem.to_owned(), bytes: 0, is_open: false };
            extents.entry(stem.to_owned()).or_insert_with(empty).bytes += length;
        }
        for extent in extents.values_mut() {
            extent.is_open = self.is_open(&extent.stem);
        }
        let counted: Vec<Counted> = extents.into_values().collect();
        let victims = victims(counted, wanted, self.config.bytes, self.config.extent_bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_closed_extents_are_removed() {
        let extent = |stem: &str, bytes, is_open| Counted { stem: stem.to_owned(), bytes, is_open };
        let all = || vec![extent("3", 40, false), extent("1", 40, true), extent("2", 40, false), extent("4", 10, true)];
        let of = |wanted, limit| victims(all(), wanted, limit, 40);
        assert_eq!(of(40, 200), Some(vec![]));
        assert_eq!(of(40, 199), Some(vec!["2".to_owned()]));
        assert_eq!(of(40, 120), Some(vec!["2".to_owned(), "3".to_owned()]));
        assert_eq!(of(40, 119), None);
    }
}
