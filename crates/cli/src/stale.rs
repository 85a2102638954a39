//! Regions that commands made for themselves and did not live to remove: a server killed by SIGKILL must not
//! leave gigabytes behind each time it is started anew.
//!
//! Whoever makes such a region holds a lock on its file, which the kernel drops with the process. A file whose lock
//! is free, whose maker is no process of ours, and that is not just being made belongs to nobody.

use cenote_mem::{Flush, MapOptions, Mapped, Mapping, RegionSource};
use cenote_pool::Superblock;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

const SHM: &str = "/dev/shm";
/// Purposes that name the regions of commands: `cenote-serve-123`.
const PURPOSES: [&str; 4] = ["serve", "demo", "bench", "torture"];
/// A file that is younger may belong to a command that has not locked it yet.
const AGE_MIN: Duration = Duration::from_secs(60);

/// Tells others that a region has a living owner, as long as it lives.
pub struct Owned(#[expect(dead_code, reason = "the open file holds the lock")] File);

/// Takes the lock on a region's file. `None` where it has no file.
pub fn own(source: &RegionSource) -> std::io::Result<Option<Owned>> {
    let Some(path) = source.path() else { return Ok(None) };
    let file = File::open(path)?;
    rustix::fs::flock(&file, FlockOperation::LockShared)?;
    Ok(Some(Owned(file)))
}

/// Removes what dead commands left; returns how many regions.
pub fn sweep() -> usize {
    let Ok(entries) = std::fs::read_dir(SHM) else { return 0 };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| maker(name).is_some_and(|pid| !is_running(pid)) && remove_if_free(name)).count()
}

/// The process in the name of a command's own region.
fn maker(name: &str) -> Option<u32> {
    let (purpose, pid) = name.strip_prefix("cenote-")?.split_once('-')?;
    PURPOSES.contains(&purpose).then(|| pid.parse().ok()).flatten()
}

fn is_running(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn remove_if_free(name: &str) -> bool {
    let path = Path::new(SHM).join(name);
    let Ok(file) = File::open(&path) else { return false };
    let old = file.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
    if old.is_none_or(|age| age < AGE_MIN)
        || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    {
        return false;
    }
    let source = RegionSource::Shm(name.to_owned());
    let superblock = Mapping::open(&source, &MapOptions::default())
        .ok()
        .and_then(|mapping| Mapped::new(mapping, Flush::None).ok())
        .and_then(|fabric| Superblock::read(&fabric).ok());
    if let Some(superblock) = superblock {
        let _ = crate::region::HostPool::remove_host_memory(&superblock);
    }
    Mapping::remove(&source).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn only_names_of_commands_tell_a_maker() {
        assert_eq!(maker("cenote-serve-42"), Some(42));
        assert_eq!(maker("cenote-00ff-h0"), None);
        assert_eq!(maker("cenote-serve-x"), None);
        assert_eq!(maker("my-region"), None);
    }

    #[test]
    fn what_is_old_and_nobodys_goes_and_what_is_owned_stays() {
        // Process ids end far below this one.
        let name = format!("cenote-torture-{}", 4_000_000_000_u32 - std::process::id());
        let path = Path::new(SHM).join(&name);
        std::fs::write(&path, [0; 8192]).expect("shared memory");
        assert!(!remove_if_free(&name), "it is young");
        let old = SystemTime::now() - 2 * AGE_MIN;
        File::options().write(true).open(&path).and_then(|file| file.set_modified(old)).expect("our file");
        let source = RegionSource::Shm(name.clone());
        let owned = own(&source).expect("it is there").expect("it has a file");
        assert!(!remove_if_free(&name), "it has an owner");
        drop(owned);
        assert!(sweep() >= 1 && !path.exists());
    }
}
