//! Rows of the object table: open addressing with linear probing
//! (docs/internals/format.md#object-row).
//!
//! A probe begins at the row that the key's hash names and ends at a row that was never used. So a
//! row that becomes free is marked as used, unless the row behind it was never used. One row stays
//! free for replacements, so that a full table takes new values of its keys.

use super::Tables;
use crate::error::PoolError;
use crate::region::layout::OBJECTS;
use crate::region::lines::{Line, NameLine, ObjectLine};
use crate::sync::{Holds, Tables as Lock};
use cenote_base::BlockHash;
use cenote_mem::{Fabric, HostLocal, LINE};
use std::collections::BTreeSet;

/// Rows that share one fence when a probe drops them from the caches.
const GROUP: u64 = 4;

/// Content of a row.
enum Row {
    /// No probe goes on behind it.
    Unused,
    /// Used before, or torn.
    Free,
    Taken(ObjectLine),
}

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    fn row(&self, row: u64) -> Row {
        let at = self.region.layout.object(row);
        match self.region.fabric.load_line(at) {
            [0, 0, 0, 0, 0, 0, 0, 0] => Row::Unused,
            words => match ObjectLine::open(words, at, self.region.salt) {
                Some(line) if line.block != 0 => Row::Taken(line),
                _ => Row::Free,
            },
        }
    }

    /// A row of the object table that has a key.
    pub fn object_line(&self, row: u64) -> Option<ObjectLine> {
        match self.row(row) {
            Row::Taken(line) => Some(line),
            Row::Unused | Row::Free => None,
        }
    }

    /// Rows of a probe, as the device has them.
    fn probe(&self, hash: BlockHash) -> impl Iterator<Item = (u64, Row)> + '_ {
        let home = hash.words()[0] % OBJECTS;
        let row = move |step| (home + step) % OBJECTS;
        (0..OBJECTS).map(move |step| {
            if step % GROUP == 0 {
                let lines: [u64; GROUP as usize] =
                    std::array::from_fn(|more| self.region.layout.object(row(step + more as u64)));
                self.region.fabric.refresh(&lines);
            }
            (row(step), self.row(row(step)))
        })
    }

    /// Rows of this key: one, or two after a death in the middle of a replacement; either is valid.
    pub fn rows_of(&self, hash: BlockHash) -> Vec<(u64, ObjectLine)> {
        let used = self.probe(hash).take_while(|(_, row)| !matches!(row, Row::Unused));
        let taken = used.filter_map(|(row, content)| match content {
            Row::Taken(line) if line.key_hash == hash.words() => Some((row, line)),
            _ => None,
        });
        taken.collect()
    }

    /// The row for a new value of a key.
    fn free_row(&self, hash: BlockHash, is_new: bool) -> Result<u64, PoolError> {
        let mut free = self.probe(hash).filter(|(_, row)| !matches!(row, Row::Taken(_))).map(|(row, _)| row);
        let fact = ": destroy an object, or keep several in one";
        let full = || PoolError::TableFull { table: "object", rows: OBJECTS, fact };
        let first = free.next().ok_or_else(full)?;
        if is_new {
            free.next().ok_or_else(full)?;
        }
        Ok(first)
    }

    /// Writes a row for a key that has the rows `old`. Returns its number.
    pub(super) fn write_row(
        &self,
        _: &Holds<Lock>,
        key: &str,
        line: ObjectLine,
        old: &[(u64, ObjectLine)],
    ) -> Result<u64, PoolError> {
        let row = self.free_row(BlockHash::from_words(line.key_hash), old.is_empty())?;
        let at = self.region.layout.object(row);
        self.region.write(at + LINE, NameLine::new(key));
        // If the host dies with its caches, a row without its key would be found and not listed.
        self.region.fabric.fence();
        self.region.write(at, line);
        // Before the old row is cleared, and before an owner word or a piece sends others to look
        // for the row.
        self.region.fabric.fence();
        Ok(row)
    }

    /// Clears a row that a probe has just found, or with fresh rows. Rows behind which no probe
    /// goes on become unused.
    pub(super) fn clear_row(&self, _: &Holds<Lock>, row: u64) {
        let place = |row: u64| self.region.layout.object(row);
        let (next, before) = ((row + 1) % OBJECTS, |row: u64| (row + OBJECTS - 1) % OBJECTS);
        // The probe went on to the next row.
        if !matches!(self.row(next), Row::Unused) {
            self.region.write(place(row), ObjectLine::default());
            return;
        }
        self.region.clear(place(row));
        let mut last = before(row);
        // A table of free rows alone ends with the first one that was cleared.
        while last != row {
            self.region.fabric.refresh(&[place(last)]);
            if !matches!(self.row(last), Row::Free) {
                break;
            }
            self.region.clear(place(last));
            last = before(last);
        }
    }

    /// Clears rows that a dead holder of the lock left: torn ones, second ones of a key, and those
    /// of memory that does not bear a name.
    pub(super) fn repair_rows(&self, tables: &Holds<Lock>) {
        self.region.refresh_objects();
        let mut keys = BTreeSet::new();
        for row in 0..OBJECTS {
            match self.row(row) {
                Row::Unused => {}
                Row::Free => self.clear_row(tables, row),
                Row::Taken(line) if line.memory != 0 && self.named_memory(&line).is_none() => {
                    self.clear_row(tables, row);
                }
                Row::Taken(line) if !keys.insert(line.key_hash) => drop(self.forget_row(tables, row, &line)),
                Row::Taken(_) => {}
            }
        }
    }

    /// All rows with keys.
    pub fn all_rows(&self) -> impl Iterator<Item = (u64, ObjectLine)> + '_ {
        self.region.refresh_objects();
        (0..OBJECTS).filter_map(|row| Some((row, self.object_line(row)?)))
    }
}
