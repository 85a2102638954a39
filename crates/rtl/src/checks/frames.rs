//! Headers and checksums of frames against `cenote_codec::Frame`.

use super::speckv::{beats_of, ends};
use super::streams::{bytes_of, words_of};
use super::{same, same_bytes};
use crate::bench::{Beat, Bench, Failure, Pace};
use crate::cycles::Times;
use cenote_base::prng::Prng;
use cenote_codec::{
    CodecId, Declined, DecodeError, Element, Frame, HEADER_BYTES, Layout, Order, Page, PageCodec, PageKind, PageMut,
    Shape, Side, encode,
};

const LIMIT: u64 = 10_000;
/// Bytes of a payload that the model stores (`DEPTH` of src/tops.rs).
const STORED_BYTES: usize = 256 * 64;
/// Bytes of the header that software sets; length and checksum follow.
pub const TITLE_BYTES: usize = 16;

/// A codec with one payload, so that the Rust code makes a frame of any bytes.
struct Fixed {
    id: CodecId,
    profile: u32,
    payload: Vec<u8>,
}

impl PageCodec for Fixed {
    fn id(&self) -> CodecId {
        self.id
    }

    fn profile(&self) -> u32 {
        self.profile
    }

    fn encode_payload(&self, _: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        payload.extend_from_slice(&self.payload);
        Ok(())
    }

    fn decode_payload(&self, _: &Frame<'_>, _: &mut PageMut<'_>) -> Result<(), DecodeError> {
        Err(DecodeError::Payload("nothing decodes it"))
    }
}

/// A frame of the Rust code with a random payload of up to some thousand bytes.
fn any_frame(prng: &mut Prng) -> Vec<u8> {
    let count = match prng.below(4) {
        0 => prng.below(6),
        // A last beat shorter than a checksum, or full.
        1 => 64 * (1 + prng.below(3)) + prng.below(4),
        _ => prng.below(3000),
    };
    frame_of(prng, count)
}

/// A frame with a payload of as many bytes as the model stores, some less or some more.
fn long_frame(prng: &mut Prng) -> Vec<u8> {
    let shape = Shape { heads: 4, tokens: 40, dim: 64 };
    let count = STORED_BYTES as u64 - 100 + prng.below(300);
    frame_of_shape(prng, shape, Element::F32, count)
}

/// A frame with a payload of `count` bytes, or as many as are smaller than its page.
fn frame_of(prng: &mut Prng, count: u64) -> Vec<u8> {
    let shape = Shape { heads: 1 + prng.below(4) as u16, tokens: 1 + prng.below(40) as u16, dim: 64 };
    let element = [Element::F16, Element::Bf16, Element::F32][prng.below(3) as usize];
    frame_of_shape(prng, shape, element, count)
}

fn frame_of_shape(prng: &mut Prng, shape: Shape, element: Element, count: u64) -> Vec<u8> {
    let side = [Side::K, Side::V][prng.below(2) as usize];
    let layout = Layout { order: Order::TokenMajor, capacity: shape.tokens };
    let kind = PageKind { shape, element, layout, side, layer: prng.next_u64() as u16 };
    let payload = (0..count.min(kind.bytes() as u64 - 1)).map(|_| prng.next_u64() as u8).collect();
    let id = [CodecId::SpecKv, CodecId::Oaken, CodecId::QPack][prng.below(3) as usize];
    let (codec, page) = (Fixed { id, profile: prng.next_u64() as u32, payload }, vec![0; kind.bytes()]);
    let mut frame = Vec::new();
    encode(&codec, &Page::new(kind, &page), &mut frame);
    frame
}

/// The bytes of beats of data and count; all but the last are full.
fn joined(beats: &[Beat]) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    for (at, beat) in beats.iter().enumerate() {
        if at < beats.len() - 1 {
            same("bytes of a beat", &beat[16], &64)?;
        }
        bytes.extend_from_slice(&bytes_of(&beat[..16])[..beat[16] as usize]);
    }
    Ok(bytes)
}

/// Payloads become the frames of the Rust code, byte for byte; declined pages have none, and neither
/// have those that the module cannot store. A reset in the middle leaves nothing behind.
///
/// # Errors
/// A byte differs.
pub fn frame_write(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("frame_write", seed);
    let input = bench.input("s", &["header", "limit", "data", "count", "last", "bad"]);
    let output = bench.output("m", &["data", "count", "last", "bad"]);
    bench.reset();
    for round in 0..6 * rounds {
        bench.pace = Pace::any(&mut prng);
        let mut pages = Vec::new();
        for _ in 0..1 + prng.below(4) {
            let is_long = prng.below(16) == 0;
            let frame = if is_long { long_frame(&mut prng) } else { any_frame(&mut prng) };
            let bad = prng.below(5) == 0;
            // A payload must be smaller than the limit.
            let (len, more) = ((frame.len() - HEADER_BYTES) as u32, prng.below(4) as u32);
            for mut beat in beats_of(&frame[HEADER_BYTES..], 1) {
                beat.push(u32::from(bad) & beat[17]);
                bench.send(input, [words_of(&frame[..TITLE_BYTES], 4), vec![len + more], beat].concat());
            }
            let fits = frame.len() - HEADER_BYTES <= STORED_BYTES;
            pages.push((frame, bad || more == 0 || !fits));
        }
        if round % 6 == 5 {
            for _ in 0..prng.below(100) {
                bench.step()?;
            }
            bench.reset();
            continue;
        }
        let is_last = |beat: &&Beat| beat[17] == 1;
        bench.run(LIMIT, |bench| bench.got(output).iter().filter(is_last).count() == pages.len())?;
        let beats = bench.take(output);
        for (beats, (frame, bad)) in beats.split_inclusive(|beat| beat[17] == 1).zip(&pages) {
            same("a page without a frame", &(beats[beats.len() - 1][18] == 1), bad)?;
            same_bytes("frame", &joined(beats)?, if *bad { &[] } else { frame })?;
        }
    }
    Ok(())
}

/// A frame of any title and payload, with the right length and checksum.
#[must_use]
pub fn sealed(title: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = [title, &(payload.len() as u32).to_le_bytes()].concat();
    let step = |state: u32, _| if state & 1 == 1 { state >> 1 ^ 0xedb8_8320 } else { state >> 1 };
    let byte = |state: u32, byte: &u8| (0..8).fold(state ^ u32::from(*byte), step);
    let state = frame.iter().chain(payload).fold(u32::MAX, byte);
    frame.extend((!state).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Bytes that lead a CRC-32 from a state to the same state.
fn loop_of(state: u32) -> [u8; 4] {
    let back = |state: u32, _| if state >> 31 == 1 { (state ^ 0xedb8_8320) << 1 | 1 } else { state << 1 };
    (state ^ (0..32).fold(state, back)).to_le_bytes()
}

/// Frames that only one of a reader's checks refuses: bytes behind the payload that keep its checksum,
/// and a header that is cut before a zero.
fn forged(prng: &mut Prng) -> Vec<u8> {
    let checksum = |frame: &[u8]| u32::from_le_bytes([frame[20], frame[21], frame[22], frame[23]]);
    if prng.below(2) == 0 {
        let mut frame = any_frame(prng);
        let state = !checksum(&frame);
        frame.extend(loop_of(state));
        return frame;
    }
    loop {
        let mut frame = frame_of(prng, 0);
        if checksum(&frame) >> 24 == 0 {
            frame.pop();
            return frame;
        }
    }
}

/// Changes a frame as a damaged memory or a forger would.
fn damage(prng: &mut Prng, frame: &mut Vec<u8>) {
    let at = prng.below(frame.len() as u64) as usize;
    match prng.below(6) {
        0 => frame[at] ^= 1 << prng.below(8),
        1 => frame.truncate(at),
        2 => frame.extend((0..1 + prng.below(130)).map(|_| prng.next_u64() as u8)),
        // The header alone: kind, length, checksum.
        3 => frame[at % HEADER_BYTES] ^= 1 << prng.below(8),
        _ => {}
    }
}

/// Frames of the Rust code, damaged or not, give the payloads that `Frame::parse` gives, or are
/// refused as it refuses them; so are frames of another kind.
///
/// # Errors
/// A byte or a verdict differs.
pub fn frame_read(seed: u64, rounds: u64) -> Result<(), Failure> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new("frame_read", seed);
    bench.set("takes_raw", 0);
    let input = bench.input("s", &["data", "count", "last"]);
    let output = bench.output("m", &["data", "count", "last", "bad"]);
    let header = bench.model.pin("header");
    bench.reset();
    for _ in 0..24 * rounds {
        bench.pace = Pace::any(&mut prng);
        let mut frame = if prng.below(8) == 0 { forged(&mut prng) } else { any_frame(&mut prng) };
        let mut title = frame[..TITLE_BYTES].to_vec();
        if prng.below(8) == 0 {
            title[prng.below(TITLE_BYTES as u64) as usize] ^= 1 << prng.below(8);
        }
        bench.model.set_words(header, &words_of(&title, 4));
        // Frames of a kind follow each other.
        let frames: Vec<Vec<u8>> = (0..1 + prng.below(3))
            .map(|_| {
                let sound = frame.clone();
                damage(&mut prng, &mut frame);
                std::mem::replace(&mut frame, sound)
            })
            .collect();
        if prng.below(6) == 0 {
            beats_of(&frames[0], 1).into_iter().for_each(|beat| bench.send(input, beat));
            for _ in 0..prng.below(40) {
                bench.step()?;
            }
            bench.reset();
        }
        for frame in &frames {
            beats_of(frame, 1).into_iter().for_each(|beat| bench.send(input, beat));
        }
        let is_last = |beat: &&Beat| beat[17] == 1;
        bench.run(LIMIT, |bench| bench.got(output).iter().filter(is_last).count() == frames.len())?;
        let beats = bench.take(output);
        for (beats, frame) in beats.split_inclusive(|beat| beat[17] == 1).zip(&frames) {
            let expected = Frame::parse(frame).ok().filter(|_| frame[..TITLE_BYTES] == title);
            same("a refused frame", &(beats[beats.len() - 1][18] == 1), &expected.is_none())?;
            if let Some(expected) = expected {
                same_bytes("payload", &joined(beats)?, expected.payload)?;
            }
        }
    }
    Ok(())
}

/// Cycles of both modules for pages in a row, with payloads of 64 beats.
///
/// # Errors
/// A module breaks a rule of streams.
pub fn times() -> Result<Vec<(&'static str, Times)>, Failure> {
    const PAGES: usize = 6;
    let payload = vec![7; 64 * 64];
    let title = [1, 1, 0, 0, 4, 0, 64, 0, 16, 0, 0, 0, 0, 0, 0, 0];
    let is_last = |beat: &Beat| beat[17] == 1;
    let mut all = Vec::new();
    for name in ["frame_write", "frame_read"] {
        let mut bench = Bench::new(name, 1);
        let writes = name == "frame_write";
        let fields: &[&str] =
            if writes { &["header", "limit", "data", "count", "last", "bad"] } else { &["data", "count", "last"] };
        let input = bench.input("s", fields);
        let output = bench.output("m", &["data", "count", "last", "bad"]);
        if !writes {
            let header = bench.model.pin("header");
            bench.model.set_words(header, &words_of(&title, 4));
        }
        bench.reset();
        let bytes = if writes { payload.clone() } else { sealed(&title, &payload) };
        for _ in 0..PAGES {
            for mut beat in beats_of(&bytes, 1) {
                if writes {
                    beat.push(0);
                    beat = [words_of(&title, 4), vec![8192], beat].concat();
                }
                bench.send(input, beat);
            }
        }
        bench.run(LIMIT, |bench| bench.got(output).iter().filter(|beat| is_last(beat)).count() == PAGES)?;
        if bench.got(output).iter().any(|beat| beat[18] == 1) {
            return Err(format!("{name} refuses a measured page"));
        }
        let ends = ends(&bench, output, 17);
        all.push((name, Times::new(bench.sent_at(input)[0], bench.got_at(output)[0], &ends)));
    }
    Ok(all)
}
