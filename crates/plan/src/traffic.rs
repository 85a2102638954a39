//! Bandwidth and windows: bytes that a step moves, and the time that it has for them (§3.2).

use crate::error::PlanError;
use serde::Serialize;

/// What an engine computes (Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Tokens per second of one node, all replicas together.
    pub tokens_per_second: f64,
    /// Seconds of one step.
    pub step_seconds: f64,
    /// Tokens that one step of a node computes.
    pub batch: u64,
    /// Layers of the model.
    pub layers: u64,
}

impl Workload {
    /// Table 1: Qwen3-32B on four H200, 64 layers.
    pub const PAPER: Self = Self { tokens_per_second: 70_000.0, step_seconds: 3.6e-3, batch: 256, layers: 64 };

    /// Refuses workloads without work.
    ///
    /// # Errors
    /// A number is not positive.
    pub fn check(&self) -> Result<(), PlanError> {
        PlanError::unless_positive("tokens per second", self.tokens_per_second)?;
        PlanError::unless_positive("the time of a step", self.step_seconds)?;
        PlanError::unless_positive("the batch", self.batch as f64)?;
        PlanError::unless_positive("the number of layers", self.layers as f64)
    }

    /// Seconds that a layer computes: all layers alike.
    #[must_use]
    pub fn layer_seconds(&self) -> f64 {
        self.step_seconds / self.layers as f64
    }
}

/// Bytes per second of PCIe 5.0 with 16 lanes (Engram paper §3.2).
pub const PCIE_5_X16_BYTES_PER_S: u64 = 64_000_000_000;
/// Bytes per second of 100-gigabit Ethernet (Engram paper §3.2).
pub const GBE_100_BYTES_PER_S: u64 = 12_500_000_000;

/// A link to the pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

impl Link {
    /// The two links that the paper compares (§3.2).
    #[must_use]
    pub fn of_paper() -> Vec<Self> {
        let link = |name: &str, bytes: u64| Self { name: name.to_owned(), bytes_per_second: bytes as f64 };
        vec![link("PCIe 5.0 x16", PCIE_5_X16_BYTES_PER_S), link("100GbE", GBE_100_BYTES_PER_S)]
    }

    /// Seconds for these bytes at full bandwidth, without latency: a lower bound.
    #[must_use]
    pub fn seconds(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_second
    }
}

/// Time of one link for a window's bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The link.
    pub link: String,
    /// Seconds at full bandwidth.
    pub seconds: f64,
    /// Whether they are within the window.
    pub fits: bool,
}

/// The links' times for these bytes in this window.
#[must_use]
pub fn fits(links: &[Link], bytes: f64, window_seconds: f64) -> Vec<Fit> {
    let fit = |link: &Link| {
        let seconds = link.seconds(bytes);
        Fit { link: link.name.clone(), seconds, fits: seconds < window_seconds }
    };
    links.iter().map(fit).collect()
}

/// Where copies lie, and their bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placement {
    /// The placement.
    pub name: &'static str,
    /// Copies in the rack.
    pub copies: u64,
    /// Bytes of each host's own memory.
    pub host_bytes: f64,
    /// Bytes of the pool.
    pub pool_bytes: f64,
    /// Whether a host's bytes fit its memory, and the pool's bytes the pool.
    pub fits: bool,
}

/// Memory of the hosts and of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// Bytes of a host's memory.
    pub host_bytes: f64,
    /// Bytes of the pool.
    pub pool_bytes: f64,
}

impl Capacity {
    /// The paper's servers have 1 TiB (§5.1), its pool up to 4 TB (§4.1).
    pub const PAPER: Self = Self { host_bytes: 1_099_511_627_776.0, pool_bytes: 4e12 };
}

/// Three placements of read-only bytes: in each engine, once per host, once in the pool.
#[must_use]
pub fn placements(bytes: f64, engines_per_host: u64, hosts: u64, capacity: &Capacity) -> Vec<Placement> {
    let row = |name, copies: u64, host_bytes: f64, pool_bytes: f64| Placement {
        name,
        copies,
        host_bytes,
        pool_bytes,
        fits: host_bytes <= capacity.host_bytes && pool_bytes <= capacity.pool_bytes,
    };
    vec![
        row("each engine", engines_per_host * hosts, bytes * engines_per_host as f64, 0.0),
        row("each host", hosts, bytes, 0.0),
        row("the pool", 1, 0.0, bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_layer_takes_56_microseconds() {
        assert!((Workload::PAPER.layer_seconds() - 56.25e-6).abs() < 1e-12);
    }

    #[test]
    fn work_must_be_positive() {
        for workload in [
            Workload { tokens_per_second: 0.0, ..Workload::PAPER },
            Workload { step_seconds: f64::NAN, ..Workload::PAPER },
            Workload { batch: 0, ..Workload::PAPER },
            Workload { layers: 0, ..Workload::PAPER },
        ] {
            assert!(workload.check().is_err(), "{workload:?}");
        }
    }

    #[test]
    fn a_pool_holds_one_copy() {
        let placed = placements(2e12, 4, 8, &Capacity::PAPER);
        let copies: Vec<(u64, bool)> = placed.iter().map(|row| (row.copies, row.fits)).collect();
        assert_eq!(copies, [(32, false), (8, false), (1, true)]);
        assert_eq!((placed[0].host_bytes, placed[2].pool_bytes), (8e12, 2e12));
    }

    #[test]
    fn a_burst_of_the_papers_batch_fits_pcie_only() {
        let bytes = 256.0 * 5120.0;
        let fits = fits(&Link::of_paper(), bytes, 56.25e-6);
        assert_eq!(fits.iter().map(|fit| fit.fits).collect::<Vec<_>>(), [true, false]);
    }
}
