//! The whole engine at its memory: pages to frames in memory and back, and Oaken's tokens beside them.

use super::engine::{Registers, Task, masked_beats, unmasked, until};
use super::frames::sealed;
use super::oaken::Case;
use super::path::Channels;
use super::streams::{bytes_of, words_of};
use super::translation::Table;
use super::{same, same_bytes};
use crate::bench::{Bench, Failure, Pace};
use cenote_base::prng::Prng;
use cenote_codec::{OakenWriter, Shape, Side};

const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// Registers (rtl/top/axi_lite_regs.sv).
const ROOT: [u32; 2] = [0x50, 0x54];
const ALPHA: u32 = 0x58;
const FLUSH: u32 = 0x5c;
const MISSES: u32 = 0x60;
const WEIGHTS: [u32; 4] = [0x64, 0x68, 0x6c, 0x70];
const THRESHOLDS: u32 = 0x80;
const ROW: u32 = 0x90;
const CLEAR: u32 = 0x94;
const TOKENS: u32 = 0x98;
const REJECTED: u32 = 0x9c;

/// The system with its streams and its memory.
struct System {
    bench: Bench,
    channels: Channels,
    registers: Registers,
    pages: usize,
    pieces: usize,
    records: usize,
    wanted: usize,
    decoded: usize,
    tokens: usize,
    free: usize,
    loads: usize,
    loaded: usize,
    table: Table,
}

impl System {
    fn new(seed: u64, prng: &mut Prng) -> Self {
        let mut bench = Bench::new("cache_system", seed);
        let (pages, pieces) =
            (bench.input("c", &["tdata", "tkeep", "tlast"]), bench.input("p", &["address", "beats", "last"]));
        let (records, wanted) =
            (bench.output("d", &["bytes", "bad"]), bench.input("q", &["address", "beats", "bytes", "last"]));
        let decoded = bench.output("y", &["tdata", "tkeep", "tlast", "tuser"]);
        let (tokens, free) = (bench.input("o", &["tdata", "tlast"]), bench.input("f", &["page"]));
        let (loads, loaded) = (bench.input("l", &[]), bench.output("k", &["tdata", "tlast", "tuser"]));
        let registers = Registers::new(&mut bench);
        let channels = Channels::new(&mut bench, ["mem", "ans"], seed, 1 + prng.below(30));
        bench.reset();
        bench.pace = Pace::any(prng);
        let table = Table::default();
        Self { bench, channels, registers, pages, pieces, records, wanted, decoded, tokens, free, loads, loaded, table }
    }

    fn step(&mut self) -> Result<(), Failure> {
        self.channels.step(&mut self.bench)
    }

    fn write(&mut self, address: u32, value: u32) -> Result<(), Failure> {
        let Self { bench, channels, registers, .. } = self;
        registers.write(bench, &mut |bench| channels.step(bench), address, value)
    }

    fn read(&mut self, address: u32) -> Result<u32, Failure> {
        let Self { bench, channels, registers, .. } = self;
        registers.read(bench, &mut |bench| channels.step(bench), address)
    }

    fn set(&mut self, task: &Task) -> Result<(), Failure> {
        let Self { bench, channels, registers, .. } = self;
        registers.set(bench, &mut |bench| channels.step(bench), task)
    }

    fn until(&mut self, done: impl Fn(&Bench) -> bool) -> Result<(), Failure> {
        let Self { bench, channels, .. } = self;
        until(bench, &mut |bench| channels.step(bench), done)
    }

    /// Writes the registers of memory and of Oaken.
    fn set_up(&mut self, case: &Case, alpha: u32) -> Result<(), Failure> {
        self.write(ROOT[0], Table::ROOT as u32)?;
        self.write(ROOT[1], 0)?;
        self.write(ALPHA, alpha)?;
        same("alpha", &self.read(ALPHA)?, &alpha.min(256))?;
        for (word, place) in case.threshold_words().into_iter().zip((THRESHOLDS..).step_by(4)) {
            self.write(place, word)?;
            same("threshold", &self.read(place)?, &word)?;
        }
        let (heads, _, dim) = case.shape();
        self.write(ROW, (dim / 32) as u32 | (heads as u32) << 8 | case.bf16() << 15)
    }

    fn reset(&mut self) {
        self.channels.forget(&mut self.bench);
        self.bench.reset();
    }

    /// Sends a page and the list of its frame.
    fn send(&mut self, task: &Task, list: &[(u64, u64)]) {
        masked_beats(&task.page.bytes).into_iter().for_each(|beat| self.bench.send(self.pages, beat));
        for (at, (address, beats)) in list.iter().enumerate() {
            let last = u32::from(at == list.len() - 1);
            self.bench.send(self.pieces, vec![*address as u32, (*address >> 32) as u32, *beats as u32, last]);
        }
    }

    /// Asks for the page of a frame of some bytes.
    fn ask(&mut self, list: &[(u64, u64)], bytes: usize) {
        let mut left = bytes.div_ceil(64) as u64;
        for (address, beats) in list {
            let beats = left.min(*beats);
            left -= beats;
            if beats > 0 {
                let place = [*address as u32, (*address >> 32) as u32, beats as u32];
                let end = [((bytes - 1) % 64 + 1) as u32, u32::from(left == 0)];
                self.bench.send(self.wanted, [&place[..], &end].concat());
            }
        }
    }
}

/// Pieces of virtual memory that do not overlap, for `beats` lines or more.
fn any_list(prng: &mut Prng, free: &mut u64, beats: u64) -> Vec<(u64, u64)> {
    let (mut list, mut room) = (Vec::new(), 0);
    while room < beats || prng.below(4) == 0 {
        let (skipped, count) = (LINE_BYTES * prng.below(90), 1 + prng.below(40));
        list.push((*free + skipped, count));
        *free += skipped + LINE_BYTES * count;
        room += count;
    }
    list
}

/// The physical lines of a list.
fn places(list: &[(u64, u64)], table: &Table) -> Vec<Option<u64>> {
    let addresses = list.iter().flat_map(|&(start, beats)| (0..beats).map(move |at| start + LINE_BYTES * at));
    addresses.map(|address| table.translate(address)).collect()
}

/// Pages of both codecs become the Rust code's frames in memory, and frames in memory, some damaged
/// there or without translation, its pages. Oaken's tokens are stored and loaded at the same time, and
/// give the page of the Rust codec. A reset in the middle, also of the memory, leaves nothing behind.
///
/// # Errors
/// A bit, a record or a register differs.
pub fn cache_system(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut open_resets = 0;
    for round in 0..rounds.div_ceil(2) {
        let mut system = System::new(seed + round, &mut prng);
        let shape = Shape { heads: 1 + prng.below(2) as u16, tokens: 2 + prng.below(4) as u16, dim: 64 };
        // Halves and bfloats by turns.
        let mut cases = std::iter::repeat_with(|| Case::of_shape(&mut prng, shape));
        let case = cases.find(|case| u64::from(case.bf16()) == round % 2).ok_or("there is no end")?;
        let tasks: Vec<Task> = (0..3).map(|_| Task::any(&mut prng)).collect();
        let mut free = prng.below(1 << 26) << 12;
        let first_page = free / PAGE_BYTES;
        let lists: Vec<Vec<(u64, u64)>> = tasks
            .iter()
            .map(|task| {
                let beats = task.frame().map_or(1, |frame| frame.len().div_ceil(64)) as u64;
                // Some lists are too short.
                let missing = u64::from(prng.below(6) == 0);
                any_list(&mut prng, &mut free, beats.saturating_sub(missing).max(1))
            })
            .collect();
        let numbers = first_page..=free / PAGE_BYTES;
        for page in numbers.clone().filter(|_| prng.below(12) > 0) {
            system.table.map(page * PAGE_BYTES, 0x10_0000 + (page - first_page) * 7919);
        }
        let table = system.table.clone();
        system.channels.store_table(&table, numbers.map(|page| page * PAGE_BYTES));
        let alpha = [0, 128, 300, prng.below(257) as u32][prng.below(4) as usize];
        system.set_up(&case, alpha)?;

        if round % 2 == 1 || prng.below(2) == 0 {
            // The end of this page and of these tokens is lost.
            system.set(&tasks[0])?;
            system.give_pages(0x900_0000);
            case.token_beats().into_iter().flatten().for_each(|beat| system.bench.send(system.tokens, beat));
            system.send(&tasks[0], &lists[0]);
            let room: u64 = lists[0].iter().map(|(_, beats)| beats).sum();
            for _ in 0..100_u64.div_ceil(room) {
                system.ask(&lists[0], 64 * room as usize);
            }
            let some = 20 + prng.below(200);
            for step in 0..2000 {
                system.step()?;
                if step >= some && system.channels.open() > 0 {
                    break;
                }
            }
            open_resets += u32::from(system.channels.open() > 0);
            system.reset();
            same("root behind a reset", &system.read(ROOT[0])?, &0)?;
            system.set_up(&case, alpha)?;
            // A reset in the middle of a frame without translation.
            system.bench.pace = Pace::FULL;
            system.ask(&[(free + (1 << 20), 600)], 600 * LINE_BYTES as usize);
            for _ in 0..200 {
                system.step()?;
            }
            system.bench.pace = Pace::any(&mut prng);
            system.reset();
            system.set_up(&case, alpha)?;
        }

        let mut writer = OakenWriter::new(case.codec(), 0, Side::K, case.shape().0 as u16, case.shape().2 as u16);
        for token in 0..case.shape().1 {
            // A token that the writer declines is not stored.
            let _ = writer.push(&case.token_values(token));
        }
        system.give_pages(0x800_0000);
        case.token_beats().into_iter().flatten().for_each(|beat| system.bench.send(system.tokens, beat));
        for (task, list) in tasks.iter().zip(&lists) {
            system.compare_frame(&mut prng, task, list)?;
        }

        system.compare_zeros(free, true)?;
        system.compare_zeros(free + 8 * PAGE_BYTES, false)?;

        // All tokens were taken before the page is asked for.
        let input = system.tokens;
        system.until(|bench| bench.is_sent(input))?;
        if writer.tokens() > 0 {
            system.bench.send(system.loads, Vec::new());
            let loaded = system.loaded;
            system.until(|bench| bench.got(loaded).last().is_some_and(|beat| beat[16] == 1))?;
            let beats = system.bench.take(loaded);
            same("error of a loaded page", &beats[beats.len() - 1][17], &0)?;
            let bytes: Vec<u8> = beats.iter().flat_map(|beat| bytes_of(&beat[..16])).collect();
            let mut payload = Vec::new();
            writer.payload(&mut payload);
            let expected = case.decoded_tokens(&payload, writer.tokens()).ok_or("the codec refuses its own payload")?;
            same_bytes("a loaded page", &bytes, &expected)?;
        }
        for _ in 0..300 {
            system.step()?;
        }
        let declined = case.shape().1 as u32 - u32::from(writer.tokens());
        same("tokens", &system.read(TOKENS)?, &u32::from(writer.tokens()))?;
        same("declined tokens", &system.read(REJECTED)?, &declined)?;
        system.write(CLEAR, 1)?;
        same("tokens of a new sequence", &system.read(TOKENS)?, &0)?;
        let misses = system.read(MISSES)?;
        same("walks", &(misses > 0), &true)?;
        // Queues are empty, so weights are the share of the service times alone.
        for address in WEIGHTS {
            let weight = system.read(address)?;
            same("a weight", &(1..=256).contains(&weight), &true)?;
        }
    }
    same("resets while memory owed answers", &(rounds < 4 || open_resets > 0), &true)
}

impl System {
    /// Gives Oaken free pages from a frame on.
    fn give_pages(&mut self, from: u64) {
        for page in from..from + 8 {
            self.bench.send(self.free, vec![page as u32, 0]);
        }
    }

    /// A frame whose lines are zeros but for the first has the right checksum also where zeros stand for
    /// a part without translation. Such a part must refuse it.
    fn compare_zeros(&mut self, free: u64, is_whole: bool) -> Result<(), Failure> {
        let task = Task::zeros();
        let frame = sealed(&task.title, &[&[1, 0, 0, 128, 63][..], &[0; 512]].concat());
        let first = free.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let list = [(first, 1), (first + PAGE_BYTES, 4), (first + 2 * PAGE_BYTES, 4)];
        for (at, (page, _)) in list.iter().enumerate().filter(|(at, _)| is_whole || *at != 1) {
            self.table.map(*page, 0x20_0000 + 5 * at as u64);
        }
        let table = self.table.clone();
        self.channels.store_table(&table, list.iter().map(|(page, _)| *page));
        let mut padded = frame.clone();
        padded.resize(9 * 64, 0);
        for (place, line) in places(&list, &table).into_iter().zip(padded.chunks(64)) {
            if let Some(place) = place {
                self.channels.lines.insert(place, words_of(line, 16));
            }
        }
        self.set(&task)?;
        self.write(FLUSH, 1)?;
        self.ask(&list, frame.len());
        let got = self.decoded_page()?;
        let expected = task.decoded(&frame).filter(|_| is_whole);
        same("a frame of zeros", &got.map(|page| task.plain(&page)), &expected)?;
        same("a frame of zeros that is whole", &expected.is_some(), &is_whole)
    }

    /// The next decoded page; `None`: it is refused.
    fn decoded_page(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let decoded = self.decoded;
        self.until(|bench| bench.got(decoded).last().is_some_and(|beat| beat[18] == 1))?;
        unmasked(&self.bench.take(decoded))
    }

    /// Writes a page's frame to a list and compares memory; then reads it, some with damage.
    fn compare_frame(&mut self, prng: &mut Prng, task: &Task, list: &[(u64, u64)]) -> Result<(), Failure> {
        self.set(task)?;
        let frame = task.frame();
        let places = places(list, &self.table);
        let before: Vec<Vec<u32>> = places.iter().flatten().map(|place| self.channels.line(*place)).collect();
        self.send(task, list);
        let records = self.records;
        self.until(|bench| !bench.got(records).is_empty())?;
        let bytes = frame.as_ref().map_or(0, Vec::len);
        let beats = bytes.div_ceil(64).max(1);
        let bad = beats > places.len() || places[..beats].contains(&None);
        same("record", &self.bench.take(records), &vec![vec![bytes as u32, u32::from(bad)]])?;
        let Some(frame) = frame else {
            let after: Vec<Vec<u32>> = places.iter().flatten().map(|place| self.channels.line(*place)).collect();
            return same("lines of a page without a frame", &after, &before);
        };
        for (at, place) in places.iter().enumerate().take(beats) {
            let chunk = &frame[64 * at..frame.len().min(64 * at + 64)];
            if let Some(place) = place {
                same_bytes(&format!("line {place:x}"), &bytes_of(&self.channels.line(*place))[..chunk.len()], chunk)?;
            }
        }
        if beats > places.len() {
            return Ok(());
        }
        // A byte of the frame changes in memory.
        let at = prng.below(frame.len() as u64) as usize;
        if let (0, Some(place)) = (prng.below(3), places[at / 64]) {
            let mut line = bytes_of(&self.channels.line(place));
            line[at % 64] ^= 1 << prng.below(8);
            self.channels.lines.insert(place, words_of(&line, 16));
        }
        let in_memory: Option<Vec<u8>> = places[..beats]
            .iter()
            .map(|place| place.map(|place| bytes_of(&self.channels.line(place))))
            .collect::<Option<Vec<_>>>()
            .map(|lines| lines.concat()[..frame.len()].to_vec());
        if prng.below(2) == 0 {
            self.write(FLUSH, 1)?;
        }
        self.ask(list, frame.len());
        let got = self.decoded_page()?;
        let expected = in_memory.and_then(|frame| task.decoded(&frame));
        same(&format!("{}: refused", task.page.name), &got.is_none(), &expected.is_none())?;
        if let (Some(got), Some(expected)) = (got, expected) {
            same_bytes(&task.page.name, &task.plain(&got), &expected)?;
        }
        Ok(())
    }
}
