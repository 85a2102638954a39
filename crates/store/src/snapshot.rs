//! Snapshots: a region in one file (docs/internals/cold-format.md#snapshots).
//!
//! A snapshot has the region's settings, its namespaces with quotas and labels, its objects, and its
//! blocks. It does not have what belongs to living processes: workers, pins, reservations, swapped
//! blocks, memory of users and locks. Each part has its own checksum, so damage costs the damaged
//! parts only.

mod format;
mod restore;
mod save;

pub use format::{SnapshotError, SnapshotSettings};
pub use restore::{Restored, open, restore};
pub use save::{Saved, save};

#[cfg(test)]
mod tests;
