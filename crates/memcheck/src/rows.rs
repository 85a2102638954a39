//! Gathers of rows of pinned blocks, while other processes publish, evict and die.

use crate::oracle::Checker;
use crate::scenario::{Actor, SimPool};
use cenote_base::prng::Prng;
use cenote_memmodel::{SimFabric, SimHost};
use cenote_pool::{Hit, PinnedRows, RowRef, RowShape, Strays};

/// Most blocks of a set.
const BLOCKS_MAX: u64 = 3;
/// Gathers of a set, and rows of each.
const ROUNDS: usize = 3;
const ROWS: u64 = 5;

type Set = PinnedRows<SimFabric, SimHost>;

impl Actor {
    /// Pins blocks, waits, and gathers rows of them. The bytes of each row that is no miss must be
    /// those that were published.
    pub fn gather_rows(&self, pool: &SimPool, prng: &mut Prng) {
        let wanted: Vec<usize> =
            (0..1 + prng.below(BLOCKS_MAX)).map(|_| prng.below(self.shape.universe as u64) as usize).collect();
        let found =
            wanted.into_iter().filter_map(|number| Some((number, pool.lookup(&[self.shape.hash(number)]).pop()?)));
        let (numbers, hits): (Vec<usize>, Vec<Hit>) = found.unzip();
        if hits.is_empty() {
            return;
        }
        let set = pool.pin_rows(&hits);
        let there: Vec<bool> = (0..set.len()).map(|at| set.is_there(at as u32)).collect();
        self.process.note(&format!("gathers of {numbers:?}: {hits:?}, there {there:?}"));
        for _ in 0..ROUNDS {
            if self.oracle.sleepers && prng.below(2) == 0 {
                // Until hosts that stall now have been declared dead and have gone on.
                self.idle(pool);
            }
            if !self.process.sleep([0, 4_000, 50_000][prng.below(3) as usize]) {
                return;
            }
            self.gather_once(&set, &numbers, &hits, prng);
            self.expect_no_damage(pool, &set, &numbers, &hits, &there);
        }
        self.oracle.notes().pins += 1;
    }

    /// Rows of two pieces, of which the last ends with the shortest payload.
    fn gather_once(&self, set: &Set, numbers: &[usize], hits: &[Hit], prng: &mut Prng) {
        let shortest = hits.iter().map(|hit| hit.length).min().unwrap_or(0);
        let bytes = 1 + prng.below(40);
        let shape = RowShape::strided(prng.below(9), 1 + prng.below(48), bytes).in_pieces(1 + prng.below(2), 11);
        let rows = shape.rows_in(shortest);
        if rows == 0 {
            return;
        }
        let row = |_| RowRef { block: prng.below(hits.len() as u64) as u32, row: prng.below(rows) as u32 };
        let list: Vec<RowRef> = (0..ROWS).map(row).collect();
        let mut to = vec![0; list.len() * shape.row_bytes() as usize];
        let gathered = match set.gather(&list, &shape, &mut to) {
            Ok(gathered) => gathered,
            Err(error) => return self.oracle.report(Checker::Blocks, format!("a list of the set is refused: {error}")),
        };
        self.process.note(&format!("gathered {list:?}, missed {:?}", gathered.missed));
        for (row, got) in list.iter().zip(to.chunks(shape.row_bytes() as usize)) {
            if gathered.missed.contains(&row.block) || !self.process.lives(self.process.number()) {
                continue;
            }
            let payload = self.shape.payload(numbers[row.block as usize]);
            let start = shape.offset + u64::from(row.row) * shape.stride;
            let pieces = (0..shape.pieces).map(|piece| (start + piece * shape.piece_stride) as usize);
            if !pieces.flat_map(|at| &payload[at..at + bytes as usize]).eq(got) {
                let fact = format!("a gather returned wrong bytes of block {}", numbers[row.block as usize]);
                self.oracle.report(Checker::Blocks, fact);
            }
        }
    }

    /// Blocks that were pinned and cannot be verified have lost bytes, unless a host that was
    /// declared dead wrote to them.
    fn expect_no_damage(&self, pool: &SimPool, set: &Set, numbers: &[usize], hits: &[Hit], there: &[bool]) {
        for (at, hit) in hits.iter().enumerate() {
            if !there[at] || set.is_there(at as u32) || !set.protects() {
                continue;
            }
            if pool.strays(hit) == Strays::Never && self.process.lives(self.process.number()) {
                let fact = format!("the checksum of pinned block {} does not match: {hit:?}", numbers[at]);
                self.oracle.report_unless_lossy(Checker::Blocks, fact);
            }
            self.oracle.notes().damaged.insert(numbers[at]);
        }
    }
}
