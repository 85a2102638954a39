//! Tables whose rows are kept in host memory when they were fetched.

use super::{NearMemory, ROWS};
use crate::engram::{Fetch, FetchError, Fetched, RowBuffer, RowTables, TableShape};
use cenote_base::Deadline;
use std::sync::Arc;

pub(super) struct NearTables {
    pub far: Arc<dyn RowTables>,
    pub near: NearMemory,
    pub rows_per_token: usize,
}

impl RowTables for NearTables {
    fn layers(&self) -> &[TableShape] {
        self.far.layers()
    }

    fn digest(&self) -> [u8; 32] {
        self.far.digest()
    }

    fn start(&self, table: usize, rows: &[u64], mut into: RowBuffer) -> Box<dyn Fetch> {
        let begin_ns = self.near.clock.now_ns();
        let mut state = self.near.state();
        let (mut places, mut missing) = (Vec::new(), Vec::new());
        for (place, &row) in rows.iter().enumerate() {
            // Tables have fewer than 2^48 rows, so keys of different tables differ.
            state.ask(ROWS, (table as u64) << 48 ^ row);
            match state.rows.get(&(table, row)) {
                Some(bits) => into.set_bf16(place, bits),
                None => {
                    places.push(place);
                    missing.push(row);
                }
            }
        }
        let asked_ns = self.near.clock.now_ns();
        state.costs[ROWS].near.observe(rows.len(), asked_ns - begin_ns);
        if table == 0 {
            state.serve((rows.len() / self.rows_per_token) as u64);
        }
        drop(state);
        let far = (!missing.is_empty()).then(|| {
            let room = RowBuffer::new(missing.len(), self.far.layers()[table].values);
            self.far.start(table, &missing, room)
        });
        let start_ns = self.near.clock.now_ns() - asked_ns;
        Box::new(NearFetch { far, near: self.near.clone(), table, places, missing, into, start_ns })
    }
}

struct NearFetch {
    /// The rows that are not kept. `None`: all are.
    far: Option<Box<dyn Fetch>>,
    near: NearMemory,
    table: usize,
    /// The places of these rows in `into`, and their numbers.
    places: Vec<usize>,
    missing: Vec<u64>,
    into: RowBuffer,
    /// Time of starting `far`.
    start_ns: u64,
}

impl Fetch for NearFetch {
    fn poll(&mut self) -> bool {
        self.far.as_mut().is_none_or(|far| far.poll())
    }

    fn finish(self: Box<Self>, deadline: Deadline) -> Result<Fetched, FetchError> {
        let Self { far, near, table, places, missing, mut into, start_ns } = *self;
        let Some(far) = far else { return Ok(Fetched { rows: into, missing: Vec::new(), failure: None, ns: 0 }) };
        let begin_ns = near.clock.now_ns();
        let fetched = match far.finish(deadline) {
            Ok(fetched) => fetched,
            // The rows that are kept are there all the same.
            Err(failure) => return Ok(Fetched { rows: into, missing: places, failure: Some(failure), ns: 0 }),
        };
        let waited_ns = near.clock.now_ns() - begin_ns;
        let mut state = near.state();
        // `ns` is 0 if the rows were copied by `finish`.
        state.costs[ROWS].far.observe(places.len(), fetched.ns.max(start_ns + waited_ns));
        let mut lost = fetched.missing.iter().map(|&index| places[index]).collect::<Vec<usize>>();
        lost.sort_unstable();
        let values = fetched.rows.values().len() / places.len();
        for ((&place, &row), decoded) in places.iter().zip(&missing).zip(fetched.rows.values().chunks_exact(values)) {
            if lost.binary_search(&place).is_ok() {
                continue;
            }
            // Rows are bf16 widened to f32, so the upper half is the whole value.
            let bits: Box<[u16]> = decoded.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
            into.set_bf16(place, &bits);
            state.rows.insert((table, row), bits);
        }
        Ok(Fetched { rows: into, missing: lost, failure: fetched.failure, ns: fetched.ns })
    }
}
