//! The writer: one process appends to one extent at a time.

use super::Extents;
use super::format::{EXTENT, Entry, HEAD_BYTES, INDEX, Key, LINE_BYTES, extent_head, index_head, line, stem};
use super::list::Extent;
use crate::backend::Sealed;
use crate::disk::DiskFile;
use crate::error::ColdError;
use crate::identity::unique;
use crate::record::{Aligned, SECTOR};
use std::sync::Arc;

/// The extent that this process appends to.
struct Open {
    stem: String,
    id: u64,
    extent: Arc<Extent>,
    /// Holds the lock, and reads and writes buffered or directly.
    data: Arc<dyn DiskFile>,
    index: Box<dyn DiskFile>,
    /// Where the next record goes.
    end: u64,
    /// Where the next line goes.
    index_end: u64,
    is_synced: bool,
}

/// Appends records of one process.
#[derive(Default)]
pub struct Writer(Option<Open>);

impl Writer {
    /// Appends records, and lists them.
    pub fn append(&mut self, extents: &Extents, records: &[Sealed<'_>], bytes: &[u8]) -> Result<(), ColdError> {
        let fits = |open: &Open| {
            let lines = (records.len() * LINE_BYTES) as u64;
            open.end + open.index_end + bytes.len() as u64 + lines <= extents.config.extent_bytes
        };
        if self.0.as_ref().is_some_and(|open| !fits(open)) {
            self.close()?;
        }
        let open = match &mut self.0 {
            Some(open) => open,
            none => none.insert(Open::begin(extents, bytes.len() as u64)?),
        };
        let failed = |error| ColdError::of(open.extent.name(), &error);
        open.data.write_at(bytes, open.end).map_err(failed)?;
        let (mut lines, mut entries, mut at) = (Vec::new(), Vec::new(), open.end);
        for Sealed { head, bytes } in records {
            lines.extend_from_slice(&line(head, at, open.id));
            entries.push(Entry { key: Key::of(&head.name), offset: at, length: head.length });
            at += bytes.len() as u64;
        }
        // After the records: a line that a reader finds has its record in the file.
        if let Err(error) = open.index.write_at(&lines, open.index_end) {
            let error = failed(error);
            // Some lines may lead to these records. So this extent ends, and none is overwritten.
            let _ = self.close();
            return Err(error);
        }
        (open.end, open.is_synced) = (at, false);
        open.index_end += lines.len() as u64;
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

    /// Abandons the open extent unless its file is still there.
    pub fn leave_unless(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.take_if(|open| !is_there(&open.stem));
    }

    /// Ends the extent. The lock ends when no reader of this process has the file open any more.
    fn close(&mut self) -> Result<(), ColdError> {
        let synced = self.sync();
        if let Some(open) = self.0.take() {
            open.extent.reopen();
        }
        synced
    }
}

impl Open {
    /// Begins an extent with space for `bytes`.
    fn begin(extents: &Extents, bytes: u64) -> Result<Self, ColdError> {
        let owner = extents.own()?;
        let wanted = extents.config.extent_bytes.max(HEAD_BYTES + bytes + 2 * LINE_BYTES as u64);
        if wanted > extents.config.bytes {
            return Err(ColdError::Full {
                at: extents.config.directory.display().to_string(),
                what: "a block is longer than its limit; raise size=".to_owned(),
            });
        }
        extents.make_room(&owner, wanted)?;
        let id = unique()?;
        let stem = stem(extents.clock.unix().as_nanos(), id);
        let directory = &extents.config.directory;
        let paths = [EXTENT, INDEX].map(|end| directory.join(format!("{stem}{end}")));
        let [data_path, index_path] = &paths;
        let failed = |error| {
            // Half an extent is of no use. If it stays, the next owner removes it as an old one.
            paths.iter().for_each(|path| drop(extents.disk.remove(path)));
            ColdError::of(data_path.display(), &error)
        };
        let made = || {
            let data: Arc<dyn DiskFile> = Arc::from(extents.disk.open(data_path, true, true)?);
            if !data.try_lock()? {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            let mut head = Aligned::default();
            head.resize(SECTOR);
            head.bytes_mut().copy_from_slice(&extent_head(id));
            data.write_at(head.bytes(), 0)?;
            let index = extents.disk.open(index_path, true, false)?;
            index.write_at(&index_head(id), 0)?;
            Ok((data, index))
        };
        let (data, index) = made().map_err(failed)?;
        let extent = Arc::new(Extent::new(directory, &stem, Some(Arc::clone(&data))));
        extents.list_mut().begin_own(&stem, &extent, id);
        Ok(Self { stem, id, extent, data, index, end: HEAD_BYTES, index_end: LINE_BYTES as u64, is_synced: true })
    }
}
