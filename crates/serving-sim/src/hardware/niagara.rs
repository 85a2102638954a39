//! Niagara 2.0, CXL memory that hosts share: 10.1 GB/s and 640 ns, measured in TraCT §5.1 with Intel's
//! Memory Latency Checker.

use super::GB;
use super::cxl::CxlLink;
use crate::model::Link;

/// Its link.
pub const NIAGARA_2: Link = Link { bytes_per_s: 101 * GB / 10, latency_ns: 640 };
/// Its link with a window. Our assumption: eight cores copy.
pub const NIAGARA_2_WINDOW: CxlLink = CxlLink::of_cores(NIAGARA_2, 8);
