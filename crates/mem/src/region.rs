//! Sources of a region's bytes, and their mapping into this process.
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

/// Options of mapping a region. By default it uses huge pages where it can; a failure is a note in
/// [`Obtained`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapOptions {
    /// NUMA node for the pages; `None` leaves placement to the kernel. Ignored for DAX devices,
    /// which have a node of their own.
    pub numa_node: Option<u32>,
    /// Request transparent huge pages, unless the memory consists of huge pages already.
    pub huge_pages: bool,
    /// Touch and lock every page now, so that the first block does not pay for page faults.
    pub prefault: bool,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self { numa_node: None, huge_pages: true, prefault: false }
    }
}

/// Properties of the mapping that the machine granted. Asking for more than it has is not an error.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Obtained {
    /// Size in bytes of the pages that back the region: the base page, the huge page of hugetlbfs,
    /// or the alignment of a DAX device.
    pub page_bytes: u64,
    /// Whether the kernel has mapped at least part of the region with transparent huge pages.
    pub transparent_huge: bool,
    /// NUMA node of the region's first page, if the kernel reports it.
    pub numa_node: Option<u32>,
    /// Whether the memory cannot be swapped out.
    pub locked: bool,
    /// Sentences about requested properties that were not granted.
    pub notes: Vec<String>,
}

/// Errors of making, opening or removing a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The name is taken, perhaps by a region in use.
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
    /// The folder of the new file does not exist.
    #[error("{}: the folder {} does not exist; create it with `mkdir -p {}`", path.display(), folder.display(), folder.display())]
    NoFolder {
        /// The name.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// This user has no access.
    #[error("{}: permission denied", path.display())]
    Permission {
        /// The name.
        path: PathBuf,
    },
    /// The file's owner is not trusted: another user may have planted it.
    #[error(
        "{}: it belongs to user {user} (group {group}, mode {mode:04o}), which may have planted it: blocks could be read \
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
    /// The file or device is smaller than the requested length.
    #[error("{}: {have} bytes, but {wanted} are wanted", path.display())]
    TooSmall {
        /// The name.
        path: PathBuf,
        /// Existing bytes.
        have: u64,
        /// Requested bytes.
        wanted: u64,
    },
    /// The file system or the machine has no room for the region.
    #[error("{}: no space for {wanted} bytes, {free} bytes are free", path.display())]
    NoSpace {
        /// The name.
        path: PathBuf,
        /// Requested bytes.
        wanted: u64,
        /// Free bytes.
        free: u64,
    },
    /// The named object cannot be a region.
    #[error("{}: not a region: {fact}", path.display())]
    NotARegion {
        /// The name.
        path: PathBuf,
        /// The rule that it breaks.
        fact: String,
    },
    /// The region is a device, which cannot be removed as a file.
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
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl MapError {
    /// Maps the kind of an I/O error to the variant that names the user's next step.
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
