//! Makes inherited handles harmless in forked children.
//!
//! `fork` copies handles on shared memory into a child that is no member of the region. Dropping
//! them in the child would release what the parent holds. A handler runs in the child before `fork`
//! returns:
//!
//! - It replaces each shared mapping of a file by a private one. The child still reads the bytes
//!   through inherited pointers; its stores reach no other process. Memory that cannot be mapped
//!   privately (a DAX device, memory without a file) becomes read-only or, if only this crate
//!   points into it, empty private memory.
//! - It replaces each descriptor by one of an empty file. So the child keeps no lock of its dead
//!   parent alive, unlocks nothing, and closes no descriptor that it opened itself.
//! - It changes the process stamp, so that every object detects that it was inherited
//!   ([`ProcessStamp`]).
//!
//! The handler runs for `fork`, not for a bare `clone` system call. A child that calls `exec` needs
//! none of this, because all descriptors are close-on-exec.

use crate::registry::{Instead, REGISTRY, Registration, Thing};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Identifies a process among those that it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStamp(u32);

/// Number of forks between the first process and this one, since the handlers were installed.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl ProcessStamp {
    /// The stamp of the calling process.
    #[must_use]
    pub fn current() -> Self {
        install();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the calling process inherited the object with this stamp.
    #[must_use]
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

/// Keeps forked children from holding an open file, and with it the file's locks. Drop it before the
/// file.
#[derive(Debug)]
pub struct NotInherited(#[expect(dead_code, reason = "its drop ends the registration")] Registration);

impl NotInherited {
    /// In children, the file's descriptor leads to an empty file.
    #[must_use]
    pub fn new(file: impl AsFd) -> Self {
        Self(Registration::descriptor(file.as_fd().as_raw_fd()))
    }
}

/// Seconds after which a child of [`run_in_child`] is killed.
const CHILD_SECONDS_MAX: u32 = 10;

/// Forks and calls `work` in the child. The child ends with the status that `work` returns, and the
/// parent waits for it. For tests of effects of a child on its parent.
///
/// The child has only the calling thread, so `work` must not wait for what other threads may hold.
/// The child is killed after ten seconds.
///
/// # Errors
/// The process limit is reached, or the child was killed.
pub fn run_in_child(work: impl FnOnce() -> u8) -> std::io::Result<u8> {
    // SAFETY: the child uses only its own memory, which the C library has prepared for it (its
    // allocator's locks are free), and leaves by `_exit`, so no destructor and no handler of the
    // parent's runs twice.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(CHILD_SECONDS_MAX);
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(u8::MAX);
            libc::_exit(status.into());
        }
        child
    };
    let Some(child) = rustix::process::Pid::from_raw(child).filter(|_| child > 0) else {
        return Err(std::io::Error::last_os_error());
    };
    loop {
        match rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(ended) => {
                let status =
                    ended.and_then(|(_, status)| status.exit_status()).and_then(|code| u8::try_from(code).ok());
                return status.ok_or_else(|| std::io::Error::other("the child was killed"));
            }
        }
    }
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::memfd_create("cenote-after-fork", flags) {
            REGISTRY.with(|table| table.stand_in = std::os::fd::IntoRawFd::into_raw_fd(file));
        }
        // SAFETY: the handlers are functions of this library, which is never unloaded while its
        // threads run. They call only async-signal-safe functions between `fork` and its return in
        // the child.
        let code = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        assert_eq!(code, 0, "the C library has no memory for three pointers");
    });
}

extern "C" fn before() {
    REGISTRY.take();
}

extern "C" fn in_parent() {
    REGISTRY.give();
}

extern "C" fn in_child() {
    // SAFETY: `before` took the lock in the thread that forked, which is the child's only one.
    let table = unsafe { REGISTRY.held_table() };
    for (_, thing) in &table.things {
        match *thing {
            Thing::Mapping { base, len, file, instead, .. } => replace(base, len, file, instead),
            Thing::Descriptor(_) => {}
        }
    }
    // Mappings came first, because they are remapped from these descriptors.
    for (_, thing) in &table.things {
        if let (Thing::Descriptor(descriptor), true) = (thing, table.stand_in >= 0) {
            // SAFETY: both are open descriptors of this process. The objects that own `descriptor`
            // own its replacement.
            unsafe { libc::dup3(table.stand_in, *descriptor, libc::O_CLOEXEC) };
        }
    }
    table.things.clear();
    FORKS.fetch_add(1, Ordering::Relaxed);
    REGISTRY.give();
}

/// Replaces an inherited mapping by memory of the child's own.
fn replace(base: *mut u8, len: usize, file: Option<RawFd>, instead: Instead) {
    let (protection, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_PRIVATE);
    let flags = fixed | libc::MAP_NORESERVE;
    // SAFETY: `base` and `len` are a mapping of this library that its owner has not unmapped,
    // because owners drop their registration first. The replacement is mapped at the same place, so
    // no pointer into it dangles.
    unsafe {
        let mapped = match (file, instead) {
            (Some(file), Instead::Same) => libc::mmap(base.cast(), len, protection, flags, file, 0),
            (_, Instead::Empty) => libc::mmap(base.cast(), len, protection, flags | libc::MAP_ANONYMOUS, -1, 0),
            (None, Instead::Same) => libc::MAP_FAILED,
        };
        if mapped == libc::MAP_FAILED {
            libc::mprotect(base.cast(), len, libc::PROT_READ);
        }
    }
}
