//! The way between frames and memory: lists, translation, DMA and sixteen channels.

use super::same;
use super::translation::Table;
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;
use std::collections::BTreeMap;

const LIMIT: u64 = 50_000;
const CHANNELS: usize = 16;
const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// An answer: its tag and its line.
type Answer = (u32, Vec<u32>);

/// Sixteen channels of memory that answer late and in any order.
struct Channels {
    lines: BTreeMap<u64, Vec<u32>>,
    /// Answers with the cycle from which on they may leave.
    due: Vec<Vec<(u64, Answer)>>,
    offered: Vec<Option<Answer>>,
    latency_max: u64,
    prng: Prng,
}

impl Channels {
    fn new(seed: u64, latency_max: u64) -> Self {
        let (due, offered) = (vec![Vec::new(); CHANNELS], vec![None; CHANNELS]);
        Self { lines: BTreeMap::new(), due, offered, latency_max, prng: Prng::new(seed) }
    }

    /// A line; one that was never written has words of its address.
    fn line(&self, address: u64) -> Vec<u32> {
        let fresh = || (0..16).map(|word| (address as u32).rotate_left(7).wrapping_mul(word + 3)).collect();
        self.lines.get(&address).cloned().unwrap_or_else(fresh)
    }

    /// One cycle of the unit and of the channels.
    fn step(&mut self, bench: &mut Bench) -> Result<(), Failure> {
        let Self { prng, due, offered, .. } = self;
        let now = bench.cycle;
        for (offered, due) in offered.iter_mut().zip(due) {
            let ready: Vec<usize> = (0..due.len()).filter(|at| due[*at].0 <= now).collect();
            if offered.is_none() && !ready.is_empty() && prng.below(4) > 0 {
                *offered = Some(due.remove(ready[prng.below(ready.len() as u64) as usize]).1);
            }
        }
        let takes = (prng.next_u64() | prng.next_u64()) as u32 & 0xffff;
        let (mut valid, mut tags, mut data) = (0, 0_u128, Vec::new());
        for (channel, offered) in offered.iter().enumerate() {
            let (tag, line) = offered.clone().unwrap_or_else(|| (prng.below(64) as u32, vec![0xdead; 16]));
            valid |= u32::from(offered.is_some()) << channel;
            tags |= u128::from(tag) << (6 * channel);
            data.extend(line);
        }
        let pins = ["m_ready", "r_valid", "r_tag", "r_data"].map(|name| bench.model.pin(name));
        bench.model.set(pins[0], takes);
        bench.model.set(pins[1], valid);
        bench.model.set_words(pins[2], &[tags as u32, (tags >> 32) as u32, (tags >> 64) as u32]);
        bench.model.set_words(pins[3], &data);
        let outputs =
            ["m_valid", "m_write", "m_address", "m_data", "m_tag", "r_ready"].map(|name| bench.model.pin(name));
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
            let tags = values[4].iter().rev().fold(0_u128, |all, word| all << 32 | u128::from(*word));
            let tag = (tags >> (6 * channel)) as u32 & 63;
            same("channel", &(((address >> 6 ^ address >> 10 ^ address >> 14) & 15) as usize), &channel)?;
            if values[1][0] >> channel & 1 == 1 {
                self.lines.insert(address, values[3][16 * channel..][..16].to_vec());
            }
            let when = now + 1 + self.prng.below(self.latency_max);
            let line = self.line(address);
            self.due[channel].push((when, (tag, line)));
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

/// Frames are written to lists and read back, at the same time, while another engine reads. Virtual
/// pages lie anywhere, and some do not exist.
///
/// # Errors
/// A line, a beat or a record differs.
pub fn memory_path(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    for round in 0..rounds {
        let mut bench = Bench::new("memory_path", seed + round);
        let pieces = bench.input("p", &["address", "beats", "last"]);
        let input = bench.input("s", &["data", "count", "last"]);
        let records = bench.output("d", &["bytes", "bad"]);
        let wanted = bench.input("q", &["address", "beats", "bytes", "last"]);
        let output = bench.output("y", &["data", "count", "last", "fault"]);
        let host = bench.input("h", &["address", "tag"]);
        let answers = bench.output("g", &["tag", "data"]);
        let mut channels = Channels::new(seed ^ round << 8, 1 + prng.below(40));
        bench.set("flush", 0);
        let (root, weights) = (bench.model.pin("root"), bench.model.pin("weights"));
        bench.model.set_words(root, &[Table::ROOT as u32, 0]);
        let shares = (0..4).fold(0_u128, |all, _| all << 17 | u128::from(1 + prng.below(7)));
        bench.model.set_words(weights, &[shares as u32, (shares >> 32) as u32, (shares >> 64) as u32]);
        bench.set("r_valid", 0);
        bench.reset();
        bench.pace = Pace::any(&mut prng);

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
        for (address, entry) in &table.entries {
            let at = address & !(LINE_BYTES - 1);
            let mut line = channels.lines.get(&at).cloned().unwrap_or_else(|| vec![0; 16]);
            let word = ((address - at) / 4) as usize;
            (line[word], line[word + 1]) = (*entry as u32, (*entry >> 32) as u32);
            channels.lines.insert(at, line);
        }
        // Lines of the table that were never written have no entries.
        let missing: Vec<u64> = (first_page..=free / PAGE_BYTES).map(|page| page * PAGE_BYTES).collect();
        for page in missing {
            for address in table.walk(page) {
                channels.lines.entry(address & !(LINE_BYTES - 1)).or_insert_with(|| vec![0; 16]);
            }
        }

        for turn in 0..=jobs.len() {
            // The next frame is written while the one before is read.
            if let Some(job) = jobs.get(turn) {
                for (at, (address, beats)) in job.list.iter().enumerate() {
                    let last = u32::from(at == job.list.len() - 1);
                    bench.send(pieces, vec![*address as u32, (*address >> 32) as u32, *beats as u32, last]);
                }
                for (at, beat) in job.beats.iter().enumerate() {
                    let last = at == job.beats.len() - 1;
                    let count = if last { job.last_bytes } else { 64 };
                    bench.send(input, [&beat[..], &[count, u32::from(last)]].concat());
                }
            }
            let before = turn.checked_sub(1).map(|at| &jobs[at]);
            if let Some(job) = before {
                let mut left = job.beats.len() as u64;
                for (address, beats) in &job.list {
                    let beats = left.min(*beats);
                    left -= beats;
                    if beats > 0 {
                        let (last, bytes) = (u32::from(left == 0), job.last_bytes);
                        bench.send(wanted, vec![*address as u32, (*address >> 32) as u32, beats as u32, bytes, last]);
                    }
                }
            }
            let lines: Vec<u64> = (0..16).map(|_| (1 << 40) + LINE_BYTES * prng.below(1 << 20)).collect();
            for (tag, address) in lines.iter().enumerate() {
                bench.send(host, vec![*address as u32, (*address >> 32) as u32, tag as u32]);
            }
            let (records_due, beats_due) = (usize::from(turn < jobs.len()), before.map_or(0, |job| job.beats.len()));
            let start = bench.cycle;
            while bench.got(records).len() < records_due
                || bench.got(output).len() < beats_due
                || bench.got(answers).len() < lines.len()
            {
                if bench.cycle - start > LIMIT {
                    return Err("a frame or an answer is missing".to_owned());
                }
                channels.step(&mut bench)?;
            }
            let mut seen = bench.take(answers);
            seen.sort();
            let expected: Vec<Vec<u32>> =
                (0..).zip(&lines).map(|(tag, address)| [vec![tag], channels.line(*address)].concat()).collect();
            same("lines of the other engine", &seen, &expected)?;
            if let Some(job) = jobs.get(turn) {
                let places = job.places(&table);
                let bad = u32::from(places.iter().any(Option::is_none));
                same("record", &bench.take(records), &vec![vec![job.bytes(), bad]])?;
                for (place, beat) in places.iter().zip(&job.beats).filter_map(|(place, beat)| Some(((*place)?, beat))) {
                    same(&format!("line {place:x}"), &channels.line(place), beat)?;
                }
            }
            let got = bench.take(output);
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
    Ok(())
}
