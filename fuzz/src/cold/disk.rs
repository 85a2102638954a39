//! A directory in memory that fails and changes on demand.

use cenote_cold::disk::{Access, Disk, DiskFile};
use cenote_mem::files::Stamp;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The only directory.
pub const DIRECTORY: &str = "/cold";

/// Content of a file. Bytes behind those that are there are zeros, as in a file with a hole.
#[derive(Clone, Default)]
pub struct Content {
    pub bytes: Arc<Vec<u8>>,
    pub zeros: u64,
}

impl Content {
    pub fn length(&self) -> u64 {
        self.bytes.len() as u64 + self.zeros
    }
}

/// The files of a directory, by name.
pub type Files = BTreeMap<String, Content>;

struct Inode {
    number: u64,
    content: Mutex<Content>,
    is_locked: AtomicBool,
    has_name: AtomicBool,
    /// Changes of its content.
    changes: AtomicU64,
}

type Change = Box<dyn FnOnce(&mut Files) + Send>;

#[derive(Default)]
struct State {
    files: BTreeMap<String, Arc<Inode>>,
    /// Changes of names.
    changes: u64,
    /// What happens to the files after so many calls.
    change: Option<(u64, Change)>,
    /// The error of calls, and how many calls fail.
    fault: Option<(u64, io::ErrorKind)>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    read: AtomicU64,
}

/// A directory that several processes share.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Shared>);

impl MemoryDisk {
    /// A directory of these files.
    pub fn of(files: Files) -> Self {
        let disk = Self::default();
        disk.set(files);
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All files as they are.
    pub fn files(&self) -> Files {
        let of = |(name, inode): (&String, &Arc<Inode>)| (name.clone(), inode.content().clone());
        self.state().files.iter().map(of).collect()
    }

    /// Replaces all files. Those whose names stay change in their places, and keep their locks.
    pub fn set(&self, files: Files) {
        let mut state = self.state();
        let mut old = std::mem::take(&mut state.files);
        state.changes += 1;
        for (name, content) in files {
            let inode =
                old.remove(&name).unwrap_or_else(|| Arc::new(Inode::new(state.changes << 16 | old.len() as u64)));
            *inode.content() = content;
            inode.changes.fetch_add(1, Relaxed);
            state.files.insert(name, inode);
        }
        old.into_values().for_each(|inode| inode.has_name.store(false, Relaxed));
    }

    /// Changes files after so many calls.
    pub fn change_after(&self, calls: u64, change: impl FnOnce(&mut Files) + Send + 'static) {
        self.state().change = Some((calls, Box::new(change)));
    }

    /// Makes so many calls fail.
    pub fn fail(&self, calls: u64, kind: io::ErrorKind) {
        self.state().fault = Some((calls, kind));
    }

    /// Bytes that were read.
    pub fn read_bytes(&self) -> u64 {
        self.0.read.load(Relaxed)
    }

    /// What happens before each call.
    fn call(&self) -> io::Result<()> {
        let mut state = self.state();
        let is_due = state.change.as_mut().is_some_and(|(left, _)| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        let change = if is_due { state.change.take() } else { None };
        let failed = state.fault.as_mut().map(|(left, kind)| {
            *left -= 1;
            (*left == 0, *kind)
        });
        if failed.is_some_and(|(is_last, _)| is_last) {
            state.fault = None;
        }
        drop(state);
        if let Some((_, change)) = change {
            let mut files = self.files();
            change(&mut files);
            self.set(files);
        }
        failed.map_or(Ok(()), |(_, kind)| Err(kind.into()))
    }

    fn find(&self, path: &Path) -> io::Result<Arc<Inode>> {
        self.state().files.get(name_of(path)?).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn insert(&self, path: &Path, inode: Arc<Inode>, replaces: bool) -> io::Result<()> {
        let (name, mut state) = (name_of(path)?, self.state());
        if !replaces && state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.changes += 1;
        if let Some(old) = state.files.insert(name.to_owned(), inode) {
            old.has_name.store(false, Relaxed);
        }
        Ok(())
    }

    fn fresh(&self) -> Arc<Inode> {
        let mut state = self.state();
        state.changes += 1;
        Arc::new(Inode::new(state.changes << 16))
    }
}

fn name_of(path: &Path) -> io::Result<&str> {
    path.file_name().and_then(|name| name.to_str()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Inode {
    fn new(number: u64) -> Self {
        let (is_locked, has_name) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { number, content: Mutex::default(), is_locked, has_name, changes: AtomicU64::new(0) }
    }

    fn stamp(&self) -> Stamp {
        let changes = i128::from(self.changes.load(Relaxed));
        let size = self.content().length();
        Stamp { device: 1, inode: self.number, size, modified: changes, changed: changes }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Open {
    disk: MemoryDisk,
    inode: Arc<Inode>,
    holds: AtomicBool,
}

impl Open {
    fn boxed(disk: &MemoryDisk, inode: Arc<Inode>) -> Box<dyn DiskFile> {
        Box::new(Self { disk: disk.clone(), inode, holds: AtomicBool::new(false) })
    }
}

impl Disk for MemoryDisk {
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        self.call()
    }

    fn list(&self, _: &Path) -> io::Result<Vec<(String, u64)>> {
        self.call()?;
        Ok(self.state().files.iter().map(|(name, inode)| (name.clone(), inode.content().length())).collect())
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        self.call()?;
        if path == Path::new(DIRECTORY) {
            let changes = i128::from(self.state().changes);
            return Ok(Stamp { device: 1, inode: 0, size: 4096, modified: changes, changed: changes });
        }
        Ok(self.find(path)?.stamp())
    }

    fn open(&self, path: &Path, access: Access, _: bool) -> io::Result<Box<dyn DiskFile>> {
        self.call()?;
        if access != Access::Create {
            return Ok(Open::boxed(self, self.find(path)?));
        }
        let inode = self.fresh();
        self.insert(path, Arc::clone(&inode), false)?;
        Ok(Open::boxed(self, inode))
    }

    fn publish(&self, path: &Path, bytes: &[u8], replaces: bool) -> io::Result<()> {
        self.call()?;
        let inode = self.fresh();
        inode.content().bytes = Arc::new(bytes.to_vec());
        self.insert(path, inode, replaces)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        let (name, mut state) = (name_of(path)?, self.state());
        state.changes += 1;
        let removed = state.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        removed.has_name.store(false, Relaxed);
        Ok(())
    }
}

impl DiskFile for Open {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.call()?;
        let content = self.inode.content().clone();
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > content.length()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.disk.0.read.fetch_add(bytes.len() as u64, Relaxed);
        let from = (offset.min(content.bytes.len() as u64)) as usize;
        let there = bytes.len().min(content.bytes.len() - from);
        bytes[..there].copy_from_slice(&content.bytes[from..from + there]);
        bytes[there..].fill(0);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.call()?;
        let mut content = self.inode.content();
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= 16 << 20).ok_or(io::ErrorKind::FileTooLarge)?;
        let had = content.length();
        let to = Arc::make_mut(&mut content.bytes);
        if to.len() < end {
            to.resize(end, 0);
        }
        to[offset..end].copy_from_slice(bytes);
        content.zeros = had.saturating_sub(content.bytes.len() as u64);
        self.inode.changes.fetch_add(1, Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call()
    }

    fn length(&self) -> io::Result<u64> {
        self.disk.call()?;
        Ok(self.inode.content().length())
    }

    fn is_named(&self) -> io::Result<bool> {
        self.disk.call()?;
        Ok(self.inode.has_name.load(Relaxed))
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.disk.call()?;
        let is_new = !self.inode.is_locked.swap(true, Relaxed);
        self.holds.fetch_or(is_new, Relaxed);
        Ok(is_new || self.holds.load(Relaxed))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.holds.load(Relaxed) {
            self.inode.is_locked.store(false, Relaxed);
        }
    }
}
