//! Files that get their name when they are complete.

use super::{at, folder_of, refusal, sync_folder_of};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Between a file's name and the random part of its draft's.
const MARK: &str = ".draft-";
const TRIES: usize = 16;

/// A new file that has no name, or one that nobody can guess, until it is complete. It is removed
/// if it is dropped, and with its process.
///
/// A killed process may leave a draft with a name on file systems without unnamed files, and while it
/// replaces a file. Its draft is locked as long as it has a name, so the next draft for the same file
/// removes those that are free.
#[derive(Debug)]
pub struct Draft {
    file: File,
    name: PathBuf,
    /// Its temporary name.
    meanwhile: Option<PathBuf>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = &self.meanwhile {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Draft {
    /// An empty file, readable and writable, that is to be named `name`. `mode` are its exact
    /// permission bits.
    ///
    /// # Errors
    /// The folder is missing or cannot be written.
    pub fn new(name: &Path, mode: u32) -> io::Result<Self> {
        sweep(name);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        let draft = match rustix::fs::open(folder_of(name), flags, Mode::RUSR | Mode::WUSR) {
            // Old kernels report that the folder is a directory.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::named(name)?,
            Err(error) => return Err(at(name, &error.into())),
            Ok(file) => Self { file: file.into(), name: name.into(), meanwhile: None },
        };
        let mode = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::fchmod(&draft.file, mode).map_err(|error| at(name, &error.into()))?;
        Ok(draft)
    }

    /// A draft with a temporary name.
    fn named(name: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        for _ in 0..TRIES {
            let path = temporary(name);
            let file = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => File::from(file),
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(at(name, &error.into())),
            };
            let draft = Self { file, name: name.into(), meanwhile: Some(path) };
            // Another process may have taken it for a dead one's before it was locked.
            let is_ours = flock(&draft.file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_ours && draft.file.metadata().is_ok_and(|status| status.nlink() == 1) {
                return Ok(draft);
            }
        }
        Err(refusal(name, io::ErrorKind::WouldBlock, "other processes remove its drafts; try again"))
    }

    /// The file, to be written.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, if no file has it.
    ///
    /// # Errors
    /// The name is taken ([`io::ErrorKind::AlreadyExists`]), or the file cannot be synced or named.
    pub fn publish_new(self) -> io::Result<File> {
        self.file.sync_all().map_err(|error| at(&self.name, &error))?;
        self.link(&self.name)?;
        self.finish()
    }

    /// [`Draft::publish_new`], for a file that need not survive a loss of power.
    ///
    /// # Errors
    /// The name is taken ([`io::ErrorKind::AlreadyExists`]), or the folder cannot be written.
    pub fn publish_unsynced(self) -> io::Result<()> {
        self.link(&self.name)?;
        self.unlock()
    }

    fn unlock(&self) -> io::Result<()> {
        flock(&self.file, FlockOperation::Unlock).map_err(|error| at(&self.name, &error.into()))
    }

    /// Gives the file its name in place of the file that has it, if there is one. At every instant one
    /// of the two has the name, complete.
    ///
    /// # Errors
    /// The file cannot be synced or named; then the old file keeps its name.
    pub fn replace(mut self) -> io::Result<File> {
        self.file.sync_all().map_err(|error| at(&self.name, &error))?;
        let path = match self.meanwhile.take() {
            Some(path) => path,
            None => self.link_to_temporary()?,
        };
        let renamed = std::fs::rename(&path, &self.name);
        if renamed.is_err() {
            self.meanwhile = Some(path);
        }
        renamed.map_err(|error| at(&self.name, &error))?;
        self.finish()
    }

    fn finish(self) -> io::Result<File> {
        let file = self.file.try_clone().map_err(|error| at(&self.name, &error))?;
        self.unlock()?;
        sync_folder_of(&self.name)?;
        Ok(file)
    }

    fn link_to_temporary(&self) -> io::Result<PathBuf> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).map_err(|error| at(&self.name, &error.into()))?;
        for _ in 0..TRIES {
            let path = temporary(&self.name);
            match self.link(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(refusal(&self.name, io::ErrorKind::AlreadyExists, "all temporary names are taken; try again"))
    }

    fn link(&self, path: &Path) -> io::Result<()> {
        let opened = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let (from, flags) = match &self.meanwhile {
            Some(path) => (path, AtFlags::empty()),
            None => (&opened, AtFlags::SYMLINK_FOLLOW),
        };
        rustix::fs::linkat(CWD, from, CWD, path, flags).map_err(|error| at(&self.name, &error.into()))
    }
}

/// A name in the folder of `name` that nobody can guess.
fn temporary(name: &Path) -> PathBuf {
    let random = RandomState::new();
    let part = format!("{MARK}{:016x}{:016x}", random.hash_one(0_u8), random.hash_one(1_u8));
    let mut path = prefix(name);
    path.push(part);
    folder_of(name).join(path)
}

fn prefix(name: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name.file_name().unwrap_or_else(|| OsStr::new("file")));
    // A file system allows 255 bytes.
    let bytes = prefix.into_vec();
    OsString::from_vec(bytes[..bytes.len().min(200)].to_vec())
}

/// Removes what dead writers of `name` left. Whatever cannot be removed stays.
fn sweep(name: &Path) {
    let mut start = prefix(name);
    start.push(MARK);
    for entry in std::fs::read_dir(folder_of(name)).into_iter().flatten().flatten() {
        let is_draft = entry.file_name().as_bytes().strip_prefix(start.as_bytes()).is_some_and(|rest| rest.len() == 32);
        if is_draft
            && let Ok(file) = super::open_own(&entry.path())
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn written(draft: Draft) -> Draft {
        draft.file().write_all(b"new").unwrap();
        draft
    }

    #[test]
    fn a_draft_has_no_name_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        drop(written(Draft::new(&path, 0o640).unwrap()));
        assert!(names(folder.path()).is_empty());
        written(Draft::new(&path, 0o640).unwrap()).publish_new().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        let taken = written(Draft::new(&path, 0o640).unwrap()).publish_new().unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_draft_replaces_a_file_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let (first, second) = (Draft::new(&path, 0o600).unwrap(), Draft::named(&path).unwrap());
        written(first).replace().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        written(second).replace().unwrap();
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_name_that_cannot_be_taken_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        std::fs::create_dir_all(path.join("inside")).unwrap();
        written(Draft::new(&path, 0o600).unwrap()).replace().unwrap_err();
        written(Draft::named(&path).unwrap()).replace().unwrap_err();
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[test]
    fn drafts_of_the_dead_are_swept_and_those_of_the_living_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let living = Draft::named(&path).unwrap();
        let dead = temporary(&path);
        std::fs::write(&dead, "left").unwrap();
        let other = folder.path().join(".file.draft-of-a-user");
        std::fs::write(&other, "kept").unwrap();
        std::fs::set_permissions(&dead, std::fs::Permissions::from_mode(0o600)).unwrap();
        drop(Draft::new(&path, 0o600).unwrap());
        assert!(!dead.exists() && other.exists());
        written(living).publish_new().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
