//! The rows of a step: started when it begins, awaited just before their layer.

use super::{Fetch, Fetched, PATIENCE, RowBuffer, Tables};
use crate::llama::SeqChunk;
use cenote_base::Clock;
use cenote_engram::Tokens;
use std::collections::BTreeMap;
use std::ops::Range;

/// Monotonic counters. A fetch brings the rows of one layer for a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Fetches.
    pub fetches: u64,
    /// Rows fetched.
    pub rows: u64,
    /// Bytes of these rows as stored.
    pub bytes: u64,
    /// Fetches that had not ended when their layer needed them.
    pub late: u64,
    /// Nanoseconds in which layers waited.
    pub stall_ns: u64,
    /// Nanoseconds of fetches that passed beside the computation.
    pub hidden_ns: u64,
    /// Nanoseconds between the start of a step and the need of a layer.
    pub window_ns: u64,
    /// Rows that were read from the model's own copy.
    pub own_rows: u64,
    /// Rows that could not be read at all.
    pub lost_rows: u64,
}

/// Fetches the rows of an engine's steps.
pub struct Rows {
    counts: RowCounts,
    /// Chunks of this step whose rows are incomplete, and why.
    failed: BTreeMap<usize, String>,
    /// One per table, until its layer takes it.
    under_way: Vec<Option<UnderWay>>,
    /// Rows of the batch that each chunk has, in tokens.
    chunks: Vec<Range<usize>>,
    clock: Clock,
    begin_ns: u64,
}

struct UnderWay {
    fetch: Box<dyn Fetch>,
    rows: Vec<u64>,
}

impl Rows {
    /// For an engine.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            counts: RowCounts::default(),
            failed: BTreeMap::new(),
            under_way: Vec::new(),
            chunks: Vec::new(),
            clock,
            begin_ns: 0,
        }
    }

    /// For a model without tables, or steps whose times do not matter.
    #[must_use]
    pub fn untimed() -> Self {
        Self::new(Clock::stopped())
    }

    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> RowCounts {
        self.counts
    }

    /// The chunks of the last step whose results are invalid, because rows could not be read.
    pub fn take_failed(&mut self) -> BTreeMap<usize, String> {
        std::mem::take(&mut self.failed)
    }

    /// Starts the fetches of a step.
    pub(crate) fn begin(&mut self, tables: &Tables, batch: &[SeqChunk<'_>]) {
        self.begin_ns = self.clock.now_ns();
        self.failed.clear();
        self.chunks.clear();
        let (addresses, columns) = (&tables.addresses, tables.addresses.columns());
        let mut all = Vec::new();
        let mut first = 0;
        for (at, chunk) in batch.iter().enumerate() {
            let needed = chunk.start_position.min(tables.reach());
            assert!(chunk.before.len() >= needed, "n-grams read {needed} tokens before a chunk");
            let before = &chunk.before[chunk.before.len() - needed..];
            let mut history = addresses.start();
            let end = all.len() + chunk.tokens.len() * columns;
            let computed = addresses
                .skip(&mut history, Tokens::from(before))
                .and_then(|()| addresses.rows(&mut history, Tokens::from(chunk.tokens), &mut all));
            if let Err(error) = computed {
                self.failed.insert(at, error.to_string());
                all.resize(end, 0);
            }
            self.chunks.push(first..first + chunk.tokens.len());
            first += chunk.tokens.len();
        }
        let of_table = tables.config().rows_per_token();
        self.under_way = (tables.source.layers().iter().enumerate())
            .map(|(table, shape)| {
                let mine = all.chunks_exact(of_table).skip(table).step_by(columns / of_table);
                let rows: Vec<u64> = mine.flatten().copied().collect();
                self.counts.fetches += 1;
                self.counts.rows += rows.len() as u64;
                self.counts.bytes += (rows.len() * shape.row_bytes().unwrap_or(0)) as u64;
                let fetch = tables.source.start(table, &rows, RowBuffer::new(rows.len(), shape.values));
                Some(UnderWay { fetch, rows })
            })
            .collect();
    }

    /// Waits for the rows of a table: `[token][head][value]`.
    pub(crate) fn arrive(&mut self, tables: &Tables, table: usize) -> RowBuffer {
        let needed_ns = self.clock.now_ns();
        let UnderWay { mut fetch, rows } = self.under_way[table].take().expect("a layer takes its rows once");
        self.counts.window_ns += needed_ns - self.begin_ns;
        let is_late = !fetch.poll();
        self.counts.late += u64::from(is_late);
        let shape = tables.source.layers()[table];
        let fetched = fetch.finish(self.clock.after(PATIENCE));
        let stall_ns = self.clock.now_ns() - needed_ns;
        let (mut buffer, missing, why) = match fetched {
            Ok(Fetched { rows: buffer, missing, failure, ns }) => {
                self.counts.hidden_ns += if is_late { ns.saturating_sub(stall_ns) } else { ns };
                let why =
                    failure.map_or_else(|| "some rows are damaged or gone".to_owned(), |failure| failure.to_string());
                (buffer, missing, why)
            }
            Err(error) => (RowBuffer::new(rows.len(), shape.values), (0..rows.len()).collect(), error.to_string()),
        };
        assert_eq!(buffer.len(), rows.len(), "a fetch returns the rows that it was asked for");
        for index in missing {
            self.replace(tables, (table, index), rows[index], &mut buffer, &why);
        }
        // Reading the own copy is waiting too.
        self.counts.stall_ns += self.clock.now_ns() - needed_ns;
        buffer
    }

    /// Reads a missing row from the model's own copy. Without one, the results of its chunk are
    /// invalid.
    fn replace(
        &mut self,
        tables: &Tables,
        (table, index): (usize, usize),
        row: u64,
        buffer: &mut RowBuffer,
        why: &str,
    ) {
        let why = match tables.own.as_ref().map(|own| own.read(table, row, index, buffer)) {
            Some(Ok(())) => {
                self.counts.own_rows += 1;
                return;
            }
            Some(Err(error)) => format!("{why}; the model's own copy: {error}"),
            None => why.to_owned(),
        };
        self.counts.lost_rows += 1;
        buffer.clear(index);
        let token = index / tables.config().rows_per_token();
        let chunk = self.chunks.partition_point(|range| range.end <= token);
        let layer = tables.source.layers()[table].layer;
        self.failed.entry(chunk).or_insert_with(|| format!("n-gram rows of layer {layer}: {why}"));
    }

    /// Counters by Prometheus name.
    pub(crate) fn stats(&self) -> Vec<(String, f64)> {
        let RowCounts { fetches, rows, bytes, late, stall_ns, hidden_ns, window_ns, own_rows, lost_rows } = self.counts;
        [
            ("engram_bytes_total", bytes),
            ("engram_fetches_total", fetches),
            ("engram_hidden_ns_total", hidden_ns),
            ("engram_late_fetches_total", late),
            ("engram_lost_rows_total", lost_rows),
            ("engram_own_rows_total", own_rows),
            ("engram_rows_total", rows),
            ("engram_stall_ns_total", stall_ns),
            ("engram_window_ns_total", window_ns),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64))
        .into()
    }
}
