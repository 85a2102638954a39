//! The one setting of L4, the same text everywhere: a place, and what departs from the defaults, as
//! in `/var/cache/cenote,size=200GiB` or `s3://bucket/prefix,write=cold`.

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
    /// The URL names no object store that is known.
    #[error("`{0}` is no object store; write a directory, or a URL that begins with s3:, gs:, az: or file:")]
    Scheme(String),
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
        let mut parts = text.split(',').map(str::trim);
        let mut settings = Self { place: place(parts.next().unwrap_or_default())?, ..Self::directory("") };
        for part in parts {
            let wrong = || ParseSettingsError::Option(part.to_owned());
            match part.split_once('=').ok_or_else(wrong)? {
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

fn place(text: &str) -> Result<Place, ParseSettingsError> {
    match text.split_once("://") {
        _ if text.is_empty() => Err(ParseSettingsError::NoPlace),
        None if text.contains('/') => Ok(Place::Directory(text.into())),
        None => Err(ParseSettingsError::Bare(text.to_owned())),
        Some((scheme, _)) if SCHEMES.contains(&scheme) => Ok(Place::Objects(text.trim_end_matches('/').to_owned())),
        Some(_) => Err(ParseSettingsError::Scheme(text.to_owned())),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Objects(url) => f.write_str(url),
        }
    }
}

/// The text that parses to these settings.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = match self.write {
            WriteBehind::Published => "published",
            WriteBehind::Cold => "cold",
        };
        write!(f, "{},write={write},deadline={}", self.place, self.deadline.as_secs_f64())?;
        self.bytes.map_or(Ok(()), |bytes| write!(f, ",size={bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reads_as_it_is_shown() {
        for text in ["/var/cache/cenote", "./kv,size=2GiB", "s3://bucket/kv,write=cold", "file:///tmp/kv,deadline=0.25"]
        {
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
            ("ftp://host/kv", "ftp://host/kv"),
            ("kv", "./kv"),
            ("/kv,size=many", "size=many: `many` is not a size"),
            ("/kv,size=200GB", "units of 1000 or of 1024"),
            ("/kv,write=all", "write=all"),
            ("/kv,deadline=-1", "deadline=-1"),
            ("/kv,fast", "fast"),
            ("/kv,size=4KiB", "4 KiB"),
        ] {
            let error = text.parse::<Settings>().expect_err("it is wrong").to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
