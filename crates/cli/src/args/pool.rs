//! Flags of `cenote pool`.

use super::{NewRegionArgs, RegionArgs, host_slot, parse_seconds};
use crate::output::OutputArgs;
use cenote_base::units::ByteSize;
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub enum PoolCommands {
    /// Make a region and an empty pool in it
    Create(PoolCreateArgs),
    /// List the regions of this machine: size, memory, users, and what killed commands have left
    List(PoolListArgs),
    /// Tell what a region holds and who uses it, without joining
    Info(PoolArgs),
    /// Walk everything and report leaks and damage; exits with 2 if there are any
    ///
    /// Nothing is joined, locked or written, so it also serves when everybody is dead. Each finding comes with what it
    /// means and what repairs it.
    Check(PoolCheckArgs),
    /// Tell what happened last in a region and who did it, also when nobody who did lives
    History(PoolHistoryArgs),
    /// Tell which blocks a region has and follow which come and leave, a line of JSON each, without joining
    ///
    /// Whoever stores or evicts them, on whatever host. For routers that send a prompt to where it
    /// is warm: docs/guides/events.md.
    Events(PoolEventsArgs),
    /// Give back what nobody can use any more
    Gc(PoolArgs),
    /// Limit the bytes that a model's blocks may take in a region, over all hosts
    ///
    /// Who publishes over it evicts blocks of the same model on its own host first; if that does not suffice the block is
    /// not published, which `pool info` counts. Other hosts heed a new limit when they tick.
    Quota(PoolQuotaArgs),
    /// Name the facts in which two fingerprints differ, so that their engines share nothing
    Diff(PoolDiffArgs),
    /// Declare another host dead, which will not write again: its space is free for the others
    Fence(PoolFenceArgs),
    /// Grant locks between the hosts of a region made with `--hosts-lock manager`, until ended
    Manage(PoolManageArgs),
    /// Remove a region
    Destroy(PoolDestroyArgs),
}

#[derive(Args, Debug)]
pub struct PoolCreateArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub new: NewRegionArgs,
    /// Format a device (or an existing file) anew; everything in it is lost
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolListArgs {
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolCheckArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Check structures only, not every payload byte
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolQuotaArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The model: its name, its number, or how its fingerprint starts, as `pool info` has them
    #[arg(value_name = "NAMESPACE")]
    pub namespace: String,
    /// The limit, as in 2GiB; 0 lifts it
    #[arg(value_name = "BYTES")]
    pub bytes: ByteSize,
}

#[derive(Args, Debug)]
pub struct PoolDiffArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// A model: its name, its number, or how its fingerprint starts, as `pool info` has them; if not given, the newest
    #[arg(value_name = "NAMESPACE")]
    pub one: Option<String>,
    /// What to compare it with; if not given, every other model, the most alike first
    #[arg(value_name = "OTHER")]
    pub other: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolHistoryArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Only what this host recorded
    #[arg(id = "of_host", long = "host", value_name = "N", value_parser = host_slot())]
    pub host: Option<u8>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolEventsArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// End after so many seconds; 0 tells what is there and ends [default: at SIGINT or SIGTERM]
    #[arg(id = "for", long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "0.01", value_parser = parse_seconds)]
    pub every: Duration,
}

#[derive(Args, Debug)]
pub struct PoolFenceArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The slot of the host that is dead
    #[arg(long, value_name = "N", value_parser = host_slot())]
    pub dead_host: u8,
}

#[derive(Args, Debug)]
pub struct PoolManageArgs {
    #[command(flatten)]
    pub region: RegionArgs,
}

#[derive(Args, Debug)]
pub struct PoolDestroyArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Even if live processes use it, or it is not readable
    #[arg(long)]
    pub force: bool,
}
