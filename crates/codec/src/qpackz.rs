//! QPackZ: QPack's codes, entropy-coded. It takes half a bit less a value and decodes slower, for
//! data that is seldom read.
//!
//! Codes and the bound on the error are [`crate::QPack`]'s. Tables of probabilities come from the
//! profile: it has the distribution of a layer's values in deviations of their channel. A channel's
//! step says which values share a code. So there is a table for each ratio of step and deviation,
//! in quarters of an octave. No page stores a table. Codes outside a table are escaped.
//!
//! Payload: the number of escaped codes, `u16` · these codes, `i16` each, in order · the states of
//! a range coder (rANS, Duda 2013; 12 bits of probability, 16-bit words), `u32` each · words, in
//! the order of decoding. Codes are in the order `[head][token / 16][channel][token % 16]`. State
//! `t` has the codes of tokens `t`, `16 + t` and so on: there are sixteen states, or one for each
//! token if these are fewer. So a channel's sixteen codes use one table and independent states.

use crate::codec::PageCodec;
use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::page::{Page, PageMut, Shape, Side};
use crate::profile::{Curve, Profile, SideProfile};
use crate::qpack::{self, Channels, GROUP};
use crate::simd::ByLevel;
use crate::tile::{Axis, EDGE, Span, Tile};
use std::collections::BTreeMap;
use std::slice::ChunksExact;

#[cfg(target_arch = "x86_64")]
mod avx2;

/// One state of the coder for each token.
pub(crate) type States = [u32; GROUP];
/// Places of symbols in a table, by the symbol's bits.
pub(crate) type Places = [Place; 256];
/// Room for one word of each state.
pub(crate) type Words = [u8; 2 * GROUP];

/// The kernels of QPackZ. Callers must guarantee that the machine has the level.
pub(crate) struct Kernels {
    pub push: unsafe fn(&mut States, &[i8; GROUP], &Places, &mut Words) -> usize,
    /// Takes the next symbol from each of the first states; how many is the last argument, up to 16.
    pub symbols: unsafe fn(&mut Decoder<'_>, &Slots, &mut [i8; GROUP], usize),
    decode: unsafe fn(&mut Decoder<'_>, &Part, &mut PageMut<'_>) -> Result<(), DecodeError>,
}

pub(crate) static KERNELS: ByLevel<Kernels> = ByLevel {
    scalar: Kernels { push, symbols, decode },
    #[cfg(target_arch = "x86_64")]
    avx2: Kernels { push: avx2::push, symbols: avx2::symbols, decode: avx2::decode },
    #[cfg(target_arch = "x86_64")]
    avx512: Kernels { push: avx2::push, symbols: avx2::symbols, decode: avx2::decode },
};

/// Bits of a probability.
pub(crate) const BITS: u32 = 12;
const TOTAL: u32 = 1 << BITS;
/// Between codes, states are at least this and less than 65,536 times this: 31 bits, for quotients
/// by products.
pub(crate) const LOW: u32 = 1 << 15;
/// The most codes of a table on each side of the mean.
const REACH: i32 = 127;
/// Symbol of an escaped code.
pub(crate) const ESCAPE: i8 = i8::MIN;
/// Tables in an octave of the ratio of step and deviation.
const TABLES_PER_OCTAVE: f64 = 4.0;

/// By the lower bits of a state: the symbol (bits 24 to 31), the width of its range (12 to 23) and
/// the offset in it (0 to 11).
pub(crate) type Slots = [u32; TOTAL as usize];

/// The probabilities of codes for one ratio of step and deviation.
#[derive(Debug)]
pub(crate) struct Table {
    /// The least and the greatest code of the table.
    codes: (i16, i16),
    pub slots: Box<Slots>,
    /// By symbol, as eight bits.
    pub places: Box<Places>,
}

/// The range of a symbol, for encoding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// States from here on give up a word first.
    limit: u32,
    /// The inverse of the width, as a fraction of `1 << (32 + shift)`: products with states round
    /// down to quotients.
    inverse: u32,
    shift: u32,
    /// The start of the range.
    start: u16,
    /// All probability outside the range.
    rest: u16,
}

impl Place {
    fn new(start: u32, width: u32) -> Self {
        let (limit, rest) = (width << (31 - BITS), (TOTAL - width) as u16);
        if width == 1 {
            // The inverse 2^32 does not fit. Quotients are less by one, which the start
            // compensates.
            return Self { limit, inverse: u32::MAX, shift: 0, start: (start + TOTAL - 1) as u16, rest };
        }
        // Granlund and Montgomery 1994: exact for 31 bits.
        let shift = (width - 1).ilog2();
        let inverse = (1_u64 << (32 + shift)).div_ceil(width.into()) as u32;
        Self { limit, inverse, shift, start: start as u16, rest }
    }
}

impl Table {
    /// A table for values after `curve`, in deviations, and for a step in deviations.
    fn new(curve: &Curve, step: f64) -> Self {
        let code = |value: f32| (f64::from(value) / step).round().clamp(-f64::from(REACH), f64::from(REACH)) as i32;
        let (least, greatest) = (code(curve[0]), code(curve[curve.len() - 1]));
        let below = |value: f64| share_below(curve, value);
        let share = |code: i32| below((f64::from(code) + 0.5) * step) - below((f64::from(code) - 0.5) * step);
        Self::of_shares(least, &(least..=greatest).map(share).collect::<Vec<f64>>())
    }

    /// A table for codes from `least` on with these probabilities. All codes are between -127 and 127.
    pub(crate) fn of_shares(least: i32, shares: &[f64]) -> Self {
        // Each possible code and the escape get one slot; probabilities share the rest.
        let (count, greatest) = (shares.len(), least + shares.len() as i32 - 1);
        let spare = f64::from(TOTAL) - (count + 1) as f64;
        let mut widths: Vec<u32> = shares.iter().map(|share| 1 + (share * spare).floor() as u32).chain([1]).collect();
        let rest = TOTAL - widths.iter().sum::<u32>();
        let most = (0..count).max_by_key(|&at| widths[at]).expect("there is one code at least");
        widths[most] += rest;
        let mut slots = Vec::with_capacity(TOTAL as usize);
        let mut places = Box::new([Place::default(); 256]);
        // The escape comes last. Codes outside the table share its range.
        for (code, &width) in (least..greatest + 2).zip(&widths).rev() {
            let place = Place::new(TOTAL - width - slots.len() as u32, width);
            let symbol = if code > greatest { ESCAPE } else { code as i8 };
            if symbol == ESCAPE {
                places.fill(place);
            }
            places[usize::from(symbol.cast_unsigned())] = place;
            let of_symbol = u32::from(symbol.cast_unsigned()) << 24 | width << BITS;
            slots.extend((0..width).rev().map(|offset| of_symbol | offset));
        }
        slots.reverse();
        let slots = slots.try_into().expect("widths make up all");
        Self { codes: (least as i16, greatest as i16), slots, places }
    }

    /// The symbol of a code: the code, if the table has it.
    #[inline]
    pub(crate) fn symbol(&self, code: i16) -> i8 {
        if (self.codes.0..=self.codes.1).contains(&code) { code as i8 } else { ESCAPE }
    }
}

/// The share of values below `value`.
fn share_below(curve: &Curve, value: f64) -> f64 {
    let at = curve.partition_point(|point| f64::from(*point) < value);
    let last = curve.len() - 1;
    match at {
        0 => 0.0,
        at if at > last => 1.0,
        at => {
            let (below, above) = (f64::from(curve[at - 1]), f64::from(curve[at]));
            (at as f64 - 1.0 + (value - below) / (above - below).max(f64::MIN_POSITIVE)) / last as f64
        }
    }
}

/// One side of a layer.
#[derive(Debug)]
pub(crate) struct Part {
    pub channels: Channels,
    tables: Vec<Table>,
    /// The table of each channel.
    table_of: Vec<u16>,
}

impl Part {
    fn new(side: &SideProfile, rate: f32) -> Self {
        let steps: Vec<f32> = side.steps.iter().map(|step| step * rate).collect();
        let class = |(step, deviation): (&f32, &f32)| {
            let ratio = f64::from(*step) / f64::from(*deviation).max(1e-30);
            (ratio.log2().clamp(-6.0, 6.0) * TABLES_PER_OCTAVE).round() as i32
        };
        let classes: Vec<i32> = steps.iter().zip(&side.deviations).map(class).collect();
        let mut numbers: BTreeMap<i32, u16> = classes.iter().map(|class| (*class, 0)).collect();
        numbers.values_mut().enumerate().for_each(|(number, slot)| *slot = number as u16);
        let tables =
            numbers.keys().map(|class| Table::new(&side.normal, (f64::from(*class) / TABLES_PER_OCTAVE).exp2()));
        Self {
            tables: tables.collect(),
            table_of: classes.iter().map(|class| numbers[class]).collect(),
            channels: Channels { means: side.means.clone(), steps },
        }
    }

    fn table(&self, channel: usize) -> &Table {
        &self.tables[usize::from(self.table_of[channel])]
    }

    pub fn slots(&self, channel: usize) -> &Slots {
        &self.table(channel).slots
    }
}

/// Steps, means and tables of all layers.
#[derive(Debug)]
pub struct QPackZ {
    parts: Vec<[Part; 2]>,
    profile: u32,
}

impl QPackZ {
    /// A codec at a rate: the profile's steps times the rate. `id` is the id of both in frames.
    /// `None`: some steps are too small or too large.
    #[must_use]
    pub fn new(profile: &Profile, rate: f32, id: u32) -> Option<Self> {
        let parts: Vec<[Part; 2]> =
            profile.layers.iter().map(|sides| sides.each_ref().map(|side| Part::new(side, rate))).collect();
        parts.iter().flatten().all(|part| part.channels.is_sound()).then_some(Self { parts, profile: id })
    }

    fn part(&self, layer: u16, side: Side, channels: usize) -> Option<&Part> {
        let part = &self.parts.get(usize::from(layer))?[side as usize];
        (part.channels.means.len() == channels).then_some(part)
    }
}

impl PageCodec for QPackZ {
    fn id(&self) -> CodecId {
        CodecId::QPackZ
    }

    fn profile(&self) -> u32 {
        self.profile
    }

    fn encode_payload(&self, page: &Page<'_>, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let kind = page.kind();
        let (shape, dim) = (kind.shape, usize::from(kind.shape.dim));
        let part = self.part(kind.layer, kind.side, shape.token_values()).ok_or(Declined)?;
        let kernels = qpack::KERNELS.current();
        let mut symbols = Vec::with_capacity(shape.values().next_multiple_of(GROUP));
        let (mut escaped, mut tile) = (Vec::new(), [0; EDGE * EDGE]);
        for span in Span::all(shape) {
            let first = span.head * dim + span.channel;
            let [means, steps] =
                [&part.channels.means, &part.channels.steps].map(|all| &all[first..first + span.channels]);
            // SAFETY: `current` returns kernels of a level of this machine.
            unsafe { (kernels.codes)(page, &span, means, steps, &mut tile)? };
            for (channel, codes) in tile.as_chunks::<GROUP>().0.iter().enumerate().take(span.channels) {
                let table = part.table(span.head * dim + span.channel + channel);
                let row = codes.map(|code| table.symbol(code));
                if row.contains(&ESCAPE) {
                    let without = |(code, symbol): (&i16, &i8)| (*symbol == ESCAPE).then_some(*code);
                    escaped.extend(codes[..span.tokens].iter().zip(&row).filter_map(without));
                }
                symbols.push(row);
            }
        }
        if escaped.iter().any(|code| [i16::MIN, i16::MAX].contains(code)) {
            return Err(Declined);
        }
        payload.extend(u16::try_from(escaped.len()).map_err(|_| Declined)?.to_le_bytes());
        escaped.iter().for_each(|code| payload.extend(code.to_le_bytes()));
        compress(&symbols, part, shape, payload);
        Ok(())
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let part = self.part(frame.layer, frame.side, frame.shape.token_values());
        let part = part.ok_or(DecodeError::Payload("the profile has no steps for this layer"))?;
        let mut decoder = Decoder::new(frame).ok_or(DecodeError::Payload("states are missing"))?;
        // SAFETY: `current` returns kernels of a level of this machine.
        unsafe { (KERNELS.current().decode)(&mut decoder, part, page)? };
        decoder.end()
    }
}

/// Appends the states and words of the symbols of a page's channels, in their order.
fn compress(symbols: &[[i8; GROUP]], part: &Part, shape: Shape, payload: &mut Vec<u8>) {
    let (dim, tokens) = (usize::from(shape.dim), usize::from(shape.tokens));
    let states_at = payload.len();
    let words_at = states_at + 4 * tokens.min(GROUP);
    // Encoding runs backwards: the last word is first, and each symbol has at most one.
    payload.resize(words_at + 2 * GROUP * symbols.len(), 0);
    let (mut states, mut at) = ([LOW; GROUP], payload.len());
    let (mut rest, groups, push) = (symbols, tokens.div_ceil(GROUP), KERNELS.current().push);
    for head in (0..usize::from(shape.heads)).rev() {
        for group in (0..groups).rev() {
            let here = (tokens - group * GROUP).min(GROUP);
            for channel in (0..dim).rev() {
                let Some((row, before)) = rest.split_last() else { unreachable!("a row for each channel") };
                rest = before;
                let places = &part.table(head * dim + channel).places;
                at -= 2 * GROUP;
                let room = payload[at..].first_chunk_mut().expect("a word for each symbol");
                at += if here == GROUP {
                    // SAFETY: `current` returns kernels of a level of this machine.
                    unsafe { (push)(&mut states, row, places, room) }
                } else {
                    push_all(&mut states, row, places, room, here)
                };
            }
        }
    }
    for (bytes, state) in payload[states_at..words_at].chunks_exact_mut(4).zip(states) {
        bytes.copy_from_slice(&state.to_le_bytes());
    }
    payload.copy_within(at.., words_at);
    payload.truncate(words_at + payload.len() - at);
}

/// Adds up to sixteen symbols to their states, last first. Stores words at the end of the room;
/// returns where they begin.
#[inline(always)]
pub(crate) fn push_all(
    states: &mut States,
    symbols: &[i8; GROUP],
    places: &Places,
    room: &mut Words,
    count: usize,
) -> usize {
    let room = room.as_chunks_mut().0;
    let mut at = GROUP;
    for (state, symbol) in states.iter_mut().zip(symbols).take(count).rev() {
        let place = places[usize::from(symbol.cast_unsigned())];
        // The word is always written, and kept if the state overflows: a branch would be
        // mispredicted.
        room[(at - 1) % GROUP] = (*state as u16).to_le_bytes();
        let is_full = u32::from(*state >= place.limit);
        at -= is_full as usize;
        let left = *state >> (16 * is_full);
        let product = u64::from(left) * u64::from(place.inverse);
        let quotient = (product >> 32) as u32 >> place.shift;
        *state = left + u32::from(place.start) + quotient * u32::from(place.rest);
    }
    2 * at
}

/// [`push_all`] of sixteen.
fn push(states: &mut States, symbols: &[i8; GROUP], places: &Places, room: &mut Words) -> usize {
    push_all(states, symbols, places, room, GROUP)
}

fn symbols(decoder: &mut Decoder<'_>, slots: &Slots, symbols: &mut [i8; GROUP], count: usize) {
    decoder.next_symbols(slots, &mut symbols[..count]);
}

/// Decodes all codes to a page.
fn decode(decoder: &mut Decoder<'_>, part: &Part, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
    let (shape, mut tile) = (page.kind().shape, Tile::ZERO);
    for span in Span::all(shape) {
        for (channel, row) in tile.0.as_chunks_mut::<GROUP>().0.iter_mut().enumerate().take(span.channels) {
            let of = span.head * usize::from(shape.dim) + span.channel + channel;
            let (mean, step) = (part.channels.means[of], part.channels.steps[of]);
            let mut symbols = [0; GROUP];
            decoder.next_symbols(part.slots(of), &mut symbols[..span.tokens]);
            for (value, symbol) in row.iter_mut().zip(symbols).take(span.tokens) {
                let code = if symbol == ESCAPE { decoder.next_escaped()? } else { symbol.into() };
                *value = f32::from(code) * step + mean;
            }
        }
        page.store_tile(&span, Axis::Channels, &tile);
    }
    Ok(())
}

/// The state of decoding.
pub(crate) struct Decoder<'a> {
    pub states: States,
    words: &'a [u8],
    /// Words taken; more than there are if some are missing.
    pub taken: usize,
    escaped: ChunksExact<'a, u8>,
}

impl<'a> Decoder<'a> {
    /// `None`: the payload is cut short.
    fn new(frame: &Frame<'a>) -> Option<Self> {
        Self::over(frame.payload, frame.shape.tokens.into())
    }

    /// Of the escaped codes, states and words of `tokens` tokens. `None`: they are cut short.
    pub fn over(payload: &'a [u8], tokens: usize) -> Option<Self> {
        let (count, rest) = payload.split_first_chunk::<2>()?;
        let (escaped, rest) = rest.split_at_checked(2 * usize::from(u16::from_le_bytes(*count)))?;
        let (of_states, words) = rest.split_at_checked(4 * tokens.min(GROUP))?;
        let mut states = [LOW; GROUP];
        for (state, bytes) in states.iter_mut().zip(of_states.as_chunks().0) {
            *state = u32::from_le_bytes(*bytes);
        }
        Some(Self { states, words, taken: 0, escaped: escaped.chunks_exact(2) })
    }

    /// As many words as a channel may take, as bytes. Zeros follow the last word.
    #[inline]
    pub fn window<'b>(&self, padded: &'b mut Words) -> &'b Words
    where
        'a: 'b,
    {
        let rest = self.words.get(2 * self.taken..).unwrap_or_default();
        rest.first_chunk().unwrap_or_else(|| {
            padded[..rest.len()].copy_from_slice(rest);
            padded
        })
    }

    /// The next escaped code.
    pub fn next_escaped(&mut self) -> Result<i16, DecodeError> {
        let code = self.escaped.next().ok_or(DecodeError::Payload("an escaped code is missing"))?;
        Ok(i16::from_le_bytes([code[0], code[1]]))
    }

    /// Takes the next symbol from each of the first states.
    pub fn next_symbols(&mut self, slots: &Slots, symbols: &mut [i8]) {
        let mut padded = [0; 2 * GROUP];
        let (window, mut taken) = (self.window(&mut padded), 0);
        for (state, symbol) in self.states.iter_mut().zip(symbols) {
            let slot = slots[(*state % TOTAL) as usize];
            let next = (slot >> BITS) % TOTAL * (*state >> BITS) + slot % TOTAL;
            let word = u16::from_le_bytes([window[2 * taken], window[2 * taken + 1]]);
            let is_low = next < LOW;
            *state = if is_low { next << 16 | u32::from(word) } else { next };
            taken += usize::from(is_low);
            *symbol = (slot >> 24) as i8;
        }
        self.taken += taken;
    }

    /// Checks the end: states are those in which encoding began, and no bytes are left.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.states != [LOW; GROUP] || 2 * self.taken != self.words.len() || self.escaped.len() > 0 {
            return Err(DecodeError::Payload("final states or lengths differ from those of encoding"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::curve_of;

    #[test]
    fn a_table_gives_each_code_a_range_by_its_probability() {
        let curve = curve_of((-3000..=3000).map(|value| (value as f32 / 1000.0).powi(3) / 9.0).collect());
        for step in [0.05, 0.3, 1.0, 5.0, 60.0] {
            let table = Table::new(&curve, step);
            let width = |symbol: i8| TOTAL - u32::from(table.places[usize::from(symbol.cast_unsigned())].rest);
            let codes = || table.codes.0..=table.codes.1;
            assert_eq!(codes().map(|code| width(table.symbol(code))).sum::<u32>() + width(ESCAPE), TOTAL);
            for code in [i16::MIN, table.codes.0 - 1, table.codes.1 + 1, 128, i16::MAX] {
                assert_eq!(table.symbol(code), ESCAPE, "{code} at {step}");
            }
            assert_eq!(codes().max_by_key(|&code| width(table.symbol(code))), Some(0), "step {step}");
        }
    }

    /// Decoding inverts encoding, from any state.
    #[test]
    fn every_symbol_is_decoded_from_every_kind_of_state() {
        let curve = curve_of((-3000..=3000).map(|value| (value as f32 / 1000.0).powi(3) / 9.0).collect());
        for step in [0.05, 0.3, 1.0, 60.0] {
            let table = Table::new(&curve, step);
            for symbol in (table.codes.0..=table.codes.1).map(|code| code as i8).chain([ESCAPE]) {
                let limit = table.places[usize::from(symbol.cast_unsigned())].limit;
                for state in [LOW, LOW + 1, limit - 1, limit, limit.max(LOW) + 4095, (1 << 31) - 1, 0x5555_5555] {
                    let state = state.clamp(LOW, (1 << 31) - 1);
                    let (mut states, mut room) = ([state; GROUP], [0; 2 * GROUP]);
                    let at = push_all(&mut states, &[symbol; GROUP], &table.places, &mut room, GROUP);
                    assert!(states.iter().all(|state| (LOW..1 << 31).contains(state)), "{symbol} {state}");
                    let escaped = [].chunks_exact(2);
                    let mut decoder = Decoder { states, words: &room[at..], taken: 0, escaped };
                    let mut symbols = [0; GROUP];
                    decoder.next_symbols(&table.slots, &mut symbols);
                    assert_eq!((symbols, decoder.states), ([symbol; GROUP], [state; GROUP]), "step {step}");
                    assert_eq!(2 * decoder.taken, room.len() - at);
                }
            }
        }
    }
}
