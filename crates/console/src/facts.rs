//! The facts behind a fingerprint, stored in the region for `pool diff`
//! (docs/internals/format.md#object-row).

use crate::region::{HostPool, RegionInspector};
use cenote_mem::Fabric;
use cenote_pool::PoolError;
use cenote_store::NamespaceSpec;
use cenote_store::facts::{drop_old, key};
use std::collections::{BTreeMap, BTreeSet};

/// Facts by name.
pub type Facts = BTreeMap<String, String>;

/// Fewest chunks of a region that stores facts, which take one chunk.
pub const CHUNKS_MIN: u64 = 16;

/// Records the facts of a namespace, unless they are there, and removes those of namespaces that
/// are gone. A region without room stores none, which is no error.
pub fn record(pool: &HostPool, spec: &NamespaceSpec) {
    if pool.fabric().len() / pool.chunk_bytes() < CHUNKS_MIN {
        return;
    }
    let fingerprint = hex::encode(spec.fingerprint());
    let key = key(&fingerprint);
    let text = serde_json::to_vec(&spec.facts()).expect("plain data");
    let recorded = pool.get_object(&key).and_then(|found| match found {
        Some(_) => Ok(()),
        None => drop_old(pool).and_then(|_| pool.put_object(&key, &text)),
    });
    if let Err(error) = recorded {
        tracing::info!(%error, "the facts behind the fingerprint are not recorded, so `pool diff` cannot compare it");
    }
}

/// As [`read`], without joining.
#[must_use]
pub fn seen(inspector: &RegionInspector, fingerprint: &str) -> Option<Facts> {
    let found = inspector.get_object(&key(fingerprint)).ok().flatten();
    found.and_then(|bytes| serde_json::from_slice(&bytes).ok())
}

/// Names of the facts that differ.
#[must_use]
pub fn differing(one: &Facts, other: &Facts) -> Vec<String> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    names.into_iter().filter(|&name| one.get(name) != other.get(name)).cloned().collect()
}

/// The facts of a fingerprint; `None` if none are recorded, or if the object is not a record of
/// facts.
pub fn read(pool: &HostPool, fingerprint: &str) -> Result<Option<Facts>, PoolError> {
    let found = pool.get_object(&key(fingerprint))?;
    Ok(found.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}
