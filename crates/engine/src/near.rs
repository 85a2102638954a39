//! Host memory in front of the region: KV blocks and rows of n-gram tables that were read lately.
//!
//! A region may be far memory: each load of a shared block, and each fetch of rows, then costs the
//! link's time. This memory keeps copies of both. Its bytes are one budget, which
//! [`cenote_policy::budget`] divides by measured hit curves, with measured times of loads and fetches.
//! A copy equals what the region returned, so the division changes no token.
//!
//! A block is served from here only if the store still matches it, and only if it came back whole:
//! encoded blocks that a step decodes are not kept.

mod kept;
mod store;
mod tables;

use crate::engram::RowTables;
use cenote_base::{BlockHash, Clock};
use cenote_policy::budget::{Arbiter, Share, UNITS};
use cenote_store::PrefixStore;
use kept::Kept;
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
    clock: Arc<dyn Clock>,
}

/// Time of one entry, averaged exponentially. 0: not measured yet.
#[derive(Clone, Copy, Debug, Default)]
struct Pace(f64);

impl Pace {
    fn observe(&mut self, entries: usize, ns: u64) {
        if entries > 0 {
            let found = ns as f64 / entries as f64;
            self.0 = if self.0 == 0.0 { found } else { self.0 + GAIN * (found - self.0) };
        }
    }
}

struct State {
    arbiter: Arbiter<2>,
    blocks: Kept<BlockHash, u8>,
    rows: Kept<Row, u16>,
    block_ns: Pace,
    row_ns: Pace,
}

/// What the memory has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NearCounts {
    /// Bytes that blocks may have, and rows.
    pub split: [u64; 2],
    /// Bytes that blocks have, and rows.
    pub bytes: [u64; 2],
    /// Blocks and rows found here.
    pub hits: [u64; 2],
    /// Blocks and rows that were not.
    pub misses: [u64; 2],
    /// Changes of the division.
    pub moves: u64,
}

impl NearMemory {
    /// Memory of `bytes` bytes, half of it for each at first, for blocks of `block_bytes` bytes and
    /// rows of `row_values` values.
    #[must_use]
    pub fn new(bytes: u64, block_bytes: usize, row_values: usize, clock: Arc<dyn Clock>) -> Self {
        let blocks = Share { entry_bytes: kept::entry_bytes::<u8>(block_bytes), units: UNITS / 2 };
        let rows = Share { entry_bytes: kept::entry_bytes::<u16>(row_values), units: UNITS - UNITS / 2 };
        let arbiter = Arbiter::new(bytes, PERIOD_TOKENS, [blocks, rows]);
        let [kv, of_rows] = arbiter.split();
        let (blocks, rows) = (Kept::new(kv), Kept::new(of_rows));
        let state = State { arbiter, blocks, rows, block_ns: Pace::default(), row_ns: Pace::default() };
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
            split: state.arbiter.split(),
            bytes: [state.blocks.bytes(), state.rows.bytes()],
            hits: [state.blocks.hits(), state.rows.hits()],
            misses: [state.blocks.misses(), state.rows.misses()],
            moves: state.arbiter.moves(),
        }
    }

    /// Counters by Prometheus name.
    pub(crate) fn stats(&self) -> Vec<(String, f64)> {
        let counts = self.counts();
        [
            ("near_kv_bytes_max", counts.split[KV]),
            ("near_rows_bytes_max", counts.split[ROWS]),
            ("near_kv_bytes", counts.bytes[KV]),
            ("near_rows_bytes", counts.bytes[ROWS]),
            ("near_kv_hits_total", counts.hits[KV]),
            ("near_kv_misses_total", counts.misses[KV]),
            ("near_rows_hits_total", counts.hits[ROWS]),
            ("near_rows_misses_total", counts.misses[ROWS]),
            ("near_moves_total", counts.moves),
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
    /// So many tokens were loaded or computed.
    fn serve(&mut self, tokens: u64) {
        if let Some([kv, rows]) = self.arbiter.serve(tokens) {
            self.blocks.resize(kv);
            self.rows.resize(rows);
        }
    }
}
