//! Host memory of a server processor.

use super::GB;
use super::cxl::CxlLink;
use crate::model::Link;

/// One socket of an Intel Xeon 6766E (Engram paper §5.1): eight channels of DDR5-6400, 409.6 GB/s
/// (Intel's specification). Our assumptions: 110 ns, and 64 cores with 16 outstanding lines each.
pub const XEON_6766E: CxlLink = CxlLink {
    link: Link { bytes_per_s: 4_096 * GB / 10, latency_ns: 110 },
    outstanding_max: 64 * 16,
    access_bytes: 64,
};
