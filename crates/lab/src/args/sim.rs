//! Flags of the simulator.

use cenote_base::units::ByteSize;
use cenote_console::args::positive;
use cenote_console::output::OutputArgs;
use cenote_policy::{Eviction, Watermark};
use cenote_serving_sim::model::{CXL, Link, NIAGARA, PCIE_5, RDMA_100G, SPECKV_L3};
use cenote_serving_sim::rack::{CHUNK_BLOCKS, Hosts};
use cenote_serving_sim::workload::{Sessions, TraceFormat};
use clap::{Args, ValueEnum};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Format of a trace.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormatArg {
    /// Lines of JSON with `timestamp`, `input_length`, `output_length` and `hash_ids`
    Mooncake,
    /// CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`
    Azure,
    /// CSV with `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`
    Burstgpt,
    /// Lines of JSON with `block` and `requests`: sessions of agents, started by a Poisson process
    Agentic,
}

/// How sessions of a trace in the format `agentic` become a load.
#[derive(Args, Clone, Debug)]
pub struct SessionArgs {
    /// Sessions to draw from a trace of sessions [default: each once]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Load")]
    pub sessions: Option<usize>,
    /// Mean seconds between the starts of two sessions; 0: all at once
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds, help_heading = "Load")]
    pub session_gap: f64,
    /// Assume that sessions with equally many tokens of tools share them, and then system prompts on the
    /// same condition; the file records no sharing
    #[arg(long, help_heading = "Load")]
    pub share_prefix: bool,
}

impl SessionArgs {
    /// The settings of the reader.
    pub fn sessions(&self, seed: u64) -> Sessions {
        let gap = (self.session_gap * 1e9) as u64;
        Sessions { count: self.sessions, gap, seed, shares_prefix: self.share_prefix }
    }

    /// The format of a trace, by the flag or else by the file's name.
    pub fn format(&self, format: Option<TraceFormatArg>, trace: &Path, seed: u64) -> TraceFormat {
        match format {
            None => TraceFormat::of(trace),
            Some(TraceFormatArg::Mooncake) => TraceFormat::Mooncake,
            Some(TraceFormatArg::Azure) => TraceFormat::Azure,
            Some(TraceFormatArg::Burstgpt) => TraceFormat::BurstGpt,
            Some(TraceFormatArg::Agentic) => TraceFormat::Agentic(self.sessions(seed)),
        }
    }
}

/// A synthetic load.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadArg {
    /// Poisson arrivals of prompts of 1,155 ± 1,100 tokens and answers of 211 ± 160, as in Azure's
    /// conversations
    Poisson,
    /// TraCT's workload A: 4,449 ± 2,424 tokens, 1,073 of them unique
    TractA,
    /// TraCT's workload B: 1,215 unique
    TractB,
    /// TraCT's workload C: 1,631 unique
    TractC,
    /// CPEN 511's prompts, two blocks of 16 tokens each, all at once
    Cpen,
}

/// Clock of eviction policies.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstantArg {
    /// Each block has its own instant, as in the textbook
    Block,
    /// All blocks of a request share an instant, as in the pool
    Request,
}

/// Model of the shared pool.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolModelArg {
    /// One pool with one order of eviction
    Ideal,
    /// A pool on several hosts, as the product implements it
    Hosts,
}

/// Host that serves a request.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingArg {
    /// By turns
    RoundRobin,
    /// The host that last served most of the prompt, else by turns
    Sticky,
    /// The first host; the others idle
    One,
}

/// Capacity of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityArg {
    /// No pool.
    None,
    /// This many bytes.
    Bytes(u64),
    /// Unlimited.
    Infinite,
}

impl FromStr for CapacityArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "infinite" | "inf" => Ok(Self::Infinite),
            size => match size.parse::<ByteSize>() {
                Ok(ByteSize(0)) => Err("a pool of 0 bytes holds nothing; write none for no pool".to_owned()),
                Ok(size) => Ok(Self::Bytes(size.0)),
                Err(error) => Err(format!("{error}; or none, or infinite")),
            },
        }
    }
}

impl fmt::Display for CapacityArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Bytes(bytes) => f.pad(&ByteSize(*bytes).to_string()),
            Self::Infinite => f.pad("infinite"),
        }
    }
}

/// Longest latency of a link: a quarter of an hour. Sums of longer ones would not fit 64 bits.
const LATENCY_MAX_NS: u64 = 1_000_000_000_000;

/// A link by name, or as `GB/S:NANOSECONDS`.
pub(super) fn parse_link(text: &str) -> Result<Link, String> {
    match text {
        "cxl" => return Ok(CXL),
        "niagara" => return Ok(NIAGARA),
        "rdma" => return Ok(RDMA_100G),
        "pcie5" => return Ok(PCIE_5),
        "speckv" => return Ok(SPECKV_L3.link),
        _ => {}
    }
    let wrong = || {
        format!(
            "`{text}` is no link: cxl, niagara, rdma, pcie5, speckv, or gigabytes a second and nanoseconds, as in 25:640"
        )
    };
    let (bandwidth, latency) = text.split_once(':').ok_or_else(wrong)?;
    let bytes_per_s = parse_bandwidth(bandwidth).map_err(|_| wrong())?;
    let latency_ns = latency.parse().ok().filter(|&ns: &u64| ns <= LATENCY_MAX_NS).ok_or_else(wrong)?;
    Ok(Link { bytes_per_s, latency_ns })
}

/// Gigabytes per second as bytes per second.
fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let bandwidth: Option<f64> = text.parse().ok().filter(|bandwidth| (0.0..1e6).contains(bandwidth));
    bandwidth.map(|bandwidth| (bandwidth * 1e9) as u64).ok_or_else(|| format!("`{text}` is no bandwidth"))
}

fn parse_speed(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|speed| (1e-6..=1e6).contains(speed)).ok_or_else(|| format!("`{text}` is no speed"))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds));
    seconds.ok_or_else(|| format!("`{text}` is no number of seconds"))
}

pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| (0.0..=1e6).contains(rate)).ok_or_else(|| format!("`{text}` is no rate"))
}

#[derive(Args, Debug)]
pub struct SimArgs {
    /// A public trace in Mooncake's, Azure's or BurstGPT's format, or sessions of agents
    #[arg(long, value_name = "FILE", required_unless_present_any = ["load", "calibrate"], help_heading = "Load")]
    pub trace: Option<PathBuf>,
    /// A synthetic load instead of a trace
    #[arg(long, value_enum, value_name = "LOAD", conflicts_with = "trace", help_heading = "Load")]
    pub load: Option<LoadArg>,
    /// Format of the trace [default: by the file's name; .csv is Azure's]
    #[arg(long, value_enum, value_name = "FORMAT", help_heading = "Load")]
    pub format: Option<TraceFormatArg>,
    /// Fail at the first invalid line instead of skipping it
    #[arg(long, help_heading = "Load")]
    pub strict: bool,
    /// Tokens per block of the trace and of the pool [default: 512; 64 of sessions; TraCT's and CPEN 511's
    /// loads have 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Load")]
    pub block_tokens: Option<u32>,
    /// Number of requests [default: all of a trace, 2,000 of a synthetic load, 400 of `cpen`]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Load")]
    pub requests: Option<usize>,
    /// Requests per second of a synthetic load; 0: all at once
    #[arg(long, value_name = "R", default_value = "4", value_parser = parse_rate, help_heading = "Load")]
    pub rate: f64,
    /// Factor on the arrival rate
    #[arg(long, value_name = "X", default_value = "1", value_parser = parse_speed, help_heading = "Load")]
    pub speed: f64,
    /// Seed of the synthetic load, and of drawn sessions
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    pub seed: u64,
    #[command(flatten)]
    pub sessions: SessionArgs,

    /// Compute the hit rate only, without engines and time: blocks that hit with all blocks before
    /// them
    #[arg(long, help_heading = "Hit rate only")]
    pub hit_rate_only: bool,
    /// Blocks that the pool holds [default: unlimited]
    #[arg(long, value_name = "N,N", value_delimiter = ',', requires = "hit_rate_only", value_parser = positive, help_heading = "Hit rate only")]
    pub pool_blocks: Vec<usize>,
    /// Clock of the eviction policy
    #[arg(
        long,
        value_enum,
        value_name = "UNIT",
        default_value = "block",
        requires = "hit_rate_only",
        help_heading = "Hit rate only"
    )]
    pub instant: InstantArg,

    /// Host that serves a request
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value = "round-robin",
        requires_all = ["hit_rate_only", "hosts"],
        help_heading = "Hit rate only"
    )]
    pub routing: RoutingArg,

    /// Hosts of the shared pool; several values make a sweep
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = positive, help_heading = "Pool")]
    pub hosts: Vec<usize>,
    /// Model of the shared pool; several values make a sweep [default: hosts if --hosts is given,
    /// else ideal]
    #[arg(long, value_enum, value_name = "MODEL,MODEL", value_delimiter = ',', help_heading = "Pool")]
    pub pool_model: Vec<PoolModelArg>,
    /// Blocks of a chunk of a pool on hosts: the connectors make chunks of four blocks
    #[arg(long, value_name = "N", default_value_t = CHUNK_BLOCKS, value_parser = positive, help_heading = "Pool")]
    pub chunk_blocks: usize,
    /// Bytes of the shared pool, none or infinite; several values make a sweep
    #[arg(long, value_name = "SIZE,SIZE", value_delimiter = ',', default_value = "none", help_heading = "Pool")]
    pub pool: Vec<CapacityArg>,
    /// Link to the pool: cxl (64 GB/s), niagara (TraCT's device, 10.1 GB/s), rdma, pcie5, or
    /// GB/S:NANOSECONDS, as in 25:640
    #[arg(long, value_name = "LINK", default_value = "cxl", value_parser = parse_link, help_heading = "Pool")]
    pub pool_link: Link,
    /// Bytes of each instance's own cache in host memory, none or infinite
    #[arg(long, value_name = "SIZE", default_value = "none", help_heading = "Pool")]
    pub private: CapacityArg,
    /// Eviction policy: lru, sieve, s3-fifo or cost-aware; several values make a sweep
    #[arg(long, value_name = "POLICY,POLICY", value_delimiter = ',', default_value = "lru", help_heading = "Pool")]
    pub eviction: Vec<Eviction>,

    /// Bytes of a cold tier (L4) below the shared pool, none or infinite
    #[arg(long, value_name = "SIZE", default_value = "none", conflicts_with = "hosts", help_heading = "Cold tier")]
    pub cold: CapacityArg,
    /// Reads from it, as for --pool-link: 6.9 GB/s of a PM9A3 disk's data sheet, and 80 µs
    #[arg(long, value_name = "LINK", default_value = "6.9:80000", value_parser = parse_link, help_heading = "Cold tier")]
    pub cold_link: Link,
    /// Gigabytes per second of writes to it: a PM9A3's
    #[arg(long, value_name = "GB/S", default_value = "4.1", value_parser = parse_bandwidth, help_heading = "Cold tier")]
    pub cold_write: u64,
    /// Blocks that may wait to be written
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = positive, help_heading = "Cold tier")]
    pub cold_writes: usize,
    /// Fetch blocks of waiting requests ahead
    #[arg(long, requires = "cold", help_heading = "Cold tier")]
    pub cold_prefetch: bool,
    /// Fetch blocks of a conversation so many seconds before its next prompt, as if clients announced it
    #[arg(long, value_name = "S", requires = "cold_prefetch", help_heading = "Cold tier")]
    pub cold_hint: Option<u32>,
    /// Fetch blocks of conversations that are expected to continue
    #[arg(long, requires = "cold_prefetch", help_heading = "Cold tier")]
    pub cold_speculate: bool,
    /// Compress cold blocks of the pool as `qpack` does: 3.98 bits a value, at the speed of one processor.
    /// The ladder decides between this, demotion and eviction
    #[arg(long, conflicts_with = "hosts", help_heading = "Cold tier")]
    pub cold_compress: bool,
    /// Clock in MHz of a cache engine in hardware that compresses instead of a processor, with the measured
    /// cycles of its RTL (rtl/README.md)
    #[arg(long, value_name = "MHZ", requires = "cold_compress", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Cold tier")]
    pub cold_engine: Option<u32>,
    /// Such engines, which share the channels of one memory
    #[arg(long, value_name = "N", requires = "cold_engine", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=4), help_heading = "Cold tier")]
    pub cold_engines: u32,

    /// Device: a100, h200, l20 or a6000
    #[arg(long, value_name = "DEVICE", default_value = "a100", help_heading = "Engine")]
    pub device: String,
    /// File that --calibrate wrote: this machine as the device
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate", help_heading = "Engine")]
    pub calibration: Option<PathBuf>,
    /// Time the reference engine on this machine and write a file for --calibration
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "load"], help_heading = "Engine")]
    pub calibrate: Option<PathBuf>,
    /// Model: llama-8b, llama-70b, qwen3-32b, opt-125m, opt-1.3b, opt-2.7b or r1-qwen-1.5b; with
    /// --calibrate a Hugging Face directory [default: the demo model]
    #[arg(long, value_name = "MODEL", help_heading = "Engine")]
    pub model: Option<String>,
    /// Number of engines
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Engine")]
    pub instances: u32,
    /// Blocks of an engine's own memory [default: the device's memory less the weights]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub l1_blocks: Option<u32>,
    /// Tokens per block of an engine's own memory
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = "Engine")]
    pub l1_block_tokens: u32,
    /// Requests that an engine runs at once
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Engine")]
    pub max_num_seqs: usize,
    /// Tokens per step
    #[arg(long, value_name = "N", default_value_t = 8192, help_heading = "Engine")]
    pub max_num_batched_tokens: u32,
    /// Blocks that admission leaves free: fixed:SHARE, opt:FACTOR, avg-above:BLOCKS,
    /// avg-below:BLOCKS or learned; several values make a sweep
    #[arg(
        long,
        value_name = "KIND,KIND",
        value_delimiter = ',',
        default_value = "fixed:0.01",
        help_heading = "Engine"
    )]
    pub watermark: Vec<Watermark>,
    /// Swap memory of each engine's host; without it preempted requests are recomputed
    #[arg(long, value_name = "SIZE", default_value = "0", help_heading = "Engine")]
    pub swap: ByteSize,
    /// Swap even where recomputing would be faster
    #[arg(long, help_heading = "Engine")]
    pub always_swap: bool,

    /// Memory outside each engine for blocks of running requests, which steps read over --spill-link;
    /// without it requests that exceed the engine's own memory make room
    #[arg(long, value_name = "SIZE", default_value = "0", conflicts_with = "calibration", help_heading = "Engine")]
    pub spill: ByteSize,
    /// Link to that memory: a name as for --pool-link, speckv (CXL-SpecKV's share of a GPU, 32 GB/s), or
    /// GB/S:NANOSECONDS
    #[arg(long, value_name = "LINK", default_value = "speckv", value_parser = parse_link, help_heading = "Engine")]
    pub spill_link: Link,

    /// Write the table and plots as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl SimArgs {
    /// The models of the shared pool: the hosts of each, or `None` for an ideal one.
    pub fn pools(&self) -> Vec<Option<Hosts>> {
        let models = match self.pool_model.as_slice() {
            [] if self.hosts.is_empty() => &[PoolModelArg::Ideal],
            [] => &[PoolModelArg::Hosts],
            some => some,
        };
        let counts: &[usize] = if self.hosts.is_empty() { &[1] } else { &self.hosts };
        let hosts = |&count: &usize| Some(Hosts { chunk_blocks: self.chunk_blocks, ..Hosts::new(count) });
        let pools = models.iter().flat_map(|model| match model {
            PoolModelArg::Ideal => vec![None],
            PoolModelArg::Hosts => counts.iter().map(hosts).collect(),
        });
        pools.collect()
    }
}

/// Name of a model of the shared pool in results.
pub fn pool_name(hosts: Option<Hosts>) -> String {
    match hosts {
        None => "ideal".to_owned(),
        Some(hosts) => format!("{} host{}", hosts.count, if hosts.count == 1 { "" } else { "s" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_capacities_are_checked() {
        assert_eq!(parse_link("cxl"), Ok(CXL));
        assert_eq!(parse_link("25:640"), Ok(Link { bytes_per_s: 25_000_000_000, latency_ns: 640 }));
        for wrong in ["", "cx", "25", "-1:5", "x:5", "5:x", "1e9:1", "25:1000000000001"] {
            assert!(parse_link(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
        assert_eq!("64GiB".parse(), Ok(CapacityArg::Bytes(64 << 30)));
        assert_eq!("none".parse(), Ok(CapacityArg::None));
        assert_eq!("infinite".parse(), Ok(CapacityArg::Infinite));
        assert!("0".parse::<CapacityArg>().is_err() && "much".parse::<CapacityArg>().is_err());
        assert!(parse_speed("0").is_err() && parse_rate("-1").is_err());
    }
}
