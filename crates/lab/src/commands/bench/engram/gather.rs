//! Rows of a table in the region, beside the same rows of private memory with the same threads, and
//! beside the paper's Listing 1: a parallel loop of `memcpy`.

use super::super::Setting;
use super::super::regions::fabrics;
use super::super::rows::{Row, Times, median};
use super::super::worker::shuffled;
use super::pattern::{Pattern, check, stamp, table_in};
use super::{BATCHES, ROW_BYTES, ROWS_PER_TOKEN};
use cenote_base::prng::Prng;
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_mem::{numa, rows};
use cenote_tables::{Gatherer, HostTable, RowSource};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const GOAL: f64 = 0.95;

/// Formats, bytes and values of a row, and the batches with a goal.
const FORMATS: [(&str, u64); 3] = [("f16", ROW_BYTES), ("e4m3-ue8m0", 264), ("e4m3", 160)];

/// Threads near the table's memory.
pub fn gatherer(table: &HostTable) -> Result<Gatherer, Failure> {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let fabric = Arc::clone(table.pool().fabric());
    let near = move || _ = numa::stay_near(fabric.mapping());
    Gatherer::new(count, near).map_err(|error| Failure::new(format!("threads: {error}")))
}

/// Each round has memory of its own, because its speed depends on the pages that the kernel gives.
const ROUNDS: u64 = 2;

pub fn measure(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let bytes = setting.choose(1 << 30, 256 << 20);
    let mut all = Vec::new();
    for (fabric, flush) in fabrics() {
        for (format, row_bytes) in FORMATS {
            let pattern = Pattern::new(format, row_bytes, bytes / row_bytes);
            let mut times = BATCHES.map(|_| [Times::new(), Times::new(), Times::new()]);
            let mut decoded = [Times::new(), Times::new()];
            for round in 0..ROUNDS {
                // By turns the region's pages come before and after the private ones.
                let before = (round % 2 == 0).then(|| stamped(&pattern));
                let table = table_in(setting, flush, &pattern)?;
                // Each way has memory of its own: what two ways read would be in the caches more often.
                let private = [before.unwrap_or_else(|| stamped(&pattern)), stamped(&pattern)];
                let gatherer = gatherer(&table)?;
                let of = Ways { table: &table, private: &private, gatherer: &gatherer, row_bytes };
                for (tokens, times) in BATCHES.into_iter().zip(&mut times) {
                    of.measure(setting, tokens, round, times)?;
                }
                of.decode(setting, &mut decoded)?;
            }
            let size = ByteSize(bytes);
            for (tokens, times) in BATCHES.into_iter().zip(&times) {
                let name = format!("{fabric}: {tokens} tokens, {ROWS_PER_TOKEN} rows of {row_bytes} B of {size}");
                let ratio = |limit: &Times| median(limit) / median(&times[0]);
                all.push(Row::microseconds(&name, &times[0]).ratio_at_least(ratio(&times[1]), GOAL));
                all.push(Row::microseconds(format!("{name}: limit (private memory)"), &times[1]));
                let listing = format!("{name}: Listing 1 on private memory");
                all.push(Row::microseconds(listing, &times[2]).ratio(ratio(&times[2])));
            }
            let name =
                format!("{fabric}: {DECODED_TOKENS} tokens of {format}, decoded to bf16 on the way (over as stored)");
            all.push(Row::microseconds(name, &decoded[1]).ratio(median(&decoded[0]) / median(&decoded[1])));
        }
    }
    Ok(all)
}

/// The table's rows in private memory.
fn stamped(pattern: &Pattern) -> Vec<u8> {
    let mut private = vec![0; pattern.facts().bytes() as usize];
    let rows = private.chunks_exact_mut(pattern.facts().row_bytes as usize);
    (0..).zip(rows).for_each(|(row, to)| stamp(row, to));
    private
}

/// Tokens of a batch that is decoded.
const DECODED_TOKENS: u64 = 512;

struct Ways<'a> {
    table: &'a HostTable,
    private: &'a [Vec<u8>; 2],
    gatherer: &'a Gatherer,
    row_bytes: u64,
}

impl Ways<'_> {
    /// Nanoseconds of a batch by each way in turn, in random order: the table, private memory by the
    /// same code, private memory by Listing 1. Each call has rows of its own.
    fn measure(&self, setting: &Setting, tokens: u64, round: u64, times: &mut [Times; 3]) -> Result<(), Failure> {
        let count = tokens * ROWS_PER_TOKEN;
        let calls = (setting.choose(400_000, 50_000) / count).clamp(20, 2000);
        let mut prng = Prng::at(tokens, round);
        let mut to = vec![0; (count * self.row_bytes) as usize];
        for _ in 0..calls {
            for way in shuffled(&mut prng) {
                let rows: Vec<u64> = (0..count).map(|_| prng.below(self.table.facts().rows)).collect();
                let start = Instant::now();
                self.gather(way, &rows, black_box(&mut to))?;
                times[way].push(start.elapsed().as_nanos() as f64);
                check(&rows, self.row_bytes, &to)?;
            }
        }
        Ok(())
    }

    fn gather(&self, way: usize, numbers: &[u64], to: &mut [u8]) -> Result<(), Failure> {
        let bytes = self.row_bytes as usize;
        match way {
            0 => self.gatherer.gather(self.table, numbers, to)?,
            1 => self.gatherer.split(numbers, bytes, to, bytes, |numbers, to| {
                rows::copy_each(&self.private[0], numbers.len(), |at| numbers[at] * self.row_bytes, bytes, to);
            }),
            _ => self.gatherer.split(numbers, bytes, to, bytes, |numbers, to| {
                for (&row, to) in numbers.iter().zip(to.chunks_exact_mut(bytes)) {
                    to.copy_from_slice(&self.private[1][row as usize * bytes..][..bytes]);
                }
            }),
        }
        Ok(())
    }

    /// Nanoseconds of a batch as stored, and of one that is decoded on the way.
    fn decode(&self, setting: &Setting, [stored, decoded]: &mut [Times; 2]) -> Result<(), Failure> {
        let count = DECODED_TOKENS * ROWS_PER_TOKEN;
        let mut prng = Prng::new(7);
        let mut bytes = vec![0; count as usize * self.table.row_bytes()];
        let mut values = vec![0; count as usize * self.table.row_values()];
        for _ in 0..setting.choose(30, 10) {
            let mut rows = || -> Vec<u64> { (0..count).map(|_| prng.below(self.table.facts().rows)).collect() };
            let (one, other) = (rows(), rows());
            let start = Instant::now();
            self.gatherer.gather(self.table, &one, black_box(&mut bytes))?;
            stored.push(start.elapsed().as_nanos() as f64);
            let start = Instant::now();
            self.gatherer.gather_bf16(self.table, &other, black_box(&mut values))?;
            decoded.push(start.elapsed().as_nanos() as f64);
        }
        Ok(())
    }
}
