//! A data-centre NVMe disk: Samsung PM9A3 of 7.68 TB reads 6.9 GB/s and writes 4.1 GB/s (data sheet).
//!
//! Our assumptions: 80 µs for a read, 5 µs to submit one, and one channel: the copies of a disk are
//! whole blocks, which spread over all its dies.

use super::GB;
use crate::model::{Link, TierLink};

/// Reads.
pub const PM9A3: TierLink = TierLink {
    name: "nvme-l4",
    link: Link { bytes_per_s: 69 * GB / 10, latency_ns: 80_000 },
    outstanding_max: 16,
    doorbell_ns: 5_000,
    channels: 1,
};
/// Bytes per second of writes.
pub const PM9A3_WRITE: u64 = 41 * GB / 10;
