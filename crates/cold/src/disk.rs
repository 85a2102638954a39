//! The boundary to files. [`LocalDisk`] is the machine's; [`FaultyDisk`] fails on demand, for tests
//! of this crate and of its users.

use cenote_base::Clock;
use cenote_mem::files::{self, Draft, OwnFolder, Stamp};
use cenote_mem::fork::NotInherited;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A new, empty file, for reading and writing. The name must be free.
    Create,
}

/// A directory's files. What is opened belongs to this user or root, is a regular file or a directory
/// by a name that is no link, and cannot be written by others. Nothing here waits for another process.
pub trait Disk: Send + Sync {
    /// Makes the directory with its parents, or checks the one that is there.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// Names and lengths of the regular files in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>>;
    /// What a name leads to now. Nothing is opened.
    fn stamp(&self, path: &Path) -> io::Result<Stamp>;
    /// Opens a file. `direct`: past the page cache, where the file system can do it.
    fn open(&self, path: &Path, access: Access, direct: bool) -> io::Result<Box<dyn DiskFile>>;
    /// Gives these bytes a name, at once and whole. `replaces`: also one that another file has.
    fn publish(&self, path: &Path, bytes: &[u8], replaces: bool) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Reads exactly these bytes.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes written bytes survive a loss of power.
    fn sync(&self) -> io::Result<()>;
    /// The file's length.
    fn length(&self) -> io::Result<u64>;
    /// Whether the file still has a name: no process removed it.
    fn is_named(&self) -> io::Result<bool>;
    /// Takes the file's exclusive lock, which ends with this file or this process. False: another
    /// open file has it.
    fn try_lock(&self) -> io::Result<bool>;
}

/// Mode of all files: they hold KV and secrets.
const MODE: u32 = 0o600;

/// Files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalDisk;

struct LocalFile {
    /// Set before the file is locked. Dropped before the file.
    locked: OnceLock<NotInherited>,
    file: File,
}

impl Disk for LocalDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        OwnFolder::make(path).map(drop)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        OwnFolder::open(path)?;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            // A file may vanish between its name and its length.
            if let (Ok(name), Ok(data)) = (entry.file_name().into_string(), entry.metadata())
                && data.is_file()
            {
                files.push((name, data.len()));
            }
        }
        Ok(files)
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        Stamp::at(path)
    }

    fn open(&self, path: &Path, access: Access, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let file = match access {
            Access::Read => files::open_own(path)?,
            Access::Write => writable(&files::open_own(path)?)?,
            Access::Create => {
                let draft = Draft::new(path, MODE)?;
                let file = draft.file().try_clone()?;
                draft.publish_unsynced()?;
                file
            }
        };
        if direct {
            // File systems without direct I/O refuse it here, or at the first read or write.
            let _ = rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? | OFlags::DIRECT);
        }
        Ok(Box::new(LocalFile::new(file)))
    }

    fn publish(&self, path: &Path, bytes: &[u8], replaces: bool) -> io::Result<()> {
        let draft = Draft::new(path, MODE)?;
        let mut file = draft.file();
        file.write_all(bytes)?;
        if replaces { draft.replace().map(drop) } else { draft.publish_new().map(drop) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

/// Opens an open file again, for writing. Its name may lead elsewhere by now.
fn writable(file: &File) -> io::Result<File> {
    // tidy: a file that is open already, by its name in /proc
    File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl LocalFile {
    const fn new(file: File) -> Self {
        Self { locked: OnceLock::new(), file }
    }

    /// Turns direct I/O off, after a call that the file system refuses with it.
    fn without_direct(&self) -> io::Result<bool> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        if !flags.contains(OFlags::DIRECT) {
            return Ok(false);
        }
        rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        Ok(true)
    }

    fn retry_buffered<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.without_direct()? => call(),
            result => result,
        }
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        // Closing does not suffice: a child that another thread is starting has a duplicate until its
        // `exec`. In a forked child the descriptor leads to another file.
        if self.locked.get().is_some() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl DiskFile for LocalFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self.file.read_exact_at(bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.without_direct()? => {
                self.file.read_exact_at(bytes, offset)
            }
            result => result,
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.retry_buffered(|| self.file.write_all_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn is_named(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }

    fn try_lock(&self) -> io::Result<bool> {
        // A forked child has the same lock. It would hold it after the death of this process.
        self.locked.get_or_init(|| NotInherited::new(&self.file));
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Longest wait of a call that meets [`Fault::Stuck`].
const STUCK_MAX: Duration = Duration::from_secs(60);

/// What a [`FaultyDisk`] does to calls. Budget: one fault at a time, for all files; a read or write
/// either fails whole, is torn once at a byte, or waits for [`Faults::heal`].
pub struct Faults {
    clock: Clock,
    mode: AtomicU8,
    /// Bytes until the torn write's end.
    torn_at: AtomicU64,
    held: Mutex<()>,
    healed: Condvar,
    /// Whether some call was hit.
    hit: AtomicBool,
    /// Listings of directories so far.
    listings: AtomicU64,
    /// Files that are open now.
    open_files: AtomicU64,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// Calls work.
    None,
    /// Writes and creations fail with "no space".
    Full,
    /// Every call fails with an I/O error.
    Gone,
    /// Reads and writes wait until they are healed, for at most a minute of the faults' clock.
    Stuck,
    /// One write stops in the middle and fails.
    Torn,
}

impl Faults {
    /// No fault yet.
    #[must_use]
    pub const fn new(clock: Clock) -> Self {
        Self {
            clock,
            mode: AtomicU8::new(Fault::None as u8),
            torn_at: AtomicU64::new(0),
            held: Mutex::new(()),
            healed: Condvar::new(),
            hit: AtomicBool::new(false),
            listings: AtomicU64::new(0),
            open_files: AtomicU64::new(0),
        }
    }

    /// Makes calls fail from now on.
    pub fn set(&self, fault: Fault) {
        self.hit.store(false, Relaxed);
        self.mode.store(fault as u8, Relaxed);
    }

    /// As [`Fault::Torn`], after so many bytes of all writes from now on.
    pub fn tear_at(&self, bytes: u64) {
        self.torn_at.store(bytes, Relaxed);
        self.set(Fault::Torn);
    }

    /// Ends the fault, and wakes calls that wait.
    pub fn heal(&self) {
        let _held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(Fault::None);
        self.healed.notify_all();
    }

    /// Whether a call met the fault since it was set.
    pub fn was_hit(&self) -> bool {
        self.hit.load(Relaxed)
    }

    /// Listings of directories so far.
    pub fn listings(&self) -> u64 {
        self.listings.load(Relaxed)
    }

    /// Files that are open now.
    pub fn open_files(&self) -> u64 {
        self.open_files.load(Relaxed)
    }

    fn is(&self, fault: Fault) -> bool {
        let is = self.mode.load(Relaxed) == fault as u8;
        if is {
            self.hit.store(true, Relaxed);
        }
        is
    }

    /// The fault of any call.
    fn any(&self) -> io::Result<()> {
        if self.is(Fault::Gone) {
            return Err(io::Error::other("injected: the disk is gone"));
        }
        if self.is(Fault::Stuck) {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let stuck = |_: &mut ()| self.mode.load(Relaxed) == Fault::Stuck as u8;
            drop(self.clock.after(STUCK_MAX).wait_while(&self.healed, held, stuck));
        }
        Ok(())
    }

    /// The fault of calls that take space.
    fn taking(&self) -> io::Result<()> {
        self.any()?;
        if self.is(Fault::Full) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// A disk that fails on demand.
pub struct FaultyDisk {
    disk: LocalDisk,
    faults: Arc<Faults>,
}

impl FaultyDisk {
    /// A disk with these faults.
    #[must_use]
    pub const fn new(faults: Arc<Faults>) -> Self {
        Self { disk: LocalDisk, faults }
    }
}

struct FaultyFile {
    file: Box<dyn DiskFile>,
    faults: Arc<Faults>,
}

impl Disk for FaultyDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.taking()?;
        self.disk.make_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        self.faults.any()?;
        self.faults.listings.fetch_add(1, Relaxed);
        self.disk.list(path)
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        self.faults.any()?;
        self.disk.stamp(path)
    }

    fn open(&self, path: &Path, access: Access, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        match access {
            Access::Create => self.faults.taking()?,
            Access::Read | Access::Write => self.faults.any()?,
        }
        let file = self.disk.open(path, access, direct)?;
        self.faults.open_files.fetch_add(1, Relaxed);
        Ok(Box::new(FaultyFile { file, faults: Arc::clone(&self.faults) }))
    }

    fn publish(&self, path: &Path, bytes: &[u8], replaces: bool) -> io::Result<()> {
        self.faults.taking()?;
        self.disk.publish(path, bytes, replaces)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.any()?;
        self.disk.remove(path)
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.faults.open_files.fetch_sub(1, Relaxed);
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.faults.any()?;
        self.file.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.faults.taking()?;
        if self.faults.is(Fault::Torn) {
            let whole = usize::try_from(self.faults.torn_at.load(Relaxed)).unwrap_or(usize::MAX);
            if whole <= bytes.len() {
                self.faults.mode.store(Fault::None as u8, Relaxed);
                self.file.write_at(&bytes[..whole], offset)?;
                return Err(io::Error::other("injected: a torn write"));
            }
            self.faults.torn_at.fetch_sub(bytes.len() as u64, Relaxed);
        }
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.any()?;
        self.file.sync()
    }

    fn length(&self) -> io::Result<u64> {
        self.faults.any()?;
        self.file.length()
    }

    fn is_named(&self) -> io::Result<bool> {
        self.faults.any()?;
        self.file.is_named()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.faults.any()?;
        self.file.try_lock()
    }
}

/// A number that no other process guesses or draws.
pub(crate) fn unique() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_mem::fork::run_in_child;

    #[test]
    fn a_file_that_exists_is_not_created_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"content").expect("it is written");
        for direct in [false, true] {
            let error = LocalDisk.open(&path, Access::Create, direct).err().expect("the file exists");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(std::fs::read(&path).expect("it is there"), b"content");
    }

    /// A pipe under a file's name kept its opener waiting for ever; a link led anywhere; files of
    /// another user, or that others could write, were believed.
    #[test]
    fn only_own_regular_files_are_opened() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().expect("a directory");
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| directory.path().join(name));
        LocalDisk.publish(&file, b"content", false).expect("it is written");
        symlink(&file, &link).expect("the name is free");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("the name is free");
        for access in [Access::Read, Access::Write] {
            LocalDisk.open(&file, access, true).expect("it is one of ours");
            for path in [&link, &pipe, directory.path()] {
                assert!(LocalDisk.open(path, access, false).is_err(), "{}", path.display());
            }
        }
        assert_eq!(LocalDisk.list(directory.path()).expect("it is ours"), [("file".to_owned(), 7)]);
        for mode in [0o777, 0o770] {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).expect("it is ours");
            assert!(LocalDisk.make_dir(directory.path()).is_err() && LocalDisk.list(directory.path()).is_err());
        }
    }

    /// A child that outlived its killed parent held the parent's locks: no process could remove the
    /// parent's extent, or begin one if the parent had just held the directory's lock.
    #[test]
    fn a_forked_child_has_no_locked_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"content").expect("it is written");
        let file = LocalDisk.open(&path, Access::Read, false).expect("it is there");
        assert!(file.try_lock().expect("the file system has locks"));
        let length = run_in_child(|| file.length().map_or(u8::MAX, |length| length as u8)).expect("it forks");
        assert_eq!(length, 0, "the child's descriptor leads to the locked file");
        let other = LocalDisk.open(&path, Access::Read, false).expect("it is there");
        assert!(!other.try_lock().expect("the file system has locks"), "the parent still holds its lock");
        drop(file);
        assert!(other.try_lock().expect("the file system has locks"));
    }
}
