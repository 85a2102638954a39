//! Names of regions.

use super::MapError;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Directory of `shm:NAME` regions and host areas: the machine's own tmpfs.
pub const SHM_DIRECTORY: &str = "/dev/shm";

/// Source of a region's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegionSource {
    /// Memory of this process only, written `anon`.
    Anon,
    /// A tmpfs file of this name, written `shm:NAME`.
    Shm(String),
    /// Any file: tmpfs, hugetlbfs, a DAX file system, a disk. Written as its path, which contains a
    /// slash, or `file:PATH`.
    File(PathBuf),
    /// A DAX character device, written as its path `/dev/daxX.Y`.
    DevDax(PathBuf),
}

/// Text that names no region.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRegionError {
    /// The name fits no kind of region.
    #[error("`{text}` names no region ({fact}); write shm:NAME, a path, file:PATH, /dev/daxX.Y or anon")]
    Malformed {
        /// The name as given.
        text: String,
        /// The reason.
        fact: &'static str,
    },
    /// A bare word, which may mean shared memory or a file.
    #[error(
        "`{0}` is neither shared memory nor a path; write shm:{0} for shared memory, file:{0} for a file in this folder"
    )]
    Ambiguous(String),
}

impl RegionSource {
    /// The path behind the name; `None` for anonymous memory.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Anon => None,
            Self::Shm(name) => Some(Path::new(SHM_DIRECTORY).join(name)),
            Self::File(path) | Self::DevDax(path) => Some(path.clone()),
        }
    }

    /// Device and inode of the file behind the name; `None` for anonymous memory. A region that is made later
    /// under the same name has others, and a process that has the first one open does not notice by its memory.
    ///
    /// # Errors
    /// The file is gone, or cannot be looked at.
    pub fn file(&self) -> io::Result<Option<(u64, u64)>> {
        let Some(path) = self.path() else { return Ok(None) };
        let status = path.metadata()?;
        Ok(Some((status.dev(), status.ino())))
    }

    /// The path to name in messages.
    pub(super) fn shown_path(&self) -> PathBuf {
        self.path().unwrap_or_else(|| PathBuf::from("anon"))
    }

    /// Code can build a `Shm` that parsing would refuse; it must not reach outside its directory.
    pub(super) fn check_name(&self) -> Result<(), MapError> {
        match self {
            Self::Shm(name) => match check_shm_name(name) {
                Ok(()) => Ok(()),
                Err(fact) => Err(MapError::NotARegion { path: self.shown_path(), fact: fact.to_owned() }),
            },
            _ => Ok(()),
        }
    }
}

/// A name in the shared-memory directory is one path component.
pub(crate) fn check_shm_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the name is empty"),
        "." | ".." => Err("the name is a directory"),
        _ if name.contains('/') => Err("the name contains a slash"),
        _ if name.contains('\0') => Err("the name contains a zero byte"),
        _ if name.len() > 255 => Err("the name is longer than 255 bytes"),
        _ => Ok(()),
    }
}

/// `/dev/dax` and two numbers with a dot between, as the kernel names them.
fn is_dax_name(text: &str) -> bool {
    let number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix("/dev/dax")
        .and_then(|rest| rest.split_once('.'))
        .is_some_and(|(region, instance)| number(region) && number(instance))
}

impl FromStr for RegionSource {
    type Err = ParseRegionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |fact| ParseRegionError::Malformed { text: text.to_owned(), fact };
        if text == "anon" {
            return Ok(Self::Anon);
        }
        if let Some(name) = text.strip_prefix("shm:") {
            return check_shm_name(name).map(|()| Self::Shm(name.to_owned())).map_err(wrong);
        }
        let path = text.strip_prefix("file:");
        match path.unwrap_or(text) {
            "" => Err(wrong("the name is empty")),
            name if name.contains('\0') => Err(wrong("it contains a zero byte")),
            name if is_dax_name(name) => Ok(Self::DevDax(name.into())),
            name if path.is_some() || name.contains('/') => Ok(Self::File(name.into())),
            name => Err(ParseRegionError::Ambiguous(name.to_owned())),
        }
    }
}

impl fmt::Display for RegionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anon => f.write_str("anon"),
            Self::Shm(name) => write!(f, "shm:{name}"),
            Self::File(path) if !path.as_os_str().as_encoded_bytes().contains(&b'/') => {
                write!(f, "file:{}", path.display())
            }
            Self::File(path) | Self::DevDax(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_and_show_the_same() {
        for (text, source) in [
            ("anon", RegionSource::Anon),
            ("shm:kv", RegionSource::Shm("kv".into())),
            ("/dev/dax0.1", RegionSource::DevDax("/dev/dax0.1".into())),
            ("/dev/daxless", RegionSource::File("/dev/daxless".into())),
            ("/dev/dax0.", RegionSource::File("/dev/dax0.".into())),
            ("./kv.region", RegionSource::File("./kv.region".into())),
            ("file:kv.region", RegionSource::File("kv.region".into())),
        ] {
            assert_eq!(text.parse(), Ok(source.clone()), "{text}");
            assert_eq!(source.to_string(), text);
        }
    }

    #[test]
    fn a_bare_word_is_asked_about() {
        for text in ["kv", "kv.region", "dax0.0"] {
            let said = text.parse::<RegionSource>().expect_err(text).to_string();
            assert!(said.contains(&format!("shm:{text}")) && said.contains(&format!("file:{text}")), "{said}");
        }
        for (text, path) in [("file:a/b", "a/b"), ("file:/a", "/a"), ("file:shm:x", "shm:x")] {
            assert_eq!(text.parse(), Ok(RegionSource::File(path.into())), "{text}");
        }
        assert_eq!("file:/dev/dax0.1".parse(), Ok(RegionSource::DevDax("/dev/dax0.1".into())));
        assert!("file:".parse::<RegionSource>().is_err());
    }

    #[test]
    fn a_shm_name_stays_in_its_directory() {
        let long = format!("shm:{}", "x".repeat(256));
        for text in ["", "shm:", "shm:..", "shm:.", "shm:a/b", "shm:../etc/passwd", "shm:a\0", long.as_str()] {
            assert!(text.parse::<RegionSource>().is_err(), "{text:?}");
        }
        assert!(RegionSource::Shm("../x".into()).check_name().is_err());
    }
}
