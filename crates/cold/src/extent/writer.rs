//! The writer: one process appends to one extent at a time.

use super::format::{
    EXTENT, Entry, HEAD_BYTES, INDEX, Key, LINE_BYTES, entry, extent_head, index_head, key_of_head, line, number_of,
    open_extent, open_index, stem,
};
use super::list::{Extent, INDEX_BYTES_MAX};
use super::space::{Owner, Stored};
use super::{Extents, extent_bytes};
use crate::backend::Sealed;
use crate::disk::{Access, DiskFile, unique};
use crate::error::ColdError;
use crate::record::{Aligned, SECTOR, record_bytes};
use crate::sums::Sums;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An extent is continued only if those younger than it take at most this part of the limit: records
/// in an old extent would leave early.
const YOUNG_SHARE: u64 = 4;
/// Extents that are tried for that.
const TRIED_MAX: usize = 64;

/// The extent that this process appends to.
struct Open {
    stem: String,
    id: u64,
    sums: Sums,
    extent: Arc<Extent>,
    /// Holds the lock, and reads and writes buffered or directly.
    data: Arc<dyn DiskFile>,
    index: Box<dyn DiskFile>,
    /// Where the next record goes.
    end: u64,
    /// Where the next line goes.
    index_end: u64,
    is_synced: bool,
    /// When a record was appended last, in nanoseconds of the clock.
    grown_ns: u64,
}

/// Appends records of one process.
#[derive(Default)]
pub struct Writer(Option<Open>);

impl Writer {
    /// Appends records, and lists them.
    pub fn append(&mut self, extents: &Extents, records: &[Sealed<'_>], bytes: &[u8]) -> Result<(), ColdError> {
        self.leave_if_gone(extents)?;
        let most = extent_bytes(extents.known_place()?.0.bytes_max);
        let lines = (records.len() * LINE_BYTES) as u64;
        let added = bytes.len() as u64 + lines;
        if self.0.as_ref().is_some_and(|open| open.bytes() + added > most) {
            self.close(extents)?;
        }
        let open = match &mut self.0 {
            Some(open) => open,
            none => none.insert(Open::begin(extents, added)?),
        };
        let failed = |error| ColdError::of(open.extent.name(), &error);
        open.data.write_at(bytes, open.end).map_err(failed)?;
        let (mut lines, mut entries, mut at) = (Vec::new(), Vec::new(), open.end);
        for Sealed { head, bytes } in records {
            lines.extend_from_slice(&line(&open.sums, head, at, open.id));
            entries.push(Entry { key: Key::of(&head.name), offset: at, length: head.length });
            at += bytes.len() as u64;
        }
        // After the records: a line that a reader finds has its record in the file.
        if let Err(error) = open.index.write_at(&lines, open.index_end) {
            let error = failed(error);
            // Some lines may lead to these records. So this extent ends, and none is overwritten.
            let _ = self.close(extents);
            return Err(error);
        }
        (open.end, open.is_synced) = (at, false);
        open.index_end += lines.len() as u64;
        if extents.is_quiet(std::mem::replace(&mut open.grown_ns, extents.clock.now_ns())) {
            extents.mark_unlocked();
        }
        let mut list = extents.list_mut();
        entries.into_iter().for_each(|entry| list.enter_own(&open.stem, &open.extent, entry));
        Ok(())
    }

    /// Writes both files through.
    pub fn sync(&mut self) -> Result<(), ColdError> {
        let Some(open) = self.0.as_mut().filter(|open| !open.is_synced) else { return Ok(()) };
        // Set even on failure: after a failed sync the system forgets what it could not write.
        open.is_synced = true;
        open.data.sync().and_then(|()| open.index.sync()).map_err(|error| ColdError::of(open.extent.name(), &error))
    }

    /// Abandons the open extent unless its file is still listed.
    pub fn leave_unless(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.take_if(|open| !is_there(&open.stem));
    }

    /// Abandons the open extent if another program removed one of its files: no process would find
    /// what is appended to it.
    pub fn leave_if_gone(&mut self, extents: &Extents) -> Result<(), ColdError> {
        let Some(open) = &self.0 else { return Ok(()) };
        let failed = |error| ColdError::of(open.extent.name(), &error);
        if open.data.is_named().map_err(failed)? && open.index.is_named().map_err(failed)? {
            return Ok(());
        }
        extents.note(ColdError::Gone(open.extent.name().to_owned()));
        extents.list_mut().drop_file(&open.stem);
        // The half that is left is of no use.
        paths(&extents.config.directory, &open.stem).iter().for_each(|path| drop(extents.disk.remove(path)));
        self.0 = None;
        Ok(())
    }

    /// Ends the open extent if it is longer than extents may be by now.
    pub fn end_above(&mut self, extents: &Extents, most: u64) -> Result<(), ColdError> {
        if self.0.as_ref().is_some_and(|open| open.bytes() > most) { self.close(extents) } else { Ok(()) }
    }

    /// Ends the extent. The lock ends when no reader of this process has the file open any more.
    fn close(&mut self, extents: &Extents) -> Result<(), ColdError> {
        let synced = self.sync();
        if let Some(open) = self.0.take() {
            extents.list_mut().end_own(&open.stem);
            open.extent.close();
        }
        synced
    }
}

/// The files of an extent.
fn paths(directory: &Path, stem: &str) -> [PathBuf; 2] {
    [EXTENT, INDEX].map(|end| directory.join(format!("{stem}{end}")))
}

impl Open {
    fn bytes(&self) -> u64 {
        self.end + self.index_end
    }

    /// Continues an extent with space for `added` bytes, or begins one.
    fn begin(extents: &Extents, added: u64) -> Result<Self, ColdError> {
        // The limit and the names count that are there now.
        if let Some(repaired) = extents.watch_identity()? {
            extents.note(repaired);
        }
        let owner = extents.own()?;
        let bytes_max = extents.known_place()?.0.bytes_max;
        let wanted = extent_bytes(bytes_max).max(HEAD_BYTES + LINE_BYTES as u64 + added);
        if wanted > bytes_max {
            return Err(ColdError::Full {
                at: extents.config.directory.display().to_string(),
                what: "a block is longer than its limit; raise size=".to_owned(),
            });
        }
        let stored = extents.stored()?;
        let open = match Self::continued(extents, &owner, &stored, added) {
            Some(open) => open,
            None => {
                extents.make_room(&owner, wanted)?;
                Self::new(extents, &stored)?
            }
        };
        owner.mark();
        Ok(open)
    }

    /// A new extent. Its name is above all that were there, whatever a clock says: names sort by age.
    fn new(extents: &Extents, stored: &Stored) -> Result<Self, ColdError> {
        let directory = &extents.config.directory;
        let youngest = stored.last_key_value().and_then(|(stem, _)| number_of(stem)).unwrap_or(0);
        let number = youngest.checked_add(1).ok_or_else(|| ColdError::Full {
            at: directory.display().to_string(),
            what: format!("extent {youngest} has the last of all names; remove it"),
        })?;
        let (identity, sums) = extents.known_place()?;
        let id = unique();
        let stem = stem(number, id);
        let paths = paths(directory, &stem);
        let [data_path, index_path] = &paths;
        let failed = |error| {
            // Half an extent is of no use. If it stays, the next owner removes it as an old one.
            paths.iter().for_each(|path| drop(extents.disk.remove(path)));
            ColdError::of(data_path.display(), &error)
        };
        let made = || {
            let data: Arc<dyn DiskFile> = Arc::from(extents.disk.open(data_path, Access::Create, true)?);
            if !data.try_lock()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut head = Aligned::default();
            head.resize(SECTOR);
            head.bytes_mut().copy_from_slice(&extent_head(&sums, id, &identity, &extents.sealing));
            data.write_at(head.bytes(), 0)?;
            let index = extents.disk.open(index_path, Access::Create, false)?;
            index.write_at(&index_head(&sums, id), 0)?;
            Ok((data, index))
        };
        let (data, index) = made().map_err(failed)?;
        let extent = Arc::new(Extent::new(directory, &stem, Some(Arc::clone(&data))));
        let index_end = LINE_BYTES as u64;
        extents.list_mut().begin_own(&stem, &extent, id, HEAD_BYTES + index_end, &[]);
        let grown_ns = extents.clock.now_ns();
        Ok(Self { stem, id, sums, extent, data, index, end: HEAD_BYTES, index_end, is_synced: true, grown_ns })
    }

    /// Continues the youngest extent that no process writes and that has space for `added` bytes, so that
    /// processes with short lives leave few files. `None`: there is none.
    fn continued(extents: &Extents, owner: &Owner, stored: &Stored, added: u64) -> Option<Self> {
        let bytes_max = extents.known_place().ok()?.0.bytes_max;
        let (most, mut younger) = (extent_bytes(bytes_max), 0);
        for (stem, bytes) in stored.iter().rev().take(TRIED_MAX) {
            if younger > bytes_max / YOUNG_SHARE {
                break;
            }
            if bytes + added <= most
                && let Some((open, entries)) = Self::continue_one(extents, stem, most - added)
            {
                // It counts as a full one from now on.
                extents.make_room(owner, 0).ok()?;
                extents.list_mut().begin_own(stem, &open.extent, open.id, open.bytes(), &entries);
                return Some(open);
            }
            younger += bytes;
        }
        None
    }

    /// Continues an extent after its last line, if all of its lines are whole: bytes that a line leads to
    /// are never written again.
    fn continue_one(extents: &Extents, stem: &str, most: u64) -> Option<(Self, Vec<Entry>)> {
        let directory = &extents.config.directory;
        let [data_path, index_path] = paths(directory, stem);
        let (_, sums) = extents.known_place().ok()?;
        let data: Arc<dyn DiskFile> = Arc::from(extents.disk.open(&data_path, Access::Write, true).ok()?);
        if !data.try_lock().ok()? {
            return None;
        }
        let index = extents.disk.open(&index_path, Access::Write, false).ok()?;
        let index_end = index.length().ok().filter(|length| *length <= INDEX_BYTES_MAX)?;
        let mut bytes = vec![0; usize::try_from(index_end).ok()?];
        index.read_at(&mut bytes, 0).ok()?;
        let mut head = Aligned::default();
        head.resize(SECTOR);
        data.read_at(head.bytes_mut(), 0).ok()?;
        let id = open_index(&sums, &bytes, "").ok()?;
        // Records under a head of an older key leave with that key.
        if key_of_head(&bytes) != Some(sums.key_name()) {
            return None;
        }
        let lines = bytes.get(LINE_BYTES..)?.chunks(LINE_BYTES);
        let entries = lines.map(|line| entry(&sums, line, id)).collect::<Option<Vec<Entry>>>()?;
        let end = entries.iter().map(|entry| entry.offset + record_bytes(entry.length)).fold(HEAD_BYTES, u64::max);
        let is_whole = open_extent(head.bytes(), "", &extents.sealing).is_ok_and(|(found, _)| found == id);
        if !is_whole || data.length().ok()? < end || end + index_end > most {
            return None;
        }
        let extent = Arc::new(Extent::new(directory, stem, Some(Arc::clone(&data))));
        let (stem, grown_ns) = (stem.to_owned(), extents.clock.now_ns());
        Some((Self { stem, id, sums, extent, data, index, end, index_end, is_synced: true, grown_ns }, entries))
    }
}
