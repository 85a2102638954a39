//! Flags that name a region, a new region's settings, and the watch over other hosts.

use super::wire::{optional_path, optional_text};
use cenote_base::seal::{Seal, SealKeys};
use cenote_base::units::ByteSize;
use cenote_mem::keys::KeySource;
use cenote_mem::{Flush, RegionSource};
use cenote_pool::{Design, Eviction, HostsLock};
use cenote_store::cold::Settings;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Region and mapping options.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionArgs {
    /// The shared region: `shm:NAME`, a file on tmpfs or hugetlbfs, or /dev/daxX.Y
    #[arg(long, value_name = "REGION", env = "CENOTE_REGION")]
    #[serde(with = "optional_text")]
    pub region: Option<RegionSource>,
    /// Place the region's memory on this NUMA node
    #[arg(long, value_name = "NODE", env = "CENOTE_NUMA_NODE")]
    pub numa_node: Option<u32>,
    /// Do not request huge pages
    #[arg(long, env = "CENOTE_NO_HUGE_PAGES")]
    pub no_huge_pages: bool,
    /// Host slot of this machine; each machine that shares the region has its own
    #[arg(long, value_name = "N", env = "CENOTE_HOST_SLOT", default_value_t = 0, value_parser = host_slot())]
    pub host_slot: u8,
    /// Keys of a sealed region.
    #[command(flatten)]
    pub keys: KeyArgs,
}

/// Keys of what is sealed.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyArgs {
    /// Keys of a sealed region: 64 hex digits a line; the first seals, all open
    #[arg(long, value_name = "FILE", env = "CENOTE_SEAL_KEY_FILE")]
    #[serde(with = "optional_path")]
    pub seal_key_file: Option<PathBuf>,
    /// Command that prints such a file, for example a key store's client
    #[arg(long, value_name = "COMMAND", env = "CENOTE_SEAL_KEY_COMMAND", conflicts_with = "seal_key_file")]
    pub seal_key_command: Option<String>,
}

impl KeyArgs {
    /// Reads the keys, if a source of them is named.
    ///
    /// # Errors
    /// As [`KeySource::read`].
    pub fn read(&self) -> io::Result<Option<SealKeys>> {
        let file = self.seal_key_file.clone().map(KeySource::File);
        let source = file.or_else(|| self.seal_key_command.clone().map(KeySource::Command));
        source.map(|source| source.read()).transpose()
    }
}

impl RegionArgs {
    /// A region without further settings.
    #[must_use]
    pub const fn of(region: RegionSource) -> Self {
        Self {
            region: Some(region),
            numa_node: None,
            no_huge_pages: false,
            host_slot: 0,
            keys: KeyArgs { seal_key_file: None, seal_key_command: None },
        }
    }
}

/// A host slot: 0 to 63.
#[must_use]
pub fn host_slot() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=63)
}

/// Timeouts for other hosts; without effect on one host.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchArgs {
    /// Seconds without a heartbeat after which this host declares another host dead
    #[arg(long, value_name = "SECONDS", env = "CENOTE_HOST_TIMEOUT", default_value = "10", value_parser = parse_timeout)]
    pub host_timeout: Duration,
    /// Seconds after that before a dead host's space is reused, in case it was suspended
    #[arg(long, value_name = "SECONDS", env = "CENOTE_QUARANTINE", default_value = "30", value_parser = parse_seconds)]
    pub quarantine: Duration,
}

impl Default for WatchArgs {
    fn default() -> Self {
        Self { host_timeout: Duration::from_secs(10), quarantine: Duration::from_secs(30) }
    }
}

/// Parses seconds, which may have a fraction.
///
/// # Errors
/// The text is no number, or a negative or too large one.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{text} seconds cannot be waited for"))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_seconds(text)? {
        timeout if timeout < Duration::from_millis(100) => Err("must be at least 0.1 seconds".to_owned()),
        timeout => Ok(timeout),
    }
}

/// Flush instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushArg {
    /// The fastest instruction of this processor.
    Auto,
    /// This instruction.
    Fixed(Flush),
}

/// Parses a flush instruction, or `auto`.
///
/// # Errors
/// There is no such instruction.
pub fn parse_flush(text: &str) -> Result<FlushArg, String> {
    if text == "auto" {
        return Ok(FlushArg::Auto);
    }
    text.parse()
        .map(FlushArg::Fixed)
        .map_err(|_| format!("`{text}` is no flush instruction: none, auto, clflush, clflushopt, clwb or dc-civac"))
}

/// Lock between hosts.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostsLockArg {
    /// A bakery over words that one host writes each.
    Bakery,
    /// One manager grants locks (TraCT §3.3).
    Manager,
}

impl HostsLockArg {
    /// The pool's setting.
    #[must_use]
    pub const fn kind(self) -> HostsLock {
        match self {
            Self::Bakery => HostsLock::Bakery,
            Self::Manager => HostsLock::Manager,
        }
    }
}

/// Design of index and eviction.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesignArg {
    /// Lookups without locks.
    Cenote,
    /// TraCT's design.
    Plain,
}

impl DesignArg {
    /// The pool's setting.
    #[must_use]
    pub const fn kind(self) -> Design {
        match self {
            Self::Cenote => Design::Cenote,
            Self::Plain => Design::Plain,
        }
    }
}

/// Seal of a new region.
#[derive(Args, Clone, Copy, Debug)]
pub struct SealArgs {
    /// Seal payloads with the first of the keys: mac (others cannot forge KV), encrypt (nor read it) or
    /// none (docs/guides/seals.md)
    #[arg(long, value_name = "SEAL", env = "CENOTE_SEAL", default_value = "none", value_parser = parse_seal)]
    pub seal: Seal,
    /// Seal on a processor without instructions for AES, where it takes many times as long as a copy
    #[arg(long)]
    pub seal_slowly: bool,
}

impl SealArgs {
    /// No seal.
    pub const NONE: Self = Self { seal: Seal::None, seal_slowly: false };
}

/// Settings of a new region.
#[derive(Args, Clone, Debug)]
pub struct NewRegionArgs {
    /// Bytes of the region, as in 4GiB (a DAX device is taken whole)
    #[arg(long, value_name = "SIZE", env = "CENOTE_REGION_SIZE")]
    pub size: Option<ByteSize>,
    /// Unit in which hosts claim space; a block must fit into one
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub chunk_size: ByteSize,
    /// Smallest block; smaller ones take as much space
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    pub min_block: ByteSize,
    /// Host slots
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub max_hosts: u8,
    /// Flush instruction: none (all processes are on one host), auto (the fastest of this
    /// processor), clflush, clflushopt, clwb or dc-civac
    #[arg(long, value_name = "INSTRUCTION", default_value = "none", value_parser = parse_flush)]
    pub flush: FlushArg,
    /// Lock between hosts; `manager` needs a running `cenote pool manage` on one of them
    #[arg(long, value_enum, value_name = "KIND", default_value = "bakery")]
    pub hosts_lock: HostsLockArg,
    /// Design of index and eviction; `plain` is TraCT's, for comparison: one lock, reference
    /// counts, an LRU list
    #[arg(long, value_enum, value_name = "DESIGN", default_value = "cenote")]
    pub design: DesignArg,
    /// Eviction policy: lru, sieve, s3-fifo or cost-aware
    #[arg(long, value_name = "POLICY", default_value_t = Eviction::Lru)]
    pub eviction: Eviction,
    /// Blocks that one process can pin at once [default: 1792; 448 in a region of less than 256MiB;
    /// up to 7168 in a larger one if all pins take at most a 64th of it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=7168))]
    pub pins_per_worker: Option<u32>,
    /// How payloads are sealed.
    #[command(flatten)]
    pub sealing: SealArgs,
    /// Lines of each host's event log for routers, for example 1024; 0: no log
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub events: u32,
    /// Lines of each host's ring of removed blocks, for `pool explain`; 0: none [default: those of all
    /// hosts take a 1024th of the region, and at most 4MiB each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub removals: Option<u32>,
    /// Lines of each host's record of requests, for `pool whatif`: 16 or more; 0: none [default: those of
    /// all hosts take a 512th of the region, and at most 4MiB each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub requests: Option<u32>,
    /// Permissions of the region's file, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    pub mode: u32,
    /// Touch every page now instead of while serving the first prompts
    #[arg(long, env = "CENOTE_PREFAULT")]
    pub prefault: bool,
    /// Secret key of block hashes, 64 hex digits [default: random]
    #[arg(long, value_name = "HEX", env = "CENOTE_HASH_SEED", hide_env_values = true, value_parser = parse_seed)]
    pub hash_seed: Option<[u8; 32]>,
    /// Take the hash seed of this disk directory, object store or Redis server, so that servers with the same
    /// --cold find its blocks (docs/guides/cold.md)
    #[arg(long, value_name = "PLACE", env = "CENOTE_COLD", hide_env_values = true)]
    pub cold: Option<Settings>,
}

/// The seal of this name.
///
/// # Errors
/// There is none.
pub fn parse_seal(text: &str) -> Result<Seal, String> {
    Seal::from_name(text).ok_or_else(|| format!("`{text}` is no seal: none, mac or encrypt"))
}

/// Permissions in octal digits.
///
/// # Errors
/// It is no mode, or the owner could not use the file.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode =
        u32::from_str_radix(text.trim_start_matches("0o"), 8).map_err(|_| format!("`{text}` is not an octal mode"))?;
    if mode <= 0o777 && mode & 0o600 == 0o600 {
        Ok(mode)
    } else {
        Err(format!("mode {text} does not let its owner read and write"))
    }
}

fn parse_seed(text: &str) -> Result<[u8; 32], String> {
    if text.len() != 64 {
        return Err(format!("a hash seed has 64 hex digits, not {}", text.len()));
    }
    let mut seed = [0; 32];
    hex::decode_to_slice(text, &mut seed).map_err(|_| "a hash seed is written in hex".to_owned())?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_instructions_and_seconds_are_checked() {
        assert_eq!(parse_flush("auto"), Ok(FlushArg::Auto));
        assert_eq!(parse_flush("clwb"), Ok(FlushArg::Fixed(Flush::Clwb)));
        assert!(parse_flush("cflush").unwrap_err().contains("`cflush`"));
        assert_eq!(parse_timeout("0.5"), Ok(Duration::from_millis(500)));
        assert!(parse_timeout("0").is_err() && parse_seconds("-1").is_err() && parse_seconds("soon").is_err());
    }

    #[test]
    fn modes_and_seeds_are_checked() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert!(parse_mode("066").is_err() && parse_mode("rw").is_err() && parse_mode("1777").is_err());
        assert_eq!(parse_seed(&"0f".repeat(32)), Ok([15; 32]));
        assert!(
            parse_seed("0f").is_err() && parse_seed(&"zz".repeat(32)).is_err() && parse_seed(&"é".repeat(32)).is_err()
        );
    }
}
