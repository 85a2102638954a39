//! What a process needs to ask peers, read once at its start: the setting `peers`, the key, and NIXL.

use crate::auth::Key;
use crate::beside::Beside;
use crate::nixl::{Nixl, NixlError};
use crate::remote::{ReadError, Remote};
use crate::settings::{ParseSettingsError, Settings};
use crate::share::connect;
use cenote_base::{Clock, Deadline};
use cenote_mem::Fabric;
use cenote_pool::Pool;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Environment variable with [`Settings`] as a text.
pub const PEERS_VARIABLE: &str = "CENOTE_PEERS";
/// Environment variable with the path of the key file.
pub const KEY_FILE_VARIABLE: &str = "CENOTE_PEER_KEY_FILE";
/// Environment variable with the path of NIXL's library.
pub const NIXL_VARIABLE: &str = "CENOTE_NIXL";

/// A process cannot ask peers as its settings say.
#[derive(Debug, Error)]
pub enum AccessError {
    /// The setting is no text of [`Settings`].
    #[error("peers: {0}")]
    Settings(#[from] ParseSettingsError),
    /// An environment variable is not UTF-8.
    #[error("{PEERS_VARIABLE} is not UTF-8; write HOST:PORT,HOST:PORT as in 10.0.0.2:7411")]
    Unicode,
    /// There is no key file.
    #[error("peers: they need a key; give peer_key_file, or set {KEY_FILE_VARIABLE}")]
    NoKey,
    /// The key file has no key, or cannot be read.
    #[error("peer key: {0}")]
    Key(io::Error),
    /// The library cannot be used.
    #[error(transparent)]
    Nixl(#[from] NixlError),
}

/// The settings of a process, of which the environment may have others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Text of [`Settings`]; an empty one: no peers, whatever the environment says.
    pub peers: Option<String>,
    /// File with the key.
    pub key_file: Option<PathBuf>,
    /// `libnixl_capi.so`; `None`: the dynamic linker looks for it.
    pub nixl: Option<PathBuf>,
}

impl Given {
    /// Takes from the environment what is not given.
    ///
    /// # Errors
    /// The text of the environment is not UTF-8.
    pub fn or_environment(self) -> Result<Self, AccessError> {
        self.or(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn or(self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, AccessError> {
        let peers = match self.peers {
            Some(text) => Some(text),
            None => {
                variable(PEERS_VARIABLE).map(OsString::into_string).transpose().map_err(|_| AccessError::Unicode)?
            }
        };
        let path = |name| variable(name).map(PathBuf::from);
        Ok(Self {
            peers,
            key_file: self.key_file.or_else(|| path(KEY_FILE_VARIABLE)),
            nixl: self.nixl.or_else(|| path(NIXL_VARIABLE)),
        })
    }

    /// Reads the key and opens NIXL; `None`: no peers are named.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn open(&self) -> Result<Option<Access>, AccessError> {
        let Some(text) = self.peers.as_deref().filter(|text| !text.trim().is_empty()) else { return Ok(None) };
        let settings = text.parse()?;
        let key_file = self.key_file.as_deref().ok_or(AccessError::NoKey)?;
        Access::open(settings, key_file, self.nixl.as_deref()).map(Some)
    }
}

/// Settings, key and transport of one process.
pub struct Access {
    settings: Settings,
    key: Key,
    nixl: Arc<Nixl>,
}

/// Number of the next agent of this process. NIXL's agents have names of their own.
static AGENTS: AtomicU64 = AtomicU64::new(0);

impl Access {
    /// Reads the key and opens NIXL's library. Connects to no peer.
    ///
    /// # Errors
    /// The key file has no key or is readable for other users, or the library is not there.
    pub fn open(settings: Settings, key_file: &Path, nixl: Option<&Path>) -> Result<Self, AccessError> {
        let key = Key::from_file(key_file).map_err(AccessError::Key)?;
        Ok(Self { settings, key, nixl: Nixl::open(nixl)? })
    }

    /// Asks the peers from now on for blocks that the pool lacks. They are connected to in the background:
    /// serving begins without them.
    #[must_use]
    pub fn start<F: Fabric + 'static>(self, pool: Pool<F>, clock: Clock) -> Arc<Beside<F>> {
        let Self { settings, key, nixl } = self;
        let seed = pool.superblock().config.seed;
        let connect = move |address: &str, deadline: Deadline| -> Result<Box<dyn Remote>, ReadError> {
            let name = format!("cenote-reader-{}-{}", std::process::id(), AGENTS.fetch_add(1, Ordering::Relaxed));
            connect(&nixl, address, &key, &seed, &name, deadline)
        };
        Beside::start(pool, &settings, connect, clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn given(peers: &str, key_file: Option<&Path>) -> Given {
        Given {
            peers: Some(peers.to_owned()),
            key_file: key_file.map(Path::to_owned),
            nixl: Some("/nowhere/libnixl_capi.so".into()),
        }
    }

    fn error_of(given: &Given) -> String {
        given.open().err().expect("it cannot be used").to_string()
    }

    #[test]
    fn what_is_given_counts_more_than_the_environment() {
        let variable = |name: &str| Some(OsString::from(format!("environment:{name}")));
        let own = given("a:1", Some("/k".as_ref()));
        assert_eq!(own.clone().or(variable).expect("UTF-8"), own);
        let all = Given::default().or(variable).expect("UTF-8");
        assert_eq!(all.peers.as_deref(), Some("environment:CENOTE_PEERS"));
        assert_eq!(all.key_file.as_deref(), Some(Path::new("environment:CENOTE_PEER_KEY_FILE")));
        assert_eq!(all.nixl.as_deref(), Some(Path::new("environment:CENOTE_NIXL")));
        let none = Given { peers: Some(String::new()), ..Given::default() }.or(variable).expect("UTF-8");
        assert!(none.open().expect("no peers").is_none(), "an empty text turns them off");
        assert!(Given::default().open().expect("no peers").is_none());
    }

    #[test]
    fn a_wrong_setting_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("key");
        fs::write(&key, "9".repeat(64)).expect("a file");
        let set_mode = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("it is ours");
        set_mode(0o600);
        assert!(error_of(&given("10.0.0.2", Some(&key))).contains("peers: `10.0.0.2` is neither HOST:PORT"));
        assert!(error_of(&given("a:1", None)).contains("CENOTE_PEER_KEY_FILE"));
        let library = error_of(&given("a:1", Some(&key)));
        assert!(library.contains("/nowhere/libnixl_capi.so") && library.contains("nixl-cu12"), "{library}");
        set_mode(0o644);
        let readable = error_of(&given("a:1", Some(&key)));
        assert!(readable.starts_with("peer key: ") && readable.contains("key"), "{readable}");
        let missing = error_of(&given("a:1", Some(&folder.path().join("none"))));
        assert!(missing.starts_with("peer key: ") && missing.contains("none"), "{missing}");
    }
}
