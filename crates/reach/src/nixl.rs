//! [`Remote`] by NIXL over UCX: RDMA, shared memory or TCP, as UCX finds it.
//!
//! One agent for each peer, used by one thread at a time. A transfer that misses its deadline cannot be
//! called back, and may still write into its memory. So that memory, the transfer and the agent are kept
//! aside while NIXL says that the transfer is in progress.
//!
//! The end of a failed transfer is not known: NIXL reports the failure of one piece while others are in
//! flight, and a release cancels none of them. Only the end of the agent, with its thread, its workers and
//! its registrations, is the end of them all. So memory is freed after the agent that wrote to it.

mod calls;
#[cfg(test)]
pub(crate) mod tests;

use crate::remote::{BYTES_MAX, Landing, Piece, ReadError, Remote, checked_sum};
use calls::{AgentConfig, Calls, DRAM, Handle, IN_PROGRESS, READ, SUCCESS};
use cenote_base::Deadline;
use cenote_mem::{Fabric, ReadOnly};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// Name of the library without a path.
const LIBRARY: &str = "libnixl_capi.so";
/// The only backend that reads one-sidedly between processes.
const BACKEND: &CStr = c"UCX";
/// Most connections to one peer whose last transfer has not ended. Beyond this no new one is made to it.
const STUCK_MAX: usize = 2;
/// Looks at a transfer that yield the processor, before those that pause.
const YIELDS: u32 = 64;
/// Pause between later looks.
const PAUSE: Duration = Duration::from_micros(50);
/// Longest sleep of an agent's thread, in microseconds. Events wake it; NIXL wants a bound, because some of UCX's
/// wake nothing. Without a sleep it takes a core, at all times, of the owner and of each reader's connection.
const LOOK_PAUSE_US: u64 = 10_000;
/// Signals whose handlers UCX replaces when it is loaded, SIGBUS among them, which regions need.
const SIGNALS: [c_int; 4] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE];

/// NIXL is missing or refuses.
#[derive(Debug, Error)]
#[error("cannot {what}: {why}")]
pub struct NixlError {
    what: &'static str,
    why: String,
}

impl NixlError {
    #[allow(clippy::needless_pass_by_value, reason = "callers have errors and texts that they use no more")]
    fn new(what: &'static str, why: impl ToString) -> Self {
        Self { what, why: why.to_string() }
    }
}

/// The opened library.
pub struct Nixl {
    calls: Calls,
    stuck: Mutex<Vec<Connection>>,
}

/// Held while UCX may be loaded: of two threads that keep handlers, the second would keep UCX's.
static LOADING: Mutex<()> = Mutex::new(());

/// Handlers of signals, put back by the drop. One thread at a time has them.
struct Handlers {
    actions: [libc::sigaction; SIGNALS.len()],
    _alone: MutexGuard<'static, ()>,
}

impl Handlers {
    fn keep() -> Self {
        let alone = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        let actions = SIGNALS.map(|signal| {
            // SAFETY: all zeros is a valid `sigaction` of no handler.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the call only writes to `action`.
            unsafe { libc::sigaction(signal, null(), &raw mut action) };
            action
        });
        Self { actions, _alone: alone }
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, action) in SIGNALS.into_iter().zip(&self.actions) {
            // SAFETY: the action was this signal's a moment ago, so its handler is valid.
            unsafe { libc::sigaction(signal, action, null_mut()) };
        }
    }
}

impl Nixl {
    /// Opens `libnixl_capi.so`: the named file, or what the dynamic linker finds.
    ///
    /// # Errors
    /// It is not there, or is no NIXL of this interface.
    pub fn open(path: Option<&Path>) -> Result<Arc<Self>, NixlError> {
        let name = path.map_or(OsStr::new(LIBRARY), Path::as_os_str);
        let hint = || {
            let error = "install the Python package nixl-cu12 and name its library with --nixl, the setting nixl, or CENOTE_NIXL \
                 (docs/guides/reach.md)";
            NixlError::new("open NIXL", format!("{}: {error}", PathBuf::from(name).display()))
        };
        if path.is_some_and(|path| !path.is_file()) {
            return Err(hint());
        }
        let handlers = Handlers::keep();
        // SAFETY: the operator names NIXL's library, whose initializers may run in any process.
        let library = unsafe { libloading::Library::new(name) }
            .map_err(|error| NixlError::new("open NIXL", format!("{error}; {}", hint().why)))?;
        drop(handlers);
        // SAFETY: the library has NIXL's names, and is never closed.
        let calls = unsafe { Calls::of(&library)? };
        // UCX has threads and handlers of the process's end, whose code must stay.
        std::mem::forget(library);
        Ok(Arc::new(Self { calls, stuck: Mutex::default() }))
    }

    /// Forgets connections whose last transfer has ended. Returns the number of the others to this peer.
    fn reap(&self, address: &str) -> usize {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let ended: Vec<Connection> = stuck.extract_if(.., |connection| connection.has_ended()).collect();
        let left = stuck.iter().filter(|connection| connection.address == address).count();
        drop(stuck);
        drop(ended);
        left
    }
}

fn check(what: &'static str, status: c_int) -> Result<(), NixlError> {
    if status == SUCCESS { Ok(()) } else { Err(NixlError::new(what, format!("NIXL's status {status}"))) }
}

/// An agent with UCX.
struct Agent {
    nixl: Arc<Nixl>,
    handle: Handle,
}

// SAFETY: an agent has no thread of its own that depends on the caller's, and `Agent` is used by one
// thread at a time, because nothing here is `Sync`.
unsafe impl Send for Agent {}

impl Agent {
    fn new(nixl: &Arc<Nixl>, name: &str) -> Result<Self, NixlError> {
        let name = CString::new(name).map_err(|error| NixlError::new("name an agent", error))?;
        let config = AgentConfig {
            // It serves reads of this process's memory where the network cannot, and ends ours.
            enable_prog_thread: true,
            enable_listen_thread: false,
            listen_port: 0,
            thread_sync: 0,
            num_workers: 1,
            pthr_delay_us: LOOK_PAUSE_US,
            lthr_delay_us: 100_000,
            capture_telemetry: false,
        };
        let mut handle = null_mut();
        let _handlers = Handlers::keep();
        // SAFETY: the name and the configuration live for the call, which writes a handle.
        check("make a NIXL agent", unsafe {
            (nixl.calls.create_agent)(name.as_ptr(), &raw const config, &raw mut handle)
        })?;
        let agent = Self { nixl: Arc::clone(nixl), handle };
        agent.add_backend()?;
        Ok(agent)
    }

    fn add_backend(&self) -> Result<(), NixlError> {
        let calls = &self.nixl.calls;
        let (mut memories, mut params, mut backend) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the agent lives, and the call writes two handles, which are destroyed below.
        check("find NIXL's UCX", unsafe {
            (calls.plugin_params)(self.handle, BACKEND.as_ptr(), &raw mut memories, &raw mut params)
        })?;
        // SAFETY: agent and parameters live, and the call writes a handle.
        let made = unsafe { (calls.create_backend)(self.handle, BACKEND.as_ptr(), params, &raw mut backend) };
        // SAFETY: the handles were returned above, and nothing else destroys them. The agent keeps the
        // backend itself.
        unsafe {
            (calls.destroy_mem_list)(memories);
            (calls.destroy_params)(params);
            if made == SUCCESS {
                (calls.destroy_backend)(backend);
            }
        }
        check("start NIXL's UCX", made)
    }

    /// Registers memory.
    ///
    /// # Safety
    /// Callers must guarantee that the memory stays mapped until [`Agent::deregister`] or the agent's
    /// drop.
    unsafe fn register(&self, address: usize, length: usize) -> Result<Handle, NixlError> {
        let calls = &self.nixl.calls;
        let mut list = null_mut();
        // SAFETY: the call writes a handle.
        check("list memory for NIXL", unsafe { (calls.create_registrations)(DRAM, &raw mut list) })?;
        // SAFETY: the list lives. There is no metadata, so its pointer is not read.
        let added = unsafe { (calls.add_registration)(list, address, length, 0, null(), 0) };
        let done = check("list memory for NIXL", added).and_then(|()| {
            // SAFETY: agent and list live, and the caller guarantees the memory.
            check("register memory with NIXL", unsafe { (calls.register)(self.handle, list, null_mut()) })
        });
        if let Err(error) = done {
            // SAFETY: the list was made above, and is not used again.
            unsafe { (calls.destroy_registrations)(list) };
            return Err(error);
        }
        Ok(list)
    }

    /// Ends a registration. After an error NIXL may still use the memory.
    ///
    /// # Safety
    /// Callers must guarantee that the list is one that [`Agent::register`] of this agent returned.
    unsafe fn deregister(&self, list: Handle) -> Result<(), NixlError> {
        // SAFETY: the agent lives, and the caller guarantees the list.
        check("end a registration", unsafe { (self.nixl.calls.deregister)(self.handle, list, null_mut()) })
    }

    fn metadata(&self) -> Result<Vec<u8>, NixlError> {
        let (mut data, mut length) = (null_mut::<c_void>(), 0);
        // SAFETY: the agent lives, and the call writes an address and a length.
        check("describe memory to peers", unsafe {
            (self.nixl.calls.local_metadata)(self.handle, &raw mut data, &raw mut length)
        })?;
        // SAFETY: on success the address is of so many bytes, which the call has allocated.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec();
        // SAFETY: the call has allocated them with `malloc`, for its caller to free.
        unsafe { libc::free(data) };
        Ok(bytes)
    }

    /// Learns of a peer's memory. Returns the peer's name.
    fn load(&self, metadata: &[u8]) -> Result<CString, NixlError> {
        let mut name: *mut c_char = null_mut();
        // SAFETY: the bytes live for the call, which writes an address.
        check("understand the peer's metadata", unsafe {
            (self.nixl.calls.load_metadata)(self.handle, metadata.as_ptr().cast(), metadata.len(), &raw mut name)
        })?;
        // SAFETY: on success it is a string that ends with a zero.
        let owned = unsafe { CStr::from_ptr(name) }.to_owned();
        // SAFETY: the call has allocated it with `strdup`, for its caller to free.
        unsafe { libc::free(name.cast()) };
        Ok(owned)
    }
}

impl Agent {
    /// Ends the agent, with its thread, its workers, and all its registrations. Returns whether NIXL did:
    /// from then on nothing reads or writes memory that was registered.
    fn end(&mut self) -> bool {
        let handle = std::mem::replace(&mut self.handle, null_mut());
        // SAFETY: the handle was made with this value, and is forgotten above.
        handle.is_null() || unsafe { (self.nixl.calls.destroy_agent)(handle) } == SUCCESS
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// A region's memory, registered for peers.
pub struct Registered {
    agent: Agent,
    list: Handle,
    metadata: Vec<u8>,
    address: usize,
    /// Keeps the memory mapped. Dropped last.
    fabric: Arc<ReadOnly>,
}

// SAFETY: as for `Agent`; the list is used by the drop alone.
unsafe impl Send for Registered {}
// SAFETY: `&Registered` gives facts that never change, and calls nothing.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers a region that this process maps to read.
    ///
    /// # Errors
    /// NIXL refuses.
    pub fn new(nixl: &Arc<Nixl>, name: &str, fabric: Arc<ReadOnly>) -> Result<Self, NixlError> {
        let agent = Agent::new(nixl, name)?;
        let length = usize::try_from(fabric.len()).map_err(|error| NixlError::new("register the region", error))?;
        let address = fabric.address(0, fabric.len()) as usize;
        // SAFETY: `fabric` keeps the memory mapped, and is dropped after the agent.
        let list = unsafe { agent.register(address, length)? };
        let metadata = agent.metadata()?;
        Ok(Self { agent, list, metadata, address, fabric })
    }

    /// What peers need to read it.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// Address of its first byte in this process, as peers name it.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// The registered region.
    #[must_use]
    pub const fn fabric(&self) -> &Arc<ReadOnly> {
        &self.fabric
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.agent.end() {
            // NIXL may still read the memory, so it stays mapped.
            std::mem::forget(Arc::clone(&self.fabric));
        }
        // SAFETY: the list is of this agent, which is no more, and nothing uses it later.
        unsafe { (self.agent.nixl.calls.destroy_registrations)(self.list) };
    }
}

/// Memory in which reads land. Its owner drops it after the registration has ended.
struct Slab {
    memory: NonNull<[u8]>,
    list: Handle,
    nixl: Arc<Nixl>,
}

impl Slab {
    fn new(agent: &Agent, bytes: usize) -> Result<Self, NixlError> {
        let memory = NonNull::from(Box::leak(vec![0_u8; bytes].into_boxed_slice()));
        // SAFETY: the memory is freed by the drop alone, and `Connection` ends the registration before that.
        match unsafe { agent.register(memory.cast::<u8>().as_ptr() as usize, bytes) } {
            Ok(list) => Ok(Self { memory, list, nixl: Arc::clone(&agent.nixl) }),
            Err(error) => {
                // SAFETY: it was leaked above, and nothing else has its address.
                drop(unsafe { Box::from_raw(memory.as_ptr()) });
                Err(error)
            }
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the list was made with this value, and is used no more.
        unsafe { (self.nixl.calls.destroy_registrations)(self.list) };
        // SAFETY: it was leaked by `Slab::new`. Its registration has ended (see `Connection`), so nothing
        // writes to it.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// Pieces that follow each other, as one: each is a request of its own over the network.
fn runs(pieces: &[Piece]) -> Vec<Piece> {
    let mut runs: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match runs.last_mut() {
            // The sum does not overflow: both lie in the region.
            Some(last) if last.at + last.length as u64 == piece.at => last.length += piece.length,
            _ => runs.push(*piece),
        }
    }
    runs
}

/// An agent with its peer, its memory, and the transfer that is in progress.
struct Connection {
    agent: Agent,
    slabs: [Option<Slab>; 2],
    transfer: Option<Handle>,
    peer: CString,
    /// Where the peer's share is.
    address: String,
}

// SAFETY: as for `Agent`; slabs and transfer are used by the connection's owner alone.
unsafe impl Send for Connection {}

impl Connection {
    /// Memory of at least so many bytes.
    fn slab(&mut self, landing: Landing, bytes: usize) -> Result<NonNull<[u8]>, NixlError> {
        let place = &mut self.slabs[landing as usize];
        if let Some(slab) = place.as_ref().filter(|slab| slab.memory.len() < bytes) {
            // SAFETY: the slab is of this agent.
            unsafe { self.agent.deregister(slab.list)? };
            // No transfer is in progress: the one before succeeded, or the connection reads no more.
            *place = None;
        }
        let least = match landing {
            Landing::Lines => 64 << 10,
            Landing::Payloads => BYTES_MAX + (64 << 10),
        };
        match place {
            Some(slab) => Ok(slab.memory),
            None => Ok(place.insert(Slab::new(&self.agent, bytes.max(least))?).memory),
        }
    }

    /// Begins a transfer of pieces of the peer's memory at `base` to `to`.
    fn begin(&mut self, base: u64, pieces: &[Piece], to: NonNull<[u8]>) -> Result<(), NixlError> {
        let pieces = runs(pieces);
        let calls = &self.agent.nixl.calls;
        let places = |of: &mut dyn Iterator<Item = (usize, usize)>| {
            let mut list = null_mut();
            // SAFETY: the call writes a handle.
            check("list pieces for NIXL", unsafe { (calls.create_places)(DRAM, &raw mut list) })?;
            let mut added = true;
            for (address, length) in of {
                // SAFETY: the list lives.
                added &= unsafe { (calls.add_place)(list, address, length, 0) } == SUCCESS;
            }
            Ok::<_, NixlError>((list, added))
        };
        let mut at = to.cast::<u8>().as_ptr() as usize;
        let (local, all_local) = places(&mut pieces.iter().map(|piece| {
            at += piece.length;
            (at - piece.length, piece.length)
        }))?;
        // The sum does not overflow: the handshake's facts were checked, and so were the pieces.
        let remote = places(&mut pieces.iter().map(|piece| ((base + piece.at) as usize, piece.length)));
        let mut transfer = null_mut();
        let made = match &remote {
            Ok((remote, true)) if all_local => {
                // SAFETY: agent, lists and name live for the call, which writes a handle. The pieces are
                // of memory that is registered until the transfer has ended.
                unsafe {
                    (calls.create_transfer)(
                        self.agent.handle,
                        READ,
                        local,
                        *remote,
                        self.peer.as_ptr(),
                        &raw mut transfer,
                        null_mut(),
                    )
                }
            }
            _ => -1,
        };
        // SAFETY: the lists were made above and are used no more: a transfer has copies.
        unsafe {
            (calls.destroy_places)(local);
            if let Ok((remote, _)) = remote {
                (calls.destroy_places)(remote);
            }
        }
        check("prepare a read with NIXL", made)?;
        self.transfer = Some(transfer);
        // SAFETY: agent and transfer live.
        match unsafe { (calls.post)(self.agent.handle, transfer, null_mut()) } {
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(NixlError::new("begin a read with NIXL", format!("NIXL's status {status}"))),
        }
    }

    /// NIXL's status of the transfer.
    fn status(&self) -> c_int {
        // SAFETY: agent and transfer live.
        self.transfer.map_or(SUCCESS, |transfer| unsafe { (self.agent.nixl.calls.status)(self.agent.handle, transfer) })
    }

    /// Forgets a transfer. Returns whether NIXL agrees.
    fn release(&mut self) -> bool {
        let Some(transfer) = self.transfer else { return true };
        let calls = &self.agent.nixl.calls;
        // SAFETY: agent and transfer live; on success the transfer is destroyed and forgotten.
        let is_released = unsafe {
            (calls.release_transfer)(self.agent.handle, transfer) == SUCCESS && {
                (calls.destroy_transfer)(transfer);
                true
            }
        };
        if is_released {
            self.transfer = None;
        }
        is_released
    }

    /// Whether NIXL says that the transfer has succeeded or failed.
    fn has_ended(&self) -> bool {
        self.status() != IN_PROGRESS
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A request must not outlive its agent. Pieces of one that failed may be in flight until then.
        self.release();
        if !self.agent.end() {
            // Bytes may still land, so the memory stays.
            self.slabs.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
        }
    }
}

/// A peer's region by NIXL.
pub struct NixlRemote {
    /// `None`: a read has failed.
    connection: Option<Connection>,
    base: u64,
    region_bytes: u64,
    landed: [usize; 2],
}

impl NixlRemote {
    /// Connects to a peer whose share is at `address` and said this of itself. `name` is of this agent,
    /// and new.
    ///
    /// # Errors
    /// NIXL refuses, or too many earlier connections to this peer have a read that has not ended.
    pub fn connect(
        nixl: &Arc<Nixl>,
        name: &str,
        address: &str,
        metadata: &[u8],
        base: u64,
        region_bytes: u64,
    ) -> Result<Self, NixlError> {
        if nixl.reap(address) >= STUCK_MAX {
            return Err(NixlError::new("connect", format!("{STUCK_MAX} reads of this peer have not ended")));
        }
        if base.checked_add(region_bytes).is_none() {
            return Err(NixlError::new("connect", "the peer's region ends behind all addresses"));
        }
        let agent = Agent::new(nixl, name)?;
        let peer = agent.load(metadata)?;
        let connection = Connection { agent, slabs: [None, None], transfer: None, peer, address: address.to_owned() };
        Ok(Self { connection: Some(connection), base, region_bytes, landed: [0; 2] })
    }
}

impl Remote for NixlRemote {
    fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    fn read(&mut self, pieces: &[Piece], landing: Landing, deadline: Deadline) -> Result<(), ReadError> {
        let sum = checked_sum(pieces, self.region_bytes)?;
        let gone = |error: NixlError| ReadError::Gone(error.to_string());
        let connection =
            self.connection.as_mut().ok_or_else(|| ReadError::Gone("an earlier read failed".to_owned()))?;
        self.landed[landing as usize] = 0;
        let memory = connection.slab(landing, sum).map_err(gone)?;
        let begun = connection.begin(self.base, pieces, memory).map_err(gone);
        let mut looks = 0_u32;
        let outcome = begun.and_then(|()| {
            loop {
                match connection.status() {
                    SUCCESS => return Ok(()),
                    IN_PROGRESS if deadline.passed() => return Err(ReadError::Late),
                    IN_PROGRESS if looks < YIELDS => std::thread::yield_now(),
                    IN_PROGRESS => std::thread::park_timeout(PAUSE),
                    status => return Err(ReadError::Gone(format!("NIXL's status {status} of a read"))),
                }
                looks = looks.saturating_add(1);
            }
        });
        if outcome.is_ok() && connection.release() {
            self.landed[landing as usize] = sum;
            return Ok(());
        }
        self.close();
        Err(outcome.err().unwrap_or_else(|| ReadError::Gone("NIXL keeps a read that has ended".to_owned())))
    }

    fn landed(&mut self, landing: Landing) -> &mut [u8] {
        let slab = self.connection.as_mut().and_then(|connection| connection.slabs[landing as usize].as_mut());
        let Some(slab) = slab else { return &mut [] };
        // SAFETY: the memory lives as long as the slab, of which this is the only borrow, and no transfer is in
        // progress: each ends within `read`, or takes the connection with it.
        let memory = unsafe { slab.memory.as_mut() };
        &mut memory[..self.landed[landing as usize]]
    }
}

impl NixlRemote {
    /// Gives the connection up. One whose transfer is in progress is kept aside until it ends.
    fn close(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if !connection.has_ended() {
            let nixl = Arc::clone(&connection.agent.nixl);
            nixl.stuck.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

impl Drop for NixlRemote {
    fn drop(&mut self) {
        self.close();
    }
}
