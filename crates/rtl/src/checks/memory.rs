//! Translation, DMA, and the memory front end against models in Rust.

use super::same;
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;
use std::collections::{BTreeMap, VecDeque};

const LIMIT: u64 = 100_000;

/// A page table in memory: entries by address.
struct Table {
    entries: BTreeMap<u64, u64>,
    frames: u64,
}

impl Table {
    const ROOT: u64 = 0x1000;

    const fn new() -> Self {
        Self { entries: BTreeMap::new(), frames: 0x1001 }
    }

    const fn index(address: u64, level: u32) -> u64 {
        address >> (30 - 9 * level) & 511
    }

    /// Maps the page of an address to a frame.
    fn map(&mut self, address: u64, frame: u64) {
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

    /// The translation; `None`: an entry is not valid.
    fn translate(&self, address: u64) -> Option<u64> {
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
            table: Table::new(),
            requests,
            answers,
            reads,
            entries,
            seen: 0,
            due: VecDeque::new(),
            latency: 3,
        }
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

/// The content of a line of memory: its address, repeated.
fn line(address: u64) -> Vec<u32> {
    (0..16).map(|word| (address as u32 ^ (address >> 32) as u32).wrapping_add(word * 0x0101_0101)).collect()
}

/// A gather unit with a memory that answers after a latency, in any order.
pub struct Reader {
    /// The module.
    pub bench: Bench,
    pieces: usize,
    asks: usize,
    answers: usize,
    output: usize,
    seen: usize,
    due: Vec<(u64, u32, u64)>,
    /// The most reads that were open at once.
    pub most_open: usize,
}

impl Reader {
    /// A reset unit.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("dma_read", seed);
        let pieces = bench.input("s", &["address", "beats", "last"]);
        let answers = bench.input("r", &["tag", "data"]);
        let asks = bench.output("a", &["address", "tag"]);
        let output = bench.output("m", &["data", "last"]);
        bench.reset();
        Self { bench, pieces, asks, answers, output, seen: 0, due: Vec::new(), most_open: 0 }
    }

    /// Reads pieces; `latency` gives the cycles of each answer.
    ///
    /// # Errors
    /// A beat differs, or the module breaks a rule.
    pub fn read(&mut self, pieces: &[(u64, u32)], mut latency: impl FnMut() -> u64) -> Result<u64, Failure> {
        let mut expected = Vec::new();
        for (at, (address, beats)) in pieces.iter().enumerate() {
            let last = at == pieces.len() - 1;
            self.bench.send(self.pieces, vec![*address as u32, (*address >> 32) as u32, *beats, u32::from(last)]);
            for beat in 0..*beats {
                let mut words = line(address + 64 * u64::from(beat));
                words.push(u32::from(last && beat == beats - 1));
                expected.push(words);
            }
        }
        let start = self.bench.cycle;
        while self.bench.got(self.output).len() < expected.len() {
            if self.bench.cycle - start > LIMIT {
                return Err("beats are missing".to_owned());
            }
            self.bench.step()?;
            while self.seen < self.bench.got(self.asks).len() {
                let ask = &self.bench.got(self.asks)[self.seen];
                let address = u64::from(ask[0]) | u64::from(ask[1]) << 32;
                self.due.push((self.bench.cycle + latency() - 1, ask[2], address));
                self.seen += 1;
            }
            self.most_open = self.most_open.max(self.due.len());
            let now = self.bench.cycle;
            let (ready, rest): (Vec<_>, Vec<_>) = self.due.drain(..).partition(|(when, ..)| *when <= now);
            self.due = rest;
            for (_, tag, address) in ready {
                self.bench.send(self.answers, [vec![tag], line(address)].concat());
            }
        }
        let cycles = self.bench.cycle - start;
        same("beats", &self.bench.take(self.output), &expected)?;
        Ok(cycles)
    }
}

/// Pages of several pieces, with answers in any order; at most sixteen reads are open.
///
/// # Errors
/// A beat differs.
pub fn dma_read(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut unit = Reader::new(seed);
    for _ in 0..6 * rounds {
        unit.bench.pace = Pace::any(&mut prng);
        let piece = |prng: &mut Prng| (prng.next_u64() & !63 & ((1 << 48) - 1), 1 + prng.below(12) as u32);
        let pieces: Vec<_> = (0..1 + prng.below(6)).map(|_| piece(&mut prng)).collect();
        let most = 1 + prng.below(60);
        let mut latencies = Prng::new(prng.next_u64());
        unit.read(&pieces, || 1 + latencies.below(most))?;
    }
    same("the most open reads", &(unit.most_open <= 16), &true)
}

/// Streams become pieces; at most sixteen writes are open.
///
/// # Errors
/// A write differs.
pub fn dma_write(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("dma_write", seed);
    let pieces = bench.input("p", &["address", "beats"]);
    let input = bench.input("s", &["data"]);
    let done = bench.input("b", &[]);
    let writes = bench.output("a", &["address", "data"]);
    bench.reset();
    let mut total = 0;
    for _ in 0..6 * rounds {
        bench.pace = Pace::any(&mut prng);
        let most = 1 + prng.below(60);
        let mut expected = Vec::new();
        for _ in 0..1 + prng.below(5) {
            let (address, beats) = (prng.next_u64() & !63, 1 + prng.below(12));
            bench.send(pieces, vec![address as u32, (address >> 32) as u32, beats as u32]);
            for beat in 0..beats {
                let (at, data) = (address.wrapping_add(64 * beat), line(prng.next_u64()));
                bench.send(input, data.clone());
                expected.push([vec![at as u32, (at >> 32) as u32], data].concat());
            }
        }
        let (mut due, mut seen, mut answered) = (Vec::new(), 0, 0);
        let start = bench.cycle;
        while answered < expected.len() || !bench.is_sent(done) {
            if bench.cycle - start > LIMIT {
                return Err("writes are missing".to_owned());
            }
            bench.step()?;
            for _ in seen..bench.got(writes).len() {
                due.push(bench.cycle + prng.below(most));
            }
            seen = bench.got(writes).len();
            if due.len() > 16 {
                return Err("more than sixteen writes are open".to_owned());
            }
            let before = due.len();
            due.retain(|when| *when > bench.cycle);
            for _ in due.len()..before {
                bench.send(done, Vec::new());
                answered += 1;
            }
        }
        same("writes", &bench.take(writes), &expected)?;
        total += expected.len() as u32;
        bench.step()?;
        let written = bench.model.pin("written");
        same("number of writes", &bench.model.get(written), &total)?;
    }
    Ok(())
}

/// Weights by eq. 5, in 1/256.
fn weight(alpha: u64, depth: u64, average: u64) -> u32 {
    let inverse = (1 << 20) / average;
    (((alpha * depth * 65536 + (256 - alpha) * inverse) >> 16) as u32).max(1)
}

/// Weights follow depths and service times.
///
/// # Errors
/// A weight differs.
pub fn wrr_weights(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("wrr_weights", seed);
    for port in ["alpha", "depths", "served"] {
        bench.set(port, 0);
    }
    bench.reset();
    let (cycles_pin, weights_pin) = (bench.model.pin("cycles"), bench.model.pin("weights"));
    // Averages with four fraction bits.
    let mut averages = [16_u64; 4];
    for _ in 0..4 * rounds {
        for _ in 0..prng.below(40) {
            let served = prng.below(16);
            let times: Vec<u64> = (0..4).map(|_| 1 + prng.below(400)).collect();
            bench.set("served", served as u32);
            bench
                .model
                .set_words(cycles_pin, &[(times[0] | times[1] << 16) as u32, (times[2] | times[3] << 16) as u32]);
            bench.step()?;
            for engine in 0..4 {
                if served >> engine & 1 == 1 {
                    averages[engine] = averages[engine] - (averages[engine] >> 4) + times[engine];
                }
            }
        }
        bench.set("served", 0);
        let alpha = [0, 1, 128, 256, prng.below(257)][prng.below(5) as usize];
        let depths: Vec<u64> = (0..4).map(|_| prng.below(256)).collect();
        bench.set("alpha", alpha as u32);
        bench.set("depths", depths.iter().rev().fold(0, |all, depth| all << 8 | *depth as u32));
        for _ in 0..2 * 4 * 22 {
            bench.step()?;
        }
        let mut words = [0; 3];
        bench.model.get_words(weights_pin, &mut words);
        let all = words.iter().rev().fold(0_u128, |all, word| all << 32 | u128::from(*word));
        for engine in 0..4 {
            let got = (all >> (17 * engine)) as u32 & 0x1_ffff;
            same(&format!("weight of engine {engine}"), &got, &weight(alpha, depths[engine], averages[engine]))?;
        }
    }
    Ok(())
}

/// Every request of four engines reaches its channel once, in the order of its engine, and busy
/// engines share a channel by their weights.
///
/// # Errors
/// A request is lost, late or unfair.
pub fn channel_front(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    for round in 0..rounds {
        let mut bench = Bench::new("channel_front", seed + round);
        let pins = ["weights", "s_valid", "s_ready", "s_address", "s_tag", "m_valid", "m_ready", "m_address", "m_tag"];
        let [weights, s_valid, s_ready, s_address, s_tag, m_valid, m_ready, m_address, m_tag] =
            pins.map(|name| bench.model.pin(name));
        let shares: Vec<u32> = (0..4).map(|_| 1 + prng.below(7) as u32).collect();
        let packed = shares.iter().rev().fold(0_u128, |all, share| all << 17 | u128::from(*share));
        bench.model.set_words(weights, &[packed as u32, (packed >> 32) as u32, (packed >> 64) as u32]);
        bench.model.set(s_valid, 0);
        bench.reset();
        // In odd rounds, all engines ask for one channel all the time.
        let fixed = round % 2 == 1;
        let mut queued: Vec<Option<(u64, u32)>> = vec![None; 4];
        let mut open: Vec<VecDeque<(u64, u32)>> = vec![VecDeque::new(); 4];
        let (mut served, mut number) = ([0_u32; 4], 0);
        for _ in 0..600 {
            for queue in &mut queued {
                if queue.is_none() && (fixed || prng.below(3) > 0) {
                    let address = if fixed { 0 } else { prng.next_u64() };
                    *queue = Some((address & !63, number % 16));
                    number += 1;
                }
            }
            let mut addresses = [0; 8];
            let (mut valid, mut tags) = (0, 0);
            for (engine, queue) in queued.iter().enumerate() {
                if let Some((address, tag)) = queue {
                    (addresses[2 * engine], addresses[2 * engine + 1]) = (*address as u32, (*address >> 32) as u32);
                    tags |= tag << (4 * engine);
                    valid |= 1 << engine;
                }
            }
            bench.model.set(s_valid, valid);
            bench.model.set(s_tag, tags);
            bench.model.set_words(s_address, &addresses);
            let ready = if fixed { 0xffff } else { prng.next_u64() as u32 & 0xffff };
            bench.model.set(m_ready, ready);
            bench.model.eval();
            let (offered, mut words, mut out_tags) = (bench.model.get(m_valid), [0; 32], [0; 3]);
            bench.model.get_words(m_address, &mut words);
            bench.model.get_words(m_tag, &mut out_tags);
            let out_tags = out_tags.iter().rev().fold(0_u128, |all, word| all << 32 | u128::from(*word));
            for channel in 0..16 {
                if (offered & ready) >> channel & 1 == 0 {
                    continue;
                }
                let address = u64::from(words[2 * channel]) | u64::from(words[2 * channel + 1]) << 32;
                let tag = (out_tags >> (6 * channel)) as u32 & 63;
                let engine = (tag >> 4) as usize;
                let lane = (address >> 6 ^ address >> 10 ^ address >> 14) & 15;
                same("channel of a request", &(channel as u64), &lane)?;
                let at = open[engine].iter().position(|request| *request == (address, tag & 15));
                let at = at.ok_or_else(|| format!("channel {channel} has a request that no engine sent"))?;
                open[engine].remove(at);
                served[engine] += 1;
            }
            let taken = bench.model.get(s_ready) & valid;
            bench.step_alone();
            for engine in (0..4).filter(|engine| taken >> engine & 1 == 1) {
                let request = queued[engine].take().expect("it was offered");
                open[engine].push_back(request);
            }
        }
        if fixed {
            let (total, weight): (u32, u32) = (served.iter().sum(), shares.iter().sum());
            same("grants in every cycle", &(total >= 598), &true)?;
            for engine in 0..4 {
                let fair = total * shares[engine] / weight;
                if served[engine].abs_diff(fair) > weight {
                    return Err(format!("engine {engine} of weights {shares:?} was served {served:?} times"));
                }
            }
        }
        let lost: usize = open.iter().map(VecDeque::len).sum();
        same("requests in the output registers", &(lost <= 16), &true)?;
    }
    Ok(())
}

/// Cycles of translations and of gathering, with memories of some latencies.
///
/// # Errors
/// A module breaks a rule of streams.
pub fn times() -> Result<Vec<(String, u64)>, Failure> {
    let mut unit = Translator::new(1);
    // Three reads of this latency are the walk of 15 cycles in SpecKV §3.5.1.
    unit.latency = 3;
    let page = 0x1234_5000;
    unit.table.map(page, 0x77);
    unit.ask(page, 0);
    unit.answers(1)?;
    unit.ask(page, 1);
    unit.ask(page, 2);
    unit.answers(3)?;
    let (asked, answered) = unit.times();
    let hit = answered[1] - asked[1];
    let mut all = vec![
        ("atu.hit_latency".to_owned(), hit),
        ("atu.hit_interval".to_owned(), answered[2] - answered[1]),
        ("atu.walk".to_owned(), answered[0] - asked[0] - hit),
    ];
    for latency in [8, 12, 64] {
        let mut unit = Reader::new(1);
        let cycles = unit.read(&[(0, 1024)], || latency)?;
        all.push((format!("dma_read.kilobeat_at_latency_{latency}"), cycles));
    }
    Ok(all)
}
