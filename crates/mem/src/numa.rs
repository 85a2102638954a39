//! NUMA nodes: their description in sysfs, and the placement of threads and pages.
//!
//! A CXL memory expander appears as a node without processors, so a node with memory and no CPUs is
//! a candidate for a region.

use crate::region::Mapping;
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

/// The environment variable that turns [`stay_near`] off, with the value `off`.
pub const BIND_SETTING: &str = "CENOTE_NUMA_BIND";

/// The place of a thread after [`stay_near`].
#[derive(Debug)]
pub enum Place {
    /// On the processors of this node.
    Bound(u32),
    /// Where it was: there is no choice, the memory's node is not known, or [`BIND_SETTING`] is
    /// off.
    Unchanged,
    /// Where it was: the kernel did not bind it to this node.
    Refused(u32, io::Error),
}

/// Binds this thread, and the threads that it starts later, to the node nearest to a mapping's
/// memory (TraCT §4.4). It keeps to processors that the thread may use already.
pub fn stay_near(mapping: &Mapping) -> Place {
    let is_off = std::env::var_os(BIND_SETTING).is_some_and(|value| value == "off");
    let Some(memory) = mapping.obtained().numa_node.filter(|_| !is_off) else { return Place::Unchanged };
    match usable_cpus().map(|usable| near(&nodes(Path::new("/")), memory, &usable)) {
        Ok(None) => Place::Unchanged,
        Ok(Some((node, cpus))) => {
            bind_thread(&cpus).map_or_else(|error| Place::Refused(node, error), |()| Place::Bound(node))
        }
        Err(error) => Place::Refused(memory, error),
    }
}

/// The node nearest to memory on node `memory`, and its processors among `usable`. `None`: binding
/// changes nothing, or would leave no processor.
fn near(nodes: &[Node], memory: u32, usable: &[u32]) -> Option<(u32, Vec<u32>)> {
    let node = nearest(nodes, memory)?;
    let cpus: Vec<u32> = node.cpus.iter().copied().filter(|cpu| usable.contains(cpu)).collect();
    (!cpus.is_empty() && cpus.len() < usable.len()).then_some((node.id, cpus))
}

/// The nearest node with processors: `memory` itself, or for a CXL expander, which has none, the
/// node of its socket.
fn nearest(nodes: &[Node], memory: u32) -> Option<&Node> {
    let distances = &nodes.iter().find(|other| other.id == memory)?.distances;
    let distance = |at: usize| distances.get(at).copied().unwrap_or(u32::MAX);
    let with_cpus = nodes.iter().enumerate().filter(|(_, other)| !other.cpus.is_empty());
    with_cpus.min_by_key(|(at, _)| distance(*at)).map(|(_, nearest)| nearest)
}

/// The processors that this thread may use.
fn usable_cpus() -> io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect())
}

fn bind_thread(cpus: &[u32]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
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

    fn node(id: u32, cpus: &[u32], distances: &[u32]) -> Node {
        Node { id, cpus: cpus.to_vec(), memory_total_bytes: 0, memory_free_bytes: 0, distances: distances.to_vec() }
    }

    #[test]
    fn threads_stay_on_the_socket_of_the_memory() {
        // Two sockets, and an expander at the second one.
        let nodes = [node(0, &[0, 1], &[10, 21, 24]), node(1, &[2, 3], &[21, 10, 14]), node(2, &[], &[24, 14, 10])];
        let all = [0, 1, 2, 3];
        assert_eq!(near(&nodes, 0, &all), Some((0, vec![0, 1])));
        assert_eq!(near(&nodes, 2, &all), Some((1, vec![2, 3])), "an expander has no processors");
        assert_eq!(near(&nodes, 1, &[1, 2]), Some((1, vec![2])), "the thread was confined before");
        assert_eq!(near(&nodes, 1, &[0, 1]), None, "no processor would be left");
        assert_eq!(near(&nodes, 1, &[2, 3]), None, "the thread is there already");
        assert_eq!(near(&nodes, 7, &all), None, "there is no such node");
        assert_eq!(near(&[], 0, &all), None, "the kernel reports no nodes");
    }

    #[test]
    fn a_machine_of_one_node_changes_nothing() {
        let nodes = [node(0, &[0, 1], &[10]), node(1, &[], &[14, 10])];
        assert_eq!(near(&nodes, 0, &[0, 1]), None);
        assert_eq!(near(&nodes, 1, &[0, 1]), None, "an expander of the one socket");
    }

    #[test]
    fn a_thread_can_be_bound_to_some_of_its_processors() {
        // In a thread of its own, so that parallel tests keep all processors.
        std::thread::spawn(|| {
            let usable = usable_cpus().expect("readable");
            bind_thread(&usable[..1]).expect("it may use it already");
            assert_eq!(usable_cpus().expect("readable"), usable[..1]);
            assert!(bind_thread(&[]).is_err(), "a thread needs a processor");
            assert_eq!(usable_cpus().expect("readable"), usable[..1]);
        })
        .join()
        .expect("the thread ends well");
    }
}
