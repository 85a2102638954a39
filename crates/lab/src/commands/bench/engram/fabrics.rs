//! Time of a gather over memory that this machine does not have.
//!
//! A reader keeps some lines, or some messages, on their way at once. A gather takes the latency
//! once, and then as long as the slower of the link's bandwidth and the requests in flight. This
//! gives no queues and no contention between hosts, so it is a lower bound.

/// Memory behind a link.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub name: &'static str,
    /// From a request to its answer, ns.
    pub latency_ns: f64,
    /// Before the first request, ns.
    pub start_ns: f64,
    /// GB/s.
    pub gb_s: f64,
    /// Bytes of a request; rows are requested in as many as they touch. 0: all rows are one request.
    pub request_bytes: u64,
    /// Requests in flight.
    pub in_flight: f64,
    /// Most requests per second, from all threads.
    pub requests_s: f64,
}

/// Lines that a core has on their way: line fill buffers of today's servers have 12 to 16.
const LINES_PER_CORE: f64 = 12.0;
/// Threads of the paper's Listing 1.
const PAPER_THREADS: f64 = 64.0;

/// TraCT's Niagara 2.0 (evaluation, "Hardware"): 640 ns and 10.1 GB/s, with this machine's threads.
pub fn niagara(threads: usize) -> Link {
    Link {
        name: "CXL, Niagara 2.0 (modelled)",
        latency_ns: 640.0,
        start_ns: 0.0,
        gb_s: 10.1,
        request_bytes: 64,
        in_flight: LINES_PER_CORE * threads as f64,
        requests_s: f64::INFINITY,
    }
}

/// The same device with the paper's 64 threads (Listing 1).
pub fn niagara_64() -> Link {
    Link { name: "CXL, Niagara 2.0, 64 threads (modelled)", in_flight: LINES_PER_CORE * PAPER_THREADS, ..niagara(1) }
}

/// A switched pool behind PCIe 5.0 x16 (Engram pooling §4.1): 64 GB/s (§3.2), and the latency of
/// Niagara, because the paper states none.
pub fn switched() -> Link {
    Link { name: "CXL, PCIe 5.0 x16 switch, 64 threads (modelled)", gb_s: 64.0, ..niagara_64() }
}

/// A GPU that reads the region over PCIe 5.0 x16 by one kernel (Listing 2). A launch takes about
/// 5 µs, and a GPU has enough threads to fill the link.
pub fn gpu() -> Link {
    Link {
        name: "CXL to GPU, fused kernel (modelled)",
        latency_ns: 1_300.0,
        start_ns: 5_000.0,
        gb_s: 64.0,
        request_bytes: 64,
        in_flight: 4096.0,
        requests_s: f64::INFINITY,
    }
}

/// Row by row over 100 Gbit/s (12.5 GB/s, §3.2). eRPC (NSDI '19, the paper's reference 7) has 2.3 µs
/// and 10 million small calls per second and core.
pub fn rdma() -> Link {
    Link {
        name: "RDMA, a call for each row (modelled)",
        latency_ns: 2_300.0,
        start_ns: 0.0,
        gb_s: 12.5,
        request_bytes: 320,
        in_flight: 32.0,
        requests_s: 10e6,
    }
}

/// The rows of a batch in one message (§6): the server gathers them at the speed of its memory.
pub fn rdma_aggregated(server_gb_s: f64) -> Link {
    Link {
        name: "RDMA, rows aggregated by the server (modelled)",
        request_bytes: 0,
        gb_s: 1.0 / (1.0 / 12.5 + 1.0 / server_gb_s),
        ..rdma()
    }
}

impl Link {
    /// Nanoseconds of a gather of `rows` rows.
    pub fn gather_ns(&self, rows: u64, row_bytes: u64) -> f64 {
        let bytes = (rows * row_bytes) as f64;
        let by_bandwidth = bytes / self.gb_s;
        let by_requests = match self.request_bytes {
            0 => 0.0,
            size => {
                let requests = (rows * row_bytes.div_ceil(size)) as f64;
                (requests / self.in_flight * self.latency_ns).max(requests / self.requests_s * 1e9)
            }
        };
        self.start_ns + self.latency_ns + by_bandwidth.max(by_requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gather_is_bounded_by_latency_then_by_bandwidth() {
        let link = niagara_64();
        let one = link.gather_ns(1, 320);
        assert!((640.0..700.0).contains(&one), "{one}");
        let many = link.gather_ns(1 << 16, 320);
        let bandwidth = f64::from(1 << 16) * 320.0 / 10.1;
        assert!((many - bandwidth - 640.0).abs() < 1.0, "{many}");
    }

    #[test]
    fn one_thread_has_too_few_lines_in_flight() {
        let (one, all) = (niagara(1).gather_ns(4096, 320), niagara_64().gather_ns(4096, 320));
        assert!(one > 4.0 * all, "{one} {all}");
    }

    #[test]
    fn aggregation_saves_calls() {
        let (each, one) = (rdma().gather_ns(4096, 320), rdma_aggregated(20.0).gather_ns(4096, 320));
        assert!(each > 1.5 * one, "{each} {one}");
        assert!(rdma().gather_ns(1, 320) < 2.0 * rdma_aggregated(20.0).gather_ns(1, 320));
    }
}
