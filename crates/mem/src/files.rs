//! Files whose names other users may have taken: the one way to open them.
//!
//! A name in `/dev/shm`, in a shared folder or in a working directory may lead to a pipe that nobody
//! writes, to a link, to a device, or to a file that its owner changes later. So every open here is
//! nonblocking and checks the kind. There are two degrees of trust:
//!
//! - *input* may come from anyone, because its reader checks the content: models, traces, profiles.
//!   Links are followed, as model caches consist of them.
//! - *own* files are obeyed: settings, identities, extents, regions of commands. They belong to this
//!   process's user or to root, and no other user can write them.
//!
//! A [`Stamp`] tells whether a file changed; a [`Draft`] gets its name when it is complete.

mod draft;

pub use draft::Draft;

use rustix::fs::{Mode, OFlags, Stat, fstat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Opens an input for reading: a regular file of any owner, by a name that may be a link.
///
/// # Errors
/// There is no such file, it is no regular file, or access is denied.
pub fn open_input(path: &Path) -> io::Result<File> {
    regular(path, OFlags::empty()).map(|(file, _)| file)
}

/// Opens a file that this process will obey.
///
/// # Errors
/// As [`open_input`]; or the name is a symbolic link, the file belongs to another user than this one
/// and root, or others can write it.
pub fn open_own(path: &Path) -> io::Result<File> {
    let (file, status) = regular(path, OFlags::NOFOLLOW)?;
    believe(path, &status, "file")?;
    Ok(file)
}

/// Refuses an open file that [`open_own`] would refuse.
///
/// # Errors
/// As [`open_own`].
pub fn check_own(file: &File, path: &Path) -> io::Result<()> {
    let status = file.metadata().map_err(|error| at(path, &error))?;
    must_be_regular(path, &status)?;
    believe(path, &status, "file")
}

/// The whole content of an input.
///
/// # Errors
/// As [`open_input`]; or it has more than `most` bytes.
pub fn read_input(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(open_input(path)?, path, most)
}

/// The whole content of a file that this process will obey.
///
/// # Errors
/// As [`open_own`]; or it has more than `most` bytes.
pub fn read_own(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(open_own(path)?, path, most)
}

/// [`read_input`], for text.
///
/// # Errors
/// As [`read_input`]; or it is no UTF-8.
pub fn read_input_text(path: &Path, most: u64) -> io::Result<String> {
    text(read_input(path, most)?, path)
}

/// [`read_own`], for text.
///
/// # Errors
/// As [`read_own`]; or it is no UTF-8.
pub fn read_own_text(path: &Path, most: u64) -> io::Result<String> {
    text(read_own(path, most)?, path)
}

/// A folder that belongs to this user or root, and in which no other user can make names.
#[derive(Debug)]
pub struct OwnFolder {
    file: File,
    path: PathBuf,
}

impl OwnFolder {
    /// Opens an existing folder. Its own name may be no link.
    ///
    /// # Errors
    /// There is no such folder, it belongs to another user, or others can write it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let fact = "it is no folder, or a symbolic link; name the folder itself";
                return Err(refusal(path, io::ErrorKind::NotADirectory, fact));
            }
            Err(error) => return Err(at(path, &error.into())),
        };
        let status = file.metadata().map_err(|error| at(path, &error))?;
        believe(path, &status, "folder")?;
        Ok(Self { file, path: path.into() })
    }

    /// Makes the folder with its parents, accessible to this user alone, or opens it.
    ///
    /// # Errors
    /// It cannot be made, or as [`OwnFolder::open`].
    pub fn make(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| at(path, &error))?;
        Self::open(path)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its stamp. It differs once the name leads to another folder.
    ///
    /// # Errors
    /// The folder cannot be asked.
    pub fn stamp(&self) -> io::Result<Stamp> {
        Stamp::of(&self.file).map_err(|error| at(&self.path, &error))
    }

    /// Makes names that were added or removed survive a loss of power.
    ///
    /// # Errors
    /// The folder cannot be synced.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all().map_err(|error| at(&self.path, &error))
    }
}

/// Makes names that were added to or removed from the folder of `path` survive a loss of power.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = folder_of(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(|error| at(folder, &error.into()))?;
    File::from(opened).sync_all().map_err(|error| at(folder, &error))
}

/// What changes with a file: device, inode, size, times of content and status. Two equal stamps of
/// one open file mean that nobody wrote to it in between; equal times of *two* files mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    /// Number of the device.
    pub device: u64,
    /// Number of the file on the device.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Nanoseconds since 1970 at the last change of content.
    pub modified: i128,
    /// Nanoseconds since 1970 at the last change of content or status, which no program can set.
    pub changed: i128,
}

impl Stamp {
    /// The stamp of an open file.
    ///
    /// # Errors
    /// The file cannot be asked.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(fstat(file)?))
    }

    /// The stamp of the file that a path leads to now.
    ///
    /// # Errors
    /// There is no such file, or access is denied.
    pub fn at(path: &Path) -> io::Result<Self> {
        rustix::fs::stat(path).map(Self::from).map_err(|error| at(path, &error.into()))
    }
}

impl From<Stat> for Stamp {
    fn from(status: Stat) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: status.st_dev,
            inode: status.st_ino,
            size: status.st_size as u64,
            modified: nanoseconds(status.st_mtime, status.st_mtime_nsec as i64),
            changed: nanoseconds(status.st_ctime, status.st_ctime_nsec as i64),
        }
    }
}

fn regular(path: &Path, more: OFlags) -> io::Result<(File, Metadata)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) if more.contains(OFlags::NOFOLLOW) => {
            let fact = "it is a symbolic link; name the file that it leads to";
            return Err(refusal(path, io::ErrorKind::InvalidInput, fact));
        }
        Err(error) => return Err(at(path, &error.into())),
    };
    let status = file.metadata().map_err(|error| at(path, &error))?;
    must_be_regular(path, &status)?;
    Ok((file, status))
}

fn must_be_regular(path: &Path, status: &Metadata) -> io::Result<()> {
    if status.is_file() {
        Ok(())
    } else if status.is_dir() {
        Err(refusal(path, io::ErrorKind::IsADirectory, "it is a folder"))
    } else {
        Err(refusal(path, io::ErrorKind::InvalidInput, "it is no regular file"))
    }
}

/// Refuses what another user made or may change.
fn believe(path: &Path, status: &Metadata, kind: &str) -> io::Result<()> {
    let (owner, mode) = (status.uid(), status.mode() & 0o7777);
    let denied = |fact: &str| Err(refusal(path, io::ErrorKind::PermissionDenied, fact));
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return denied(&format!("the {kind} belongs to user {owner}, not to this user or root; use one of your own"));
    }
    if mode & 0o022 != 0 {
        return denied(&format!("other users can write the {kind} (mode {mode:04o}); run `chmod go-w` on it"));
    }
    Ok(())
}

fn read(file: File, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| at(path, &error))?;
    if bytes.len() as u64 > most {
        return Err(refusal(path, io::ErrorKind::FileTooLarge, &format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>, path: &Path) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| refusal(path, io::ErrorKind::InvalidData, "it is no UTF-8"))
}

fn refusal(path: &Path, kind: io::ErrorKind, fact: &str) -> io::Error {
    io::Error::new(kind, format!("{}: {fact}", path.display()))
}

/// The same error with the path in its message.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The folder of a file.
pub(crate) fn folder_of(name: &Path) -> &Path {
    name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn an_input_may_be_a_link_but_no_pipe_and_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (folder.path().join("file"), folder.path().join("link"), folder.path().join("pipe"));
        std::fs::write(&file, "content").unwrap();
        symlink(&file, &link).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read_input_text(&link, 7).unwrap(), "content");
        assert_eq!(read_input(&link, 6).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let refused = open_input(&pipe).unwrap_err().to_string();
        assert!(refused.contains("no regular file") && refused.contains("pipe"), "{refused}");
        assert_eq!(open_input(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(open_input(Path::new("/dev/null")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn an_own_file_is_no_link_and_only_its_owner_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "content").unwrap();
        symlink(&file, &link).unwrap();
        chmod(&file, 0o644);
        assert_eq!(read_own_text(&file, 100).unwrap(), "content");
        let refused = open_own(&link).unwrap_err().to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        for mode in [0o664, 0o646] {
            chmod(&file, mode);
            let refused = open_own(&file).unwrap_err().to_string();
            assert!(refused.contains("other users can write"), "{refused}");
            assert!(check_own(&open_input(&file).unwrap(), &file).is_err());
        }
        if rustix::process::geteuid().is_root() {
            chmod(&file, 0o600);
            std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
            let refused = open_own(&file).unwrap_err().to_string();
            assert!(refused.contains("user 65534"), "{refused}");
        }
    }

    #[test]
    fn an_own_folder_is_made_private_and_refused_if_others_write_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a/b"), folder.path().join("link"));
        let made = OwnFolder::make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        made.sync().unwrap();
        symlink(&path, &link).unwrap();
        assert!(OwnFolder::open(&link).is_err());
        assert!(OwnFolder::make(&link).is_err());
        chmod(&path, 0o777);
        let refused = OwnFolder::make(&path).unwrap_err().to_string();
        assert!(refused.contains("other users can write the folder"), "{refused}");
    }

    #[test]
    fn a_stamp_changes_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        std::fs::write(&path, "content").unwrap();
        let file = open_input(&path).unwrap();
        let before = Stamp::of(&file).unwrap();
        assert_eq!(Stamp::at(&path).unwrap(), before);
        std::fs::write(&other, "CONTENT").unwrap();
        let times = std::fs::FileTimes::new().set_modified(file.metadata().unwrap().modified().unwrap());
        File::options().write(true).open(&other).unwrap().set_times(times).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let after = Stamp::at(&path).unwrap();
        assert_eq!((after.size, after.modified), (before.size, before.modified), "the case that is hard to see");
        assert_ne!(after, before);
    }
}
