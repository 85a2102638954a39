//! CXL links: bandwidth, latency and a window of outstanding accesses.

use super::GB;
use crate::model::{Link, TierLink};
use cenote_plan::traffic::PCIE_5_X16_BYTES_PER_S;

/// Lines that a core has on their way at once: line fill buffers of Intel's server cores. Our assumption.
pub const LINES_PER_CORE: u32 = 16;
/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Threads that gather rows (Engram paper, Listing 1).
pub const GATHERING_THREADS: u32 = 64;

/// A link whose accesses wait for a place in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CxlLink {
    /// Bandwidth, and latency of one access.
    pub link: Link,
    /// Most accesses at once.
    pub outstanding_max: u32,
    /// Bytes of an access.
    pub access_bytes: u64,
}

impl CxlLink {
    /// A link whose lines so many cores load.
    #[must_use]
    pub const fn of_cores(link: Link, cores: u32) -> Self {
        Self { link, outstanding_max: cores * LINES_PER_CORE, access_bytes: LINE_BYTES }
    }

    /// Bytes per second that the window and the bandwidth allow (Little's law).
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        let window = f64::from(self.outstanding_max) * self.access_bytes as f64 * 1e9 / self.link.latency_ns as f64;
        window.min(self.link.bytes_per_s as f64)
    }

    /// Nanoseconds to copy `bytes`: the first access's latency, then the stream.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> f64 {
        if bytes == 0 { 0.0 } else { self.link.latency_ns as f64 + bytes as f64 * 1e9 / self.bytes_per_s() }
    }
}

/// CXL 2.0 on 16 lanes after SpecKV §4.1.1: 64 GB/s, less than 400 ns; 16 outstanding requests of 4 KB
/// (§3.4.2).
pub const SPECKV: CxlLink =
    CxlLink { link: Link { bytes_per_s: 64 * GB, latency_ns: 400 }, outstanding_max: 16, access_bytes: 4_096 };

/// SpecKV's own tiers: the link for two GPUs (§4.5.1), 16 outstanding copies (§3.4.2), 500 ns to start a
/// request (§3.6.1). Each of its memory channels (1.6 TB/s over 16, §3.5.1) is faster than the link, so the
/// link is one channel.
pub const SPECKV_HALF_TIER: TierLink = TierLink {
    name: "speckv-l3",
    link: Link { bytes_per_s: SPECKV.link.bytes_per_s / 2, latency_ns: SPECKV.link.latency_ns },
    outstanding_max: 16,
    doorbell_ns: 500,
    channels: 1,
};

/// The same as a tier for one GPU with a link of its own, 500 ns to start a batch (§3.6.1). One of the
/// memory's channels is faster than the link, so the link is one channel.
pub const SPECKV_TIER: TierLink =
    TierLink { name: "speckv-l3", link: SPECKV.link, outstanding_max: 16, doorbell_ns: 500, channels: 1 };

/// A memory card behind an XConn switch (Engram paper §4.1, §5.1): PCIe 5.0 x16, 64 GB/s. The paper
/// prints no latency. Our assumption: 600 ns, near that of [`super::niagara`].
pub const XCONN_POOL: CxlLink =
    CxlLink::of_cores(Link { bytes_per_s: PCIE_5_X16_BYTES_PER_S, latency_ns: 600 }, GATHERING_THREADS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_window_limits_the_link() {
        assert!((SPECKV.bytes_per_s() - 64e9).abs() < 1.0, "16 pages in 400 ns are 164 GB/s");
        let lines = CxlLink { access_bytes: 64, ..SPECKV };
        assert!((lines.bytes_per_s() - 2.56e9).abs() < 1.0);
        assert!((lines.copy_ns(64) - 425.0).abs() < 1e-6 && lines.copy_ns(0) == 0.0);
    }
}
