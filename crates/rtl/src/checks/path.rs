//! The way between frames and memory: lists, translation, DMA and sixteen channels.

use super::memory::weight;
use super::same;
use super::translation::Table;
use crate::bench::{Bench, Failure, Pace};
use crate::model::Pin;
use cenote_base::prng::Prng;
use std::collections::BTreeMap;

const LIMIT: u64 = 50_000;
const CHANNELS: usize = 16;
const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// An answer: its tag and its line.
type Answer = (u32, Vec<u32>);

/// Sixteen channels of memory that answer late and in any order.
pub struct Channels {
    /// Lines by address.
    pub lines: BTreeMap<u64, Vec<u32>>,
    /// Answers with the cycle from which on they may leave.
    due: Vec<Vec<(u64, Answer)>>,
    offered: Vec<Option<Answer>>,
    latency_max: u64,
    /// Every answer takes the longest latency, and nothing stalls.
    is_steady: bool,
    prng: Prng,
    inputs: [Pin; 4],
    outputs: [Pin; 6],
}

/// Bits of a channel's tag.
const TAG_BITS: usize = 8;

fn tag_of(words: &[u32], channel: usize) -> u32 {
    words[channel * TAG_BITS / 32] >> (channel * TAG_BITS % 32) & 255
}

impl Channels {
    /// Channels behind the ports of a model that begin with `ask` and `answer`.
    #[must_use]
    pub fn new(bench: &mut Bench, [ask, answer]: [&str; 2], seed: u64, latency_max: u64) -> Self {
        let (due, offered) = (vec![Vec::new(); CHANNELS], vec![None; CHANNELS]);
        let pin = |prefix: &str, name: &str| bench.model.pin(&format!("{prefix}_{name}"));
        let inputs = [pin(ask, "ready"), pin(answer, "valid"), pin(answer, "tag"), pin(answer, "data")];
        let of_asks = ["valid", "write", "address", "data", "tag"].map(|name| pin(ask, name));
        let [valid, write, address, data, tag] = of_asks;
        let outputs = [valid, write, address, data, tag, pin(answer, "ready")];
        let mut channels = Self {
            lines: BTreeMap::new(),
            due,
            offered,
            latency_max,
            is_steady: false,
            prng: Prng::new(seed),
            inputs,
            outputs,
        };
        channels.forget(bench);
        channels
    }

    /// Forgets all answers that are under way, as a reset of the memory does.
    pub fn forget(&mut self, bench: &mut Bench) {
        self.due.iter_mut().for_each(Vec::clear);
        self.offered.fill(None);
        bench.model.set(self.inputs[0], 0);
        bench.model.set(self.inputs[1], 0);
    }

    /// Answers that are under way.
    #[must_use]
    pub fn open(&self) -> usize {
        self.due.iter().map(Vec::len).sum::<usize>() + self.offered.iter().flatten().count()
    }

    /// A line; one that was never written has words of its address.
    #[must_use]
    pub fn line(&self, address: u64) -> Vec<u32> {
        let fresh = || (0..16).map(|word| (address as u32).rotate_left(7).wrapping_mul(word + 3)).collect();
        self.lines.get(&address).cloned().unwrap_or_else(fresh)
    }

    /// Stores a page table that translates `pages`.
    pub fn store_table(&mut self, table: &Table, pages: impl Iterator<Item = u64>) {
        for (address, entry) in &table.entries {
            let at = address & !(LINE_BYTES - 1);
            let line = self.lines.entry(at).or_insert_with(|| vec![0; 16]);
            let word = ((address - at) / 4) as usize;
            (line[word], line[word + 1]) = (*entry as u32, (*entry >> 32) as u32);
        }
        // Lines of the table that were never written have no entries.
        for page in pages {
            for address in table.walk(page) {
                self.lines.entry(address & !(LINE_BYTES - 1)).or_insert_with(|| vec![0; 16]);
            }
        }
    }

    /// One cycle of the unit and of the channels.
    ///
    /// # Errors
    /// The unit breaks a rule of streams, or uses a wrong channel.
    pub fn step(&mut self, bench: &mut Bench) -> Result<(), Failure> {
        let Self { prng, due, offered, inputs, outputs, is_steady, .. } = self;
        let now = bench.cycle;
        for (offered, due) in offered.iter_mut().zip(due) {
            let ready: Vec<usize> = (0..due.len()).filter(|at| due[*at].0 <= now).collect();
            if offered.is_none() && !ready.is_empty() && (*is_steady || prng.below(4) > 0) {
                let first = if *is_steady { 0 } else { prng.below(ready.len() as u64) as usize };
                *offered = Some(due.remove(ready[first]).1);
            }
        }
        let takes = if *is_steady { 0xffff } else { (prng.next_u64() | prng.next_u64()) as u32 & 0xffff };
        let (mut valid, mut tags, mut data) = (0, vec![0; CHANNELS * TAG_BITS / 32], vec![0xdead_dead; CHANNELS * 16]);
        for (channel, offered) in offered.iter().enumerate() {
            let tag = offered.as_ref().map_or_else(|| prng.below(256) as u32, |(tag, _)| *tag);
            tags[channel * TAG_BITS / 32] |= tag << (channel * TAG_BITS % 32);
            if let Some((_, line)) = offered {
                valid |= 1 << channel;
                data[16 * channel..][..16].copy_from_slice(line);
            }
        }
        bench.model.set(inputs[0], takes);
        bench.model.set(inputs[1], valid);
        bench.model.set_words(inputs[2], &tags);
        bench.model.set_words(inputs[3], &data);
        let mut values: Vec<Vec<u32>> = outputs.iter().map(|pin| vec![0; pin.words()]).collect();
        bench
            .step_with(|model| outputs.iter().zip(&mut values).for_each(|(pin, words)| model.get_words(*pin, words)))?;
        for channel in 0..CHANNELS {
            if (valid & values[5][0]) >> channel & 1 == 1 {
                self.offered[channel] = None;
            }
            if (values[0][0] & takes) >> channel & 1 == 0 {
                continue;
            }
            let address = u64::from(values[2][2 * channel]) | u64::from(values[2][2 * channel + 1]) << 32;
            let address = address & !(LINE_BYTES - 1);
            same("channel", &(((address >> 6 ^ address >> 10 ^ address >> 14) & 15) as usize), &channel)?;
            if values[1][0] >> channel & 1 == 1 {
                self.lines.insert(address, values[3][16 * channel..][..16].to_vec());
            }
            let latency = if self.is_steady { self.latency_max } else { 1 + self.prng.below(self.latency_max) };
            let when = now + latency;
            let line = self.line(address);
            self.due[channel].push((when, (tag_of(&values[4], channel), line)));
        }
        Ok(())
    }
}

/// A frame with its list: virtual addresses and numbers of beats.
struct Job {
    list: Vec<(u64, u64)>,
    beats: Vec<Vec<u32>>,
    last_bytes: u32,
}

impl Job {
    /// A random frame, whose list has room for it or more.
    fn any(prng: &mut Prng, free: &mut u64) -> Self {
        // A long frame has more parts than the translation's queues hold.
        let count = if prng.below(3) == 0 { 600 + prng.below(300) } else { 1 + prng.below(150) };
        let (mut list, mut room) = (Vec::new(), 0);
        while room < count || prng.below(4) == 0 {
            // Pieces do not overlap, and begin anywhere in a page.
            let (skipped, beats) = (LINE_BYTES * prng.below(90), 1 + prng.below(100));
            list.push((*free + skipped, beats));
            *free += skipped + LINE_BYTES * beats;
            room += beats;
        }
        let beats = (0..count).map(|_| (0..16).map(|_| prng.next_u64() as u32).collect()).collect();
        Self { list, beats, last_bytes: 1 + prng.below(64) as u32 }
    }

    /// The physical address of each beat; `None`: it has no translation.
    fn places(&self, table: &Table) -> Vec<Option<u64>> {
        let addresses = self.list.iter().flat_map(|&(start, beats)| (0..beats).map(move |at| start + LINE_BYTES * at));
        addresses.take(self.beats.len()).map(|address| table.translate(address)).collect()
    }

    fn bytes(&self) -> u32 {
        64 * (self.beats.len() as u32 - 1) + self.last_bytes
    }
}

/// A unit with its streams, and the weight that eq. 5 gives the other engine.
struct Path {
    bench: Bench,
    channels: Channels,
    pieces: usize,
    input: usize,
    records: usize,
    wanted: usize,
    output: usize,
    host: usize,
    answers: usize,
    /// The other engine's average, with four fraction bits.
    average: u64,
}

impl Path {
    fn new(seed: u64, prng: &mut Prng) -> Self {
        let mut bench = Bench::new("memory_path", seed);
        let pieces = bench.input("p", &["address", "beats", "last"]);
        let input = bench.input("s", &["data", "count", "last"]);
        let records = bench.output("d", &["bytes", "bad"]);
        let wanted = bench.input("q", &["address", "beats", "bytes", "last"]);
        let output = bench.output("y", &["data", "count", "last", "fault"]);
        let host = bench.input("h", &["address", "write", "data", "tag"]);
        let answers = bench.output("g", &["tag", "data"]);
        let channels = Channels::new(&mut bench, ["m", "r"], seed, 1 + prng.below(40));
        bench.set("flush", 0);
        let root = bench.model.pin("root");
        bench.model.set_words(root, &[Table::ROOT as u32, 0]);
        bench.reset();
        bench.pace = Pace::any(prng);
        Self { bench, channels, pieces, input, records, wanted, output, host, answers, average: 16 }
    }

    /// Sends a frame with its list.
    fn write(&mut self, job: &Job) {
        for (at, (address, beats)) in job.list.iter().enumerate() {
            let last = u32::from(at == job.list.len() - 1);
            self.bench.send(self.pieces, vec![*address as u32, (*address >> 32) as u32, *beats as u32, last]);
        }
        for (at, beat) in job.beats.iter().enumerate() {
            let last = at == job.beats.len() - 1;
            let count = if last { job.last_bytes } else { 64 };
            self.bench.send(self.input, [&beat[..], &[count, u32::from(last)]].concat());
        }
    }

    /// Asks for a frame by the list that it was written to.
    fn read(&mut self, job: &Job) {
        let mut left = job.beats.len() as u64;
        for (address, beats) in &job.list {
            let beats = left.min(*beats);
            left -= beats;
            if beats > 0 {
                let (last, bytes) = (u32::from(left == 0), job.last_bytes);
                self.bench.send(self.wanted, vec![*address as u32, (*address >> 32) as u32, beats as u32, bytes, last]);
            }
        }
    }

    /// Updates the other engine's average from its requests, and compares its weight when no request
    /// is open.
    fn compare_weight(&mut self, alpha: u64) -> Result<(), Failure> {
        let asked = self.bench.sent_at(self.host);
        let answered = self.bench.got(self.answers).iter().zip(self.bench.got_at(self.answers));
        for (answer, cycle) in answered {
            self.average = self.average - (self.average >> 4) + (cycle - asked[answer[0] as usize]);
        }
        for _ in 0..2 * 4 * 22 {
            self.channels.step(&mut self.bench)?;
        }
        let weights = self.bench.model.pin("weights");
        let mut words = [0; 3];
        self.bench.model.get_words(weights, &mut words);
        let all = words.iter().rev().fold(0_u128, |all, word| all << 32 | u128::from(*word));
        same("weight of the other engine", &((all >> 51) as u32 & 0x1_ffff), &weight(alpha, 0, self.average))
    }
}

/// Frames are written to lists and read back, at the same time, while another engine writes and
/// reads. Virtual pages lie anywhere, and some do not exist. The other engine's weight follows its
/// service times. A reset in the middle, also of the memory, leaves nothing behind.
///
/// # Errors
/// A line, a beat, a record or a weight differs.
pub fn memory_path(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut open_resets = 0;
    for round in 0..rounds {
        let mut path = Path::new(seed + round, &mut prng);
        let alpha = prng.below(257);
        path.bench.set("alpha", alpha as u32);

        let mut free = prng.below(1 << 26) << 12;
        let first_page = free / PAGE_BYTES;
        let jobs: Vec<Job> = (0..3).map(|_| Job::any(&mut prng, &mut free)).collect();
        let mut table = Table::default();
        for page in first_page..=free / PAGE_BYTES {
            if prng.below(16) > 0 {
                // Frames of different pages differ.
                table.map(page * PAGE_BYTES, 0x10_0000 + (page - first_page) * 7919);
            }
        }
        path.channels.store_table(&table, (first_page..=free / PAGE_BYTES).map(|page| page * PAGE_BYTES));

        if round % 2 == 1 {
            // The end of these frames is lost. They are written again below.
            jobs.iter().for_each(|job| path.write(job));
            path.read(&jobs[0]);
            let some = 30 + prng.below(300);
            for step in 0..2000 {
                path.channels.step(&mut path.bench)?;
                if step >= some && path.channels.open() > 0 {
                    break;
                }
            }
            open_resets += u32::from(path.channels.open() > 0);
            path.channels.forget(&mut path.bench);
            path.bench.reset();
        }

        let mut written: Vec<u64> = Vec::new();
        for turn in 0..=jobs.len() {
            // The next frame is written while the one before is read.
            let before = turn.checked_sub(1).map(|at| &jobs[at]);
            if let Some(job) = jobs.get(turn) {
                path.write(job);
            }
            if let Some(job) = before {
                path.read(job);
            }
            // The other engine writes fresh lines, and reads lines of which it wrote some before.
            let mut lines: Vec<u64> = (0..16).map(|_| (1 << 40) + LINE_BYTES * prng.below(1 << 20)).collect();
            for (line, known) in lines[8..].iter_mut().zip(&written) {
                *line = *known;
            }
            for (tag, address) in lines.iter().enumerate() {
                let place = [*address as u32, (*address >> 32) as u32, u32::from(tag < 8)];
                let data: Vec<u32> = (0..16).map(|_| prng.next_u64() as u32).collect();
                path.bench.send(path.host, [&place[..], &data, &[tag as u32]].concat());
                if tag < 8 {
                    path.channels.lines.remove(address);
                    written.insert(0, *address);
                }
            }
            let (records_due, beats_due) = (usize::from(turn < jobs.len()), before.map_or(0, |job| job.beats.len()));
            let start = path.bench.cycle;
            while path.bench.got(path.records).len() < records_due
                || path.bench.got(path.output).len() < beats_due
                || path.bench.got(path.answers).len() < lines.len()
            {
                if path.bench.cycle - start > LIMIT {
                    return Err("a frame or an answer is missing".to_owned());
                }
                path.channels.step(&mut path.bench)?;
            }
            path.compare_weight(alpha)?;
            let mut seen = path.bench.take(path.answers);
            seen.sort();
            let expected: Vec<Vec<u32>> =
                (0..).zip(&lines).map(|(tag, address)| [vec![tag], path.channels.line(*address)].concat()).collect();
            same("lines of the other engine", &seen, &expected)?;
            for address in &lines[..8] {
                same("a line that the other engine wrote", &path.channels.lines.contains_key(address), &true)?;
            }
            if let Some(job) = jobs.get(turn) {
                let places = job.places(&table);
                let bad = u32::from(places.iter().any(Option::is_none));
                same("record", &path.bench.take(path.records), &vec![vec![job.bytes(), bad]])?;
                for (place, beat) in places.iter().zip(&job.beats).filter_map(|(place, beat)| Some(((*place)?, beat))) {
                    same(&format!("line {place:x}"), &path.channels.line(place), beat)?;
                }
            }
            let got = path.bench.take(path.output);
            for (at, beat) in got.iter().enumerate() {
                let job = before.ok_or("beats that were not asked for")?;
                let last = at == job.beats.len() - 1;
                let place = job.places(&table)[at];
                let data = if place.is_some() { job.beats[at].clone() } else { vec![0; 16] };
                let marks = [if last { job.last_bytes } else { 64 }, u32::from(last), u32::from(place.is_none())];
                same(&format!("beat {at}"), beat, &[&data[..], &marks].concat())?;
            }
        }
    }
    same("resets while memory owed answers", &(rounds < 2 || open_resets > 0), &true)
}

/// Cycles of reading a frame of 64 lines whose page is translated already, with a memory of a latency:
/// from its list to its first beat, and from beat to beat.
///
/// # Errors
/// The module breaks a rule of streams.
pub fn times() -> Result<Vec<(String, u64)>, Failure> {
    const LATENCY: u64 = 12;
    let mut path = Path::new(1, &mut Prng::new(1));
    path.channels.is_steady = true;
    path.channels.latency_max = LATENCY;
    path.bench.pace = Pace::FULL;
    path.bench.set("alpha", 128);
    let page = 0x1234_5000;
    let mut table = Table::default();
    table.map(page, 0x77);
    path.channels.store_table(&table, std::iter::once(page));
    let beats = vec![vec![0; 16]; 64];
    let job = Job { list: vec![(page, 64)], beats, last_bytes: 64 };
    let mut all = Vec::new();
    for has_walked in [false, true] {
        path.read(&job);
        let start = path.bench.cycle;
        while path.bench.got(path.output).len() < job.beats.len() {
            if path.bench.cycle - start > LIMIT {
                return Err("a beat is missing".to_owned());
            }
            path.channels.step(&mut path.bench)?;
        }
        if has_walked {
            let (asked, given) = (path.bench.sent_at(path.wanted), path.bench.got_at(path.output));
            all.push((format!("memory_path.read_at_latency_{LATENCY}"), given[0] - asked[0]));
            all.push(("memory_path.beats_64".to_owned(), given[63] - given[0] + 1));
        }
        path.bench.take(path.output);
    }
    Ok(all)
}
