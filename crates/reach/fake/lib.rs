//! NIXL for tests, in its C interface, and calls that control it (`fake_nixl_…`).
//!
//! A registration names the file that its memory maps, and a reader reads that file: one-sidedly, between
//! processes, with neither end's help. So it stands for RDMA of regions in shared memory. Handles are
//! numbers, so a call with one that is no more fails.
//!
//! Budget of faults: reads that stay in progress, and reads of an owner that has ended, which fail.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the interface has pointers, and its callers are foreign to the compiler anyway"
)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::ptr::without_provenance_mut;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

type Handle = *mut c_void;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 1;
const FAILED: c_int = -1;

/// Memory of a process: where it lies, and what it maps.
#[derive(Clone)]
struct Memory {
    address: usize,
    length: usize,
    /// Path of the mapped file and the offset of the first byte in it. `None`: it has no file.
    file: Option<(String, u64)>,
}

/// A piece of a peer's memory, with its owner's process.
struct Piece {
    to: usize,
    length: usize,
    owner: u32,
    file: Arc<File>,
    at: u64,
}

/// What a reader knows of a peer.
struct Peer {
    owner: u32,
    memory: Vec<(Memory, Arc<File>)>,
}

#[derive(Default)]
struct Agent {
    name: String,
    memory: Vec<Memory>,
    peers: HashMap<String, Peer>,
}

/// A transfer, and its status once it has ended.
struct Transfer {
    pieces: Vec<Piece>,
    ended: Option<c_int>,
}

#[derive(Default)]
struct State {
    agents: HashMap<usize, Agent>,
    lists: HashMap<usize, Vec<(usize, usize)>>,
    transfers: HashMap<usize, Transfer>,
    last: usize,
    holds: bool,
    reads: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn number(&mut self) -> usize {
        self.last += 1;
        self.last
    }

    fn list(&mut self, to: *mut Handle) -> c_int {
        let number = self.number();
        self.lists.insert(number, Vec::new());
        give(to, without_provenance_mut(number))
    }

    /// The pieces of a transfer from a peer's memory to an agent's. `None`: they are not registered.
    fn pieces(&self, agent: usize, local: usize, remote: usize, name: &str) -> Option<Vec<Piece>> {
        let agent = self.agents.get(&agent)?;
        let peer = agent.peers.get(name)?;
        let (local, remote) = (self.lists.get(&local)?, self.lists.get(&remote)?);
        let is_within = |memory: &Memory, address: usize, length: usize| {
            address >= memory.address && address + length <= memory.address + memory.length
        };
        if local.len() != remote.len() {
            return None;
        }
        let piece = |(&(to, length), &(from, other)): (&(usize, usize), &(usize, usize))| {
            let (memory, file) = peer.memory.iter().find(|(memory, _)| is_within(memory, from, length))?;
            let is_ours = agent.memory.iter().any(|memory| is_within(memory, to, length));
            let (_, offset) = memory.file.as_ref()?;
            let at = offset + (from - memory.address) as u64;
            (is_ours && length == other).then(|| Piece { to, length, owner: peer.owner, file: Arc::clone(file), at })
        };
        local.iter().zip(remote).map(piece).collect()
    }

    /// Reads, unless reads are held.
    fn go_on(&mut self, transfer: usize) -> c_int {
        let (holds, Some(transfer)) = (self.holds, self.transfers.get_mut(&transfer)) else { return FAILED };
        if let Some(status) = transfer.ended {
            return status;
        }
        if holds {
            return IN_PROGRESS;
        }
        let is_whole = transfer.pieces.iter().all(|piece| {
            // SAFETY: the piece is of memory that its agent has registered, and that stays mapped until the
            // registration or the transfer ends.
            let bytes = unsafe { std::slice::from_raw_parts_mut(piece.to as *mut u8, piece.length) };
            is_alive(piece.owner) && piece.file.read_exact_at(bytes, piece.at).is_ok()
        });
        let status = if is_whole { SUCCESS } else { FAILED };
        transfer.ended = Some(status);
        self.reads += 1;
        status
    }
}

/// Whether a process runs. One that has ended and is not yet reaped has no program.
fn is_alive(process: u32) -> bool {
    fs::read_link(format!("/proc/{process}/exe")).is_ok()
}

/// The file behind an address of this process.
fn file_at(address: usize) -> Option<(String, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        // `start-end permissions offset device inode path`
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(words.nth(1)?)?);
        let path = words.nth(2)?;
        let is_it = (start..end).contains(&address) && path.starts_with('/');
        is_it.then(|| (path.to_owned(), (offset + address - start) as u64))
    })
}

/// A peer from its metadata: a line with the process, and one for each piece of memory.
fn peer_of(text: &str) -> Option<(String, Peer)> {
    let mut lines = text.lines();
    let (owner, name) = lines.next()?.split_once(' ')?;
    let memory = lines.map(|line| {
        let mut words = line.splitn(4, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (address, length, offset) = (number()?, number()?, number()?);
        let path = words.next()?;
        let file = Arc::new(File::open(path).ok()?);
        let file_place = Some((path.to_owned(), offset));
        Some((Memory { address: address as usize, length: length as usize, file: file_place }, file))
    });
    Some((name.to_owned(), Peer { owner: owner.parse().ok()?, memory: memory.collect::<Option<_>>()? }))
}

fn give<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return FAILED;
    }
    // SAFETY: callers pass an address of their own for each result, as the interface demands.
    unsafe { to.write(value) };
    SUCCESS
}

fn text(from: *const c_char) -> String {
    // SAFETY: callers pass a string that ends with a zero, as the interface demands.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// A string for the caller to free.
fn given(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the string is one; the copy is allocated with `malloc`, as callers expect.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// NIXL's calls. `nixl.h` of its C interface documents them.
macro_rules! calls {
    ($(fn $symbol:ident($($name:ident: $type:ty),*) $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $symbol($($name: $type),*) -> c_int $body
        )*
    };
}

calls! {
    fn nixl_capi_create_configured_agent(name: *const c_char, _config: *const c_void, to: *mut Handle) {
        let mut state = state();
        let number = state.number();
        state.agents.insert(number, Agent { name: text(name), ..Agent::default() });
        give(to, without_provenance_mut(number))
    }

    fn nixl_capi_destroy_agent(agent: Handle) {
        if state().agents.remove(&agent.addr()).is_some() { SUCCESS } else { FAILED }
    }

    fn nixl_capi_get_plugin_params(_agent: Handle, name: *const c_char, memories: *mut Handle, params: *mut Handle) {
        if text(name) != "UCX" {
            return FAILED;
        }
        give(memories, without_provenance_mut(1)).min(give(params, without_provenance_mut(1)))
    }

    fn nixl_capi_destroy_mem_list(_list: Handle) {
        SUCCESS
    }

    fn nixl_capi_destroy_params(_params: Handle) {
        SUCCESS
    }

    fn nixl_capi_create_backend(_agent: Handle, _name: *const c_char, _params: Handle, to: *mut Handle) {
        give(to, without_provenance_mut(1))
    }

    fn nixl_capi_destroy_backend(_backend: Handle) {
        SUCCESS
    }

    fn nixl_capi_get_local_md(agent: Handle, data: *mut *mut c_void, length: *mut usize) {
        let state = state();
        let Some(agent) = state.agents.get(&agent.addr()) else { return FAILED };
        let mut said = format!("{} {}\n", std::process::id(), agent.name);
        for memory in &agent.memory {
            if let Some((path, offset)) = &memory.file {
                said += &format!("{} {} {offset} {path}\n", memory.address, memory.length);
            }
        }
        give(length, said.len()).min(give(data, given(&said).cast()))
    }

    fn nixl_capi_load_remote_md(agent: Handle, data: *const c_void, length: usize, name: *mut *mut c_char) {
        // SAFETY: callers pass so many bytes, as the interface demands.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
        let Some((peer_name, peer)) = std::str::from_utf8(bytes).ok().and_then(peer_of) else { return FAILED };
        let mut state = state();
        let Some(agent) = state.agents.get_mut(&agent.addr()) else { return FAILED };
        let said = given(&peer_name);
        agent.peers.insert(peer_name, peer);
        give(name, said)
    }

    fn nixl_capi_create_reg_dlist(_memory: c_int, to: *mut Handle) {
        state().list(to)
    }

    fn nixl_capi_destroy_reg_dlist(list: Handle) {
        if state().lists.remove(&list.addr()).is_some() { SUCCESS } else { FAILED }
    }

    fn nixl_capi_reg_dlist_add_desc(
        list: Handle, address: usize, length: usize, _device: u64, _data: *const c_void, _data_length: usize
    ) {
        nixl_capi_xfer_dlist_add_desc(list, address, length, 0)
    }

    fn nixl_capi_register_mem(agent: Handle, list: Handle, _options: Handle) {
        let mut state = state();
        let Some(places) = state.lists.get(&list.addr()).cloned() else { return FAILED };
        let Some(agent) = state.agents.get_mut(&agent.addr()) else { return FAILED };
        agent.memory.extend(places.iter().map(|&(address, length)| Memory { address, length, file: file_at(address) }));
        SUCCESS
    }

    fn nixl_capi_deregister_mem(agent: Handle, list: Handle, _options: Handle) {
        let mut state = state();
        let Some(places) = state.lists.get(&list.addr()).cloned() else { return FAILED };
        let Some(agent) = state.agents.get_mut(&agent.addr()) else { return FAILED };
        agent.memory.retain(|memory| !places.contains(&(memory.address, memory.length)));
        SUCCESS
    }

    fn nixl_capi_create_xfer_dlist(_memory: c_int, to: *mut Handle) {
        state().list(to)
    }

    fn nixl_capi_destroy_xfer_dlist(list: Handle) {
        nixl_capi_destroy_reg_dlist(list)
    }

    fn nixl_capi_xfer_dlist_add_desc(list: Handle, address: usize, length: usize, _device: u64) {
        let mut state = state();
        let Some(list) = state.lists.get_mut(&list.addr()) else { return FAILED };
        list.push((address, length));
        SUCCESS
    }

    fn nixl_capi_create_xfer_req(
        agent: Handle, _operation: c_int, local: Handle, remote: Handle, name: *const c_char, to: *mut Handle,
        _options: Handle
    ) {
        let mut state = state();
        let Some(pieces) = state.pieces(agent.addr(), local.addr(), remote.addr(), &text(name)) else { return FAILED };
        let number = state.number();
        state.transfers.insert(number, Transfer { pieces, ended: None });
        give(to, without_provenance_mut(number))
    }

    fn nixl_capi_post_xfer_req(_agent: Handle, transfer: Handle, _options: Handle) {
        state().go_on(transfer.addr())
    }

    fn nixl_capi_get_xfer_status(_agent: Handle, transfer: Handle) {
        state().go_on(transfer.addr())
    }

    fn nixl_capi_release_xfer_req(_agent: Handle, transfer: Handle) {
        if state().transfers.remove(&transfer.addr()).is_some() { SUCCESS } else { FAILED }
    }

    fn nixl_capi_destroy_xfer_req(_transfer: Handle) {
        SUCCESS
    }
}

/// Keeps reads in progress, or lets them go on.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_hold(holds: bool) {
    state().holds = holds;
}

/// Reads of this process that have ended.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nixl_reads() -> u64 {
    state().reads
}
