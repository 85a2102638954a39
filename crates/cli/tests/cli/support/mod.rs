//! Shared by the tests: processes, regions, a client, and deadlines.
#![allow(dead_code, reason = "two test binaries share it")]

pub mod client;
pub mod help;
pub mod process;
pub mod region;

use cenote_base::TokenId;
use cenote_base::prng::Prng;
pub use cenote_base::testing::PATIENCE;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for the end of a command. Some compute for half a minute of processor time, which
/// a machine with other work gives them slowly.
const COMMAND_PATIENCE: Duration = PATIENCE.saturating_mul(10);

/// Pause between two polls.
const PACE: Duration = Duration::from_millis(20);

/// Name under which the demo model is served: its directory's.
pub const MODEL: &str = "demo";

/// A path of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Awaits with the tests' deadline.
pub async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    within(PATIENCE, what, wait).await
}

/// Awaits the end of a command.
pub async fn ends<T>(command: &str, wait: impl Future<Output = T>) -> T {
    within(COMMAND_PATIENCE, command, wait).await
}

async fn within<T>(patience: Duration, what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience, wait).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// Polls until there is an answer, with the tests' deadline.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let mut pace = tokio::time::interval(PACE);
    let answered = async {
        loop {
            pace.tick().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    };
    soon(what, answered).await
}

/// Tokens that any test model has, drawn from `seed`; other seeds share no prefix.
pub fn tokens(seed: u64, length: usize) -> Vec<TokenId> {
    let mut prng = Prng::new(seed);
    (0..length).map(|_| 100 + prng.below(3000) as TokenId).collect()
}

/// Prints to stderr past the harness's capture, so that a skip is visible.
pub fn say(words: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{words}");
}
