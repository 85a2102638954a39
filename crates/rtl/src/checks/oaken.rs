//! Oaken's engines against `cenote_codec::Oaken`.

use super::speckv::ends;
use super::streams::{bytes_of, words_of};
use super::{same, same_bytes};
use crate::bench::{Beat, Bench, Failure, Pace};
use crate::cycles::Times;
use crate::kv::{TestPage, any_page, bell_page};
use cenote_base::prng::Prng;
use cenote_codec::{CodecId, Frame, Groups, Oaken, Order, PageCodec, PageMut, Shape, Side, Thresholds};
use half::f16;

const LIMIT: u64 = 200_000;
/// Channels of a block.
const BLOCK: usize = 64;
/// Bytes of a token's bounds.
const BOUNDS: usize = 12;

/// A page with the thresholds of its values.
pub struct Case {
    page: TestPage,
    thresholds: Thresholds,
    codec: Oaken,
}

impl Case {
    fn new(page: &TestPage, thresholds: Thresholds) -> Self {
        let mut page = page.ordered(Order::TokenMajor);
        page.kind.layer = 0;
        let codec = Oaken::new(Groups::default(), vec![[thresholds.clone(), thresholds.clone()]], 1);
        Self { page, thresholds, codec }
    }

    /// A page with the thresholds of its own values.
    pub fn measured(page: &TestPage) -> Self {
        Self::new(page, Thresholds::of_sample(&Groups::default(), &page.values()))
    }

    /// Thresholds by the profile's rule, or any nested intervals.
    fn of_page(page: &TestPage, prng: &mut Prng) -> Self {
        let values: Vec<f32> = page.values().into_iter().filter(|value| value.is_finite()).collect();
        let own = Thresholds::of_sample(&Groups::default(), if values.is_empty() { &[0.0] } else { &values });
        let thresholds = match prng.below(5) {
            0 => Thresholds::new(vec![(-3.0, 2.5), (-0.01, 0.02)]).expect("nested"),
            1 => Thresholds::new(vec![(0.0, 0.0), (0.0, 0.0)]).expect("nested"),
            2 => Thresholds::new(vec![(-1e-6, 1e-7), (-1e-7, -0.0)]).expect("nested"),
            _ => own,
        };
        Self::new(page, thresholds)
    }

    fn any(prng: &mut Prng) -> Self {
        let dim = [64, 64, 128, 192][prng.below(4) as usize];
        let shape = Shape { heads: 1 + prng.below(3) as u16, tokens: 1 + prng.below(6) as u16, dim };
        Self::of_shape(prng, shape)
    }

    /// Any page of a shape.
    pub fn of_shape(prng: &mut Prng, shape: Shape) -> Self {
        let page = any_page(prng, shape);
        Self::of_page(&page, prng)
    }

    /// A page in which the first `outliers` of each 32 channels are outliers. One value of a token in
    /// the middle is not finite.
    pub fn of_outliers(prng: &mut Prng, shape: Shape, outliers: usize) -> Self {
        let bad = shape.head_values() / 2;
        let value = |at: usize| match at {
            _ if at == bad => f16::INFINITY,
            _ if at % 32 < outliers => f16::from_f32(1.0 + prng.next_f64() as f32),
            _ => f16::from_f32(0.5),
        };
        let values: Vec<f16> = (0..shape.values()).map(value).collect();
        let page = TestPage::new("a page of outliers", Side::K, 0, shape, Order::TokenMajor, &values);
        Self::new(&page, Thresholds::new(vec![(-0.9, 0.9), (-0.1, 0.1)]).expect("nested"))
    }

    /// The codec with the thresholds.
    #[must_use]
    pub const fn codec(&self) -> &Oaken {
        &self.codec
    }

    /// A token's values, `[head][channel]`.
    #[must_use]
    pub fn token_values(&self, token: usize) -> Vec<f32> {
        let ((heads, tokens, dim), values) = (self.shape(), self.page.values());
        let row = |head: usize| values[(head * tokens + token) * dim..][..dim].to_vec();
        (0..heads).flat_map(row).collect()
    }

    /// The beats of each token, with the mark of its last one.
    #[must_use]
    pub fn token_beats(&self) -> Vec<Vec<Beat>> {
        let of_token = |token: usize| {
            let ((heads, tokens, dim), bits) = (self.shape(), self.page.bits());
            let row = |head: usize| &bits[(head * tokens + token) * dim..][..dim];
            let bytes: Vec<u8> = (0..heads).flat_map(row).flat_map(|bits| bits.to_le_bytes()).collect();
            let count = bytes.len() / 64;
            let beat = |(at, bytes): (usize, &[u8])| [words_of(bytes, 16), vec![u32::from(at == count - 1)]].concat();
            bytes.chunks(64).enumerate().map(beat).collect()
        };
        (0..self.shape().1).map(of_token).collect()
    }

    /// Heads, tokens, channels.
    #[must_use]
    pub fn shape(&self) -> (usize, usize, usize) {
        let Shape { heads, tokens, dim } = self.page.kind.shape;
        (heads.into(), tokens.into(), dim.into())
    }

    /// Whether the values are bfloats.
    #[must_use]
    pub fn bf16(&self) -> u32 {
        self.page.bf16()
    }

    /// Sets a module's ports of thresholds and of the element type.
    pub fn set_thresholds(&self, bench: &mut Bench) {
        bench.set("bf16", self.bf16());
        let pin = bench.model.pin("thresholds");
        bench.model.set_words(pin, &self.threshold_words());
    }

    /// The ends of the intervals, the outer one first, as bits of singles.
    #[must_use]
    pub fn threshold_words(&self) -> Vec<u32> {
        self.thresholds.intervals().iter().flat_map(|(low, high)| [low.to_bits(), high.to_bits()]).collect()
    }

    /// The payload that an encoder's beats of a page are; `None`: a token was declined.
    fn put_together(&self, beats: &[Beat]) -> Result<Option<Vec<u8>>, Failure> {
        let (heads, tokens, dim) = self.shape();
        let in_head = dim / 32;
        if beats.iter().any(|beat| beat[18] == 1) {
            return Ok(None);
        }
        let (mut bounds, mut dense, mut counts, mut entries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for token in beats.chunks(heads * in_head) {
            bounds.extend(bytes_of(&token[0][13..16]));
            for (at, beat) in token.iter().enumerate() {
                same("first beat of a token", &beat[16], &u32::from(at == 0))?;
                same("last beat of a token", &beat[17], &u32::from(at == token.len() - 1))?;
            }
        }
        let beat_at = |head: usize, token: usize, at: usize| &beats[(token * heads + head) * in_head + at];
        for head in 0..heads {
            for token in 0..tokens {
                for at in 0..in_head {
                    let beat = beat_at(head, token, at);
                    dense.extend(bytes_of(&beat[..4]));
                    entries.extend_from_slice(&bytes_of(&beat[4..12])[..beat[12] as usize]);
                    if at % 2 == 0 {
                        counts.push((beat[12] + beat_at(head, token, at + 1)[12]) as u8);
                    }
                }
            }
        }
        Ok(Some([bounds, dense, counts, entries].concat()))
    }

    fn payload(&self) -> Option<Vec<u8>> {
        let mut payload = Vec::new();
        self.codec.encode_payload(&self.page.page(), &mut payload).ok().map(|()| payload)
    }

    fn decoded(&self, payload: &[u8]) -> Option<Vec<u8>> {
        self.decoded_tokens(payload, self.page.kind.shape.tokens)
    }

    /// The page of a payload of `tokens` tokens by the Rust codec; `None`: the payload is invalid.
    #[must_use]
    pub fn decoded_tokens(&self, payload: &[u8], tokens: u16) -> Option<Vec<u8>> {
        let mut kind = self.page.kind;
        kind.shape.tokens = tokens;
        kind.layout.capacity = tokens;
        let mut bytes = vec![0; kind.bytes()];
        let frame = Frame {
            codec: CodecId::Oaken,
            version: 1,
            element: kind.element,
            side: kind.side,
            shape: kind.shape,
            layer: 0,
            profile: 1,
            payload,
        };
        self.codec.decode_payload(&frame, &mut PageMut::new(kind, &mut bytes)).ok().map(|()| bytes)
    }
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
        let mut bench = Bench::new("oaken_encode", seed);
        let input = bench.input("s", &["data", "last"]);
        let output = bench.output("m", &["dense", "entries", "outliers", "bounds", "first", "last", "bad"]);
        bench.reset();
        Self { bench, input, output }
    }

    fn send(&mut self, case: &Case) {
        case.set_thresholds(&mut self.bench);
        case.token_beats().into_iter().flatten().for_each(|beat| self.bench.send(self.input, beat));
    }

    /// The payload of a page; `None`: a token was declined.
    fn receive(&mut self, case: &Case) -> Result<Option<Vec<u8>>, Failure> {
        let (heads, tokens, dim) = case.shape();
        let (output, total) = (self.output, heads * tokens * dim / 32);
        self.bench.run(LIMIT, |bench| bench.got(output).len() == total)?;
        case.put_together(&self.bench.take(output))
    }
}

/// A decoder with its streams.
pub struct Decoder {
    /// The module.
    pub bench: Bench,
    bounds: usize,
    blocks: usize,
    entries: usize,
    output: usize,
}

impl Decoder {
    /// A reset decoder.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bench = Bench::new("oaken_decode", seed);
        let bounds = bench.input("t", &["bounds", "last"]);
        let blocks = bench.input("d", &["dense", "outliers"]);
        let entries = bench.input("e", &["data", "count", "last"]);
        let output = bench.output("m", &["data", "last", "error"]);
        bench.reset();
        Self { bench, bounds, blocks, entries, output }
    }

    fn send(&mut self, case: &Case, payload: &[u8]) {
        case.set_thresholds(&mut self.bench);
        let (heads, tokens, dim) = case.shape();
        self.bench.set("row_blocks", (dim / BLOCK) as u32);
        self.bench.set("heads", heads as u32);
        let (bounds, rest) = payload.split_at(tokens * BOUNDS);
        let (dense, rest) = rest.split_at(heads * tokens * dim / 2);
        let (counts, entries) = rest.split_at(heads * tokens * dim / BLOCK);
        for (token, bounds) in bounds.chunks(BOUNDS).enumerate() {
            let mut beat = words_of(bounds, 3);
            beat.push(u32::from(token == tokens - 1));
            self.bench.send(self.bounds, beat);
        }
        for (dense, count) in dense.chunks(BLOCK / 2).zip(counts) {
            let mut beat = words_of(dense, 8);
            beat.push((*count).into());
            self.bench.send(self.blocks, beat);
        }
        let count = entries.len().div_ceil(64).max(1);
        for at in 0..count {
            let bytes = &entries[64 * at..entries.len().min(64 * at + 64)];
            let mut beat = words_of(bytes, 16);
            beat.extend([bytes.len() as u32, u32::from(at == count - 1)]);
            self.bench.send(self.entries, beat);
        }
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let output = self.output;
        self.bench.run(LIMIT, |bench| bench.got(output).last().is_some_and(|beat| beat[16] == 1))?;
        // Blocks of a page that failed are still to be skipped.
        let blocks = self.blocks;
        self.bench.run(LIMIT, |bench| bench.is_sent(blocks))?;
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
        (Some(rtl), Some(rust)) => same_bytes(&case.page.name, rtl, rust),
        _ => Err(format!("{}: refused by RTL {}, by Rust {}", case.page.name, rtl.is_none(), rust.is_none())),
    }
}

/// Payloads of random pages and thresholds, byte for byte, with random stalls.
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
        let payload = rtl.receive(&case)?;
        compare_payload(&case, payload.as_deref())?;
    }
    Ok(())
}

/// Payloads of the Rust codec, most of them forged, become the same pages or are refused alike.
///
/// # Errors
/// A bit differs.
pub fn decode(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut rtl = Decoder::new(seed);
    for round in 0..8 * rounds {
        rtl.bench.pace = Pace::any(&mut prng);
        let case = Case::any(&mut prng);
        let Some(mut payload) = case.payload() else { continue };
        let (heads, tokens, dim) = case.shape();
        let (dense_at, counts_at) = (tokens * BOUNDS, tokens * BOUNDS + heads * tokens * dim / 2);
        let blocks = heads * tokens * dim / BLOCK;
        match round % 8 {
            // Any dense code.
            0 => {
                let at = dense_at + prng.below((counts_at - dense_at) as u64) as usize;
                payload[at] = prng.next_u64() as u8;
            }
            // A number of outliers moves entries between blocks, where places may repeat.
            1 => payload[counts_at + prng.below(blocks as u64) as usize] = prng.below(70) as u8,
            2 => payload.extend((0..1 + prng.below(70)).map(|_| prng.next_u64() as u8)),
            3 if payload.len() > counts_at + blocks => _ = payload.pop(),
            // Bounds that are not finite, in their order or NaN; in any order; or zeros of both signs.
            4 | 5 => {
                let at = 2 * prng.below((tokens * BOUNDS / 2) as u64) as usize;
                let infinity = [0xfc00, 0x7c00][at / 2 % 2];
                let bits = match prng.below(4) {
                    _ if round % 8 == 4 => [infinity, infinity, 0x7e00][prng.below(3) as usize],
                    0 | 1 => prng.next_u64() as u16,
                    2 => [0x0000, 0x8000][prng.below(2) as usize],
                    _ => u16::from_le_bytes([payload[at], payload[at + 1]]) ^ 0x8000,
                };
                payload[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
            // Entries of any place and group.
            6 => payload[counts_at + blocks..].iter_mut().for_each(|entry| *entry = prng.next_u64() as u8),
            _ => {}
        }
        rtl.send(&case, &payload);
        let got = rtl.receive()?;
        compare_page(&case, &payload, got.as_deref())?;
    }
    Ok(())
}

/// Every page goes through both engines.
///
/// # Errors
/// A bit differs.
pub fn pages(seed: u64, pages: &[TestPage]) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let (mut encoder, mut decoder) = (Encoder::new(seed), Decoder::new(seed));
    for page in pages {
        let case = Case::measured(page);
        (encoder.bench.pace, decoder.bench.pace) = (Pace::any(&mut prng), Pace::any(&mut prng));
        encoder.send(&case);
        let payload = encoder.receive(&case)?;
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
        let payload = encoder.receive(&case)?;
        compare_payload(&case, payload.as_deref())?;
        let (Some(lost_payload), Some(payload)) = (lost.payload(), case.payload()) else { continue };
        decoder.send(&lost, &lost_payload);
        // Blocks wait for the grids of their tokens.
        let (some, mut is_inside) = (prng.below(150), false);
        for step in 0..600 {
            decoder.bench.step()?;
            is_inside = decoder.bench.is_inside(decoder.blocks, decoder.output, 16);
            if step >= some && is_inside {
                break;
            }
        }
        inside[1] += u32::from(is_inside);
        decoder.bench.reset();
        decoder.send(&case, &payload);
        let got = decoder.receive()?;
        compare_page(&case, &payload, got.as_deref())?;
    }
    // Otherwise nothing was tested.
    same("resets with a page inside", &inside.map(|count| count > 0), &[true; 2])
}

/// Heads, tokens and channels of pages that stream. Tokens have from two beats, the shortest, to 88, the
/// longest that the encoder's head states.
const STREAMED: [(u16, u16, u16); 6] = [(1, 16, 64), (2, 16, 64), (3, 7, 128), (8, 5, 128), (1, 64, 64), (11, 3, 256)];
/// Cycles more than beats that a page may take in the decoder: its entries end.
const OF_END: u64 = 2;

/// Without stalls, the encoder takes and gives a beat of 32 values in every cycle, and the decoder gives
/// one, whatever the shape. The bytes are those of the Rust codec.
///
/// # Errors
/// A cycle has no beat, or a byte differs.
pub fn stream(seed: u64, _: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let (mut encoder, mut decoder) = (Encoder::new(seed), Decoder::new(seed));
    for (heads, tokens, dim) in STREAMED {
        // Values of any kind: many outliers, and empty groups.
        let shape = Shape { heads, tokens, dim };
        let page = bell_page(&mut prng, shape);
        let case = Case::of_page(&page, &mut prng);
        let payload = case.payload().ok_or_else(|| format!("{shape:?} was declined"))?;
        let (pages, beats) = (6, usize::from(heads) * usize::from(tokens) * usize::from(dim) / 32);
        let is_gapless = |what: &str, cycles: &[u64]| {
            let took = cycles.last().zip(cycles.first()).map_or(0, |(last, first)| last - first + 1);
            same(&format!("cycles of {what} of {pages} pages of {shape:?}"), &took, &((pages * beats) as u64))
        };
        (0..pages).for_each(|_| encoder.send(&case));
        let output = encoder.output;
        encoder.bench.run(LIMIT, |bench| bench.got(output).len() == pages * beats)?;
        is_gapless("beats into the encoder", encoder.bench.sent_at(encoder.input))?;
        is_gapless("beats out of the encoder", encoder.bench.got_at(output))?;
        let beats_out = encoder.bench.take(output);
        for beats in beats_out.chunks(beats) {
            compare_payload(&case, case.put_together(beats)?.as_deref())?;
        }

        (0..pages).for_each(|_| decoder.send(&case, &payload));
        let output = decoder.output;
        decoder.bench.run(LIMIT, |bench| ends(bench, output, 16).len() == pages)?;
        let (cycles, ends) = (decoder.bench.got_at(output).to_vec(), ends(&decoder.bench, output, 16));
        same("beats out of the decoder", &cycles.len(), &(pages * beats))?;
        for (cycles, pair) in cycles.chunks(beats).skip(1).zip(ends.windows(2)) {
            let (within, more) = (cycles[beats - 1] - cycles[0] + 1, pair[1] - pair[0] - beats as u64);
            same(&format!("cycles of a page of {shape:?} in the decoder"), &within, &(beats as u64))?;
            same(&format!("{more} cycles between pages of {shape:?} are few"), &(more <= OF_END), &true)?;
        }
        for beats in decoder.bench.take(output).chunks(beats) {
            let bytes: Vec<u8> = beats.iter().flat_map(|beat| bytes_of(&beat[..16])).collect();
            same("error", &beats[beats.len() - 1][17], &0)?;
            compare_page(&case, &payload, Some(&bytes))?;
        }
    }
    Ok(())
}

/// Cycles of the encoder for pages in a row; it knows tokens only.
///
/// # Errors
/// The module breaks a rule of streams.
pub fn times_of_encoder(pages: &[TestPage]) -> Result<Times, Failure> {
    let mut rtl = Encoder::new(1);
    let case = Case::measured(&pages[0]);
    pages.iter().for_each(|_| rtl.send(&case));
    let (output, tokens) = (rtl.output, usize::from(case.page.kind.shape.tokens));
    rtl.bench.run(LIMIT, |bench| ends(bench, output, 17).len() == pages.len() * tokens)?;
    let last_tokens: Vec<u64> = ends(&rtl.bench, output, 17).into_iter().skip(tokens - 1).step_by(tokens).collect();
    Ok(Times::new(rtl.bench.sent_at(rtl.input)[0], rtl.bench.got_at(output)[0], &last_tokens))
}

/// Cycles of the decoder for payloads in a row.
///
/// # Errors
/// The module breaks a rule of streams.
pub fn times_of_decoder(pages: &[TestPage]) -> Result<Times, Failure> {
    let mut rtl = Decoder::new(1);
    let case = Case::measured(&pages[0]);
    let payload = case.payload().ok_or("a measured page was declined")?;
    pages.iter().for_each(|_| rtl.send(&case, &payload));
    let output = rtl.output;
    rtl.bench.run(LIMIT, |bench| ends(bench, output, 16).len() == pages.len())?;
    Ok(Times::new(rtl.bench.sent_at(rtl.bounds)[0], rtl.bench.got_at(output)[0], &ends(&rtl.bench, output, 16)))
}
