//! LPDDR5X packages, by JEDEC's JESD209-5C: 8,533 MT/s per pin.

/// A memory of LPDDR5X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lpddr {
    /// Data pins.
    pub pins: u32,
    /// Transfers per second and pin.
    pub transfers_per_s: u64,
}

impl Lpddr {
    /// Bytes per second.
    #[must_use]
    pub const fn bytes_per_s(&self) -> u64 {
        self.pins as u64 * self.transfers_per_s / 8
    }
}

/// 1,024 pins, as wide as one stack of HBM: 1.09 TB/s.
pub const LPDDR5X_1024: Lpddr = Lpddr { pins: 1_024, transfers_per_s: 8_533_000_000 };

#[cfg(test)]
mod tests {
    #[test]
    fn a_kilobit_bus_carries_a_terabyte() {
        assert_eq!(super::LPDDR5X_1024.bytes_per_s(), 1_092_224_000_000);
    }
}
