//! The `cenote-lab` binary as users run it: real processes, real regions.
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod bench;
#[allow(dead_code, reason = "two test binaries share it")]
#[path = "../../../cli/tests/cli/browser.rs"]
mod browser;
mod codecs;
mod hosts;
mod papers_page;
mod plan;
mod sessions;
mod sim;
mod soak;
#[path = "../../../cli/tests/cli/support/mod.rs"]
mod support;
mod torture;
mod two_worlds;
mod words;
