//! Rows of the object table: open addressing with linear probing
//! (docs/internals/format.md#object-row).
//!
//! A probe begins at the row that the key's hash names and ends at two unused rows in sequence. So a
//! row that becomes free is marked as used, unless the two rows behind it are unused. One unused row
//! ends no probe: a host that was declared dead in the lock may clear a row late, after another host
//! has entered a key behind it. One row stays free for replacements, so that a full table takes new
//! values of its keys.

use super::{HeldTables, Tables, Thing};
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
    /// No probe goes on behind two of them.
    Unused,
    /// Used before, or torn.
    Free,
    Taken(ObjectLine),
}

/// Finds the end of a probe.
#[derive(Default)]
struct ProbeEnd {
    unused: u32,
}

impl ProbeEnd {
    /// Whether the probe ends at this row, the next one.
    fn is_at(&mut self, row: &Row) -> bool {
        self.unused = if matches!(row, Row::Unused) { self.unused + 1 } else { 0 };
        self.unused == 2
    }
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
        let mut end = ProbeEnd::default();
        let used = self.probe(hash).take_while(|(_, row)| !end.is_at(row));
        let taken = used.filter_map(|(row, content)| match content {
            Row::Taken(line) if line.key_hash == hash.words() => Some((row, line)),
            _ => None,
        });
        taken.collect()
    }

    /// The row for a new value of a key: one that is not taken, to which the key's probe leads.
    fn free_row(&self, tables: &HeldTables<'_, F, H>, hash: BlockHash, is_new: bool) -> Result<u64, PoolError> {
        let fact = ": destroy an object, or keep several in one";
        let full = || PoolError::TableFull { table: "object", rows: OBJECTS, fact };
        let (mut first, mut end) = (None, ProbeEnd::default());
        for (row, content) in self.probe(hash) {
            if matches!(content, Row::Taken(_)) {
                end = ProbeEnd::default();
            } else if first.is_some() {
                return first.ok_or_else(full);
            } else if !tables.leaves_alone(Thing::Object(row)) {
                first = Some(row);
                if !is_new {
                    break;
                }
            } else if end.is_at(&content) {
                return Err(PoolError::LeftToDead);
            }
        }
        // A new key leaves a row for replacements.
        first.filter(|_| !is_new).ok_or_else(full)
    }

    /// Writes a row for a key that has the rows `old`. Returns its number.
    pub(super) fn write_row(
        &self,
        tables: &HeldTables<'_, F, H>,
        key: &str,
        line: ObjectLine,
        old: &[(u64, ObjectLine)],
    ) -> Result<u64, PoolError> {
        let row = self.free_row(tables, BlockHash::from_words(line.key_hash), old.is_empty())?;
        self.claim(tables, Thing::Object(row))?;
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

    /// Clears a row that a probe has just found, or with fresh rows. It becomes unused if no probe
    /// goes on behind it.
    ///
    /// # Errors
    /// This host was declared dead, and cleared nothing.
    pub(super) fn clear_row(&self, tables: &Holds<Lock>, row: u64) -> Result<(), PoolError> {
        let place = |row: u64| self.region.layout.object(row);
        let before = |row: u64| (row + OBJECTS - 1) % OBJECTS;
        self.name(tables, Thing::Object(row))?;
        // The probe went on to the next two rows.
        if !(1..=2).all(|step| matches!(self.row((row + step) % OBJECTS), Row::Unused)) {
            self.region.write(place(row), ObjectLine::default());
            return Ok(());
        }
        self.region.clear(place(row));
        let mut last = before(row);
        // A table of free rows alone ends with the first one that was cleared.
        while last != row {
            self.region.fabric.refresh(&[place(last)]);
            if !matches!(self.row(last), Row::Free) || self.name(tables, Thing::Object(last)).is_err() {
                break;
            }
            self.region.clear(place(last));
            last = before(last);
        }
        Ok(())
    }

    /// Clears rows that a dead holder of the lock left: torn ones, second ones of a key, and those
    /// of memory that does not bear a name. Then each key's probe leads to its row.
    pub(super) fn repair_rows(&self, tables: &Holds<Lock>) {
        // A host that was declared dead meanwhile leaves the rest to the next holder.
        let _ = self.try_repair(tables);
    }

    fn try_repair(&self, tables: &Holds<Lock>) -> Result<(), PoolError> {
        self.region.refresh_objects();
        let mut keys = BTreeSet::new();
        for row in 0..OBJECTS {
            match self.row(row) {
                Row::Unused => {}
                Row::Free => self.clear_row(tables, row)?,
                Row::Taken(line) if line.memory != 0 && self.named_memory(&line).is_none() => {
                    self.clear_row(tables, row)?;
                }
                Row::Taken(line) if !keys.insert(line.key_hash) => drop(self.forget_row(tables, row, &line)?),
                Row::Taken(_) => {}
            }
        }
        self.fill_gaps(tables)
    }

    /// Marks the unused rows of each key's probe as used. A host that others had declared dead may
    /// have cleared a row late, after they had entered a key behind it.
    fn fill_gaps(&self, tables: &Holds<Lock>) -> Result<(), PoolError> {
        let taken = (0..OBJECTS).filter_map(|row| Some((row, self.object_line(row)?)));
        for (row, line) in taken.collect::<Vec<_>>() {
            let home = line.key_hash[0] % OBJECTS;
            let steps = (row + OBJECTS - home) % OBJECTS;
            for gap in (0..steps).map(|step| (home + step) % OBJECTS) {
                if matches!(self.row(gap), Row::Unused) {
                    self.name(tables, Thing::Object(gap))?;
                    self.region.write(self.region.layout.object(gap), ObjectLine::default());
                }
            }
        }
        Ok(())
    }

    /// All rows with keys.
    pub fn all_rows(&self) -> impl Iterator<Item = (u64, ObjectLine)> + '_ {
        self.region.refresh_objects();
        (0..OBJECTS).filter_map(|row| Some((row, self.object_line(row)?)))
    }
}
