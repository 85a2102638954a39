//! Which namespaces workers have open, and which rows are free
//! (docs/internals/protocol.md#namespaces).
//!
//! A worker shows the rows that it has open in a line that only it writes. It writes the line under
//! the table lock before a caller gets the handle, so the next holder of the lock sees it. The rows
//! stay open until the worker leaves. Each belongs to one life of the host: in another life the
//! worker looks first whether the row is still its namespace's.

use super::namespaces::Namespace;
use super::{HeldTables, Tables, Thing};
use crate::error::PoolError;
use crate::region::layout::NAMESPACES;
use crate::region::lines::{Descriptor, Line, NamespaceLine, OpenedLine};
use crate::sync::{Holds, Tables as Lock, Timeout};
use cenote_base::BlockIndex;
use cenote_base::fault::{self, Mistake};
use cenote_mem::{Fabric, HostLocal};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// Fingerprint of a namespace as words.
pub(crate) type Fingerprint = [u64; 4];

/// A set of rows of the namespace table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows([u64; 4]);

impl Rows {
    /// Rows that the table does not have are left out.
    fn add(&mut self, row: u64) {
        if row < NAMESPACES {
            self.0[(row / 64) as usize] |= 1 << (row % 64);
        }
    }

    fn has(self, row: u64) -> bool {
        row < NAMESPACES && self.0[(row / 64) as usize] >> (row % 64) & 1 == 1
    }
}

/// Namespaces that this worker has open.
#[derive(Default)]
pub(crate) struct Opened {
    /// The host's life in which the rows were found; 0: none is open yet.
    life: u64,
    rows: BTreeMap<u64, Fingerprint>,
}

impl Opened {
    /// The words of this worker's line at `at`.
    fn words(&self, at: u64, salt: u64) -> [u64; 8] {
        if self.life == 0 {
            return [0; 8];
        }
        let mut rows = Rows::default();
        self.rows.keys().for_each(|&row| rows.add(row));
        OpenedLine { rows: rows.0, life: self.life, ..OpenedLine::default() }.seal(at, salt)
    }
}

/// Where a worker's line lies, and its words.
type Shown = (u64, [u64; 8]);

impl<F: Fabric, H: HostLocal> Tables<F, H> {
    /// Held for no call of the region.
    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this worker has opened this namespace, in this life of its host. Takes no lock of
    /// the region.
    pub fn has_open(&self, namespace: &Namespace) -> bool {
        let (row, life) = (u64::from(namespace.id.0), self.region.incarnation());
        let opened = self.opened();
        opened.life == life && opened.rows.get(&row) == Some(&namespace.fingerprint)
    }

    /// Opens a row, which has this fingerprint and was just read fresh. Other workers see it before
    /// the table lock is released.
    pub fn open_row(&self, tables: &Holds<Lock>, row: u64, fingerprint: Fingerprint) {
        self.keep_rows(tables);
        self.opened().rows.insert(row, fingerprint);
        if !self.shows_opened() {
            self.show_opened(tables);
        }
    }

    fn own_line(&self) -> Shown {
        let at = self.region.layout.opened(self.region.host, self.region.slot());
        (at, self.opened().words(at, self.region.salt))
    }

    /// Writes this worker's line.
    pub fn show_opened(&self, _: &Holds<Lock>) {
        let (at, words) = self.own_line();
        self.region.fabric.write_line(at, &words);
    }

    /// Whether this worker's line is as it was written.
    pub fn shows_opened(&self) -> bool {
        let (at, words) = self.own_line();
        self.region.fabric.load_line(at) == words
    }

    /// In a new life of the host, keeps the rows that still belong to their namespaces. Returns the
    /// others. The caller has fresh rows, and shows the line.
    fn keep_rows(&self, _: &Holds<Lock>) -> Vec<u64> {
        let life = self.region.incarnation();
        let known = {
            let opened = self.opened();
            if opened.life == life {
                return Vec::new();
            }
            opened.rows.clone()
        };
        let stays =
            |row: u64, fingerprint| self.space.namespace_line(row).is_some_and(|line| line.fingerprint == fingerprint);
        let lost: Vec<u64> = known.iter().filter(|&(&row, &of)| !stays(row, of)).map(|(&row, _)| row).collect();
        let mut opened = self.opened();
        opened.life = life;
        opened.rows.retain(|row, _| !lost.contains(row));
        lost
    }

    /// After a new life of the host began: looks whether this worker's rows are still its
    /// namespaces'. Returns the rows that are not: while the host counted as dead, others may have
    /// given them to other namespaces.
    pub fn renew_rows(&self, timeout: Timeout) -> Vec<u64> {
        let life = self.region.incarnation();
        let is_known = {
            let opened = self.opened();
            opened.rows.is_empty() || opened.life == life
        };
        if is_known || self.region.area.is_inherited() {
            return Vec::new();
        }
        let Ok(tables) = self.lock(timeout) else { return Vec::new() };
        self.region.refresh_namespaces();
        let lost = self.keep_rows(&tables);
        self.show_opened(&tables);
        lost
    }

    /// Hosts with workers that may have namespaces open, with the last of their lives that does not
    /// count: it was declared dead, and the quarantine is over.
    fn hosts_with_workers(&self) -> Vec<(u64, u64)> {
        if self.region.is_coherent() {
            return vec![(self.region.host, 0)];
        }
        let gone = |host| if self.hosts.is_past_quarantine(host) { self.region.highest_mark(host) } else { 0 };
        (0..self.region.layout.max_hosts).map(|host| (host, gone(host))).collect()
    }

    /// The words of lines of workers that have had namespaces open in a life after `gone` of
    /// `host`.
    fn lines_of(&self, host: u64, gone: u64) -> impl Iterator<Item = Shown> + '_ {
        let places = (0..self.region.layout.workers_per_host).map(move |slot| self.region.layout.opened(host, slot));
        let lines = places.map(|at| (at, self.region.fabric.load_line(at)));
        // The life is one word, which is whole also in a torn line.
        lines.filter(move |(_, words)| *words != [0; 8] && (gone == 0 || words[4] > gone))
    }

    /// Rows that a worker of any host may have open.
    fn rows_in_use(&self, _: &Holds<Lock>) -> Rows {
        let mut rows = Rows::default();
        if fault::makes(Mistake::NamespaceTakenInUse) {
            return rows;
        }
        self.refresh_opened();
        for (host, gone) in self.hosts_with_workers() {
            for (at, words) in self.lines_of(host, gone) {
                // A line that does not hold stands for all rows: its worker may live.
                let of = OpenedLine::open(words, at, self.region.salt).map_or([u64::MAX; 4], |line| line.rows);
                rows.0.iter_mut().zip(of).for_each(|(all, of)| *all |= of);
            }
        }
        rows
    }

    fn refresh_opened(&self) {
        let layout = &self.region.layout;
        self.region.refresh_range(layout.opened(0, 0), layout.opened(layout.max_hosts, 0));
    }

    /// Number of workers that have each row open, by the lines that hold.
    pub fn workers_by_row(&self) -> Vec<u64> {
        let mut workers = vec![0; NAMESPACES as usize];
        self.refresh_opened();
        let hosts = if self.region.is_coherent() {
            self.region.host..self.region.host + 1
        } else {
            0..self.region.layout.max_hosts
        };
        for host in hosts {
            for (at, words) in self.lines_of(host, self.region.highest_mark(host)) {
                let of = OpenedLine::open(words, at, self.region.salt).map_or([0; 4], |line| line.rows);
                (0..NAMESPACES).filter(|&row| Rows(of).has(row)).for_each(|row| workers[row as usize] += 1);
            }
        }
        workers
    }

    /// Number of a host's lines that are corrupt.
    pub fn torn_opened(&self, host: u64) -> usize {
        let is_torn = |(at, words): &Shown| OpenedLine::open(*words, *at, self.region.salt).is_none();
        self.lines_of(host, 0).filter(is_torn).count()
    }

    /// Rows of which some host has a block, by the descriptors of all chunks.
    fn rows_with_blocks(&self, _: &Holds<Lock>) -> Rows {
        let (region, mut rows) = (&self.region, Rows::default());
        region.refresh_descriptors(0..region.layout.num_descriptors());
        for block in (0..region.layout.num_descriptors()).map(BlockIndex) {
            let at = region.layout.descriptor(block);
            let words = region.fabric.load_line(at);
            // An eviction that is being stored may be taken back.
            let is_torn = || words != [0; 8];
            if Descriptor::open(words, at, region.salt).map_or_else(is_torn, |descriptor| descriptor.is_charged()) {
                rows.add(words[5] & 0xffff);
            }
        }
        rows
    }

    /// A row for a new namespace: one without a namespace, or else the one that was created first
    /// among those that no worker has open and that have no block. Rows with limits come last,
    /// because an operator set it. The caller has fresh rows.
    pub(super) fn row_for_new(&self, tables: &HeldTables<'_, F, H>) -> Result<u64, PoolError> {
        let region = &self.region;
        let in_use = self.rows_in_use(tables);
        let may_take = |row: &u64| !in_use.has(*row) && !tables.leaves_alone(Thing::Namespace(*row));
        let unused: Vec<u64> = (0..region.layout.num_namespaces).filter(may_take).collect();
        let is_blank = |row: &u64| region.fabric.load_line(region.layout.namespace(*row)) == [0; 8];
        if let Some(row) = unused.iter().copied().find(is_blank) {
            return Ok(row);
        }
        let mut free: Vec<u64> = unused.into_iter().filter(|&row| self.space.used_bytes(row) == 0).collect();
        if !free.is_empty() {
            // Rows that no worker has open get no blocks, so none of these gets one after the look.
            let with_blocks = self.rows_with_blocks(tables);
            free.retain(|&row| !with_blocks.has(row));
        }
        let created = |row| self.space.namespace_line(row).map_or(0, |line: NamespaceLine| line.created);
        free.into_iter().min_by_key(|&row| (!self.space.read_limits(row).is_none(), created(row), row)).ok_or(
            PoolError::TableFull {
                table: "namespace",
                rows: region.layout.num_namespaces,
                fact: ": workers have all of them open, or they still have blocks. `cenote pool info` shows both. Stop \
                       the workers of models that are gone; their rows become free when their last block is evicted, so keep no bytes for \
                       them (`cenote pool quota --keep 0`)",
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_rows_that_were_added() {
        let mut rows = Rows::default();
        [0, 63, 64, 255, 256, 0xffff].into_iter().for_each(|row| rows.add(row));
        let all: Vec<u64> = (0..1000).filter(|&row| rows.has(row)).collect();
        assert_eq!(all, [0, 63, 64, 255]);
    }
}
