//! NUMA nodes: their description in sysfs, and the placement of threads and pages.
//!
//! A CXL memory expander appears as a node without processors, so a node with memory and no CPUs is
//! a candidate for a region.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

// Constants of `linux/mempolicy.h`; the libc crate has the policies but not these flags.
const MPOL_MF_MOVE: libc::c_uint = 1 << 1;
const MPOL_F_NODE: libc::c_ulong = 1 << 0;
const MPOL_F_ADDR: libc::c_ulong = 1 << 1;

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number in the kernel.
    pub id: u32,
    /// Its processors; none for a memory expander.
    pub cpus: Vec<u32>,
    /// Bytes of memory.
    pub memory_total_bytes: u64,
    /// Bytes of memory that are free.
    pub memory_free_bytes: u64,
    /// The firmware's distances to the online nodes, in the order of node numbers; 10 is local.
    pub distances: Vec<u32>,
}

/// The nodes below `root` (`/` except in tests), by number. Empty if the kernel reports none.
#[must_use]
pub fn nodes(root: &Path) -> Vec<Node> {
    let directory = root.join("sys/devices/system/node");
    let mut nodes: Vec<Node> = fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .map(|id| read_node(&directory.join(format!("node{id}")), id))
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn read_node(directory: &Path, id: u32) -> Node {
    let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let meminfo = text("meminfo");
    // `Node 0 MemTotal:  1234 kB`
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.split_once(name));
        line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
    };
    Node {
        id,
        cpus: parse_list(text("cpulist").trim()),
        memory_total_bytes: bytes("MemTotal:"),
        memory_free_bytes: bytes("MemFree:"),
        distances: text("distance").split_whitespace().filter_map(|number| number.parse().ok()).collect(),
    }
}

/// Parses the kernel's list format: `0-3,8,10-11`. Unreadable parts are left out.
fn parse_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // A number above Linux's limit of processors is invalid.
        (first <= last && last < 1 << 16).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Restricts this thread to the processors of `node`.
///
/// # Errors
/// The node does not exist, has no processors, or this thread may use none of them.
pub fn bind_thread_to_node(node: u32) -> io::Result<()> {
    let nodes = nodes(Path::new("/"));
    let cpus = &nodes.iter().find(|candidate| candidate.id == node).ok_or_else(|| missing(node))?.cpus;
    if cpus.is_empty() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("NUMA node {node} has no processors")));
    }
    let mut set = rustix::thread::CpuSet::new();
    let fitting = cpus.iter().filter(|cpu| (**cpu as usize) < rustix::thread::CpuSet::MAX_CPU);
    fitting.for_each(|cpu| set.set(*cpu as usize));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn missing(node: u32) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no NUMA node {node}"))
}

/// Binds pages of a mapping to a node, and moves existing pages if possible.
///
/// # Safety
/// Callers must guarantee that `base` and `len` are a whole mapping of theirs.
pub(crate) unsafe fn place(base: *mut u8, len: usize, node: u32) -> io::Result<()> {
    const WORDS: usize = 16;
    let bits = u64::BITS as usize;
    let mut mask = [0_u64; WORDS];
    *mask.get_mut(node as usize / bits).ok_or_else(|| missing(node))? |= 1 << (node as usize % bits);
    // The kernel reads one bit less than the length says (mbind(2), bugs).
    let max_node = WORDS * bits + 1;
    // SAFETY: callers guarantee the mapping, and the mask has as many bits as the call says.
    // Placement changes no bytes.
    let done =
        unsafe { libc::syscall(libc::SYS_mbind, base, len, libc::MPOL_BIND, mask.as_ptr(), max_node, MPOL_MF_MOVE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node that holds the page at `address`; faults it in if need be.
///
/// # Safety
/// Callers must guarantee that `address` is mapped and readable.
pub(crate) unsafe fn node_of_page(address: *mut u8) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    // SAFETY: `node` is a valid place for the answer, and no mask is requested. The kernel checks
    // the address.
    let done = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, std::ptr::null_mut::<u64>(), 0_usize, address, flags)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(|_| io::Error::other("the kernel named no node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_in_order() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (id, cpus, kib) in [(10, "\n", 4096), (0, "0-1,4\n", 1024)] {
            let directory = root.path().join(format!("sys/devices/system/node/node{id}"));
            fs::create_dir_all(&directory).expect("made");
            fs::write(directory.join("cpulist"), cpus).expect("written");
            let meminfo = format!("Node {id} MemTotal:       {kib} kB\nNode {id} MemFree:        12 kB\n");
            fs::write(directory.join("meminfo"), meminfo).expect("written");
            fs::write(directory.join("distance"), "10 20\n").expect("written");
        }
        let nodes = nodes(root.path());
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 10]);
        assert_eq!(nodes[0].cpus, [0, 1, 4]);
        assert_eq!(nodes[0].memory_total_bytes, 1 << 20);
        assert_eq!(nodes[0].memory_free_bytes, 12 << 10);
        assert_eq!(nodes[0].distances, [10, 20]);
        assert!(nodes[1].cpus.is_empty(), "a memory expander has no processors");
    }

    #[test]
    fn lists_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,7"), [0, 1, 2, 7]);
        assert!(parse_list("").is_empty());
        assert!(parse_list("3-1,x,4294967295").is_empty());
    }

    #[test]
    fn a_thread_can_be_bound_where_there_are_processors() {
        let Some(node) = nodes(Path::new("/")).into_iter().find(|node| !node.cpus.is_empty()) else { return };
        // In a thread of its own, so that parallel tests keep all processors.
        std::thread::spawn(move || {
            // A container may be denied the node's processors; then the kernel reports it.
            if bind_thread_to_node(node.id).is_ok() {
                let set = rustix::thread::sched_getaffinity(None).expect("readable");
                assert!(
                    (0..rustix::thread::CpuSet::MAX_CPU)
                        .all(|cpu| !set.is_set(cpu) || node.cpus.contains(&(cpu as u32)))
                );
            }
            assert!(bind_thread_to_node(9999).is_err());
        })
        .join()
        .expect("the thread ends well");
    }
}
