//! Prism: principal components of several layers, entropy-coded. It is the smallest codec and the
//! slowest, for data that is seldom read and far away.
//!
//! A frame has one side of a token block for all layers of a group. A token's values of these layers
//! are one vector. Keys are rotated back by their positions first, because they depend less on each
//! other and on their place before rotary embedding. The vector less its mean is written in the
//! components of the profile ([`crate::bases`]), each in whole steps. One step counts for all
//! components of a side: the metric of the basis has already weighed what the attention feels. So
//! components that vary little take few bits, or none (reverse water-filling). Their codes have
//! tables of probabilities for the deviation and shape that the profile states ([`tables`]).
//!
//! Some tokens stay as they are: the first ones of a sequence, which all later tokens attend to, those
//! whose codes are too large, and those that the basis describes badly. So under the metric no token
//! errs by more than 0.6 steps in each channel.
//!
//! Decoding sums products of 16-bit numbers in integers and then rounds each operation once, so all
//! machines decode the same bits. The position is in the frame, so a frame needs its profile only.
//!
//! Payload: position of the first token, `u32` · number of tokens that stay, `u16` · their indices
//! in the block, `u16` each · their values, `[token][layer][head][channel]`, of the page's type ·
//! number of escaped digits, `u16` · these digits, `i16` each · the states of a range coder, as in
//! [`crate::qpackz`] · its words. Digits are in the order `[token / 16][component][upper, lower]
//! [token % 16]`. A code is `upper · 2^b + lower - 2^(b-1)`, where the component's deviation says
//! how many bits `b` the lower digit has. With none, the code is the upper digit.

use crate::bases::{Bases, Basis};
use crate::codec::{GroupCodec, PageCodec};
use crate::error::{CodecId, Declined, DecodeError};
use crate::frame::Frame;
use crate::math::{cos_sin, turn_of};
use crate::page::{self, Element, Page, PageKind, PageMut, Shape, Side};
use crate::qpackz::{self, Decoder, ESCAPE, LOW, Table};
use crate::tile::Span;
use kernels::{Codes, EDGE, KERNELS, PairRow, Row};
use std::ops::Range;
use tables::{DEAD, Digits, Tables};

mod kernels;
mod tables;

/// Steps of K and V at rate 1. The metric of K is the squared error of the attention's scores; that
/// of V is the squared error of the attention's output over its variance.
const STEPS: [f32; 2] = [0.1, 0.035];
/// The greatest magnitude of a code, and of all codes of a token together: sums of products with
/// 16-bit numbers fit 32 bits.
const CODE_MAX: i32 = 32_000;
const CODES_MAX: i32 = 65_535;

/// One side of a group.
struct Part {
    /// By row: each head's channels, padded to whole tiles.
    means: Vec<f32>,
    /// The unit of a row's integer sums.
    units: Vec<f32>,
    metric: Vec<f32>,
    /// `[component / 16][row][component % 16]`: the component in steps.
    forward: Vec<Row>,
    /// `[row / 16][component / 2][row % 16][component % 2]`
    inverse: Vec<PairRow>,
    /// The digits of each coded component.
    digits: Vec<Digits>,
    step: f32,
    /// The greatest error of a token under the metric, squared, in steps.
    error_max: f64,
}

/// The codec, for one profile and rate.
pub struct Prism {
    groups: Vec<[Part; 2]>,
    tables: Tables,
    /// Layers of a group, and of the model.
    group: u16,
    layers: u16,
    /// KV heads.
    heads: u16,
    dim: u16,
    /// Parts of a turn per position, for each pair of channels.
    turns: Vec<u64>,
    profile: u32,
}

/// Rows of a head: its channels, padded to whole tiles.
const fn head_rows(dim: u16) -> usize {
    (dim as usize).next_multiple_of(EDGE)
}

impl Part {
    /// `dim`: channels of a head.
    fn new(basis: &Basis, step: f32, dim: u16, tables: &mut Tables) -> Self {
        let count = basis.components();
        let in_steps = |value: f32| f64::from(value) / f64::from(step);
        let last = basis.deviations.iter().rposition(|deviation| Tables::is_coded(in_steps(*deviation)));
        let digits: Vec<Digits> = (basis.deviations.iter().zip(&basis.magnitudes))
            .take(last.map_or(0, |last| last + 1))
            .map(|(deviation, magnitude)| tables.digits(in_steps(*deviation), in_steps(*magnitude)))
            .collect();
        let (dim, padded, coded) = (usize::from(dim), head_rows(dim), digits.len());
        let rows = basis.means.len() / dim * padded;
        let row_of = |channel: usize| channel / dim * padded + channel % dim;
        let mut part = Self {
            means: vec![0.0; rows],
            units: vec![0.0; rows],
            metric: basis.metric.clone(),
            forward: vec![[0.0; EDGE]; coded.div_ceil(EDGE) * rows],
            inverse: vec![[[0; 2]; EDGE]; rows / EDGE * coded.div_ceil(2)],
            digits,
            step,
            error_max: f64::from(DEAD * DEAD) * (basis.means.len() as f64),
        };
        for (channel, weights) in basis.matrix.chunks_exact(count).enumerate() {
            let (row, scale) = (row_of(channel), basis.scales[channel]);
            part.means[row] = basis.means[channel];
            part.units[row] = scale * step;
            for (component, &weight) in weights[..coded].iter().enumerate() {
                part.forward[component / EDGE * rows + row][component % EDGE] = f32::from(weight) * scale / step;
                let pair = row / EDGE * coded.div_ceil(2) + component / 2;
                part.inverse[pair][row % EDGE][component % 2] = weight;
            }
        }
        part
    }

    fn rows(&self) -> usize {
        self.means.len()
    }

    const fn coded(&self) -> usize {
        self.digits.len()
    }
}

/// Components with less than this share of a step at rate 1 are not worth a place in a profile.
const LEAST_DEVIATION: f32 = 0.025;

impl Prism {
    /// Leading tokens of a sequence that stay as they are. Attention gives them a large share.
    pub const FIRST_TOKENS: usize = 1;

    /// The least standard deviation of a component that is worth a place in a profile.
    #[must_use]
    pub const fn least_deviation(side: Side) -> f32 {
        STEPS[side as usize] * LEAST_DEVIATION
    }

    /// The steps of K and V at a rate.
    #[must_use]
    pub fn steps(rate: f32) -> [f32; 2] {
        STEPS.map(|step| step * rate)
    }

    /// A codec with these steps of K and V. `id` is the id of bases and steps in frames. `None`: steps
    /// are too small or too large.
    ///
    /// # Panics
    /// The bases are not sound. Those of a parsed profile are.
    #[must_use]
    pub fn new(bases: &Bases, layers: usize, steps: [f32; 2], id: u32) -> Option<Self> {
        let largest = |part: &Basis| part.deviations.iter().fold(0.0_f32, |most, value| most.max(*value));
        let are_sound = bases.groups.iter().all(|sides| {
            sides.iter().zip(steps).all(|(basis, step)| {
                let scale = basis.scales.iter().fold(0.0_f32, |most, value| most.max(*value));
                step > 0.0 && (1.0 / step).is_finite() && (largest(basis) / step) < 1e9 && (scale / step).is_finite()
            })
        });
        if !are_sound {
            return None;
        }
        let mut tables = Tables::new();
        let dim = u16::try_from(bases.dim()).ok()?;
        let mut groups = Vec::with_capacity(bases.groups.len());
        for [k, v] in &bases.groups {
            groups.push([Part::new(k, steps[0], dim, &mut tables), Part::new(v, steps[1], dim, &mut tables)]);
        }
        let channels = bases.groups.first()?[0].means.len() / usize::from(bases.group).min(layers);
        let turns = bases.frequencies.iter().map(|frequency| turn_of(f64::from(*frequency))).collect();
        Some(Self {
            groups,
            tables,
            group: bases.group,
            layers: u16::try_from(layers).ok()?,
            heads: u16::try_from(channels / usize::from(dim)).ok()?,
            dim,
            turns,
            profile: id,
        })
    }

    /// The part of a group's first layer and a side.
    fn part(&self, layer: u16, side: Side, shape: Shape) -> Option<&Part> {
        let is_first = layer.is_multiple_of(self.group) && layer < self.layers;
        (is_first && shape.heads == self.heads && shape.dim == self.dim)
            .then(|| &self.groups[usize::from(layer / self.group)][side as usize])
    }

    /// Rows of a layer.
    fn layer_rows(&self) -> usize {
        usize::from(self.heads) * head_rows(self.dim)
    }

    /// Cosines and sines of sixteen tokens from a position on, for each pair of channels.
    fn angles(&self, position: u64) -> Vec<[Row; 2]> {
        let of_pair = |turn: &u64| {
            let both: [[f32; 2]; EDGE] =
                std::array::from_fn(|token| cos_sin(turn.wrapping_mul(position + token as u64)));
            [0, 1].map(|which| both.map(|pair| pair[which]))
        };
        self.turns.iter().map(of_pair).collect()
    }

    /// Rotates keys of a layer, as rows; by the negative angles if `is_back`.
    fn rotate(&self, rows: &mut [Row], angles: &[[Row; 2]], is_back: bool) {
        let half = usize::from(self.dim) / 2;
        for head in rows.chunks_exact_mut(head_rows(self.dim)) {
            let (low, high) = head.split_at_mut(half);
            for ((low, high), [cos, sin]) in low.iter_mut().zip(high).zip(angles) {
                for at in 0..EDGE {
                    let (a, b) = (low[at], high[at]);
                    let sin = if is_back { -sin[at] } else { sin[at] };
                    low[at] = a * cos[at] - b * sin;
                    high[at] = b * cos[at] + a * sin;
                }
            }
        }
    }
}

/// One group's values of sixteen tokens and their codes, as the encoder computes them.
struct Encoder<'a> {
    codec: &'a Prism,
    part: &'a Part,
    pages: &'a [Page<'a>],
    shape: Shape,
    /// The values of the pages.
    raw: Vec<Row>,
    /// The same as the basis takes them.
    rows: Vec<Row>,
    /// Their codes, by component.
    codes: Vec<[i32; EDGE]>,
}

impl Encoder<'_> {
    /// Loads the tokens from `first` on. Returns how many there are.
    fn load(&mut self, first: usize) -> Result<usize, Declined> {
        let (per_head, layer_rows) = (head_rows(self.shape.dim), self.codec.layer_rows());
        let load = KERNELS.current().load;
        for (page, rows) in self.pages.iter().zip(self.raw.chunks_exact_mut(layer_rows)) {
            for (head, rows) in rows.chunks_exact_mut(per_head).enumerate() {
                for (at, rows) in rows.as_chunks_mut().0.iter_mut().enumerate() {
                    // SAFETY: `current` returns kernels of a level of this machine.
                    unsafe { load(page, &Span::at(self.shape, head, first, at * EDGE), rows) };
                }
            }
        }
        let are_finite = self.raw.iter().flatten().all(|value| value.is_finite());
        if are_finite { Ok((usize::from(self.shape.tokens) - first).min(EDGE)) } else { Err(Declined) }
    }

    /// Computes the codes of the loaded tokens. Returns which of them stay as they are.
    fn compute(&mut self, side: Side, position: u64, here: usize) -> [bool; EDGE] {
        self.rows.copy_from_slice(&self.raw);
        if side == Side::K {
            let angles = self.codec.angles(position);
            for rows in self.rows.chunks_exact_mut(self.codec.layer_rows()) {
                self.codec.rotate(rows, &angles, true);
            }
        }
        let mut errors = self.weigh(side);
        let rows = self.part.rows();
        let mut sums = [[0.0; EDGE]; EDGE];
        for (tile, codes) in self.codes.chunks_mut(EDGE).enumerate() {
            // SAFETY: `current` returns kernels of a level of this machine.
            unsafe { (KERNELS.current().forward)(&self.rows, &self.part.forward[tile * rows..][..rows], &mut sums) };
            for (component, codes) in codes.iter_mut().enumerate() {
                for (token, code) in codes.iter_mut().enumerate() {
                    let value = sums[token][component];
                    *code = if value.abs() < DEAD { 0 } else { value.round_ties_even() as i32 };
                    // What the component takes away from the error.
                    let (value, code) = (f64::from(value), f64::from(*code));
                    errors[token] += code * (code - 2.0 * value);
                }
            }
        }
        let mut stays = [false; EDGE];
        for (token, stays) in stays.iter_mut().enumerate().take(here) {
            let magnitudes = || self.codes.iter().map(|codes| i64::from(codes[token]).abs());
            // Sums beyond single precision may be no numbers.
            let is_near = errors[token] <= self.part.error_max;
            *stays = !is_near
                || position + (token as u64) < Prism::FIRST_TOKENS as u64
                || magnitudes().max() > Some(CODE_MAX.into())
                || magnitudes().sum::<i64>() > CODES_MAX.into();
        }
        for codes in &mut self.codes {
            for (token, code) in codes.iter_mut().enumerate() {
                if token >= here || stays[token] {
                    *code = 0;
                }
            }
        }
        stays
    }

    /// Subtracts the means and applies the metric. Returns the size of each token under it, squared, in
    /// steps: its error if all codes were zero.
    fn weigh(&mut self, side: Side) -> [f64; EDGE] {
        let (dim, per_head) = (usize::from(self.shape.dim), head_rows(self.shape.dim));
        let mut sizes = [0.0; EDGE];
        let mut centered = vec![[0.0; EDGE]; dim];
        for (head, rows) in self.rows.chunks_exact_mut(per_head).enumerate() {
            for (at, (centered, row)) in centered.iter_mut().zip(rows.iter()).enumerate() {
                let mean = self.part.means[head * per_head + at];
                *centered = row.map(|value| value - mean);
            }
            for (at, row) in rows.iter_mut().enumerate().take(dim) {
                let channel = head * dim + at;
                if side == Side::K {
                    let weight = self.part.metric[channel];
                    *row = centered[at].map(|value| value * weight);
                } else {
                    *row = [0.0; EDGE];
                    for (weight, values) in self.part.metric[channel * dim..][..dim].iter().zip(&centered) {
                        row.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
                    }
                }
                for ((size, felt), value) in sizes.iter_mut().zip(&*row).zip(&centered[at]) {
                    *size += f64::from(felt * value);
                }
            }
        }
        let square = f64::from(self.part.step).powi(2);
        sizes.map(|size| size / square)
    }

    /// Appends the values of a token that stays.
    fn keep(&self, element: Element, token: usize, kept: &mut Vec<u8>) {
        let per_head = head_rows(self.shape.dim);
        for head in self.raw.chunks_exact(per_head) {
            for row in &head[..self.shape.dim.into()] {
                let at = kept.len();
                kept.resize(at + element.bytes(), 0);
                page::store(element, &mut kept[at..], 0, row[token]);
            }
        }
    }
}

/// Digits of sixteen tokens, and the tables that code them.
struct Digit<'a> {
    table: &'a Table,
    symbols: [i8; EDGE],
    /// Tokens that are there.
    here: usize,
}

impl Prism {
    /// Appends the digits of all components, and those that are escaped.
    fn split<'a>(
        &'a self,
        part: &Part,
        codes: &[[i32; EDGE]],
        here: usize,
        digits: &mut Vec<Digit<'a>>,
        escaped: &mut Vec<i16>,
    ) {
        for (of, codes) in part.digits.iter().zip(codes) {
            let half = (1 << of.low_bits) >> 1;
            let upper = codes.map(|code| ((code + half) >> of.low_bits) as i16);
            let table = self.tables.upper(*of);
            let symbols = upper.map(|digit| table.symbol(digit));
            if symbols.contains(&ESCAPE) {
                let without = |(digit, symbol): (&i16, &i8)| (*symbol == ESCAPE).then_some(*digit);
                escaped.extend(upper[..here].iter().zip(&symbols).filter_map(without));
            }
            digits.push(Digit { table, symbols, here });
            if of.low_bits > 0 {
                let mask = (1 << of.low_bits) - 1;
                let symbols = codes.map(|code| ((code + half) & mask) as i8);
                digits.push(Digit { table: self.tables.low(*of), symbols, here });
            }
        }
    }

    /// Reads the codes of sixteen tokens, as pairs of components. Adds pairs that are not zero to
    /// `pairs`.
    fn read_codes(
        &self,
        part: &Part,
        decoder: &mut Decoder<'_>,
        here: usize,
        codes: &mut [Codes],
        pairs: &mut Vec<u16>,
    ) -> Result<(), DecodeError> {
        pairs.clear();
        let symbols_of = qpackz::KERNELS.current().symbols;
        let (mut upper, mut low) = ([0; EDGE], [0; EDGE]);
        for (at, both) in part.digits.chunks(2).enumerate() {
            let mut any = 0;
            for (which, of) in both.iter().enumerate() {
                // SAFETY: `current` returns kernels of a level of this machine.
                unsafe { symbols_of(decoder, &self.tables.upper(*of).slots, &mut upper, here) };
                let mut values = upper.map(i16::from);
                if upper[..here].contains(&ESCAPE) {
                    for (value, symbol) in values.iter_mut().zip(upper).take(here) {
                        if symbol == ESCAPE {
                            *value = decoder.next_escaped()?;
                        }
                    }
                }
                if of.low_bits > 0 {
                    // SAFETY: `current` returns kernels of a level of this machine.
                    unsafe { symbols_of(decoder, &self.tables.low(*of).slots, &mut low, here) };
                    let half = (1_i16 << of.low_bits) >> 1;
                    for (value, low) in values.iter_mut().zip(low) {
                        *value = (*value << of.low_bits).wrapping_add(i16::from(low)).wrapping_sub(half);
                    }
                }
                for (codes, value) in codes[at].iter_mut().zip(values).take(here) {
                    codes[which] = value;
                    any |= value;
                }
            }
            if any != 0 {
                pairs.push(at as u16);
            }
        }
        Ok(())
    }

    /// Computes the values of a layer from codes, as rows of sixteen tokens.
    fn restore(&self, part: &Part, layer: usize, pairs: &[u16], codes: &[Codes], rows: &mut [Row]) {
        let (first, all_pairs) = (layer * self.layer_rows(), part.coded().div_ceil(2));
        let mut sums = [[0; EDGE]; EDGE];
        for (tile, rows) in rows.chunks_exact_mut(EDGE).enumerate() {
            let at = first + tile * EDGE;
            let matrix = &part.inverse[at / EDGE * all_pairs..][..all_pairs];
            // SAFETY: `current` returns kernels of a level of this machine.
            unsafe { (KERNELS.current().inverse)(pairs, codes, matrix, &mut sums) };
            for (row, values) in rows.iter_mut().enumerate() {
                let (unit, mean) = (part.units[at + row], part.means[at + row]);
                for (value, sums) in values.iter_mut().zip(&sums) {
                    *value = sums[row] as f32 * unit + mean;
                }
            }
        }
    }
}

impl PageCodec for Prism {
    fn id(&self) -> CodecId {
        CodecId::Prism
    }

    fn profile(&self) -> u32 {
        self.profile
    }

    fn encode_payload(&self, _: &Page<'_>, _: &mut Vec<u8>) -> Result<(), Declined> {
        Err(Declined)
    }

    fn decode_payload(&self, frame: &Frame<'_>, page: &mut PageMut<'_>) -> Result<(), DecodeError> {
        self.decode_group(frame, std::slice::from_mut(page))
    }

    fn as_group(&self) -> Option<&dyn GroupCodec> {
        Some(self)
    }
}

impl GroupCodec for Prism {
    fn layers(&self, layer: u16) -> Range<u16> {
        let first = layer / self.group * self.group;
        first..first.saturating_add(self.group).min(self.layers)
    }

    fn encode_group(&self, pages: &[Page<'_>], position: u32, payload: &mut Vec<u8>) -> Result<(), Declined> {
        let kind = *pages.first().ok_or(Declined)?.kind();
        let part = self.part(kind.layer, kind.side, kind.shape).ok_or(Declined)?;
        let are_group = pages.len() == self.layers(kind.layer).len()
            && (pages.iter().zip(self.layers(kind.layer)))
                .all(|(page, layer)| PageKind { layer, ..kind } == PageKind { layout: kind.layout, ..*page.kind() });
        let tokens = usize::from(kind.shape.tokens);
        if !are_group || tokens == 0 {
            return Err(Declined);
        }
        let mut encoder = Encoder {
            codec: self,
            part,
            pages,
            shape: kind.shape,
            raw: vec![[0.0; EDGE]; part.rows()],
            rows: vec![[0.0; EDGE]; part.rows()],
            codes: vec![[0; EDGE]; part.coded()],
        };
        let (mut indices, mut kept, mut digits, mut escaped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for first in (0..tokens).step_by(EDGE) {
            let here = encoder.load(first)?;
            let stays = encoder.compute(kind.side, u64::from(position) + first as u64, here);
            for token in (0..here).filter(|token| stays[*token]) {
                indices.push((first + token) as u16);
                encoder.keep(kind.element, token, &mut kept);
            }
            self.split(part, &encoder.codes, here, &mut digits, &mut escaped);
        }
        payload.extend(position.to_le_bytes());
        payload.extend(u16::try_from(indices.len()).map_err(|_| Declined)?.to_le_bytes());
        indices.iter().for_each(|index| payload.extend(index.to_le_bytes()));
        payload.extend(kept);
        payload.extend(u16::try_from(escaped.len()).map_err(|_| Declined)?.to_le_bytes());
        escaped.iter().for_each(|digit| payload.extend(digit.to_le_bytes()));
        compress(&digits, tokens, payload);
        Ok(())
    }

    fn decode_group(&self, frame: &Frame<'_>, pages: &mut [PageMut<'_>]) -> Result<(), DecodeError> {
        let wrong = |fact| Err(DecodeError::Payload(fact));
        let Some(part) = self.part(frame.layer, frame.side, frame.shape) else {
            return wrong("the profile has no basis for this layer");
        };
        let layers = self.layers(frame.layer);
        for page in pages.iter() {
            let kind = page.kind();
            if (kind.shape, kind.side) != (frame.shape, frame.side) || !layers.contains(&kind.layer) {
                return Err(DecodeError::OtherPage);
            }
        }
        let tokens = usize::from(frame.shape.tokens);
        let token_bytes = layers.len() * frame.shape.token_values() * frame.element.bytes();
        let Some((position, kept, rest)) = split_kept(frame.payload, tokens, token_bytes) else {
            return wrong("tokens that stay are missing or out of order");
        };
        let Some(mut decoder) = Decoder::over(rest, tokens) else {
            return wrong("states are missing");
        };
        let mut codes = vec![[[0; 2]; EDGE]; part.coded().div_ceil(2)];
        let mut pairs = Vec::with_capacity(codes.len());
        let mut rows = vec![[0.0; EDGE]; self.layer_rows()];
        for first in (0..tokens).step_by(EDGE) {
            let here = (tokens - first).min(EDGE);
            self.read_codes(part, &mut decoder, here, &mut codes, &mut pairs)?;
            let angles =
                if frame.side == Side::K { self.angles(u64::from(position) + first as u64) } else { Vec::new() };
            for page in pages.iter_mut() {
                let layer = usize::from(page.kind().layer - layers.start);
                self.restore(part, layer, &pairs, &codes, &mut rows);
                if frame.side == Side::K {
                    self.rotate(&mut rows, &angles, false);
                }
                for (index, values) in kept.clone().filter(|(index, _)| (first..first + here).contains(index)) {
                    let of_layer = layer * frame.shape.token_values();
                    for channel in 0..frame.shape.token_values() {
                        let (head, at) = (channel / usize::from(self.dim), channel % usize::from(self.dim));
                        let value = page::load(frame.element, values, of_layer + channel);
                        rows[head * head_rows(self.dim) + at][index - first] = value;
                    }
                }
                store(&rows, first, page);
            }
        }
        decoder.end()
    }
}

/// Stores the values of sixteen tokens from `first` on.
fn store(rows: &[Row], first: usize, page: &mut PageMut<'_>) {
    let (shape, store) = (page.kind().shape, KERNELS.current().store);
    for (head, rows) in rows.chunks_exact(head_rows(shape.dim)).enumerate() {
        for (at, rows) in rows.as_chunks().0.iter().enumerate() {
            // SAFETY: `current` returns kernels of a level of this machine.
            unsafe { store(page, &Span::at(shape, head, first, at * EDGE), rows) };
        }
    }
}

/// Splits a payload into the position of its first token, the tokens that stay with the bytes of
/// their values, and the rest. `None`: it is cut short, or indices do not rise.
#[expect(clippy::type_complexity, reason = "one caller takes it apart")]
fn split_kept(
    payload: &[u8],
    tokens: usize,
    token_bytes: usize,
) -> Option<(u32, impl Iterator<Item = (usize, &[u8])> + Clone, &[u8])> {
    let (position, rest) = payload.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    let count = usize::from(u16::from_le_bytes(*count));
    let (indices, rest) = rest.split_at_checked(2 * count)?;
    let indices = indices.as_chunks().0;
    let index = |bytes: &[u8; 2]| usize::from(u16::from_le_bytes(*bytes));
    let are_rising = indices.windows(2).all(|pair| index(&pair[0]) < index(&pair[1]));
    if !are_rising || indices.last().is_some_and(|last| index(last) >= tokens) {
        return None;
    }
    let (values, rest) = rest.split_at_checked(count.checked_mul(token_bytes)?)?;
    let kept = indices.iter().map(index).zip(values.chunks_exact(token_bytes));
    Some((u32::from_le_bytes(*position), kept, rest))
}

/// Appends the states and words of digits.
fn compress(digits: &[Digit<'_>], tokens: usize, payload: &mut Vec<u8>) {
    let states_at = payload.len();
    let words_at = states_at + 4 * tokens.min(EDGE);
    // Encoding runs backwards: the last word is first, and each symbol has at most one.
    payload.resize(words_at + 2 * EDGE * digits.len(), 0);
    let (mut states, mut at) = ([LOW; EDGE], payload.len());
    let push = qpackz::KERNELS.current().push;
    for digit in digits.iter().rev() {
        at -= 2 * EDGE;
        let room = payload[at..].first_chunk_mut().expect("a word for each symbol");
        at += if digit.here == EDGE {
            // SAFETY: `current` returns kernels of a level of this machine.
            unsafe { push(&mut states, &digit.symbols, &digit.table.places, room) }
        } else {
            qpackz::push_all(&mut states, &digit.symbols, &digit.table.places, room, digit.here)
        };
    }
    for (bytes, state) in payload[states_at..words_at].chunks_exact_mut(4).zip(states) {
        bytes.copy_from_slice(&state.to_le_bytes());
    }
    payload.copy_within(at.., words_at);
    payload.truncate(words_at + payload.len() - at);
}
