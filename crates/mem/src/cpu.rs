//! Features of the processor and the machine that matter to a shared region: plain data for
//! `doctor` and bug reports.

use crate::checksum::Level;
use crate::numa::{self, Node};
use crate::region::DaxFacts;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// All facts that decide how a region can be mapped and flushed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Rust's name of the architecture: `x86_64`, `aarch64`.
    pub architecture: String,
    /// The processor's name, if `/proc/cpuinfo` has one.
    pub processor: Option<String>,
    /// The instructions that write cache lines back.
    pub flush: FlushInstructions,
    /// The kernel of payload copies, in [`Level::name`]'s words.
    pub simd: String,
    /// NUMA nodes; a node without processors may be a CXL memory expander.
    pub numa_nodes: Vec<Node>,
    /// Bytes of memory.
    pub memory_total_bytes: Option<u64>,
    /// Bytes of memory that programs can still allocate.
    pub memory_available_bytes: Option<u64>,
    /// Bytes of a base page.
    pub page_bytes: u64,
    /// Reserved huge pages, by size.
    pub huge_pages: Vec<HugePages>,
    /// The chosen word of `transparent_hugepage/enabled`, for private memory.
    pub transparent_huge: Option<String>,
    /// The chosen word of `transparent_hugepage/shmem_enabled`, for tmpfs and shared memory.
    pub transparent_huge_shmem: Option<String>,
    /// Space in `/dev/shm`, which holds `shm:` regions.
    pub shm: Option<Space>,
    /// Mount points of hugetlbfs.
    pub hugetlbfs_mounts: Vec<String>,
    /// DAX devices, by name.
    pub dax_devices: Vec<DaxDevice>,
    /// Names on the CXL bus: `mem0`, `decoder0.0`, `region0`.
    pub cxl_devices: Vec<String>,
    /// Limit of locked memory of this process.
    pub memlock: Limit,
    /// Limit of open files of this process.
    pub open_files: Limit,
}

/// Instructions that write cache lines back. On other architectures than x86-64 all are `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlushInstructions {
    /// Writes back and drops a line, ordered with other `clflush`.
    pub clflush: bool,
    /// Writes back and drops a line; several run at once, and a fence waits for them.
    pub clflushopt: bool,
    /// Writes back and may keep a line: usable for publishing, not for refreshing.
    pub clwb: bool,
    /// Stores 64 bytes at once, around the cache.
    pub movdir64b: bool,
}

/// Reserved huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages reserved.
    pub total: u64,
    /// Pages not in use.
    pub free: u64,
}

/// Space in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes in all; 0 if the file system has no limit.
    pub total_bytes: u64,
    /// Bytes this user can still write.
    pub free_bytes: u64,
}

/// A DAX device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaxDevice {
    /// `dax0.0`.
    pub name: String,
    /// Whether `/dev` has a character device of this name. Without one the kernel uses the memory
    /// itself (`daxctl reconfigure-device --mode=devdax` changes that).
    pub mappable: bool,
    /// Bytes, if known.
    pub size_bytes: Option<u64>,
    /// Alignment of mappings in bytes, if known.
    pub align_bytes: Option<u64>,
    /// NUMA node of the memory, if known.
    pub numa_node: Option<u32>,
}

/// A resource limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The current limit; `None`: unlimited.
    pub soft: Option<u64>,
    /// The highest limit that the process may set; `None`: unlimited.
    pub hard: Option<u64>,
}

/// Bytes of a page of this machine's memory: 4 KiB, and up to 64 KiB on Arm.
#[must_use]
pub fn page_bytes() -> u64 {
    #[cfg(test)]
    if let Some(bytes) = fake_page::BYTES.get() {
        return bytes;
    }
    rustix::param::page_size() as u64
}

/// Larger pages for tests of one thread. The kernel's own are smaller, so what is right with these is right with
/// those.
#[cfg(test)]
pub(crate) mod fake_page {
    use std::cell::Cell;

    thread_local! {
        pub static BYTES: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Does `work` with pages of `bytes` bytes.
    pub fn with<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
        BYTES.set(Some(bytes));
        let done = work();
        BYTES.set(None);
        done
    }
}

/// Probes the machine. Files are read below `root` (`/` except in tests); processor, page size and
/// limits are this process's own. Unreadable facts are left out.
#[must_use]
pub fn probe(root: &Path) -> Machine {
    let limit = |resource| {
        let limit = rustix::process::getrlimit(resource);
        Limit { soft: limit.current, hard: limit.maximum }
    };
    Machine {
        architecture: std::env::consts::ARCH.to_owned(),
        processor: processor(root),
        flush: flush_instructions(),
        simd: Level::chosen().name().to_owned(),
        numa_nodes: numa::nodes(root),
        memory_total_bytes: memory_bytes(root, "MemTotal"),
        memory_available_bytes: memory_bytes(root, "MemAvailable"),
        page_bytes: page_bytes(),
        huge_pages: huge_pages(root),
        transparent_huge: chosen_word(root, "enabled"),
        transparent_huge_shmem: chosen_word(root, "shmem_enabled"),
        shm: space(&root.join("dev/shm")),
        hugetlbfs_mounts: hugetlbfs_mounts(root),
        dax_devices: dax_devices(root),
        cxl_devices: names(&root.join("sys/bus/cxl/devices")),
        memlock: limit(rustix::process::Resource::Memlock),
        open_files: limit(rustix::process::Resource::Nofile),
    }
}

/// A field of `/proc/meminfo`, in bytes.
pub(crate) fn memory_bytes(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "some compilers call these safe")]
pub(crate) fn flush_instructions() -> FlushInstructions {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 processor has the instruction, and leaves above the highest are not
    // read.
    let (features, extended) = unsafe {
        let highest = __cpuid(0).eax;
        (__cpuid(1), (highest >= 7).then(|| __cpuid_count(7, 0)))
    };
    let bit = |word: u32, bit: u32| word >> bit & 1 == 1;
    FlushInstructions {
        clflush: bit(features.edx, 19),
        clflushopt: extended.is_some_and(|leaf| bit(leaf.ebx, 23)),
        clwb: extended.is_some_and(|leaf| bit(leaf.ebx, 24)),
        movdir64b: extended.is_some_and(|leaf| bit(leaf.ecx, 28)),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn flush_instructions() -> FlushInstructions {
    FlushInstructions::default()
}

fn processor(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
    let (_, name) = text.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(name.trim().to_owned())
}

fn huge_pages(root: &Path) -> Vec<HugePages> {
    let directory = root.join("sys/kernel/mm/hugepages");
    let read = |name: &str| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| fs::read_to_string(directory.join(name).join(file)).ok()?.trim().parse().ok();
        Some(HugePages {
            page_bytes: kib << 10,
            total: number("nr_hugepages").unwrap_or(0),
            free: number("free_hugepages").unwrap_or(0),
        })
    };
    let mut sizes: Vec<_> = names(&directory).iter().filter_map(|name| read(name)).collect();
    sizes.sort_by_key(|size| size.page_bytes);
    sizes
}

/// The word in brackets: `always within_size [advise] never`.
fn chosen_word(root: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage").join(file)).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Space of the file system that holds a path; `None`: it cannot be looked at.
#[must_use]
pub fn space(directory: &Path) -> Option<Space> {
    let status = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
    Some(Space { total_bytes: bytes(status.f_blocks), free_bytes: bytes(status.f_bavail) })
}

fn hugetlbfs_mounts(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("proc/mounts")).unwrap_or_default();
    let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs")).map(|fields| unescape(fields[1])).collect()
}

/// Mount points encode blanks as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

fn dax_devices(root: &Path) -> Vec<DaxDevice> {
    let nodes = names(&root.join("dev"));
    let bus = root.join("sys/bus/dax/devices");
    let mut all: Vec<String> = names(&bus);
    all.extend(nodes.iter().filter(|name| name.starts_with("dax")).cloned());
    all.sort();
    all.dedup();
    let device = |name: String| {
        let facts = DaxFacts::read_device(&bus.join(&name)).ok();
        DaxDevice {
            mappable: nodes.contains(&name),
            size_bytes: facts.map(|facts| facts.size),
            align_bytes: facts.map(|facts| facts.align),
            numa_node: facts.and_then(|facts| facts.numa_node),
            name,
        }
    };
    all.into_iter().map(device).collect()
}

/// Names in a directory, sorted; none if there is no directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("files have directories")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[test]
    fn a_machine_with_everything_is_described() {
        let root = tree(&[
            ("proc/cpuinfo", "processor : 0\nmodel name\t: Some Processor @ 2 GHz\n"),
            ("proc/meminfo", "MemTotal:       2048 kB\nMemAvailable:   1024 kB\n"),
            ("proc/mounts", "none /mnt/huge\\040pages hugetlbfs rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nbroken\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "5\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n"),
            ("sys/bus/dax/devices/dax0.0/size", "1073741824\n"),
            ("sys/bus/dax/devices/dax0.0/align", "2097152\n"),
            ("sys/bus/dax/devices/dax0.0/target_node", "1\n"),
            ("sys/bus/dax/devices/dax1.0/size", "0\n"),
            ("sys/bus/cxl/devices/mem0/serial", "0x1\n"),
            ("sys/devices/system/node/node0/cpulist", "0\n"),
            ("dev/dax0.0", ""),
            ("dev/shm/file", ""),
        ]);
        let machine = probe(root.path());
        assert_eq!(machine.processor.as_deref(), Some("Some Processor @ 2 GHz"));
        assert_eq!((machine.memory_total_bytes, machine.memory_available_bytes), (Some(2 << 20), Some(1 << 20)));
        let huge = |page_bytes, total, free| HugePages { page_bytes, total, free };
        assert_eq!(machine.huge_pages, [huge(2 << 20, 8, 5), huge(1 << 30, 0, 0)]);
        assert_eq!(machine.transparent_huge.as_deref(), Some("always"));
        assert_eq!(machine.transparent_huge_shmem.as_deref(), Some("advise"));
        assert_eq!(machine.hugetlbfs_mounts, ["/mnt/huge pages"]);
        assert_eq!(machine.cxl_devices, ["mem0"]);
        assert_eq!(machine.numa_nodes.len(), 1);
        assert!(machine.shm.expect("a directory").total_bytes > 0);
        let [whole, broken] = machine.dax_devices.as_slice() else { panic!("{:?}", machine.dax_devices) };
        assert_eq!((whole.mappable, whole.size_bytes, whole.numa_node), (true, Some(1 << 30), Some(1)));
        assert_eq!((broken.mappable, broken.size_bytes), (false, None));
    }

    #[test]
    fn a_machine_with_nothing_is_described_too() {
        let machine = probe(tree(&[]).path());
        assert_eq!((machine.shm, machine.memory_total_bytes), (None, None));
        assert!(machine.dax_devices.is_empty() && machine.numa_nodes.is_empty());
    }

    #[test]
    fn this_machine_is_described_and_survives_json() {
        let machine = probe(Path::new("/"));
        assert!(machine.page_bytes >= 4096);
        assert!(machine.memory_total_bytes.is_some_and(|bytes| bytes > 0));
        if cfg!(target_arch = "x86_64") {
            assert!(machine.flush.clflush, "every x86-64 processor has it");
        }
        let text = serde_json::to_string(&machine).expect("serialisable");
        assert_eq!(serde_json::from_str::<Machine>(&text).expect("readable"), machine);
    }
}
