//! Flags of `cenote pool`.

use cenote_base::seal::Seal;
use cenote_base::units::ByteSize;
use cenote_console::args::{KeyArgs, NewRegionArgs, RegionArgs, host_slot, parse_mode, parse_seal, parse_seconds};
use cenote_console::failure::Failure;
use cenote_console::output::OutputArgs;
use cenote_pool::{Eviction, Maker};
use cenote_store::cold::Settings;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub enum PoolCommands {
    /// Create a region with an empty pool
    Create(PoolCreateArgs),
    /// List the regions of this machine: size, memory, users, orphans of killed commands
    List(PoolListArgs),
    /// Show the contents, users and counters of a region, without attaching
    Info(PoolArgs),
    /// Print a region's gauges and counters for Prometheus, or serve them at /metrics
    ///
    /// Looks from outside, so it needs no engine and no key, and works on a region without live
    /// processes: docs/guides/metrics.md.
    Metrics(PoolMetricsArgs),
    /// Check a region for leaks and damage; exits with 2 if there are any
    ///
    /// Attaches, locks and writes nothing, so it works on a region without live processes. Each
    /// finding states its consequence and its repair.
    Check(PoolCheckArgs),
    /// Show a region's last events: attaches, deaths, repaired locks, adopted chunks
    History(PoolHistoryArgs),
    /// List the blocks of a region and follow stores and evictions, one line of JSON each
    ///
    /// Covers all hosts, without attaching. Routers use it to send a prompt to a worker that has
    /// its prefix: docs/guides/events.md.
    Events(PoolEventsArgs),
    /// Free what dead processes left half done and blocks that no lookup can find
    ///
    /// Memory that programs allocated outlives them on purpose; `pool info` lists it by worker.
    Gc(PoolGcArgs),
    /// Limit the bytes of a model's blocks in a region, over all hosts
    ///
    /// A publisher over the limit first evicts blocks of the same model on its own host. If that
    /// does not suffice, the block is not published, which `pool info` counts. Other hosts apply a
    /// new limit at their next tick.
    Quota(PoolQuotaArgs),
    /// Let the processes of a sealed region use another key
    ///
    /// The first key of the file seals from then on in processes that start with this file; the others
    /// still open older blocks. docs/guides/seals.md has the steps.
    Rotate(PoolRotateArgs),
    /// Show what a cold tier holds, and change its limit
    ///
    /// The limit lies in the place. A larger `size=` of a process makes it larger; only this command
    /// makes it smaller, which removes the oldest blocks: docs/guides/cold.md.
    Cold(PoolColdArgs),
    /// Show why two models or engines share no blocks: the facts in which their fingerprints differ
    Diff(PoolDiffArgs),
    /// Show which blocks of a prompt are in a region, and why the others are not
    ///
    /// Looks from outside, so it needs no engine and no key, and works on a region without live
    /// processes. It computes the names that `cenote serve`, `generate` and the Python package give to
    /// blocks of tokens. With --request it begins with what a log says of a request:
    /// docs/guides/operate.md#one-request.
    Explain(PoolExplainArgs),
    /// Show what hit rate and TTFT the region would have had with other sizes and eviction policies
    ///
    /// Replays a bounded, sampled record of the last requests, without attaching, and states the error of
    /// the sample: docs/guides/operate.md#what-if.
    Whatif(PoolWhatifArgs),
    /// Declare another host dead, so that other hosts recover its space; it must not write again
    Fence(PoolFenceArgs),
    /// Grant locks between hosts, for a region created with `--hosts-lock manager`
    Manage(PoolManageArgs),
    /// Let other hosts read a region: a process that registers it with NIXL and does nothing else
    ///
    /// Hosts with the key find and read its blocks without a processor of this host, if `cenote serve` has
    /// this address among its peers: docs/guides/reach.md says what else they can do. It goes on until
    /// SIGINT or SIGTERM, and follows a region that is removed and made anew.
    Share(PoolShareArgs),
    /// The process of `pool share` that holds the region's memory
    #[command(hide = true)]
    ShareMemory(PoolShareMemoryArgs),
    /// Save a region's blocks, models and objects to a file
    ///
    /// The region may be in use. `cenote pool restore` brings it back, also on another machine:
    /// docs/guides/cold.md.
    Snapshot(PoolSnapshotArgs),
    /// Create a region from a file that `cenote pool snapshot` wrote
    ///
    /// The new region has the settings and the hash seed of the old one, so engines find its blocks
    /// under the same names. Damaged parts of the file are left out and counted. If it is killed, the
    /// region says that it is being restored, and the same command goes on.
    Restore(PoolRestoreArgs),
    /// Remove a region
    Destroy(PoolDestroyArgs),
}

#[derive(Args, Debug)]
pub struct PoolCreateArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    #[command(flatten)]
    pub new: NewRegionArgs,
    /// Format an existing device or file; its content is lost
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Also show what this cold tier holds: a disk directory, an object store or a Redis server
    /// (docs/guides/cold.md)
    #[arg(long, value_name = "PLACE", env = "CENOTE_COLD", hide_env_values = true)]
    pub cold: Option<Settings>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolGcArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Also free memory without a name that this dead worker allocated, or `dead` for all of them;
    /// living processes may use it
    #[arg(long, value_name = "WORKER", value_parser = memory_of)]
    pub free_memory: Option<MemoryOf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The workers that allocated the memory to free.
#[derive(Clone, Copy, Debug)]
pub enum MemoryOf {
    AllDead,
    Worker(Maker),
}

fn memory_of(text: &str) -> Result<MemoryOf, String> {
    if text == "dead" { Ok(MemoryOf::AllDead) } else { text.parse().map(MemoryOf::Worker) }
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
    /// Check structures only, not the checksums of payloads
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolRotateArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Refuse processes with older keys from now on
    #[arg(long)]
    pub only: bool,
}

#[derive(Args, Debug)]
pub struct PoolQuotaArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The model: its name, its number, or a prefix of its fingerprint, as in `pool info`
    #[arg(value_name = "NAMESPACE")]
    pub namespace: String,
    /// The limit, as in 2GiB; 0 lifts it
    #[arg(value_name = "BYTES", required_unless_present = "keep")]
    pub bytes: Option<ByteSize>,
    /// Bytes that stay with the model while others need room; 0: none
    #[arg(long, value_name = "BYTES")]
    pub keep: Option<ByteSize>,
}

#[derive(Args, Debug)]
pub struct PoolColdArgs {
    /// The cold tier: a disk directory, an object store or a Redis server, as for `cenote serve`
    #[arg(long, value_name = "PLACE", env = "CENOTE_COLD", hide_env_values = true)]
    pub cold: Settings,
    /// The new limit of its bytes, as in 200GiB
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// How the place is sealed: none, mac or encrypt
    #[arg(long, value_name = "SEAL", env = "CENOTE_SEAL", default_value = "none", value_parser = parse_seal)]
    pub seal: Seal,
    #[command(flatten)]
    pub keys: KeyArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl PoolColdArgs {
    /// The place with its seal.
    pub fn settings(&self) -> Result<Settings, Failure> {
        if self.seal == Seal::None {
            return Ok(self.cold.clone());
        }
        let no_key = || Failure::new(format!("--seal {} needs a key", self.seal)).hint("give --seal-key-file");
        let keys = self.keys.read()?.ok_or_else(no_key)?;
        Ok(Settings { seal: Some((self.seal, keys)), ..self.cold.clone() })
    }
}

#[derive(Args, Debug)]
pub struct PoolDiffArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// A model: its name, its number, or a prefix of its fingerprint, as in `pool info` [default:
    /// the newest]
    #[arg(value_name = "NAMESPACE")]
    pub one: Option<String>,
    /// The model to compare with [default: all others, the most similar first]
    #[arg(value_name = "OTHER")]
    pub other: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct PoolExplainArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// A model of the region: its name, its number, or a prefix of its fingerprint, as in `pool info`
    /// [default: the one with the highest number]
    #[arg(long, value_name = "NAMESPACE")]
    pub model: Option<String>,
    /// A file with the prompt's token numbers, separated by spaces, commas or lines, as a JSON list too;
    /// `-`: standard input
    #[arg(long, value_name = "FILE", group = "what")]
    pub tokens: Option<PathBuf>,
    /// A file with the prompt's text, for the tokenizer of --tokenizer; `-`: standard input
    #[arg(long, value_name = "FILE", group = "what", requires = "tokenizer")]
    pub prompt: Option<PathBuf>,
    /// A model's folder, for its tokenizer
    #[arg(long, value_name = "FOLDER")]
    pub tokenizer: Option<PathBuf>,
    /// A file with the names of blocks, a line of 32 hex digits each, as events and logs print them
    #[arg(long, value_name = "FILE", group = "what")]
    pub names: Option<PathBuf>,
    /// A request's id, as its answer and logs have it: what a log of misses says of it, and what became
    /// of its first missing block since
    #[arg(
        long,
        value_name = "ID",
        group = "what",
        requires = "log_file",
        conflicts_with = "model",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub request: Option<String>,
    /// A log of `cenote serve --log-misses`, or of vLLM with the connector's `log_misses`; `-`: standard
    /// input
    #[arg(long, value_name = "FILE", requires = "request")]
    pub log_file: Option<PathBuf>,
    /// The request's `cache_salt`
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["names", "request"])]
    pub cache_salt: Option<String>,
    /// The salt of the request's API key
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["names", "request"])]
    pub key_salt: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolWhatifArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Sizes to replay, as factors of the region's
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0.5,1,2,4", value_parser = factor)]
    pub sizes: Vec<f64>,
    /// Eviction policies to replay: lru, sieve, s3-fifo or cost-aware [default: all]
    #[arg(long, value_name = "POLICY,POLICY", value_delimiter = ',')]
    pub policies: Vec<Eviction>,
    /// Size of the cold tier, as in 200GiB [default: it keeps all blocks that were ever computed]
    #[arg(long, value_name = "SIZE")]
    pub cold_size: Option<ByteSize>,
    /// Percent of the blocks asked for, from the first request on, that only fill the caches
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=90))]
    pub warm: u8,
    /// Tokens a second that an engine computes [default: as this host's engines measured]
    #[arg(long, value_name = "TOKENS/S", value_parser = positive_number)]
    pub prefill_rate: Option<f64>,
    /// Bytes a second from the region, as in 10GiB [default: as this host's engines measured]
    #[arg(long, value_name = "BYTES/S")]
    pub load_rate: Option<ByteSize>,
    /// Bytes a second from the cold tier, as in 2GiB
    #[arg(long, value_name = "BYTES/S")]
    pub cold_rate: Option<ByteSize>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A size as a factor of the region's.
fn factor(text: &str) -> Result<f64, String> {
    let factor = positive_number(text)?;
    if factor <= 1024.0 { Ok(factor) } else { Err(format!("{text} is more than 1024 times the region")) }
}

fn positive_number(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| format!("`{text}` is no positive number"))
}

#[derive(Args, Debug)]
pub struct PoolHistoryArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Only events that this host recorded
    #[arg(id = "of_host", long = "host", value_name = "N", value_parser = host_slot())]
    pub host: Option<u8>,
    /// Only events of this last time, as in 90s, 10m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub since: Option<Duration>,
    /// Print events as they happen, until SIGINT or SIGTERM; with --json a line each
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A time with its unit; without one, seconds.
fn parse_age(text: &str) -> Result<Duration, String> {
    let split = text.find(|letter: char| letter.is_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("`{text}` is no time: write it as in 90s, 10m, 12h or 7d")),
    };
    Ok(parse_seconds(number)?.mul_f64(seconds))
}

#[derive(Args, Debug)]
pub struct PoolEventsArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// End after this many seconds; 0 lists the present blocks and ends [default: at SIGINT or
    /// SIGTERM]
    #[arg(id = "for", long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    /// Seconds between two reads of the logs
    #[arg(long, value_name = "SECONDS", default_value = "0.01", value_parser = parse_seconds)]
    pub every: Duration,
}

#[derive(Args, Debug)]
pub struct PoolMetricsArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Serve http://ADDRESS/metrics until SIGINT or SIGTERM, as in 0.0.0.0:9470 [default: print once]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
}

#[derive(Args, Debug)]
pub struct PoolFenceArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The slot of the dead host
    #[arg(long, value_name = "N", value_parser = host_slot())]
    pub dead_host: u8,
}

#[derive(Args, Debug)]
pub struct PoolManageArgs {
    #[command(flatten)]
    pub region: RegionArgs,
}

#[derive(Args, Debug)]
pub struct PoolShareArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Address at which readers ask where the region is, as in 10.0.0.2:7411
    #[arg(long, value_name = "ADDRESS")]
    pub listen: std::net::SocketAddr,
    /// The key that readers must have: 64 hex digits, as `openssl rand -hex 32` prints
    #[arg(long, value_name = "FILE", env = "CENOTE_PEER_KEY_FILE")]
    pub key_file: PathBuf,
    /// NIXL's library libnixl_capi.so [default: the dynamic linker looks for it]
    #[arg(long, value_name = "FILE", env = "CENOTE_NIXL")]
    pub nixl: Option<PathBuf>,
    /// Run the process that holds the memory as this user: NAME, NAME:GROUP, or numbers; needs root
    #[arg(long, value_name = "USER", env = "CENOTE_SHARE_USER", value_parser = Account::parse)]
    pub user: Option<Account>,
}

/// A user and a group, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub user: u32,
    pub group: u32,
}

impl Account {
    fn parse(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let failed = |error: nix::Error| format!("the users of this machine cannot be read: {error}");
        let known = match user.parse() {
            Ok(number) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(number)).map_err(failed)?,
            Err(_) => nix::unistd::User::from_name(user).map_err(failed)?,
        };
        let number = known.as_ref().map(|user| user.uid.as_raw()).or_else(|| user.parse().ok());
        let user = number.ok_or_else(|| format!("this machine has no user `{user}`"))?;
        let group = match group {
            None => known.map(|user| user.gid.as_raw()).ok_or("this user has no group here; give USER:GROUP")?,
            Some(group) => match group.parse() {
                Ok(number) => number,
                Err(_) => nix::unistd::Group::from_name(group)
                    .map_err(failed)?
                    .map(|group| group.gid.as_raw())
                    .ok_or_else(|| format!("this machine has no group `{group}`"))?,
            },
        };
        Ok(Self { user, group })
    }
}

#[derive(Args, Debug)]
pub struct PoolShareMemoryArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    #[arg(long)]
    pub nixl: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct PoolSnapshotArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The file to write
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolRestoreArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// The file to read
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Bytes of the region [default: as before]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// Permissions of the region's file, octal [default: as before]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub mode: Option<u32>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct PoolDestroyArgs {
    #[command(flatten)]
    pub region: RegionArgs,
    /// Remove it even if live processes use it or it is unreadable
    #[arg(long)]
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_names_or_numbers() {
        let root = Account { user: 0, group: 0 };
        for text in ["root", "0", "root:root", "0:0", "root:0"] {
            assert_eq!(Account::parse(text), Ok(root), "{text}");
        }
        assert_eq!(Account::parse("4000000001:7"), Ok(Account { user: 4_000_000_001, group: 7 }));
        for text in ["4000000001", "no-such-user", "root:no-such-group", "", ":", "-1:0"] {
            assert!(Account::parse(text).is_err(), "{text}");
        }
    }
}
