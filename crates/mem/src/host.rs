//! Memory that the processes of one host share beside the region: tier 1 of the locks (TraCT §3.3), and
//! arrays of counters that need no coherence between hosts.
//!
//! A [`HostArea`] survives the death of any process at any point. Its locks are robust: the next holder after a dead one
//! gets the lock and is told. Its slots tell whether the process that claimed one still lives, by a lock that the kernel
//! drops with the process. Process and thread ids are not used anywhere, because they repeat and differ between
//! containers.
//!
//! The area is a file in `/dev/shm`, for those who may write its region. It is initialised under an exclusive
//! `flock`, and a word that is written last says that it is ready; whoever finds that word missing starts anew.

mod file;
mod layout;
mod local;
mod lock;
mod slot;

pub use file::Permissions;
pub(crate) use file::UNMAPPED;
pub use local::{HeldLock, HostLocal, Word};
pub use lock::{HostLock, LockTimeout};
pub use slot::SlotClaim;

use crate::fork::ProcessStamp;
use crate::region::{MapError, RegionFile, SHM_DIRECTORY, allocate, check_shm_name};
use crate::registry::{Instead, Registration};
use cenote_base::Deadline;
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

/// How much of everything an area has. All who open an area must agree.
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

/// Why an area could not be opened or a slot not be asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The name is no file name.
    #[error("`{name}` cannot name a host area: {fact}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        fact: &'static str,
    },
    /// The area is there and ready, but was made for something else.
    #[error("{}: made with {found:?}, but {wanted:?} is wanted; another version or region uses this name", path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// What it was made with; `None` where another version of this program made it.
        found: Option<HostSpec>,
        /// What was asked for.
        wanted: HostSpec,
    },
    /// The file is not what a host area is.
    #[error("{}: not a host area: {fact}", path.display())]
    NotAnArea {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fact: &'static str,
    },
    /// The file is another user's, or shared with others than the region is.
    #[error("{}: {found}, of a region with {region}: {fact}", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: Permissions,
        /// Whose the region is.
        region: Permissions,
        /// What is wrong with it.
        fact: &'static str,
    },
    /// There is no such file, and it cannot be made.
    #[error(transparent)]
    Make(MapError),
    /// More processes have it open than there are numbers for.
    #[error("{}: too many processes have it open", path.display())]
    Crowded {
        /// The file.
        path: PathBuf,
    },
    /// Another process has been initialising the area for too long; perhaps it is stopped.
    #[error("{}: still being initialised by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A specification that no machine has room for.
    #[error("a host area with {0:?} is too large")]
    TooLarge(HostSpec),
    /// A system call failed.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

fn failed(path: &Path, action: &'static str, source: impl Into<io::Error>) -> HostError {
    HostError::Io { path: path.into(), action, source: source.into() }
}

/// An open area. Clones are the same area; it is unmapped with the last of them.
#[derive(Clone, Debug)]
pub struct HostArea(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: *mut u8,
    layout: Layout,
    path: PathBuf,
    /// What this opener's locks bear; no other living opener of the file has it.
    number: NonZeroU32,
    /// Held by the thread that looks whether a lock's owner is dead.
    seizing: Mutex<()>,
    stamp: ProcessStamp,
    /// Of the mapping, and of the file. They go before what they stand for.
    registrations: Vec<Registration>,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File(File),
    /// Which slots are claimed.
    Private(Mutex<Vec<bool>>),
    /// A file that is only looked at.
    View(File),
}

// SAFETY: the mapping lives as long as the value, wherever it is moved; its bytes are reached as atomics,
// and as a header that is only written before anybody else can see it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// How long another process may take to initialise an area: it zeroes memory and writes some mutexes.
const INITIALISE_TIMEOUT: Duration = Duration::from_secs(10);

impl HostArea {
    /// Opens the area `name`, or makes it if it is not there or was only half made. `true` beside it
    /// says that it was made now: all words are zero.
    ///
    /// Who gets `true` may die before giving the words a meaning, and who gets `false` may come before
    /// that is done. So words that must be rebuilt are rebuilt under one of the area's locks, with a word
    /// that says so at the end.
    ///
    /// `private` makes anonymous memory instead, which only clones of the result share; for regions that
    /// are private to a process themselves.
    ///
    /// # Errors
    /// The name is bad, the area has another specification, there is no space, or it may not be opened.
    pub fn open(name: &str, spec: HostSpec, private: bool) -> Result<(Self, bool), HostError> {
        if private {
            let layout = Layout::of(spec).ok_or(HostError::TooLarge(spec))?;
            return Self::open_private(layout).map(|area| (area, true));
        }
        Self::open_for(name, spec, None)
    }

    /// As [`HostArea::open`], for a `region`: with the permissions of its file, and with its path recorded for
    /// [`HostArea::sweep`].
    ///
    /// # Errors
    /// As for [`HostArea::open`].
    pub fn open_for(name: &str, spec: HostSpec, region: Option<&RegionFile>) -> Result<(Self, bool), HostError> {
        let layout = Layout::of(spec).ok_or(HostError::TooLarge(spec))?;
        let (path, access) = (area_path(name)?, Access::to(region));
        let owner = region.map(|region| region.path.as_path());
        // An area may be removed between our opening and locking it; then there is a new one to open.
        for _ in 0..1000 {
            let Some(file) = access.open(&path)? else { continue };
            lock_file(&file, &path)?;
            if !access.settle(&file, &path)? {
                continue;
            }
            let opened = Self::open_locked(&path, &file, layout, owner)?;
            // From here on it is in use, as long as this description or a child's copy of it is open.
            slot::hold(&file).map_err(|error| failed(&path, "lock a byte", error))?;
            let number = lock::number(&file).ok_or_else(|| HostError::Crowded { path: path.clone() })?;
            // Descriptors duplicated from this one would share its lock, so it is dropped by name.
            rustix::fs::flock(&file, FlockOperation::Unlock)
                .map_err(|error| failed(&path, "unlock the file", error))?;
            let (base, created) = opened;
            let inner = Inner::new(base, layout, path, Backing::File(file), number);
            lock::succeed(&inner);
            return Ok((Self(Arc::new(inner)), created));
        }
        Err(HostError::Busy { path })
    }

    /// Removes an area's name. Processes that have it open keep it; who opens the name next gets a new one.
    /// No error if there is none. `false`: it is another user's, who alone may remove it.
    ///
    /// # Errors
    /// The name is bad, or the file cannot be removed.
    pub fn remove(name: &str) -> Result<bool, HostError> {
        let path = area_path(name)?;
        // Whoever removes a name holds the file's lock, so that nobody else removes what was made after it.
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

    /// Removes areas that nobody has open: of the files whose name `is_area`'s, those of which `is_orphan` says so, given
    /// name and owner, and those that their maker did not live to finish. Returns how many. Areas that are another user's,
    /// or of which nobody recorded an owner, stay.
    ///
    /// Others may open, make and sweep areas meanwhile: an area is removed under the lock under which it is made and
    /// opened, and who opened its file before that finds it without a name and makes a new one.
    pub fn sweep(is_area: impl Fn(&str) -> bool, is_orphan: impl Fn(&str, &Path) -> bool) -> usize {
        let Ok(entries) = std::fs::read_dir(SHM_DIRECTORY) else { return 0 };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_area(name) && sweep_one(name, &is_orphan)).count()
    }

    /// The areas of this machine that this user can read, of the files whose name `is_area`'s. Nothing is joined or locked.
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

    /// Opens the area `name` to look at it; `None` if it is not there, or is not made yet. Words show what others
    /// store; what this process stores in them stays its own. It has no locks to give and no slots to claim.
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
        Ok(Some(Self(Arc::new(Inner::new(base, layout, path, Backing::View(file), NonZeroU32::MIN)))))
    }

    /// What the area was made with.
    #[must_use]
    pub fn spec(&self) -> HostSpec {
        self.0.layout.spec
    }

    /// The 32-bit words.
    #[must_use]
    pub fn words32(&self) -> &[AtomicU32] {
        let layout = &self.0.layout;
        // SAFETY: the layout lies inside the mapping, which lives as long as `self`, and is aligned; the
        // words are shared as atomics only, and every bit pattern is one.
        unsafe { std::slice::from_raw_parts(self.0.at(layout.words32).cast(), layout.spec.words32 as usize) }
    }

    /// The 64-bit words.
    #[must_use]
    pub fn words64(&self) -> &[AtomicU64] {
        let layout = &self.0.layout;
        // SAFETY: as in `words32`.
        unsafe { std::slice::from_raw_parts(self.0.at(layout.words64).cast(), layout.spec.words64 as usize) }
    }

    /// Whether this process was forked by the one that opened the area: locks and slots are not its to take or to release.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.stamp.is_inherited()
    }

    /// Takes lock `index`, waiting until `deadline` at the latest. Panics if there is no such lock.
    ///
    /// # Errors
    /// The deadline passed, or this process inherited the area.
    pub fn lock(&self, index: u32, deadline: Deadline) -> Result<HostLock<'_>, LockTimeout> {
        if matches!(self.0.backing, Backing::View(_)) {
            return Err(LockTimeout::Passed { index });
        }
        lock::lock(self, index, Some(deadline))
    }

    /// Takes lock `index` if it is free. Panics if there is no such lock.
    #[must_use]
    pub fn try_lock(&self, index: u32) -> Option<HostLock<'_>> {
        (!matches!(self.0.backing, Backing::View(_))).then(|| lock::lock(self, index, None).ok()).flatten()
    }

    /// Claims `slot` for as long as the claim, or this process, lives. `None` if it is claimed. Panics if
    /// there is no such slot.
    ///
    /// # Errors
    /// The file cannot be opened once more, or cannot be locked.
    pub fn claim_slot(&self, slot: u32) -> Result<Option<SlotClaim>, HostError> {
        slot::claim(self, slot)
    }

    /// Whether somebody's claim of `slot` lives. Panics if there is no such slot.
    ///
    /// A dead process's claim ends while the kernel closes its files, in an order that is not ours to
    /// know: devices that it drove may still be writing (docs on recovery say how to wait for them).
    #[must_use]
    pub fn slot_alive(&self, slot: u32) -> bool {
        slot::alive(self, slot)
    }

    fn open_private(layout: Layout) -> Result<Self, HostError> {
        let path = PathBuf::from("private host area");
        let base = map(None, &layout, &path, Sharing::Shared)?;
        // SAFETY: the memory was mapped now, is as large as the layout, and nobody else knows it.
        unsafe { layout.initialise(base) };
        let backing = Backing::Private(Mutex::new(vec![false; layout.spec.slots as usize]));
        Ok(Self(Arc::new(Inner::new(base, layout, path, backing, NonZeroU32::MIN))))
    }

    /// Maps the file, initialising it first unless it is ready. The caller holds the file's lock.
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
            // Who waits for the lock finds a file without a name and opens a new one.
            let _ = rustix::fs::unlink(path);
        }
        made.map(|base| (base, true))
    }

    /// Maps a file that is ready.
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
        // Cut first, so that the words of a half-made area are zero again.
        rustix::fs::ftruncate(file, 0).map_err(|error| failed(path, "empty the file", error))?;
        cenote_base::fault::point("host-area.emptied");
        rustix::fs::ftruncate(file, layout.bytes).map_err(|error| failed(path, "set the file's length", error))?;
        allocate(file, layout.bytes).map_err(|error| failed(path, "allocate space", error))?;
        cenote_base::fault::point("host-area.allocated");
        if let Some(owner) = owner {
            layout::write_owner(file, owner).map_err(|error| failed(path, "record its owner", error))?;
        }
        let base = map(Some(file), layout, path, Sharing::Shared)?;
        // SAFETY: the mapping is as large as the layout, and whoever else opens the file waits for its lock.
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

    /// The address of a part of the layout.
    fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.layout.bytes, "offsets come from the layout");
        // SAFETY: offsets of a layout lie inside its `bytes`, all of which are mapped at `base`.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.registrations.clear();
        // SAFETY: `map` gave `base` and this length; no reference outlives the value, because all of them
        // borrow a `HostArea`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.layout.bytes as usize) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

/// An area as it lies on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaFile {
    /// The file's name.
    pub name: String,
    /// The file of the region that it belongs to, as far as its maker recorded it.
    pub region: Option<PathBuf>,
    /// Size of the file.
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
    // Whoever has the lock is making it, opening it or sweeping it.
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
    cenote_base::fault::point("host-area.sweeping");
    rustix::fs::unlink(&path).is_ok()
}

/// Takes the file's lock. It is only held while an area is initialised, so waiting is polling: a wait
/// without an end would hang with a process that was stopped at the wrong moment.
fn lock_file(file: &File, path: &Path) -> Result<(), HostError> {
    let deadline = Deadline::after(INITIALISE_TIMEOUT);
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

/// Who sees what a mapping's user stores.
#[derive(Clone, Copy)]
enum Sharing {
    /// All who map the file.
    Shared,
    /// Nobody else: a page that is stored to becomes the process's own copy.
    Copied,
}

fn map(file: Option<&File>, layout: &Layout, path: &Path, sharing: Sharing) -> Result<*mut u8, HostError> {
    let (len, protection) = (layout.bytes as usize, ProtFlags::READ | ProtFlags::WRITE);
    let flags = match sharing {
        Sharing::Shared => MapFlags::SHARED,
        Sharing::Copied => MapFlags::PRIVATE | MapFlags::NORESERVE,
    };
    // SAFETY: the kernel picks the address of a new mapping, so no memory in use changes.
    let mapped = unsafe {
        match file {
            Some(file) => rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0),
            None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags),
        }
    };
    mapped.map(<*mut _>::cast).map_err(|error| failed(path, "map it", error))
}
