//! Tables whose rows name themselves.

use super::super::Setting;
use super::super::regions::Shape;
use cenote_base::Clock;
use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_console::region::HostPool;
use cenote_mem::Flush;
use cenote_tables::{Facts, HostTable, LoadOptions, Opening, RowSource, Table, TableError, load};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Rows that begin with their number.
pub struct Pattern(Facts);

impl Pattern {
    pub fn new(format: &str, row_bytes: u64, rows: u64) -> Self {
        Self(Facts {
            format: format.to_owned(),
            row_bytes,
            rows,
            scale: (format == "e4m3").then_some(0.5),
            layer: None,
            model: String::new(),
            source: Vec::new(),
            tensors: Vec::new(),
        })
    }
}

/// Writes the row with this number.
pub fn stamp(row: u64, to: &mut [u8]) {
    // Small numbers of every format, and no NaN.
    let word = (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes();
    to[..8].copy_from_slice(&row.to_le_bytes());
    to[8..].chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&word[..bytes.len()]));
}

impl RowSource for Pattern {
    fn facts(&self) -> &Facts {
        &self.0
    }

    fn read(&self, rows: Range<u64>, to: &mut [u8]) -> Result<(), TableError> {
        rows.zip(to.chunks_exact_mut(self.0.row_bytes as usize)).for_each(|(row, to)| stamp(row, to));
        Ok(())
    }

    fn verify_unchanged(&self) -> Result<(), TableError> {
        Ok(())
    }
}

/// Fails unless gathered rows name themselves.
pub fn check(rows: &[u64], row_bytes: u64, got: &[u8]) -> Result<(), Failure> {
    let is_right = |(row, bytes): (&u64, &[u8])| bytes[..8] == row.to_le_bytes();
    let all = rows.iter().zip(got.chunks_exact(row_bytes as usize)).all(is_right);
    all.then_some(()).ok_or_else(|| Failure::new("a gathered row is another one"))
}

/// Bytes of a region for a table, with room for its areas and its last, larger, slots.
pub const fn region_bytes(table_bytes: u64) -> u64 {
    (table_bytes + table_bytes / 16 + (256 << 20)) >> 20 << 20
}

/// Chunks as large as extents.
pub fn shape(flush: Flush, table_bytes: u64) -> Shape {
    Shape { chunk_bytes: 64 << 20, ..Shape::of(flush, region_bytes(table_bytes)) }
}

/// Joins a region whose hosts have no heartbeat.
pub fn join(region: &RegionArgs, host: u8) -> Result<HostPool, Failure> {
    let region = RegionArgs { host_slot: host, ..region.clone() };
    let patient = WatchArgs { host_timeout: Duration::from_secs(3600), ..WatchArgs::default() };
    region.attach_watching("bench", &patient)
}

/// A table of a pattern in a new region, opened by a host that did not load it if there are several.
pub fn table_in(setting: &Setting, flush: Flush, pattern: &Pattern) -> Result<Arc<HostTable>, Failure> {
    let region = setting.regions.make(&shape(flush, pattern.0.bytes()))?;
    let loader = join(&region, 0)?;
    load(&loader, "bench", pattern, &LoadOptions::waiting(Clock::system().after(Duration::from_secs(60))))?;
    let reader = join(&region, super::super::regions::other_host(flush))?;
    Ok(Table::open(&reader, "bench", Opening::Verified)?)
}
