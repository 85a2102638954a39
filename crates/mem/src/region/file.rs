//! Ownership and permissions of a region's file.

use super::{MapError, Mapping, RegionSource};
use crate::host::UNMAPPED;
use rustix::fs::Gid;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Environment variable with user ids, separated by commas. Regions of these users are trusted like
/// this process's own.
pub const TRUSTED_OWNERS: &str = "CENOTE_TRUSTED_OWNERS";

/// A region's file or device and its permissions. A user that may write it may use its host areas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionFile {
    /// Its path.
    pub path: PathBuf,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Device and inode: another file of the same name has others.
    pub identity: (u64, u64),
}

impl RegionFile {
    /// Whether its group may read and write it.
    #[must_use]
    pub const fn is_of_group(&self) -> bool {
        self.mode & 0o060 == 0o060
    }

    /// Whether its path still leads to it. Its memory outlives its name.
    #[must_use]
    pub fn has_its_name(&self) -> bool {
        self.path.metadata().is_ok_and(|status| (status.dev(), status.ino()) == self.identity)
    }

    pub(super) fn of(path: &Path, status: &Metadata) -> Self {
        let identity = (status.dev(), status.ino());
        Self { path: path.into(), user: status.uid(), group: status.gid(), mode: status.mode() & 0o777, identity }
    }

    /// Refuses a region that another user may have planted. In a directory that every user may
    /// write, the first to take a name controls what others read and sees what they write. Trusted
    /// are: a file of this process's user or of root, whatever its mode; a file that its owner
    /// shares only with a group that this process is in; and a file of an owner that
    /// [`TRUSTED_OWNERS`] names.
    pub(super) fn believe(&self) -> Result<(), MapError> {
        let Self { user, group, mode, .. } = *self;
        let shared = self.is_of_group() && mode & 0o007 == 0 && group != UNMAPPED && is_member(group);
        if self.is_own() || shared || trusted_owners().any(|trusted| trusted == user) {
            return Ok(());
        }
        Err(MapError::Untrusted { path: self.path.clone(), user, group, mode })
    }

    fn is_own(&self) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw()
    }

    /// Whether every user may write it.
    #[must_use]
    pub const fn is_of_everybody(&self) -> bool {
        self.mode & 0o002 != 0
    }
}

impl Mapping {
    /// The file behind the mapping and its present permissions; `None` if there is none, or if the
    /// kernel does not report it.
    #[must_use]
    pub fn region_file(&self) -> Option<RegionFile> {
        Some(RegionFile::of(&self.source().path()?, &self.file()?.metadata().ok()?))
    }

    /// Whether a region has this name already that a creator with this `mode` may use instead.
    ///
    /// # Errors
    /// The file with this name is not trusted, or is no regular file. Of another user's files, only
    /// one that is shared with this process's group is trusted, and only for a creator that shares
    /// with a group too.
    pub fn is_there(source: &RegionSource, mode: u32) -> Result<bool, MapError> {
        let Some(path) = source.path() else { return Ok(false) };
        if matches!(source, RegionSource::DevDax(_)) {
            return Ok(path.exists());
        }
        let status = match path.symlink_metadata() {
            Ok(status) => status,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(MapError::from_io(&path, "ask for the file's status", error)),
        };
        if !status.is_file() {
            return Err(MapError::NotARegion { path, fact: "it is no regular file".into() });
        }
        let file = RegionFile::of(&path, &status);
        let is_trusted = file.is_own() || mode & 0o060 == 0o060 || trusted_owners().any(|user| user == file.user);
        if !is_trusted {
            let RegionFile { path, user, group, mode, .. } = file;
            return Err(MapError::Untrusted { path, user, group, mode });
        }
        file.believe().map(|()| true)
    }
}

/// Whether this process's user is in a group.
fn is_member(group: u32) -> bool {
    let group = Gid::from_raw(group);
    rustix::process::getegid() == group || rustix::process::getgroups().is_ok_and(|groups| groups.contains(&group))
}

fn trusted_owners() -> impl Iterator<Item = u32> {
    let text = std::env::var(TRUSTED_OWNERS).unwrap_or_default();
    let owners: Vec<u32> = text.split(',').filter_map(|user| user.trim().parse().ok()).collect();
    owners.into_iter()
}
