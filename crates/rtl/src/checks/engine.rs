//! The top level: frames on AXI-Stream with byte masks, and registers.

use super::frames::{TITLE_BYTES, sealed};
use super::qpack;
use super::speckv::{ends, has_scale};
use super::streams::{bytes_of, words_of};
use super::{same, same_bytes};
use crate::bench::{Beat, Bench, Failure, Pace};
use crate::cycles::Times;
use crate::kv::{TestPage, any_page, any_shape};
use cenote_base::prng::Prng;
use cenote_codec::{CodecId, Codecs, HEADER_BYTES, Order, PageCodec, PageKind, Raw, Shape, Side, SpecKv, encode};
use half::f16;
use std::sync::Arc;

const LIMIT: u64 = 100_000;
/// Halves that the model's buffers hold (`DEPTH` of src/tops.rs).
const STORED_HALVES: usize = 256 * 32;
/// A page of one beat.
const SMALL: Shape = Shape { heads: 1, tokens: 1, dim: 32 };
/// Reasons why a page is not supported, of [`Task::unsupported`].
const UNSUPPORTED: u32 = 8;
/// Registers (rtl/top/axi_lite_regs.sv).
const ID: u32 = 0x00;
const HEADER: u32 = 0x10;
const COUNTS: [u32; 4] = [0x20, 0x24, 0x28, 0x2c];
const PAIR: u32 = 0x30;
const WORD: u32 = 0x34;
const ALPHA: u32 = 0x58;
const FLUSH: u32 = 0x5c;
const ROW: u32 = 0x90;
const CLEAR: u32 = 0x94;

/// The registers of an engine, over AXI4-Lite.
pub struct Registers {
    write_address: usize,
    write_data: usize,
    written: usize,
    read_address: usize,
    read_data: usize,
}

impl Registers {
    /// The ports of a bench.
    pub fn new(bench: &mut Bench) -> Self {
        let (write_address, write_data) = (bench.input("aw", &["address"]), bench.input("w", &["data"]));
        let (written, read_address) = (bench.output("b", &[]), bench.input("ar", &["address"]));
        let read_data = bench.output("r", &["data"]);
        Self { write_address, write_data, written, read_address, read_data }
    }

    /// Writes a register; `step` runs a cycle.
    ///
    /// # Errors
    /// The write has no answer.
    pub fn write(
        &self,
        bench: &mut Bench,
        step: &mut dyn FnMut(&mut Bench) -> Result<(), Failure>,
        address: u32,
        value: u32,
    ) -> Result<(), Failure> {
        bench.send(self.write_address, vec![address]);
        bench.send(self.write_data, vec![value]);
        until(bench, step, |bench| !bench.got(self.written).is_empty())?;
        bench.take(self.written);
        Ok(())
    }

    /// Reads a register.
    ///
    /// # Errors
    /// The read has no answer.
    pub fn read(
        &self,
        bench: &mut Bench,
        step: &mut dyn FnMut(&mut Bench) -> Result<(), Failure>,
        address: u32,
    ) -> Result<u32, Failure> {
        bench.send(self.read_address, vec![address]);
        until(bench, step, |bench| !bench.got(self.read_data).is_empty())?;
        Ok(bench.take(self.read_data)[0][0])
    }

    /// Writes a task's header and QPack's table, and reads the header again.
    ///
    /// # Errors
    /// The header differs.
    pub fn set(
        &self,
        bench: &mut Bench,
        step: &mut dyn FnMut(&mut Bench) -> Result<(), Failure>,
        task: &Task,
    ) -> Result<(), Failure> {
        for (word, place) in words_of(&task.title, 4).into_iter().zip((HEADER..).step_by(4)) {
            self.write(bench, step, place, word)?;
            same("header", &self.read(bench, step, place)?, &word)?;
        }
        for (pair, words) in task.table.iter().enumerate() {
            self.write(bench, step, PAIR, pair as u32)?;
            for (word, place) in words.iter().zip((WORD..).step_by(4)) {
                self.write(bench, step, place, *word)?;
            }
        }
        Ok(())
    }
}

/// Runs cycles until a condition holds.
///
/// # Errors
/// A cycle failed, or the condition does not hold in time.
pub fn until(
    bench: &mut Bench,
    step: &mut dyn FnMut(&mut Bench) -> Result<(), Failure>,
    done: impl Fn(&Bench) -> bool,
) -> Result<(), Failure> {
    let start = bench.cycle;
    while !done(bench) {
        if bench.cycle - start > LIMIT {
            return Err(format!("no end within {LIMIT} cycles"));
        }
        step(bench)?;
    }
    Ok(())
}

/// Beats of bytes with their masks and the mark of the last.
#[must_use]
pub fn masked_beats(bytes: &[u8]) -> Vec<Beat> {
    let count = bytes.len().div_ceil(64).max(1);
    let beat = |at: usize| {
        let chunk = &bytes[64 * at..bytes.len().min(64 * at + 64)];
        let keep = u64::MAX.checked_shr(64 - chunk.len() as u32).unwrap_or(0);
        let mut beat = words_of(chunk, 16);
        beat.extend([keep as u32, (keep >> 32) as u32, u32::from(at == count - 1)]);
        beat
    };
    (0..count).map(beat).collect()
}

/// The bytes of a page's beats with masks; `None`: its mark says that it has none.
///
/// # Errors
/// A mask has a gap, or a beat inside the page is not full.
pub fn unmasked(beats: &[Beat]) -> Result<Option<Vec<u8>>, Failure> {
    let mut bytes = Vec::new();
    for (at, beat) in beats.iter().enumerate() {
        let keep = u64::from(beat[16]) | u64::from(beat[17]) << 32;
        let count = keep.trailing_ones() as usize;
        same("ones of a byte mask", &keep.count_ones(), &(count as u32))?;
        if at < beats.len() - 1 {
            same("mark of a beat inside", &(count, beat[19]), &(64, 0))?;
        }
        bytes.extend_from_slice(&bytes_of(&beat[..16])[..count]);
    }
    Ok((beats[beats.len() - 1][19] == 0).then_some(bytes))
}

/// The engine with its streams.
struct Engine {
    bench: Bench,
    pages: usize,
    frames: usize,
    encoded: usize,
    decoded: usize,
    registers: Registers,
}

impl Engine {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::new("cache_engine", seed);
        let input = ["tdata", "tkeep", "tlast"];
        let output = ["tdata", "tkeep", "tlast", "tuser"];
        let (pages, frames) = (bench.input("c", &input), bench.input("x", &input));
        let (encoded, decoded) = (bench.output("z", &output), bench.output("y", &output));
        let registers = Registers::new(&mut bench);
        for port in ["misses", "tokens", "rejected"] {
            bench.set(port, 0);
        }
        let weights = bench.model.pin("weights");
        bench.model.set_words(weights, &[0; 3]);
        bench.reset();
        Self { bench, pages, frames, encoded, decoded, registers }
    }

    fn read(&mut self, address: u32) -> Result<u32, Failure> {
        self.registers.read(&mut self.bench, &mut Bench::step, address)
    }

    fn set(&mut self, task: &Task) -> Result<(), Failure> {
        self.registers.set(&mut self.bench, &mut Bench::step, task)
    }

    fn send(&mut self, input: usize, bytes: &[u8]) {
        masked_beats(bytes).into_iter().for_each(|beat| self.bench.send(input, beat));
    }

    /// The bytes of the next page of an output; `None`: its mark says that it has none.
    fn receive(&mut self, output: usize) -> Result<Option<Vec<u8>>, Failure> {
        let is_last = |beat: &Beat| beat[18] == 1;
        self.bench.run(LIMIT, |bench| bench.got(output).last().is_some_and(is_last))?;
        unmasked(&self.bench.take(output))
    }
}

/// A page with its codec, as software prepares them for the engine.
#[derive(Clone)]
pub struct Task {
    /// The page.
    pub page: TestPage,
    codec: Arc<dyn PageCodec>,
    /// The first bytes of its frame.
    pub title: Vec<u8>,
    /// QPack's words of each pair of channels.
    table: Vec<Vec<u32>>,
    /// Whether the engine has the codec for pages of this kind.
    is_supported: bool,
}

impl Task {
    fn new(page: TestPage, codec: Arc<dyn PageCodec>, table: Vec<Vec<u32>>) -> Self {
        let PageKind { shape, side, layer, .. } = page.kind;
        let mut title =
            vec![codec.id() as u8, codec.version(), if side == Side::V { 16 } else { 0 } | page.bf16() as u8, 0];
        for number in [shape.heads, shape.dim, shape.tokens, layer] {
            title.extend(number.to_le_bytes());
        }
        title.extend(codec.profile().to_le_bytes());
        assert_eq!(title.len(), TITLE_BYTES);
        Self { page, codec, title, table, is_supported: true }
    }

    /// A small page of one of the codecs.
    pub fn any(prng: &mut Prng) -> Self {
        if prng.below(2) == 0 {
            let (page, codec, table) = qpack::small_task(prng);
            return Self::new(page, Arc::new(codec), table);
        }
        let shape = any_shape(prng);
        Self::of_speckv(prng, shape)
    }

    /// A page of zeros for SpecKV.
    #[must_use]
    pub fn zeros() -> Self {
        let shape = Shape { heads: 1, tokens: 8, dim: 64 };
        let page = TestPage::new("zeros", Side::K, 0, shape, Order::TokenMajor, &vec![f16::ZERO; shape.values()]);
        Self::new(page, Arc::new(SpecKv::default()), Vec::new())
    }

    /// A page of as many halves as the engine stores, which no codec makes smaller.
    fn largest(prng: &mut Prng) -> Self {
        if prng.below(2) == 0 {
            let (page, codec, table) = qpack::largest_task(prng, STORED_HALVES);
            return Self::new(page, Arc::new(codec), table);
        }
        let shape = Shape { heads: 4, tokens: (STORED_HALVES / (4 * 64)) as u16, dim: 64 };
        Self::of_speckv(prng, shape)
    }

    /// A page with a title that the engine does not support: of another codec, version or element
    /// type, without values, of a head too narrow, or of a size beyond 32 bits.
    fn unsupported(prng: &mut Prng, why: u32) -> Self {
        let shape = Shape { heads: 1, tokens: 1, dim: 64 };
        let mut task = Self::of_speckv(prng, shape);
        task.is_supported = false;
        let mut set = |at: usize, number: u16| task.title[at..at + 2].copy_from_slice(&number.to_le_bytes());
        match why {
            0 => task.title[0] = [0, 2, 4][prng.below(3) as usize],
            1 => task.title[1] = 2,
            2 => task.title[2] = (task.title[2] & 16) | (2 + prng.below(2) as u8),
            3 => task.title[3] = 1,
            4 => set(4, 0),
            5 => set(8, 0),
            6 => set(6, prng.below(32) as u16),
            // 41,605 · 1,613 · 64 are 2³² and 64.
            _ => {
                set(4, 41_605);
                set(8, 1_613);
            }
        }
        task
    }

    fn of_speckv(prng: &mut Prng, shape: Shape) -> Self {
        let mut page = any_page(prng, shape);
        page.kind.side = [Side::K, Side::V][prng.below(2) as usize];
        page.kind.layer = prng.next_u64() as u16;
        Self::new(page, Arc::new(SpecKv::default()), Vec::new())
    }

    /// The frame of the Rust code; `None`: it keeps the page raw.
    #[must_use]
    pub fn frame(&self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        let is_encoded = self.is_supported && encode(&*self.codec, &self.page.page(), &mut frame) == self.codec.id();
        let is_kept = is_encoded && (self.codec.id() != CodecId::SpecKv || has_scale(&frame[HEADER_BYTES..]));
        is_kept.then_some(frame)
    }

    /// The frame of the page as it is, which bypasses SpecKV's decoder; `None`: another codec's pages
    /// have another order.
    #[must_use]
    fn raw_frame(&self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        encode(&Raw, &self.page.page(), &mut frame);
        (self.is_supported && self.codec.id() == CodecId::SpecKv).then_some(frame)
    }

    /// The page of a frame by the Rust code, without padding; `None`: the frame is invalid. Frames of
    /// other codecs are no frames for the engine.
    #[must_use]
    pub fn decoded(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let (mut codecs, mut bytes) = (Codecs::default(), self.page.empty());
        codecs.add(self.codec.clone());
        let is_raw = self.raw_frame().is_some_and(|raw| frame.starts_with(&raw[..TITLE_BYTES]));
        let is_expected = is_raw || (self.is_supported && frame.starts_with(&self.title));
        (is_expected && codecs.decode(frame, &mut self.page.page_mut(&mut bytes)).is_ok()).then(|| self.plain(&bytes))
    }

    /// The values of a page's bytes, `[head][token][channel]`: bytes of padding have none.
    #[must_use]
    pub fn plain(&self, bytes: &[u8]) -> Vec<u8> {
        let page = TestPage { bytes: bytes.to_vec(), ..self.page.clone() };
        page.bits().into_iter().flat_map(u16::to_le_bytes).collect()
    }
}

/// Changes a frame: a byte anywhere, in the header or at the start of the payload, or its end.
fn damage(prng: &mut Prng, frame: &mut Vec<u8>) {
    let at = prng.below(frame.len() as u64) as usize;
    match prng.below(8) {
        0 => frame[at] ^= 1 << prng.below(8),
        1 => frame.truncate(at),
        2 => frame.push(0),
        3 => frame[at % HEADER_BYTES] ^= 1 << prng.below(8),
        // SpecKV's steps are unknown, so the page ends long before its frame.
        4 => frame[HEADER_BYTES] ^= 0x84,
        _ => {}
    }
}

/// Pages of both codecs become the frames of the Rust code, and frames its pages, through registers
/// and byte masks. Pages of another size or of an unsupported kind have no frame, damaged frames no
/// page. The largest page, which grows when encoded, does not block the engine. A reset in the middle
/// leaves nothing behind.
///
/// # Errors
/// A bit or a register differs.
pub fn cache_engine(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut engine = Engine::new(seed);
    let mut counts = [0; 4];
    let mut inside = 0;
    same("id", &engine.read(ID)?, &0x4345_4e4f)?;
    crowds(&mut engine, &mut prng)?;
    engine.bench.reset();
    for round in 0..6 * rounds {
        engine.bench.pace = Pace::any(&mut prng);
        let tasks = match round % 6 {
            3 => vec![Task::largest(&mut prng)],
            4 => (0..UNSUPPORTED).map(|why| Task::unsupported(&mut prng, why)).collect(),
            _ => vec![Task::any(&mut prng)],
        };
        for task in tasks {
            engine.set(&task)?;
            let frame = task.frame();
            if let Some(frame) = &frame {
                same_bytes("a sealed frame", &sealed(&frame[..TITLE_BYTES], &frame[HEADER_BYTES..]), frame)?;
            }
            if round % 6 == 5 {
                engine.send(engine.pages, &task.page.bytes);
                engine.send(engine.frames, frame.as_deref().unwrap_or(&[]));
                for _ in 0..prng.below(250) {
                    engine.bench.step()?;
                }
                inside += u32::from(engine.bench.is_inside(engine.pages, engine.encoded, 18));
                engine.bench.reset();
                counts = [0; 4];
                continue;
            }
            let mut bytes = task.page.bytes.clone();
            match prng.below(8) {
                0 => bytes.truncate(prng.below(bytes.len() as u64) as usize),
                1 => bytes.extend(vec![1; 1 + prng.below(200) as usize]),
                _ => {}
            }
            engine.send(engine.pages, &bytes);
            let got = engine.receive(engine.encoded)?;
            let expected = frame.clone().filter(|_| bytes.len() == task.page.bytes.len());
            counts[0] += 1;
            counts[1] += u32::from(expected.is_none());
            same(&format!("{}: declined", task.page.name), &got.is_none(), &expected.is_none())?;
            if let (Some(got), Some(expected)) = (got, expected) {
                same_bytes(&task.page.name, &got, &expected)?;
            }
            // A frame of a kind without a codec is otherwise sound.
            let forged = (!task.is_supported).then(|| sealed(&task.title, &[&[2, 0, 0, 0, 63][..], &[1; 64]].concat()));
            let raw = task.raw_frame().filter(|_| prng.below(3) == 0);
            let Some(mut frame) = raw.or(frame).or(forged) else { continue };
            if task.is_supported {
                damage(&mut prng, &mut frame);
            }
            engine.send(engine.frames, &frame);
            let got = engine.receive(engine.decoded)?;
            let expected = task.decoded(&frame);
            counts[2] += 1;
            counts[3] += u32::from(expected.is_none());
            same(
                &format!("{}, header {:02x?}: refused", task.page.name, task.title),
                &got.is_none(),
                &expected.is_none(),
            )?;
            if let (Some(got), Some(expected)) = (got, expected) {
                same("bytes of a page", &got.len(), &task.page.bytes.len())?;
                same_bytes(&task.page.name, &task.plain(&got), &expected)?;
            }
            for (address, count) in COUNTS.into_iter().zip(counts) {
                same(&format!("register {address:#x}"), &engine.read(address)?, &count)?;
            }
        }
    }
    same("resets with a page inside", &(inside > 0), &true)
}

/// Pages of one beat for both codecs, which become frames, and one for QPack whose payload is shorter
/// than its padded stream but not than the page, which becomes none.
fn small_tasks() -> [Task; 3] {
    let page = |shape: Shape| {
        let values: Vec<f16> = (0..shape.values()).map(|at| f16::from_f32(1.0 + (at / 32) as f32)).collect();
        TestPage::new("a small page", Side::K, 0, shape, Order::TokenMajor, &values)
    };
    let of_qpack = |shape: Shape| {
        let (page, codec, table) = qpack::plain_task(&page(shape));
        Task::new(page, Arc::new(codec), table)
    };
    let of_speckv = Task::new(page(SMALL), Arc::new(SpecKv::default()), Vec::new());
    [of_speckv, of_qpack(Shape { heads: 1, tokens: 16, dim: 2 }), of_qpack(Shape { heads: 1, tokens: 1, dim: 32 })]
}

/// More small pages than verdicts have room for wait behind outputs that take nothing, and each becomes
/// its frame. The same for frames without a codec, of which a reset forgets the ones inside.
fn crowds(engine: &mut Engine, prng: &mut Prng) -> Result<(), Failure> {
    const COUNT: usize = 24;
    let stalled = Pace { offers: 256, takes: 0, varies: false };
    let is_last = |beat: &&Beat| beat[18] == 1;
    let all = |output: usize| move |bench: &Bench| bench.got(output).iter().filter(is_last).count() == COUNT;
    let tasks = small_tasks();
    same("small pages without a frame", &tasks.each_ref().map(|task| task.frame().is_none()), &[false, false, true])?;
    for task in tasks.iter().rev() {
        engine.bench.pace = Pace::FULL;
        engine.set(task)?;
        // Each page has another first value.
        let page = |at: usize| {
            let mut page = task.page.clone();
            page.bytes[..2].copy_from_slice(&f16::from_f32(at as f32 / 2.0).to_le_bytes());
            page
        };
        let of_page = |at: usize| Task { page: page(at), ..task.clone() };
        let many: Vec<Task> = (1..=COUNT).map(of_page).collect();
        many.iter().for_each(|task| engine.send(engine.pages, &task.page.bytes));
        engine.bench.pace = stalled;
        for _ in 0..600 {
            engine.bench.step()?;
        }
        engine.bench.pace = Pace::any(prng);
        engine.bench.run(LIMIT, all(engine.encoded))?;
        let got = engine.bench.take(engine.encoded);
        for (beats, task) in got.split_inclusive(|beat| beat[18] == 1).zip(&many) {
            same("one of many frames", &unmasked(beats)?, &task.frame())?;
        }
    }
    let [task, ..] = tasks;
    let frame = task.frame().ok_or("a small page for SpecKV has a frame")?;
    // Raw frames between others leave in their order.
    let mut expected = Vec::new();
    for at in 0..COUNT {
        let one = Task { page: TestPage { bytes: vec![at as u8; 64], ..task.page.clone() }, ..task.clone() };
        let frame = if at % 3 == 0 { Some(frame.clone()) } else { one.raw_frame() };
        let frame = frame.ok_or("a page for SpecKV has a raw frame")?;
        expected.push(one.decoded(&frame));
        engine.send(engine.frames, &frame);
    }
    engine.bench.run(LIMIT, all(engine.decoded))?;
    let pages = engine.bench.take(engine.decoded);
    let pages: Result<Vec<_>, _> = pages.split_inclusive(|beat| beat[18] == 1).map(unmasked).collect();
    same("raw pages between others", &pages?, &expected)?;
    let raw = task.raw_frame().ok_or("a page for SpecKV has a raw frame")?;
    for count in [0, 2, 62, 66, 128] {
        engine.send(engine.frames, &sealed(&raw[..TITLE_BYTES], &vec![1; count]));
        same("a raw frame of another size", &engine.receive(engine.decoded)?, &None)?;
    }
    let unknown = Task::unsupported(prng, 0);
    let frame = sealed(&unknown.title, &[1; 70]);
    for _ in 0..2 {
        engine.bench.reset();
        engine.bench.pace = Pace::FULL;
        engine.set(&unknown)?;
        for _ in 0..COUNT {
            engine.send(engine.frames, &frame);
        }
        engine.bench.pace = stalled;
        for _ in 0..100 {
            engine.bench.step()?;
        }
    }
    engine.bench.pace = Pace::any(prng);
    engine.bench.run(LIMIT, all(engine.decoded))?;
    let beats = engine.bench.take(engine.decoded);
    same("frames without a codec", &beats.iter().filter(|beat| beat[18] == 1 && beat[19] == 1).count(), &COUNT)?;
    same("beats of these frames", &beats.len(), &COUNT)
}

/// Every page becomes the frame of the Rust code, header and checksum included, and that frame the
/// page of the Rust code, by SpecKV and by QPack.
///
/// # Errors
/// A bit differs, or a page has no frame.
pub fn pages(seed: u64, pages: &[TestPage]) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut engine = Engine::new(seed);
    for page in pages {
        let (of_qpack, codec, table) = qpack::task_of_page(page);
        let of_speckv = page.ordered(Order::TokenMajor);
        let tasks = [
            Task::new(of_speckv, Arc::new(SpecKv::default()), Vec::new()),
            Task::new(of_qpack, Arc::new(codec), table),
        ];
        for task in tasks {
            engine.bench.pace = Pace::FULL;
            engine.set(&task)?;
            engine.bench.pace = Pace::any(&mut prng);
            let frame = task.frame().ok_or_else(|| format!("{} has no frame", page.name))?;
            engine.send(engine.pages, &task.page.bytes);
            let got = engine.receive(engine.encoded)?.ok_or_else(|| format!("{} was declined", page.name))?;
            same_bytes(&page.name, &got, &frame)?;
            engine.send(engine.frames, &frame);
            let got = engine.receive(engine.decoded)?.map(|page| task.plain(&page));
            let got = got.ok_or_else(|| format!("the frame of {} was refused", page.name))?;
            same_bytes(&page.name, &got, &task.decoded(&frame).ok_or("the codec refuses its own frame")?)?;
        }
    }
    Ok(())
}

/// A model of the registers that software writes and reads back, by word.
struct Written([u32; 64]);

impl Written {
    /// After a reset.
    fn new() -> Self {
        let mut words = [0; 64];
        words[ALPHA as usize / 4] = 128;
        Self(words)
    }

    fn write(&mut self, address: u32, value: u32) {
        let kept = match address {
            0x10..0x20 | 0x50 | 0x80..0x90 => value,
            PAIR | ROW => value & 0xffff,
            0x54 => value & 0xf_ffff,
            ALPHA => value.min(256),
            _ => return,
        };
        self.0[address as usize / 4] = kept;
    }

    fn words(&self, address: u32, count: usize) -> Vec<u32> {
        self.0[address as usize / 4..][..count].to_vec()
    }
}

/// Every register has its own address: what is written there is read there and leaves at the ports, and
/// ports of the other units are read. A write of `flush` or `clear` is a pulse of one cycle. A reset
/// restores all.
///
/// # Errors
/// A register or a port differs.
pub fn registers(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut engine = Engine::new(seed);
    let pins = ["flush", "clear", "misses", "tokens", "rejected", "weights", "root", "alpha", "thresholds", "row"];
    let [flush, clear, misses, tokens, rejected, weights, root, alpha, thresholds, row] =
        pins.map(|name| engine.bench.model.pin(name));
    for _ in 0..rounds {
        engine.bench.pace = Pace::any(&mut prng);
        let mut expected = Written::new();
        let mut pulses = [0_u32; 2];
        for _ in 0..100 {
            // No address behind these has a register.
            let any = 4 * prng.below(42) as u32;
            let address = [FLUSH, CLEAR, any, any, any, any][prng.below(6) as usize];
            let value = prng.next_u64() as u32 >> prng.below(24);
            let mut seen = [0; 2];
            let mut step = |bench: &mut Bench| {
                bench.step()?;
                seen[0] += bench.model.get(flush);
                seen[1] += bench.model.get(clear);
                Ok(())
            };
            engine.registers.write(&mut engine.bench, &mut step, address, value)?;
            for _ in 0..3 {
                step(&mut engine.bench)?;
            }
            expected.write(address, value);
            let wanted = [u32::from(address == FLUSH), u32::from(address == CLEAR)];
            same("pulses of flush and clear", &seen, &wanted)?;
            pulses.iter_mut().zip(wanted).for_each(|(all, one)| *all += one);
        }
        same("some pulses of both", &pulses.map(|count| count > 0), &[true; 2])?;
        let model = &mut engine.bench.model;
        let counts: [u32; 3] = std::array::from_fn(|_| prng.next_u64() as u32);
        [misses, tokens, rejected].into_iter().zip(counts).for_each(|(pin, count)| model.set(pin, count));
        let shares: Vec<u32> = (0..4).map(|_| prng.below(1 << 17) as u32).collect();
        let packed = shares.iter().rev().fold(0_u128, |all, share| all << 17 | u128::from(*share));
        model.set_words(weights, &[packed as u32, (packed >> 32) as u32, (packed >> 64) as u32]);
        for (pin, address) in [(root, 0x50), (alpha, ALPHA), (thresholds, 0x80), (row, ROW)] {
            let mut words = vec![0; pin.words()];
            engine.bench.model.get_words(pin, &mut words);
            same(&format!("port of register {address:#x}"), &words, &expected.words(address, pin.words()))?;
        }
        for address in (0..256).step_by(4) {
            let value = match address {
                ID => 0x4345_4e4f,
                0x60 => counts[0],
                0x64..0x74 => shares[(address as usize - 0x64) / 4],
                0x98 => counts[1],
                0x9c => counts[2],
                _ => expected.0[address as usize / 4],
            };
            same(&format!("register {address:#x}"), &engine.read(address)?, &value)?;
        }
        engine.bench.reset();
        for address in [HEADER, PAIR, 0x50, 0x54, ALPHA, 0x80, 0x8c, ROW] {
            let value = Written::new().0[address as usize / 4];
            same(&format!("register {address:#x} behind a reset"), &engine.read(address)?, &value)?;
        }
    }
    Ok(())
}

/// Cycles of the engine for SpecKV's pages in a row: pages to frames, and frames to pages.
///
/// # Errors
/// The module breaks a rule of streams.
pub fn times(pages: &[TestPage]) -> Result<Vec<(&'static str, Times)>, Failure> {
    let tasks: Vec<Task> =
        pages.iter().map(|page| Task::new(page.clone(), Arc::new(SpecKv::default()), Vec::new())).collect();
    let mut engine = Engine::new(1);
    engine.set(&tasks[0])?;
    let mut all = Vec::new();
    let (frames, decoded) = (engine.frames, engine.decoded);
    for (name, input, output) in [
        ("cache_engine.encode", engine.pages, engine.encoded),
        ("cache_engine.decode", frames, decoded),
        ("cache_engine.bypass", frames, decoded),
    ] {
        for task in &tasks {
            let frame = if name == "cache_engine.bypass" { task.raw_frame() } else { task.frame() };
            let frame = frame.ok_or("a measured page was declined")?;
            engine.send(input, if input == engine.pages { &task.page.bytes } else { &frame });
        }
        engine.bench.run(LIMIT, |bench| ends(bench, output, 18).len() == tasks.len())?;
        if engine.bench.got(output).iter().any(|beat| beat[19] == 1) {
            return Err(format!("{name} refuses a measured page"));
        }
        let bench = &engine.bench;
        all.push((name, Times::new(bench.sent_at(input)[0], bench.got_at(output)[0], &ends(bench, output, 18))));
        engine.bench.take(output);
    }
    Ok(all)
}
