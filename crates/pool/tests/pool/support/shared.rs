//! A region in shared memory, and the processes that a test starts and kills on it.

use super::{FlushedPool, TestPool, patient, small_config};
use cenote_base::fault::{self, Plan};
use cenote_mem::{Coherent, Flush, Flushed, MapOptions, Mapped, Mapping, RegionSource};
use cenote_pool::{HostPool, Pool, PoolConfig, Superblock, open_region};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const REGION: &str = "CENOTE_TEST_REGION";
const FAULT: &str = "CENOTE_TEST_FAULT";

/// A region in shared memory, removed after the test.
pub struct Shared {
    pub source: RegionSource,
    pub superblock: Superblock,
}

impl Shared {
    pub fn make(test: &str, bytes: u64, config: PoolConfig, flush: Flush) -> Self {
        let source = shm(test);
        let mapping = Mapping::create(&source, bytes, 0o600, &MapOptions::default()).expect("shared memory");
        let config = identified(config);
        let fabric = Mapped::new(mapping, flush).expect("this processor has the instruction");
        let superblock = Superblock::format(&fabric, &config).expect("the configuration fits");
        Self { source, superblock }
    }

    /// A region of 4 MiB without an event log, for one host or, with an instruction, for two.
    pub fn for_flush(test: &str, flush: Flush) -> Self {
        let config = PoolConfig { events_per_host: 0, ..small_config(flush as u8) };
        Self::make(&format!("{test}-{}", flush.name()), 4 << 20, config, flush)
    }

    pub fn attach(&self) -> TestPool {
        attach(&self.source)
    }

    pub fn attach_host(&self, host: u8) -> HostPool {
        attach_host(&self.source, host)
    }

    /// This program, running an ignored test with this region and perhaps a death.
    pub fn process(&self, test: &str, fault: Option<Plan>) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", test, "--ignored", "--nocapture"]).env(REGION, self.source.to_string());
        if let Some(fault) = fault {
            command.env(FAULT, fault.to_string());
        }
        command
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.source);
        let _ = cenote_pool::remove_host_memory(&self.superblock);
    }
}

/// The number of a region that this process makes.
fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Shared memory with a name that no other region of a running test has.
pub fn shm(test: &str) -> RegionSource {
    RegionSource::Shm(format!("cenote-test-{test}-{}-{}", std::process::id(), next()))
}

/// The configuration with an identity that no other region of a running test has: it names host
/// memory.
pub fn identified(mut config: PoolConfig) -> PoolConfig {
    config.uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
    config.uuid[4..8].copy_from_slice(&next().to_le_bytes());
    config
}

pub fn attach(source: &RegionSource) -> TestPool {
    let mapping = Mapping::open(source, &MapOptions::default()).expect("the region is there");
    Pool::attach(Arc::new(Coherent::new(mapping)), &patient(0)).expect("it attaches")
}

/// A worker of a host, with the flush instruction that the region was made for.
pub fn attach_host(source: &RegionSource, host: u8) -> HostPool {
    let fabric = open_region(source, &MapOptions::default()).expect("the region is there");
    Pool::attach(fabric, &patient(host)).expect("it attaches")
}

/// As [`attach_host`], for a region without coherence.
pub fn attach_flushed(source: &RegionSource, host: u8) -> FlushedPool {
    let mapping = Mapping::open(source, &MapOptions::default()).expect("the region is there");
    let fabric = Arc::new(Flushed::new(mapping, Flush::available()[0]).expect("it is available"));
    Pool::attach(fabric, &patient(host)).expect("each host has its slot")
}

/// In a process of [`Shared::process`]: arms its death, and returns its region.
pub fn region_of_process() -> RegionSource {
    let region = std::env::var(REGION).expect("another test starts this one");
    if let Ok(fault) = std::env::var(FAULT) {
        fault::arm(fault.parse().expect("name:count"), |_| {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("it can");
        });
    }
    region.parse().expect("a region")
}
