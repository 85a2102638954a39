//! When everybody has gone: is all there, is all free, is every byte right?

use super::child::{block_sizes, keys, namespaces};
use super::content;
use super::report::Report;
use crate::args::{RegionArgs, WatchArgs};
use crate::failure::Failure;
use crate::region::HostPool;
use cenote_pool::{PoolError, ReadOutcome};

/// Attaches once for each host, which recovers what its dead left, and walks everything.
pub fn inspect(region: &RegionArgs, watch: &WatchArgs, hosts: u8, report: &mut Report) -> Result<(), Failure> {
    // All hosts first: pins of a host's dead go when somebody of that host looks after them.
    let attach = |host_slot| RegionArgs { host_slot, ..region.clone() }.attach_watching("inspection", watch);
    let pools: Vec<HostPool> = (0..hosts).map(attach).collect::<Result<_, _>>()?;
    let explain = |error: PoolError| region.explain(&error);
    let chunk_bytes = pools[0].superblock().config.chunk_bytes;
    let largest_slot = block_sizes(chunk_bytes)[0];
    let mut chunks = 0;
    for (host, pool) in pools.iter().enumerate() {
        let found = pool.check(true).map_err(explain)?;
        chunks += found.chunks;
        report.leaked_bytes += found.leaks.len() as u64 * largest_slot;
        report.damaged += found.damage.len() as u64;
        report.left_reserved += found.reserved;
        report.left_pinned = report.left_pinned.max(found.pinned);
        for finding in found.leaks.iter().chain(&found.damage) {
            report.find(format!("host {host}, {}: {}", finding.what, finding.fact));
        }
    }
    let info = pools[0].info();
    let (ownerless, data_bytes) = (info.chunks_taken.saturating_sub(chunks), info.data_bytes);
    if ownerless > 0 {
        report.leaked_bytes += ownerless * chunk_bytes;
        report.find(format!("{ownerless} chunks are taken, but by none of the hosts"));
    }
    (report.region_bytes, report.data_bytes) = (info.region_bytes, data_bytes);
    verify(&pools[0], data_bytes, report).map_err(explain)
}

/// Reads every block that can be found.
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
