//! Files that get their name when they are complete. A creator that dies before leaves nothing.

use super::MapError;
use crate::files::{Draft, folder_of};
use cenote_base::time::Clock;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for other creators of files in the same folder. Allocating a large file is slow.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// A new file that no other process can open yet; removed if it is dropped.
#[derive(Debug)]
pub struct Fresh(Option<Named>);

#[derive(Debug)]
struct Named {
    draft: Draft,
    name: PathBuf,
    /// Held until the file has its name.
    _turn: Option<File>,
}

/// Waits until no other process creates a file in this folder. Of many processes that create the
/// same file, all but the first would allocate its space for nothing. After the longest wait, or if
/// waiting fails, it continues.
fn take_turn(folder: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::open(folder, flags, Mode::empty()).ok()?);
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
        let failed = |error: io::Error| match error.kind() {
            // The file is new, so the folder is missing.
            io::ErrorKind::NotFound => MapError::NoFolder { path: name.into(), folder: folder_of(name).into() },
            _ => MapError::from_io(name, "create the file", error),
        };
        let draft = Draft::new(name, 0o600).map_err(failed)?;
        let file = draft.file().try_clone().map_err(|error| MapError::from_io(name, "open the file twice", error))?;
        Ok((Self(Some(Named { draft, name: name.into(), _turn: None })), file))
    }

    /// Gives the file its name. From then on other processes can open it.
    ///
    /// # Errors
    /// The name is taken, or the folder cannot be written.
    pub fn publish(self) -> Result<(), MapError> {
        let Some(Named { draft, name, _turn }) = self.0 else { return Ok(()) };
        draft.publish_unsynced().map_err(|error| MapError::from_io(&name, "give the file its name", error))
    }
}
