//! Oaken's memory management against payloads of `cenote_codec::OakenWriter`.

use super::oaken::Case;
use super::streams::bytes_of;
use super::{same, same_bytes};
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;
use cenote_codec::{OakenWriter, Shape, Side};
use std::collections::{BTreeMap, BTreeSet};

const LIMIT: u64 = 50_000;
/// Parameters of the model (rtl/oaken/oaken_store.sv, and `PAGES` of src/tops.rs).
const TOKENS: usize = 64;
const BLOCKS: usize = 4;
const PAGE_LINES: usize = 64;
/// Channels of a block.
const BLOCK: usize = 64;

/// The unit with a memory of lines.
struct Store {
    bench: Bench,
    input: usize,
    free: usize,
    writes: usize,
    asks: usize,
    bursts: usize,
    lines: BTreeMap<u64, Vec<u32>>,
    pages_given: BTreeSet<u64>,
}

impl Store {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::new("oaken_store", seed);
        let (input, free) = (bench.input("s", &["data", "last"]), bench.input("f", &["page"]));
        let (writes, asks) = (bench.output("m", &["address", "data"]), bench.input("q", &["sparse", "head"]));
        let bursts = bench.output("p", &["address", "lines", "last"]);
        bench.set("clear", 0);
        bench.reset();
        Self { bench, input, free, writes, asks, bursts, lines: BTreeMap::new(), pages_given: BTreeSet::new() }
    }

    /// Adds free pages that no head had before.
    fn give_pages(&mut self, prng: &mut Prng, count: usize) {
        let enough = self.pages_given.len() + count;
        while self.pages_given.len() < enough {
            let page = prng.below(1 << 40);
            if self.pages_given.insert(page) {
                self.bench.send(self.free, vec![page as u32, (page >> 32) as u32]);
            }
        }
    }

    /// Stores writes, of which no line has two.
    fn settle(&mut self) -> Result<(), Failure> {
        for beat in self.bench.take(self.writes) {
            let address = u64::from(beat[0]) | u64::from(beat[1]) << 32;
            same("page of a write", &self.pages_given.contains(&(address >> 12)), &true)?;
            same("an earlier write", &self.lines.insert(address, beat[2..].to_vec()), &None)?;
        }
        Ok(())
    }

    /// Begins a new sequence.
    fn clear(&mut self) -> Result<(), Failure> {
        self.bench.set("clear", 1);
        self.bench.step()?;
        self.bench.set("clear", 0);
        self.lines.clear();
        Ok(())
    }

    fn get(&self, pin: &str) -> Vec<u32> {
        let pin = self.bench.model.pin(pin);
        let mut words = vec![0; pin.words()];
        self.bench.model.get_words(pin, &mut words);
        words
    }

    /// All bytes of a head: its bursts from memory, and its unfinished line.
    fn head(&mut self, sparse: bool, head: usize) -> Result<Vec<u8>, Failure> {
        self.bench.send(self.asks, vec![sparse.into(), head as u32]);
        let bursts = self.bursts;
        self.bench.run(LIMIT, |bench| bench.got(bursts).last().is_some_and(|burst| burst[3] == 1))?;
        let mut bytes = Vec::new();
        let got = self.bench.take(bursts);
        for (at, burst) in got.iter().enumerate() {
            // All pages but the last are read whole: that is what bursts are for.
            let lines = burst[2] as usize;
            if at < got.len() - 1 {
                same("lines of a burst", &lines, &PAGE_LINES)?;
            } else if at > 0 {
                same("lines of the last burst", &(1..=PAGE_LINES).contains(&lines), &true)?;
            }
            let start = u64::from(burst[0]) | u64::from(burst[1]) << 32;
            for line in 0..lines as u64 {
                let line = self.lines.get(&(start + 64 * line)).ok_or("a burst reads a line that was not written")?;
                bytes.extend(bytes_of(line));
            }
        }
        // The other side's head differs, and must not matter.
        let (side, other) = (usize::from(sparse), head ^ 1);
        self.bench.set("t_head", [head | other << 3, other | head << 3][side] as u32);
        self.bench.model.eval();
        let rest = (self.get("t_bytes")[0] >> (6 * side) & 63) as usize;
        bytes.extend_from_slice(&bytes_of(&self.get("t_data"))[64 * side..][..rest]);
        Ok(bytes)
    }
}

/// Tokens of a growing sequence, of which some are declined, as parts of a payload: after any token,
/// bursts of each head, bounds and numbers of outliers are those of the codec's payload so far. A
/// reset in the middle, or `clear`, starts a new sequence.
///
/// # Errors
/// A byte differs.
pub fn oaken_store(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut unit = Store::new(seed);
    // Each kind of sequence occurs.
    for round in 0..rounds.max(4) {
        unit.bench.pace = Pace::any(&mut prng);
        let dim = [64, 128, 256][prng.below(3) as usize];
        let shape = Shape { heads: 1 + prng.below(4) as u16, tokens: 1 + prng.below(63) as u16, dim };
        // With 16 to 21 outliers in a beat, both tables need their first page for the same beat. 32
        // tokens, without the bad one, fill a page of dense codes.
        let outliers = 16 + prng.below(6) as usize;
        let crowded = Shape { heads: 1 + prng.below(2) as u16, tokens: 33, dim: 256 };
        let case = if round % 4 == 2 {
            Case::of_outliers(&mut prng, crowded, outliers)
        } else {
            Case::of_shape(&mut prng, shape)
        };
        let (heads, tokens, dim) = case.shape();
        case.set_thresholds(&mut unit.bench);
        unit.bench.set("row_beats", (dim / 32) as u32);
        if round % 2 == 1 {
            // A sequence that a reset ends.
            unit.give_pages(&mut prng, 40);
            case.token_beats().into_iter().flatten().for_each(|beat| unit.bench.send(unit.input, beat));
            for _ in 0..prng.below(60 * tokens as u64) {
                unit.bench.step()?;
            }
            unit.bench.reset();
            unit.pages_given.clear();
            unit.lines.clear();
        }
        // Without free pages, both tables soon wait for one.
        let waits = prng.below(4000);
        let mut writer = OakenWriter::new(case.codec(), 0, Side::K, heads as u16, dim as u16);
        let mut declined = unit.get("declined")[0];
        for (token, beats) in case.token_beats().into_iter().enumerate() {
            declined += u32::from(writer.push(&case.token_values(token)).is_err());
            beats.into_iter().for_each(|beat| unit.bench.send(unit.input, beat));
            if token == tokens / 2 {
                for _ in 0..waits {
                    unit.bench.step()?;
                }
                unit.give_pages(&mut prng, 40);
            }
            if token < tokens / 2 {
                continue;
            }
            if prng.below(3) > 0 && token < tokens - 1 {
                continue;
            }
            let (counted, expected) = (unit.bench.model.pin("declined"), (u32::from(writer.tokens()), declined));
            let stored = unit.bench.model.pin("tokens");
            let done = |bench: &Bench| (bench.model.get(stored), bench.model.get(counted)) == expected;
            unit.bench.run(LIMIT, done)?;
            // Lines are on their way to memory.
            let idle = unit.bench.model.pin("idle");
            unit.bench.run(LIMIT, |bench| bench.model.get(idle) == 1)?;
            unit.settle()?;
            same("idle", &unit.get("idle")[0], &1)?;
            let mut payload = Vec::new();
            writer.payload(&mut payload);
            compare(&mut unit, &payload, heads, writer.tokens().into(), dim)?;
        }
        same("data lost", &unit.get("full")[0], &0)?;
        unit.clear()?;
        if round % 4 == 3 {
            too_many(&mut unit, &mut prng)?;
            unit.clear()?;
            same("data lost of a new sequence", &unit.get("full")[0], &0)?;
        }
    }
    Ok(())
}

/// A sequence with one sound token more than there is room for: the unit says that data was lost, and
/// keeps the tokens before it.
fn too_many(unit: &mut Store, prng: &mut Prng) -> Result<(), Failure> {
    // One of them is declined.
    let shape = Shape { heads: 1, tokens: TOKENS as u16 + 2, dim: 64 };
    let case = Case::of_outliers(prng, shape, 2);
    case.set_thresholds(&mut unit.bench);
    unit.bench.set("row_beats", 2);
    unit.give_pages(prng, 8);
    let mut writer = OakenWriter::new(case.codec(), 0, Side::K, 1, 64);
    let beats = case.token_beats();
    for (token, beats) in beats.into_iter().enumerate() {
        if token <= TOKENS {
            let _ = writer.push(&case.token_values(token));
        }
        same("data lost before the last token", &unit.get("full")[0], &0)?;
        beats.into_iter().for_each(|beat| unit.bench.send(unit.input, beat));
        let (input, idle) = (unit.input, unit.bench.model.pin("idle"));
        unit.bench.run(LIMIT, |bench| bench.is_sent(input) && bench.model.get(idle) == 1)?;
    }
    unit.settle()?;
    same("data lost with the last token", &unit.get("full")[0], &1)?;
    same("tokens", &(unit.get("tokens")[0], usize::from(writer.tokens())), &(TOKENS as u32, TOKENS))?;
    let mut payload = Vec::new();
    writer.payload(&mut payload);
    compare(unit, &payload, 1, TOKENS, 64)
}

/// Compares every part of a payload with what the unit has.
fn compare(unit: &mut Store, payload: &[u8], heads: usize, tokens: usize, dim: usize) -> Result<(), Failure> {
    let (bounds, rest) = payload.split_at(12 * tokens);
    let (dense, rest) = rest.split_at(heads * tokens * dim / 2);
    let (counts, entries) = rest.split_at(heads * tokens * dim / BLOCK);
    for (token, bounds) in bounds.chunks(12).enumerate() {
        unit.bench.set("b_at", token as u32);
        unit.bench.model.eval();
        same_bytes(&format!("bounds of token {token}"), &bytes_of(&unit.get("b_bounds")), bounds)?;
    }
    let mut entries_at = 0;
    for head in 0..heads {
        let counts = &counts[head * tokens * dim / BLOCK..][..tokens * dim / BLOCK];
        for (at, count) in counts.iter().enumerate() {
            let (token, block) = (at / (dim / BLOCK), at % (dim / BLOCK));
            unit.bench.set("n_at", ((head * TOKENS + token) * BLOCKS + block) as u32);
            unit.bench.model.eval();
            same(&format!("outliers of token {token}, head {head}"), &unit.get("n_outliers")[0], &u32::from(*count))?;
        }
        let size: usize = counts.iter().map(|count| usize::from(*count)).sum();
        let expected = &dense[head * tokens * dim / 2..][..tokens * dim / 2];
        same_bytes(&format!("dense codes of head {head}"), &unit.head(false, head)?, expected)?;
        same_bytes(&format!("entries of head {head}"), &unit.head(true, head)?, &entries[entries_at..][..size])?;
        entries_at += size;
    }
    Ok(())
}
