//! Making, opening and removing regions.

use super::obtain::{self, Kind};
use super::{DaxFacts, Fresh, MapError, MapOptions, Obtained, RegionFile, RegionSource};
use crate::bus_error;
use crate::cpu::page_bytes;
use crate::registry::{Instead, Registration};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A region mapped into this process, shared with all processes that map the same source. Unmapped
/// on drop.
///
/// Code reaches the memory through a [`Fabric`](crate::Fabric).
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: u64,
    source: RegionSource,
    /// Registrations of the mapping and of the file. Dropped before the resources that they name.
    registrations: Vec<Registration>,
    /// `None` for anonymous memory.
    file: Option<File>,
    obtained: Obtained,
}

// SAFETY: the address range lives as long as the value, on any thread. It is accessed only through
// raw pointers and atomics, under the rules of `Fabric`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; no method with `&self` changes the value itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a region of at least `len` bytes, rounded up to whole pages (huge pages on hugetlbfs).
    /// The new bytes are zero. All space of a file is allocated now, so that no process that maps
    /// it gets SIGBUS later. A failure leaves nothing behind.
    ///
    /// `mode` is the exact permission bits of the file (0o600 unless several users share it). A DAX
    /// device exists already and keeps its bytes and mode; `len` 0 takes all of it.
    ///
    /// # Errors
    /// The name is taken, the path cannot be written, there is no space, or `len` is 0 or does not
    /// fit a device.
    pub fn create(source: &RegionSource, len: u64, mode: u32, options: &MapOptions) -> Result<Self, MapError> {
        let (mapping, fresh) = Self::prepare(source, len, mode, options)?;
        fresh.publish()?;
        Ok(mapping)
    }

    /// As [`Mapping::create`], but a file has no name before [`Fresh::publish`]. No process can
    /// open it unfinished, and a death of this process leaves nothing. On a file system without
    /// unnamed files, a death may leave a temporary file beside `path`.
    ///
    /// # Errors
    /// As for [`Mapping::create`].
    pub fn prepare(
        source: &RegionSource,
        len: u64,
        mode: u32,
        options: &MapOptions,
    ) -> Result<(Self, Fresh), MapError> {
        source.check_name()?;
        let shown = source.shown_path();
        if let RegionSource::DevDax(path) = source {
            return Ok((Self::map_device(source, path, len, Access::Write, options)?, Fresh::NAMELESS));
        }
        if len == 0 || len > isize::MAX as u64 {
            return Err(MapError::NotARegion { path: shown, fact: format!("{len} bytes is no length of a region") });
        }
        let Some(path) = source.path() else {
            let page = page_bytes();
            let (len, kind) = (len.next_multiple_of(page), Kind::Memory { page });
            return Ok((Self::map(source, None, len, kind, Access::Write, options, None)?, Fresh::NAMELESS));
        };
        let (fresh, file) = Fresh::make_large(&path)?;
        let failed = |action| {
            let path = path.clone();
            move |error: Errno| MapError::from_io(&path, action, error)
        };
        let kind = Kind::of_file(&file).map_err(failed("ask for the file system"))?;
        let len = len.next_multiple_of(kind.page());
        let no_space = |free| MapError::NoSpace { path: path.clone(), wanted: len, free };
        // Checked first: a tmpfs fills up before it fails, and starves other processes meanwhile.
        let free = obtain::free_space(&file, kind);
        if free < len {
            return Err(no_space(free));
        }
        rustix::fs::ftruncate(&file, len).map_err(failed("set the file's length"))?;
        // Map before allocating: placement and huge pages are set on the mapping, and apply to
        // pages that are allocated after it.
        let mapping = Self::map(
            source,
            Some(file),
            len,
            kind,
            Access::Write,
            options,
            Some(&|file| match allocate(file, len) {
                Err(Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT) => {
                    Err(no_space(obtain::free_space(file, kind)))
                }
                other => other.map_err(failed("allocate space")),
            }),
        )?;
        let file = mapping.file.as_ref().expect("a file was mapped");
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777)).map_err(failed("set the file's mode"))?;
        Ok((mapping, fresh))
    }

    /// Opens an existing region in its whole length.
    ///
    /// # Errors
    /// The region does not exist, access is denied, its owner is not trusted, or the file cannot be
    /// a region (a directory, an empty file, no whole number of pages). Anonymous memory can never
    /// be opened.
    pub fn open(source: &RegionSource, options: &MapOptions) -> Result<Self, MapError> {
        Self::open_for(source, Access::Write, options)
    }

    fn open_for(source: &RegionSource, access: Access, options: &MapOptions) -> Result<Self, MapError> {
        source.check_name()?;
        if let RegionSource::DevDax(path) = source {
            return Self::map_device(source, path, 0, access, options);
        }
        let Some(path) = source.path() else {
            return Err(MapError::NotARegion {
                path: source.shown_path(),
                fact: "anonymous memory belongs to the process that made it".into(),
            });
        };
        let wrong = |fact: String| MapError::NotARegion { path: path.clone(), fact };
        let file = open_file(&path, access)?;
        let status = file.metadata().map_err(|error| MapError::from_io(&path, "ask for the file's status", error))?;
        if status.is_dir() {
            return Err(wrong("it is a directory".into()));
        }
        if !status.is_file() {
            return Err(wrong("it is no regular file".into()));
        }
        if matches!(access, Access::Write) {
            RegionFile::of(&path, &status).believe()?;
        }
        let kind = Kind::of_file(&file).map_err(|error| MapError::from_io(&path, "ask for the file system", error))?;
        let (len, page) = (status.len(), kind.page());
        if len == 0 {
            return Err(wrong("it is empty".into()));
        }
        if !len.is_multiple_of(page) || len > isize::MAX as u64 {
            return Err(wrong(format!("its {len} bytes are not whole pages of {page} bytes")));
        }
        Self::map(source, Some(file), len, kind, access, options, None)
    }

    /// Removes a region's name. Processes that have it mapped keep the memory until they unmap it.
    /// Does nothing for anonymous memory, which has no name.
    ///
    /// # Errors
    /// The name does not exist, may not be removed, is no regular file, or is a device.
    pub fn remove(source: &RegionSource) -> Result<(), MapError> {
        source.check_name()?;
        let Some(path) = source.path() else { return Ok(()) };
        if matches!(source, RegionSource::DevDax(_)) {
            return Err(MapError::NotRemovable { path });
        }
        let status =
            path.symlink_metadata().map_err(|error| MapError::from_io(&path, "ask for the file's status", error))?;
        if !status.is_file() {
            return Err(MapError::NotARegion { path, fact: "it is no regular file".into() });
        }
        rustix::fs::unlink(&path).map_err(|error| MapError::from_io(&path, "remove the file", error))
    }

    /// Mapped bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Always false: an empty region cannot be mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The properties that the machine granted for the [`MapOptions`].
    #[must_use]
    pub const fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    /// Faults the pages of a part in, without changing a byte, so that page-locking them is fast.
    ///
    /// # Errors
    /// The part is outside of the mapping or does not begin at a page, or the kernel refuses.
    pub fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let fact = format!("{len} bytes at {offset} are outside of a region of {} bytes", self.len);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, fact));
        }
        // SAFETY: the part is within the mapping, as was checked, so the pages are mapped.
        unsafe { obtain::touch(self.base.add(offset as usize), len) }
    }

    /// Source of the bytes.
    #[must_use]
    pub const fn source(&self) -> &RegionSource {
        &self.source
    }

    /// Whether an access has found memory missing. Bytes that were read before are right if it
    /// returns false afterwards. It costs a load, where [`Mapping::still_whole`] asks the kernel.
    #[must_use]
    pub fn has_read_lost(&self) -> bool {
        self.registrations.iter().any(Registration::has_lost)
    }

    /// Whether the file is still at least as long as the mapping, and no access has found memory
    /// missing. Missing memory reads as zeros, and stores to it are lost (`bus_error.rs`). A user
    /// that gets `false` must leave the region.
    #[must_use]
    pub fn still_whole(&self) -> bool {
        if self.has_read_lost() {
            return false;
        }
        let Some(file) = &self.file else { return true };
        match rustix::fs::fstat(file) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice => true,
            Ok(status) => u64::try_from(status.st_size).is_ok_and(|len| len >= self.len),
            Err(_) => false,
        }
    }

    pub(super) const fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Address of the first byte, for the fabrics of this crate.
    #[inline]
    pub(crate) const fn base(&self) -> *mut u8 {
        self.base
    }

    fn map_device(
        source: &RegionSource,
        path: &Path,
        len: u64,
        access: Access,
        options: &MapOptions,
    ) -> Result<Self, MapError> {
        let file = open_existing(path, access)?;
        let status = file.metadata().map_err(|error| MapError::from_io(path, "ask for the device's status", error))?;
        if FileType::from_raw_mode(status.mode()) != FileType::CharacterDevice {
            return Err(MapError::NotARegion { path: path.into(), fact: "it is no character device".into() });
        }
        let (major, minor) = (rustix::fs::major(status.rdev()), rustix::fs::minor(status.rdev()));
        let facts = DaxFacts::read(Path::new("/"), major, minor)
            .map_err(|error| MapError::NotARegion { path: path.into(), fact: format!("sysfs: {error}") })?;
        let len = device_len(path, &facts, len)?;
        Self::map(source, Some(file), len, Kind::Dax(facts), access, options, None)
    }

    /// Maps and advises. `allocate` runs after the advice, so that new pages follow it.
    fn map(
        source: &RegionSource,
        file: Option<File>,
        len: u64,
        kind: Kind,
        access: Access,
        options: &MapOptions,
        allocate: Option<&Allocate<'_>>,
    ) -> Result<Self, MapError> {
        let (size, protection) = (len as usize, access.protection());
        // SAFETY: a null hint lets the kernel choose the address, so the call replaces no memory in
        // use; callers pass a `len` above zero.
        let mapped = unsafe {
            match &file {
                Some(file) => rustix::mm::mmap(std::ptr::null_mut(), size, protection, MapFlags::SHARED, file, 0),
                None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::SHARED),
            }
        };
        let base = mapped.map_err(|error| match error {
            Errno::NOMEM => MapError::NoSpace { path: source.shown_path(), wanted: len, free: obtain::free_memory() },
            _ => MapError::from_io(&source.shown_path(), "map it", error),
        })?;
        bus_error::handle();
        let descriptor = file.as_ref().map(AsRawFd::as_raw_fd);
        let inherited = Registration::mapping(base.cast(), size, descriptor, Instead::Same);
        let registrations = std::iter::once(inherited).chain(descriptor.map(Registration::descriptor)).collect();
        let (source, obtained) = (source.clone(), Obtained::default());
        let mut mapping = Self { base: base.cast(), len, source, registrations, file, obtained };
        let mut notes = Vec::new();
        obtain::advise(mapping.base, len, kind, options, &mut notes);
        if let (Some(allocate), Some(file)) = (allocate, &mapping.file) {
            // Faulting pages in through the mapping follows the advice for huge pages; allocating
            // them through the file does not.
            if options.prefault {
                obtain::populate(mapping.base, len, &mut Vec::new());
            }
            allocate(file)?;
        }
        if options.prefault {
            obtain::populate(mapping.base, len, &mut notes);
        }
        mapping.obtained = obtain::obtained(mapping.base, len, kind, options, notes);
        Ok(mapping)
    }
}

/// Access that a mapping allows.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

impl Access {
    const fn flags(self) -> OFlags {
        match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::RDWR,
        }
    }

    fn protection(self) -> ProtFlags {
        match self {
            Self::Read => ProtFlags::READ,
            Self::Write => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// A region mapped read-only; a store to it raises SIGSEGV. See [`ReadOnly`](crate::ReadOnly).
#[derive(Debug)]
pub struct ReadMapping(Mapping);

impl ReadMapping {
    /// Opens an existing region in its whole length, and leaves the placement of its memory
    /// unchanged.
    ///
    /// # Errors
    /// As for [`Mapping::open`], but read access is enough, and its owner need not be trusted.
    pub fn open(source: &RegionSource) -> Result<Self, MapError> {
        let options = MapOptions { numa_node: None, huge_pages: false, prefault: false };
        Mapping::open_for(source, Access::Read, &options).map(Self)
    }

    /// The mapping, for the fabric that does not store.
    pub(crate) fn into_inner(self) -> Mapping {
        self.0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.registrations.clear();
        // SAFETY: `mmap` returned `base` and `len`, and nothing else unmaps them. No reference into
        // the mapping outlives the value: fabrics own it, and lend references only under their own
        // borrow.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

/// Allocates the space of a new file.
type Allocate<'a> = dyn Fn(&File) -> Result<(), MapError> + 'a;

/// Length in bytes to map of a device: all of it for 0, otherwise `len` rounded up to the
/// alignment.
fn device_len(path: &Path, facts: &DaxFacts, len: u64) -> Result<u64, MapError> {
    let too_small = MapError::TooSmall { path: path.into(), have: facts.size, wanted: len };
    match len.checked_next_multiple_of(facts.align) {
        Some(0) => match facts.size / facts.align * facts.align {
            0 => Err(MapError::TooSmall { path: path.into(), have: facts.size, wanted: facts.align }),
            whole => Ok(whole),
        },
        Some(rounded) if rounded <= facts.size => Ok(rounded),
        _ => Err(too_small),
    }
}

/// Opens a region's file. Refuses symbolic links: a link may be planted, and its target may change.
fn open_file(path: &Path, access: Access) -> Result<File, MapError> {
    open_with(path, access, OFlags::NOFOLLOW)
}

fn open_existing(path: &Path, access: Access) -> Result<File, MapError> {
    open_with(path, access, OFlags::empty())
}

fn open_with(path: &Path, access: Access, more: OFlags) -> Result<File, MapError> {
    // Nonblocking, because the name may be a FIFO without a writer.
    let flags = access.flags() | OFlags::CLOEXEC | OFlags::NONBLOCK | more;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::LOOP) => Err(MapError::NotARegion {
            path: path.into(),
            fact: "it is a symbolic link; name the file that it leads to".into(),
        }),
        Ok(file) => Ok(file.into()),
        Err(Errno::ISDIR) => Err(MapError::NotARegion { path: path.into(), fact: "it is a directory".into() }),
        Err(Errno::NXIO | Errno::NODEV) => {
            Err(MapError::NotARegion { path: path.into(), fact: "no driver answers for it".into() })
        }
        Err(error) => Err(MapError::from_io(path, "open it", error)),
    }
}

/// Allocates space for every byte of the file.
pub(crate) fn allocate(file: &File, len: u64) -> Result<(), Errno> {
    let len = libc::off_t::try_from(len).map_err(|_| Errno::FBIG)?;
    loop {
        // SAFETY: `file` keeps the descriptor open for the call, which takes no pointers. Unlike
        // the `fallocate` system call, it also works on file systems without allocation, by writing
        // to each block.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => return Ok(()),
            libc::EINTR => (),
            error => return Err(Errno::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::fake_page;

    #[test]
    fn a_device_is_mapped_in_multiples_of_its_alignment() {
        let facts = DaxFacts { size: (10 << 20) + 4096, align: 2 << 20, numa_node: None };
        let len = |wanted| device_len(Path::new("/dev/dax0.0"), &facts, wanted).ok();
        assert_eq!(len(0), Some(10 << 20));
        assert_eq!(len(1), Some(2 << 20));
        assert_eq!(len(10 << 20), Some(10 << 20));
        assert_eq!(len((10 << 20) + 1), None);
        assert_eq!(len(u64::MAX), None);
    }
    #[test]
    fn a_region_has_whole_pages_of_any_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| RegionSource::File(folder.path().join(name));
        let options = MapOptions::default();
        for page in [64 << 10, 128 << 10] {
            fake_page::with(page, || {
                for source in [at(&page.to_string()), RegionSource::Anon] {
                    let made = Mapping::create(&source, page + 1, 0o600, &options).expect("it has space");
                    assert_eq!((made.len(), made.obtained().page_bytes % page), (2 * page, 0), "{source:?}");
                }
                let opened = Mapping::open(&at(&page.to_string()), &options).expect("it was made");
                assert_eq!(opened.len(), 2 * page);
            });
        }
        let own = page_bytes();
        std::fs::write(folder.path().join("small"), vec![0; own as usize]).expect("it has space");
        let refused = fake_page::with(2 * own, || Mapping::open(&at("small"), &options)).err();
        let fact = format!("not whole pages of {} bytes", 2 * own);
        assert!(refused.is_some_and(|error| error.to_string().contains(&fact)));
        assert!(Mapping::open(&at("small"), &options).is_ok(), "a page of this machine");
    }
}
