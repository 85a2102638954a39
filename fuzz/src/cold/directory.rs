//! Files of a directory.

use super::super::edit::{Touched, edit, number as odd_number, put};
use super::super::input::Input;
use super::above;
use super::blocks::{LENGTH_MAX, SEED, name, read, twin, write, write_as};
use super::clock::{Looks, Still};
use super::disk::{Content, DIRECTORY, Files, MemoryDisk};
use super::format::{self, Checked, EXTENT, IDENTITY, INDEX, LINE, SECTOR};
use cenote_base::{Clock, HashSeed};
use cenote_cold::record::{Aligned, Name};
use cenote_cold::{Backend, Extents, ExtentsConfig};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most memory that an input may take: a look at indexes, and the files.
pub const MEMORY_MAX: u64 = 96 << 20;
/// Blocks in the directory.
const BLOCKS: u64 = 60;
/// The first number of blocks that inputs write.
const NEW: u64 = 1000;
/// The seed of the foreign directory's regions.
const FOREIGN_SEED: HashSeed = HashSeed([1; 32]);
/// Most calls of an input.
const STEPS_MAX: u32 = 48;
/// Most bytes that an input may make the product read.
const READ_BYTES_MAX: u64 = 512 << 20;
/// Most looks that make a list complete.
const LOOKS_MAX: u32 = 64;
/// The limit that lies in the directory: nothing has to leave. Extents are as short as they can be.
const LIMIT: u64 = 1 << 20;
/// Limits that processes want.
const WANTED: [Option<u64>; 2] = [None, Some(2 << 20)];

/// The files that an input changes most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Extents.
    Extents,
    /// Index files and the identity.
    Indexes,
}

/// A directory that three processes have written to.
pub struct Directory {
    files: Files,
    /// A directory of regions with another seed: the same names with other bytes.
    foreign: Files,
    /// Where each block lies: the extent's name, and the record's bytes.
    places: BTreeMap<Name, (String, Range<u64>)>,
}

/// Files after an input's changes.
struct Changed {
    files: Files,
    /// Bytes of extents that were changed in their places; `None`: anything else was changed as well.
    touched: Option<Vec<(String, Range<usize>)>>,
}

fn extents(disk: &MemoryDisk, bytes: Option<u64>, clock: Clock) -> Extents {
    let config = ExtentsConfig { directory: PathBuf::from(DIRECTORY), bytes };
    Extents::new(config, Arc::new(disk.clone()), clock)
}

/// Looks until the list is complete.
fn list(place: &Extents) {
    for _ in 0..LOOKS_MAX {
        match place.refresh() {
            Ok(refreshed) => {
                refreshed.damage.iter().for_each(|error| drop(error.to_string()));
                if !refreshed.has_more {
                    return;
                }
            }
            Err(error) => return drop(error.to_string()),
        }
    }
    panic!("a list is not complete after {LOOKS_MAX} looks");
}

fn written(seed: &HashSeed, blocks: Range<u64>) -> Files {
    let disk = MemoryDisk::default();
    let processes: Vec<Extents> = (0..3).map(|_| extents(&disk, Some(LIMIT), Looks::clock())).collect();
    for place in &processes {
        place.open(seed).expect("a fresh directory opens");
        list(place);
    }
    let all: Vec<Name> = blocks.map(name).collect();
    for (at, batch) in all.chunks(4).enumerate() {
        write_as(&processes[at % 3], batch, seed).expect("there is room");
    }
    disk.files()
}

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory {
    /// Writes the blocks.
    ///
    /// # Panics
    /// They cannot be written, or are not found.
    #[must_use]
    pub fn new() -> Self {
        let files = written(&SEED, 0..BLOCKS);
        let foreign = written(&FOREIGN_SEED, 0..12);
        let mut places = BTreeMap::new();
        for (index, content) in files.iter().filter(|(name, _)| name.ends_with(INDEX)) {
            for (hash, namespace, at) in format::lines(&content.bytes) {
                let stem = index.trim_end_matches(INDEX);
                let extent = files.get(&format!("{stem}{EXTENT}")).expect("each index has its extent");
                let is_it = |number: &u64| (name(*number).hash.0, &name(*number).namespace[..16]) == (hash, &namespace);
                let number = (0..BLOCKS).find(is_it).expect("nothing else was written");
                assert!(at.end <= extent.length(), "a line leads behind its extent");
                places.insert(name(number), (format!("{stem}{EXTENT}"), at));
            }
        }
        assert_eq!(places.len() as u64, BLOCKS, "each block has a line");
        let directory = Self { files, foreign, places };
        for aim in [Aim::Extents, Aim::Indexes] {
            directory.run(aim, &[]);
            directory.run(aim, &[8]);
        }
        directory
    }

    /// Runs an input.
    ///
    /// # Panics
    /// The product broke a rule.
    pub fn run(&self, aim: Aim, input: &[u8]) {
        let mut input = Input::new(input);
        let choices = input.byte();
        let mut changed = Changed { files: self.files.clone(), touched: Some(Vec::new()) };
        for _ in 0..choices & 7 {
            self.change(aim, &mut input, &mut changed);
        }
        let disk = MemoryDisk::of(changed.files.clone());
        let limit = WANTED[usize::from(choices & 16 != 0)];
        let names: Vec<Name> = (0..BLOCKS).map(name).collect();
        // Threads take time, so few inputs have them. An input without edits tries both.
        if choices & 0x68 == 8 {
            let new: Vec<Name> = (NEW..NEW + 4).map(name).collect();
            let other = MemoryDisk::of(std::mem::take(&mut changed.files));
            let (found, words) = above::run(Box::new(extents(&other, limit, Still::clock())), &names, &new);
            self.assert_found(&changed, &words, |name| found.contains(name));
        }
        let place = extents(&disk, limit, Looks::clock());
        let opened = place.open(&SEED).inspect_err(|error| drop(error.to_string())).is_ok();
        assert!(opened || changed.touched.is_none(), "an intact identity is refused");
        list(&place);
        let mut memory = Aligned::default();
        // Names that nothing was written under are no hits, and cost the others nothing.
        let twins = if choices & 128 == 0 { 0..0 } else { 0..BLOCKS };
        if changed.touched.is_some() {
            // A look at a twin finds that the list's entry leads to another record, and forgets it.
            self.assert_found(&changed, "no threads", |name| read(&place, name, &mut memory));
        } else {
            names.iter().for_each(|name| _ = read(&place, name, &mut memory));
        }
        for number in twins {
            let found = place.read(&twin(number), LENGTH_MAX, &mut memory);
            assert!(found.is_err(), "a block was found that nothing was written under");
        }
        self.steps(aim, &mut input, &disk, place, limit);
        assert!(disk.read_bytes() <= READ_BYTES_MAX, "an input made the product read {} MiB", disk.read_bytes() >> 20);
    }

    /// All blocks whose bytes are as they were must be found.
    fn assert_found(&self, changed: &Changed, words: &str, mut found: impl FnMut(&Name) -> bool) {
        let Some(touched) = &changed.touched else { return };
        for (name, (file, at)) in &self.places {
            let hurts = |(in_file, bytes): &(String, Range<usize>)| {
                in_file == file && (bytes.start as u64) < at.end && at.start < bytes.end as u64
            };
            let is_found = found(name);
            assert!(is_found || touched.iter().any(hurts), "damage elsewhere cost block {name:?} ({words})");
        }
    }

    /// Calls of a process, with changes between and within them.
    fn steps(&self, aim: Aim, input: &mut Input<'_>, disk: &MemoryDisk, mut place: Extents, limit: Option<u64>) {
        let (mut memory, mut next) = (Aligned::default(), NEW + 100);
        for _ in 0..STEPS_MAX {
            if input.is_spent() {
                break;
            }
            match input.byte() % 16 {
                0..=3 => {
                    let number = if input.chance(200) { input.below(BLOCKS) } else { NEW + input.below(120) };
                    read(&place, &name(number), &mut memory);
                }
                4 | 5 => list(&place),
                6 | 7 => {
                    let new: Vec<Name> = (next..next + 1 + input.below(6)).map(name).collect();
                    next += new.len() as u64;
                    let _ = write(&place, &new).inspect_err(|error| drop(error.to_string()));
                }
                8 if input.chance(64) => {
                    let wanted = [64 << 10, 300 << 10, LIMIT, u64::MAX, 1][input.below(5) as usize];
                    let _ = place.resize(wanted).inspect_err(|error| drop(error.to_string()));
                }
                8 => drop(place.sync().inspect_err(|error| drop(error.to_string()))),
                9 => {
                    let _ = extents(disk, limit, Looks::clock()).survey().inspect_err(|error| drop(error.to_string()));
                    let _ = place.used();
                }
                10 => Looks::advance(Duration::from_secs(input.byte().into())),
                11 => {
                    const KINDS: [ErrorKind; 7] = [
                        ErrorKind::NotFound,
                        ErrorKind::StorageFull,
                        ErrorKind::TimedOut,
                        ErrorKind::UnexpectedEof,
                        ErrorKind::PermissionDenied,
                        ErrorKind::AlreadyExists,
                        ErrorKind::Other,
                    ];
                    let kind = KINDS[input.below(KINDS.len() as u64) as usize];
                    disk.fail(1 + input.below(8), kind);
                }
                12 => {
                    // Another process opens the directory.
                    place = extents(disk, limit, Looks::clock());
                    if place.open(&SEED).inspect_err(|error| drop(error.to_string())).is_ok() {
                        list(&place);
                    }
                }
                13 => {
                    let mut changed = Changed { files: disk.files(), touched: None };
                    let before = changed.files.clone();
                    self.change(aim, input, &mut changed);
                    let later = difference(&before, changed.files);
                    disk.change_after(1 + input.below(12), move |files| apply(files, later));
                }
                _ => {
                    let mut changed = Changed { files: disk.files(), touched: None };
                    self.change(aim, input, &mut changed);
                    disk.set(changed.files);
                }
            }
        }
        list(&place);
        (0..BLOCKS).for_each(|number| _ = read(&place, &name(number), &mut memory));
        (NEW + 100..next).for_each(|number| _ = read(&place, &name(number), &mut memory));
    }

    /// Changes a file.
    fn change(&self, aim: Aim, input: &mut Input<'_>, changed: &mut Changed) {
        if input.is_spent() || changed.files.is_empty() {
            return;
        }
        let draw = input.byte();
        let end = match (aim, draw) {
            (Aim::Extents, 0..220) | (Aim::Indexes, 0..16) => EXTENT,
            (Aim::Indexes, 16..48) => IDENTITY,
            (Aim::Extents, 250..) | (Aim::Indexes, 250..) => "",
            _ => INDEX,
        };
        let Some(name) = pick(input, &changed.files, end) else { return };
        let mut content = changed.files[&name].clone();
        let what = input.byte() % 16;
        if what < 3 {
            changed.touched = None;
            self.rename(input, what, &name, &mut changed.files);
            return;
        }
        let from = if input.chance(200) { &changed.files } else { &self.foreign };
        let other = pick(input, from, end);
        let other = other.and_then(|name| changed.files.get(&name).or_else(|| self.foreign.get(&name)).cloned());
        let other = other.unwrap_or_default().bytes;
        let bytes = Arc::make_mut(&mut content.bytes);
        let touched = match what {
            3..=8 => edit(input, bytes, &other, if name.ends_with(EXTENT) { SECTOR } else { LINE }),
            9 => {
                // A hole behind its bytes.
                content.zeros = odd_number(input) % (1 << 41);
                Touched::Everything
            }
            _ => change_checked(input, &name, bytes, &other),
        };
        match (&mut changed.touched, touched) {
            (Some(list), Touched::Within(at)) if name.ends_with(EXTENT) => list.push((name.clone(), at)),
            (touched, _) => *touched = None,
        }
        changed.files.insert(name, content);
    }

    /// Removes a file, or gives its content another name.
    fn rename(&self, input: &mut Input<'_>, what: u8, name: &str, files: &mut Files) {
        let content = files[name].clone();
        if what == 0 {
            files.remove(name);
            return;
        }
        let to = match input.byte() % 8 {
            0..=3 => {
                // The name of another file, of this kind or of another one.
                let end = [EXTENT, INDEX, INDEX, ""][input.below(4) as usize];
                pick(input, files, end).unwrap_or_else(|| name.to_owned())
            }
            4 | 5 => {
                const ODD: [&str; 10] = [
                    "99999999999999999999-ffffffffffffffff.index",
                    "99999999999999999999-ffffffffffffffff.extent",
                    "00000000000000000000-0000000000000000.index",
                    "00000000000000000000-0000000000000000.extent",
                    ".index",
                    ".extent",
                    "x.index",
                    "owner",
                    "tier",
                    "draft-1-0000000000000000",
                ];
                ODD[input.below(10) as usize].to_owned()
            }
            6 => format!("{}{}", "9".repeat(input.below(240) as usize), [EXTENT, INDEX][input.below(2) as usize]),
            _ => {
                // A file of another place, under its own name.
                let Some(from) = pick(input, &self.foreign, "") else { return };
                files.insert(from.clone(), self.foreign[&from].clone());
                return;
            }
        };
        if what == 1 {
            files.remove(name);
        } else if input.chance(128)
            && let Some(there) = files.get(&to).cloned()
        {
            files.insert(name.to_owned(), there);
        }
        files.insert(to, content);
    }
}

/// A file whose name ends so.
fn pick(input: &mut Input<'_>, files: &Files, end: &str) -> Option<String> {
    let names: Vec<&String> = files.keys().filter(|name| name.ends_with(end)).collect();
    names.get(input.below(names.len().max(1) as u64) as usize).map(|name| (*name).clone())
}

/// Changes fields of what has a checksum, and makes it hold. Nothing says which bytes readers believe
/// afterwards, so that counts as a change of everything.
fn change_checked(input: &mut Input<'_>, name: &str, bytes: &mut [u8], other: &[u8]) -> Touched {
    let (kind, at) = if name.ends_with(EXTENT) {
        let records = format::records(bytes);
        match records.get(input.below(records.len().max(1) as u64) as usize) {
            Some(&at) if !input.chance(16) => (Checked::RecordHead, at),
            _ if input.chance(128) => (Checked::FileHead, 0),
            // The copy of the identity.
            _ => (Checked::Identity, LINE),
        }
    } else if name.ends_with(INDEX) {
        let lines = (bytes.len() / LINE).max(1) as u64;
        match input.below(lines) as usize {
            0 => (Checked::FileHead, 0),
            line => (Checked::Line(format::id(bytes)), line * LINE),
        }
    } else {
        (Checked::Identity, 0)
    };
    for _ in 0..1 + input.below(2) {
        let fields = kind.fields();
        let (place, width) = fields[input.below(fields.len() as u64) as usize];
        if input.chance(128) {
            put(bytes, at + place, odd_number(input), width);
        } else {
            // The same field of another one.
            let unit = if kind == Checked::RecordHead { SECTOR } else { LINE };
            let (from, source) = (input.below((other.len() / unit).max(1) as u64) as usize * unit, other.to_vec());
            put(bytes, at + place, format::word(&source, from + place), width);
        }
    }
    if let Some(bytes) = bytes.get_mut(at..) {
        kind.seal(bytes, if input.chance(240) { &SEED.0 } else { &FOREIGN_SEED.0 });
    }
    Touched::Everything
}

/// Files that a change removes, and that it leaves otherwise.
type Difference = Vec<(String, Option<Content>)>;

fn difference(before: &Files, after: Files) -> Difference {
    let removed = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), None));
    let mut all: Difference = removed.collect();
    for (name, content) in after {
        let is_same = before.get(&name).is_some_and(|old| old.bytes == content.bytes && old.zeros == content.zeros);
        if !is_same {
            all.push((name, Some(content)));
        }
    }
    all
}

fn apply(files: &mut Files, difference: Difference) {
    for (name, content) in difference {
        match content {
            Some(content) => drop(files.insert(name, content)),
            None => drop(files.remove(&name)),
        }
    }
}

const _: () = assert!(LENGTH_MAX < 64 << 10, "an extent has several blocks");
