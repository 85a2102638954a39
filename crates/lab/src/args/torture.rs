//! Flags of `cenote-lab torture`.

use cenote_base::fault::Plan;
use cenote_base::units::ByteSize;
use cenote_console::args::{FlushArg, RegionArgs, WatchArgs, parse_flush, parse_seconds};
use cenote_console::output::OutputArgs;
use cenote_mem::RegionSource;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct TortureArgs {
    /// Number of processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    pub processes: u64,
    /// Duration in seconds
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_run)]
    pub seconds: f64,
    /// Instead of for a time, run until so many processes were killed; with several hosts, at least once
    /// all of one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub kills: Option<u64>,
    /// Instead of for a time, run until so many operations are done; with --kills, until both
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub operations: Option<u64>,
    /// Bytes of the region, which is removed at the end
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub size: ByteSize,
    /// Seed of operations and deaths; interleavings differ between runs
    #[arg(long, value_name = "K")]
    pub seed: Option<u64>,
    /// Emulated hosts, each with its own host memory
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub hosts: u8,
    /// Flush instruction as in `pool create` [default: none for one host, auto for several]
    #[arg(long, value_name = "INSTRUCTION", value_parser = parse_flush)]
    pub flush: Option<FlushArg>,
    /// Instead, kill writers of a cold tier so many times, and check every block that they left
    #[arg(long, value_name = "KILLS", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["processes", "seconds", "kills", "operations", "size", "hosts", "flush"])]
    pub cold: Option<u64>,
    /// Evict without looking for pins, until that is found; only in a build with assertions or with the
    /// feature `canary`
    #[arg(long, hide = true)]
    pub mistake: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct ColdFullChildArgs {
    /// A directory on a file system that is about to be full
    #[arg(long)]
    pub directory: PathBuf,
    #[arg(long)]
    pub repeat: u32,
}

#[derive(Args, Debug)]
pub struct ColdChildArgs {
    #[arg(long)]
    pub directory: PathBuf,
    #[arg(long)]
    pub seed: u64,
    #[arg(long)]
    pub life: u64,
}

fn parse_run(text: &str) -> Result<f64, String> {
    match parse_seconds(text)?.as_secs_f64() {
        seconds if (1.0..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("must be 1 to 1000000".to_owned()),
    }
}

#[derive(Args, Debug)]
pub struct TortureChildArgs {
    #[arg(long)]
    pub index: u64,
    #[arg(long)]
    pub seed: u64,
    #[arg(long)]
    pub ledger: RegionSource,
    #[arg(long)]
    pub fault: Option<Plan>,
    /// Stop there, instead of dying
    #[arg(long, requires = "fault")]
    pub stop: bool,
    #[arg(long)]
    pub mistake: bool,
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
}
