//! Bytes of extents: writing, checking, and the digest of a table.
//!
//! An extent has a whole number of the runs of rows that have digests (`engram/src/digest.rs`), so
//! threads hash extents of their own.

use crate::error::TableError;
use crate::facts::Facts;
use crate::record::{Extent, Record};
use cenote_engram::{RUN_ROWS, Stored, TableDigest, run_digests};
use cenote_mem::{Fabric, HostLocal};
use cenote_pool::Pool;

/// Largest extent: what a killed load must read again.
pub(crate) const EXTENT_BYTES_MAX: u64 = 64 << 20;

/// Rows of an extent of at most `bytes` bytes.
pub(crate) fn extent_rows(facts: &Facts, bytes: u64) -> Option<u64> {
    let rows = bytes / facts.row_bytes / RUN_ROWS * RUN_ROWS;
    (rows > 0).then_some(rows)
}

/// Digests of an extent's runs, one after the other.
pub(crate) fn digests_of(facts: &Facts, bytes: &[u8]) -> Vec<u8> {
    run_digests(facts.row_bytes as usize, bytes)
}

/// A hasher of a table's runs.
pub(crate) fn table_digest(facts: &Facts) -> Result<TableDigest, TableError> {
    let stored: Stored = facts.format.parse().map_err(TableError::Format)?;
    Ok(TableDigest::new(stored, facts.row_bytes as usize, facts.rows, facts.scale))
}

/// A digest in hexadecimal.
pub(crate) fn hex(digest: [u8; 32]) -> String {
    blake3::Hash::from_bytes(digest).to_hex().to_string()
}

/// Writes an extent's bytes, which end with zeros up to a whole line.
pub(crate) fn write<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    record: &Record,
    number: u64,
    offset: u64,
    bytes: &[u8],
) -> Extent {
    let sum = pool.fabric().write_payload(offset, &[bytes], record.sum_key(number));
    pool.fabric().publish_payload();
    Extent { offset, sum }
}

/// Whether an extent has the bytes that were written. Drops old copies of them from this
/// processor's caches.
pub(crate) fn is_whole<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, record: &Record, number: u64) -> bool {
    let Some(extent) = record.extents.get(number as usize) else { return false };
    let bytes = record.padded_bytes(number);
    pool.fabric().refresh_payload(extent.offset, bytes);
    pool.fabric().checksum_payload(extent.offset, bytes, record.sum_key(number)) == extent.sum
}

/// The rows of an extent, if they are those that were written.
pub(crate) fn read<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, record: &Record, number: u64) -> Option<Vec<u8>> {
    let extent = record.extents.get(number as usize)?;
    let mut bytes = vec![0; record.padded_bytes(number) as usize];
    pool.fabric().refresh_payload(extent.offset, bytes.len() as u64);
    let sum = pool.fabric().read_payload(extent.offset, &mut [&mut bytes], record.sum_key(number));
    let rows = record.rows_of(number);
    bytes.truncate(((rows.end - rows.start) * record.header.facts.row_bytes) as usize);
    (sum == extent.sum).then_some(bytes)
}

/// Refuses a region whose chunks have no room for a run of rows, or for the record of all extents.
pub(crate) fn plan<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, facts: &Facts, most: u64) -> Result<u64, TableError> {
    let chunk_bytes = pool.chunk_bytes();
    let too_small = |what: String| TableError::Chunks { chunk_bytes, what };
    let rows = extent_rows(facts, chunk_bytes.min(most))
        .ok_or_else(|| too_small(format!("{RUN_ROWS} rows of {} bytes", facts.row_bytes)))?;
    let extents = facts.rows.div_ceil(rows);
    // A header has a few hundred bytes beside the facts, and a line for each loader.
    let record = extents * 16 + 4096 + serde_json::to_vec(facts).map_or(0, |facts| facts.len() as u64);
    if record > chunk_bytes {
        return Err(too_small(format!("a list of {extents} extents")));
    }
    Ok(rows)
}
