//! The regions of this machine, and the orphans of killed processes.

use cenote_console::args::{RegionArgs, WatchArgs};
use cenote_console::stale;
use cenote_mem::cpu::Machine;
use cenote_mem::region::SHM_DIRECTORY;
use cenote_mem::{AreaFile, Flush, HostArea, ReadMapping, ReadOnly, RegionSource};
use cenote_pool::{Inspector, PoolError, Superblock, area_identity};
use cenote_store::snapshot::Restoring;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file or device of cenote that takes memory.
#[derive(Debug, Serialize)]
pub struct Found {
    /// The region's name for `--region`, or a path of host memory.
    pub region: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Memory that it takes; `None` for a device.
    pub memory_bytes: Option<u64>,
    /// Blocks that can be read.
    pub blocks: Option<u64>,
    /// Processes that have it open, on all hosts.
    pub users: Vec<User>,
    /// Its state.
    pub state: State,
}

/// A process that has a region open.
#[derive(Debug, Serialize)]
pub struct User {
    pub host: u8,
    pub pid: u64,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Processes have it open.
    InUse,
    /// No process has it open; its blocks serve the next one.
    Idle,
    /// It is being restored from a snapshot, or a restoration was killed.
    Restoring,
    /// A killed process left it, and no process can use it again.
    Orphan,
    /// Another version of this program made it.
    OtherVersion,
    /// It is being created, or its creator was killed.
    Unfinished,
}

impl State {
    pub const fn text(self) -> &'static str {
        match self {
            Self::InUse => "in use",
            Self::Idle => "idle",
            Self::Restoring => "restoring",
            Self::Orphan => "orphan",
            Self::OtherVersion => "other version",
            Self::Unfinished => "unfinished",
        }
    }
}

/// All that this user can read: in shared memory, on hugetlbfs, on DAX devices, and files elsewhere
/// with host memory here. Joins nothing.
pub fn look(machine: &Machine) -> Vec<Found> {
    let areas = HostArea::list(|name| area_identity(name).is_some());
    let orphans: BTreeSet<String> = stale::orphans().into_iter().map(|(name, _)| name).collect();
    let mut identities = BTreeMap::new();
    let mut found = Vec::new();
    for source in candidates(machine, &areas) {
        let Some((mut region, uuid)) = region(&source) else { continue };
        if matches!(&source, RegionSource::Shm(name) if orphans.contains(name)) {
            region.state = State::Orphan;
        }
        if let (Some(path), Some(uuid)) = (source.path(), uuid) {
            identities.insert(path, uuid);
        }
        found.push(region);
    }
    found.extend(areas.iter().filter(|area| is_orphan(area, &identities)).map(|area| Found {
        region: Path::new(SHM_DIRECTORY).join(&area.name).display().to_string(),
        bytes: area.bytes,
        memory_bytes: Some(area.bytes),
        blocks: None,
        users: Vec::new(),
        state: State::Orphan,
    }));
    found
}

/// Paths that may be regions.
fn candidates(machine: &Machine, areas: &[AreaFile]) -> Vec<RegionSource> {
    let files = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).map(|entry| entry.path()).collect()
    };
    let shared = files(Path::new(SHM_DIRECTORY)).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        area_identity(name).is_none().then(|| RegionSource::Shm(name.to_owned()))
    });
    let huge = machine.hugetlbfs_mounts.iter().flat_map(|mount| files(Path::new(mount))).map(RegionSource::File);
    let devices = machine.dax_devices.iter().filter(|device| device.mappable);
    let devices = devices.map(|device| RegionSource::DevDax(Path::new("/dev").join(&device.name)));
    let recorded = areas.iter().filter_map(|area| area.region.clone()).map(RegionSource::File);
    let mut all: Vec<RegionSource> = shared.chain(huge).chain(devices).collect();
    for source in recorded {
        if all.iter().all(|known| known.path() != source.path()) {
            all.push(source);
        }
    }
    all.sort_by_key(ToString::to_string);
    all
}

/// A region and its identity; `None` if it is no region or unreadable.
fn region(source: &RegionSource) -> Option<(Found, Option<String>)> {
    let open = || ReadMapping::open(source).ok();
    let mut found = Found {
        region: source.to_string(),
        bytes: 0,
        memory_bytes: None,
        blocks: None,
        users: Vec::new(),
        state: State::Idle,
    };
    if let Some(file) = source.path().and_then(|path| path.metadata().ok()).filter(std::fs::Metadata::is_file) {
        (found.bytes, found.memory_bytes) = (file.len(), Some(file.blocks() * 512));
    }
    let superblock = Superblock::read(&ReadOnly::new(open()?, Flush::best().unwrap_or(Flush::None)).ok()?);
    let superblock = match superblock {
        Ok(superblock) => superblock,
        Err(PoolError::Version { .. } | PoolError::Layout { .. }) => {
            return Some((Found { state: State::OtherVersion, ..found }, None));
        }
        Err(PoolError::Unfinished) if is_ours_by_name(source) => {
            return Some((Found { state: State::Unfinished, ..found }, None));
        }
        Err(_) => return None,
    };
    let fabric = Arc::new(ReadOnly::new(open()?, superblock.flush).ok()?);
    let args = RegionArgs { no_huge_pages: true, ..RegionArgs::of(source.clone()) };
    let inspector = Inspector::open(&fabric, &args.attach_options("", &WatchArgs::default()).ok()?).ok()?;
    let info = inspector.info();
    found.bytes = info.region_bytes;
    found.blocks = Some(info.blocks_ready);
    let living = info.workers.into_iter().filter(|worker| worker.alive != Some(false));
    found.users = living.map(|worker| User { host: worker.host, pid: worker.pid, name: worker.name }).collect();
    found.state = match (Restoring::seen(&inspector), found.users.is_empty()) {
        (Some(_), _) => State::Restoring,
        (None, true) => State::Idle,
        (None, false) => State::InUse,
    };
    Some((found, Some(info.uuid)))
}

/// An empty file or device counts as an unfinished region only if its name says so.
fn is_ours_by_name(source: &RegionSource) -> bool {
    matches!(source, RegionSource::Shm(name) if name.starts_with("cenote-"))
}

/// Whether host memory belongs to a region that does not exist any more, and no process has it
/// open.
fn is_orphan(area: &AreaFile, identities: &BTreeMap<PathBuf, String>) -> bool {
    let Some(path) = area.region.as_ref().filter(|_| !area.is_open) else { return false };
    match identities.get(path) {
        Some(now) => area_identity(&area.name) != Some(now),
        None => path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_an_orphan_without_its_region() {
        let uuid = "0123456789abcdef0123456789abcdef";
        let name = format!("cenote-{uuid}-h0");
        assert_eq!(area_identity(&name), Some(uuid));
        for other in ["cenote-serve-1-2", "cenote-0123-h0", "kv"] {
            assert_eq!(area_identity(other), None, "{other}");
        }
        let area = |region: Option<&str>, is_open| AreaFile {
            name: name.clone(),
            region: region.map(PathBuf::from),
            bytes: 4096,
            is_open,
        };
        let known = |uuid: &str| BTreeMap::from([(PathBuf::from("/dev/shm/kv"), uuid.to_owned())]);
        let is_orphan = |region, is_open, uuid| is_orphan(&area(region, is_open), &known(uuid));
        assert!(!is_orphan(Some("/dev/shm/kv"), false, uuid));
        assert!(is_orphan(Some("/dev/shm/kv"), false, "another"));
        assert!(is_orphan(Some("/no/such/region"), false, uuid));
        assert!(!is_orphan(Some("/no/such/region"), true, uuid), "a process has it open");
        assert!(!is_orphan(None, false, uuid), "it may belong to any region");
    }
}
