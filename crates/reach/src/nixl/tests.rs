//! The order of calls, with functions of this file in NIXL's place.

use super::*;
use cenote_base::Clock;
use std::cell::{Cell, RefCell};
use std::ptr::without_provenance_mut;

thread_local! {
    static LOG: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    /// What NIXL says of a transfer when it begins, and later.
    static POSTED: Cell<c_int> = const { Cell::new(IN_PROGRESS) };
    static STATUS: Cell<c_int> = const { Cell::new(SUCCESS) };
    /// What it says of a registration.
    static REGISTRATION: Cell<c_int> = const { Cell::new(SUCCESS) };
    /// What it says of the end of an agent, and of a registration.
    static AGENT_END: Cell<c_int> = const { Cell::new(SUCCESS) };
    static REGISTRATION_END: Cell<c_int> = const { Cell::new(SUCCESS) };
    /// Whether the last agent was made while no other thread could make one.
    static LOADED_ALONE: Cell<bool> = const { Cell::new(false) };
}

fn log(call: &'static str) -> c_int {
    LOG.with_borrow_mut(|log| log.push(call));
    SUCCESS
}

fn give<T>(to: *mut T, value: T) -> c_int {
    if !to.is_null() {
        // SAFETY: callers of the library pass an address of their own for each result.
        unsafe { to.write(value) };
    }
    SUCCESS
}

fn handle(to: *mut Handle) -> c_int {
    give(to, without_provenance_mut(1))
}

extern "C" fn create_agent(_: *const c_char, _: *const AgentConfig, to: *mut Handle) -> c_int {
    // As UCX does while it is loaded.
    LOADED_ALONE.set(LOADING.try_lock().is_err());
    // SAFETY: ignoring a signal needs no handler.
    unsafe { libc::signal(libc::SIGFPE, libc::SIG_IGN) };
    handle(to)
}
extern "C" fn destroy_agent(_: Handle) -> c_int {
    log("destroy agent");
    AGENT_END.get()
}
extern "C" fn plugin_params(_: Handle, _: *const c_char, memories: *mut Handle, params: *mut Handle) -> c_int {
    handle(memories);
    handle(params)
}
extern "C" fn destroy(_: Handle) -> c_int {
    SUCCESS
}
extern "C" fn create_backend(_: Handle, _: *const c_char, _: Handle, to: *mut Handle) -> c_int {
    handle(to)
}
extern "C" fn local_metadata(_: Handle, data: *mut *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: the string is one; its reader frees it.
    give(data, unsafe { libc::strdup(c"here".as_ptr()) }.cast());
    give(length, 4)
}
extern "C" fn load_metadata(_: Handle, _: *const c_void, _: usize, name: *mut *mut c_char) -> c_int {
    // SAFETY: the string is one; its reader frees it.
    give(name, unsafe { libc::strdup(c"peer".as_ptr()) })
}
extern "C" fn create_list(_: c_int, to: *mut Handle) -> c_int {
    handle(to)
}
extern "C" fn destroy_registrations(_: Handle) -> c_int {
    log("free memory")
}
extern "C" fn add_registration(_: Handle, _: usize, _: usize, _: u64, _: *const c_void, _: usize) -> c_int {
    SUCCESS
}
extern "C" fn register(_: Handle, _: Handle, _: Handle) -> c_int {
    log("register");
    REGISTRATION.get()
}
extern "C" fn deregister(_: Handle, _: Handle, _: Handle) -> c_int {
    log("deregister");
    REGISTRATION_END.get()
}
extern "C" fn add_place(_: Handle, _: usize, _: usize, _: u64) -> c_int {
    SUCCESS
}
extern "C" fn create_transfer(
    _: Handle,
    _: c_int,
    _: Handle,
    _: Handle,
    _: *const c_char,
    to: *mut Handle,
    _: Handle,
) -> c_int {
    handle(to)
}
extern "C" fn post(_: Handle, _: Handle, _: Handle) -> c_int {
    POSTED.get()
}
extern "C" fn status(_: Handle, _: Handle) -> c_int {
    STATUS.get()
}
extern "C" fn release_transfer(_: Handle, _: Handle) -> c_int {
    log("release")
}

/// From now on, registrations succeed or fail, as those of a card that has no more.
pub fn registers(does: bool) {
    REGISTRATION.set(if does { SUCCESS } else { -4 });
}

/// NIXL without a library. Its state is of the calling thread.
pub fn fake() -> Arc<Nixl> {
    let calls = Calls {
        create_agent,
        destroy_agent,
        plugin_params,
        destroy_mem_list: destroy,
        destroy_params: destroy,
        create_backend,
        destroy_backend: destroy,
        local_metadata,
        load_metadata,
        create_registrations: create_list,
        destroy_registrations,
        add_registration,
        register,
        deregister,
        create_places: create_list,
        destroy_places: destroy,
        add_place,
        create_transfer,
        post,
        status,
        release_transfer,
        destroy_transfer: destroy,
    };
    Arc::new(Nixl { calls, stuck: Mutex::default() })
}

fn connected(nixl: &Arc<Nixl>, address: &str) -> Result<NixlRemote, NixlError> {
    NixlRemote::connect(nixl, "reader", address, b"metadata", 0, 1 << 30)
}

/// Reads so many bytes; its deadline has passed already.
fn read(remote: &mut NixlRemote, length: usize) -> Result<(), ReadError> {
    remote.read(&[Piece { at: 0, length }], Landing::Lines, Clock::stopped().after(Duration::ZERO))
}

/// The calls since the last look that end or free something.
fn ends() -> Vec<&'static str> {
    let mut calls = LOG.take();
    calls.retain(|call| matches!(*call, "destroy agent" | "deregister" | "free memory"));
    calls
}

#[test]
fn pieces_that_follow_each_other_are_one_request() {
    let of = |pieces: &[(u64, usize)]| pieces.iter().map(|&(at, length)| Piece { at, length }).collect::<Vec<_>>();
    let parts = of(&[(0, 192), (192, 64), (320, 64), (384, 64), (448, 16), (64, 64)]);
    assert_eq!(runs(&parts), of(&[(0, 256), (320, 144), (64, 64)]));
    assert_eq!(runs(&[]), []);
}

#[test]
fn a_reader_without_a_registration_reads_nothing_and_keeps_nothing() {
    let nixl = fake();
    let mut remote = connected(&nixl, "peer:1").expect("it connects");
    ends();
    registers(false);
    let error = read(&mut remote, 64).expect_err("nothing may land").to_string();
    assert!(error.contains("register memory"), "{error}");
    drop(remote);
    registers(true);
    assert_eq!(ends(), ["free memory", "destroy agent"]);
    POSTED.set(SUCCESS);
    let mut remote = connected(&nixl, "peer:1").expect("it connects");
    assert_eq!(read(&mut remote, 64), Ok(()));
}

/// NIXL reports the failure of one piece while earlier ones are in flight. The memory was freed before the
/// agent's thread had ended, which then copied late replies into it.
#[test]
fn the_memory_of_a_failed_read_is_freed_after_its_agent() {
    for (posted, status) in [(-1, -1), (IN_PROGRESS, -3), (SUCCESS, -3)] {
        let nixl = fake();
        let mut remote = connected(&nixl, "peer:1").expect("it connects");
        POSTED.set(posted);
        STATUS.set(status);
        assert!(matches!(read(&mut remote, 64), Err(ReadError::Gone(_))));
        assert_eq!(ends(), ["destroy agent", "free memory"], "{posted} {status}");
        drop(remote);
        assert!(ends().is_empty() && remote_is_forgotten(&nixl));
    }
}

fn remote_is_forgotten(nixl: &Nixl) -> bool {
    nixl.stuck.lock().expect("no panic").is_empty()
}

#[test]
fn the_memory_of_a_late_read_stays_until_the_read_has_ended() {
    for end in [SUCCESS, -3] {
        let nixl = fake();
        let mut remote = connected(&nixl, "peer:1").expect("it connects");
        STATUS.set(IN_PROGRESS);
        assert_eq!(read(&mut remote, 64), Err(ReadError::Late));
        drop(remote);
        assert!(ends().is_empty() && !remote_is_forgotten(&nixl));
        STATUS.set(end);
        let other = connected(&nixl, "peer:1").expect("it connects");
        assert_eq!(ends(), ["destroy agent", "free memory"]);
        drop(other);
        assert_eq!(ends(), ["destroy agent"]);
    }
}

#[test]
fn memory_that_nixl_keeps_is_not_freed() {
    let nixl = fake();
    let mut remote = connected(&nixl, "peer:1").expect("it connects");
    assert_eq!(read(&mut remote, 64), Ok(()));
    // A longer block needs other memory.
    assert_eq!(read(&mut remote, 1 << 20), Ok(()));
    assert_eq!(ends(), ["deregister", "free memory"]);
    REGISTRATION_END.set(-1);
    assert!(matches!(read(&mut remote, 2 << 20), Err(ReadError::Gone(_))));
    assert_eq!(ends(), ["deregister"]);
    AGENT_END.set(-1);
    drop(remote);
    assert_eq!(ends(), ["destroy agent"], "the memory stays");
}

/// Connections with a read in progress were counted for all peers together, so one stalled peer kept this
/// process from connecting to every other one.
#[test]
fn a_stalled_peer_uses_up_no_other_peers_connections() {
    let nixl = fake();
    STATUS.set(IN_PROGRESS);
    for _ in 0..STUCK_MAX {
        let mut remote = connected(&nixl, "peer:1").expect("it connects");
        assert_eq!(read(&mut remote, 64), Err(ReadError::Late));
    }
    let refused = connected(&nixl, "peer:1").err().expect("two reads have not ended").to_string();
    assert!(refused.contains("have not ended"), "{refused}");
    assert!(connected(&nixl, "peer:2").is_ok());
    STATUS.set(SUCCESS);
    assert!(connected(&nixl, "peer:1").is_ok());
}

/// Two threads that made agents kept and put back handlers around each other, so one of UCX's stayed.
#[test]
fn agents_are_made_one_after_the_other_and_leave_handlers_as_they_were() {
    let handler = || {
        // SAFETY: all zeros is a valid `sigaction` of no handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only writes to `action`.
        unsafe { libc::sigaction(libc::SIGFPE, null(), &raw mut action) };
        action.sa_sigaction
    };
    // Other tests make agents at any time.
    let before = Handlers::keep().actions[3].sa_sigaction;
    drop(connected(&fake(), "peer:1").expect("it connects"));
    assert!(LOADED_ALONE.get());
    let kept = Handlers::keep();
    assert_eq!((kept.actions[3].sa_sigaction, handler()), (before, before));
}
