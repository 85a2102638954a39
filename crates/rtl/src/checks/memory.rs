//! DMA and the memory front end against models in Rust.

use super::same;
use super::translation::Translator;
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;
use std::collections::VecDeque;

const LIMIT: u64 = 100_000;

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
        let pieces = bench.input("s", &["address", "beats", "last", "fault"]);
        let answers = bench.input("r", &["tag", "data"]);
        let asks = bench.output("a", &["address", "tag"]);
        let output = bench.output("m", &["data", "last", "fault"]);
        bench.reset();
        Self { bench, pieces, asks, answers, output, seen: 0, due: Vec::new(), most_open: 0 }
    }

    /// Sends pieces of an address, a number of beats, and whether they have no translation. Returns the
    /// beats that they become.
    fn send(&mut self, pieces: &[(u64, u32, bool)]) -> Vec<Vec<u32>> {
        let mut expected = Vec::new();
        for (at, &(address, beats, fault)) in pieces.iter().enumerate() {
            let (last, fault) = (at == pieces.len() - 1, u32::from(fault));
            let piece = vec![address as u32, (address >> 32) as u32, beats, u32::from(last), fault];
            self.bench.send(self.pieces, piece);
            for beat in 0..beats {
                let mut words = if fault == 1 { vec![0; 16] } else { line(address + 64 * u64::from(beat)) };
                words.extend([u32::from(last && beat == beats - 1), fault]);
                expected.push(words);
            }
        }
        expected
    }

    /// One cycle of the unit and of the memory.
    fn step(&mut self, latency: &mut impl FnMut() -> u64) -> Result<(), Failure> {
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
        Ok(())
    }

    /// Resets the unit, and forgets reads that were under way.
    fn reset(&mut self) {
        self.bench.reset();
        self.due.clear();
        self.seen = 0;
    }

    /// Reads pieces; `latency` gives the cycles of each answer.
    ///
    /// # Errors
    /// A beat differs, or the module breaks a rule.
    pub fn read(&mut self, pieces: &[(u64, u32, bool)], mut latency: impl FnMut() -> u64) -> Result<u64, Failure> {
        let expected = self.send(pieces);
        let start = self.bench.cycle;
        while self.bench.got(self.output).len() < expected.len() {
            if self.bench.cycle - start > LIMIT {
                return Err("beats are missing".to_owned());
            }
            self.step(&mut latency)?;
        }
        let cycles = self.bench.cycle - start;
        same("beats", &self.bench.take(self.output), &expected)?;
        Ok(cycles)
    }
}

/// Pages of several pieces, with answers in any order; at most sixteen reads are open. After a reset in
/// the middle, also of the memory, nothing is left.
///
/// # Errors
/// A beat differs.
pub fn dma_read(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut unit = Reader::new(seed);
    let mut open_resets = 0;
    for round in 0..6 * rounds {
        unit.bench.pace = Pace::any(&mut prng);
        let piece = |prng: &mut Prng| {
            let (address, beats) = (prng.next_u64() & !63 & ((1 << 48) - 1), 1 + prng.below(12) as u32);
            (address, beats, prng.below(6) == 0)
        };
        let pieces: Vec<_> = (0..1 + prng.below(6)).map(|_| piece(&mut prng)).collect();
        let most = 1 + prng.below(60);
        let mut latencies = Prng::new(prng.next_u64());
        if round % 3 == 2 {
            unit.send(&pieces);
            for _ in 0..prng.below(80) {
                unit.step(&mut || 1 + latencies.below(most))?;
            }
            open_resets += u32::from(!unit.due.is_empty());
            unit.reset();
        }
        unit.read(&pieces, || 1 + latencies.below(most))?;
    }
    same("the most open reads", &(unit.most_open <= 16), &true)?;
    same("resets with open reads", &(open_resets > 0), &true)
}

/// What a page and its list become: writes, bytes, and whether the page is not whole in memory.
fn written(pieces: &[(u64, u64, bool)], beats: &[Vec<u32>]) -> (Vec<Vec<u32>>, u32, bool) {
    let places = pieces.iter().flat_map(|&(address, count, fault)| {
        (0..count).map(move |beat| (!fault).then_some(address.wrapping_add(64 * beat)))
    });
    let places: Vec<Option<u64>> = places.collect();
    let pairs = places.iter().zip(beats);
    let bad = places.len() < beats.len() || pairs.clone().any(|(place, _)| place.is_none());
    let write = |(place, beat): (&Option<u64>, &Vec<u32>)| {
        place.filter(|_| beat[16] > 0).map(|place| [&[place as u32, (place >> 32) as u32], &beat[..16]].concat())
    };
    (pairs.filter_map(write).collect(), beats.iter().map(|beat| beat[16]).sum(), bad)
}

/// Pages become writes of their lists, which are too long, too short or have faults; at most sixteen
/// writes are open, and none when a page's record leaves. After a reset in the middle, nothing is
/// left.
///
/// # Errors
/// A write or a record differs.
pub fn dma_write(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("dma_write", seed);
    let pieces = bench.input("p", &["address", "beats", "last", "fault"]);
    let input = bench.input("s", &["data", "count", "last"]);
    let done = bench.input("b", &[]);
    let writes = bench.output("a", &["address", "data"]);
    let records = bench.output("d", &["bytes", "bad"]);
    bench.reset();
    for round in 0..12 * rounds {
        bench.pace = Pace::any(&mut prng);
        let most = 1 + prng.below(60);
        let (mut expected, mut expected_records) = (Vec::new(), Vec::new());
        for _ in 0..1 + prng.below(3) {
            let piece = |prng: &mut Prng| (prng.next_u64() & !63, 1 + prng.below(12), prng.below(12) == 0);
            let list: Vec<_> = (0..1 + prng.below(5)).map(|_| piece(&mut prng)).collect();
            for (at, &(address, beats, fault)) in list.iter().enumerate() {
                let last = u32::from(at == list.len() - 1);
                let words = vec![address as u32, (address >> 32) as u32, beats as u32, last, u32::from(fault)];
                bench.send(pieces, words);
            }
            let room: u64 = list.iter().map(|(_, beats, _)| beats).sum();
            let count = if prng.below(3) == 0 { room } else { 1 + prng.below(room + 3) };
            let beat = |at: u64| {
                // A page without a frame has one beat without bytes.
                let bytes = if at == count - 1 { prng.below(65) as u32 } else { 64 };
                [line(prng.next_u64()), vec![bytes, u32::from(at == count - 1)]].concat()
            };
            let beats: Vec<Vec<u32>> = (0..count).map(beat).collect();
            beats.iter().for_each(|beat| bench.send(input, beat.clone()));
            let (page, bytes, bad) = written(&list, &beats);
            expected.extend(page);
            expected_records.push(vec![bytes, u32::from(bad)]);
        }
        // Some rounds end with a reset in the middle.
        let reset = (round % 4 == 3).then(|| prng.below(100));
        let (mut due, mut seen, mut steps) = (Vec::new(), 0, 0);
        while bench.got(records).len() < expected_records.len() && reset.is_none_or(|after| steps < after) {
            if steps > LIMIT {
                return Err("a record is missing".to_owned());
            }
            steps += 1;
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
            }
        }
        if reset.is_some() {
            bench.reset();
            continue;
        }
        same("answers before the last record", &(due.len(), bench.is_sent(done)), &(0, true))?;
        same("writes", &bench.take(writes), &expected)?;
        same("records", &bench.take(records), &expected_records)?;
    }
    Ok(())
}

/// Weights by eq. 5, in 1/256.
#[must_use]
pub fn weight(alpha: u64, depth: u64, average: u64) -> u32 {
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

/// Depths and service times of four engines, with answers in any order.
///
/// # Errors
/// A depth or a time differs.
pub fn service_meter(seed: u64, rounds: u64) -> Result<(), Failure> {
    const TAGS: usize = 16;
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("service_meter", seed);
    let names = ["asks", "takes", "ask_tags", "answers", "answer_tags", "depths", "served", "cycles"];
    let [asks, takes, ask_tags, answers, answer_tags, depths, served, cycles] = names.map(|name| bench.model.pin(name));
    for pin in [asks, takes, answers] {
        bench.model.set(pin, 0);
    }
    bench.reset();
    let mut open: [[Option<u64>; TAGS]; 4] = [[None; TAGS]; 4];
    for _ in 0..150 * rounds {
        let (mut words, mut expected) = ([0_u32; 5], Vec::new());
        for (engine, open) in open.iter_mut().enumerate() {
            let pick = |prng: &mut Prng, wanted: bool, open: &[Option<u64>; TAGS]| {
                let tags: Vec<usize> = (0..TAGS).filter(|tag| open[*tag].is_some() == wanted).collect();
                (!tags.is_empty() && prng.below(3) == 0).then(|| tags[prng.below(tags.len() as u64) as usize])
            };
            let (asked, answered) = (pick(&mut prng, false, open), pick(&mut prng, true, open));
            let waits = asked.is_none() && prng.below(2) == 0;
            let depth = open.iter().flatten().count() as u32 + u32::from(waits);
            words[0] |= u32::from(waits || asked.is_some()) << engine;
            words[1] |= u32::from(asked.is_some()) << engine;
            words[2] |= (asked.unwrap_or(prng.below(TAGS as u64) as usize) << (4 * engine)) as u32;
            words[3] |= u32::from(answered.is_some()) << engine;
            words[4] |= (answered.unwrap_or(prng.below(TAGS as u64) as usize) << (4 * engine)) as u32;
            expected.push((depth, answered.and_then(|tag| open[tag].take()).map(|begun| (bench.cycle - begun) as u32)));
            if let Some(tag) = asked {
                open[tag] = Some(bench.cycle);
            }
        }
        for (pin, word) in [asks, takes, ask_tags, answers, answer_tags].into_iter().zip(words) {
            bench.model.set(pin, word);
        }
        bench.step()?;
        let mut times = [0; 2];
        bench.model.get_words(cycles, &mut times);
        for (engine, (depth, time)) in expected.into_iter().enumerate() {
            same("depth", &(bench.model.get(depths) >> (8 * engine) & 255), &depth)?;
            let got = times[engine / 2] >> (16 * (engine % 2)) & 0xffff;
            let got = (bench.model.get(served) >> engine & 1 == 1).then_some(got);
            same(&format!("service time of engine {engine}"), &got, &time)?;
        }
    }
    Ok(())
}

/// The channel of an address.
const fn lane(address: u64) -> usize {
    ((address >> 6 ^ address >> 10 ^ address >> 14) & 15) as usize
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
        let mut waiting: [Option<(u64, u32)>; 16] = [None; 16];
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
                if offered >> channel & 1 == 0 {
                    same("a waiting request", &None, &waiting[channel])?;
                    continue;
                }
                let address = u64::from(words[2 * channel]) | u64::from(words[2 * channel + 1]) << 32;
                let tag = (out_tags >> (6 * channel)) as u32 & 63;
                // An offered request stays until it is taken.
                if let Some(before) = waiting[channel] {
                    same("a waiting request", &(address, tag), &before)?;
                }
                waiting[channel] = Some((address, tag));
                if ready >> channel & 1 == 0 {
                    continue;
                }
                waiting[channel] = None;
                let engine = (tag >> 4) as usize;
                same("channel of a request", &channel, &lane(address))?;
                // Requests of an engine to a channel keep their order.
                let at = open[engine].iter().position(|(address, _)| lane(*address) == channel);
                let at = at.ok_or_else(|| format!("channel {channel} has a request that no engine sent"))?;
                same("request", &open[engine].remove(at), &Some((address, tag & 15)))?;
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
    unit.map(page, 0x77);
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
    for latency in [8, 12, 14, 64] {
        let mut unit = Reader::new(1);
        let cycles = unit.read(&[(0, 1024, false)], || latency)?;
        all.push((format!("dma_read.kilobeat_at_latency_{latency}"), cycles));
    }
    all.extend((1..=4).map(|engines| (format!("channel_front.lines_in_10000_cycles_of_{engines}"), lines_of(engines))));
    Ok(all)
}

/// Lines that `engines` engines of equal weight ask for in 10,000 cycles, if each asks for a random line
/// in every cycle, and each channel takes one in every cycle.
fn lines_of(engines: usize) -> u64 {
    let mut prng = Prng::new(6);
    let mut bench = Bench::new("channel_front", 1);
    let pins = ["weights", "s_valid", "s_ready", "s_address", "s_tag", "m_ready"];
    let [weights, s_valid, s_ready, s_address, s_tag, m_ready] = pins.map(|name| bench.model.pin(name));
    let packed = (0..4).fold(0_u128, |all, _| all << 17 | 1);
    bench.model.set_words(weights, &[packed as u32, (packed >> 32) as u32, (packed >> 64) as u32]);
    bench.model.set(s_valid, 0);
    bench.model.set(s_tag, 0);
    bench.model.set(m_ready, 0xffff);
    bench.reset();
    let mut addresses = [0; 8];
    addresses.iter_mut().for_each(|word| *word = prng.next_u64() as u32);
    bench.model.set(s_valid, (1 << engines) - 1);
    let mut lines = 0;
    for _ in 0..10_000 {
        bench.model.set_words(s_address, &addresses);
        bench.model.eval();
        let taken = bench.model.get(s_ready);
        bench.step_alone();
        for engine in (0..engines).filter(|engine| taken >> engine & 1 == 1) {
            addresses[2 * engine] = prng.next_u64() as u32;
            lines += 1;
        }
    }
    lines
}
