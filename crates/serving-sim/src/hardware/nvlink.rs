//! Links between GPUs that share a model's tensors, and the all-reduce over them.

/// A link per GPU to its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorLink {
    /// Bytes per second in one direction (data sheet).
    pub bytes_per_s: f64,
    /// Share of it that collectives reach. Our assumption.
    pub efficiency: f64,
    /// Nanoseconds per collective. Our assumption: launch and synchronization.
    pub start_ns: f64,
}

/// NVLink 3 of an A100: 600 GB/s in both directions.
pub const NVLINK_3: TensorLink = TensorLink { bytes_per_s: 300e9, efficiency: 0.7, start_ns: 10_000.0 };
/// NVLink 4 of an H200: 900 GB/s in both directions.
pub const NVLINK_4: TensorLink = TensorLink { bytes_per_s: 450e9, efficiency: 0.7, start_ns: 10_000.0 };
/// Peers over PCIe 4.0 x16: 31.5 GB/s.
pub const PCIE_PEERS: TensorLink = TensorLink { bytes_per_s: 31.5e9, efficiency: 0.7, start_ns: 20_000.0 };

impl TensorLink {
    /// Nanoseconds of a ring's all-reduce of `bytes` over `gpus`: each GPU sends and receives
    /// 2 (n - 1) / n of them.
    #[must_use]
    pub fn all_reduce_ns(&self, bytes: f64, gpus: u32) -> f64 {
        if gpus < 2 {
            return 0.0;
        }
        let gpus = f64::from(gpus);
        self.start_ns + 2.0 * (gpus - 1.0) / gpus * bytes * 1e9 / (self.bytes_per_s * self.efficiency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gpu_reduces_nothing() {
        assert!(NVLINK_3.all_reduce_ns(1e6, 1) == 0.0);
        let (two, eight) = (NVLINK_3.all_reduce_ns(1e9, 2), NVLINK_3.all_reduce_ns(1e9, 8));
        assert!((two - 10_000.0 - 1e9 / 210.0 * 1e0).abs() < 1.0 && eight > 1.7 * two, "{two} {eight}");
    }
}
