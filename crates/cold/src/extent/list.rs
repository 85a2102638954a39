//! The list of records in memory, and how it follows the files of all processes.

use super::format::{EXTENT, Entry, INDEX, Key, LINE_BYTES, entry, key_of_head, key_of_line, open_index, stem_of};
use crate::backend::Used;
use crate::disk::{Access, Disk, DiskFile};
use crate::error::ColdError;
use crate::record::Name;
use crate::sums::Sums;
use cenote_base::Clock;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Most bytes of an index that one look reads, so that a long index delays no other file.
const LOOK_BYTES: u64 = 4 << 20;
/// Most bytes of all indexes that one look reads.
const LOOK_BYTES_ALL: u64 = 16 << 20;
/// Longest index: twice that of an extent full of the shortest records.
pub(super) const INDEX_BYTES_MAX: u64 = 8 << 20;
/// Extents of other processes are expected to grow for so long after they grew.
pub(super) const LIVE: Duration = Duration::from_secs(60);
/// Extents that are expected to grow when a directory is opened: the youngest.
pub(super) const LIVE_AT_FIRST: usize = 64;
/// Extents that are open for reading at once. Others are opened again, so that a large tier leaves
/// descriptors to its server's sockets.
pub(super) const OPEN_MAX: usize = 32;

/// A file of records, opened when it is first read.
pub struct Extent {
    path: PathBuf,
    name: String,
    file: Mutex<Option<Arc<dyn DiskFile>>>,
}

/// Extents that are open for reading, in the order of their opening.
#[derive(Default)]
pub struct OpenFiles(Mutex<VecDeque<Weak<Extent>>>);

impl OpenFiles {
    /// Notes an extent that was opened, and closes the one that has been open longest.
    fn opened(&self, extent: &Arc<Extent>) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An extent that left the list is closed already.
        queue.retain(|extent| extent.strong_count() > 0);
        queue.push_back(Arc::downgrade(extent));
        let oldest = if queue.len() > OPEN_MAX { queue.pop_front() } else { None };
        drop(queue);
        if let Some(extent) = oldest.and_then(|extent| extent.upgrade()) {
            extent.close();
        }
    }
}

impl Extent {
    pub fn new(directory: &Path, stem: &str, file: Option<Arc<dyn DiskFile>>) -> Self {
        let path = directory.join(format!("{stem}{EXTENT}"));
        Self { name: path.display().to_string(), path, file: Mutex::new(file) }
    }

    /// The path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Closes the file until it is read again. The writer's lock ends with its file.
    pub fn close(&self) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn file(self: &Arc<Self>, disk: &dyn Disk, open: &OpenFiles) -> Result<Arc<dyn DiskFile>, ColdError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let opened = disk.open(&self.path, Access::Read, true).map_err(|error| ColdError::of(&self.name, &error))?;
        let opened = Arc::clone(file.insert(Arc::from(opened)));
        // Closing another extent takes that one's lock.
        drop(file);
        open.opened(self);
        Ok(opened)
    }
}

/// Where a record lies.
#[derive(Clone)]
pub struct Spot {
    pub extent: Arc<Extent>,
    pub offset: u64,
    pub length: u64,
}

impl Spot {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.extent, &other.extent) && self.offset == other.offset
    }
}

/// What is known of a file.
#[derive(Clone)]
pub(super) struct Known {
    extent: Arc<Extent>,
    /// In the index's head; `None`: the head is not read yet.
    id: Option<u64>,
    /// Bytes of the index that are read: whole lines.
    read: u64,
    /// The index's head is damaged or of another version, or it is too long. Nothing of it is read.
    is_refused: bool,
    /// The index could not be read the last time, which is told once.
    is_unreadable: bool,
    /// This process writes it and enters its records itself.
    is_own: bool,
    /// Bytes of both files.
    bytes: u64,
    /// When it was seen to grow, in nanoseconds of the clock.
    grown_ns: Option<u64>,
}

impl Known {
    fn new(extent: Arc<Extent>) -> Self {
        Self {
            extent,
            id: None,
            read: 0,
            is_refused: false,
            is_unreadable: false,
            is_own: false,
            bytes: 0,
            grown_ns: None,
        }
    }

    fn is_live(&self, clock: Clock) -> bool {
        let has_grown = self.grown_ns.is_some_and(|at_ns| clock.since(at_ns) < LIVE);
        !self.is_own && !self.is_refused && (has_grown || self.is_unreadable)
    }
}

/// Files by their names without end.
#[derive(Clone, Default)]
pub struct Files(pub(super) BTreeMap<String, Known>);

/// What a look found.
pub struct News {
    pub files: Files,
    pub entries: Vec<(Arc<Extent>, Entry)>,
    /// Index lines and heads that are damaged, and files that cannot be read now.
    pub damage: Vec<ColdError>,
    /// Some index has more lines than one look reads.
    pub has_more: bool,
}

/// All records that this process knows.
#[derive(Default)]
pub struct List {
    spots: HashMap<Key, Spot>,
    files: Files,
    /// Keys of each extent, to forget them with it.
    keys: HashMap<String, Vec<Key>>,
}

impl List {
    pub fn find(&self, name: &Name) -> Option<Spot> {
        self.spots.get(&Key::of(name)).cloned()
    }

    pub fn used(&self) -> Used {
        let bytes = self.files.0.values().map(|known| known.bytes).sum();
        Used { blocks: self.spots.len() as u64, bytes, bytes_max: 0 }
    }

    pub fn has_file(&self, stem: &str) -> bool {
        self.files.0.contains_key(stem)
    }

    pub fn known(&self) -> Files {
        self.files.clone()
    }

    /// The files that are expected to grow.
    pub fn live(&self, clock: Clock) -> Files {
        let live = self.files.0.iter().filter(|(_, known)| known.is_live(clock));
        Files(live.map(|(stem, known)| (stem.clone(), known.clone())).collect())
    }

    /// Forgets a record that turned out to be damaged, unless the name leads elsewhere by now.
    pub fn forget(&mut self, name: &Name, spot: &Spot) {
        let key = Key::of(name);
        if self.spots.get(&key).is_some_and(|found| found.is(spot)) {
            self.spots.remove(&key);
        }
    }

    /// Lists a file that this process begins to write, or continues. `entries` are those that it has.
    pub fn begin_own(&mut self, stem: &str, extent: &Arc<Extent>, id: u64, bytes: u64, entries: &[Entry]) {
        self.drop_file(stem);
        let read = ((1 + entries.len()) * LINE_BYTES) as u64;
        let known = Known { id: Some(id), read, is_own: true, bytes, ..Known::new(Arc::clone(extent)) };
        self.files.0.insert(stem.to_owned(), known);
        entries.iter().for_each(|entry| self.enter(stem, extent, *entry));
    }

    /// This process does not write a file any more. Another one may continue it.
    pub fn end_own(&mut self, stem: &str) {
        if let Some(known) = self.files.0.get_mut(stem) {
            known.is_own = false;
        }
    }

    /// Lists a record that this process has written.
    pub fn enter_own(&mut self, stem: &str, extent: &Arc<Extent>, entry: Entry) {
        if let Some(known) = self.files.0.get_mut(stem) {
            known.read += LINE_BYTES as u64;
            known.bytes += crate::record::record_bytes(entry.length) + LINE_BYTES as u64;
        }
        self.enter(stem, extent, entry);
    }

    fn enter(&mut self, stem: &str, extent: &Arc<Extent>, entry: Entry) {
        let Entry { key, offset, length } = entry;
        // The record in the youngest extent counts, which stays longest. Paths sort by age.
        if self.spots.get(&key).is_none_or(|found| found.extent.path <= extent.path) {
            self.spots.insert(key, Spot { extent: Arc::clone(extent), offset, length });
        }
        self.keys.entry(stem.to_owned()).or_default().push(key);
    }

    /// Enters all files of a directory, and forgets the others. The thread that writes also looks, so no
    /// file of this process begins in between.
    pub fn learn_files(&mut self, files: Files) {
        let gone: Vec<String> = self.files.0.keys().filter(|stem| !files.0.contains_key(*stem)).cloned().collect();
        gone.iter().for_each(|stem| self.drop_file(stem));
        self.files = files;
    }

    /// Enters what is new of some files.
    pub fn renew_files(&mut self, files: Files) {
        self.files.0.extend(files.0);
    }

    /// Enters records that a look found.
    pub fn learn(&mut self, entries: &[(Arc<Extent>, Entry)]) {
        for (extent, entry) in entries {
            let stem = extent.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            self.enter(&stem, extent, *entry);
        }
    }

    /// Forgets a removed file and its records.
    pub fn drop_file(&mut self, stem: &str) {
        let Some(known) = self.files.0.remove(stem) else { return };
        for key in self.keys.remove(stem).unwrap_or_default() {
            if self.spots.get(&key).is_some_and(|spot| Arc::ptr_eq(&spot.extent, &known.extent)) {
                self.spots.remove(&key);
            }
        }
    }
}

/// A look at a directory. It takes no lock of the list.
pub struct Look<'a> {
    pub disk: &'a dyn Disk,
    pub directory: &'a Path,
    pub sums: Sums,
    pub clock: Clock,
}

/// Lengths of an extent's files; `None`: the file is not there.
#[derive(Default)]
struct Lengths {
    extent: Option<u64>,
    index: Option<u64>,
}

impl Look<'_> {
    /// Reads what is new in all files.
    pub fn at_all(&self, known: &Files) -> Result<News, ColdError> {
        let named = |error| ColdError::of(self.directory.display(), &error);
        let mut all: BTreeMap<String, Lengths> = BTreeMap::new();
        for (name, length) in self.disk.list(self.directory).map_err(named)? {
            let Some(stem) = stem_of(&name) else { continue };
            let lengths = all.entry(stem.to_owned()).or_default();
            *(if name.ends_with(INDEX) { &mut lengths.index } else { &mut lengths.extent }) = Some(length);
        }
        let (is_first, now_ns) = (known.0.is_empty(), self.clock.now_ns());
        let mut files = Vec::with_capacity(all.len());
        // The youngest first: a long list is used while it is read.
        for (stem, lengths) in all.into_iter().rev() {
            // An extent without index, or an index without extent, is a leftover.
            let Lengths { extent: Some(extent), index: Some(index) } = lengths else { continue };
            let mut file = known.0.get(&stem).cloned().unwrap_or_else(|| {
                let grown_ns = (!is_first || files.len() < LIVE_AT_FIRST).then_some(now_ns);
                Known { grown_ns, ..Known::new(Arc::new(Extent::new(self.directory, &stem, None))) }
            });
            file.bytes = extent + index;
            files.push((stem, file, index));
        }
        Ok(self.read(files))
    }

    /// Reads what is new in these files.
    pub fn at(&self, known: Files) -> News {
        let length = |(stem, file): (String, Known)| {
            let stamp = self.disk.stamp(&self.directory.join(format!("{stem}{INDEX}"))).ok()?;
            Some((stem, file, stamp.size))
        };
        self.read(known.0.into_iter().filter_map(length).collect())
    }

    fn read(&self, files: Vec<(String, Known, u64)>) -> News {
        let mut news = News { files: Files::default(), entries: Vec::new(), damage: Vec::new(), has_more: false };
        let mut left = LOOK_BYTES_ALL;
        for (stem, mut file, length) in files {
            if !file.is_own && !file.is_refused && file.read < length {
                let before = file.read;
                let path = self.directory.join(format!("{stem}{INDEX}"));
                match self.tail(&path, &mut file, length, left, &mut news.entries) {
                    Ok(()) => file.is_unreadable = false,
                    // A file that vanishes during the look was reclaimed.
                    Err(ColdError::Gone(_)) => {}
                    Err(error) => {
                        let is_told = std::mem::replace(&mut file.is_unreadable, file.read == before);
                        if !is_told || !file.is_unreadable {
                            news.damage.push(error);
                        }
                    }
                }
                let read = file.read - before;
                left -= read;
                // What is read first has been there, and need not grow.
                if before > 0 && read > 0 {
                    file.grown_ns = Some(self.clock.now_ns());
                }
                // A file that cannot be read has no more.
                let rest = (length - file.read) / LINE_BYTES as u64;
                news.has_more |= (read > 0 || left < LINE_BYTES as u64) && rest > 1 && !file.is_refused;
            }
            news.files.0.insert(stem, file);
        }
        news
    }

    /// Whether this process has the key of a head or a line. What an older key sealed is no damage.
    fn is_ours(&self, key: Option<u16>) -> bool {
        key.is_none_or(|key| self.sums.has_key(key))
    }

    /// Reads new lines of an index, at most `most` bytes. A last line that is damaged may be in the
    /// middle of its write, and is read again. So is an index that the disk cannot read now. Other
    /// damage is told once.
    fn tail(
        &self,
        path: &Path,
        known: &mut Known,
        length: u64,
        most: u64,
        entries: &mut Vec<(Arc<Extent>, Entry)>,
    ) -> Result<(), ColdError> {
        let at = path.display().to_string();
        if length > INDEX_BYTES_MAX {
            known.is_refused = true;
            return Err(ColdError::Damaged { at, what: "it is longer than the index of an extent" });
        }
        let end = length.min(known.read + LOOK_BYTES.min(most)) / LINE_BYTES as u64 * LINE_BYTES as u64;
        if end <= known.read {
            return Ok(());
        }
        let failed = |error| ColdError::of(&at, &error);
        let file = self.disk.open(path, Access::Read, false).map_err(failed)?;
        let mut bytes = vec![0; usize::try_from(end - known.read).expect("a few mebibytes")];
        file.read_at(&mut bytes, known.read).map_err(failed)?;
        let mut lines = bytes.chunks_exact(LINE_BYTES).peekable();
        if known.read == 0
            && let Some(head) = lines.next()
        {
            if !self.is_ours(key_of_head(head)) {
                known.is_refused = true;
                return Ok(());
            }
            known.id = Some(open_index(&self.sums, head, &at).inspect_err(|_| known.is_refused = true)?);
            known.read = LINE_BYTES as u64;
        }
        let Some(id) = known.id else { return Ok(()) };
        let mut damaged = false;
        while let Some(line) = lines.next() {
            match entry(&self.sums, line, id) {
                Some(entry) => entries.push((Arc::clone(&known.extent), entry)),
                None if lines.peek().is_none() => break,
                None => damaged |= self.is_ours(key_of_line(line)),
            }
            known.read += LINE_BYTES as u64;
        }
        if damaged { Err(ColdError::Damaged { at, what: "a line has a wrong checksum" }) } else { Ok(()) }
    }
}
