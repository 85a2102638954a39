//! Regions, files of tables, and processes that load them.

#![allow(dead_code, reason = "each test program uses a part")]

mod timed_host;

use cenote_base::fault::{self, Plan};
use cenote_base::prng::Prng;
use cenote_base::testing::{ManualTime, PATIENCE};
use cenote_base::{Clock, Deadline, HashSeed, HostId};
use cenote_mem::{Fabric, Flush, HostArea, MapOptions, Mapped, Mapping, RegionSource};
use cenote_pool::{AttachOptions, HostPool, Pool, PoolConfig, Superblock, open_region};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub use timed_host::TimedHost;

const REGION: &str = "CENOTE_TEST_REGION";
const FILE: &str = "CENOTE_TEST_FILE";
const FAULT: &str = "CENOTE_TEST_FAULT";

/// A region in shared memory, removed after the test.
pub struct Region {
    pub source: RegionSource,
    superblock: Superblock,
}

impl Region {
    /// `test` is a name that no other region of this process has.
    pub fn new(test: &str, bytes: u64, chunk_bytes: u64, flush: Flush) -> Self {
        let source = RegionSource::Shm(format!("cenote-test-tables-{test}-{}-{}", flush.name(), std::process::id()));
        let mapping = Mapping::create(&source, bytes, 0o600, &MapOptions::default()).expect("shared memory");
        let mut uuid = [9; 16];
        uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let name = test.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        uuid[4..12].copy_from_slice(&name.to_le_bytes());
        uuid[12] = flush as u8;
        let config = PoolConfig {
            chunk_bytes,
            max_hosts: 2,
            workers_per_host: 16,
            events_per_host: 0,
            ..PoolConfig::new(HashSeed([3; 32]), uuid)
        };
        let fabric = Mapped::new(mapping, flush).expect("this processor has the instruction");
        let superblock = Superblock::format(&fabric, &config).expect("the configuration fits");
        Self { source, superblock }
    }

    pub fn attach(&self, host: u8) -> HostPool {
        attach(&self.source, host)
    }

    /// This program, running an ignored test with this region, a file, and perhaps a death.
    pub fn process(&self, test: &str, file: &Path, fault: Option<Plan>) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.env(REGION, self.source.to_string()).env(FILE, file);
        if let Some(fault) = fault {
            command.env(FAULT, fault.to_string());
        }
        command
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = Mapping::remove(&self.source);
        let _ = cenote_pool::remove_host_memory(&self.superblock);
    }
}

/// When a silent host is declared dead. Longer than any test waits.
pub const HOST_TIMEOUT: Duration = Duration::from_secs(3600);

fn attach_options(host: u8) -> AttachOptions {
    let (host, lock_timeout) = (HostId(host), PATIENCE);
    AttachOptions { host, lock_timeout, host_timeout: HOST_TIMEOUT, ..AttachOptions::named("test") }
}

pub fn attach(source: &RegionSource, host: u8) -> HostPool {
    let fabric = open_region(source, &MapOptions::default()).expect("the region is there");
    Pool::attach(fabric, &attach_options(host)).expect("it attaches")
}

/// As [`attach`], as a host with a clock of its own.
pub fn attach_timed(source: &RegionSource, host: u8, time: &'static ManualTime) -> Pool<Arc<Mapped>, TimedHost> {
    let fabric = open_region(source, &MapOptions::default()).expect("the region is there");
    let file = fabric.region_file();
    let open = |name: &str, spec| Ok(TimedHost { area: HostArea::open_for(name, spec, file.as_ref())?.0, time });
    Pool::attach_on(fabric, &attach_options(host), open).expect("it attaches")
}

/// A deadline that no wait of a test may reach.
pub fn patience() -> Deadline {
    Clock::system().after(PATIENCE)
}

/// In a process of [`Region::process`]: arms its death, and returns its region and its file.
pub fn given() -> (RegionSource, PathBuf) {
    let region = std::env::var(REGION).expect("another test starts this one");
    if let Ok(fault) = std::env::var(FAULT) {
        fault::arm(fault.parse().expect("name:count"), |_| {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("it can");
        });
    }
    (region.parse().expect("a region"), std::env::var(FILE).expect("another test starts this one").into())
}

pub fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    (0..count.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes()).take(count).collect()
}

/// Writes tensors of `(name, type, shape, bytes)`.
pub fn write(path: &Path, tensors: &[(&str, Dtype, Vec<usize>, &[u8])]) {
    let views: HashMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor")))
        .collect();
    safetensors::serialize_to_file(&views, None, path).expect("the folder is writable");
}

/// A file with one bf16 table `table`; returns its bytes.
pub fn bf16_file(path: &Path, rows: usize, values: usize, seed: u64) -> Vec<u8> {
    let bytes = random_bytes(rows * values * 2, seed);
    write(path, &[("table", Dtype::BF16, vec![rows, values], &bytes)]);
    bytes
}

/// A file with two bf16 tables of one shape, `table` and `other`; returns their bytes.
pub fn two_tables(path: &Path, rows: usize, values: usize, seed: u64) -> [Vec<u8>; 2] {
    let bytes = [seed, seed + 1].map(|seed| random_bytes(rows * values * 2, seed));
    let shape = || vec![rows, values];
    write(path, &[("table", Dtype::BF16, shape(), &bytes[0]), ("other", Dtype::BF16, shape(), &bytes[1])]);
    bytes
}

/// Copies a file into a new folder, as another host has it: the same name, and a time of its own.
pub fn copy_of(path: &Path, folder: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    std::fs::create_dir_all(folder).expect("the folder is writable");
    let copy = folder.join(path.file_name().expect("a file"));
    let mut bytes = std::fs::read(path).expect("it was written");
    change(&mut bytes);
    std::fs::write(&copy, bytes).expect("the folder is writable");
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    std::fs::File::options().write(true).open(&copy).and_then(|file| file.set_modified(time)).expect("it is there");
    copy
}

/// The fabrics of this machine: coherent, and with a flush instruction.
pub fn flushes() -> Vec<Flush> {
    [Flush::None].into_iter().chain(Flush::available().first().copied()).collect()
}

/// Pieces of memory in the region.
pub fn pieces(pool: &HostPool) -> u64 {
    pool.info().memory.pieces
}
