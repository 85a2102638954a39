//! From files into the region (Engram pooling §4.3: one rank of the rack loads, the others wait).
//!
//! A journal names the owner of a load and the extents that are complete. The owner writes extents,
//! adds them to the journal, and seals the table with one more object. If the owner dies, the next
//! caller takes the journal over, frees what the journal does not name, and goes on.

use crate::error::TableError;
use crate::extents::{self, EXTENT_BYTES_MAX, digests_of, hex, table_digest};
use crate::record::{Extent, OTHER_FILES, Record, State};
use crate::registry::{Waiting, Work, abandon, finish_drop, free_of_dead, heart, journal_key, sealed, table_key, work};
use crate::source::RowSource;
use cenote_base::Deadline;
use cenote_engram::TableDigest;
use cenote_mem::{Fabric, HostLocal};
use cenote_pool::{Over, Pool, PoolError, Root};
use rayon::prelude::*;

/// How a table is loaded.
pub struct LoadOptions<'a> {
    /// When to give up waiting for another worker that loads the table. Its clock dates the table.
    pub deadline: Deadline,
    /// Called as the load goes on.
    pub progress: &'a (dyn Fn(Progress) + Sync),
    /// Bytes of extents between two entries into the journal.
    pub journal_bytes: u64,
    /// Most bytes of an extent; at most a chunk.
    pub extent_bytes: u64,
}

impl LoadOptions<'_> {
    /// Waits until the deadline for other workers, and shows nothing.
    #[must_use]
    pub fn waiting(deadline: Deadline) -> Self {
        Self { deadline, progress: &|_| {}, journal_bytes: 256 << 20, extent_bytes: EXTENT_BYTES_MAX }
    }

    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        self.deadline.clock().unix().as_secs()
    }
}

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of rows that are in the region, or that were compared with a table there.
    pub bytes: u64,
    /// Bytes of all rows.
    pub total_bytes: u64,
    /// Whether another worker loads the table.
    pub waiting: bool,
}

/// How a table came into the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This call loaded it.
    Loaded {
        /// Bytes that an earlier load had written.
        resumed_bytes: u64,
        /// Digest of the rows.
        digest: String,
    },
    /// It was there, or another worker loaded it meanwhile.
    Found {
        /// Digest of the rows.
        digest: String,
    },
}

/// Loads a table and seals it, unless the region has it. A caller that finds another worker's load
/// waits for it, and takes it over if that worker dies.
///
/// A thread ticks the pool meanwhile.
///
/// `pool` must be a worker that allocates no other memory without a name: what a dead loader leaves
/// unrecorded is freed.
///
/// A load reads the files once and hashes the rows while it copies them. If the region has the table,
/// or a part of it that a dead loader left, these rows are compared with those of the files, which are
/// read for it: names, sizes and times of files do not prove that rows are equal.
///
/// # Errors
/// The files cannot be read or change meanwhile, the table does not fit, there is another table of this
/// name, or the deadline passed. After an error the region has nothing of this load.
pub fn load<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    name: &str,
    source: &dyn RowSource,
    options: &LoadOptions<'_>,
) -> Result<Outcome, TableError> {
    crate::facts::verify_name(name)?;
    source.facts().verify()?;
    let _heart = heart(pool)?;
    let mut waiting = Waiting::until(options.deadline);
    loop {
        let work = work(pool, name)?;
        if let Some((root, record)) = sealed(pool, name)? {
            let is_dropped = work.as_ref().is_some_and(|work| work.record.header.state == State::Dropping);
            if !is_dropped {
                let mut difference = record.difference(source.facts());
                if difference.is_none() {
                    let is_equal = has_rows_of(&record, source, options)?;
                    if !pool.holds(&root) {
                        continue;
                    }
                    source.verify_unchanged()?;
                    difference = (!is_equal).then(|| OTHER_FILES.to_owned());
                }
                if let Some(difference) = difference {
                    return Err(TableError::Different { name: name.to_owned(), difference });
                }
                if let Some(left) = work.filter(|work| is_dead(pool, work)) {
                    // Its owner died after it had sealed the table.
                    pool.destroy_root(&journal_key(name), &left.root)?;
                }
                return Ok(Outcome::Found { digest: record.header.digest });
            }
        }
        let Some(work) = work else {
            match begin(pool, name, source, options)? {
                Some(work) => return Load { pool, name, source, options }.run(work),
                None => continue,
            }
        };
        if is_dead(pool, &work) {
            let extents = work.extents();
            if let Some(work) = work.take_over(pool, name, options.unix_seconds())? {
                if work.record.header.state == State::Dropping {
                    finish_drop(pool, name, work, extents)?;
                    continue;
                }
                return Load { pool, name, source, options }.run(work);
            }
            continue;
        }
        if options.deadline.passed() {
            return Err(work.record.busy(name, waiting.waited()));
        }
        let written: u64 = (0..work.record.extents.len() as u64).map(|at| work.record.padded_bytes(at)).sum();
        let total_bytes = work.record.header.facts.bytes();
        (options.progress)(Progress { bytes: written.min(total_bytes), total_bytes, waiting: true });
        waiting.pause();
    }
}

/// Whether the owner of a journal is known to be dead.
fn is_dead<F: Fabric, H: HostLocal>(pool: &Pool<F, H>, work: &Work) -> bool {
    work.record.owner().map_or(Some(false), |owner| pool.is_alive(owner)) == Some(false)
}

/// Whether a sealed table has the rows of a source: reads the source and compares digests.
fn has_rows_of(record: &Record, source: &dyn RowSource, options: &LoadOptions<'_>) -> Result<bool, TableError> {
    let facts = source.facts();
    let (mut hasher, mut bytes) = (extents::table_digest(facts)?, 0);
    let numbers: Vec<u64> = (0..record.total()).collect();
    for numbers in numbers.chunks(rayon::current_num_threads()) {
        let read = numbers.par_iter().map(|&at| Ok(digests_of(facts, &rows_of(source, record, at)?)));
        let digests: Vec<Vec<u8>> = read.collect::<Result<_, TableError>>()?;
        digests.iter().for_each(|digests| hasher.runs(digests));
        bytes += numbers.iter().map(|&at| record.padded_bytes(at)).sum::<u64>();
        let total_bytes = facts.bytes();
        (options.progress)(Progress { bytes: bytes.min(total_bytes), total_bytes, waiting: false });
    }
    Ok(hex(hasher.finish()) == record.header.digest)
}

/// The rows of an extent in the files.
fn rows_of(source: &dyn RowSource, record: &Record, number: u64) -> Result<Vec<u8>, TableError> {
    let rows = record.rows_of(number);
    let mut bytes = vec![0; ((rows.end - rows.start) * record.header.facts.row_bytes) as usize];
    source.read(rows, &mut bytes)?;
    Ok(bytes)
}

/// The region has room for so many extents of a table.
fn no_room(record: &Record, extents: u64) -> TableError {
    let room = (0..extents).map(|at| record.padded_bytes(at)).sum();
    TableError::NoRoom { wanted: record.header.facts.bytes(), room }
}

/// Begins a load; `None` if another worker was faster.
fn begin<F: Fabric, H: HostLocal>(
    pool: &Pool<F, H>,
    name: &str,
    source: &dyn RowSource,
    options: &LoadOptions<'_>,
) -> Result<Option<Work>, TableError> {
    let extent_rows = extents::plan(pool, source.facts(), options.extent_bytes)?;
    let region = crate::registry::region_name(pool);
    let record = Record::begin(region, name, source.facts().clone(), extent_rows, pool.maker(), options.unix_seconds());
    let Some(root) = pool.put_object_over(&journal_key(name), &record.encode(), Over::Nothing)? else {
        return Ok(None);
    };
    // Another worker may have sealed the table since this one looked.
    if sealed(pool, name)?.is_some() {
        pool.destroy_root(&journal_key(name), &root)?;
        return Ok(None);
    }
    Ok(Some(Work { root, record }))
}

struct Load<'a, F: Fabric, H: HostLocal> {
    pool: &'a Pool<F, H>,
    name: &'a str,
    source: &'a dyn RowSource,
    options: &'a LoadOptions<'a>,
}

impl<F: Fabric, H: HostLocal> Load<'_, F, H> {
    /// Loads what the record lacks. An error takes everything back, unless another worker has taken
    /// the load over.
    fn run(&self, mut work: Work) -> Result<Outcome, TableError> {
        let loaded = self.fill(&mut work);
        if loaded.as_ref().is_err_and(|error| !matches!(error, TableError::Lost(_)))
            && let Err(error) = abandon(self.pool, self.name, work)
        {
            tracing::warn!(name = self.name, %error, "a load that failed is still in the region");
        }
        loaded
    }

    fn fill(&self, work: &mut Work) -> Result<Outcome, TableError> {
        let facts = self.source.facts();
        let mut record = work.record.clone();
        if record.difference(facts).is_some() {
            // The files have changed since the load began.
            record.extents.clear();
            record.header.extent_rows = extents::plan(self.pool, facts, self.options.extent_bytes)?;
        }
        record.header.facts = facts.clone();
        let mut hasher = table_digest(facts)?;
        let kept = self.keep_whole(&mut record, &mut hasher)?;
        self.enter(work, &record)?;
        free_of_dead(self.pool, &record.makers())?;
        self.show(&record);
        let resumed_bytes = self.written(&record);
        tracing::debug!(name = self.name, kept, "loads a table");
        let (total, mut unrecorded) = (record.total(), 0);
        while (record.extents.len() as u64) < total {
            let first = record.extents.len() as u64;
            let numbers: Vec<u64> = (first..total.min(first + rayon::current_num_threads() as u64)).collect();
            let offsets = numbers.iter().map(|&at| self.allocate(&record, at)).collect::<Result<Vec<_>, _>>()?;
            let written: Vec<(Extent, Vec<u8>)> = numbers
                .par_iter()
                .zip(offsets)
                .map(|(&number, offset)| self.copy(&record, number, offset))
                .collect::<Result<_, TableError>>()?;
            for (extent, digests) in written {
                hasher.runs(&digests);
                record.extents.push(extent);
            }
            unrecorded += numbers.iter().map(|&at| record.padded_bytes(at)).sum::<u64>();
            if unrecorded >= self.options.journal_bytes {
                self.enter(work, &record)?;
                unrecorded = 0;
            }
            self.show(&record);
        }
        let digest = hex(hasher.finish());
        // Behind the last read. A file that changed in between would be sealed as a mixture.
        self.source.verify_unchanged()?;
        // The journal first: if this worker dies before the table is sealed, the next one seals it.
        self.enter(work, &record)?;
        self.seal(work, &digest)?;
        Ok(Outcome::Loaded { resumed_bytes, digest })
    }

    /// Keeps the extents up to the first that is damaged, or that has other rows than the source: a
    /// file of the same form and time may have other content.
    fn keep_whole(&self, record: &mut Record, hasher: &mut TableDigest) -> Result<usize, TableError> {
        let step = rayon::current_num_threads();
        let mut whole = 0;
        while whole < record.extents.len() {
            let numbers: Vec<u64> = (whole..record.extents.len().min(whole + step)).map(|at| at as u64).collect();
            let read = numbers.par_iter().map(|&at| {
                let Some(bytes) = extents::read(self.pool, record, at) else { return Ok(None) };
                let is_kept = rows_of(self.source, record, at)? == bytes;
                Ok(is_kept.then(|| digests_of(&record.header.facts, &bytes)))
            });
            let read: Vec<Option<Vec<u8>>> = read.collect::<Result<_, TableError>>()?;
            let count = read.len();
            let digests: Vec<Vec<u8>> = read.into_iter().map_while(|digests| digests).collect();
            digests.iter().for_each(|digests| hasher.runs(digests));
            whole += digests.len();
            if digests.len() < count {
                break;
            }
        }
        record.extents.truncate(whole);
        Ok(whole)
    }

    fn allocate(&self, record: &Record, number: u64) -> Result<u64, TableError> {
        self.pool.allocate(record.padded_bytes(number)).map_err(|error| match error {
            PoolError::NoRoom(_) => no_room(record, number),
            error => error.into(),
        })
    }

    fn copy(&self, record: &Record, number: u64, offset: u64) -> Result<(Extent, Vec<u8>), TableError> {
        let rows = record.rows_of(number);
        let mut bytes = vec![0; record.padded_bytes(number) as usize];
        let length = ((rows.end - rows.start) * record.header.facts.row_bytes) as usize;
        self.source.read(rows, &mut bytes[..length])?;
        let digests = digests_of(&record.header.facts, &bytes[..length]);
        Ok((extents::write(self.pool, record, number, offset, &bytes), digests))
    }

    /// Writes the journal, unless another worker has taken it over.
    fn enter(&self, work: &mut Work, record: &Record) -> Result<(), TableError> {
        let mut record = record.clone();
        record.header.changed = self.options.unix_seconds();
        let extents = record.extents.len() as u64;
        work.enter(self.pool, self.name, record.clone()).map_err(|error| match error {
            TableError::Pool(PoolError::NoRoom(_)) => no_room(&record, extents),
            error => error,
        })
    }

    fn seal(&self, work: &Work, digest: &str) -> Result<Root, TableError> {
        let mut record = work.record.clone();
        record.header.state = State::Sealed;
        record.header.digest = digest.to_owned();
        let root = self.pool.put_object_over(&table_key(self.name), &record.encode(), Over::Nothing)?;
        let root = root.ok_or_else(|| TableError::Lost(self.name.to_owned()))?;
        // The table is complete. A journal that stays goes with its owner.
        if let Err(error) = self.pool.destroy_root(&journal_key(self.name), &work.root) {
            tracing::warn!(name = self.name, %error, "the journal of a sealed table is still in the region");
        }
        Ok(root)
    }

    fn written(&self, record: &Record) -> u64 {
        (0..record.extents.len() as u64).map(|at| record.padded_bytes(at)).sum::<u64>().min(record.header.facts.bytes())
    }

    fn show(&self, record: &Record) {
        let total_bytes = record.header.facts.bytes();
        (self.options.progress)(Progress { bytes: self.written(record), total_bytes, waiting: false });
    }
}
