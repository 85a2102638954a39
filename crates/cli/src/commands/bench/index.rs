//! `cenote bench index`: lookups of prompts of 64 blocks that are all there.

use super::Setting;
use super::child::Child;
use super::party::{Job, PROMPT, Party, bare_memory, hash_of};
use super::regions::{Shape, fabrics, other_host};
use super::rows::{Row, Times, median};
use crate::failure::Failure;
use cenote_base::prng::Prng;
use cenote_mem::{Fabric, Flush, Mapped, Offset};
use std::hint::black_box;
use std::time::Instant;

const COHERENT_GOAL_NS: f64 = 100.0;
const FLUSHED_GOAL_NS: f64 = 1000.0;
const BARE_GOAL: f64 = 3.0;
const SCALING_GOAL: f64 = 1.8;
const FEW: u64 = 10_048;
/// Smallest block, which says how many descriptors there are; the blocks here are smaller still.
const SMALLEST: u64 = 256;

pub fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let rounds = setting.choose(20_000, 4_000);
    for (fabric, flush) in fabrics() {
        let region = setting.regions.make(&shape(flush, FEW))?;
        let mut owner = Party::join(&region)?;
        let mut reader = Child::start(&region, other_host(flush))?;
        owner.perform(&Job::Publish { block_bytes: 64, first: 0, count: FEW })?;
        let job = Job::Lookup { blocks: FEW, rounds, seed: 1 };
        let times = reader.perform(&job)?.remove(0);
        let goal = if flush.is_coherent() { COHERENT_GOAL_NS } else { FLUSHED_GOAL_NS };
        rows.push(Row::nanoseconds(format!("{fabric}: lookup per block, {FEW} entries"), &times).at_most(goal));
        rows.push(scaling(fabric, &mut owner, &mut reader, rounds)?);
    }
    for entries in [FEW, setting.choose(10_000_000, 1_000_000) / PROMPT * PROMPT] {
        rows.extend(beside_bare(setting, entries, rounds)?);
    }
    Ok(rows)
}

fn shape(flush: Flush, entries: u64) -> Shape {
    // Control areas take half as much again, and pages that nobody uses cost nothing.
    let bytes = entries * SMALLEST * 2 + (32 << 20);
    let chunk_bytes = if entries > 1 << 17 { 4 << 20 } else { 64 << 10 };
    Shape { chunk_bytes, min_block_bytes: SMALLEST, sparse: true, ..Shape::of(flush, bytes) }
}

/// Two processes at once against one alone, by medians: a busy machine's pauses are not the pool's.
fn scaling(fabric: &str, owner: &mut Party, reader: &mut Child, rounds: u64) -> Result<Row, Failure> {
    let (mine, theirs) = (Job::Lookup { blocks: FEW, rounds, seed: 2 }, Job::Lookup { blocks: FEW, rounds, seed: 3 });
    let alone = [median(&owner.perform(&mine)?[0]), median(&reader.perform(&theirs)?[0])];
    reader.begin(&theirs)?;
    let here = owner.perform(&mine)?.remove(0);
    let there = reader.finish()?.remove(0);
    let ratio = alone[0] / median(&here) + alone[1] / median(&there);
    let both: Times = here.into_iter().chain(there).collect();
    Ok(Row::nanoseconds(format!("{fabric}: lookup per block, 2 processes at once"), &both)
        .ratio_at_least(ratio, SCALING_GOAL))
}

fn beside_bare(setting: &Setting, entries: u64, rounds: u64) -> Result<[Row; 2], Failure> {
    let region = setting.regions.make(&shape(Flush::None, entries))?;
    let mut owner = Party::join(&region)?;
    let mut reader = Child::start(&region, 0)?;
    owner.perform(&Job::Publish { block_bytes: 64, first: 0, count: entries })?;
    let bare = BareTable::fill(entries)?;
    let bare = bare.probe(entries, rounds)?;
    let times = reader.perform(&Job::Lookup { blocks: entries, rounds, seed: 4 })?.remove(0);
    let ratio = median(&times) / median(&bare);
    Ok([
        Row::nanoseconds(format!("lookup per block, {entries} entries, / bare table"), &times)
            .ratio_at_most(ratio, BARE_GOAL),
        Row::nanoseconds(format!("bare table per block, {entries} entries"), &bare),
    ])
}

/// A hash table with nothing around it: as many buckets of a line as the index has, seven words in each.
struct BareTable {
    memory: Mapped,
    buckets: u64,
}

impl BareTable {
    fn fill(entries: u64) -> Result<Self, Failure> {
        let buckets = (entries * 2).div_ceil(7).next_power_of_two();
        let table = Self { memory: bare_memory(buckets * 64, Flush::None)?, buckets };
        for block in 0..entries {
            let [low, high] = hash_of(block).words();
            let free = table.places(low).find(|&at| table.memory.load(Offset::new(at)) == 0);
            table.memory.store(Offset::new(free.expect("half of it is free")), high);
        }
        Ok(table)
    }

    /// The words where an entry may be, the likeliest first.
    fn places(&self, low: u64) -> impl Iterator<Item = u64> + '_ {
        (0..self.buckets).flat_map(move |step| {
            let bucket = (low + step) & (self.buckets - 1);
            (0..7).map(move |entry| bucket * 64 + entry * 8)
        })
    }

    /// Nanoseconds per block of prompts, drawn as a party draws them; the lines of a prompt are asked for at once.
    fn probe(&self, entries: u64, rounds: u64) -> Result<Times, Failure> {
        let mut prng = Prng::new(5);
        let mut times = Times::new();
        for _ in 0..rounds {
            let first = prng.below(entries / PROMPT) * PROMPT;
            let hashes: Vec<[u64; 2]> = (first..first + PROMPT).map(|block| hash_of(block).words()).collect();
            let start = Instant::now();
            for [low, _] in &hashes {
                self.memory.prefetch((low & (self.buckets - 1)) * 64);
            }
            let found = hashes.iter().filter(|[low, high]| {
                let words = self.memory.load_line((low & (self.buckets - 1)) * 64);
                words[..7].contains(high)
                    || self.places(*low).skip(7).take(7 * 64).any(|at| self.memory.load(Offset::new(at)) == *high)
            });
            let found = black_box(found.count());
            times.push(start.elapsed().as_nanos() as f64 / PROMPT as f64);
            if found as u64 != PROMPT {
                return Err(Failure::new("the bare table lost an entry"));
            }
        }
        Ok(times)
    }
}
