//! Final inspection, when all processes have ended: all blocks are there, all space is accounted
//! for, every byte is right.

use super::child::{keys, namespaces};
use super::content;
use super::report::Report;
use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::failure::Failure;
use cenote_console::region::HostPool;
use cenote_pool::{PoolError, ReadOutcome};

/// Attaches once for each host, which recovers its dead workers, and checks everything.
pub fn inspect(region: &RegionArgs, watch: &WatchArgs, hosts: u8, report: &mut Report) -> Result<(), Failure> {
    // All hosts first: pins of a host's dead workers are cleared when a worker of that host
    // recovers them.
    let attach = |host_slot| RegionArgs { host_slot, ..region.clone() }.attach_watching("inspection", watch);
    let pools: Vec<HostPool> = (0..hosts).map(attach).collect::<Result<_, _>>()?;
    // All hosts' memory is on this machine, so one check from outside covers everything.
    let inspector = region.inspect()?;
    let found = inspector.check(true);
    report.leaked_bytes = found.leaked_bytes;
    report.damaged = found.damage.len() as u64;
    // After all recoveries, nothing may be pending.
    report.left_reserved = found.reserved + found.pending.len() as u64;
    report.left_pinned = found.pinned;
    for finding in found.leaks.iter().chain(&found.damage).chain(&found.pending) {
        report.find(format!("{}: {}", finding.what, finding.fact));
    }
    let info = inspector.info();
    (report.region_bytes, report.data_bytes) = (info.region_bytes, info.data_bytes);
    verify(&pools[0], info.data_bytes, report).map_err(|error| region.explain(&error))
}

/// Reads every block that lookups find.
fn verify(pool: &HostPool, data_bytes: u64, report: &mut Report) -> Result<(), PoolError> {
    for namespace in namespaces(pool)? {
        let mut payload = vec![0; namespace.block_bytes as usize];
        for key in 0..keys(&namespace, data_bytes) {
            let Some(hit) = pool.lookup(&[namespace.hasher.block(None, &[key as u32])]).first().copied() else {
                continue;
            };
            if pool.read(&hit, &mut [&mut payload]) != ReadOutcome::Whole {
                continue;
            }
            report.blocks_verified += 1;
            let wrong = content::wrong_block_bytes(hit.hash, &payload);
            if wrong > 0 {
                report.wrong_bytes += wrong;
                report.find(format!("block {}: {wrong} bytes are wrong at the end", hit.block));
            }
        }
    }
    Ok(())
}
