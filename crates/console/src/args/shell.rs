//! Flags of `completions` and `man`.

use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// Flags of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// Flags of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Print the page of this command, as in `cenote man pool create`
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub command: Vec<String>,
    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
