//! QPack's codes, entropy-coded: for data that is read seldom, at some half a bit a value less and a slower decoding.
//!
//! Codes are the same as [`crate::QPack`]'s, and so is the bound on the error. How often a code occurs is known beforehand: a
//! profile knows how a layer's values are spread in units of their channel's deviation, and the step of a channel says which of
//! those go to one code. So there is a table for each ratio of step and deviation (in quarters of an octave), made when the
//! codec is, and none in any page. Codes that no table has are escaped.
//!
//! Payload: how many codes are escaped, `u16` · those, `i16` each, in order · four states of a range coder (rANS, Duda 2013; 12
//! bits of probability, 16-bit words), `u32` each · words, in the order in which decoding takes them. Codes are in the order
//! `[head][token / 16][channel][token % 16]`, and state `i % 4` has the `i`-th of them.

use crate::page::{Page, PageMut, Shape, Side};
use crate::profile::{Curve, Profile};
use crate::qpack::{Channels, GROUP, code_of};
use crate::tile::{Axis, EDGE, Span, Tile};
use crate::{CodecId, Declined, DecodeError, Frame, PageCodec};
use std::collections::BTreeMap;

/// Bits of a probability.
const BITS: u32 = 12;
const TOTAL: u32 = 1 << BITS;
/// States are at least this between codes.
const LOW: u32 = 1 << 16;
const STATES: usize = 4;
/// Codes that a table may have, either side of the mean.
const REACH: i32 = 127;
/// Symbol of an escaped code, in decoding tables.
const ESCAPE: i16 = i16::MIN;
/// Tables to an octave of the ratio of step and deviation.
const TABLES_PER_OCTAVE: f64 = 4.0;

/// How often codes occur where a step is so many deviations.
#[derive(Debug)]
struct Table {
    /// The least code that has a place, and how many have.
    least: i32,
    /// Start and width of each code from the least on, the escape behind the last.
    places: Vec<(u16, u16)>,
    /// By the lower bits of a state: which symbol, and its place.
    slots: Box<[Slot; TOTAL as usize]>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    symbol: i16,
    width: u16,
    /// How far into the symbol's place.
    offset: u16,
}

impl Table {
    /// For values spread as `curve` says, in deviations, and a step of so many.
    fn new(curve: &Curve, step: f64) -> Self {
        let code = |value: f32| (f64::from(value) / step).round().clamp(-f64::from(REACH), f64::from(REACH)) as i32;
        let (least, greatest) = (code(curve[0]), code(curve[curve.len() - 1]));
        let below = |value: f64| share_below(curve, value);
        // Each code that may occur has a place, and so has the escape; the rest is shared out by how often they do.
        let count = (greatest - least + 1) as usize;
        let spare = f64::from(TOTAL) - (count + 1) as f64;
        let mut widths: Vec<u32> = (least..=greatest)
            .map(|code| {
                let share = below((f64::from(code) + 0.5) * step) - below((f64::from(code) - 0.5) * step);
                1 + (share * spare).floor() as u32
            })
            .chain([1])
            .collect();
        let rest = TOTAL - widths.iter().sum::<u32>();
        let most = (0..count).max_by_key(|&at| widths[at]).expect("there is one code at least");
        widths[most] += rest;
        let (mut places, mut slots) = (Vec::with_capacity(widths.len()), Vec::with_capacity(TOTAL as usize));
        for (at, &width) in widths.iter().enumerate() {
            places.push((slots.len() as u16, width as u16));
            let symbol = if at == count { ESCAPE } else { (least + at as i32) as i16 };
            slots.extend((0..width as u16).map(|offset| Slot { symbol, width: width as u16, offset }));
        }
        Self { least, places, slots: slots.try_into().expect("widths make up all") }
    }

    /// The place of a code; the escape's if it has none of its own.
    fn place(&self, code: i32) -> (usize, (u16, u16)) {
        let escape = self.places.len() - 1;
        let at = usize::try_from(i64::from(code) - i64::from(self.least)).map_or(escape, |at| at.min(escape));
        (at, self.places[at])
    }

    fn has(&self, code: i32) -> bool {
        self.place(code).0 + 1 < self.places.len()
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
struct Part {
    channels: Channels,
    tables: Vec<Table>,
    /// Which of them each channel has.
    table_of: Vec<u16>,
}

impl Part {
    fn new(side: &crate::SideProfile, rate: f32) -> Self {
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
}

/// Steps, means and tables of all layers.
#[derive(Debug)]
pub struct QPackZ {
    parts: Vec<[Part; 2]>,
    profile: u32,
}

impl QPackZ {
    /// A codec at a rate: a profile's steps times that. `id` names all of that in frames. `None`: steps are too small or too large.
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
        // Codes with their channels, in order.
        let mut codes: Vec<(i32, usize)> = Vec::with_capacity(shape.values());
        let (mut escaped, mut tile) = (Vec::new(), Tile::ZERO);
        for (head, token, channel) in tiles(shape) {
            let span = Span::at(shape, head, token, channel);
            page.load_tile(&span, Axis::Channels, &mut tile);
            for (channel, row) in tile.0.chunks_exact(GROUP).enumerate().take(span.channels) {
                let of = head * dim + span.channel + channel;
                let (mean, inverse) = (part.channels.means[of], 1.0 / part.channels.steps[of]);
                for &value in &row[..span.tokens] {
                    let code = code_of(value, mean, inverse)?;
                    if !part.table(of).has(code) {
                        escaped.push(i16::try_from(code).map_err(|_| Declined)?);
                    }
                    codes.push((code, of));
                }
            }
        }
        payload.extend(u16::try_from(escaped.len()).map_err(|_| Declined)?.to_le_bytes());
        escaped.iter().for_each(|code| payload.extend(code.to_le_bytes()));
        let (states, words) = compress(&codes, part);
        states.iter().for_each(|state| payload.extend(state.to_le_bytes()));
        words.iter().rev().for_each(|word| payload.extend(word.to_le_bytes()));
        Ok(())
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        let (shape, dim) = (frame.shape, usize::from(frame.shape.dim));
        let part = self.part(frame.layer, frame.side, shape.token_values());
        let part = part.ok_or(DecodeError::Payload("no steps of its layer"))?;
        let short = DecodeError::Payload("it is cut short");
        let (count, rest) = frame.payload.split_first_chunk::<2>().ok_or(short)?;
        let escaped = 2 * usize::from(u16::from_le_bytes(*count));
        let (escaped, rest) = rest.split_at_checked(escaped).ok_or(short)?;
        let mut escaped = escaped.chunks_exact(2).map(|code| i16::from_le_bytes([code[0], code[1]]));
        let (states, rest) = rest.split_at_checked(4 * STATES).ok_or(short)?;
        let states: [u32; STATES] =
            std::array::from_fn(|at| u32::from_le_bytes(states[4 * at..4 * at + 4].try_into().expect("four")));
        let words: Vec<u16> = rest.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]])).collect();
        let mut coder = Coder { states, words: &words, taken: 0 };
        let (mut at, mut tile) = (0, Tile::ZERO);
        for (head, token, channel) in tiles(shape) {
            let span = Span::at(shape, head, token, channel);
            for (channel, row) in tile.0.chunks_exact_mut(GROUP).enumerate().take(span.channels) {
                let of = head * dim + span.channel + channel;
                let (mean, step) = (part.channels.means[of], part.channels.steps[of]);
                let slots = &part.table(of).slots;
                let row = &mut row[..span.tokens];
                let mut symbols = [0; GROUP];
                if at % STATES == 0 && row.len() == GROUP {
                    // So that the compiler knows whose turn it is.
                    for four in symbols.chunks_exact_mut(STATES) {
                        for (turn, symbol) in four.iter_mut().enumerate() {
                            *symbol = coder.next(turn, slots);
                        }
                    }
                } else {
                    for (turn, symbol) in (at..).zip(&mut symbols[..row.len()]) {
                        *symbol = coder.next(turn % STATES, slots);
                    }
                }
                at += row.len();
                for (value, symbol) in row.iter_mut().zip(symbols) {
                    let code = match symbol {
                        ESCAPE => escaped.next().ok_or(DecodeError::Payload("an escaped code is missing"))?,
                        code => code,
                    };
                    *value = f32::from(code) * step + mean;
                }
            }
            page.store_tile(&span, Axis::Channels, &tile);
        }
        // Encoding began with this, and what follows belongs to nothing.
        if coder.states != [LOW; STATES] || coder.taken != words.len() || rest.len() % 2 != 0 || escaped.len() > 0 {
            return Err(DecodeError::Payload("its codes do not end where they began"));
        }
        Ok(())
    }
}

/// What decoding goes on from.
struct Coder<'a> {
    states: [u32; STATES],
    words: &'a [u16],
    /// Words that were taken; more than there are if some are missing.
    taken: usize,
}

impl Coder<'_> {
    /// The next symbol of a state.
    #[inline(always)]
    fn next(&mut self, turn: usize, slots: &[Slot; TOTAL as usize]) -> i16 {
        let state = self.states[turn];
        let slot = slots[(state % TOTAL) as usize];
        let state = u32::from(slot.width) * (state >> BITS) + u32::from(slot.offset);
        let word = u32::from(self.words.get(self.taken).copied().unwrap_or(0));
        let is_low = state < LOW;
        self.states[turn] = if is_low { state << 16 | word } else { state };
        self.taken += usize::from(is_low);
        slot.symbol
    }
}

/// Head, first token and first channel of each tile, in the order of codes.
fn tiles(shape: Shape) -> impl Iterator<Item = (usize, usize, usize)> {
    let (tokens, dim) = (usize::from(shape.tokens), usize::from(shape.dim));
    let of_head = move |head| {
        (0..tokens)
            .step_by(GROUP)
            .flat_map(move |token| (0..dim).step_by(EDGE).map(move |channel| (head, token, channel)))
    };
    (0..usize::from(shape.heads)).flat_map(of_head)
}

/// States and words, last first.
fn compress(codes: &[(i32, usize)], part: &Part) -> ([u32; STATES], Vec<u16>) {
    let (mut states, mut words) = ([LOW; STATES], Vec::with_capacity(codes.len() / 3));
    for (at, &(code, channel)) in codes.iter().enumerate().rev() {
        let (_, (start, width)) = part.table(channel).place(code);
        let (state, width) = (&mut states[at % STATES], u32::from(width));
        if u64::from(*state) >= u64::from(width) << (32 - BITS) {
            words.push((*state & 0xffff) as u16);
            *state >>= 16;
        }
        *state = (*state / width) << BITS | (*state % width + u32::from(start));
    }
    (states, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::curve_of;

    #[test]
    fn a_table_gives_each_code_a_place_by_how_often_it_occurs() {
        let curve = curve_of((-3000..=3000).map(|value| (value as f32 / 1000.0).powi(3) / 9.0).collect());
        for step in [0.05, 0.3, 1.0, 5.0, 60.0] {
            let table = Table::new(&curve, step);
            let widths: u32 = table.places.iter().map(|(_, width)| u32::from(*width)).sum();
            assert_eq!((widths, table.slots.len()), (TOTAL, TOTAL as usize));
            assert!(table.places.iter().all(|(_, width)| *width > 0));
            let escape = table.places.len() - 1;
            for code in [i32::MIN, -REACH - 1, REACH + 1, i32::MAX] {
                assert_eq!(table.place(code).0, escape, "{code} at {step}");
            }
            assert!(table.has(0));
            let likeliest = (0..escape).max_by_key(|&at| table.places[at].1).unwrap();
            assert_eq!(table.least + likeliest as i32, 0, "step {step}");
        }
    }
}
