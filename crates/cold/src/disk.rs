//! The boundary to files. [`LocalDisk`] is the machine's; [`FaultyDisk`] fails on demand, for tests
//! of this crate and of its users.

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
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

struct LocalFile(File);

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
            // File systems without direct I/O refuse it here, or at the first read or write.
            if let Ok(file) = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::from_raw_mode(0o600)) {
                return Ok(Box::new(LocalFile(File::from(file))));
            }
            // The refused call may have created the file.
            if create {
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(Box::new(LocalFile(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?))))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

impl LocalFile {
    /// Turns direct I/O off, after a call that the file system refuses with it.
    fn without_direct(&self) -> io::Result<bool> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        if !flags.contains(OFlags::DIRECT) {
            return Ok(false);
        }
        rustix::fs::fcntl_setfl(&self.0, flags - OFlags::DIRECT)?;
        Ok(true)
    }

    fn retry_buffered<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.without_direct()? => call(),
            result => result,
        }
    }
}

impl DiskFile for LocalFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self.0.read_exact_at(bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.without_direct()? => {
                self.0.read_exact_at(bytes, offset)
            }
            result => result,
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.retry_buffered(|| self.0.write_all_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn try_lock(&self) -> io::Result<bool> {
        match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a [`FaultyDisk`] does to calls. Budget: one fault at a time, for all files; a read or write
/// either fails whole, is torn once at a byte, or waits for [`Faults::heal`].
#[derive(Default)]
pub struct Faults {
    mode: AtomicU8,
    /// A torn write writes so many bytes.
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
    /// Reads and writes wait until they are healed, for at most a minute.
    Stuck,
    /// The next write stops in the middle and fails.
    Torn,
}

impl Faults {
    /// Makes calls fail from now on.
    pub fn set(&self, fault: Fault) {
        self.hit.store(false, Relaxed);
        self.mode.store(fault as u8, Relaxed);
    }

    /// As [`Fault::Torn`], after so many bytes.
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
            drop(self.healed.wait_timeout_while(held, Duration::from_secs(60), stuck));
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
            let whole = usize::try_from(self.faults.torn_at.load(Relaxed)).unwrap_or(0).min(bytes.len());
            self.faults.mode.store(Fault::None as u8, Relaxed);
            self.file.write_at(&bytes[..whole], offset)?;
            return Err(io::Error::other("injected: a torn write"));
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
