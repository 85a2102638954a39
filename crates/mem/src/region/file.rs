//! Whose a region's file is.

use super::Mapping;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The file or device that a region is, with its permissions: who may write it may use its host areas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its permission bits.
    pub mode: u32,
}

impl RegionFile {
    /// Whether its group may read and write it.
    #[must_use]
    pub const fn is_of_group(&self) -> bool {
        self.mode & 0o060 == 0o060
    }

    /// Whether everybody may write it.
    #[must_use]
    pub const fn is_of_everybody(&self) -> bool {
        self.mode & 0o002 != 0
    }
}

impl Mapping {
    /// The file behind the mapping, as it is now; `None` where there is none, or where the kernel does not tell.
    #[must_use]
    pub fn region_file(&self) -> Option<RegionFile> {
        let (path, status) = (self.source().path()?, self.file()?.metadata().ok()?);
        Some(RegionFile { path, user: status.uid(), group: status.gid(), mode: status.mode() & 0o777 })
    }
}
