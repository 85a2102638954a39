//! The list of records in memory, and how it follows the files of all processes.

use super::format::{EXTENT, Entry, INDEX, Key, LINE_BYTES, entry, open_index};
use crate::backend::Used;
use crate::disk::{Disk, DiskFile};
use crate::error::ColdError;
use crate::record::Name;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of an index that one look reads, so that a long index delays no other file.
const LOOK_BYTES: u64 = 4 << 20;

/// A file of records, opened when it is first read.
pub struct Extent {
    path: PathBuf,
    name: String,
    file: Mutex<Option<Arc<dyn DiskFile>>>,
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
    pub fn reopen(&self) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn file(&self, disk: &dyn Disk) -> Result<Arc<dyn DiskFile>, ColdError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let opened = disk.open(&self.path, false, true).map_err(|error| ColdError::of(&self.name, &error))?;
        Ok(Arc::clone(file.insert(Arc::from(opened))))
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
struct Known {
    extent: Arc<Extent>,
    /// In the index's head; `None`: the head is not read yet.
    id: Option<u64>,
    /// Bytes of the index that are read: whole lines.
    read: u64,
    /// The index's head is damaged or of another version. Nothing of it is read.
    is_refused: bool,
    /// This process writes it and enters its records itself.
    is_own: bool,
    /// Bytes of both files.
    bytes: u64,
}

/// Files by their names without end.
#[derive(Clone, Default)]
pub struct Files(BTreeMap<String, Known>);

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
        Used { blocks: self.spots.len() as u64, bytes: self.files.0.values().map(|known| known.bytes).sum() }
    }

    pub fn has_file(&self, stem: &str) -> bool {
        self.files.0.contains_key(stem)
    }

    pub fn known(&self) -> Files {
        self.files.clone()
    }

    /// Forgets a record that turned out to be damaged, unless the name leads elsewhere by now.
    pub fn forget(&mut self, name: &Name, spot: &Spot) {
        let key = Key::of(name);
        if self.spots.get(&key).is_some_and(|found| found.is(spot)) {
            self.spots.remove(&key);
        }
    }

    /// Lists a file that this process begins to write.
    pub fn begin_own(&mut self, stem: &str, extent: &Arc<Extent>, id: u64) {
        let known = Known {
            extent: Arc::clone(extent),
            id: Some(id),
            read: LINE_BYTES as u64,
            is_refused: false,
            is_own: true,
            bytes: 0,
        };
        self.files.0.insert(stem.to_owned(), known);
    }

    /// Lists a record that this process has written.
    pub fn enter_own(&mut self, stem: &str, extent: &Arc<Extent>, entry: Entry) {
        if let Some(known) = self.files.0.get_mut(stem) {
            known.read += LINE_BYTES as u64;
            known.bytes += crate::record::record_bytes(entry.length);
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

    /// Enters the files that a look found, and forgets the others. The thread that writes also looks,
    /// so no file of this process begins in between.
    pub fn learn_files(&mut self, files: Files) {
        let gone: Vec<String> = self.files.0.keys().filter(|stem| !files.0.contains_key(*stem)).cloned().collect();
        gone.iter().for_each(|stem| self.drop_file(stem));
        self.files = files;
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

/// Reads what is new in a directory. Takes no lock of the list.
pub fn look(disk: &dyn Disk, directory: &Path, known: &Files) -> Result<News, ColdError> {
    let listed = disk.list(directory).map_err(|error| ColdError::of(directory.display(), &error))?;
    let lengths: HashMap<&str, u64> = listed.iter().map(|(name, length)| (name.as_str(), *length)).collect();
    let mut news = News { files: Files::default(), entries: Vec::new(), damage: Vec::new(), has_more: false };
    for (name, length) in &listed {
        let Some(stem) = name.strip_suffix(INDEX) else { continue };
        let bytes = length + lengths.get(format!("{stem}{EXTENT}").as_str()).copied().unwrap_or(0);
        let mut file = known.0.get(stem).cloned().unwrap_or_else(|| Known {
            extent: Arc::new(Extent::new(directory, stem, None)),
            id: None,
            read: 0,
            is_refused: false,
            is_own: false,
            bytes,
        });
        file.bytes = bytes;
        if !file.is_own && !file.is_refused && file.read < *length {
            match tail(disk, &directory.join(name), &mut file, *length, &mut news.entries) {
                // A file that vanishes during the look was reclaimed.
                Ok(()) | Err(ColdError::Gone(_)) => {}
                Err(error) => news.damage.push(error),
            }
            news.has_more |= !file.is_refused && *length - file.read > LOOK_BYTES;
        }
        news.files.0.insert(stem.to_owned(), file);
    }
    Ok(news)
}

/// Reads new lines of an index. A last line that is damaged may be in the middle of its write, and
/// is read again. So is an index that the disk cannot read now. Other damage is told once.
fn tail(
    disk: &dyn Disk,
    path: &Path,
    known: &mut Known,
    length: u64,
    entries: &mut Vec<(Arc<Extent>, Entry)>,
) -> Result<(), ColdError> {
    let at = path.display().to_string();
    let end = length.min(known.read + LOOK_BYTES) / LINE_BYTES as u64 * LINE_BYTES as u64;
    if end <= known.read {
        return Ok(());
    }
    let file = disk.open(path, false, false).map_err(|error| ColdError::of(&at, &error))?;
    let mut bytes = vec![0; usize::try_from(end - known.read).expect("a few mebibytes")];
    file.read_at(&mut bytes, known.read).map_err(|error| ColdError::of(&at, &error))?;
    let mut lines = bytes.chunks_exact(LINE_BYTES).peekable();
    if known.read == 0
        && let Some(head) = lines.next()
    {
        known.id = Some(open_index(head, &at).inspect_err(|_| known.is_refused = true)?);
        known.read = LINE_BYTES as u64;
    }
    let Some(id) = known.id else { return Ok(()) };
    let mut damaged = false;
    while let Some(line) = lines.next() {
        match entry(line, id) {
            Some(entry) => entries.push((Arc::clone(&known.extent), entry)),
            None if lines.peek().is_none() => break,
            None => damaged = true,
        }
        known.read += LINE_BYTES as u64;
    }
    if damaged { Err(ColdError::Damaged { at, what: "a line has a wrong checksum" }) } else { Ok(()) }
}
