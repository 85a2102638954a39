//! Snapshots: a region in one file (docs/internals/cold-format.md#snapshots).
//!
//! A snapshot has the region's settings, its namespaces with quotas and labels, its objects, and its
//! blocks. It does not have what belongs to living processes: workers, pins, reservations, swapped
//! blocks, memory of users and locks. Each part has its own checksum, so damage costs the damaged
//! parts only.
//!
//! The snapshot of a sealed region is sealed with the region's keys.
//!
//! A snapshot is obeyed as a region is, so its file belongs to this user or root, and no other user
//! can write it.

mod format;
mod restore;
mod restoring;
mod save;
mod seal;

pub use format::{Sharing, SnapshotError, SnapshotSettings};
pub use restore::{Restored, open, open_with, restore};
pub use restoring::{RESTORING_KEY, Restoring, begin};
pub use save::{Saved, save};

#[cfg(test)]
mod tests;
