//! QPack's encoder and decoder against `cenote_codec::QPack`.

use super::speckv::ends;
use super::streams::{bytes_of, words_of};
use super::{same, same_bytes};
use crate::bench::{Bench, Failure, Pace};
use crate::cycles::Times;
use crate::kv::{TestPage, any_page, bell};
use cenote_base::prng::Prng;
use cenote_codec::{Channels, CodecId, Frame, Order, PageCodec, QPack, Shape, Side};
use half::f16;

const LIMIT: u64 = 100_000;
const GROUP: usize = 16;

/// A page in key panels with the statistics of its channels.
struct Case {
    page: TestPage,
    channels: Channels,
    codec: QPack,
}

impl Case {
    fn new(page: &TestPage, channels: Channels) -> Self {
        let mut page = page.ordered(Order::KeyPanels);
        // The statistics are of one layer.
        page.kind.layer = 0;
        let codec = QPack::new(vec![[channels.clone(), channels.clone()]], 1);
        Self { page, channels, codec }
    }

    /// Any page with means and steps of several magnitudes, from codes that vanish to halves.
    fn any(prng: &mut Prng) -> Self {
        let dim = [32, 64, 128, 40, 6][prng.below(5) as usize];
        let shape = Shape { heads: 1 + prng.below(2) as u16, tokens: 1 + prng.below(40) as u16, dim };
        let page = any_page(prng, shape);
        let count = shape.token_values();
        let level = [1.0, 1e-6, 1e4][prng.below(3) as usize];
        let mean = |prng: &mut Prng| match prng.below(6) {
            0 => 0.0,
            1 => level * 8.0 * bell(prng),
            2 => f32::from_bits(prng.next_u64() as u32 & 0x80ff_ffff),
            _ => 0.1 * level * bell(prng),
        };
        let step = |prng: &mut Prng| level * 2.0_f32.powi(prng.below(12) as i32 - 7) * (1.0 + prng.next_f64() as f32);
        let means = (0..count).map(|_| mean(prng)).collect();
        let steps = (0..count).map(|_| step(prng)).collect();
        Self::new(&page, Channels { means, steps })
    }

    /// Statistics that a profile of this page would have.
    fn of_page(page: &TestPage) -> Self {
        let (shape, values) = (page.kind.shape, page.values());
        let (tokens, dim) = (usize::from(shape.tokens), usize::from(shape.dim));
        let column = |at: usize| {
            let (head, channel) = (at / dim, at % dim);
            let of_token = |token: usize| values[(head * tokens + token) * dim + channel];
            (0..tokens).map(of_token).collect::<Vec<f32>>()
        };
        let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
        let columns: Vec<Vec<f32>> = (0..shape.token_values()).map(column).collect();
        let means: Vec<f32> = columns.iter().map(|column| mean(column)).collect();
        let spread = |(column, mean): (&Vec<f32>, &f32)| {
            let square: f32 = column.iter().map(|value| (value - mean).powi(2)).sum();
            0.37 * (square / column.len() as f32).sqrt().max(1e-3)
        };
        let steps = columns.iter().zip(&means).map(spread).collect();
        Self::new(page, Channels { means, steps })
    }

    fn groups(&self) -> usize {
        usize::from(self.page.kind.shape.heads) * usize::from(self.page.kind.shape.tokens).div_ceil(GROUP)
    }

    /// Numbers of each pair of channels, in the order of the page: means, then `of` each step.
    fn parameters(&self, of: fn(f32) -> f32) -> Vec<Vec<u32>> {
        let shape = self.page.kind.shape;
        let groups = usize::from(shape.tokens).div_ceil(GROUP);
        let heads = self.channels.means.chunks(shape.dim.into()).zip(self.channels.steps.chunks(shape.dim.into()));
        let mut words = Vec::new();
        for (means, steps) in heads {
            for _ in 0..groups {
                for (means, steps) in means.chunks(2).zip(steps.chunks(2)) {
                    let numbers = means.iter().copied().chain(steps.iter().map(|step| of(*step)));
                    words.push(numbers.map(f32::to_bits).collect());
                }
            }
        }
        words
    }

    /// The payload by the Rust codec; `None`: it declines.
    fn payload(&self) -> Option<Vec<u8>> {
        let mut payload = Vec::new();
        self.codec.encode_payload(&self.page.page(), &mut payload).ok().map(|()| payload)
    }

    /// The page by the Rust codec; `None`: the payload is invalid.
    fn decoded(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = self.page.empty();
        let kind = self.page.kind;
        let frame = Frame {
            codec: CodecId::QPack,
            version: 1,
            element: kind.element,
            side: kind.side,
            shape: kind.shape,
            layer: 0,
            profile: 1,
            payload,
        };
        self.codec.decode_payload(&frame, &mut self.page.page_mut(&mut bytes)).ok().map(|()| bytes)
    }

    /// Removes the halves of tokens that the page does not have; it has room for whole groups.
    fn without_padding(&self, bytes: &[u8]) -> Vec<u8> {
        let shape = self.page.kind.shape;
        let (tokens, dim) = (usize::from(shape.tokens), usize::from(shape.dim));
        let head = tokens.next_multiple_of(GROUP) * dim * 2;
        let mut kept = Vec::new();
        for head in bytes.chunks(head) {
            for (group, rows) in head.chunks(GROUP * dim * 2).enumerate() {
                let here = (tokens - group * GROUP).min(GROUP);
                rows.chunks(2 * GROUP).for_each(|row| kept.extend_from_slice(&row[..2 * here]));
            }
        }
        kept
    }
}

/// A small page, its codec, and for each pair of channels the means, inverse steps and steps, for the
/// engine's table.
pub fn small_task(prng: &mut Prng) -> (TestPage, QPack, Vec<Vec<u32>>) {
    let case = loop {
        let case = Case::any(prng);
        if case.page.kind.shape.dim <= 40 {
            break case;
        }
    };
    task_of(&case)
}

/// A page with statistics of its own channels, as [`small_task`] returns it.
pub fn task_of_page(page: &TestPage) -> (TestPage, QPack, Vec<Vec<u32>>) {
    task_of(&Case::of_page(page))
}

/// A page with means of zero and steps of 0.37, as [`small_task`] returns it.
pub fn plain_task(page: &TestPage) -> (TestPage, QPack, Vec<Vec<u32>>) {
    let count = page.kind.shape.token_values();
    task_of(&Case::new(page, Channels { means: vec![0.0; count], steps: vec![0.37; count] }))
}

fn task_of(case: &Case) -> (TestPage, QPack, Vec<Vec<u32>>) {
    let Channels { means, steps } = &case.channels;
    let pairs = means.chunks(2).zip(steps.chunks(2));
    let words = |(means, steps): (&[f32], &[f32])| {
        let inverses = steps.iter().map(|step| 1.0 / step);
        means.iter().copied().chain(inverses).chain(steps.iter().copied()).map(f32::to_bits).collect()
    };
    (case.page.clone(), case.codec.clone(), pairs.map(words).collect())
}

/// A page of `halves` random halves, with steps so small that each is stored as it is; else as
/// [`small_task`].
pub fn largest_task(prng: &mut Prng, halves: usize) -> (TestPage, QPack, Vec<Vec<u32>>) {
    let shape = Shape { heads: (halves / (GROUP * 128)) as u16, tokens: GROUP as u16, dim: 128 };
    let value = |_| f16::from_f32(bell(prng));
    let values: Vec<f16> = (0..shape.values()).map(value).collect();
    let page = TestPage::new("the largest page", Side::K, 0, shape, Order::TokenMajor, &values);
    let count = shape.token_values();
    task_of(&Case::new(&page, Channels { means: vec![0.0; count], steps: vec![1e-6; count] }))
}

/// An encoder with its streams.
pub struct Encoder {
    /// The module.
    pub bench: Bench,
    input: usize,
    parameters: usize,
    output: usize,
}

impl Encoder {
    /// A reset encoder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("qpack_encode", seed);
        let input = bench.input("s", &["data", "tokens", "end", "last"]);
        let parameters = bench.input("p", &["means", "inverses"]);
        let output = bench.output("m", &["data", "count", "last", "bad"]);
        bench.reset();
        Self { bench, input, parameters, output }
    }

    fn send(&mut self, case: &Case) {
        self.bench.set("bf16", case.page.bf16());
        let shape = case.page.kind.shape;
        let (dim, tokens) = (usize::from(shape.dim), usize::from(shape.tokens));
        let in_head = tokens.div_ceil(GROUP);
        let beats: Vec<&[u8]> = case.page.bytes.chunks(64).collect();
        for (at, bytes) in beats.iter().enumerate() {
            let group = at / (dim / 2) % in_head;
            let end = at % (dim / 2) == dim / 2 - 1;
            let here = (tokens - group * GROUP).min(GROUP);
            // Tokens that the page does not have must not matter.
            let mut bytes = bytes.to_vec();
            bytes.chunks_mut(2 * GROUP).for_each(|channel| channel[2 * here..].fill(0xff));
            let mut beat = words_of(&bytes, 16);
            beat.extend([here as u32, u32::from(end), u32::from(at == beats.len() - 1)]);
            self.bench.send(self.input, beat);
        }
        case.parameters(|step| 1.0 / step).into_iter().for_each(|words| self.bench.send(self.parameters, words));
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let output = self.output;
        self.bench.run(LIMIT, |bench| bench.got(output).last().is_some_and(|beat| beat[17] == 1))?;
        let beats = self.bench.take(output);
        let payload = beats.iter().flat_map(|beat| bytes_of(&beat[..16])[..beat[16] as usize].to_vec()).collect();
        Ok((beats[beats.len() - 1][18] == 0).then_some(payload))
    }
}

/// A decoder with its streams.
pub struct Decoder {
    /// The module.
    pub bench: Bench,
    input: usize,
    parameters: usize,
    output: usize,
}

impl Decoder {
    /// A reset decoder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("qpack_decode", seed);
        let input = bench.input("s", &["data", "count", "last"]);
        let parameters = bench.input("p", &["means", "steps"]);
        let output = bench.output("m", &["data", "last", "error"]);
        bench.reset();
        Self { bench, input, parameters, output }
    }

    fn send(&mut self, case: &Case, payload: &[u8]) {
        self.bench.set("bf16", case.page.bf16());
        self.bench.set("dim", case.page.kind.shape.dim.into());
        self.bench.set("groups", case.groups() as u32);
        let count = payload.len().div_ceil(64).max(1);
        for at in 0..count {
            let bytes = &payload[64 * at..payload.len().min(64 * at + 64)];
            let mut beat = words_of(bytes, 16);
            beat.extend([bytes.len() as u32, u32::from(at == count - 1)]);
            self.bench.send(self.input, beat);
        }
        case.parameters(|step| step).into_iter().for_each(|words| self.bench.send(self.parameters, words));
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let output = self.output;
        self.bench.run(LIMIT, |bench| bench.got(output).last().is_some_and(|beat| beat[16] == 1))?;
        let beats = self.bench.take(output);
        let bytes = beats.iter().flat_map(|beat| bytes_of(&beat[..16])).collect();
        Ok((beats[beats.len() - 1][17] == 0).then_some(bytes))
    }
}

fn compare_payload(case: &Case, rtl: Option<&[u8]>) -> Result<(), Failure> {
    let rust = case.payload();
    match (rtl, &rust) {
        (None, None) => Ok(()),
        (Some(rtl), Some(rust)) => same_bytes(&case.page.name, rtl, rust),
        _ => Err(format!("{}: declined by RTL {}, by Rust {}", case.page.name, rtl.is_none(), rust.is_none())),
    }
}

fn compare_page(case: &Case, payload: &[u8], rtl: Option<&[u8]>) -> Result<(), Failure> {
    let rust = case.decoded(payload);
    match (rtl, &rust) {
        (None, None) => Ok(()),
        (Some(rtl), Some(rust)) => same_bytes(&case.page.name, &case.without_padding(rtl), &case.without_padding(rust)),
        _ => Err(format!("{}: refused by RTL {}, by Rust {}", case.page.name, rtl.is_none(), rust.is_none())),
    }
}

/// Payloads of random pages and statistics, byte for byte, with random stalls.
///
/// # Errors
/// A byte differs.
pub fn encode(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut rtl = Encoder::new(seed);
    for _ in 0..6 * rounds {
        rtl.bench.pace = Pace::any(&mut prng);
        let case = Case::any(&mut prng);
        rtl.send(&case);
        let payload = rtl.receive()?;
        compare_payload(&case, payload.as_deref())?;
    }
    Ok(())
}

/// Payloads of the Rust codec, some forged, become the same pages or are refused alike.
///
/// # Errors
/// A bit differs.
pub fn decode(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut rtl = Decoder::new(seed);
    for _ in 0..6 * rounds {
        rtl.bench.pace = Pace::any(&mut prng);
        let case = Case::any(&mut prng);
        let Some(mut payload) = case.payload() else { continue };
        match prng.below(6) {
            0 => {
                let at = prng.below(payload.len() as u64) as usize;
                payload[at] = prng.next_u64() as u8;
            }
            1 => payload.truncate(prng.below(payload.len() as u64) as usize),
            // NaN in halves.
            3 => {
                let at = payload.len() - payload.len() / 4;
                payload[at..].fill(0x7d);
            }
            2 => payload.extend((0..1 + prng.below(130)).map(|_| prng.next_u64() as u8)),
            _ => {}
        }
        rtl.send(&case, &payload);
        let got = rtl.receive()?;
        compare_page(&case, &payload, got.as_deref())?;
        if got.is_none() {
            // The parameters of the page's rest are still there.
            rtl.bench.reset();
        }
        same("parameters left", &rtl.bench.is_sent(rtl.parameters), &true)?;
    }
    Ok(())
}

/// Every page goes through both modules with the statistics of its own channels.
///
/// # Errors
/// A bit differs.
pub fn pages(seed: u64, pages: &[TestPage]) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let (mut encoder, mut decoder) = (Encoder::new(seed), Decoder::new(seed));
    for page in pages {
        let case = Case::of_page(page);
        (encoder.bench.pace, decoder.bench.pace) = (Pace::any(&mut prng), Pace::any(&mut prng));
        encoder.send(&case);
        let payload = encoder.receive()?;
        compare_payload(&case, payload.as_deref())?;
        let payload = payload.ok_or_else(|| format!("{} was declined", page.name))?;
        decoder.send(&case, &payload);
        let got = decoder.receive()?;
        compare_page(&case, &payload, got.as_deref())?;
    }
    Ok(())
}

/// A reset in the middle of a page leaves nothing behind.
///
/// # Errors
/// A page after a reset differs.
pub fn reset(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let (mut encoder, mut decoder) = (Encoder::new(seed), Decoder::new(seed));
    let mut inside = [0; 2];
    for _ in 0..4 * rounds {
        let (lost, case) = (Case::any(&mut prng), Case::any(&mut prng));
        (encoder.bench.pace, decoder.bench.pace) = (Pace::any(&mut prng), Pace::any(&mut prng));
        encoder.send(&lost);
        for _ in 0..prng.below(150) {
            encoder.bench.step()?;
        }
        inside[0] += u32::from(encoder.bench.is_inside(encoder.input, encoder.output, 17));
        encoder.bench.reset();
        encoder.send(&case);
        let payload = encoder.receive()?;
        compare_payload(&case, payload.as_deref())?;
        let (Some(lost_payload), Some(payload)) = (lost.payload(), case.payload()) else { continue };
        decoder.send(&lost, &lost_payload);
        for _ in 0..prng.below(60) {
            decoder.bench.step()?;
        }
        inside[1] += u32::from(decoder.bench.is_inside(decoder.input, decoder.output, 16));
        decoder.bench.reset();
        decoder.send(&case, &payload);
        let got = decoder.receive()?;
        compare_page(&case, &payload, got.as_deref())?;
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
    pages.iter().for_each(|page| rtl.send(&Case::of_page(page)));
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
        let case = Case::of_page(page);
        rtl.send(&case, &case.payload().ok_or("a measured page was declined")?);
    }
    let output = rtl.output;
    rtl.bench.run(LIMIT, |bench| ends(bench, output, 16).len() == pages.len())?;
    Ok(Times::new(rtl.bench.sent_at(rtl.input)[0], rtl.bench.got_at(output)[0], &ends(&rtl.bench, output, 16)))
}
