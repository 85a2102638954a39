//! Host memory in front of the region: KV blocks and rows of n-gram tables that were read lately.
//!
//! A region may be far memory: each load of a shared block, and each fetch of rows, then costs the
//! link's time. This memory keeps copies of both. Its bytes are one budget, which
//! [`cenote_policy::budget`] divides by measured hit curves and by the measured time that a copy
//! saves. A copy equals what the region returned, so the division changes no token.
//!
//! A block is read here only if the store still matches it. It is kept only if it came back whole:
//! encoded blocks that a step decodes are not kept.

mod kept;
mod store;
mod tables;

use crate::engram::RowTables;
use cenote_base::{BlockHash, Clock};
use cenote_policy::budget::{Arbiter, Share, UNITS};
use cenote_store::PrefixStore;
use kept::{Kept, entry_bytes};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Caches, in the order of the arbiter's.
const KV: usize = 0;
const ROWS: usize = 1;
/// Tokens after which the arbiter decides.
const PERIOD_TOKENS: u64 = 4096;
/// Weight of a measurement in its average.
const GAIN: f64 = 0.125;

/// A row: its table and its number.
type Row = (usize, u64);

/// The memory of an engine. Clones share it.
#[derive(Clone)]
pub struct NearMemory {
    state: Arc<Mutex<State>>,
    clock: Clock,
}

/// Nanoseconds of one entry, averaged exponentially. `None`: not measured yet.
#[derive(Clone, Copy, Debug, Default)]
struct Pace(Option<f64>);

impl Pace {
    fn observe(&mut self, entries: usize, ns: u64) {
        if entries > 0 {
            let found = ns as f64 / entries as f64;
            self.0 = Some(self.0.map_or(found, |average| average + GAIN * (found - average)));
        }
    }
}

/// What an entry costs from the region and from here.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    far: Pace,
    near: Pace,
}

impl Cost {
    /// Nanoseconds that a copy saves; 0 before the first read from the region.
    fn saved_ns(self) -> u64 {
        (self.far.0.unwrap_or(0.0) - self.near.0.unwrap_or(0.0)).max(0.0) as u64
    }
}

struct State {
    arbiter: Arbiter<2>,
    blocks: Kept<BlockHash, u8>,
    rows: Kept<Row, u16>,
    costs: [Cost; 2],
}

/// What the memory has done, for KV blocks and for rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NearCounts {
    /// Most bytes.
    pub bytes_max: [u64; 2],
    /// Bytes in use.
    pub bytes: [u64; 2],
    /// Reads that found a copy.
    pub hits: [u64; 2],
    /// Reads that found none.
    pub misses: [u64; 2],
    /// Changes of the division.
    pub moves: u64,
}

impl NearMemory {
    /// Memory of `bytes` bytes for blocks of `block_bytes` bytes and rows of `row_values` values.
    /// Each has one half at first; without rows (`None`) blocks have all.
    #[must_use]
    pub fn new(bytes: u64, block_bytes: usize, row_values: Option<usize>, clock: Clock) -> Self {
        let of_rows = if row_values.is_some() { UNITS / 2 } else { 0 };
        let blocks = Share { entry_bytes: entry_bytes::<u8>(block_bytes), units: UNITS - of_rows };
        let rows = Share { entry_bytes: entry_bytes::<u16>(row_values.unwrap_or(0)), units: of_rows };
        let arbiter = Arbiter::new(bytes, PERIOD_TOKENS, [blocks, rows]);
        let [kv, of_rows] = arbiter.split();
        let (blocks, rows) = (Kept::new(kv), Kept::new(of_rows));
        let state = State { arbiter, blocks, rows, costs: [Cost::default(); 2] };
        Self { state: Arc::new(Mutex::new(state)), clock }
    }

    /// The store, with blocks kept here.
    #[must_use]
    pub fn store(&self, far: Box<dyn PrefixStore>, block_tokens: usize) -> Box<dyn PrefixStore> {
        Box::new(store::NearStore { far, near: self.clone(), block_tokens: block_tokens as u64 })
    }

    /// The tables, with rows kept here. `rows_per_token`: of one table.
    #[must_use]
    pub fn tables(&self, far: Arc<dyn RowTables>, rows_per_token: usize) -> Arc<dyn RowTables> {
        Arc::new(tables::NearTables { far, near: self.clone(), rows_per_token })
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> NearCounts {
        let state = self.state();
        NearCounts {
            bytes_max: state.arbiter.split(),
            bytes: [state.blocks.bytes, state.rows.bytes],
            hits: [state.blocks.hits, state.rows.hits],
            misses: [state.blocks.misses, state.rows.misses],
            moves: state.arbiter.moves(),
        }
    }

    /// Counters by Prometheus name.
    pub(crate) fn stats(&self) -> Vec<(String, f64)> {
        let NearCounts { bytes_max, bytes, hits, misses, moves } = self.counts();
        [
            ("near_kv_bytes", bytes[KV]),
            ("near_kv_bytes_max", bytes_max[KV]),
            ("near_kv_hits_total", hits[KV]),
            ("near_kv_misses_total", misses[KV]),
            ("near_moves_total", moves),
            ("near_rows_bytes", bytes[ROWS]),
            ("near_rows_bytes_max", bytes_max[ROWS]),
            ("near_rows_hits_total", hits[ROWS]),
            ("near_rows_misses_total", misses[ROWS]),
        ]
        .map(|(name, value)| (name.to_owned(), value as f64))
        .into()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every entry is whole after each statement, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// An entry of a cache was asked for, whether it is here or not.
    fn ask(&mut self, at: usize, key: u64) {
        self.arbiter.record(at, key, self.costs[at].saved_ns());
    }

    /// So many tokens were loaded or computed.
    fn serve(&mut self, tokens: u64) {
        if let Some([kv, rows]) = self.arbiter.serve(tokens) {
            self.blocks.resize(kv);
            self.rows.resize(rows);
        }
    }
}
