//! The URL of a Redis or Valkey server or cluster, as in `rediss://user:password@host:6380/0?ttl=3600`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Port without one in the URL.
const PORT: u16 = 6379;
/// Most hosts of a URL, and most bytes of a prefix.
const HOSTS_MAX: usize = 64;
const PREFIX_MAX: usize = 64;

/// Schemes, as the clients of both servers know them: whether TLS is used, and whether it is a cluster.
const SCHEMES: [(&str, bool, bool); 8] = [
    ("redis", false, false),
    ("valkey", false, false),
    ("rediss", true, false),
    ("valkeys", true, false),
    ("redis-cluster", false, true),
    ("valkey-cluster", false, true),
    ("rediss-cluster", true, true),
    ("valkeys-cluster", true, true),
];
/// Schemes of a server behind a socket of this machine.
const UNIX: [&str; 2] = ["redis+unix", "valkey+unix"];

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listener {
    /// Hosts with ports; a cluster may have several, of which one that answers is enough.
    Hosts(Vec<(String, u16)>),
    /// A socket of this machine.
    Unix(PathBuf),
}

/// A server or cluster, and how Cenote uses it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The URL as it was given, with its password.
    text: String,
    /// Where it listens.
    pub listener: Listener,
    /// Connections use TLS.
    pub has_tls: bool,
    /// It is a cluster: keys have nodes.
    pub is_cluster: bool,
    /// User; `None`: that of the variable `REDIS_USERNAME`, or the server's default.
    pub user: Option<String>,
    /// Password; `None`: that of the variable `REDIS_PASSWORD`, or none.
    pub password: Option<String>,
    /// Number of the database.
    pub database: u32,
    /// Time after which the server drops a block; `None`: never.
    pub ttl: Option<Duration>,
    /// Begin of all keys, empty or with a colon at its end.
    pub prefix: String,
}

/// The text is no URL of a server. The message quotes no part of it: without an `@` each may be one of a
/// password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{what}; write redis://[USER:PASSWORD@]HOST[:PORT][/DB], with rediss: for TLS and redis-cluster: for a cluster"
)]
pub struct ParseAddressError {
    what: String,
}

impl Address {
    /// Whether a URL with this scheme is one of a server.
    #[must_use]
    pub fn knows(scheme: &str) -> bool {
        UNIX.contains(&scheme) || SCHEMES.iter().any(|(known, ..)| *known == scheme)
    }

    /// The URL with its password.
    #[must_use]
    pub fn secret_text(&self) -> &str {
        &self.text
    }
}

/// Without user and password, for logs and messages.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.text.split_once("://").unwrap_or_default();
        write!(f, "{scheme}://{}", split_secrets(rest).1)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (secrets, rest) = split_secrets(rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Self {
            text: text.to_owned(),
            listener: Listener::Hosts(Vec::new()),
            has_tls: false,
            is_cluster: false,
            user: None,
            password: None,
            database: 0,
            ttl: None,
            prefix: String::new(),
        };
        if let Some(secrets) = secrets {
            let (user, password) = secrets.split_once(':').unwrap_or((secrets, ""));
            let decoded = |text: &str| if text.is_empty() { Ok(None) } else { unescape(text).map(Some) };
            (address.user, address.password) = (decoded(user)?, decoded(password)?);
        }
        if let Some((_, has_tls, is_cluster)) = SCHEMES.iter().find(|(known, ..)| *known == scheme) {
            let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
            (address.has_tls, address.is_cluster) = (*has_tls, *is_cluster);
            address.listener = Listener::Hosts(hosts.split(',').map(host).collect::<Result<_, _>>()?);
            address.set_database(database)?;
        } else if UNIX.contains(&scheme) && rest.starts_with('/') {
            address.listener = Listener::Unix(unescape(rest)?.into());
        } else {
            return Err(wrong("it is no server's URL"));
        }
        for option in query.split('&').filter(|option| !option.is_empty()) {
            address.set(option)?;
        }
        address.checked()
    }
}

impl Address {
    fn set_database(&mut self, text: &str) -> Result<(), ParseAddressError> {
        if !text.is_empty() {
            self.database = text.parse().map_err(|_| wrong("the database is no number"))?;
        }
        Ok(())
    }

    fn set(&mut self, option: &str) -> Result<(), ParseAddressError> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("cluster", "true") => self.is_cluster = true,
            ("cluster", "false") => {}
            ("cluster", _) => return Err(wrong("`cluster` is true or false")),
            ("ttl", seconds) => {
                let seconds = seconds.parse().ok().filter(|seconds| (1..=u64::from(u32::MAX)).contains(seconds));
                let seconds = seconds.ok_or_else(|| wrong(format!("`ttl` is 1 to {} seconds", u32::MAX)))?;
                self.ttl = Some(Duration::from_secs(seconds));
            }
            ("prefix", name) => {
                // Braces would put all blocks into one slot of a cluster; the rest could end a log line.
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
                if name.is_empty() || name.len() > PREFIX_MAX || !name.bytes().all(is_plain) {
                    return Err(wrong(format!("`prefix` has 1 to {PREFIX_MAX} letters, digits and signs of `_.:-`")));
                }
                self.prefix = format!("{name}:");
            }
            ("db", number) => self.set_database(number)?,
            _ => {
                return Err(wrong("it has an unknown option; write cluster=true, ttl=SECONDS, prefix=NAME or db=DB"));
            }
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, ParseAddressError> {
        match &self.listener {
            Listener::Unix(_) if self.is_cluster => Err(wrong("a cluster's nodes have hosts and ports")),
            Listener::Hosts(hosts) if hosts.len() > HOSTS_MAX => Err(wrong("it has too many hosts")),
            Listener::Hosts(hosts) if hosts.len() > 1 && !self.is_cluster => {
                Err(wrong("only a cluster has several hosts"))
            }
            Listener::Hosts(_) if self.is_cluster && self.database != 0 => Err(wrong("a cluster has database 0 alone")),
            _ => Ok(self),
        }
    }
}

fn wrong(what: impl Into<String>) -> ParseAddressError {
    ParseAddressError { what: what.into() }
}

/// User and password, which end at the last `@`, and the rest. Behind them no part has an `@`, so that those
/// of a password that is not escaped end nothing.
fn split_secrets(text: &str) -> (Option<&str>, &str) {
    text.rsplit_once('@').map_or((None, text), |(secrets, rest)| (Some(secrets), rest))
}

/// A host and its port; IPv6 addresses have brackets.
fn host(text: &str) -> Result<(String, u16), ParseAddressError> {
    let bad = || wrong("it has no host, or a host with a wrong name or port");
    let (name, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(bad)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| bad())?,
        None if rest.is_empty() => PORT,
        None => return Err(bad()),
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-%".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_host) { Err(bad()) } else { Ok((name.to_owned(), port)) }
}

/// Percent signs and two digits become the byte that they name.
fn unescape(text: &str) -> Result<String, ParseAddressError> {
    let bad = || wrong("a percent sign in a URL stands before two hexadecimal digits");
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let mut byte = [0];
            hex::decode_to_slice(after.get(..2).ok_or_else(bad)?, &mut byte).map_err(|_| bad())?;
            bytes.extend(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_url_names_hosts_secrets_and_options() {
        let plain = address("redis://cache");
        assert!(plain.listener == Listener::Hosts(vec![("cache".to_owned(), PORT)]) && !plain.has_tls);
        let full = address("rediss://me:p%40ss%2f@[::1]:7000/3?ttl=60&prefix=team-a");
        assert!(full.listener == Listener::Hosts(vec![("::1".to_owned(), 7000)]) && full.has_tls);
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("me"), Some("p@ss/")));
        assert_eq!((full.database, full.ttl, &*full.prefix), (3, Some(Duration::from_secs(60)), "team-a:"));
        for cluster in ["redis-cluster://a:1,b:2", "valkey-cluster://a:1,b:2", "redis://a:1,b:2?cluster=true"] {
            let cluster = address(cluster);
            assert!(cluster.is_cluster);
            assert!(cluster.listener == Listener::Hosts(vec![("a".to_owned(), 1), ("b".to_owned(), 2)]));
        }
        assert!(address("redis+unix:///run/redis.sock?db=2").listener == Listener::Unix("/run/redis.sock".into()));
    }

    #[test]
    fn a_wrong_url_is_refused_with_its_fault() {
        for (text, part) in [
            ("redis://", "no host"),
            ("redis://host:port", "wrong name or port"),
            ("redis://a,b", "several hosts"),
            ("redis://a/x", "database is no number"),
            ("redis-cluster://a/1", "database 0"),
            ("redis://a?ttl=0", "`ttl` is 1 to"),
            ("redis://a?fast=1", "unknown option"),
            ("redis://a?prefix={one}", "`prefix` has"),
            ("redis://:%zz@a", "percent"),
            ("redis+unix://host", "no server's URL"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Errors and logs name the place.
    #[test]
    fn a_password_is_not_shown() {
        let address = address("redis://me:secret@host:1/2?ttl=5");
        assert_eq!(address.to_string(), "redis://host:1/2?ttl=5");
        assert!(!format!("{address:?}").contains("secret") && address.secret_text().contains("secret"));
        for text in [
            "redis://me:s3cret@host:x",
            "redis://:s3cret",
            "redis://me:s3cret/0",
            "redis://:a/s3cret",
            "redis://:a?s3cret",
            "redis://:a?ttl=s3cret",
            "redis://:a?prefix=s3cret!",
            "redis://:a?db=s3cret",
            "redis://:%s3cret@h",
            "redis-sentinel://:s3cret@h",
            "redis+unix://:s3cret@h",
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(!error.contains("s3cret"), "{text}: {error}");
        }
        for (text, password) in [("redis://:s3cr?t@h", "s3cr?t"), ("redis://:a/b@c@h?ttl=5", "a/b@c")] {
            let address = self::address(text);
            assert!(address.password.as_deref() == Some(password) && !address.to_string().contains(password));
            assert!(address.listener == Listener::Hosts(vec![("h".to_owned(), PORT)]), "{text}");
        }
    }
}
