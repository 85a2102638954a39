//! The files of areas: their permissions, and the trust in them.
//!
//! An area is accessible to the users that may write its region: to its creator alone, or to the
//! group of the region's file if that group may read and write it (mode 0660). Every user can
//! create files in the directory, so a file with an area's name may be planted, and a file's owner
//! can change it under its users. A file is therefore trusted only if a user that may write the
//! region anyway created it. That holds if it belongs to the region's owner, to this process's user
//! or to root. It also holds if the file has the region's group, because only members of a group
//! (and root) can give a file to it, or if every user may write the region.

use super::{HostError, failed, slot, status_of};
use crate::region::{Fresh, MapError, RegionFile};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::fmt;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Number that the kernel reports for users and groups without a number in this user namespace. It
/// identifies no user.
pub(crate) const UNMAPPED: u32 = 65534;

/// The users that may open an area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access<'a> {
    region: Option<&'a RegionFile>,
    /// The group that shares the region, if this process is in it.
    group: Option<u32>,
}

/// Sharing of a trusted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// As the region is shared.
    Right,
    /// Not shared, though the region is.
    Narrow,
    /// Shared with a group other than the region's, which may have changed it.
    Wrong,
}

impl<'a> Access<'a> {
    pub(super) fn to(region: Option<&'a RegionFile>) -> Self {
        let shared = region.filter(|region| region.is_of_group() && region.group != UNMAPPED);
        Self { region, group: shared.map(|region| region.group).filter(|&group| is_member(group)) }
    }

    /// Opens the area's file or creates an empty one. `None`: another process creates or removes
    /// it, so retry.
    pub(super) fn open(&self, path: &Path) -> Result<Option<File>, HostError> {
        // Never with `CREATE`: in a directory with the sticky bit that may be refused for other
        // users' files (fs.protected_regular), whatever their permissions.
        let file = match open_existing(path, OFlags::RDWR) {
            Ok(file) => file,
            Err(Errno::NOENT) => return self.make(path),
            Err(error) => return Err(self.refusal(path, error)),
        };
        // Check before waiting for the file's lock: an untrusted owner may hold it forever.
        self.check(&status_of(&file, path)?, path)?;
        Ok(Some(file))
    }

    /// Opens the area's file for inspection.
    pub(super) fn open_to_look(&self, path: &Path) -> Result<Option<File>, HostError> {
        let file = match open_existing(path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.refusal(path, error)),
        };
        let status = status_of(&file, path)?;
        match self.check(&status, path)? {
            Fit::Wrong => Err(self.wrong(&status, path)),
            Fit::Right | Fit::Narrow => Ok(Some(file)),
        }
    }

    /// Creates an empty file that has its permissions before it has its name, so that no other
    /// process opens it in between.
    fn make(&self, path: &Path) -> Result<Option<File>, HostError> {
        let (fresh, file) = match Fresh::make(path) {
            Ok(made) => made,
            Err(MapError::Exists { .. }) => return Ok(None),
            Err(error) => return Err(HostError::Make(error)),
        };
        self.share(&file, path)?;
        let user = rustix::process::geteuid();
        if let Some(region) = self.region.filter(|region| user.is_root() && region.user != user.as_raw()) {
            // Otherwise an area that root creates for a user's region would exclude the user. Some
            // containers' root may not do this; then the file stays root's.
            let _ = rustix::fs::fchown(&file, Some(Uid::from_raw(region.user)), None);
        }
        match fresh.publish() {
            Ok(()) => Ok(Some(file)),
            Err(MapError::Exists { .. }) => Ok(None),
            Err(error) => Err(HostError::Make(error)),
        }
    }

    /// Gives a file of this user the region's group and the permissions that go with it, whatever
    /// the umask.
    fn share(&self, file: &File, path: &Path) -> Result<(), HostError> {
        let mut mode = Mode::RUSR | Mode::WUSR;
        if let Some(group) = self.group {
            mode |= Mode::RGRP | Mode::WGRP;
            rustix::fs::fchown(file, None, Some(Gid::from_raw(group)))
                .map_err(|error| failed(path, "give it to the region's group", error))?;
        }
        rustix::fs::fchmod(file, mode).map_err(|error| failed(path, "set its permissions", error))
    }

    /// Adjusts an open and locked file to the region's permissions, which may have changed.
    /// `false`: the file is gone, so retry.
    pub(super) fn settle(&self, file: &File, path: &Path) -> Result<bool, HostError> {
        let status = status_of(file, path)?;
        if status.nlink() == 0 {
            return Ok(false);
        }
        match self.check(&status, path)? {
            Fit::Right => Ok(true),
            // Only trusted users have ever had access to it.
            Fit::Narrow => self.share(file, path).map(|()| true),
            Fit::Wrong if is_ours(&status) && !slot::is_held(file) => {
                rustix::fs::unlink(path).map_err(|error| failed(path, "remove the file", error))?;
                Ok(false)
            }
            Fit::Wrong => Err(self.wrong(&status, path)),
        }
    }

    /// Whether a file is trusted, and how it is shared.
    fn check(&self, status: &Metadata, path: &Path) -> Result<Fit, HostError> {
        let wrong = |fact| Err(HostError::NotAnArea { path: path.into(), fact });
        if !status.is_file() {
            return wrong("it is no regular file");
        }
        if status.mode() & 0o007 != 0 {
            return wrong("others may open it");
        }
        if self.group == Some(status.gid()) && status.mode() & 0o060 == 0o060 {
            return Ok(Fit::Right);
        }
        if !self.believes(status.uid()) {
            let fact = "its owner is neither the region's nor is the file of a group that the region is shared with; it may have \
                        been planted, and its owner or root can remove it";
            return Err(self.permissions(status, path, fact));
        }
        Ok(match (status.mode() & 0o070, self.group) {
            (0, None) => Fit::Right,
            (0, Some(_)) => Fit::Narrow,
            _ => Fit::Wrong,
        })
    }

    fn believes(&self, user: u32) -> bool {
        let is_regions = |region: &RegionFile| region.is_of_everybody() || (region.user == user && user != UNMAPPED);
        user == 0 || user == rustix::process::geteuid().as_raw() || self.region.is_some_and(is_regions)
    }

    /// Reasons for which an area cannot be opened.
    fn refusal(&self, path: &Path, error: Errno) -> HostError {
        let status = match path.symlink_metadata() {
            Ok(status) if error == Errno::ACCESS => status,
            _ => return failed(path, "open the file", error),
        };
        let fact = if self.group.is_some() {
            "it was made before the region was shared with its group; the next process of its owner, or of root, that joins the \
             region shares it"
        } else if self.region.is_some_and(RegionFile::is_of_group) {
            "this process is not in the group that the region is shared with"
        } else {
            "the region's file is not shared with a group (mode 0660)"
        };
        self.permissions(&status, path, fact)
    }

    fn wrong(&self, status: &Metadata, path: &Path) -> HostError {
        let fact = "the region's permissions were changed since it was made; when all processes that have it open have ended, the \
                    next process of its owner, or of root, makes it anew";
        self.permissions(status, path, fact)
    }

    fn permissions(&self, status: &Metadata, path: &Path, fact: &'static str) -> HostError {
        let found = Permissions { user: status.uid(), group: status.gid(), mode: status.mode() & 0o777 };
        let region =
            self.region.map(|region| Permissions { user: region.user, group: region.group, mode: region.mode });
        HostError::Permissions { path: path.into(), found, region: region.unwrap_or(found), fact }
    }
}

/// Owner and permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Permission bits.
    pub mode: u32,
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, group {}, mode {:04o}", self.user, self.group, self.mode)
    }
}

/// Whether this process's user may change and remove a file.
pub(super) fn is_ours(status: &Metadata) -> bool {
    let user = rustix::process::geteuid();
    user.is_root() || user.as_raw() == status.uid()
}

/// Whether this process may give its files to a group.
fn is_member(group: u32) -> bool {
    let group = Gid::from_raw(group);
    rustix::process::geteuid().is_root()
        || rustix::process::getegid() == group
        || rustix::process::getgroups().is_ok_and(|groups| groups.contains(&group))
}

pub(super) fn open_existing(path: &Path, access: OFlags) -> Result<File, Errno> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}
