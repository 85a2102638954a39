//! The tables of a region: listing, checking, dropping.

use crate::KEY_PREFIX;
use crate::error::TableError;
use crate::extents;
use crate::facts::Facts;
use crate::record::{Record, State};
use cenote_base::Deadline;
use cenote_mem::{Fabric, HostLocal};
use cenote_pool::{Freed, Maker, Over, OwnedPiece, Pool, PoolError, Root, Ticker};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(100);
/// Lists of records that are compared before a call fails.
const LISTS_MAX: usize = 16;
/// Shortest and longest pause of a caller that waits for another worker.
const PAUSE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// Reads of a listed record before it counts as damaged.
const READ_ATTEMPTS: usize = 4;

/// Key of a sealed table.
pub(crate) fn table_key(name: &str) -> String {
    format!("{KEY_PREFIX}/{name}")
}

/// Key of work on a table.
pub(crate) fn journal_key(name: &str) -> String {
    format!("{KEY_PREFIX}-work/{name}")
}

/// Ticks the pool until it is dropped: work on a whole table may read for longer than other hosts wait
/// for this one.
pub(crate) fn heart<F: Fabric, H: HostLocal>(pool: &Pool<F, H>) -> Result<Ticker, TableError> {
    pool.tick();
    let pool = pool.clone();
    let beat = move || {
        pool.tick();
        true
    };
    Ticker::start(BEAT, beat).map_err(TableError::Thread)
}

/// A caller that waits for another worker's load or drop.
pub(crate) struct Waiting {
    deadline: Deadline,
    began_ns: u64,
    pause: Duration,
    has_waited: bool,
}

impl Waiting {
    pub fn until(deadline: Deadline) -> Self {
        Self { deadline, began_ns: deadline.clock().now_ns(), pause: PAUSE[0], has_waited: false }
    }

    /// Zero for a caller that has not waited at all.
    pub fn waited(&self) -> Duration {
        if self.has_waited { self.deadline.clock().since(self.began_ns) } else { Duration::ZERO }
    }

    /// The other worker's progress is seen in memory only, so there is nothing to wait on.
    pub fn pause(&mut self) {
        thread::sleep(self.pause.min(self.deadline.block_for()));
        self.pause = (self.pause * 2).min(PAUSE[1]);
        self.has_waited = true;
    }
}

/// The region's identity in records.
pub(crate) fn region_name<F: Fabric, H: HostLocal>(pool: &Pool<F, H>) -> String {
    hex::encode(pool.superblock().config.uuid)
}

fn record_at<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    key: &str,
    name: &str,
) -> Result<Option<(Root, Record)>, TableError> {
    let Some((root, bytes)) = pool.get_root(key)? else { return Ok(None) };
    let record = Record::decode(&bytes, &region_name(pool), name, &pool.space());
    Ok(Some((root, record.ok_or_else(|| TableError::Record(name.to_owned()))?)))
}

/// The table's name in the key of a sealed record or a journal.
fn name_of(key: &str) -> Option<&str> {
    match key.strip_prefix(KEY_PREFIX)?.split_once('/')? {
        ("" | "-work", name) => Some(name),
        _ => None,
    }
}

/// The record of a key that was listed; `None` if the key is gone. An object whose bytes do not hold
/// reads as none, and its key stays.
fn listed_record<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    key: &str,
    name: &str,
) -> Result<Option<(Root, Record)>, TableError> {
    for _ in 0..READ_ATTEMPTS {
        if let Some(found) = record_at(pool, key, name)? {
            return Ok(Some(found));
        }
        if !pool.object_keys().iter().any(|listed| listed == key) {
            return Ok(None);
        }
    }
    Err(TableError::Record(name.to_owned()))
}

/// The record of a sealed table.
pub(crate) fn sealed<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    name: &str,
) -> Result<Option<(Root, Record)>, TableError> {
    let found = record_at(pool, &table_key(name), name)?;
    Ok(found.filter(|(_, record)| record.header.state == State::Sealed))
}

/// A journal as it was read or written.
pub(crate) struct Work {
    pub root: Root,
    pub record: Record,
}

/// The journal of a table.
pub(crate) fn work<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, name: &str) -> Result<Option<Work>, TableError> {
    Ok(record_at(pool, &journal_key(name), name)?.map(|(root, record)| Work { root, record }))
}

impl Work {
    /// Takes a dead worker's journal over, at this second since 1970; `None` if it has changed
    /// meanwhile.
    pub fn take_over<F: Fabric, H: HostLocal>(
        mut self,
        pool: &Pool<F, H>,
        name: &str,
        now: u64,
    ) -> Result<Option<Self>, TableError> {
        self.record.hand_to(pool.maker(), now);
        let root = pool.put_object_over(&journal_key(name), &self.record.encode(), Over::This(&self.root))?;
        Ok(root.map(|root| Self { root, record: self.record }))
    }

    /// Writes another record, unless another worker has taken the journal over.
    pub fn enter<F: Fabric, H: HostLocal>(
        &mut self,
        pool: &Pool<F, H>,
        name: &str,
        record: Record,
    ) -> Result<(), TableError> {
        let root = pool.put_object_over(&journal_key(name), &record.encode(), Over::This(&self.root))?;
        self.root = root.ok_or_else(|| TableError::Lost(name.to_owned()))?;
        self.record = record;
        Ok(())
    }

    /// Whether a drop that ended early may have freed extents.
    pub fn extents(&self) -> Extents {
        match self.record.header.state {
            State::Dropping => Extents::PartlyFreed,
            State::Loading | State::Sealed => Extents::Whole,
        }
    }

    /// Names the extents of a sealed record instead of the journal's. The journal may have begun
    /// before the table was sealed, or may be of an earlier table of this name.
    fn adopt<F: Fabric, H: HostLocal>(
        &mut self,
        pool: &Pool<F, H>,
        name: &str,
        sealed: &Record,
    ) -> Result<(), TableError> {
        let own = &self.record;
        if own.extents == sealed.extents && sealed.header.makers.iter().all(|maker| own.header.makers.contains(maker)) {
            return Ok(());
        }
        let mut record = sealed.clone();
        record.header.state = State::Dropping;
        record.header.owner.clone_from(&own.header.owner);
        let more: Vec<String> =
            own.header.makers.iter().filter(|maker| !record.header.makers.contains(maker)).cloned().collect();
        record.header.makers.extend(more);
        record.header.digest.clear();
        match self.enter(pool, name, record.clone()) {
            // A death before the end of the drop leaves memory to `cenote pool gc --free-memory`.
            Err(TableError::Pool(PoolError::NoRoom(_))) => self.record = record,
            entered => entered?,
        }
        Ok(())
    }
}

/// Frees those of the pieces that no record names. Memory that a record names belongs to a table,
/// even if the worker that allocated it has ended.
///
/// The pieces must have been listed before this call, of makers that allocate nothing in between,
/// such as [`Pool::dead_memory`]. Then each piece of a table has been recorded when this call reads
/// the records.
///
/// # Errors
/// A record cannot be read, or tables come and go too fast to read all records. Nothing is freed
/// then. Also if the table of memory was busy for too long.
pub fn free_unrecorded<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    pieces: Vec<OwnedPiece>,
) -> Result<Freed, TableError> {
    free_beside(pool, pieces, None)
}

/// As [`free_unrecorded`], without the record of one key.
fn free_beside<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    mut pieces: Vec<OwnedPiece>,
    without: Option<&str>,
) -> Result<Freed, TableError> {
    if pieces.is_empty() {
        return Ok(Freed::default());
    }
    let recorded = recorded_offsets(pool, without)?;
    pieces.retain(|piece| !recorded.contains(&piece.offset));
    Ok(pool.free_pieces(&pieces)?)
}

/// As [`free_beside`], beside other work: memory stays if a record cannot be read, and
/// `cenote pool gc --free-memory` frees it later.
fn free_leaks<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    pieces: Vec<OwnedPiece>,
    without: Option<&str>,
) -> Result<(), TableError> {
    match free_beside(pool, pieces, without) {
        Err(error @ (TableError::Record(_) | TableError::Unsettled)) => {
            tracing::warn!(%error, "memory of dead loaders stays in the region");
            Ok(())
        }
        freed => freed.map(drop),
    }
}

/// Frees memory of dead workers that no record names. These workers have died in a load.
pub(crate) fn free_of_dead<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, makers: &[Maker]) -> Result<(), TableError> {
    let dead: Vec<Maker> = makers.iter().copied().filter(|&maker| pool.is_alive(maker) == Some(false)).collect();
    if dead.is_empty() {
        return Ok(());
    }
    free_leaks(pool, pool.memory_of(&dead), None)
}

/// Frees memory of this worker that no record names: a load that failed.
fn free_own<F: Fabric, H: HostLocal>(pool: &Pool<F, H>) -> Result<(), TableError> {
    free_leaks(pool, pool.memory_of(&[pool.maker()]), None)
}

/// Offsets of all extents that records name, but for the record of the key `without`.
///
/// A table's row moves while the rows are listed: a loader seals it and destroys its journal, so a
/// list may have neither. The next list has the sealed record. So two lists in a row must have the
/// same keys. A drop can hide a table from both lists, and its memory may be freed.
fn recorded_offsets<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    without: Option<&str>,
) -> Result<BTreeSet<u64>, TableError> {
    let (mut offsets, mut last) = (BTreeSet::new(), None);
    for _ in 0..LISTS_MAX {
        let mut keys = pool.object_keys();
        keys.retain(|key| name_of(key).is_some() && Some(key.as_str()) != without);
        let mut is_complete = true;
        for (key, name) in keys.iter().filter_map(|key| Some((key, name_of(key)?))) {
            match listed_record(pool, key, name)? {
                Some((_, record)) => offsets.extend(record.extents.iter().map(|extent| extent.offset)),
                None => is_complete = false,
            }
        }
        if is_complete && last.as_ref() == Some(&keys) {
            return Ok(offsets);
        }
        last = Some(keys);
    }
    Err(TableError::Unsettled)
}

/// Whether extents of a journal may have been freed already, and their places used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extents {
    /// All are as the journal names them.
    Whole,
    /// A dropper died and may have freed some.
    PartlyFreed,
}

/// Frees the extents of a table that this worker drops, and then the journal.
pub(crate) fn finish_drop<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    name: &str,
    mut work: Work,
    mut extents: Extents,
) -> Result<(), TableError> {
    // Readers look for the row of the sealed table after each copy, so it goes before its bytes.
    if let Some((root, bytes)) = pool.get_root(&table_key(name))? {
        if let Some(record) = Record::decode(&bytes, &region_name(pool), name, &pool.space()) {
            extents = Extents::Whole;
            work.adopt(pool, name, &record)?;
        }
        pool.destroy_root(&table_key(name), &root)?;
    }
    let makers = work.record.makers();
    let offsets: BTreeSet<u64> = work.record.extents.iter().map(|extent| extent.offset).collect();
    let of_table = |makers: &[Maker]| {
        let mut pieces: Vec<OwnedPiece> = pool.memory_of(makers);
        pieces.retain(|piece| offsets.contains(&piece.offset));
        pieces
    };
    match extents {
        Extents::Whole => _ = pool.free_pieces(&of_table(&makers))?,
        Extents::PartlyFreed => {
            // A living maker may load another table into freed places. What it leaves is found when
            // it is dead. This worker loads nothing meanwhile.
            let is_settled = |&maker: &Maker| maker == pool.maker() || pool.is_alive(maker) == Some(false);
            let settled: Vec<Maker> = makers.iter().copied().filter(is_settled).collect();
            free_leaks(pool, of_table(&settled), Some(&journal_key(name)))?;
        }
    }
    free_of_dead(pool, &makers)?;
    pool.destroy_root(&journal_key(name), &work.root)?;
    Ok(())
}

/// Takes back a load of this worker that failed, as its journal names it.
pub(crate) fn abandon<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    name: &str,
    mut work: Work,
) -> Result<(), TableError> {
    // First, because a full region has no room for another journal.
    free_own(pool)?;
    let mut record = work.record.clone();
    record.header.state = State::Dropping;
    match work.enter(pool, name, record) {
        Ok(()) => return finish_drop(pool, name, work, Extents::Whole),
        Err(TableError::Lost(_)) => return Ok(()),
        Err(TableError::Pool(PoolError::NoRoom(_))) => {}
        Err(error) => return Err(error),
    }
    // A death before the end leaves memory to `cenote pool gc --free-memory`.
    let makers = work.record.makers();
    let mut pieces = pool.memory_of(&makers);
    pieces.retain(|piece| work.record.extents.iter().any(|extent| extent.offset == piece.offset));
    if pool.destroy_root(&journal_key(name), &work.root)? {
        pool.free_pieces(&pieces)?;
        free_of_dead(pool, &makers)?;
    }
    Ok(())
}

/// Drops a table; returns whether there was one. What a dead worker left half loaded or half dropped
/// counts as one. A living worker that loads or drops it is awaited until the deadline, whose clock
/// dates the drop, for lists. A thread ticks the pool meanwhile.
///
/// # Errors
/// The deadline passed, or a lock was busy for too long.
pub fn drop_table<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    name: &str,
    deadline: Deadline,
) -> Result<bool, TableError> {
    crate::facts::verify_name(name)?;
    let _heart = heart(pool)?;
    let mut waiting = Waiting::until(deadline);
    loop {
        match drop_now(pool, name, &waiting) {
            Err(TableError::Busy { .. }) if !deadline.passed() => waiting.pause(),
            ended => return ended,
        }
    }
}

/// As [`drop_table`], without waiting.
fn drop_now<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, name: &str, waiting: &Waiting) -> Result<bool, TableError> {
    let now = waiting.deadline.clock().unix().as_secs();
    let busy = |record: &Record| record.busy(name, waiting.waited());
    let journal = match work(pool, name) {
        Ok(Some(work)) => {
            let alive = work.record.owner().map_or(Some(false), |owner| pool.is_alive(owner));
            if alive != Some(false) {
                return Err(busy(&work.record));
            }
            let (error, extents) = (busy(&work.record), work.extents());
            let mut work = work.take_over(pool, name, now)?.ok_or(error)?;
            let mut record = work.record.clone();
            record.header.state = State::Dropping;
            work.enter(pool, name, record)?;
            Some((work, extents))
        }
        Ok(None) => None,
        // What it named is found by its makers' deaths: `pool gc --free-memory`.
        Err(TableError::Record(_)) => {
            pool.destroy_object(&journal_key(name))?;
            None
        }
        Err(error) => return Err(error),
    };
    let (journal, extents) = match (journal, sealed(pool, name)) {
        (Some(journal), _) => journal,
        (None, Ok(None)) => return remove_unreadable(pool, name),
        (None, Ok(Some((_, mut record)))) => {
            record.header.state = State::Dropping;
            record.hand_to(pool.maker(), now);
            let root = pool.put_object_over(&journal_key(name), &record.encode(), Over::Nothing)?;
            // Until here another worker may have dropped the table.
            (Work { root: root.ok_or_else(|| busy(&record))?, record }, Extents::PartlyFreed)
        }
        (None, Err(TableError::Record(_))) => return Ok(pool.destroy_object(&table_key(name))?),
        (None, Err(error)) => return Err(error),
    };
    finish_drop(pool, name, journal, extents)?;
    Ok(true)
}

/// Destroys records whose objects have keys and no readable bytes. Memory that they named is found by
/// its makers' deaths. Returns whether there was one.
fn remove_unreadable<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, name: &str) -> Result<bool, TableError> {
    let mut existed = false;
    for key in [table_key(name), journal_key(name)] {
        if matches!(listed_record(pool, &key, name), Err(TableError::Record(_))) {
            existed |= pool.destroy_object(&key)?;
        }
    }
    Ok(existed)
}

/// State of a listed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ListedState {
    /// Complete.
    Sealed,
    /// A living worker loads it.
    Loading,
    /// The worker that loaded it has died; the next `load` goes on.
    Interrupted,
    /// It is being dropped, or its dropper died: the next `load` or `drop` goes on.
    Dropping,
    /// Its record does not hold.
    Damaged,
}

/// A table in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: ListedState,
    /// Its rows; absent if the record does not hold.
    #[serde(flatten)]
    pub facts: Option<Facts>,
    /// Bytes in the region.
    pub bytes: u64,
    /// Extents in the region.
    pub extents: u64,
    /// Extents of the whole table.
    pub extents_total: u64,
    /// Digest of the rows; empty unless sealed.
    pub digest: String,
    /// Seconds since 1970 of the last change.
    pub changed: u64,
}

/// All tables of the region, by name.
#[must_use]
pub fn list<F: Fabric, H: HostLocal>(pool: &Pool<F, H>) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    let mut keys = pool.object_keys();
    keys.sort_unstable();
    for key in keys {
        let Some(name) = name_of(&key) else { continue };
        let one = match listed_record(pool, &key, name) {
            Ok(Some((_, record))) => of_record(pool, name, &record),
            Ok(None) => continue,
            Err(_) => Listed {
                name: name.to_owned(),
                state: ListedState::Damaged,
                facts: None,
                bytes: 0,
                extents: 0,
                extents_total: 0,
                digest: String::new(),
                changed: 0,
            },
        };
        // A journal beside a sealed table is a drop, or what a death left of a load.
        match listed.iter_mut().find(|other| other.name == name) {
            Some(other) if one.state == ListedState::Sealed && other.state != ListedState::Dropping => *other = one,
            Some(other) if one.state == ListedState::Dropping => *other = one,
            Some(_) => {}
            None => listed.push(one),
        }
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    listed
}

fn of_record<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, name: &str, record: &Record) -> Listed {
    let alive = || record.owner().map_or(Some(false), |owner| pool.is_alive(owner)) != Some(false);
    let state = match record.header.state {
        State::Sealed => ListedState::Sealed,
        State::Dropping => ListedState::Dropping,
        State::Loading if alive() => ListedState::Loading,
        State::Loading => ListedState::Interrupted,
    };
    let extents = record.extents.len() as u64;
    Listed {
        name: name.to_owned(),
        state,
        facts: Some(record.header.facts.clone()),
        bytes: (0..extents).map(|at| record.padded_bytes(at)).sum(),
        extents,
        extents_total: record.total(),
        digest: record.header.digest.clone(),
        changed: record.header.changed,
    }
}

/// Result of [`check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Extents of the table.
    pub extents: u64,
    /// Numbers of those whose bytes do not have their checksums.
    pub damaged: Vec<u64>,
    /// Digest of the rows as they are; `None` if an extent is damaged.
    pub digest: Option<String>,
    /// Whether it is the digest that the table was sealed with.
    pub is_whole: bool,
}

/// Reads a whole table and compares it with its checksums and its digest.
///
/// # Errors
/// There is no such table, or its record does not hold.
pub fn check<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, name: &str) -> Result<Checked, TableError> {
    crate::facts::verify_name(name)?;
    let _heart = heart(pool)?;
    let (root, record) = sealed(pool, name)?.ok_or_else(|| TableError::Missing(name.to_owned()))?;
    let (mut hasher, mut damaged) = (extents::table_digest(&record.header.facts)?, Vec::new());
    let numbers: Vec<u64> = (0..record.total()).collect();
    for numbers in numbers.chunks(rayon::current_num_threads()) {
        let digests: Vec<Option<Vec<u8>>> = numbers
            .par_iter()
            .map(|&at| Some(extents::digests_of(&record.header.facts, &extents::read(pool, &record, at)?)))
            .collect();
        for (number, digests) in numbers.iter().zip(digests) {
            match digests {
                Some(digests) => hasher.runs(&digests),
                None => damaged.push(*number),
            }
        }
    }
    if !pool.holds(&root) {
        return Err(TableError::Missing(name.to_owned()));
    }
    let digest = damaged.is_empty().then(|| extents::hex(hasher.finish()));
    let is_whole = digest.as_ref() == Some(&record.header.digest);
    Ok(Checked { extents: record.total(), damaged, digest, is_whole })
}
