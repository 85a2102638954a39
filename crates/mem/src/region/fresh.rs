//! Files that get their name when they are complete. A creator that dies before leaves nothing.

use super::MapError;
use cenote_base::time::Clock;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for other creators of files in the same folder. Allocating a large file is slow.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// A new file that no other process can open yet; removed if it is dropped.
#[derive(Debug)]
pub struct Fresh(Option<Named>);

#[derive(Debug)]
struct Named {
    file: File,
    name: PathBuf,
    /// Its temporary name, on file systems without unnamed files.
    meanwhile: Option<PathBuf>,
    /// Held until the file has its name.
    _turn: Option<File>,
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(path) = &self.meanwhile {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits until no other process creates a file in this folder. Of many processes that create the
/// same file, all but the first would allocate its space for nothing. After the longest wait, or if
/// waiting fails, it continues.
fn take_turn(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    let deadline = Clock::system().after(TURN_TIMEOUT);
    loop {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK) if !deadline.passed() => std::thread::sleep(Duration::from_millis(1)),
            Err(Errno::INTR) => (),
            Err(_) => return None,
        }
    }
}

fn folder_of(name: &Path) -> &Path {
    name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn refuse_existing(name: &Path) -> Result<(), MapError> {
    if name.symlink_metadata().is_ok() { Err(MapError::Exists { path: name.into() }) } else { Ok(()) }
}

impl Fresh {
    /// A file without a name, or one that has its name already.
    pub(super) const NAMELESS: Self = Self(None);

    /// As [`Fresh::make`], for a file of any size; creators in a folder take turns.
    pub(super) fn make_large(name: &Path) -> Result<(Self, File), MapError> {
        refuse_existing(name)?;
        let turn = take_turn(folder_of(name));
        let (mut fresh, file) = Self::make(name)?;
        if let Some(named) = &mut fresh.0 {
            named._turn = turn;
        }
        Ok((fresh, file))
    }

    /// An empty file, to be named `name`, accessible to its owner alone.
    pub(crate) fn make(name: &Path) -> Result<(Self, File), MapError> {
        refuse_existing(name)?;
        let (mode, access) = (Mode::RUSR | Mode::WUSR, OFlags::RDWR | OFlags::CLOEXEC);
        let failed = |error| match error {
            // The file is new, so the folder is missing.
            Errno::NOENT => MapError::NoFolder { path: name.into(), folder: folder_of(name).into() },
            error => MapError::from_io(name, "create the file", error),
        };
        let (opened, meanwhile) = match rustix::fs::open(folder_of(name), access | OFlags::TMPFILE, mode) {
            // Old kernels report that the folder is a directory.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let mut path = name.as_os_str().to_owned();
                path.push(format!(".making-{}", std::process::id()));
                let path = PathBuf::from(path);
                let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                (rustix::fs::open(&path, flags, mode), Some(path))
            }
            opened => (opened, None),
        };
        let file = opened.map(File::from).map_err(failed)?;
        let other = file.try_clone().map_err(|error| MapError::from_io(name, "open the file twice", error))?;
        Ok((Self(Some(Named { file: other, name: name.into(), meanwhile, _turn: None })), file))
    }

    /// Gives the file its name. From then on other processes can open it.
    ///
    /// # Errors
    /// The name is taken, or the folder cannot be written.
    pub fn publish(self) -> Result<(), MapError> {
        let Some(named) = &self.0 else { return Ok(()) };
        let opened = PathBuf::from(format!("/proc/self/fd/{}", named.file.as_raw_fd()));
        let (from, flags) = match &named.meanwhile {
            Some(path) => (path, AtFlags::empty()),
            None => (&opened, AtFlags::SYMLINK_FOLLOW),
        };
        rustix::fs::linkat(CWD, from, CWD, &named.name, flags)
            .map_err(|error| MapError::from_io(&named.name, "give the file its name", error))
    }
}
