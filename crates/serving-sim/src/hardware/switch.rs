//! A switch between hosts and a shared memory: ports, and what all ports share.

/// XConn's XC50256 (Engram paper §4.1) before one memory card: ports of PCIe 5.0 x16 and 512 GB/s in
/// all, of which the card's link carries 64. Our assumption: 100 ns.
pub const XC50256: Switch = Switch { hop_ns: 100.0, port_bytes_per_s: 64e9, memory_bytes_per_s: 64e9 };

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// Nanoseconds that it adds to an access.
    pub hop_ns: f64,
    /// Bytes per second of a host's port.
    pub port_bytes_per_s: f64,
    /// Bytes per second of the memory behind it.
    pub memory_bytes_per_s: f64,
}

impl Switch {
    /// Bytes per second of each of `hosts` that read at full rate.
    #[must_use]
    pub fn share(&self, hosts: u32) -> f64 {
        self.port_bytes_per_s.min(self.memory_bytes_per_s / f64::from(hosts.max(1)))
    }

    /// Mean nanoseconds of an access of `bytes` bytes, if `hosts` load the memory to `load` of its
    /// bandwidth: the hop, the transfer, and the queue of random arrivals and constant service
    /// (M/D/1).
    ///
    /// # Panics
    /// Panics if the load is not below 1.
    #[must_use]
    pub fn access_ns(&self, bytes: f64, load: f64) -> f64 {
        assert!((0.0..1.0).contains(&load), "a queue at full load has no mean");
        let service = bytes * 1e9 / self.memory_bytes_per_s;
        self.hop_ns + bytes * 1e9 / self.port_bytes_per_s + service * load / (2.0 * (1.0 - load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_share_the_memory_and_wait_for_each_other() {
        let switch = Switch { hop_ns: 100.0, port_bytes_per_s: 32e9, memory_bytes_per_s: 64e9 };
        assert!((switch.share(1) - 32e9).abs() < 1.0 && (switch.share(8) - 8e9).abs() < 1.0);
        assert!(switch.access_ns(4_096.0, 0.9) > switch.access_ns(4_096.0, 0.1));
    }
}
