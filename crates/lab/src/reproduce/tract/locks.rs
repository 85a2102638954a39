//! Cost of the lock of §3.3 against hosts, by events: a manager scans a slot per lock and host.

use crate::reproduce::row::Measured;
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::niagara::NIAGARA_2;
use cenote_serving_sim::locks::{ScannedLocks, scanned_locks};

pub const EXPERIMENT: Experiment = Experiment {
    id: "tract.locks",
    title: "the two-tier lock",
    covers: &["tract.s3-3", "tract.s3-4", "tract.s4-2", "tract.s4-4"],
    is_quick: true,
    draws: true,
    run,
};

const HOSTS: [u32; 3] = [4, 8, 16];
/// Locks that the manager scans: those of the product's plain design.
const LOCKS: u32 = 9;
/// Requests per run.
const REQUESTS: u64 = 2_000;
/// Nanoseconds that a host keeps a lock, and on average does without. Our assumptions: three accesses, and
/// a request per millisecond and host.
const HOLD_NS: u64 = 3 * NIAGARA_2.latency_ns;
const THINK_NS: u64 = 1_000_000;

const SCAN: &str = "the paper bounds contenders by hosts and prints neither a latency nor its growth; beside: our lock's \
                    latency over that of 2 hosts at 4, 8 and 16, by events: a read of 640 ns per lock and host, 9 \
                    locks, a request per ms and host. Measured: docs/evidence/benchmarks.md#locks";

const FLUSH: &str = "the manual's order of clflushopt by mfence is no measurement here: memory without coherence between hosts \
                     is needed; Intel's manual (volume 2, CLFLUSHOPT) contradicts the paper, docs/internals/format.md";

/// Mean latencies over that of two hosts.
fn ratios(locks: u32, think_ns: u64, seed: u64) -> Vec<f64> {
    let mean = |hosts: u32| {
        let setup = ScannedLocks { hosts, locks, access_ns: NIAGARA_2.latency_ns, hold_ns: HOLD_NS, think_ns };
        scanned_locks(&setup, REQUESTS, seed).mean_ns as f64
    };
    let two = mean(2);
    HOSTS.iter().map(|&hosts| mean(hosts) / two).collect()
}

fn run(context: &Context) -> Vec<Measured> {
    let ours = ratios(LOCKS, THINK_NS, context.seed);
    vec![
        Measured::beside("tract.s3-3.hosts", SCAN, ours),
        Measured::not_testable("tract.s3-4.flush", FLUSH),
        Measured::not_testable("tract.s4-2.table", "the product has no tree beside its hash table to compare"),
        Measured::not_testable("tract.s4-4.pinned", "needs a GPU beside a CXL memory"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_hosts_wait_longer_and_more_so_with_more_locks() {
        let few = ratios(1, THINK_NS, 1);
        assert!(few.is_sorted() && few[0] > 1.1);
        assert!(ratios(72, THINK_NS, 1)[2] > few[2]);
    }
}
