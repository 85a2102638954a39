//! PCI Express slots, by the specifications: 128b/130b coding at 16 and 32 GT/s per lane.
//!
//! Our assumptions: copies from pinned memory reach 80 % of the raw rate and take 10 µs to start.

use super::GB;
use super::cxl::{CxlLink, LINE_BYTES};
use crate::model::{Link, TierLink};

/// Generation 4, 16 lanes: 31.5 GB/s raw.
pub const GEN4_X16: Link = Link { bytes_per_s: 25 * GB, latency_ns: 10_000 };
/// Generation 5, 16 lanes: 63 GB/s raw.
pub const GEN5_X16: Link = Link { bytes_per_s: 50 * GB, latency_ns: 10_000 };

/// Rows that a kernel of a GPU reads over a slot of generation 5 (Engram paper, Listing 2). Our assumptions:
/// as fast as copies, 2 µs for an access, 4,096 lines at once.
pub const GPU_READS: CxlLink = CxlLink {
    link: Link { bytes_per_s: GEN5_X16.bytes_per_s, latency_ns: 2_000 },
    outstanding_max: 4_096,
    access_bytes: LINE_BYTES,
};

/// Host memory for KV as SpecKV §4.1.3 describes its FlexGen baseline: 16 GB/s, 3 to 5 µs (the middle
/// here). Our assumptions: 16 outstanding copies, 5 µs to start a batch of them.
pub const CPU_OFFLOAD: TierLink = TierLink {
    name: "cpu-offload",
    link: Link { bytes_per_s: 16 * GB, latency_ns: 4_000 },
    outstanding_max: 16,
    doorbell_ns: 5_000,
    channels: 1,
};
