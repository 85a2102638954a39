//! The mark of a region that is being restored.
//!
//! It is an object, put before the region has its name and destroyed when all parts were read. So a
//! region whose restoration was killed is told from a complete one, and the same snapshot goes on in
//! it. Programs may use such a region: a block that is not there yet is a miss.

use super::format::{SnapshotError, SnapshotSettings, lines, unhex};
use cenote_mem::Fabric;
use cenote_pool::{Inspector, Over, Pool, PoolError};
use std::path::Path;

/// The mark's key. No snapshot has an object of this name.
pub const RESTORING_KEY: &str = "cenote/restoring";

/// The restoration that a region waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restoring {
    /// The snapshot's random number.
    pub snapshot: [u8; 16],
    /// Where the snapshot was when the restoration began.
    pub path: String,
}

impl Restoring {
    /// The mark of a region that this process has joined.
    #[must_use]
    pub fn of<F: Fabric>(pool: &Pool<F>) -> Option<Self> {
        Self::read(pool.get_object(RESTORING_KEY))
    }

    /// The mark of a region that is looked at from outside.
    #[must_use]
    pub fn seen<F: Fabric + Clone>(inspector: &Inspector<F>) -> Option<Self> {
        Self::read(inspector.get_object(RESTORING_KEY))
    }

    fn read(object: Result<Option<Vec<u8>>, PoolError>) -> Option<Self> {
        let bytes = object.ok().flatten()?;
        // A mark of another program still says that the region is not complete.
        let lines = lines(&bytes).unwrap_or_default();
        let snapshot = lines.get("snapshot").and_then(|id| unhex(id)).unwrap_or([0; 16]);
        let path = lines.get("path").map_or_else(|| "a snapshot".to_owned(), |path| (*path).to_owned());
        Some(Self { snapshot, path })
    }

    fn encode(&self) -> String {
        let path: String = self.path.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        format!("snapshot={}\npath={path}\n", hex::encode(self.snapshot))
    }
}

/// Marks an empty region as being restored, or finds the mark of an earlier attempt.
///
/// # Errors
/// The region has another hash seed or seal, has content that no restoration put there, or is being restored
/// from another snapshot.
pub fn begin<F: Fabric>(pool: &Pool<F>, settings: &SnapshotSettings, path: &Path) -> Result<(), SnapshotError> {
    let shown = path.display().to_string();
    if pool.superblock().config.seed != settings.config.seed {
        return Err(SnapshotError::OtherSeed(shown));
    }
    let (found, region) = (settings.config.seal, pool.seal());
    if found != region {
        return Err(SnapshotError::OtherSeal { path: shown, found, region });
    }
    let refuse_other = |found: Restoring| match found.snapshot == settings.id {
        true => Ok(()),
        false => Err(SnapshotError::OtherSnapshot(found.path)),
    };
    if let Some(found) = Restoring::of(pool) {
        return refuse_other(found);
    }
    if !pool.object_keys().is_empty() || !pool.blocks().is_empty() {
        return Err(SnapshotError::NotEmpty(shown));
    }
    let whole = std::path::absolute(path).map_or(shown, |path| path.display().to_string());
    let mark = Restoring { snapshot: settings.id, path: whole };
    match pool.put_object_over(RESTORING_KEY, mark.encode().as_bytes(), Over::Nothing)? {
        Some(_) => Ok(()),
        // Another process began meanwhile.
        None => Restoring::of(pool).map_or(Ok(()), refuse_other),
    }
}
