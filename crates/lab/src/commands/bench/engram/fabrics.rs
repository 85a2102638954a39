//! Time of a gather over memory that this machine does not have, with the constants of
//! `serving_sim::hardware`, which `reproduce` uses too.
//!
//! A reader keeps some lines, or some messages, on their way at once. A gather takes the latency
//! once, and then as long as the slower of the link's bandwidth and the requests in flight. This
//! gives no queues and no contention between hosts, so it is a lower bound.

use cenote_serving_sim::hardware::START_NS;
use cenote_serving_sim::hardware::cxl::{CxlLink, GATHERING_THREADS, LINE_BYTES, XCONN_POOL};
use cenote_serving_sim::hardware::niagara::NIAGARA_2;
use cenote_serving_sim::hardware::pcie::GPU_READS;
use cenote_serving_sim::hardware::rdma::{CX_100G, CX_100G_BOUNCED};

/// Bytes of a message of aggregated rows.
const MESSAGE_BYTES: u64 = 1 << 20;

/// Memory behind a link, and how rows are read from it.
#[derive(Clone, Copy, Debug)]
pub struct Fabric {
    pub name: &'static str,
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    /// Loads of lines, after nanoseconds to start.
    Loads(CxlLink, u64),
    /// A message for each row.
    Messages,
    /// Messages of rows that a server has gathered with so many GB/s.
    Aggregated(f64),
}

/// TraCT's Niagara 2.0 with threads of this machine that run already.
pub fn niagara(threads: usize) -> Fabric {
    Fabric { name: "CXL, Niagara 2.0 (modelled)", by: By::Loads(CxlLink::of_cores(NIAGARA_2, threads as u32), 0) }
}

/// The same device with the paper's threads (Listing 1).
pub fn niagara_64() -> Fabric {
    let memory = CxlLink::of_cores(NIAGARA_2, GATHERING_THREADS);
    Fabric { name: "CXL, Niagara 2.0, 64 threads (modelled)", by: By::Loads(memory, START_NS) }
}

/// The paper's pool behind a switch.
pub fn switched() -> Fabric {
    Fabric { name: "CXL, PCIe 5.0 x16 switch, 64 threads (modelled)", by: By::Loads(XCONN_POOL, START_NS) }
}

/// A GPU that reads the region by one kernel (Listing 2).
pub fn gpu() -> Fabric {
    Fabric { name: "CXL to GPU, fused kernel (modelled)", by: By::Loads(GPU_READS, START_NS) }
}

/// Row by row over a card of 100 Gb/s.
pub fn rdma() -> Fabric {
    Fabric { name: "RDMA, a call for each row (modelled)", by: By::Messages }
}

/// The rows of a batch in few messages (§6): the server gathers them at the speed of its memory.
pub fn rdma_aggregated(server_gb_s: f64) -> Fabric {
    Fabric { name: "RDMA, rows aggregated by the server (modelled)", by: By::Aggregated(server_gb_s) }
}

impl Fabric {
    /// Nanoseconds of a gather of `rows` rows.
    pub fn gather_ns(&self, rows: u64, row_bytes: u64) -> f64 {
        match self.by {
            By::Loads(memory, start_ns) => {
                start_ns as f64 + memory.copy_ns(rows * row_bytes.next_multiple_of(LINE_BYTES))
            }
            By::Messages => CX_100G_BOUNCED.send_ns(rows, row_bytes),
            By::Aggregated(server_gb_s) => {
                let bytes = rows * row_bytes;
                bytes as f64 / server_gb_s + CX_100G.aggregated_ns(rows, row_bytes, bytes.min(MESSAGE_BYTES))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_store::mover::LinkSpeed;

    #[test]
    fn a_gather_is_bounded_by_latency_then_by_bandwidth() {
        let (start, bandwidth) = (START_NS as f64, NIAGARA_2.bytes_per_s as f64 / 1e9);
        let one = niagara_64().gather_ns(1, 320) - start;
        assert!((640.0..700.0).contains(&one), "{one}");
        let many = niagara_64().gather_ns(1 << 16, 320) - start;
        assert!((many - f64::from(1 << 16) * 320.0 / bandwidth - 640.0).abs() < 1.0, "{many}");
    }

    #[test]
    fn one_thread_has_too_few_lines_in_flight() {
        let (one, all) = (niagara(1).gather_ns(4096, 320), niagara_64().gather_ns(4096, 320));
        assert!(one > 4.0 * all, "{one} {all}");
    }

    #[test]
    fn aggregation_saves_calls() {
        let (each, one) = (rdma().gather_ns(4096, 320), rdma_aggregated(20.0).gather_ns(4096, 320));
        assert!(each > 5.0 * one, "{each} {one}");
    }

    /// Engines can slow a region down to this device's link.
    #[test]
    fn the_emulated_device_has_the_rates_of_the_modelled_one() {
        let LinkSpeed { bytes_per_s, latency } = LinkSpeed::NIAGARA;
        assert_eq!((bytes_per_s as u64, latency.as_nanos() as u64), (NIAGARA_2.bytes_per_s, NIAGARA_2.latency_ns));
    }
}
