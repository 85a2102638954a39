//! What a forked child inherits, made harmless.
//!
//! `fork` copies handles on shared memory into a child that is no member of the region: dropping them there would release
//! what the living parent holds. A handler that runs in the child before `fork` returns takes all of it away:
//!
//! - Each shared mapping of a file becomes a private one. The child still reads the bytes that it finds through inherited
//!   pointers; what it stores reaches nobody. Memory that cannot be mapped privately (a DAX device, memory without a file)
//!   becomes read-only, or, where only this crate points into it, empty private memory.
//! - Each descriptor is replaced by one of an empty file. So the child keeps no lock alive that its dead parent held, unlocks
//!   nothing, and closes no descriptor that it opened itself.
//! - The process stamp changes, so that every object knows that it was inherited ([`ProcessStamp`]).
//!
//! The handler runs for `fork`, not for a bare `clone` system call; a child that `exec`s needs none of this, because all
//! descriptors are close-on-exec.

use crate::registry::{Instead, REGISTRY, Thing};
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells a process from the processes that it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStamp(u32);

/// Forks between the first process and this one, since the handlers were installed.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl ProcessStamp {
    /// The stamp of the calling process.
    #[must_use]
    pub fn current() -> Self {
        install();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the calling process has inherited what bears this stamp.
    #[must_use]
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

/// Seconds after which a child of [`run_in_child`] is ended.
const CHILD_SECONDS_MAX: u32 = 10;

/// Forks, calls `work` in the child, which ends with the status that it returns, and waits for that. For tests of what a child
/// must not do to its parent.
///
/// The child has only the calling thread, so `work` must not wait for what other threads may hold: it would be ended after ten
/// seconds.
///
/// # Errors
/// There can be no more processes, or the child did not end by itself.
pub fn run_in_child(work: impl FnOnce() -> u8) -> std::io::Result<u8> {
    // SAFETY: the child uses only memory of its own, which the C library has prepared for it (its allocator's locks are free),
    // and leaves by `_exit`, so no destructor and no handler of the parent's runs twice.
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
        // SAFETY: the handlers are functions of this library, which is never unloaded while its threads run; they call
        // nothing that is unsafe between `fork` and its return in the child.
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
    // Mappings came first: they are made anew from these descriptors.
    for (_, thing) in &table.things {
        if let (Thing::Descriptor(descriptor), true) = (thing, table.stand_in >= 0) {
            // SAFETY: both are descriptors of this process; the objects that own `descriptor` go on owning what is in its
            // place.
            unsafe { libc::dup3(table.stand_in, *descriptor, libc::O_CLOEXEC) };
        }
    }
    table.things.clear();
    FORKS.fetch_add(1, Ordering::Relaxed);
    REGISTRY.give();
}

/// Puts memory of the child's own in the place of an inherited mapping.
fn replace(base: *mut u8, len: usize, file: Option<RawFd>, instead: Instead) {
    let (protection, fixed) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_PRIVATE);
    let flags = fixed | libc::MAP_NORESERVE;
    // SAFETY: `base` and `len` are a mapping of this library that its owner has not unmapped, because owners drop their
    // registration first; what replaces it is mapped at the same place, so no pointer into it dangles.
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
