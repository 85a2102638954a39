//! High-bandwidth memory as channels that serve one access at a time.

/// A stack or several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hbm {
    /// Channels.
    pub channels: u32,
    /// Bytes per second of all channels.
    pub bytes_per_s: u64,
    /// Share of accesses that find their bank busy with another row.
    pub conflict_rate: f64,
    /// Nanoseconds that a conflict adds: precharge and activation.
    pub conflict_ns: f64,
    /// Nanoseconds from an access to its first byte.
    pub latency_ns: f64,
}

/// The FPGA's memory after SpecKV §3.5.1: 16 channels, 1.6 TB/s, conflicts below 8 %. Our assumptions:
/// JEDEC's HBM2E row cycle of 45 ns for a conflict, 100 ns for an access.
pub const SPECKV_FPGA: Hbm =
    Hbm { channels: 16, bytes_per_s: 1_600_000_000_000, conflict_rate: 0.08, conflict_ns: 45.0, latency_ns: 100.0 };
