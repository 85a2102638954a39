//! Host memory of a server processor.

use super::GB;
use super::cxl::{CxlLink, GATHERING_THREADS};
use crate::model::Link;

/// One socket of an Intel Xeon 6766E (Engram paper §5.1): eight channels of DDR5-6400, 409.6 GB/s
/// (Intel's specification). Our assumption: 110 ns. All 64 cores load.
pub const XEON_6766E: CxlLink =
    CxlLink::of_cores(Link { bytes_per_s: 4_096 * GB / 10, latency_ns: 110 }, GATHERING_THREADS);
