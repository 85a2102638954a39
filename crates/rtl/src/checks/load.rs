//! Oaken's engine at a memory: tokens of a growing sequence, and the page that a load gives.

use super::oaken::Case;
use super::streams::bytes_of;
use super::{same, same_bytes};
use crate::bench::{Bench, Failure, Pace};
use crate::cycles::{Measured, SHAPE};
use crate::kv::bell_page;
use cenote_base::prng::Prng;
use cenote_codec::{OakenWriter, Shape, Side};
use std::collections::BTreeMap;

const LIMIT: u64 = 50_000;

/// The engine with a memory that answers late and in any order.
struct Engine {
    bench: Bench,
    tokens: usize,
    free: usize,
    loads: usize,
    output: usize,
    asks: usize,
    answers: usize,
    lines: BTreeMap<u64, Vec<u32>>,
    seen: usize,
    /// Answers with the cycle from which on they may leave.
    due: Vec<(u64, u32, u64)>,
    /// The least cycles of an answer, and how many cycles more it may take, and one.
    latency_min: u64,
    latency_max: u64,
    /// Pages given so far, which are numbered.
    pages: u64,
}

impl Engine {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::new("oaken_engine", seed);
        let (tokens, free) = (bench.input("s", &["data", "last"]), bench.input("f", &["page"]));
        let (loads, output) = (bench.input("l", &[]), bench.output("m", &["data", "last", "error"]));
        let asks = bench.output("h", &["address", "write", "data", "tag"]);
        let answers = bench.input("g", &["tag", "data"]);
        bench.set("clear", 0);
        bench.reset();
        let (lines, due) = (BTreeMap::new(), Vec::new());
        Self {
            bench,
            tokens,
            free,
            loads,
            output,
            asks,
            answers,
            lines,
            seen: 0,
            due,
            latency_min: 0,
            latency_max: 1,
            pages: 7,
        }
    }

    /// Resets the engine and the answers of the memory; lines stay.
    fn reset(&mut self) {
        self.bench.reset();
        self.due.clear();
        self.seen = 0;
    }

    fn give_pages(&mut self, count: u64) {
        for _ in 0..count {
            self.pages += 1;
            self.bench.send(self.free, vec![self.pages as u32, 0]);
        }
    }

    /// One cycle of the engine and of the memory. A line that was never written has no answer, so a read
    /// of it fails.
    fn step(&mut self, prng: &mut Prng) -> Result<(), Failure> {
        self.bench.step()?;
        while self.seen < self.bench.got(self.asks).len() {
            let ask = &self.bench.got(self.asks)[self.seen];
            let address = u64::from(ask[0]) | u64::from(ask[1]) << 32;
            if ask[2] == 1 {
                // A write is in memory when it is answered, not before.
                self.lines.insert(address, Vec::new());
            }
            let when = self.bench.cycle + self.latency_min + prng.below(self.latency_max);
            self.due.push((when, self.seen as u32, address));
            self.seen += 1;
        }
        let now = self.bench.cycle;
        let (ready, rest): (Vec<_>, Vec<_>) = self.due.drain(..).partition(|(when, ..)| *when <= now);
        self.due = rest;
        for (_, number, address) in ready {
            let ask = self.bench.got(self.asks)[number as usize].clone();
            if ask[2] == 1 {
                self.lines.insert(address, ask[3..19].to_vec());
            }
            let line = self.lines.get(&address).filter(|line| !line.is_empty());
            let line = line.ok_or_else(|| format!("line {address:x} is read before it was written"))?;
            self.bench.send(self.answers, [&[ask[19]], &line[..]].concat());
        }
        Ok(())
    }

    fn run(&mut self, prng: &mut Prng, done: impl Fn(&Bench) -> bool) -> Result<(), Failure> {
        let start = self.bench.cycle;
        while !done(&self.bench) {
            if self.bench.cycle - start > LIMIT {
                return Err(format!("no end within {LIMIT} cycles"));
            }
            self.step(prng)?;
        }
        Ok(())
    }

    /// The page of a load, without its error mark.
    fn load(&mut self, prng: &mut Prng) -> Result<Vec<u8>, Failure> {
        self.bench.send(self.loads, Vec::new());
        let output = self.output;
        self.run(prng, |bench| bench.got(output).last().is_some_and(|beat| beat[16] == 1))?;
        // Only times of this stream are forgotten; requests are still to be answered.
        let beats = self.bench.take(output);
        same("error", &beats[beats.len() - 1][17], &0)?;
        Ok(beats.iter().flat_map(|beat| bytes_of(&beat[..16])).collect())
    }

    fn set(&mut self, case: &Case) {
        let (heads, _, dim) = case.shape();
        case.set_thresholds(&mut self.bench);
        self.bench.set("row_beats", (dim / 32) as u32);
        self.bench.set("heads", heads as u32);
    }
}

/// A load waits for a line that waits for a free page.
fn waits_for_a_page(engine: &mut Engine, prng: &mut Prng) -> Result<(), Failure> {
    // A line of dense codes, and no outliers.
    let case = Case::of_outliers(prng, Shape { heads: 1, tokens: 2, dim: 128 }, 0);
    engine.set(&case);
    let beats = case.token_beats().swap_remove(0);
    beats.into_iter().for_each(|beat| engine.bench.send(engine.tokens, beat));
    engine.bench.send(engine.loads, Vec::new());
    for _ in 0..300 {
        engine.step(prng)?;
    }
    let (output, loads) = (engine.output, engine.loads);
    same("a load without its line", &(engine.bench.got(output).len(), engine.bench.is_sent(loads)), &(0, false))?;
    engine.give_pages(24);
    engine.run(prng, |bench| bench.got(output).last().is_some_and(|beat| beat[16] == 1))?;
    engine.reset();
    Ok(())
}

/// After any token, a load gives the page that the Rust codec decodes from the tokens so far. A load is
/// asked for while tokens are still inside. A reset in the middle of a load, also of the memory, or
/// `clear`, starts a new sequence.
///
/// # Errors
/// A bit differs, or a line is read before it was written.
pub fn oaken_engine(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut engine = Engine::new(seed);
    let mut in_loads = 0;
    waits_for_a_page(&mut engine, &mut prng)?;
    // Each kind of sequence occurs.
    for round in 0..rounds.max(4) {
        engine.bench.pace = Pace::any(&mut prng);
        // A load must wait for late answers of writes.
        engine.latency_max = if round % 4 == 0 { 600 } else { 1 + prng.below(40) };
        // Every fourth sequence has dense codes of more than a page in each head, so two bursts.
        let (heads, dim) = (1 + prng.below(4) as u16, [64, 128, 256][prng.below(3) as usize]);
        let case = if round % 4 == 2 {
            let crowded = Shape { heads: 2, tokens: 34, dim: 256 };
            Case::of_outliers(&mut prng, crowded, 14)
        } else if round % 4 == 0 {
            // Each head ends with half a line of dense codes, because one token is declined.
            let even = Shape { heads: 3, tokens: 4 + 2 * prng.below(4) as u16, dim: 64 };
            Case::of_outliers(&mut prng, even, 4)
        } else {
            let shape = Shape { heads, tokens: 1 + prng.below(12) as u16, dim };
            Case::of_shape(&mut prng, shape)
        };
        let (heads, tokens, dim) = case.shape();
        engine.set(&case);
        engine.give_pages(24);
        if round % 2 == 1 {
            case.token_beats().into_iter().flatten().for_each(|beat| engine.bench.send(engine.tokens, beat));
            engine.bench.send(engine.loads, Vec::new());
            let (output, some) = (engine.output, prng.below(2));
            // Sequences without a sound token wait for one.
            for _ in 0..400 + 200 * tokens as u64 {
                engine.step(&mut prng)?;
                if engine.bench.got(output).len() as u64 > some {
                    break;
                }
            }
            in_loads += u32::from(!engine.bench.got(output).is_empty());
            engine.reset();
            engine.give_pages(24);
        }
        let mut writer = OakenWriter::new(case.codec(), 0, Side::K, heads as u16, dim as u16);
        for (token, beats) in case.token_beats().into_iter().enumerate() {
            // A token that the writer declines is not stored.
            let _ = writer.push(&case.token_values(token));
            beats.into_iter().for_each(|beat| engine.bench.send(engine.tokens, beat));
            if writer.tokens() == 0 || (prng.below(8) > 0 && token < tokens - 1) {
                continue;
            }
            // A load sees all tokens that were taken before it.
            let input = engine.tokens;
            engine.run(&mut prng, |bench| bench.is_sent(input))?;
            let page = engine.load(&mut prng)?;
            let mut payload = Vec::new();
            writer.payload(&mut payload);
            let expected = case.decoded_tokens(&payload, writer.tokens()).ok_or("the codec refuses its own payload")?;
            same_bytes("a loaded page", &page, &expected)?;
        }
        let pin = engine.bench.model.pin("full");
        same("data lost", &engine.bench.model.get(pin), &0)?;
        let input = engine.tokens;
        engine.run(&mut prng, |bench| bench.is_sent(input))?;
        for _ in 0..400 {
            engine.step(&mut prng)?;
        }
        engine.bench.set("clear", 1);
        engine.step(&mut prng)?;
        engine.bench.set("clear", 0);
    }
    same("resets in a load", &(in_loads > 0), &true)
}

/// Latency of the memory of measured loads.
const LATENCY: u64 = 12;

/// Cycles of pages of [`SHAPE`] at a memory: from page to page when tokens are stored, and from a load's
/// request to its page's last beat.
///
/// # Errors
/// The engine breaks a rule of streams.
pub fn times() -> Result<Measured, Failure> {
    let mut prng = Prng::new(0xc1c);
    let mut engine = Engine::new(1);
    engine.latency_min = LATENCY;
    engine.give_pages(24);
    let pages = 4;
    let case = Case::measured(&bell_page(&mut prng, Shape { tokens: pages * SHAPE.tokens, ..SHAPE }));
    engine.set(&case);
    case.token_beats().into_iter().flatten().for_each(|beat| engine.bench.send(engine.tokens, beat));
    let input = engine.tokens;
    engine.run(&mut prng, |bench| bench.is_sent(input))?;
    let taken = engine.bench.sent_at(input);
    let interval = (taken[taken.len() - 1] - taken[0] + 1).div_ceil(u64::from(pages));

    engine.reset();
    engine.give_pages(24);
    let case = Case::measured(&bell_page(&mut prng, SHAPE));
    case.token_beats().into_iter().flatten().for_each(|beat| engine.bench.send(engine.tokens, beat));
    engine.run(&mut prng, |bench| bench.is_sent(input))?;
    // All lines are in memory before the load is asked for.
    for _ in 0..200 {
        engine.step(&mut prng)?;
    }
    engine.bench.send(engine.loads, Vec::new());
    let output = engine.output;
    engine.run(&mut prng, |bench| bench.got(output).last().is_some_and(|beat| beat[16] == 1))?;
    let (asked, given) = (engine.bench.sent_at(engine.loads)[0], engine.bench.got_at(output));
    let load = given[given.len() - 1] - asked;
    Ok(vec![
        ("oaken_engine.store.page_interval".to_owned(), interval),
        (format!("oaken_engine.load_at_latency_{LATENCY}"), load),
    ])
}
