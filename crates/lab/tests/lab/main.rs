//! The `cenote-lab` binary as users run it: real processes, real regions.

mod bench;
mod codecs;
mod hosts;
mod plan;
mod sim;
#[path = "../../../cli/tests/cli/support/mod.rs"]
mod support;
mod torture;
mod two_worlds;
mod words;
