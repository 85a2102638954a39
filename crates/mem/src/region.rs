//! Where a region's bytes come from, and the mapping of them into this process.
//!
//! A region is anonymous memory (one process, for tests and single-process use), a file on tmpfs,
//! hugetlbfs or a disk, or a DAX character device (CXL or persistent memory).

mod dax;
mod file;
mod fresh;
mod map;
mod obtain;

mod source;

pub use dax::DaxFacts;
pub use file::{RegionFile, TRUSTED_OWNERS};
pub use fresh::Fresh;
pub(crate) use map::allocate;
pub use map::{Mapping, ReadMapping};
pub(crate) use source::check_shm_name;
pub use source::{ParseRegionError, RegionSource, SHM_DIRECTORY};

use std::io;
use std::path::{Path, PathBuf};

/// How to map a region. The defaults try for the best and are content with less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapOptions {
    /// NUMA node on which pages are to be placed; `None` leaves it to the kernel (a DAX device has a
    /// node of its own).
    pub numa_node: Option<u32>,
    /// Ask for transparent huge pages where the memory is not made of huge pages anyway.
    pub huge_pages: bool,
    /// Touch and lock every page now, so that the first block does not pay for page faults.
    pub prefault: bool,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self { numa_node: None, huge_pages: true, prefault: false }
    }
}

/// What was really obtained; asking for more than the machine has is no error.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Obtained {
    /// Bytes of the pages that back the region, as far as they are fixed: the base page, the huge page
    /// of hugetlbfs, or the alignment of a DAX device.
    pub page_bytes: u64,
    /// Whether the kernel has mapped at least part of the region with transparent huge pages.
    pub transparent_huge: bool,
    /// NUMA node of the region's first page, where the kernel tells.
    pub numa_node: Option<u32>,
    /// Whether the memory cannot be swapped out.
    pub locked: bool,
    /// Sentences about what was asked for and not obtained.
    pub notes: Vec<String>,
}

/// Why a region could not be made, opened or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Something has this name already, perhaps a region in use.
    #[error("{}: exists already", path.display())]
    Exists {
        /// The name.
        path: PathBuf,
    },
    /// Nothing has this name.
    #[error("{}: there is no such region", path.display())]
    Missing {
        /// The name.
        path: PathBuf,
    },
    /// A new file would lie in a folder that does not exist.
    #[error("{}: the folder {} does not exist; create it with `mkdir -p {}`", path.display(), folder.display(), folder.display())]
    NoFolder {
        /// The name.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// This user may not.
    #[error("{}: permission denied", path.display())]
    Permission {
        /// The name.
        path: PathBuf,
    },
    /// The file belongs to a user whose memory this process must not take for its own.
    #[error(
        "{}: it belongs to user {user} (group {group}, mode {mode:04o}), who may have planted it: blocks could be read \
         and forged; remove it, or share it with a group that both are in (mode 0660), or name its owner in {TRUSTED_OWNERS}",
        path.display()
    )]
    Untrusted {
        /// The name.
        path: PathBuf,
        /// Its owner.
        user: u32,
        /// Its group.
        group: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The file or device is smaller than what was asked for, or the length asked for is no length.
    #[error("{}: {have} bytes, but {wanted} are wanted", path.display())]
    TooSmall {
        /// The name.
        path: PathBuf,
        /// Bytes there are.
        have: u64,
        /// Bytes asked for.
        wanted: u64,
    },
    /// The file system or the machine has no room for so large a region.
    #[error("{}: no space for {wanted} bytes, {free} bytes are free", path.display())]
    NoSpace {
        /// The name.
        path: PathBuf,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// What has this name cannot be a region.
    #[error("{}: not a region: {fact}", path.display())]
    NotARegion {
        /// The name.
        path: PathBuf,
        /// What is wrong with it.
        fact: String,
    },
    /// The region cannot be removed by removing a file.
    #[error("{}: a device cannot be removed; format it anew instead", path.display())]
    NotRemovable {
        /// The name.
        path: PathBuf,
    },
    /// Another system call failed.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The name.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl MapError {
    /// Gives a system call's failure the kind that a person can act on.
    fn from_io(path: &Path, action: &'static str, source: impl Into<io::Error>) -> Self {
        let path = path.to_owned();
        let source = source.into();
        match source.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists { path },
            io::ErrorKind::NotFound => Self::Missing { path },
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            _ => Self::Io { path, action, source },
        }
    }
}
