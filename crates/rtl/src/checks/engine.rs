//! The top level of SpecKV's engine: AXI-Stream, byte masks, and registers.

use super::speckv::{page_of, payload_of};
use super::streams::{bytes_of, words_of};
use super::{same, same_bytes};
use crate::bench::{Beat, Bench, Failure, Pace};
use crate::kv::{any_page, any_shape};
use cenote_base::prng::Prng;
use cenote_codec::SpecKvMode;

const LIMIT: u64 = 100_000;
const DIM: u32 = 0x04;
const VALUES: u32 = 0x08;

/// The engine with its streams.
struct Engine {
    bench: Bench,
    halves: usize,
    payloads: usize,
    encoded: usize,
    decoded: usize,
    write_address: usize,
    write_data: usize,
    written: usize,
    read_address: usize,
    read_data: usize,
}

impl Engine {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::new("speckv_engine", seed);
        let input = ["tdata", "tkeep", "tlast"];
        let output = ["tdata", "tkeep", "tlast", "tuser"];
        let (halves, payloads) = (bench.input("c", &input), bench.input("x", &input));
        let (encoded, decoded) = (bench.output("z", &output), bench.output("y", &output));
        let (write_address, write_data) = (bench.input("aw", &["address"]), bench.input("w", &["data"]));
        let (written, read_address) = (bench.output("b", &[]), bench.input("ar", &["address"]));
        let read_data = bench.output("r", &["data"]);
        bench.reset();
        Self { bench, halves, payloads, encoded, decoded, write_address, write_data, written, read_address, read_data }
    }

    fn write(&mut self, address: u32, value: u32) -> Result<(), Failure> {
        self.bench.send(self.write_address, vec![address]);
        self.bench.send(self.write_data, vec![value]);
        let written = self.written;
        self.bench.run(LIMIT, |bench| !bench.got(written).is_empty())?;
        self.bench.take(written);
        Ok(())
    }

    fn read(&mut self, address: u32) -> Result<u32, Failure> {
        self.bench.send(self.read_address, vec![address]);
        let read = self.read_data;
        self.bench.run(LIMIT, |bench| !bench.got(read).is_empty())?;
        Ok(self.bench.take(read)[0][0])
    }

    fn send(&mut self, input: usize, bytes: &[u8]) {
        let count = bytes.len().div_ceil(64);
        for (at, chunk) in bytes.chunks(64).enumerate() {
            let keep = u64::MAX >> (64 - chunk.len());
            let mut beat = words_of(chunk, 16);
            beat.extend([keep as u32, (keep >> 32) as u32, u32::from(at == count - 1)]);
            self.bench.send(input, beat);
        }
    }

    /// The bytes of the next page of an output; `None`: its mark says that it has none.
    fn receive(&mut self, output: usize) -> Result<Option<Vec<u8>>, Failure> {
        let is_last = |beat: &Beat| beat[18] == 1;
        self.bench.run(LIMIT, |bench| bench.got(output).last().is_some_and(is_last))?;
        let beats = self.bench.take(output);
        let mut bytes = Vec::new();
        for beat in &beats {
            let keep = u64::from(beat[16]) | u64::from(beat[17]) << 32;
            let count = keep.trailing_ones() as usize;
            same("ones of a byte mask", &keep.count_ones(), &(count as u32))?;
            bytes.extend_from_slice(&bytes_of(&beat[..16])[..count]);
        }
        Ok((beats[beats.len() - 1][19] == 0).then_some(bytes))
    }
}

/// Pages through both halves of the engine, with settings and counts in registers.
///
/// # Errors
/// A bit or a register differs.
pub fn speckv(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut engine = Engine::new(seed);
    let (mut encoded, mut declined, mut decoded, mut refused) = (0, 0, 0, 0);
    same("id", &engine.read(0)?, &0x4345_4e4f)?;
    for _ in 0..4 * rounds {
        engine.bench.pace = Pace::any(&mut prng);
        let shape = any_shape(&mut prng);
        let page = any_page(&mut prng, shape);
        engine.write(DIM, shape.dim.into())?;
        engine.write(VALUES, shape.values() as u32)?;
        same("dim", &engine.read(DIM)?, &shape.dim.into())?;
        same("values", &engine.read(VALUES)?, &(shape.values() as u32))?;
        engine.send(engine.halves, &page.bytes);
        let payload = engine.receive(engine.encoded)?;
        let rust = payload_of(&page, SpecKvMode::DeltaRle);
        encoded += 1;
        same("declined", &payload.is_none(), &rust.is_none())?;
        let (Some(payload), Some(mut rust)) = (payload, rust) else {
            declined += 1;
            continue;
        };
        same_bytes(&page.name, &payload, &rust)?;
        if prng.below(4) == 0 {
            rust[0] = 9;
        }
        engine.send(engine.payloads, &rust);
        let got = engine.receive(engine.decoded)?;
        decoded += 1;
        match (got, page_of(&page, &rust)) {
            (Some(rtl), Some(rust)) => same_bytes(&page.name, &rtl, &rust)?,
            (rtl, rust) => {
                refused += 1;
                same("refused", &rtl.is_none(), &rust.is_none())?;
            }
        }
    }
    for (address, count) in [(0x0c, encoded), (0x10, declined), (0x14, decoded), (0x18, refused)] {
        same(&format!("register {address:#x}"), &engine.read(address)?, &count)?;
    }
    Ok(())
}
