//! Regions that commands create for themselves, and the removal of those that killed commands left,
//! for example a server killed by SIGKILL.
//!
//! A command holds a lock on the file of its region, which the kernel drops with the process. It
//! takes the lock after the file has its name, so the name contains the process and its PID
//! namespace: a file is an orphan if its lock is free and its process has ended. Processes of
//! another namespace are not visible. For them, and if the process number was reused, the file must
//! be older than any command needs to take its lock.

use cenote_base::units::ByteSize;
use cenote_mem::{Flush, MapOptions, Mapped, Mapping, RegionSource, files};
use cenote_pool::Superblock;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const SHM: &str = "/dev/shm";
/// Purposes of commands' own regions, as in their names: `cenote-serve-123-4026531836`.
const PURPOSES: [&str; 5] = ["serve", "demo", "bench", "torture", "torture-ledger"];
/// A younger file of an unknown process may belong to a command that has not locked it yet.
const AGE_MIN: Duration = Duration::from_secs(60);

/// Marks a region as owned by a living process, until dropped.
pub struct Owned(#[expect(dead_code, reason = "the open file holds the lock")] File);

/// Takes the lock on a region's file. `None` if it has no file.
pub fn own(source: &RegionSource) -> std::io::Result<Option<Owned>> {
    let Some(path) = source.path() else { return Ok(None) };
    let file = files::open_own(&path)?;
    rustix::fs::flock(&file, FlockOperation::LockShared)?;
    Ok(Some(Owned(file)))
}

/// The name of this process's region for a purpose.
pub fn own_name(purpose: &str) -> String {
    format!("cenote-{purpose}-{}-{}", std::process::id(), pid_namespace().unwrap_or(0))
}

/// Removes the regions of dead commands, and reports each.
pub fn sweep() {
    for (name, bytes) in orphans() {
        if remove_if_free(&name) {
            let size = ByteSize(bytes);
            crate::output::say(&format!("removed shm:{name}, {size} that a killed command had left"));
        }
    }
}

/// The regions of dead commands: names in shared memory, and sizes in bytes.
pub fn orphans() -> Vec<(String, u64)> {
    let Ok(entries) = std::fs::read_dir(SHM) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let orphans = names.filter_map(|name| {
        let file = lock_orphan(Path::new(SHM), &name)?;
        Some((name, file.metadata().ok()?.len()))
    });
    orphans.collect()
}

/// A process and its PID namespace, 0 if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Maker {
    pid: u32,
    namespace: u64,
}

impl Maker {
    /// The creator of a command's own region, by its name.
    fn of(name: &str) -> Option<Self> {
        let (rest, namespace) = name.strip_prefix("cenote-")?.rsplit_once('-')?;
        let (purpose, pid) = rest.rsplit_once('-')?;
        PURPOSES.contains(&purpose).then_some(Self { pid: pid.parse().ok()?, namespace: namespace.parse().ok()? })
    }

    /// Whether this process has certainly ended.
    fn is_gone(self) -> bool {
        let is_here = pid_namespace().is_some_and(|ours| ours == self.namespace);
        is_here && !Path::new("/proc").join(self.pid.to_string()).exists()
    }
}

/// The inode of this process's PID namespace.
fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|link| link.ino())
}

/// The file of an orphan, locked; `None` if the name is no orphan's. Any user can make a pipe, a link or
/// a file with such a name: only a regular file of this user or root is looked at.
fn lock_orphan(folder: &Path, name: &str) -> Option<File> {
    let maker = Maker::of(name)?;
    let file = files::open_own(&folder.join(name)).ok()?;
    let age = file.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
    if !maker.is_gone() && age.is_none_or(|age| age < AGE_MIN) {
        return None;
    }
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

fn remove_if_free(name: &str) -> bool {
    let Some(_locked) = lock_orphan(Path::new(SHM), name) else { return false };
    let source = RegionSource::Shm(name.to_owned());
    let superblock = Mapping::open(&source, &MapOptions::default())
        .ok()
        .and_then(|mapping| Mapped::new(mapping, Flush::None).ok())
        .and_then(|fabric| Superblock::read(&fabric).ok());
    if let Some(superblock) = superblock {
        let _ = cenote_pool::remove_host_memory(&superblock);
    }
    Mapping::remove(&source).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn only_names_of_commands_tell_a_maker() {
        for name in ["cenote-serve-42-7", "cenote-torture-ledger-42-7"] {
            assert_eq!(Maker::of(name), Some(Maker { pid: 42, namespace: 7 }));
        }
        let ours = Maker::of(&own_name("bench")).expect("its own name");
        assert!(ours.pid == std::process::id() && !ours.is_gone());
        for name in ["cenote-00ff-h0", "cenote-serve-x", "cenote-serve-42", "cenote-serve-42-x", "my-region"] {
            assert_eq!(Maker::of(name), None, "{name}");
        }
    }

    /// Earlier, a pipe of such a name made every command wait for a writer. Not in shared memory, where
    /// commands of other programs would meet it.
    #[test]
    fn a_pipe_a_link_and_a_file_of_others_are_no_orphans() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = std::env::temp_dir().join(own_name("test"));
        std::fs::create_dir(&folder).expect("a folder");
        let gone = 3_999_999_999_u32 - std::process::id();
        let name = |purpose| format!("cenote-{purpose}-{gone}-{}", pid_namespace().expect("/proc"));
        let path = |purpose| folder.join(name(purpose));
        std::fs::write(path("serve"), [0; 8192]).expect("a file");
        std::fs::write(path("bench"), [0; 8192]).expect("a file");
        std::fs::set_permissions(path("bench"), std::fs::Permissions::from_mode(0o666)).expect("our file");
        symlink(path("serve"), path("demo")).expect("a link");
        mknodat(CWD, path("torture"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let found = PURPOSES.map(|purpose| lock_orphan(&folder, &name(purpose)).is_some());
        std::fs::remove_dir_all(&folder).expect("our folder");
        assert_eq!(found, [true, false, false, false, false], "only the first is a file of this user alone");
    }

    #[test]
    fn orphans_are_removed_and_possibly_owned_files_stay() {
        // Process numbers end far below this one.
        let gone = 4_000_000_000_u32 - std::process::id();
        let here = pid_namespace().expect("this machine has /proc");
        let make = |name: &str| {
            let path = Path::new(SHM).join(name);
            std::fs::write(&path, [0; 8192]).expect("shared memory");
            path
        };
        let name = format!("cenote-torture-{gone}-{here}");
        let path = make(&name);
        let owned = own(&RegionSource::Shm(name.clone())).expect("it is there").expect("it has a file");
        assert!(!remove_if_free(&name), "it has an owner");
        drop(owned);
        assert!(remove_if_free(&name) && !path.exists(), "its process is gone");
        // A process of another namespace, and a reused process number.
        for name in [format!("cenote-torture-{gone}-{}", here + 1), own_name("torture")] {
            let path = make(&name);
            assert!(!remove_if_free(&name), "{name}: it is young");
            let old = SystemTime::now() - 2 * AGE_MIN;
            File::options().write(true).open(&path).and_then(|file| file.set_modified(old)).expect("our file");
            assert!(orphans().contains(&(name.clone(), 8192)), "{name}");
            assert!(remove_if_free(&name) && !path.exists(), "{name}");
        }
    }
}
