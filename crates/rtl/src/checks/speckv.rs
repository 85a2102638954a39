//! SpecKV's two pipelines against `cenote_codec::SpecKv`.

use super::streams::{bytes_of, words_of};
use super::{same, same_bytes};
use crate::bench::{Bench, Failure, Pace};
use crate::cycles::Times;
use crate::kv::{TestPage, any_page, any_shape};
use cenote_base::prng::Prng;
use cenote_codec::{CodecId, Frame, Order, PageCodec, Shape, Side, SpecKv, SpecKvMode};
use half::f16;

/// Halves of a beat.
pub const LANES: usize = 32;
const LIMIT: u64 = 100_000;

/// Beats of halves or bytes: data, count, last. Bytes behind the end are not zero, and must not
/// matter.
pub(crate) fn beats_of(bytes: &[u8], unit: usize) -> Vec<Vec<u32>> {
    let count = bytes.len().div_ceil(64).max(1);
    let beat = |at: usize| {
        let chunk = &bytes[64 * at..bytes.len().min(64 * at + 64)];
        let mut padded = chunk.to_vec();
        padded.resize(64, 0xff);
        [words_of(&padded, 16), vec![(chunk.len() / unit) as u32, u32::from(at == count - 1)]].concat()
    };
    (0..count).map(beat).collect()
}

/// An encoder with its streams.
pub struct Encoder {
    /// The module.
    pub bench: Bench,
    input: usize,
    output: usize,
}

impl Encoder {
    /// A reset encoder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("speckv_encode", seed);
        let input = bench.input("s", &["data", "count", "last"]);
        let output = bench.output("m", &["data", "count", "last", "bad"]);
        bench.reset();
        Self { bench, input, output }
    }

    /// Sends a page, without waiting.
    pub fn send(&mut self, page: &TestPage) {
        self.bench.set("bf16", page.bf16());
        self.bench.set("dim", page.kind.shape.dim.into());
        beats_of(&page.bytes, 2).into_iter().for_each(|beat| self.bench.send(self.input, beat));
    }

    /// The payloads of the next `count` pages; `None`: the page was declined.
    ///
    /// # Errors
    /// The module breaks a rule of streams.
    pub fn receive(&mut self, count: usize) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let output = self.output;
        let is_last = |beat: &&Vec<u32>| beat[17] == 1;
        self.bench.run(LIMIT, |bench| bench.got(output).iter().filter(is_last).count() == count)?;
        let beats = self.bench.take(output);
        let pages = beats.split_inclusive(|beat| beat[17] == 1).map(|beats| {
            let mut payload = Vec::new();
            for (at, beat) in beats.iter().enumerate() {
                if at < beats.len() - 1 {
                    same("bytes of a beat", &beat[16], &64)?;
                }
                payload.extend_from_slice(&bytes_of(&beat[..16])[..beat[16] as usize]);
            }
            let bad = beats[beats.len() - 1][18] == 1;
            if bad && !payload.is_empty() {
                return Err("a declined page has a payload".to_owned());
            }
            Ok((!bad).then_some(payload))
        });
        pages.collect()
    }
}

/// A decoder with its streams.
pub struct Decoder {
    /// The module.
    pub bench: Bench,
    input: usize,
    output: usize,
}

impl Decoder {
    /// A reset decoder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("speckv_decode", seed);
        let input = bench.input("s", &["data", "count", "last"]);
        let output = bench.output("m", &["data", "count", "last", "error"]);
        bench.reset();
        Self { bench, input, output }
    }

    /// Sets the ports that say what a page is.
    fn set(&mut self, page: &TestPage) {
        self.bench.set("bf16", page.bf16());
        self.bench.set("dim", page.kind.shape.dim.into());
        self.bench.set("values", page.kind.shape.values() as u32);
    }

    /// Sends a payload of a page like `page`, without waiting.
    pub fn send(&mut self, page: &TestPage, payload: &[u8]) {
        self.set(page);
        beats_of(payload, 1).into_iter().for_each(|beat| self.bench.send(self.input, beat));
    }

    /// The next page; `None`: the payload is invalid.
    ///
    /// # Errors
    /// The module breaks a rule of streams.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let output = self.output;
        self.bench.run(LIMIT, |bench| bench.got(output).last().is_some_and(|beat| beat[17] == 1))?;
        let beats = self.bench.take(output);
        let bytes = beats.iter().flat_map(|beat| bytes_of(&beat[..16])[..2 * beat[16] as usize].to_vec()).collect();
        Ok((beats[beats.len() - 1][18] == 0).then_some(bytes))
    }
}

/// The payload by the Rust codec; `None`: it declines, or the scale is below 2^-126, where the engine
/// declines (rtl/speckv/scale.sv).
#[must_use]
pub fn payload_of(page: &TestPage, mode: SpecKvMode) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    SpecKv { mode }.encode_payload(&page.page(), &mut payload).ok()?;
    has_scale(&payload).then_some(payload)
}

/// Whether the scale of a payload is zero or a normal single.
#[must_use]
pub fn has_scale(payload: &[u8]) -> bool {
    let scale = f32::from_le_bytes(payload[1..5].try_into().expect("four bytes"));
    scale == 0.0 || scale.is_normal()
}

/// The page by the Rust codec; `None`: the payload is invalid.
#[must_use]
pub fn page_of(page: &TestPage, payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = page.empty();
    let frame = Frame {
        codec: CodecId::SpecKv,
        version: 1,
        element: page.kind.element,
        side: page.kind.side,
        shape: page.kind.shape,
        layer: page.kind.layer,
        profile: 0,
        payload,
    };
    SpecKv::default().decode_payload(&frame, &mut page.page_mut(&mut bytes)).ok().map(|()| bytes)
}

fn compare_payload(page: &TestPage, rtl: Option<Vec<u8>>) -> Result<(), Failure> {
    match (rtl, payload_of(page, SpecKvMode::DeltaRle)) {
        (None, None) => Ok(()),
        (Some(rtl), Some(rust)) => same_bytes(&page.name, &rtl, &rust),
        (rtl, rust) => Err(format!("{}: declined by RTL {}, by Rust {}", page.name, rtl.is_none(), rust.is_none())),
    }
}

fn compare_page(page: &TestPage, payload: &[u8], rtl: Option<Vec<u8>>) -> Result<(), Failure> {
    match (rtl, page_of(page, payload)) {
        (None, None) => Ok(()),
        (Some(rtl), Some(rust)) => same_bytes(&page.name, &rtl, &rust),
        (rtl, rust) => Err(format!("{}: refused by RTL {}, by Rust {}", page.name, rtl.is_none(), rust.is_none())),
    }
}

/// Payloads of random and hostile pages, byte for byte, with random stalls.
///
/// # Errors
/// A byte differs.
pub fn encode(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut rtl = Encoder::new(seed);
    for exponent in 0..20_u16 {
        // Bfloats from 2^-127 on, whose scales and inverses leave the singles.
        let value = f16::from_bits(exponent << 7 | prng.next_u64() as u16 & 0x807f);
        let shape = Shape { heads: 1, tokens: 1, dim: 32 };
        let page = TestPage::new("a page of small bfloats", Side::K, 0, shape, Order::TokenMajor, &[value; 32]);
        let page = page.as_bfloats(false);
        rtl.send(&page);
        compare_payload(&page, rtl.receive(1)?.remove(0))?;
    }
    for _ in 0..4 * rounds {
        rtl.bench.pace = Pace::any(&mut prng);
        // Several pages of a shape are inside at once.
        let shape = any_shape(&mut prng);
        let first = any_page(&mut prng, shape);
        let mut like =
            || std::iter::repeat_with(|| any_page(&mut prng, shape)).find(|page| page.bf16() == first.bf16());
        let more: Vec<TestPage> = (0..2).filter_map(|_| like()).collect();
        let pages = [vec![first], more].concat();
        pages.iter().for_each(|page| rtl.send(page));
        let got = rtl.receive(pages.len())?;
        pages.iter().zip(got).try_for_each(|(page, payload)| compare_payload(page, payload))?;
    }
    Ok(())
}

/// Payloads of the Rust codec, with and without runs, become the same pages.
///
/// # Errors
/// A bit differs.
pub fn decode(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut rtl = Decoder::new(seed);
    for _ in 0..8 * rounds {
        rtl.bench.pace = Pace::any(&mut prng);
        let shape = any_shape(&mut prng);
        let page = any_page(&mut prng, shape);
        let mode = [SpecKvMode::Delta, SpecKvMode::DeltaRle][prng.below(2) as usize];
        let Some(payload) = payload_of(&page, mode) else { continue };
        rtl.send(&page, &payload);
        let got = rtl.receive()?;
        compare_page(&page, &payload, got)?;
    }
    Ok(())
}

/// A payload that the codec did not make: a changed byte, a cut, bytes at the end, a forged scale,
/// or random bytes with many zeros.
fn forge(prng: &mut Prng, payload: &mut Vec<u8>) {
    let any_at = |prng: &mut Prng, payload: &[u8]| prng.below(payload.len() as u64) as usize;
    match prng.below(9) {
        8 => *payload.last_mut().expect("a header") = 0,
        0 => {
            let at = any_at(prng, payload);
            payload[at] = prng.next_u64() as u8;
        }
        1 => payload.truncate(any_at(prng, payload)),
        2 => payload.extend((0..1 + prng.below(70)).map(|_| prng.below(3) as u8)),
        3 => payload[0] = prng.below(5) as u8,
        4 => {
            let scale = [f32::NAN, f32::INFINITY, -1.0, -0.0, 0.0, 1e-42, f32::MAX, 600.0][prng.below(8) as usize];
            payload[1..5].copy_from_slice(&scale.to_le_bytes());
        }
        5 => {
            let at = any_at(prng, payload);
            payload[at] = 0;
        }
        6 => payload[5..].iter_mut().for_each(|byte| *byte &= (prng.next_u64() & prng.next_u64()) as u8),
        _ => payload[5..].iter_mut().for_each(|byte| *byte = prng.below(2) as u8 * (prng.next_u64() as u8)),
    }
}

/// Forged payloads are refused where Rust refuses them, and give the same pages elsewhere. The
/// module goes on to the next page either way.
///
/// # Errors
/// The module and the codec differ.
pub fn forged(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut rtl = Decoder::new(seed);
    late_ends(&mut rtl, &mut prng)?;
    for _ in 0..60 * rounds {
        rtl.bench.pace = Pace::any(&mut prng);
        // Payloads of two beats end while their header is refused.
        let small = Shape { heads: 1, tokens: 1 + prng.below(3) as u16, dim: 32 };
        let shape = if prng.below(4) == 0 { small } else { any_shape(&mut prng) };
        let page = any_page(&mut prng, shape);
        let Some(mut payload) = payload_of(&page, SpecKvMode::DeltaRle) else { continue };
        forge(&mut prng, &mut payload);
        // Codes by tiles are of the vector kernels; the engine refuses them.
        if payload.first().is_some_and(|steps| *steps == 0 || *steps == 3) {
            payload[0] = 4;
        }
        rtl.send(&page, &payload);
        let got = rtl.receive()?;
        compare_page(&page, &payload, got)?;
    }
    Ok(())
}

/// A payload of two beats is refused for its header, in any cycle around the one in which its second beat
/// arrives. The page behind it is whole.
fn late_ends(rtl: &mut Decoder, prng: &mut Prng) -> Result<(), Failure> {
    rtl.bench.pace = Pace::FULL;
    let page = any_page(prng, Shape { heads: 1, tokens: 3, dim: 32 });
    for delay in 0..8 {
        let refused = [vec![9, 0, 0, 128, 63], vec![1; 96]].concat();
        rtl.set(&page);
        for beat in beats_of(&refused, 1) {
            rtl.bench.send(rtl.input, beat);
            for _ in 0..=delay {
                rtl.bench.step()?;
            }
        }
        same("a payload with unknown steps", &rtl.receive()?, &None)?;
        let sound = [vec![1, 0, 0, 128, 63], vec![1; 96]].concat();
        rtl.send(&page, &sound);
        let got = rtl.receive()?;
        compare_page(&page, &sound, got)?;
    }
    Ok(())
}

/// Every page goes through both pipelines, and none is declined.
///
/// # Errors
/// A bit differs.
pub fn pages(seed: u64, pages: &[TestPage]) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let (mut encoder, mut decoder) = (Encoder::new(seed), Decoder::new(seed));
    for page in pages {
        let page = page.ordered(Order::TokenMajor);
        (encoder.bench.pace, decoder.bench.pace) = (Pace::any(&mut prng), Pace::any(&mut prng));
        encoder.send(&page);
        let payload = encoder.receive(1)?.remove(0);
        compare_payload(&page, payload.clone())?;
        let payload = payload.ok_or_else(|| format!("{} was declined", page.name))?;
        decoder.send(&page, &payload);
        let got = decoder.receive()?;
        compare_page(&page, &payload, got)?;
    }
    Ok(())
}

/// A reset in the middle of a page leaves nothing behind, in both pipelines.
///
/// # Errors
/// A page after a reset differs.
pub fn reset(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let (mut encoder, mut decoder) = (Encoder::new(seed), Decoder::new(seed));
    let mut inside = [0; 2];
    for _ in 0..8 * rounds {
        let shape = any_shape(&mut prng);
        let (lost, page) = (any_page(&mut prng, shape), any_page(&mut prng, shape));
        (encoder.bench.pace, decoder.bench.pace) = (Pace::any(&mut prng), Pace::any(&mut prng));
        encoder.send(&lost);
        for _ in 0..prng.below(200) {
            encoder.bench.step()?;
        }
        inside[0] += u32::from(encoder.bench.is_inside(encoder.input, encoder.output, 17));
        encoder.bench.reset();
        encoder.send(&page);
        let payload = encoder.receive(1)?.remove(0);
        compare_payload(&page, payload)?;
        let (Some(lost_payload), Some(payload)) =
            (payload_of(&lost, SpecKvMode::DeltaRle), payload_of(&page, SpecKvMode::DeltaRle))
        else {
            continue;
        };
        decoder.send(&lost, &lost_payload);
        for _ in 0..prng.below(60) {
            decoder.bench.step()?;
        }
        inside[1] += u32::from(decoder.bench.is_inside(decoder.input, decoder.output, 17));
        decoder.bench.reset();
        decoder.send(&page, &payload);
        let got = decoder.receive()?;
        compare_page(&page, &payload, got)?;
    }
    // Otherwise nothing was tested.
    same("resets with a page inside", &inside.map(|count| count > 0), &[true; 2])
}

/// Cycles of the encoder for pages in a row.
///
/// # Errors
/// The module breaks a rule of streams.
pub fn times_of_encoder(pages: &[TestPage]) -> Result<Times, Failure> {
    let mut rtl = Encoder::new(1);
    pages.iter().for_each(|page| rtl.send(page));
    let output = rtl.output;
    rtl.bench.run(LIMIT, |bench| ends(bench, output, 17).len() == pages.len())?;
    Ok(Times::new(rtl.bench.sent_at(rtl.input)[0], rtl.bench.got_at(output)[0], &ends(&rtl.bench, output, 17)))
}

/// Cycles of the decoder for payloads in a row.
///
/// # Errors
/// The module breaks a rule of streams.
pub fn times_of_decoder(pages: &[TestPage]) -> Result<Times, Failure> {
    let mut rtl = Decoder::new(1);
    for page in pages {
        rtl.send(page, &payload_of(page, SpecKvMode::DeltaRle).ok_or("a measured page was declined")?);
    }
    let output = rtl.output;
    rtl.bench.run(LIMIT, |bench| ends(bench, output, 17).len() == pages.len())?;
    Ok(Times::new(rtl.bench.sent_at(rtl.input)[0], rtl.bench.got_at(output)[0], &ends(&rtl.bench, output, 17)))
}

/// The cycles in which the last beats of pages left; `mark` is the word with the mark.
pub(crate) fn ends(bench: &Bench, output: usize, mark: usize) -> Vec<u64> {
    let marked = bench.got(output).iter().zip(bench.got_at(output)).filter(|(beat, _)| beat[mark] == 1);
    marked.map(|(_, cycle)| *cycle).collect()
}
