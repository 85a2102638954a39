//! Writes a snapshot.

use super::format::{Kind, SavedNamespace, SnapshotError, SnapshotSettings, encode, encode_object};
use super::restoring::Restoring;
use super::seal::sign;
use crate::cold::sealing_of;
use cenote_cold::record::{HEADER_BYTES, Head, Name, Sums, record_bytes};
use cenote_mem::Fabric;
use cenote_mem::files::Draft;
use cenote_pool::{Listed, PLACED_KEYS, Pool, ReadOutcome, random_bytes};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// What a snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Namespaces.
    pub namespaces: u64,
    /// Objects.
    pub objects: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the blocks' payloads.
    pub block_bytes: u64,
    /// Blocks that left or were damaged before they were copied.
    pub missed: u64,
}

/// Writes the region of `pool` to `path`, which gets its name when it is complete and on the disk. An
/// older snapshot of that name stays until then. The region may be in use: blocks that leave meanwhile
/// are not saved. The snapshot of a sealed region has its seal, under the pool's first key.
///
/// # Errors
/// The file cannot be written, or the region is being restored.
pub fn save<F: Fabric>(pool: &Pool<F>, path: &Path) -> Result<Saved, SnapshotError> {
    if let Some(restoring) = Restoring::of(pool) {
        return Err(SnapshotError::Restoring(restoring.path));
    }
    let failed = |error| SnapshotError::File { path: path.display().to_string(), error };
    let id = random_bytes().map_err(SnapshotError::Refused)?;
    let draft = Draft::new(path, 0o600).map_err(SnapshotError::Refused)?;
    let saved = write(pool, id, draft.file()).map_err(failed)?;
    // A restoration that began meanwhile was not complete while blocks were listed.
    if let Some(restoring) = Restoring::of(pool) {
        return Err(SnapshotError::Restoring(restoring.path));
    }
    draft.replace().map_err(SnapshotError::Refused)?;
    Ok(saved)
}

fn write<F: Fabric>(pool: &Pool<F>, id: [u8; 16], file: &File) -> io::Result<Saved> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut saved = Saved::default();
    let sealing = sealing_of(pool);
    let sums = Sums::of_snapshot(&id, &sealing);
    let settings = SnapshotSettings::of(pool.superblock(), pool.fabric().region_file(), id, &sealing).encode();
    out.write_all(&encode(&sums, Kind::Settings, sign(&sums, Kind::Settings, &settings).as_bytes()))?;
    let mut fingerprints = HashMap::new();
    for info in pool.namespaces() {
        let Some(namespace) = SavedNamespace::of(&info) else { continue };
        fingerprints.insert(info.id, namespace.record.fingerprint);
        out.write_all(&encode(&sums, Kind::Namespace, namespace.encode().as_bytes()))?;
        saved.namespaces += 1;
    }
    for key in pool.object_keys().into_iter().filter(|key| !key.starts_with(PLACED_KEYS)) {
        // Keys of memory have no bytes here: the memory is its programs', not content.
        if let Ok(Some(bytes)) = pool.get_object(&key) {
            out.write_all(&encode(&sums, Kind::Object, &encode_object(&key, &bytes)))?;
            saved.objects += 1;
        }
    }
    let mut record = Vec::new();
    for listed in pool.blocks() {
        match fingerprints.get(&listed.namespace) {
            Some(fingerprint) if copy(pool, &listed, *fingerprint, &sums, &mut record) => {
                out.write_all(&record)?;
                saved.blocks += 1;
                saved.block_bytes += listed.hit.length;
            }
            _ => saved.missed += 1,
        }
    }
    let Saved { namespaces, objects, blocks, .. } = saved;
    let end = format!("{settings}saved_namespaces={namespaces}\nsaved_objects={objects}\nsaved_blocks={blocks}\n");
    out.write_all(&encode(&sums, Kind::End, sign(&sums, Kind::End, &end).as_bytes()))?;
    out.flush()?;
    Ok(saved)
}

/// Makes the record of a block. False: the block has left or is damaged.
fn copy<F: Fabric>(pool: &Pool<F>, listed: &Listed, namespace: [u8; 32], sums: &Sums, record: &mut Vec<u8>) -> bool {
    let length = listed.hit.length;
    record.resize(record_bytes(length) as usize, 0);
    let payload = &mut record[HEADER_BYTES..HEADER_BYTES + length as usize];
    if pool.read(&listed.hit, &mut [payload]) != ReadOutcome::Whole {
        return false;
    }
    let head = Head {
        name: Name { namespace, hash: listed.hit.hash },
        length,
        depth: listed.depth,
        encoding: listed.hit.encoding,
        names: [listed.names.name, listed.names.parent],
    };
    sums.seal(&head, record);
    true
}
