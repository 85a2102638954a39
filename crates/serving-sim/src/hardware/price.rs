//! Prices over that of an A100 of 80 GB, as SpecKV §4.4.2 assumes them for all its systems.

/// An A100 of 80 GB.
pub const A100_80: f64 = 1.0;
/// An A100 of 40 GB.
pub const A100_40: f64 = 0.65;
/// An Agilex-7 card with its memory.
pub const FPGA: f64 = 0.18;
