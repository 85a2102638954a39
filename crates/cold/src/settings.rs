//! The one setting of L4, the same text everywhere: a place, and what departs from the defaults, as
//! in `/var/cache/cenote,size=200GiB` or `s3://bucket/prefix,write=cold`.

use crate::address::{Address, ParseAddressError};
use crate::sums::Sealing;
use cenote_base::units::{ByteSize, ParseByteSizeError};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Limit of a new place's bytes without a wanted one.
pub const DEFAULT_BYTES: u64 = 64 << 30;
/// Smallest limit.
const BYTES_MIN: u64 = 1 << 20;
/// Default time that a request waits for blocks.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(2);

/// Schemes of object stores.
const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file"];

/// Where blocks lie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Extent files in a directory of a local disk.
    Directory(PathBuf),
    /// Objects below a URL of an object store.
    Objects(String),
    /// Keys of a Redis or Valkey server or cluster.
    Server(Address),
}

/// Which blocks are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBehind {
    /// Every published block, right after it is published.
    #[default]
    Published,
    /// Blocks of the region's coldest chunks, when the region has no free space.
    Cold,
}

/// A place and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where blocks lie.
    pub place: Place,
    /// Wanted limit of their bytes, with headers and padding. It makes the limit that lies in the place
    /// larger, never smaller. `None`: what lies there, or [`DEFAULT_BYTES`] for a new place.
    pub bytes: Option<u64>,
    /// Which blocks are written.
    pub write: WriteBehind,
    /// Longest time that a request waits for blocks.
    pub deadline: Duration,
    /// The seal of the region above, which the place has as well. It is no part of the text, because
    /// keys are none.
    pub seal: Sealing,
}

/// The text is no setting of L4.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ParseSettingsError {
    /// There is no place.
    #[error("the place is missing; write a directory or a URL, as in /var/cache/cenote,size=200GiB")]
    NoPlace,
    /// A word may be a typing error, and must not make a directory.
    #[error("`{0}` is no place; write ./{0} for a directory here, or a URL")]
    Bare(String),
    /// The URL's scheme is none of an object store or server that is known.
    #[error(
        "`{0}:` is no object store and no server; write a directory, or a URL that begins with s3:, gs:, az:, file:, \
         redis: or valkey:"
    )]
    Scheme(String),
    /// The URL names no server.
    #[error(transparent)]
    Address(#[from] ParseAddressError),
    /// The limit is the server's own.
    #[error("size: a Redis or Valkey server has its own limit; set its `maxmemory` and `maxmemory-policy` instead")]
    SizeOfServer,
    /// An option is unknown or has a wrong value.
    #[error("`{0}` is no option; write size=SIZE, write=published, write=cold or deadline=SECONDS")]
    Option(String),
    /// An option's size is none.
    #[error("{0}: {1}")]
    Bytes(String, ParseByteSizeError),
    /// The limit is too small.
    #[error("a size of {} is too small; give at least {}", ByteSize(*.0), ByteSize(BYTES_MIN))]
    Size(u64),
}

impl Settings {
    /// The defaults for a directory.
    #[must_use]
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self {
            place: Place::Directory(path.into()),
            bytes: None,
            write: WriteBehind::default(),
            deadline: DEFAULT_DEADLINE,
            seal: None,
        }
    }
}

impl FromStr for Settings {
    type Err = ParseSettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, parts) = split(text);
        let mut settings = Self { place: place(first)?, ..Self::directory("") };
        for part in parts {
            let wrong = || ParseSettingsError::Option(shown(part, &settings.place));
            match part.split_once('=').ok_or_else(wrong)? {
                ("size", _) if matches!(settings.place, Place::Server(_)) => {
                    return Err(ParseSettingsError::SizeOfServer);
                }
                ("size", size) => {
                    let bytes: Result<ByteSize, _> = size.parse();
                    settings.bytes = Some(bytes.map_err(|error| ParseSettingsError::Bytes(part.to_owned(), error))?.0);
                }
                ("write", "published") => settings.write = WriteBehind::Published,
                ("write", "cold") => settings.write = WriteBehind::Cold,
                ("deadline", seconds) => {
                    let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
                    settings.deadline = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
                    // Nothing arrives without time.
                    if settings.deadline.is_zero() {
                        return Err(wrong());
                    }
                }
                _ => return Err(wrong()),
            }
        }
        if let Some(bytes) = settings.bytes {
            check_size(bytes)?;
        }
        Ok(settings)
    }
}

/// Refuses a limit that is too small to be meant.
///
/// # Errors
/// It is.
pub const fn check_size(bytes: u64) -> Result<(), ParseSettingsError> {
    if bytes < BYTES_MIN { Err(ParseSettingsError::Size(bytes)) } else { Ok(()) }
}

/// The place, and the options behind it. Hosts of a cluster have commas between them, too, and a password may
/// have one.
fn split(text: &str) -> (&str, impl Iterator<Item = &str>) {
    let is_server = text.split_once("://").is_some_and(|(scheme, _)| Address::knows(scheme));
    let begin = if is_server { text.rfind('@').unwrap_or(0) } else { 0 };
    let is_option =
        |part: &str| part.split_once('=').is_some_and(|(name, _)| name.bytes().all(|at| at.is_ascii_lowercase()));
    let commas = text[begin..].match_indices(',').map(|(at, _)| begin + at);
    let end = commas
        .into_iter()
        .find(|&at| !is_server || is_option(text[at + 1..].split(',').next().unwrap_or_default().trim()));
    let (first, rest) = text.split_at(end.unwrap_or(text.len()));
    (first.trim(), rest.split(',').skip(1).map(str::trim))
}

fn place(text: &str) -> Result<Place, ParseSettingsError> {
    // Only the scheme is shown: the rest may hold a password.
    let scheme = || ParseSettingsError::Scheme(text.split_once(':').map_or("", |(scheme, _)| scheme).to_owned());
    match text.split_once("://") {
        _ if text.is_empty() => Err(ParseSettingsError::NoPlace),
        None if text.contains('/') => Ok(Place::Directory(text.into())),
        None if text.contains([':', '@']) => Err(scheme()),
        None => Err(ParseSettingsError::Bare(text.to_owned())),
        Some((scheme, _)) if Address::knows(scheme) => Ok(Place::Server(text.parse()?)),
        Some((scheme, _)) if SCHEMES.contains(&scheme) => Ok(Place::Objects(text.trim_end_matches('/').to_owned())),
        Some(_) => Err(scheme()),
    }
}

/// The part of an option that a message shows. Behind a server's URL without an `@` it may be one of a
/// password, and then only a known name is shown.
fn shown(part: &str, place: &Place) -> String {
    let name = part.split_once('=').map_or("", |(name, _)| name);
    match place {
        Place::Server(_) if ["size", "write", "deadline"].contains(&name) => name.to_owned(),
        Place::Server(_) => "a part behind the URL".to_owned(),
        _ => part.to_owned(),
    }
}

/// Without a password, for logs and messages.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Objects(url) => f.write_str(url),
            Self::Server(address) => address.fmt(f),
        }
    }
}

/// The text that parses to these settings, with the password of a server: for another process, not for a
/// log.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = match self.write {
            WriteBehind::Published => "published",
            WriteBehind::Cold => "cold",
        };
        match &self.place {
            Place::Server(address) => f.write_str(address.secret_text())?,
            place => place.fmt(f)?,
        }
        write!(f, ",write={write},deadline={}", self.deadline.as_secs_f64())?;
        self.bytes.map_or(Ok(()), |bytes| write!(f, ",size={bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reads_as_it_is_shown() {
        for text in [
            "/var/cache/cenote",
            "./kv,size=2GiB",
            "s3://bucket/kv,write=cold",
            "file:///tmp/kv,deadline=0.25",
            "redis://me:secret@cache:6380/2?ttl=60,write=cold",
            "redis-cluster://a:1,b:2,c?ttl=60,deadline=0.5",
        ] {
            let settings: Settings = text.parse().expect("a setting");
            assert_eq!(settings.to_string().parse(), Ok(settings), "{text}");
        }
        let settings: Settings = "./kv,size=2GiB,write=cold,deadline=0.5".parse().expect("a setting");
        assert_eq!((settings.bytes, settings.write), (Some(2 << 30), WriteBehind::Cold));
        assert_eq!((settings.place, settings.deadline.as_millis()), (Place::Directory("./kv".into()), 500));
    }

    #[test]
    fn a_wrong_setting_names_its_part() {
        for (text, part) in [
            ("", "missing"),
            ("ftp://host/kv", "`ftp:`"),
            ("kv", "./kv"),
            ("/kv,size=many", "size=many: `many` is not a size"),
            ("/kv,size=200GB", "units of 1000 or of 1024"),
            ("/kv,write=all", "write=all"),
            ("/kv,deadline=-1", "deadline=-1"),
            ("/kv,fast", "fast"),
            ("redis://cache,size=2GiB", "maxmemory"),
            ("redis://cache/db", "database is no number"),
            ("/kv,size=4KiB", "4 KiB"),
        ] {
            let error = text.parse::<Settings>().expect_err("it is wrong").to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_is_in_no_message() {
        for text in [
            "redis://:s3cret@h:x",
            "redis://:a,b=s3cret@h,ttl=5",
            "redis://:a,size=s3cret@h,size=1GiB",
            "redis://:a,b=s3cret",
            "redis://h,ab=s3cret",
            "redis://h,deadline=s3cret",
            "redis://h,size=s3cret",
            "redis-sentinel://:s3cret@h",
            "Redis://:s3cret@h",
            "Redis://:a,b=s3cret@h",
            "redis:s3cret@h",
            "me@s3cret",
        ] {
            let error = text.parse::<Settings>().expect_err(text);
            assert!(!error.to_string().contains("s3cret"), "{text}: {error}");
        }
        let settings: Settings = "redis://:a,b=c@h,deadline=5".parse().expect("a setting");
        let Place::Server(address) = &settings.place else { panic!("a server") };
        assert_eq!((address.password.as_deref(), settings.deadline.as_secs()), (Some("a,b=c"), 5));
        assert_eq!(settings.place.to_string(), "redis://h");
        assert_eq!(settings.to_string().parse(), Ok(settings));
    }
}
