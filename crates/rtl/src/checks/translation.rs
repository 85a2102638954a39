//! The address translation unit against a model of its table and of its TLB.

use super::same;
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;
use std::collections::{BTreeMap, VecDeque};

const LIMIT: u64 = 100_000;

/// A page table in memory: entries by address.
#[derive(Clone)]
pub struct Table {
    /// Entries by address.
    pub entries: BTreeMap<u64, u64>,
    frames: u64,
}

impl Default for Table {
    /// An empty table.
    fn default() -> Self {
        Self { entries: BTreeMap::new(), frames: 0x1001 }
    }
}

impl Table {
    /// The frame of the first level.
    pub const ROOT: u64 = 0x1000;

    const fn index(address: u64, level: u32) -> u64 {
        address >> (30 - 9 * level) & 511
    }

    /// Maps the page of an address to a frame.
    pub fn map(&mut self, address: u64, frame: u64) {
        let mut table = Self::ROOT;
        for level in 0..2 {
            let at = table << 12 | Self::index(address, level) << 3;
            let fresh = self.frames;
            // The bits between the valid bit and the frame must not matter.
            let entry = *self.entries.entry(at).or_insert(fresh << 12 | 0xabe | 1);
            self.frames += 1;
            table = entry >> 12;
        }
        self.entries.insert(table << 12 | Self::index(address, 2) << 3, frame << 12 | 1);
    }

    /// The addresses of the entries that a walk reads, until one is not valid.
    #[must_use]
    pub fn walk(&self, address: u64) -> Vec<u64> {
        let (mut table, mut places) = (Self::ROOT, Vec::new());
        for level in 0..3 {
            let place = table << 12 | Self::index(address, level) << 3;
            places.push(place);
            match self.entries.get(&place).filter(|entry| *entry & 1 == 1) {
                Some(entry) => table = entry >> 12,
                None => break,
            }
        }
        places
    }

    /// The translation; `None`: an entry is not valid.
    #[must_use]
    pub fn translate(&self, address: u64) -> Option<u64> {
        let mut table = Self::ROOT;
        for level in 0..3 {
            let entry = self.entries.get(&(table << 12 | Self::index(address, level) << 3)).copied().unwrap_or(0);
            if entry & 1 == 0 {
                return None;
            }
            table = entry >> 12;
        }
        Some(table << 12 | address & 0xfff)
    }
}

/// A translation unit with a memory that answers a read after some cycles.
pub struct Translator {
    /// The module.
    pub bench: Bench,
    table: Table,
    requests: usize,
    answers: usize,
    reads: usize,
    entries: usize,
    seen: usize,
    /// Reads that are not due yet.
    due: VecDeque<(u64, u64)>,
    /// Cycles from a read to its answer.
    pub latency: u64,
}

impl Translator {
    /// A reset unit over a table of `pages` pages, with every second page mapped.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("atu", seed);
        let requests = bench.input("s", &["address", "tag"]);
        let answers = bench.output("m", &["address", "tag", "fault"]);
        let reads = bench.output("w", &["address"]);
        let entries = bench.input("r", &["entry"]);
        bench.set("flush", 0);
        let root = bench.model.pin("root");
        bench.model.set_words(root, &[Table::ROOT as u32, 0]);
        bench.reset();
        Self {
            bench,
            table: Table::default(),
            requests,
            answers,
            reads,
            entries,
            seen: 0,
            due: VecDeque::new(),
            latency: 3,
        }
    }

    /// Resets the unit, and forgets reads that were under way.
    fn reset(&mut self) {
        self.bench.reset();
        self.due.clear();
        self.seen = 0;
    }

    /// Maps the page of an address.
    pub fn map(&mut self, address: u64, frame: u64) {
        self.table.map(address, frame);
    }

    /// Asks for a translation, without waiting.
    pub fn ask(&mut self, address: u64, tag: u32) {
        self.bench.send(self.requests, vec![address as u32, (address >> 32) as u32, tag]);
    }

    /// One cycle of the unit and of the memory.
    ///
    /// # Errors
    /// The module breaks a rule of streams.
    pub fn step(&mut self) -> Result<(), Failure> {
        self.bench.step()?;
        while self.seen < self.bench.got(self.reads).len() {
            let beat = &self.bench.got(self.reads)[self.seen];
            let address = u64::from(beat[0]) | u64::from(beat[1]) << 32;
            self.due.push_back((self.bench.cycle + self.latency.saturating_sub(1), address));
            self.seen += 1;
        }
        while self.due.front().is_some_and(|(when, _)| *when <= self.bench.cycle) {
            let (_, address) = self.due.pop_front().expect("not empty");
            let entry = self.table.entries.get(&address).copied().unwrap_or(0);
            self.bench.send(self.entries, vec![entry as u32, (entry >> 32) as u32]);
        }
        Ok(())
    }

    /// Steps until `count` answers came; takes them with the cycles of their requests and answers.
    ///
    /// # Errors
    /// The module breaks a rule of streams, or does not answer.
    pub fn answers(&mut self, count: usize) -> Result<Vec<Vec<u32>>, Failure> {
        let start = self.bench.cycle;
        while self.bench.got(self.answers).len() < count {
            if self.bench.cycle - start > LIMIT {
                return Err("a translation is missing".to_owned());
            }
            self.step()?;
        }
        Ok(self.bench.got(self.answers).to_vec())
    }

    /// The cycles in which requests were taken and answers left.
    #[must_use]
    pub fn times(&self) -> (&[u64], &[u64]) {
        (self.bench.sent_at(self.requests), self.bench.got_at(self.answers))
    }
}

/// Translations of random addresses, mapped or not, in order; misses as a model of the TLB counts
/// them; after a flush, all entries are read again.
///
/// # Errors
/// A translation or the number of misses differs.
pub fn atu(seed: u64, rounds: u64) -> Result<(), Failure> {
    const ENTRIES: usize = 16;
    let mut prng = Prng::new(seed);
    for round in 0..rounds {
        let mut unit = Translator::new(seed + round);
        unit.bench.pace = Pace::any(&mut prng);
        unit.latency = 1 + prng.below(6);
        // Half of the pages lie side by side.
        let mut pages: Vec<u64> = (0..20).map(|_| prng.below(1 << 27) << 12).collect();
        pages.extend(pages.clone().iter().map(|page| page ^ 0x1000));
        for page in pages.iter().step_by(2) {
            let frame = prng.below(1 << 52);
            unit.table.map(*page, frame);
        }
        // A table that is not valid still has entries behind it.
        let hidden = Table::ROOT << 12 | Table::index(pages[0], 0) << 3;
        unit.table.entries.entry(hidden).and_modify(|entry| *entry &= !1);
        let mut known: VecDeque<u64> = VecDeque::new();
        let (mut asked, mut misses) = (Vec::new(), 0);
        for flush in 0..2 {
            // A few pages are frequent, so that hits and misses mix.
            let few = 1 + prng.below(39);
            for tag in 0..120 {
                let among = if prng.below(4) == 0 { 40 } else { few };
                let page = pages[prng.below(among) as usize];
                let address = page | prng.below(4096);
                unit.ask(address, tag);
                asked.push((address, tag));
                if !known.contains(&page) {
                    misses += 1;
                    if unit.table.translate(page).is_some() {
                        known.push_back(page);
                        if known.len() > ENTRIES {
                            known.pop_front();
                        }
                    }
                }
            }
            unit.answers(120 * (flush + 1))?;
            unit.bench.set("flush", 1);
            unit.step()?;
            unit.bench.set("flush", 0);
            known.clear();
        }
        for ((address, tag), answer) in asked.iter().zip(unit.answers(240)?) {
            same("tag", &answer[2], tag)?;
            match unit.table.translate(*address) {
                None => same(&format!("fault of {address:x}"), &answer[3], &1)?,
                Some(physical) => {
                    let got = u64::from(answer[0]) | u64::from(answer[1]) << 32;
                    same(&format!("translation of {address:x}"), &got, &physical)?;
                    same(&format!("fault of {address:x}"), &answer[3], &0)?;
                }
            }
        }
        let pin = unit.bench.model.pin("misses");
        same("misses", &unit.bench.model.get(pin), &misses)?;
    }
    Ok(())
}

/// Flushes while walks are under way: a request taken after a flush sees the new table, one before it
/// either table. A reset in the middle of a walk leaves nothing behind.
///
/// # Errors
/// A translation is of an old table.
pub fn atu_flush(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut in_walks = 0;
    for round in 0..2 * rounds {
        let mut unit = Translator::new(seed + round);
        unit.bench.pace = Pace::any(&mut prng);
        unit.latency = 1 + prng.below(6);
        let pages: Vec<u64> = (0..6).map(|_| prng.below(1 << 27) << 12).collect();
        for page in &pages {
            unit.table.map(*page, prng.below(1 << 52));
        }
        if prng.below(2) == 0 {
            (0..20).for_each(|tag| unit.ask(pages[prng.below(6) as usize], tag));
            for _ in 0..prng.below(40) {
                unit.step()?;
            }
            unit.reset();
        }
        // The table before each flush, and the cycle of the flush.
        let (mut tables, mut asked) = (vec![(0, unit.table.clone())], Vec::new());
        for flush in 0..8 {
            for tag in 0..12 {
                let address = pages[prng.below(6) as usize] | prng.below(4096);
                unit.ask(address, tag);
                asked.push(address);
            }
            for _ in 0..prng.below(60) {
                unit.step()?;
            }
            in_walks += u32::from(!unit.due.is_empty());
            for page in &pages {
                unit.table.map(*page, prng.below(1 << 52));
            }
            tables.push((unit.bench.cycle, unit.table.clone()));
            unit.bench.set("flush", 1);
            unit.step()?;
            unit.bench.set("flush", 0);
            if flush % 2 == 0 {
                unit.answers(asked.len())?;
            }
        }
        let answers = unit.answers(asked.len())?;
        let (taken, answered) = unit.times();
        for (at, (address, answer)) in asked.iter().zip(&answers).enumerate() {
            // Tables of a moment between the request and its answer.
            let first = tables.iter().rposition(|(since, _)| *since <= taken[at]).expect("the first is of cycle 0");
            let seen = tables[first..].iter().filter(|(since, _)| *since <= answered[at]);
            let got = u64::from(answer[0]) | u64::from(answer[1]) << 32;
            if !seen.into_iter().any(|(_, table)| table.translate(*address) == Some(got)) {
                return Err(format!("{address:x}, taken in cycle {}, is translated by an old table", taken[at]));
            }
        }
    }
    same("flushes during a walk", &(in_walks > 0), &true)
}
