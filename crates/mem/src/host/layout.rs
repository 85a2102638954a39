//! Layout and initialisation of an area.
//!
//! ```text
//! 0      ready magic, then the four numbers of the specification; 64-bit words
//! 64     bytes of the owner's path (64 bits), the path
//! 4096   locks, one cache line each, of which the first 32 bits are used
//! …      32-bit words, 64-bit words; each array starts on a cache line
//! ```

use super::HostSpec;
use cenote_base::fault::{self, Point};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Written last: the area is ready. `cenoteh2` in ASCII; the digit counts versions of this layout.
const READY: u64 = u64::from_le_bytes(*b"cenoteh2");
/// All bytes of [`READY`] but the version.
const ANY_VERSION: u64 = u64::MAX >> 8;
const HEADER_BYTES: u64 = 4096;
const HEADER_WORDS: usize = 5;
/// Offset of the owner's path, which is recorded if there is one and it fits.
const OWNER_AT: u64 = 64;
/// One line per lock, so that two locks do not share a line.
const LOCK_BYTES: u64 = 64;

/// Offsets of an area with a given specification.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) spec: HostSpec,
    pub(super) words32: u64,
    pub(super) words64: u64,
    pub(super) bytes: u64,
}

impl Layout {
    /// `None` if it would not fit an address space.
    pub(super) fn of(spec: HostSpec) -> Option<Self> {
        let line = |end: u64| end.checked_next_multiple_of(64);
        let words32 = HEADER_BYTES + LOCK_BYTES * u64::from(spec.mutexes);
        let words64 = line(spec.words32.checked_mul(4)?.checked_add(words32)?)?;
        let end = spec.words64.checked_mul(8)?.checked_add(words64)?;
        let bytes = end.checked_next_multiple_of(HEADER_BYTES)?;
        (bytes <= isize::MAX as u64).then_some(Self { spec, words32, words64, bytes })
    }

    pub(super) fn lock(&self, index: u32) -> u64 {
        assert!(index < self.spec.mutexes, "there is no lock {index} among {}", self.spec.mutexes);
        HEADER_BYTES + LOCK_BYTES * u64::from(index)
    }

    fn header(&self) -> [u64; HEADER_WORDS] {
        let HostSpec { mutexes, words32, words64, slots } = self.spec;
        [READY, mutexes.into(), words32, words64, slots.into()]
    }

    /// Writes the header of zeroed memory, the ready word last. A zero word is a free lock.
    ///
    /// # Safety
    /// Callers must guarantee that `base` starts `bytes` mapped, page-aligned, zeroed bytes that no
    /// other code uses yet.
    pub(super) unsafe fn initialise(&self, base: *mut u8) {
        for (word, value) in self.header().into_iter().enumerate().rev() {
            // SAFETY: the header's words lie in the first page that callers guarantee, aligned.
            let word = unsafe { AtomicU64::from_ptr(base.add(8 * word).cast()) };
            word.store(value, Ordering::Release);
            fault::point(Point::HostAreaHeader);
        }
    }
}

/// The specification of a ready area: `None` if it is not ready, `Some(None)` if another version of
/// this program created it.
pub(super) fn read_header(file: &File) -> Option<Option<HostSpec>> {
    let mut bytes = [0; 8 * HEADER_WORDS];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let mut next = || words.next().expect("five words");
    let ready = next();
    if ready & ANY_VERSION != READY & ANY_VERSION {
        return None;
    }
    let (mutexes, words32, words64, slots) = (next(), next(), next(), next());
    Some((ready == READY).then_some(HostSpec {
        mutexes: u32::try_from(mutexes).unwrap_or(u32::MAX),
        words32,
        words64,
        slots: u32::try_from(slots).unwrap_or(u32::MAX),
    }))
}

/// Records the path of the area's region if it fits. Runs before the header makes the area ready.
pub(super) fn write_owner(file: &File, owner: &Path) -> io::Result<()> {
    let owner = std::path::absolute(owner)?;
    let bytes = owner.as_os_str().as_bytes();
    if OWNER_AT + 8 + bytes.len() as u64 > HEADER_BYTES {
        return Ok(());
    }
    file.write_all_at(bytes, OWNER_AT + 8)?;
    file.write_all_at(&(bytes.len() as u64).to_le_bytes(), OWNER_AT)
}

/// The recorded path, if any.
pub(super) fn read_owner(file: &File) -> Option<PathBuf> {
    let mut length = [0; 8];
    file.read_exact_at(&mut length, OWNER_AT).ok()?;
    let length = u64::from_le_bytes(length);
    if length == 0 || length > HEADER_BYTES - OWNER_AT - 8 {
        return None;
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, OWNER_AT + 8).ok()?;
    Some(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_do_not_overlap() {
        for (mutexes, words32, words64) in [(0, 0, 0), (1, 1, 1), (7, 17, 3), (1000, 0, 1)] {
            let layout = Layout::of(HostSpec { mutexes, words32, words64, slots: 1 }).expect("small");
            assert!(layout.words32 >= HEADER_BYTES + u64::from(mutexes) * LOCK_BYTES);
            assert!(layout.words64 >= layout.words32 + words32 * 4 && layout.words64.is_multiple_of(64));
            assert!(layout.bytes >= layout.words64 + words64 * 8 && layout.bytes.is_multiple_of(4096));
        }
    }

    #[test]
    fn a_layout_that_cannot_be_is_none() {
        let spec = HostSpec { mutexes: u32::MAX, words32: 1, words64: 1, slots: 1 };
        assert!(Layout::of(spec).is_some(), "256 GiB of locks are silly but possible");
        assert!(Layout::of(HostSpec { words32: u64::MAX / 4, ..spec }).is_none());
        assert!(Layout::of(HostSpec { words64: u64::MAX / 8, ..spec }).is_none());
        assert!(Layout::of(HostSpec { words64: u64::MAX, ..spec }).is_none());
    }
}
