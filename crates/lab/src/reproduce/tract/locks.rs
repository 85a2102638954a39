//! Cost of the lock of §3.3 against hosts: a manager scans a slot per lock and host.

use crate::reproduce::row::{Measured, Sensitivity};
use crate::reproduce::{Context, Experiment};
use cenote_serving_sim::hardware::niagara;

pub const EXPERIMENT: Experiment =
    Experiment { id: "tract.locks", title: "the two-tier lock", covers: &["tract.s3-3"], is_quick: true, run };

const HOSTS: [u32; 3] = [4, 8, 16];
/// Locks that the manager scans: those of the product's plain design.
const LOCKS: u32 = 9;

const SCAN: &str = "a read of 640 ns per lock and host, 9 locks, a slot per cache line; an uncontended request waits for \
                    half a scan. Measured: docs/evidence/benchmarks.md#locks";

/// Nanoseconds of an uncontended lock: the request is flushed, half a scan finds it, the grant is
/// flushed and read.
fn latency_ns(hosts: u32, locks: u32, access_ns: u64) -> f64 {
    let access = access_ns as f64;
    3.0 * access + f64::from(hosts * locks) * access / 2.0
}

fn ratios(locks: u32) -> Vec<f64> {
    let access = niagara::NIAGARA_2.latency_ns;
    let two = latency_ns(2, locks, access);
    HOSTS.iter().map(|&hosts| latency_ns(hosts, locks, access) / two).collect()
}

fn run(_: &Context) -> Vec<Measured> {
    let base = ratios(LOCKS);
    let locks = Sensitivity::of("locks", &base, &[1, 72], |&locks| ratios(locks));
    vec![Measured::new("tract.s3-3.hosts", base, SCAN).sensitive(locks)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_waits_for_half_a_scan() {
        assert!((latency_ns(2, 9, 640) - 640.0 * 12.0).abs() < 1e-9);
        assert!(ratios(72)[2] > ratios(1)[2]);
    }
}
