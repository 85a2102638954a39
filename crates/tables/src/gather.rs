//! Rows by several threads, now or beside a computation.
//!
//! The threads run on the NUMA node of the region. A list is cut into equal runs of rows, because
//! rows of one table take equal time; a short list stays in the calling thread.

use crate::error::GatherError;
use crate::table::Table;
use cenote_base::{Clock, Deadline};
use cenote_mem::{Fabric, HostLocal};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

/// Bytes of rows that are worth a thread: waking one takes a few microseconds.
const BYTES_PER_THREAD: usize = 128 << 10;

/// Threads that gather rows.
pub struct Gatherer {
    threads: ThreadPool,
    count: usize,
}

/// How rows arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// As they are stored.
    Stored(Vec<u8>),
    /// Decoded to bf16.
    Bf16(Vec<u16>),
}

impl Gatherer {
    /// Starts `count` threads; each calls `begin` first, for example to bind itself to the region's
    /// NUMA node.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn new(count: usize, begin: impl Fn() + Send + Sync + 'static) -> Result<Self, ThreadPoolBuildError> {
        let threads = ThreadPoolBuilder::new()
            .num_threads(count.max(1))
            .thread_name(|number| format!("gather-{number}"))
            .start_handler(move |_| begin())
            .build()?;
        Ok(Self { threads, count: count.max(1) })
    }

    /// Number of threads.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.count
    }

    /// Rows of each thread's run.
    fn run(&self, rows: usize, row_bytes: usize) -> usize {
        let wanted = (rows * row_bytes / BYTES_PER_THREAD).clamp(1, self.count);
        rows.div_ceil(wanted).max(1)
    }

    /// Runs `copy` over runs of rows and their places in `to`, in several threads if they are many.
    /// The calling thread waits. Measurements use it for the same split over other memory.
    pub fn split<T: Send>(
        &self,
        rows: &[u64],
        row_bytes: usize,
        to: &mut [T],
        row_size: usize,
        copy: impl Fn(&[u64], &mut [T]) + Sync,
    ) {
        let run = self.run(rows.len(), row_bytes);
        if run >= rows.len() {
            copy(rows, to);
            return;
        }
        self.threads.install(|| {
            rows.par_chunks(run).zip(to.par_chunks_mut(run * row_size)).for_each(|(rows, to)| copy(rows, to));
        });
    }

    /// As [`Table::gather`], with the threads.
    ///
    /// # Errors
    /// See [`GatherError`].
    pub fn gather<F: Fabric, H: HostLocal>(
        &self,
        table: &Table<F, H>,
        rows: &[u64],
        to: &mut [u8],
    ) -> Result<(), GatherError> {
        table.verify(rows, to.len(), table.row_bytes())?;
        self.split(rows, table.row_bytes(), to, table.row_bytes(), |rows, to| table.copy(rows, to));
        table.still_there()
    }

    /// As [`Table::gather_bf16`], with the threads.
    ///
    /// # Errors
    /// See [`GatherError`].
    pub fn gather_bf16<F: Fabric, H: HostLocal>(
        &self,
        table: &Table<F, H>,
        rows: &[u64],
        to: &mut [u16],
    ) -> Result<(), GatherError> {
        table.verify(rows, to.len(), table.row_values())?;
        self.split(rows, table.row_bytes(), to, table.row_values(), |rows, to| table.decode(rows, to));
        table.still_there()
    }

    /// Runs a job in one of the threads. A gather of the job uses the others too.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.threads.spawn(job);
    }

    /// Starts a gather and returns at once. The buffer comes back with the rows. `clock` measures it.
    pub fn start<F: Fabric, H: HostLocal>(
        &self,
        table: &Arc<Table<F, H>>,
        rows: Vec<u64>,
        into: Output,
        clock: Clock,
    ) -> Pending {
        let (sender, receiver) = sync_channel(1);
        let (table, started_ns) = (Arc::clone(table), clock.now_ns());
        self.threads.spawn(move || {
            let begun_ns = clock.now_ns();
            let result = fill(&table, &rows, into);
            // A caller that no longer waits has dropped the receiver.
            let _ = sender.send(Arrived { result, took: clock.since(begun_ns), after: clock.since(started_ns) });
        });
        Pending { receiver, clock, started_ns }
    }
}

/// Runs in a thread of a gatherer, so rayon divides the list among all of them.
fn fill<F: Fabric, H: HostLocal>(table: &Table<F, H>, rows: &[u64], into: Output) -> Result<Output, GatherError> {
    let run = rows.len().div_ceil(rayon::current_num_threads()).max(BYTES_PER_THREAD / table.row_bytes()).max(1);
    let filled = match into {
        Output::Stored(mut to) => {
            to.resize(rows.len() * table.row_bytes(), 0);
            table.verify(rows, to.len(), table.row_bytes())?;
            let parts = rows.par_chunks(run).zip(to.par_chunks_mut(run * table.row_bytes()));
            parts.for_each(|(rows, to)| table.copy(rows, to));
            Output::Stored(to)
        }
        Output::Bf16(mut to) => {
            to.resize(rows.len() * table.row_values(), 0);
            table.verify(rows, to.len(), table.row_values())?;
            let parts = rows.par_chunks(run).zip(to.par_chunks_mut(run * table.row_values()));
            parts.for_each(|(rows, to)| table.decode(rows, to));
            Output::Bf16(to)
        }
    };
    table.still_there()?;
    Ok(filled)
}

struct Arrived {
    result: Result<Output, GatherError>,
    took: Duration,
    after: Duration,
}

/// A gather that runs.
pub struct Pending {
    receiver: Receiver<Arrived>,
    clock: Clock,
    started_ns: u64,
}

/// Rows that have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The rows.
    pub rows: Output,
    /// Time that the threads worked on them.
    pub took: Duration,
    /// Time from the start to the arrival, the wait for a thread included.
    pub after: Duration,
}

impl Pending {
    /// The rows, if they have arrived; `None` while they have not. Afterwards it is an error to ask
    /// again.
    ///
    /// # Errors
    /// See [`GatherError`].
    pub fn poll(&mut self) -> Option<Result<Rows, GatherError>> {
        match self.receiver.try_recv() {
            Ok(arrived) => Some(arrived.finish()),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(GatherError::Failed)),
        }
    }

    /// Waits for the rows until the deadline.
    ///
    /// # Errors
    /// See [`GatherError`].
    pub fn wait(&mut self, deadline: Deadline) -> Result<Rows, GatherError> {
        match deadline.receive(&self.receiver) {
            Ok(arrived) => arrived.finish(),
            Err(RecvTimeoutError::Timeout) => Err(GatherError::Late),
            Err(RecvTimeoutError::Disconnected) => Err(GatherError::Failed),
        }
    }

    /// Time since the gather was started.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.clock.since(self.started_ns)
    }
}

impl Arrived {
    fn finish(self) -> Result<Rows, GatherError> {
        let Self { result, took, after } = self;
        result.map(|rows| Rows { rows, took, after })
    }
}
