//! Memory that the processes of one host share beside the region: tier 1 of the locks (TraCT §3.3),
//! and arrays of counters that need no coherence between hosts.
//!
//! A [`HostArea`] survives the death of any process at any point. Its locks are robust: if the
//! holder dies, the next holder gets the lock and sees that it was abandoned. A slot shows whether
//! the process that claimed it is alive: the claim is a kernel lock, which ends with the process.
//! Process and thread ids are not used, because they repeat and differ between containers.
//!
//! The area is a file in `/dev/shm`, accessible to the users that may write its region. It is
//! initialised under an exclusive `flock`. The ready word is written last; an opener that does not
//! find it initialises the area again.

mod file;
mod layout;
mod local;
mod lock;
mod slot;
mod time;

pub use file::Permissions;
pub(crate) use file::UNMAPPED;
pub use local::{HeldLock, HostLocal, Word};
pub use lock::{HostLock, LockTimeout};
pub use slot::SlotClaim;

use crate::fork::ProcessStamp;
use crate::region::{MapError, RegionFile, SHM_DIRECTORY, allocate, check_shm_name};
use crate::registry::{Instead, Registration};
use cenote_base::fault::{self, Point};
use cenote_base::{Clock, Deadline};
use file::Access;
use layout::Layout;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{File, Metadata};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sizes of an area's arrays. All openers of an area must pass the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Robust locks.
    pub mutexes: u32,
    /// 32-bit words.
    pub words32: u64,
    /// 64-bit words.
    pub words64: u64,
    /// Slots that processes claim.
    pub slots: u32,
}

/// Errors of opening a host area or claiming a slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The name is not a valid file name.
    #[error("`{name}` cannot name a host area: {fact}")]
    Name {
        /// The name.
        name: String,
        /// The rule that the name breaks.
        fact: &'static str,
    },
    /// The area is ready, but was made with another specification.
    #[error("{}: made with {found:?}, but {wanted:?} is wanted; another version or region uses this name", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// Specification of the existing area; `None` if its layout version is unknown to this
        /// program.
        found: Option<HostSpec>,
        /// Specification that the caller asked for.
        wanted: HostSpec,
    },
    /// The file cannot be a host area.
    #[error("{}: not a host area: {fact}", path.display())]
    NotAnArea {
        /// The file.
        path: PathBuf,
        /// The rule that the file breaks.
        fact: &'static str,
    },
    /// The file's owner or sharing does not match the region's.
    #[error("{}: {found}, of a region with {region}: {fact}", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Owner, group and mode of the area's file.
        found: Permissions,
        /// Owner, group and mode of the region's file.
        region: Permissions,
        /// The mismatch, and the remedy if there is one.
        fact: &'static str,
    },
    /// The file does not exist and cannot be made.
    #[error(transparent)]
    Make(MapError),
    /// All opener numbers of the area are in use ([`HostArea::open`] takes one).
    #[error("{}: too many processes have it open", path.display())]
    Crowded {
        /// The file.
        path: PathBuf,
    },
    /// Another process held the file's lock for longer than the timeout; it may be stopped.
    #[error("{}: still being initialised by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The area would not fit an address space.
    #[error("a host area with {0:?} is too large")]
    TooLarge(HostSpec),
    /// A system call failed.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn failed(path: &Path, action: &'static str, source: impl Into<io::Error>) -> HostError {
    HostError::Io { path: path.into(), action, source: source.into() }
}

/// An open area. Clones share one mapping; dropping the last clone unmaps it.
#[derive(Clone, Debug)]
pub struct HostArea {
    inner: Arc<Inner>,
    clock: Clock,
}

#[derive(Debug)]
struct Inner {
    base: *mut u8,
    layout: Layout,
    path: PathBuf,
    /// Owner number of this opener's locks; no other living opener of the file has it.
    number: NonZeroU32,
    /// Held while a thread tests whether a lock's owner is dead.
    seizing: Mutex<()>,
    stamp: ProcessStamp,
    /// Registrations of the mapping and of the file. Dropped before the resources that they name.
    registrations: Vec<Registration>,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File(File),
    /// Claimed slots, by index.
    Private(Mutex<Vec<bool>>),
    /// A file opened read-only by [`HostArea::view`].
    View(File),
}

// SAFETY: the mapping lives as long as the value, on any thread. Its words are accessed only as
// atomics; the header is written only before other processes use the area.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

/// Timeout of waiting for another process that initialises, opens or sweeps the area. Initialising
/// zeroes memory and writes the header.
const INITIALISE_TIMEOUT: Duration = Duration::from_secs(10);

impl HostArea {
    /// Opens the area `name`, or makes it if it is missing or its initialisation was interrupted.
    /// Returns `true` beside the area if this call made it: all words are zero.
    ///
    /// The caller that gets `true` may die before it sets up the words, and a caller that gets
    /// `false` may run before that setup. Callers must therefore set up words under one of the
    /// area's locks, and mark completion in a word that is written last.
    ///
    /// With `private`, the area is anonymous memory that only clones of the result share. Regions
    /// that are private to a process use it.
    ///
    /// # Errors
    /// The name is bad, the area has another specification, there is no space, or access is denied.
    pub fn open(name: &str, spec: HostSpec, private: bool) -> Result<(Self, bool), HostError> {
        if private {
            let layout = Layout::of(spec).ok_or(HostError::TooLarge(spec))?;
            return Self::open_private(layout).map(|area| (area, true));
        }
        Self::open_for(name, spec, None)
    }

    /// As [`HostArea::open`], for a `region`: the area gets the permissions of the region's file,
    /// and records its path for [`HostArea::sweep`].
    ///
    /// # Errors
    /// As for [`HostArea::open`].
    pub fn open_for(name: &str, spec: HostSpec, region: Option<&RegionFile>) -> Result<(Self, bool), HostError> {
        let layout = Layout::of(spec).ok_or(HostError::TooLarge(spec))?;
        let (path, access) = (area_path(name)?, Access::to(region));
        let owner = region.map(|region| region.path.as_path());
        // The file may be removed between opening and locking it; retry with the new file.
        for _ in 0..1000 {
            let Some(file) = access.open(&path)? else { continue };
            lock_file(&file, &path)?;
            if !access.settle(&file, &path)? {
                continue;
            }
            let opened = Self::open_locked(&path, &file, layout, owner)?;
            // Marks the area as in use while this file description, or a child's duplicate of it,
            // is open.
            slot::hold(&file).map_err(|error| failed(&path, "lock a byte", error))?;
            let number = lock::number(&file).ok_or_else(|| HostError::Crowded { path: path.clone() })?;
            // Unlock explicitly: descriptors duplicated from this one would keep the lock.
            rustix::fs::flock(&file, FlockOperation::Unlock)
                .map_err(|error| failed(&path, "unlock the file", error))?;
            let (base, created) = opened;
            let inner = Inner::new(base, layout, path, Backing::File(file), number);
            lock::succeed(&inner);
            return Ok((Self::of(inner), created));
        }
        Err(HostError::Busy { path })
    }

    /// Removes an area's name. Processes that have the area open keep it; the next open makes a new
    /// area. Succeeds if the name does not exist. Returns `false` if the file belongs to another
    /// user; only that user may remove it.
    ///
    /// # Errors
    /// The name is bad, or the file cannot be removed.
    pub fn remove(name: &str) -> Result<bool, HostError> {
        let path = area_path(name)?;
        // The file's lock prevents the removal of a newer area that another process makes under
        // this name.
        let _held = match file::open_existing(&path, OFlags::RDWR) {
            Ok(file) => {
                lock_file(&file, &path)?;
                Some(file)
            }
            Err(Errno::NOENT) => return Ok(true),
            Err(_) => None,
        };
        match rustix::fs::unlink(&path) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::PERM | Errno::ACCESS) => Ok(false),
            Err(error) => Err(failed(&path, "remove the file", error)),
        }
    }

    /// Removes orphaned areas that no process has open, and returns their number.
    ///
    /// Looks at the files with a name that `is_area` accepts. An area is an orphan if its
    /// initialisation was interrupted, or if `is_orphan` returns true for its name and recorded
    /// region path. Keeps areas of other users and areas without a recorded path.
    ///
    /// Safe beside concurrent open, make and sweep: an area is removed under the lock that also
    /// guards opening. A process that opened the file earlier finds that it has no name, and makes
    /// a new one.
    pub fn sweep(is_area: impl Fn(&str) -> bool, is_orphan: impl Fn(&str, &Path) -> bool) -> usize {
        let Ok(entries) = std::fs::read_dir(SHM_DIRECTORY) else { return 0 };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_area(name) && sweep_one(name, &is_orphan)).count()
    }

    /// Lists the areas that this user can read, sorted by name, among files with a name that
    /// `is_area` accepts. Joins and locks nothing.
    #[must_use]
    pub fn list(is_area: impl Fn(&str) -> bool) -> Vec<AreaFile> {
        let Ok(entries) = std::fs::read_dir(SHM_DIRECTORY) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let look = |name: String| {
            let file = file::open_existing(&area_path(&name).ok()?, OFlags::RDONLY).ok()?;
            let bytes = file.metadata().ok()?.len();
            let is_open = slot::is_held(&file);
            Some(AreaFile { name, region: layout::read_owner(&file), bytes, is_open })
        };
        let mut areas: Vec<AreaFile> = names.filter(|name| is_area(name)).filter_map(look).collect();
        areas.sort_by(|one, other| one.name.cmp(&other.name));
        areas
    }

    /// Opens the area `name` for inspection. Returns `None` if it does not exist or is not ready.
    /// Words show stores of other processes; stores of this process stay private. Locks and slots
    /// of a view cannot be taken.
    ///
    /// # Errors
    /// The name is bad, the area has another specification, or it may not be read.
    pub fn view(name: &str, spec: HostSpec, region: Option<&RegionFile>) -> Result<Option<Self>, HostError> {
        let layout = Layout::of(spec).ok_or(HostError::TooLarge(spec))?;
        let path = area_path(name)?;
        let Some(file) = Access::to(region).open_to_look(&path)? else { return Ok(None) };
        if layout::read_header(&file).is_none() {
            return Ok(None);
        }
        let (base, _) = Self::open_made(&path, &file, layout, Sharing::Copied)?;
        Ok(Some(Self::of(Inner::new(base, layout, path, Backing::View(file), NonZeroU32::MIN))))
    }

    /// An area on the kernel's clock.
    fn of(inner: Inner) -> Self {
        Self { inner: Arc::new(inner), clock: time::kernel() }
    }

    /// The area on another clock: its times and its waits with a timeout are of `clock`. Processes
    /// compare times through the area, so all of them must use one clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The clock of its times: the kernel's monotonic clock, unless [`HostArea::with_clock`] set
    /// another one.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether the area is memory of this process alone.
    #[must_use]
    pub fn is_private(&self) -> bool {
        matches!(self.inner.backing, Backing::Private(_))
    }

    /// Specification with which the area was made.
    #[must_use]
    pub fn spec(&self) -> HostSpec {
        self.inner.layout.spec
    }

    /// The 32-bit words.
    #[must_use]
    pub fn words32(&self) -> &[AtomicU32] {
        let layout = &self.inner.layout;
        // SAFETY: `Layout::of` placed `words32` words inside the mapping, aligned; the mapping
        // lives as long as `self`. The words are accessed only as atomics, for which every bit
        // pattern is valid.
        unsafe { std::slice::from_raw_parts(self.inner.at(layout.words32).cast(), layout.spec.words32 as usize) }
    }

    /// The 64-bit words.
    #[must_use]
    pub fn words64(&self) -> &[AtomicU64] {
        let layout = &self.inner.layout;
        // SAFETY: as in `words32`, for the array of 64-bit words.
        unsafe { std::slice::from_raw_parts(self.inner.at(layout.words64).cast(), layout.spec.words64 as usize) }
    }

    /// Whether this process was forked from the one that opened the area. It must not take or
    /// release the parent's locks and slots.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.inner.stamp.is_inherited()
    }

    /// Takes lock `index`, waiting until `deadline` at the latest. Panics if the index is out of
    /// range.
    ///
    /// # Errors
    /// The deadline passed, this process inherited the area, or the area is a view.
    pub fn lock(&self, index: u32, deadline: Deadline) -> Result<HostLock<'_>, LockTimeout> {
        if matches!(self.inner.backing, Backing::View(_)) {
            return Err(LockTimeout::Passed { index });
        }
        lock::lock(self, index, Some(deadline))
    }

    /// Takes lock `index` if it is free. Panics if the index is out of range.
    #[must_use]
    pub fn try_lock(&self, index: u32) -> Option<HostLock<'_>> {
        (!matches!(self.inner.backing, Backing::View(_))).then(|| lock::lock(self, index, None).ok()).flatten()
    }

    /// Claims `slot` until the claim is dropped or this process ends. Returns `None` if it is
    /// claimed already. Panics if the index is out of range.
    ///
    /// # Errors
    /// The file cannot be opened again or cannot be locked.
    pub fn claim_slot(&self, slot: u32) -> Result<Option<SlotClaim>, HostError> {
        slot::claim(self, slot)
    }

    /// Whether `slot` has a living claim. Panics if the index is out of range.
    ///
    /// The kernel ends a dead process's claim while it closes its files, in no defined order.
    /// Devices that the process drove may still be writing (docs on recovery describe the wait).
    #[must_use]
    pub fn slot_alive(&self, slot: u32) -> bool {
        slot::alive(self, slot)
    }

    fn open_private(layout: Layout) -> Result<Self, HostError> {
        let path = PathBuf::from("private host area");
        let base = map(None, &layout, &path, Sharing::Shared)?;
        // SAFETY: `map` has just mapped `layout.bytes` zeroed bytes at `base`, and no other code
        // has the address.
        unsafe { layout.initialise(base) };
        let backing = Backing::Private(Mutex::new(vec![false; layout.spec.slots as usize]));
        Ok(Self::of(Inner::new(base, layout, path, backing, NonZeroU32::MIN)))
    }

    /// Maps the file, and initialises it first unless it is ready. The caller holds the file's
    /// lock.
    fn open_locked(
        path: &Path,
        file: &File,
        layout: Layout,
        owner: Option<&Path>,
    ) -> Result<(*mut u8, bool), HostError> {
        if layout::read_header(file).is_some() {
            return Self::open_made(path, file, layout, Sharing::Shared);
        }
        let made = Self::initialise(path, file, &layout, owner);
        if made.is_err() {
            // Processes that wait for the lock find a file without a name, and open a new one.
            let _ = rustix::fs::unlink(path);
        }
        made.map(|base| (base, true))
    }

    /// Maps a file after checking that its header has this specification.
    fn open_made(path: &Path, file: &File, layout: Layout, sharing: Sharing) -> Result<(*mut u8, bool), HostError> {
        let found = layout::read_header(file).flatten();
        if found != Some(layout.spec) {
            return Err(HostError::Spec { path: path.into(), found, wanted: layout.spec });
        }
        if status_of(file, path)?.len() < layout.bytes {
            return Err(HostError::NotAnArea { path: path.into(), fact: "it was cut" });
        }
        Ok((map(Some(file), &layout, path, sharing)?, false))
    }

    fn initialise(path: &Path, file: &File, layout: &Layout, owner: Option<&Path>) -> Result<*mut u8, HostError> {
        // Truncate first, so that the words of an interrupted initialisation are zero again.
        rustix::fs::ftruncate(file, 0).map_err(|error| failed(path, "empty the file", error))?;
        fault::point(Point::HostAreaEmptied);
        rustix::fs::ftruncate(file, layout.bytes).map_err(|error| failed(path, "set the file's length", error))?;
        allocate(file, layout.bytes).map_err(|error| failed(path, "allocate space", error))?;
        fault::point(Point::HostAreaAllocated);
        if let Some(owner) = owner {
            layout::write_owner(file, owner).map_err(|error| failed(path, "record its owner", error))?;
        }
        let base = map(Some(file), layout, path, Sharing::Shared)?;
        // SAFETY: `map` mapped `layout.bytes` bytes of the emptied file; other openers wait for the
        // file's lock, which the caller holds.
        unsafe { layout.initialise(base) };
        Ok(base)
    }
}

impl Inner {
    fn new(base: *mut u8, layout: Layout, path: PathBuf, backing: Backing, number: NonZeroU32) -> Self {
        let file = match &backing {
            Backing::File(file) | Backing::View(file) => Some(file.as_raw_fd()),
            Backing::Private(_) => None,
        };
        let mapping = Registration::mapping(base, layout.bytes as usize, file, Instead::Empty);
        let registrations = std::iter::once(mapping).chain(file.map(Registration::descriptor)).collect();
        let (seizing, stamp) = (Mutex::default(), ProcessStamp::current());
        Self { base, layout, path, number, seizing, stamp, registrations, backing }
    }

    /// Address of an offset of the layout.
    fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.layout.bytes, "offsets come from the layout");
        // SAFETY: `offset` comes from the layout, so it is at most `layout.bytes`, all mapped at
        // `base`.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.registrations.clear();
        // SAFETY: `map` returned `base` with this length. No reference outlives the value, because
        // all of them borrow a `HostArea`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.layout.bytes as usize) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

/// An area's file as found on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaFile {
    /// File name below `/dev/shm`.
    pub name: String,
    /// Path of the region that the area belongs to, if it was recorded.
    pub region: Option<PathBuf>,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Whether a process has it open.
    pub is_open: bool,
}

fn area_path(name: &str) -> Result<PathBuf, HostError> {
    check_shm_name(name).map_err(|fact| HostError::Name { name: name.to_owned(), fact })?;
    Ok(Path::new(SHM_DIRECTORY).join(name))
}

/// Removes an area if it is an orphan; returns whether it did.
fn sweep_one(name: &str, is_orphan: &impl Fn(&str, &Path) -> bool) -> bool {
    let Ok(path) = area_path(name) else { return false };
    let Ok(file) = file::open_existing(&path, OFlags::RDWR) else { return false };
    // A held lock means that a process makes, opens or sweeps the area.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    let is_ours = |status: Metadata| {
        status.nlink() > 0 && status.is_file() && status.mode() & 0o007 == 0 && file::is_ours(&status)
    };
    if !status_of(&file, &path).is_ok_and(is_ours) || slot::is_held(&file) {
        return false;
    }
    if layout::read_header(&file).is_some() && !layout::read_owner(&file).is_some_and(|owner| is_orphan(name, &owner)) {
        return false;
    }
    fault::point(Point::HostAreaSweeping);
    rustix::fs::unlink(&path).is_ok()
}

/// Takes the file's lock, by polling with a timeout: a process that stops while it initialises an
/// area must not hang others.
fn lock_file(file: &File, path: &Path) -> Result<(), HostError> {
    let deadline = Clock::system().after(INITIALISE_TIMEOUT);
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if deadline.passed() => return Err(HostError::Busy { path: path.into() }),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_micros(200)),
            Err(Errno::INTR) => (),
            Err(error) => return Err(failed(path, "lock the file", error)),
        }
    }
}

fn status_of(file: &File, path: &Path) -> Result<Metadata, HostError> {
    file.metadata().map_err(|error| failed(path, "ask for the file's status", error))
}

/// Visibility of stores to a mapping.
#[derive(Clone, Copy)]
enum Sharing {
    /// Stores reach all processes that map the file.
    Shared,
    /// Stores stay in this process: the kernel copies a page on its first store.
    Copied,
}

fn map(file: Option<&File>, layout: &Layout, path: &Path, sharing: Sharing) -> Result<*mut u8, HostError> {
    let (len, protection) = (layout.bytes as usize, ProtFlags::READ | ProtFlags::WRITE);
    let flags = match sharing {
        Sharing::Shared => MapFlags::SHARED,
        Sharing::Copied => MapFlags::PRIVATE | MapFlags::NORESERVE,
    };
    // SAFETY: a null hint lets the kernel choose the address, so the call replaces no memory in
    // use.
    let mapped = unsafe {
        match file {
            Some(file) => rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0),
            None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags),
        }
    };
    mapped.map(<*mut _>::cast).map_err(|error| failed(path, "map it", error))
}
