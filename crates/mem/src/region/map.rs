//! Making, opening and removing regions.

use super::obtain::{self, Kind};
use super::{DaxFacts, Fresh, MapError, MapOptions, Obtained, RegionFile, RegionSource};
use crate::bus_error;
use crate::registry::{Instead, Registration};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A region mapped into this process, shared with all who map the same source; unmapped on drop.
///
/// The memory is reached through a [`Fabric`](crate::Fabric).
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: u64,
    source: RegionSource,
    /// Of the mapping, and of the file. They go before what they stand for.
    registrations: Vec<Registration>,
    /// `None` for anonymous memory.
    file: Option<File>,
    obtained: Obtained,
}

// SAFETY: a mapping is an address range that lives as long as the value, wherever it is moved; it is only
// read and written through raw pointers and atomics, under the rules of `Fabric`.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the value itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a region of at least `len` bytes, rounded up to whole pages (huge pages on hugetlbfs). The
    /// new bytes are zero, and every page of a file has its place in the file system, so that nobody who
    /// maps it meets SIGBUS later. Nothing stays behind when this fails.
    ///
    /// `mode` is the file's permission bits, exactly (0o600 unless several users share it). A DAX device
    /// exists already and keeps its bytes and mode; `len` 0 takes all of it.
    ///
    /// # Errors
    /// The name is taken, the path cannot be written, there is no space, or `len` is 0 or does not fit a
    /// device.
    pub fn create(source: &RegionSource, len: u64, mode: u32, options: &MapOptions) -> Result<Self, MapError> {
        let (mapping, fresh) = Self::prepare(source, len, mode, options)?;
        fresh.publish()?;
        Ok(mapping)
    }

    /// As [`Mapping::create`], but a file has no name before [`Fresh::publish`]: nobody opens it half made, and if this process dies,
    /// nothing is left of it. (Where the file system has no files without a name, one beside it may be left.)
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
            let page = rustix::param::page_size() as u64;
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
        // Asked first because a tmpfs would fill up before it fails, and starve everybody meanwhile.
        let free = obtain::free_space(&file, kind);
        if free < len {
            return Err(no_space(free));
        }
        rustix::fs::ftruncate(&file, len).map_err(failed("set the file's length"))?;
        // Mapped before space is allocated, because placement and huge pages are set on the mapping and
        // hold for pages allocated after it.
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

    /// Opens a region that exists, in its whole length.
    ///
    /// # Errors
    /// There is none, it may not be read and written, or what has this name cannot be a region (a
    /// directory, an empty file, a part of a page). Anonymous memory can never be opened.
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

    /// Removes a region's name. Who has it mapped keeps the memory until they unmap it. Anonymous
    /// memory has no name, so nothing happens.
    ///
    /// # Errors
    /// There is none, it may not be removed, it is no regular file, or it is a device.
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

    /// Bytes mapped.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty region cannot be mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the machine gave of what was asked for.
    #[must_use]
    pub const fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    /// Where the bytes are.
    #[must_use]
    pub const fn source(&self) -> &RegionSource {
        &self.source
    }

    /// Whether the file is still at least as long as the mapping, and no part of the memory was gone as it was touched. What
    /// is gone reads as zeros, and stores to it reach nobody (`bus_error.rs`): a user that finds this leaves the region.
    #[must_use]
    pub fn still_whole(&self) -> bool {
        if self.registrations.iter().any(Registration::has_lost) {
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

    /// Maps and advises; `allocate` runs between, so that it finds the advice in place.
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
        // SAFETY: the kernel picks the address of a new mapping, so no memory in use changes; `size` is
        // not zero.
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
            // Faulting pages in through the mapping heeds the advice for huge pages, which allocating
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

/// What a mapping is for.
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

/// A region that this process can only read: a store would be its end. See [`ReadOnly`](crate::ReadOnly).
#[derive(Debug)]
pub struct ReadMapping(Mapping);

impl ReadMapping {
    /// Opens a region that exists, in its whole length, and leaves its memory's placement as it is.
    ///
    /// # Errors
    /// As for [`Mapping::open`], but it need only be readable.
    pub fn open(source: &RegionSource) -> Result<Self, MapError> {
        let options = MapOptions { numa_node: None, huge_pages: false, prefault: false };
        Mapping::open_for(source, Access::Read, &options).map(Self)
    }

    /// The mapping, for the fabric that does not write.
    pub(crate) fn into_inner(self) -> Mapping {
        self.0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.registrations.clear();
        // SAFETY: `base` and `len` are what `mmap` gave, nothing else unmaps them, and no reference into
        // the mapping outlives the value: fabrics own it and lend references only under their own borrow.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

/// Gives a new file its space.
type Allocate<'a> = dyn Fn(&File) -> Result<(), MapError> + 'a;

/// How much of a device to map: all of it for 0, otherwise `len` rounded up to the device's alignment.
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

/// Opens a region's file. A link may have been planted, and may lead elsewhere the next time.
fn open_file(path: &Path, access: Access) -> Result<File, MapError> {
    open_with(path, access, OFlags::NOFOLLOW)
}

fn open_existing(path: &Path, access: Access) -> Result<File, MapError> {
    open_with(path, access, OFlags::empty())
}

fn open_with(path: &Path, access: Access, more: OFlags) -> Result<File, MapError> {
    // Not blocking, because the name may be a pipe without a writer.
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

/// Gives every byte of the file its place in the file system.
pub(crate) fn allocate(file: &File, len: u64) -> Result<(), Errno> {
    let len = libc::off_t::try_from(len).map_err(|_| Errno::FBIG)?;
    loop {
        // SAFETY: the descriptor is open for writing. Unlike the bare system call, this also works on
        // file systems that cannot allocate, by writing to each block.
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
}
