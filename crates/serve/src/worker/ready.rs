//! Contact between a parent and its worker: the secret in the environment, the port on stdout, and
//! a stdin that ends when the parent is gone.

use crate::random;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

/// The secret that a front and its workers share; drawn at every start.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerToken(Arc<str>);

impl WorkerToken {
    /// Environment variable with the token. Other users can read arguments, but not the
    /// environment.
    pub const ENVIRONMENT: &str = "CENOTE_WORKER_TOKEN";

    /// A new secret.
    ///
    /// # Errors
    /// The system's generator cannot be read.
    pub fn draw() -> io::Result<Self> {
        Ok(Self(random::secret()?.into()))
    }

    /// The token from the parent.
    ///
    /// # Errors
    /// There is none: this process was not started as a worker.
    pub fn from_environment() -> io::Result<Self> {
        match std::env::var(Self::ENVIRONMENT) {
            Ok(token) if !token.is_empty() => Ok(Self(token.into())),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{}: not set; workers are started by their front", Self::ENVIRONMENT),
            )),
        }
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a caller sent the secret.
    #[must_use]
    pub fn matches(&self, given: &[u8]) -> bool {
        random::secrets_equal(given, self.0.as_bytes())
    }
}

impl fmt::Debug for WorkerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerToken(…)")
    }
}

/// The line that a worker prints when it is ready: `{"ready":{"port":N,"pid":P}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Loopback port.
    pub port: u16,
    /// Process id.
    pub pid: u32,
}

#[derive(Serialize, Deserialize)]
struct Line {
    ready: Ready,
}

impl Ready {
    /// The line, without its end.
    #[must_use]
    pub fn to_line(self) -> String {
        format!(r#"{{"ready":{{"port":{},"pid":{}}}}}"#, self.port, self.pid)
    }

    /// Parses a line.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str::<Line>(line.trim()).ok().map(|line| line.ready)
    }
}

/// Resolves when the parent is gone: it holds the other end of this process's stdin and never
/// writes. This detects a SIGKILL too, because the kernel closes the pipe.
pub async fn parent_gone() {
    let (gone, told) = tokio::sync::oneshot::channel();
    // In a thread of its own, because the runtime could not end while one of its threads waited in
    // `read`.
    let watching = std::thread::Builder::new().name("parent-watch".to_owned()).spawn(move || {
        let mut scratch = [0_u8; 64];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut scratch) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
        let _ = gone.send(());
    });
    match watching {
        Ok(_) => {
            let _ = told.await;
        }
        Err(error) => {
            tracing::error!(%error, "no thread to watch the parent; only its signals will end this worker");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines_round_trip_and_others_are_ignored() {
        let ready = Ready { port: 4711, pid: 12 };
        assert_eq!(Ready::from_line(&ready.to_line()), Some(ready));
        assert_eq!(Ready::from_line(r#"{"ready":{"port":70000,"pid":1}}"#), None);
        assert_eq!(Ready::from_line("loading the model"), None);
    }

    #[test]
    fn a_token_does_not_show_itself() {
        let token = WorkerToken::draw().expect("the system has a generator");
        assert!(!format!("{token:?}").contains(token.expose()));
        assert!(token.matches(token.expose().as_bytes()));
        assert!(!token.matches(b"guess"));
    }
}
