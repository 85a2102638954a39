//! Requests good memory, and reports what was granted.

use super::{DaxFacts, MapOptions, Obtained};
use crate::cpu::page_bytes;
use crate::numa;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Kind of memory behind a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anonymous memory, tmpfs, or the page cache of a disk; pages of this many bytes.
    Memory { page: u64 },
    /// A hugetlbfs file with huge pages of this many bytes; never swapped.
    HugeTlb { page: u64 },
    /// A DAX device.
    Dax(DaxFacts),
}

impl Kind {
    pub(super) fn of_file(file: &File) -> Result<Self, Errno> {
        /// `HUGETLBFS_MAGIC` of `linux/magic.h`.
        const HUGETLBFS: u32 = 0x958_458f6;
        let status = rustix::fs::fstatfs(file)?;
        // The width of `f_type` differs between C libraries; the magic number has 32 bits.
        if status.f_type as u32 == HUGETLBFS {
            return Ok(Self::HugeTlb { page: status.f_bsize.unsigned_abs().max(1) as u64 });
        }
        Ok(Self::Memory { page: page_bytes() })
    }

    pub(super) const fn page(self) -> u64 {
        match self {
            Self::Memory { page } | Self::HugeTlb { page } => page,
            Self::Dax(facts) => facts.align,
        }
    }
}

/// Sets placement and huge pages, for pages that are faulted in later.
pub(super) fn advise(base: *mut u8, len: u64, kind: Kind, options: &MapOptions, notes: &mut Vec<String>) {
    // A DAX device's memory has a fixed place.
    if let (Some(node), false) = (options.numa_node, matches!(kind, Kind::Dax(_))) {
        // SAFETY: callers pass their whole new mapping.
        if let Err(error) = unsafe { numa::place(base, len as usize, node) } {
            notes.push(format!("pages were not bound to NUMA node {node}: {error}"));
        }
    }
    if options.huge_pages && matches!(kind, Kind::Memory { .. }) {
        // SAFETY: advice changes no bytes, and callers pass their whole new mapping.
        let advised = unsafe { rustix::mm::madvise(base.cast(), len as usize, rustix::mm::Advice::LinuxHugepage) };
        if let Err(error) = advised {
            notes.push(format!("the kernel has no transparent huge pages for this memory: {error}"));
        }
    }
}

/// Faults every page in. A failure is a note: the region works without.
pub(super) fn populate(base: *mut u8, len: u64, notes: &mut Vec<String>) {
    // SAFETY: callers pass their whole mapping.
    if let Err(error) = unsafe { touch(base, len) } {
        notes.push(format!("pages were not touched in advance: {error}"));
    }
}

/// Faults pages in for writing, without changing a byte.
///
/// # Safety
/// Callers must guarantee that the pages are mapped.
///
/// # Errors
/// The kernel has no such call, or no memory.
pub(super) unsafe fn touch(base: *mut u8, len: u64) -> io::Result<()> {
    // SAFETY: populating changes no bytes, and callers guarantee the pages.
    unsafe { rustix::mm::madvise(base.cast(), len as usize, rustix::mm::Advice::LinuxPopulateWrite)? };
    Ok(())
}

/// Inspects the mapping and reports which requests were granted.
pub(super) fn obtained(base: *mut u8, len: u64, kind: Kind, options: &MapOptions, mut notes: Vec<String>) -> Obtained {
    let mut locked = !matches!(kind, Kind::Memory { .. });
    if options.prefault && !locked {
        // SAFETY: locking changes no bytes, and callers pass their whole mapping.
        match unsafe { rustix::mm::mlock(base.cast(), len as usize) } {
            Ok(()) => locked = true,
            Err(error) => notes.push(format!("memory was not locked ({error}); see the memlock limit")),
        }
    }
    let numa_node = match kind {
        Kind::Dax(facts) => {
            if facts.numa_node.is_none() {
                notes.push("the device's NUMA node is not known".into());
            }
            facts.numa_node
        }
        // SAFETY: `base` is the first byte of the callers' mapping.
        _ => match unsafe { numa::node_of_page(base) } {
            Ok(node) => Some(node),
            Err(error) => {
                notes.push(format!("the kernel does not tell the NUMA node: {error}"));
                None
            }
        },
    };
    // An untouched mapping has no pages yet, and inspecting it makes the kernel walk all memory of
    // this process, which may be large.
    let may_tell = options.prefault && matches!(kind, Kind::Memory { .. });
    let transparent_huge = may_tell && huge_bytes(base) > 0;
    if options.huge_pages && may_tell && !transparent_huge {
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        notes.push(format!("no transparent huge pages; shmem_enabled is `{}`", setting.trim()));
    }
    Obtained { page_bytes: kind.page(), transparent_huge, numa_node, locked, notes }
}

/// Bytes of the mapping that starts at `base` which the kernel maps with huge pages.
fn huge_bytes(base: *mut u8) -> u64 {
    fs::read_to_string("/proc/self/smaps").map_or(0, |text| huge_bytes_in(&text, base as u64))
}

fn huge_bytes_in(smaps: &str, base: u64) -> u64 {
    let start = format!("{base:x}-");
    let is_field = |line: &str| line.split_once(' ').is_some_and(|(name, _)| name.ends_with(':'));
    smaps
        .lines()
        .skip_while(|line| !line.starts_with(&start))
        .skip(1)
        .take_while(|line| is_field(line))
        .filter(|line| {
            ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"].iter().any(|name| line.starts_with(name))
        })
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}

/// Bytes that the file's file system can still allocate.
pub(super) fn free_space(file: &File, kind: Kind) -> u64 {
    if let Kind::HugeTlb { page } = kind {
        let counter = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages", page >> 10);
        let pages = fs::read_to_string(counter).ok().and_then(|text| text.trim().parse::<u64>().ok());
        return pages.unwrap_or(0).saturating_mul(page);
    }
    match rustix::fs::fstatvfs(file) {
        // A tmpfs without a limit reports no size; memory is the limit.
        Ok(status) if status.f_blocks == 0 => free_memory(),
        Ok(status) => status.f_bavail.saturating_mul(status.f_frsize),
        Err(_) => 0,
    }
}

/// Memory that programs can still allocate, for messages.
pub(super) fn free_memory() -> u64 {
    crate::cpu::memory_bytes(Path::new("/"), "MemAvailable").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_counted_in_the_right_mapping_only() {
        let smaps = "7f00-8f00 rw-s 0 00:01 7 /dev/zero (deleted)\nSize: 8192 kB\nAnonHugePages: 0 kB\n\
                     ShmemPmdMapped: 4096 kB\nVmFlags: rd wr\n8f00-9f00 rw-p 0 00:00 0\nAnonHugePages: 2048 kB\n";
        assert_eq!(huge_bytes_in(smaps, 0x7f00), 4096 << 10);
        assert_eq!(huge_bytes_in(smaps, 0x8f00), 2048 << 10);
        assert_eq!(huge_bytes_in(smaps, 0x9f00), 0);
    }
}
