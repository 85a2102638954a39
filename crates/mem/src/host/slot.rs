//! Slots: claims that end with the process that made them.
//!
//! A claim is a write lock on one byte of the area's file, owned by an open file description that
//! belongs to the claim alone (`F_OFD_SETLK`). Such a lock is independent of process ids and of
//! other descriptors of the file. It ends when the last duplicate of the descriptor is closed,
//! which the kernel does for dead processes. A forked child closes its duplicate before `fork`
//! returns ([`crate::fork`]).

use super::{Backing, HostArea, HostError, failed};
use crate::fork::ProcessStamp;
use crate::registry::Registration;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;

/// A claimed slot, released on drop.
#[derive(Debug)]
pub struct SlotClaim {
    area: HostArea,
    slot: u32,
    stamp: ProcessStamp,
    _registration: Option<Registration>,
    /// The description that holds the lock; `None` in private areas.
    description: Option<File>,
}

impl SlotClaim {
    /// Number of the slot.
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for SlotClaim {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            return;
        }
        // Closing the descriptor is not enough: a child that another thread is starting has a
        // duplicate of it until its `exec`.
        if let Some(description) = &self.description {
            let _ = byte_lock(description, libc::F_OFD_SETLK, libc::F_UNLCK, self.slot);
        }
        if let Backing::Private(claimed) = &self.area.inner.backing {
            claimed.lock().unwrap_or_else(PoisonError::into_inner)[self.slot as usize] = false;
        }
    }
}

fn check(area: &HostArea, slot: u32) {
    let slots = area.inner.layout.spec.slots;
    assert!(slot < slots, "there is no slot {slot} among {slots}");
}

pub(super) fn claim(area: &HostArea, slot: u32) -> Result<Option<SlotClaim>, HostError> {
    check(area, slot);
    let file = match &area.inner.backing {
        Backing::File(file) => file,
        Backing::View(_) => return Ok(None),
        Backing::Private(claimed) => {
            let mut claimed = claimed.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut claimed[slot as usize], true) {
                return Ok(None);
            }
            let stamp = ProcessStamp::current();
            return Ok(Some(SlotClaim { area: area.clone(), slot, stamp, _registration: None, description: None }));
        }
    };
    // Through /proc, because the name may be removed or belong to another area by now.
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let description = rustix::fs::open(&again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map(File::from)
        .map_err(|error| failed(&area.inner.path, "open it once more through /proc", error))?;
    match byte_lock(&description, libc::F_OFD_SETLK, libc::F_WRLCK, slot) {
        Ok(_) => {
            let registration = Some(Registration::descriptor(description.as_raw_fd()));
            let (area, stamp, description) = (area.clone(), ProcessStamp::current(), Some(description));
            Ok(Some(SlotClaim { area, slot, stamp, _registration: registration, description }))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(None),
        Err(error) => Err(failed(&area.inner.path, "lock a byte", error)),
    }
}

pub(super) fn alive(area: &HostArea, slot: u32) -> bool {
    check(area, slot);
    match &area.inner.backing {
        // The area's own description never locks a slot's byte, so every holder is another one. If
        // the kernel does not answer, the slot stays with its owner.
        Backing::File(file) | Backing::View(file) => {
            byte_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, slot).map_or(true, |found| found != libc::F_UNLCK)
        }
        Backing::Private(claimed) => claimed.lock().unwrap_or_else(PoisonError::into_inner)[slot as usize],
    }
}

/// The byte on which every opener of an area holds a shared lock; above all slots.
const HELD: u64 = 1 << 40;

/// Marks the area as in use for the life of this file description.
pub(super) fn hold(file: &File) -> io::Result<()> {
    lock_bytes(file, libc::F_OFD_SETLK, libc::F_RDLCK, HELD, 1).map(|_| ())
}

/// Whether another file description holds the area or one of its slots. True if the kernel does not
/// answer.
pub(super) fn is_held(file: &File) -> bool {
    lock_bytes(file, libc::F_OFD_GETLK, libc::F_WRLCK, 0, 0).map_or(true, |found| found != libc::F_UNLCK)
}

/// Most simultaneous openers of an area.
pub(super) const NUMBERS: u32 = 1 << 16;

/// The byte of opener number 0.
const FIRST_NUMBER: u64 = 1 << 41;

/// Takes an opener's number for this file description. `false`: a living opener has it.
pub(super) fn take_number(file: &File, number: u32) -> bool {
    lock_bytes(file, libc::F_OFD_SETLK, libc::F_WRLCK, FIRST_NUMBER + u64::from(number), 1).is_ok()
}

/// Releases an opener's number.
pub(super) fn give_number(file: &File, number: u32) {
    let _ = lock_bytes(file, libc::F_OFD_SETLK, libc::F_UNLCK, FIRST_NUMBER + u64::from(number), 1);
}

/// Runs a lock command of this kind on byte `slot`, and returns the kind after the call.
fn byte_lock(file: &File, command: libc::c_int, kind: libc::c_int, slot: u32) -> io::Result<libc::c_int> {
    lock_bytes(file, command, kind, slot.into(), 1)
}

/// As [`byte_lock`], on `len` bytes from `start`; 0: all of them.
fn lock_bytes(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    start: u64,
    len: libc::off_t,
) -> io::Result<libc::c_int> {
    // SAFETY: `flock` is a structure of numbers, for which zero is valid; `l_pid` must be zero for
    // these commands.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as libc::c_short;
    wanted.l_whence = libc::SEEK_SET as libc::c_short;
    wanted.l_start = start.cast_signed();
    wanted.l_len = len;
    loop {
        // SAFETY: the descriptor is open, and `wanted` lives through the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut wanted) } == 0 {
            return Ok(wanted.l_type.into());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
