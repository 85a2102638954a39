//! Names and clean-up of hosts' memory: one file per region and host in `/dev/shm`.

use crate::error::PoolError;
use crate::region::config::AttachOptions;
use crate::region::superblock::Superblock;
use cenote_base::Clock;
use cenote_mem::host::HostError;
use cenote_mem::region::SHM_DIRECTORY;
use cenote_mem::{Fabric, Flush, HostArea, HostSpec, MapError, ReadMapping, ReadOnly, RegionSource};
use std::path::{Path, PathBuf};

/// Prefix of the names of all hosts' memory.
const AREA_PREFIX: &str = "cenote-";

/// Name of a host's memory for a region.
pub(crate) fn host_area_name(uuid: &[u8; 16], host: u8) -> String {
    format!("{AREA_PREFIX}{}-h{host}", hex::encode(uuid))
}

/// The region's identity in a name of host memory, such as `cenote-<32 hex digits>-h0`.
#[must_use]
pub fn area_identity(name: &str) -> Option<&str> {
    let (identity, host) = name.strip_prefix(AREA_PREFIX)?.split_once("-h")?;
    let is_host = host.parse::<u8>().is_ok();
    let is_identity = identity.len() == 32 && identity.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_identity && is_host).then_some(identity)
}

/// Opens this host's memory for the region of `fabric`, with the region's permissions.
pub(crate) fn area_opener<F: Fabric>(
    fabric: &F,
    options: &AttachOptions,
) -> impl FnOnce(&str, HostSpec) -> Result<HostArea, HostError> + use<F> {
    let (private, clock, region) = (options.private, options.clock, fabric.region_file());
    move |name, spec| {
        let opened =
            if private { HostArea::open(name, spec, true) } else { HostArea::open_for(name, spec, region.as_ref()) };
        Ok(on_clock(opened?.0, clock))
    }
}

/// Host memory on the clock of a participant's options.
pub(crate) fn on_clock(area: HostArea, clock: Option<Clock>) -> HostArea {
    match clock {
        Some(clock) => area.with_clock(clock),
        None => area,
    }
}

/// Removes host memory whose region is gone and which no process has open: the region was removed
/// by hand, or its last user was killed. Every attach calls it. Returns the number of files
/// removed.
#[must_use]
pub fn sweep_host_memory() -> usize {
    HostArea::sweep(
        |name| area_identity(name).is_some(),
        |name, region| area_identity(name).is_some_and(|identity| region_is_gone(region, identity)),
    )
}

/// Removes the host memory of a region that is being destroyed. Returns the files that remain
/// because they belong to other users; their owners, or root, sweep them with their next attach.
///
/// # Errors
/// A file exists and cannot be removed.
pub fn remove_host_memory(superblock: &Superblock) -> Result<Vec<PathBuf>, PoolError> {
    let mut left = Vec::new();
    for host in 0..superblock.config.max_hosts {
        let name = host_area_name(&superblock.config.uuid, host);
        if !HostArea::remove(&name)? {
            left.push(Path::new(SHM_DIRECTORY).join(name));
        }
    }
    Ok(left)
}

/// Whether no region with this identity exists at this path. An unreadable path may hold one.
fn region_is_gone(path: &Path, uuid: &str) -> bool {
    let Some(Ok(source)) = path.to_str().map(str::parse::<RegionSource>) else { return false };
    let mapping = match ReadMapping::open(&source) {
        Err(MapError::Missing { .. }) => return true,
        Err(_) => return false,
        Ok(mapping) => mapping,
    };
    let Ok(fabric) = ReadOnly::new(mapping, Flush::best().unwrap_or(Flush::None)) else { return false };
    Superblock::read(&fabric).is_ok_and(|superblock| hex::encode(superblock.config.uuid) != uuid)
}
