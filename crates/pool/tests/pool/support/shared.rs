//! A region in shared memory, and the processes that a test starts and kills on it.

use super::TestPool;
use cenote_base::fault::{self, Plan};
use cenote_mem::{Coherent, Flush, MapOptions, Mapped, Mapping, RegionSource};
use cenote_pool::{AttachOptions, Pool, PoolConfig, Superblock};
use std::process::Command;
use std::sync::Arc;

const REGION: &str = "CENOTE_TEST_REGION";
const FAULT: &str = "CENOTE_TEST_FAULT";

/// A region in shared memory, removed after the test.
pub struct Shared {
    pub source: RegionSource,
    pub superblock: Superblock,
}

impl Shared {
    /// `test` is a name that no other region of this process has.
    pub fn make(test: &str, bytes: u64, config: PoolConfig, flush: Flush) -> Self {
        let source = RegionSource::Shm(format!("cenote-test-{test}-{}", std::process::id()));
        let mapping = Mapping::create(&source, bytes, 0o600, &MapOptions::default()).expect("shared memory");
        let mut config = config;
        // Host memory is named by the region's identity. Other tests, and another run of them, may
        // be active.
        config.uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        config.uuid[4] = test.bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let fabric = Mapped::new(mapping, flush).expect("this processor has the instruction");
        let superblock = Superblock::format(&fabric, &config).expect("the configuration fits");
        Self { source, superblock }
    }

    pub fn attach(&self) -> TestPool {
        attach(&self.source)
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

pub fn attach(source: &RegionSource) -> TestPool {
    let mapping = Mapping::open(source, &MapOptions::default()).expect("the region is there");
    Pool::attach(Arc::new(Coherent::new(mapping)), &AttachOptions::named("test")).expect("it attaches")
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
