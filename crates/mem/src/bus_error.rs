//! Handles access to missing memory: a region's file was truncated, or the hardware lost the page.
//!
//! The kernel raises SIGBUS in the thread that touches it, which ends the process. A truncated
//! region must cost a server its hits and not its life. So a handler maps zeros from the address to
//! the mapping's end and lets the thread continue. With zeros, every structure of the region fails
//! its check word, and every payload its checksum. The mapping is marked as lost, and its user
//! leaves it ([`Mapping::still_whole`](crate::Mapping::still_whole)).
//!
//! Bus errors elsewhere go to the previous handler, as if this one did not exist. A program that
//! installs its own handler later replaces this one.

use crate::registry::{REGISTRY, Thing};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The previous action: a leaked `sigaction`.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Installs the handler, once per process.
pub(crate) fn handle() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a `sigaction` of zeros is valid. The handler calls only what is allowed in a
        // signal handler. The old action is leaked, so the handler can always read it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) == 0 {
                BEFORE.store(Box::into_raw(Box::new(before.assume_init())), Ordering::Release);
                libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
            }
        }
    });
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `siginfo_t`; for a fault, `si_addr` is the address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A signal from a process names no address.
    if code > 0 && replace(address) {
        return;
    }
    // SAFETY: the pointer is to a leaked `sigaction`, and its handlers take the same arguments as
    // this one.
    unsafe {
        let before = BEFORE.load(Ordering::Acquire);
        match (*before).sa_sigaction {
            libc::SIG_IGN if code <= 0 => {}
            // The fault repeats, and then ends the process with the default action.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut());
                if code <= 0 {
                    libc::raise(signal);
                }
            }
            handler if (*before).sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Maps zeros over a registered mapping from the page of `address` on. `false`: no registered
/// mapping has the address.
fn replace(address: usize) -> bool {
    // The interrupted thread accessed a mapping, which no holder of this lock does.
    REGISTRY.take();
    // SAFETY: the lock is held until `give`.
    let table = unsafe { REGISTRY.held_table() };
    let found = table.things.iter().find_map(|(_, thing)| match *thing {
        Thing::Mapping { base, len, lost, .. } if (base.addr()..base.addr() + len).contains(&address) => {
            Some((base, len, lost))
        }
        _ => None,
    });
    let mut replaced = false;
    if let Some((base, len, lost)) = found {
        // Replace whole huge pages where memory consists of them. Only one page is known to be
        // lost, but a truncated file has lost everything after it. The kernel refuses a place within a page, so
        // the first size that it takes is right: of x86-64, or of Arm with 4, 16 or 64 KiB.
        const PAGES: [usize; 8] = [4 << 10, 16 << 10, 64 << 10, 2 << 20, 32 << 20, 512 << 20, 1 << 30, 16 << 30];
        let page = PAGES.into_iter().find(|page| {
            let from = (address / page * page).max(base.addr());
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED | libc::MAP_PRIVATE);
            let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: the range lies in a registered mapping that its owner has not unmapped,
            // because owners drop their registration first. The replacement is mapped at the same
            // place, so no pointer into it dangles.
            let mapped = unsafe {
                libc::mmap(base.add(from - base.addr()).cast(), base.addr() + len - from, protection, flags, -1, 0)
            };
            mapped != libc::MAP_FAILED
        });
        if page.is_some() {
            // SAFETY: the flag lives as long as the registration is in the table.
            unsafe { (*lost).store(true, Ordering::Relaxed) };
            replaced = true;
        }
    }
    REGISTRY.give();
    replaced
}
