//! The boundary to files. [`LocalDisk`] is the machine's; [`FaultyDisk`] fails on demand, for tests
//! of this crate and of its users.

use cenote_base::Clock;
use cenote_mem::fork::NotInherited;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A directory's files.
pub trait Disk: Send + Sync {
    /// Creates the directory, with its parents.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// Names and lengths of the files in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>>;
    /// Opens a file for reading, or creates one for reading and writing. `direct`: past the page
    /// cache, where the file system can do it.
    fn open(&self, path: &Path, create: bool, direct: bool) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a complete file its name, if no file has it.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
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
    /// Takes the file's exclusive lock, which ends with this file or this process. False: another
    /// open file has it.
    fn try_lock(&self) -> io::Result<bool>;
}

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
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            // A file may vanish between its name and its length.
            if let (Ok(name), Ok(data)) = (entry.file_name().into_string(), entry.metadata()) {
                files.push((name, data.len()));
            }
        }
        Ok(files)
    }

    fn open(&self, path: &Path, create: bool, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let access = if create { OFlags::RDWR | OFlags::CREATE | OFlags::EXCL } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC;
        if direct {
            match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::from_raw_mode(0o600)) {
                Ok(file) => return Ok(Box::new(LocalFile::new(file.into()))),
                // File systems without direct I/O refuse it here, or at the first read or write. The
                // refused call may have created the file.
                Err(Errno::INVAL | Errno::OPNOTSUPP) if create => drop(std::fs::remove_file(path)),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Box::new(LocalFile::new(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into())))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
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
        self.disk.list(path)
    }

    fn open(&self, path: &Path, create: bool, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        if create {
            self.faults.taking()?
        } else {
            self.faults.any()?
        }
        let file = self.disk.open(path, create, direct)?;
        Ok(Box::new(FaultyFile { file, faults: Arc::clone(&self.faults) }))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.taking()?;
        self.disk.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.any()?;
        self.disk.remove(path)
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

    fn try_lock(&self) -> io::Result<bool> {
        self.faults.any()?;
        self.file.try_lock()
    }
}

/// Path of a file in a directory that is being prepared: unique in the directory, and no extent.
pub(crate) fn draft(directory: &Path, unique: u64) -> PathBuf {
    directory.join(format!("draft-{}-{unique:016x}", std::process::id()))
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
            let error = LocalDisk.open(&path, true, direct).err().expect("the file exists");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(std::fs::read(&path).expect("it is there"), b"content");
    }

    /// A child that outlived its killed parent held the parent's locks: no process could remove the
    /// parent's extent, or begin one if the parent had just held the directory's lock.
    #[test]
    fn a_forked_child_has_no_locked_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"content").expect("it is written");
        let file = LocalDisk.open(&path, false, false).expect("it is there");
        assert!(file.try_lock().expect("the file system has locks"));
        let length = run_in_child(|| file.length().map_or(u8::MAX, |length| length as u8)).expect("it forks");
        assert_eq!(length, 0, "the child's descriptor leads to the locked file");
        let other = LocalDisk.open(&path, false, false).expect("it is there");
        assert!(!other.try_lock().expect("the file system has locks"), "the parent still holds its lock");
        drop(file);
        assert!(other.try_lock().expect("the file system has locks"));
    }
}
