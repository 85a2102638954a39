//! Rows of n-gram tables from a region, for the reference engine.

use crate::failure::Failure;
use crate::region::HostPool;
use cenote_base::{Clock, Deadline};
use cenote_engine::engram::{Fetch, FetchError, Fetched, RowBuffer, RowTables, TableShape, TablesDigest};
use cenote_mem::numa;
use cenote_tables::{Gatherer, HostTable, Opening, Output, Pending, Table, TableError};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads that fetch rows beside the computation. A step reads a few kilobytes of each token.
const THREADS: usize = 1;
/// Buffers that are kept for later fetches.
const BUFFERS_MAX: usize = 16;

/// The tables of one model in a region.
pub struct RegionTables {
    tables: Vec<Arc<HostTable>>,
    shapes: Vec<TableShape>,
    digest: [u8; 32],
    gatherer: Gatherer,
    buffers: Arc<Mutex<Vec<Vec<u16>>>>,
}

impl RegionTables {
    /// Opens the tables `name.L<layer>` of a region, in the order of `layers`, and verifies their
    /// bytes.
    pub fn open(pool: &HostPool, name: &str, layers: &[u64]) -> Result<Self, Failure> {
        let (mut tables, mut shapes, mut digest) = (Vec::new(), Vec::new(), TablesDigest::default());
        for &layer in layers {
            let table = Table::open(pool, &format!("{name}.L{layer}"), Opening::Verified).map_err(|error| {
                Failure::new(error.to_string()).hint("`cenote engram load --table NAME` brings a model's tables")
            })?;
            let stored = table.facts().format.parse().map_err(TableError::Format)?;
            let shape = TableShape { layer, rows: table.facts().rows, values: table.row_values(), stored };
            digest.table(&shape, &content(&table)?);
            shapes.push(shape);
            tables.push(table);
        }
        let fabric = Arc::clone(pool.fabric());
        let gatherer = Gatherer::new(THREADS, move || _ = numa::stay_near(fabric.mapping()))
            .map_err(|error| Failure::new(format!("threads that gather rows: {error}")))?;
        Ok(Self { tables, shapes, digest: digest.finish(), gatherer, buffers: Arc::default() })
    }
}

/// The digest of a table's rows.
fn content(table: &HostTable) -> Result<[u8; 32], Failure> {
    let mut bytes = [0; 32];
    match hex::decode_to_slice(table.digest(), &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(TableError::Record(table.name().to_owned()).into()),
    }
}

impl RowTables for RegionTables {
    fn layers(&self) -> &[TableShape] {
        &self.shapes
    }

    fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn start(&self, table: usize, rows: &[u64], into: RowBuffer) -> Box<dyn Fetch> {
        let buffer = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let pending = self.gatherer.start(&self.tables[table], rows.to_vec(), Output::Bf16(buffer), Clock::system());
        Box::new(RegionFetch { pending, into, arrived: None, buffers: Arc::clone(&self.buffers) })
    }
}

struct RegionFetch {
    pending: Pending,
    into: RowBuffer,
    arrived: Option<Result<cenote_tables::Rows, cenote_tables::GatherError>>,
    buffers: Arc<Mutex<Vec<Vec<u16>>>>,
}

impl Fetch for RegionFetch {
    fn poll(&mut self) -> bool {
        if self.arrived.is_none() {
            self.arrived = self.pending.poll();
        }
        self.arrived.is_some()
    }

    fn finish(mut self: Box<Self>, deadline: Deadline) -> Result<Fetched, FetchError> {
        let arrived = self.arrived.take().unwrap_or_else(|| self.pending.wait(deadline));
        let rows = arrived.map_err(|error| match error {
            cenote_tables::GatherError::Late => FetchError::Late,
            error => FetchError::Failed(error.to_string()),
        })?;
        let Output::Bf16(bits) = rows.rows else { unreachable!("the fetch asked for bf16") };
        self.into.set_bf16(0, &bits);
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < BUFFERS_MAX {
            buffers.push(bits);
        }
        drop(buffers);
        Ok(Fetched {
            rows: self.into,
            missing: Vec::new(),
            failure: None,
            ns: u64::try_from(rows.after.as_nanos()).unwrap_or(u64::MAX),
        })
    }
}
