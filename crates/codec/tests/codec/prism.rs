//! Prism: pages of a group come back within the bound of their steps, from frames at any position,
//! and the same at every level; other payloads are errors or other values.

use cenote_base::prng::Prng;
use cenote_codec::{
    Bases, Basis, BlockPage, CodecId, Codecs, DecodeError, Element, Frame, GroupCodec, Layout, Level, Order, Page,
    PageCodec, PageKind, PageMut, Prism, Raw, Shape, Side, SpecKv, at_level, encode_block,
};
use proptest::prelude::*;
use std::sync::Arc;

const PROFILE: u32 = 0x0091_5e4e;
/// Layers of the model, and of a group: the last group has one.
const LAYERS: u16 = 5;
const GROUP: u16 = 2;
const HEADS: u16 = 2;

/// Between -2 and 2, near a bell.
fn bell(prng: &mut Prng) -> f32 {
    (0..4).map(|_| prng.next_f64() as f32 - 0.5).sum()
}

/// Orthogonal rows of a square matrix: Gram and Schmidt.
fn orthogonal(prng: &mut Prng, size: usize) -> Vec<Vec<f32>> {
    let mut rows: Vec<Vec<f32>> = Vec::new();
    while rows.len() < size {
        let mut row: Vec<f32> = (0..size).map(|_| bell(prng)).collect();
        for other in &rows {
            let share: f32 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(other).for_each(|(a, b)| *a -= share * b);
        }
        let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        if length > 0.01 {
            rows.push(row.iter().map(|value| value / length).collect());
        }
    }
    rows
}

/// A basis whose components have deviations from 200 steps at rate 1 to a hundredth of one.
fn basis(prng: &mut Prng, side: Side, channels: usize, dim: usize) -> Basis {
    let rows = orthogonal(prng, channels);
    // Roots of the metric; it is diagonal for V, too.
    let roots: Vec<f32> = (0..channels).map(|_| 0.25 + prng.next_f64() as f32).collect();
    let step = Prism::steps(1.0)[side as usize];
    let metric = match side {
        Side::K => roots.iter().map(|root| root * root).collect(),
        Side::V => (0..channels * dim)
            .map(|at| if at % dim == at / dim % dim { roots[at / dim].powi(2) } else { 0.0 })
            .collect(),
    };
    let mut basis = Basis {
        means: (0..channels).map(|_| 3.0 * bell(prng)).collect(),
        metric,
        deviations: (0..channels).map(|at| step * 200.0 * 1e-4_f32.powf(at as f32 / channels as f32)).collect(),
        ..Basis::default()
    };
    basis.magnitudes = basis.deviations.iter().map(|deviation| 0.75 * deviation).collect();
    for channel in 0..channels {
        let weights: Vec<f32> = rows.iter().map(|row| row[channel] / roots[channel]).collect();
        let scale = weights.iter().fold(0.0_f32, |most, weight| most.max(weight.abs())) / 32767.0;
        basis.scales.push(scale);
        basis.matrix.extend(weights.iter().map(|weight| (weight / scale).round() as i16));
    }
    basis
}

fn bases(seed: u64, dim: u16) -> Bases {
    let mut prng = Prng::new(seed);
    let dim = usize::from(dim);
    let frequencies = (0..dim / 2).map(|pair| 1000_f32.powf(-2.0 * pair as f32 / dim as f32)).collect();
    let group = |number: u16| {
        let layers = GROUP.min(LAYERS - number * GROUP);
        let channels = usize::from(layers * HEADS) * dim;
        [basis(&mut prng, Side::K, channels, dim), basis(&mut prng, Side::V, channels, dim)]
    };
    Bases { frequencies, group: GROUP, groups: (0..LAYERS.div_ceil(GROUP)).map(group).collect() }
}

fn prism(bases: &Bases, rate: f32) -> Prism {
    assert!(bases.are_sound(LAYERS.into(), bases.dim() * usize::from(HEADS)), "the test's own bases");
    Prism::new(bases, LAYERS.into(), Prism::steps(rate), PROFILE).expect("steps are sound")
}

/// Keys or values of a group as the basis describes them, by layer as `[head][token][channel]`.
fn sample(prng: &mut Prng, bases: &Bases, kind: &PageKind, position: u32) -> Vec<Vec<f32>> {
    let basis = &bases.groups[usize::from(kind.layer / GROUP)][kind.side as usize];
    let (channels, dim) = (basis.means.len(), bases.dim());
    let per_layer = usize::from(HEADS) * dim;
    let mut layers = vec![vec![0.0; kind.shape.values()]; channels / per_layer];
    for token in 0..usize::from(kind.shape.tokens) {
        let components: Vec<f32> = basis.deviations.iter().map(|deviation| 1.7 * deviation * bell(prng)).collect();
        let mut values: Vec<f32> = (0..channels)
            .map(|channel| {
                let row = &basis.matrix[channel * basis.components()..][..basis.components()];
                let sum: f32 = row.iter().zip(&components).map(|(weight, value)| f32::from(*weight) * value).sum();
                sum * basis.scales[channel] + basis.means[channel]
            })
            .collect();
        if kind.side == Side::K {
            for head in values.chunks_exact_mut(dim) {
                for (pair, frequency) in bases.frequencies.iter().enumerate() {
                    let angle = f64::from(*frequency) * (f64::from(position) + token as f64);
                    let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                    let (a, b) = (head[pair], head[pair + dim / 2]);
                    (head[pair], head[pair + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        for (at, value) in values.into_iter().enumerate() {
            let (layer, head, channel) = (at / per_layer, at % per_layer / dim, at % dim);
            layers[layer][(head * usize::from(kind.shape.tokens) + token) * dim + channel] = value;
        }
    }
    layers
}

fn page_of(kind: &PageKind, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; kind.bytes()];
    let mut page = PageMut::new(*kind, &mut bytes);
    values.chunks_exact(kind.shape.head_values()).enumerate().for_each(|(head, values)| page.write_head(head, values));
    bytes
}

fn values_of(kind: &PageKind, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; kind.shape.values()];
    let heads = values.chunks_exact_mut(kind.shape.head_values()).enumerate();
    heads.for_each(|(head, values)| Page::new(*kind, bytes).read_head(head, values));
    values
}

/// All pages of a block: K and V of each layer.
fn block(prng: &mut Prng, bases: &Bases, kind: PageKind, position: u32) -> Vec<(PageKind, Vec<u8>)> {
    let mut pages = Vec::new();
    for first in (0..LAYERS).step_by(GROUP.into()) {
        let [k, v] = [Side::K, Side::V].map(|side| PageKind { layer: first, side, ..kind });
        let both = [sample(prng, bases, &k, position), sample(prng, bases, &v, position)];
        for (at, (keys, values)) in (0..).zip(both[0].iter().zip(&both[1])) {
            let layer = first + at;
            pages.push((PageKind { layer, ..k }, page_of(&k, keys)));
            pages.push((PageKind { layer, ..v }, page_of(&v, values)));
        }
    }
    pages
}

fn encoded(pages: &[(PageKind, Vec<u8>)], codec: &dyn PageCodec, position: u32) -> Vec<u8> {
    let pages: Vec<BlockPage<'_>> = pages.iter().map(|(kind, bytes)| BlockPage { kind, bytes, codec }).collect();
    let mut frames = Vec::new();
    encode_block(&pages, position, &mut frames);
    frames
}

fn decoded(codecs: &Codecs, kinds: &[PageKind], frames: &[u8]) -> Result<Vec<Vec<u8>>, DecodeError> {
    let mut pages: Vec<Vec<u8>> = kinds.iter().map(|kind| vec![0x5a; kind.bytes()]).collect();
    let borrowed = kinds.iter().zip(&mut pages).map(|(kind, bytes)| PageMut::new(*kind, bytes)).collect();
    assert_eq!(codecs.decode_block(frames, borrowed)?, frames.len());
    Ok(pages)
}

fn known(codec: Prism) -> (Arc<dyn PageCodec>, Codecs) {
    let codec: Arc<dyn PageCodec> = Arc::new(codec);
    let mut codecs = Codecs::default();
    codecs.add(Arc::clone(&codec));
    (codec, codecs)
}

/// Keys without their rotation.
fn unrotated(bases: &Bases, kind: &PageKind, values: &[f32], position: u32) -> Vec<f32> {
    let (dim, half) = (bases.dim(), bases.dim() / 2);
    let mut values = values.to_vec();
    if kind.side == Side::K {
        for (row, values) in values.chunks_exact_mut(dim).enumerate() {
            for (pair, frequency) in bases.frequencies.iter().enumerate() {
                let token = row % usize::from(kind.shape.tokens);
                let angle = f64::from(*frequency) * (f64::from(position) + token as f64);
                let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                let (a, b) = (values[pair], values[pair + half]);
                (values[pair], values[pair + half]) = (a * cos + b * sin, b * cos - a * sin);
            }
        }
    }
    values
}

/// The error of each token of a group under the metric, squared, in steps.
fn errors(
    bases: &Bases,
    pages: &[(PageKind, Vec<u8>)],
    back: &[Vec<u8>],
    first: u16,
    side: Side,
    position: u32,
    step: f32,
) -> Vec<f32> {
    let basis = &bases.groups[usize::from(first / GROUP)][side as usize];
    let (dim, tokens) = (bases.dim(), usize::from(pages[0].0.shape.tokens));
    let mut sums = vec![0.0; tokens];
    let layers = first..(first + GROUP).min(LAYERS);
    for ((kind, bytes), back) in
        pages.iter().zip(back).filter(|((kind, _), _)| kind.side == side && layers.contains(&kind.layer))
    {
        let [before, after] = [bytes, back].map(|bytes| unrotated(bases, kind, &values_of(kind, bytes), position));
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            let (head, token, channel) = (at / (tokens * dim), at / dim % tokens, at % dim);
            let of_group = (usize::from(kind.layer - first) * usize::from(HEADS) + head) * dim + channel;
            let weight = match side {
                Side::K => basis.metric[of_group],
                Side::V => basis.metric[of_group * dim + channel],
            };
            sums[token] += weight * (before - after).powi(2) / (step * step);
        }
    }
    sums
}

fn kinds() -> impl Strategy<Value = PageKind> {
    let order = prop_oneof![
        Just(Order::TokenMajor),
        Just(Order::ChannelMajor),
        Just(Order::KeyPanels),
        Just(Order::ValuePanels)
    ];
    let element = prop_oneof![Just(Element::F16), Just(Element::Bf16), Just(Element::F32)];
    let dim = prop_oneof![Just(16_u16), Just(20)];
    (prop_oneof![Just(16_u16), Just(32), 1_u16..40], dim, 0_u16..9, order, element).prop_map(
        |(tokens, dim, more, order, element)| PageKind {
            shape: Shape { heads: HEADS, tokens, dim },
            element,
            layout: Layout { order, capacity: tokens + more },
            side: Side::K,
            layer: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn blocks_come_back_within_their_steps(kind in kinds(), seed: u64, position in 0_u32..9000, rate in 0.3_f32..4.0) {
        let bases = bases(seed % 7, kind.shape.dim);
        let (codec, codecs) = known(prism(&bases, rate));
        let mut prng = Prng::new(seed);
        let pages = block(&mut prng, &bases, PageKind { element: Element::F32, ..kind }, position);
        let kinds: Vec<PageKind> = pages.iter().map(|(kind, _)| *kind).collect();
        let frames = encoded(&pages, &*codec, position);
        let placed = codecs.split_block(&kinds, &frames).expect("frames just made").0;
        // Of one or two tokens little is left to code if the first one stays.
        let is_small = position < 2 && kind.shape.tokens < 3;
        prop_assert!(is_small || placed.iter().all(|placed| placed.frame.codec == CodecId::Prism));
        let back = decoded(&codecs, &kinds, &frames).expect("frames just made");
        for first in (0..LAYERS).step_by(GROUP.into()) {
            for side in [Side::K, Side::V] {
                let step = Prism::steps(rate)[side as usize];
                let count = bases.groups[usize::from(first / GROUP)][0].components() as f32;
                for (token, error) in errors(&bases, &pages, &back, first, side, position, step).iter().enumerate() {
                    // Each code errs by at most 0.6 steps; a component that is not coded has a
                    // deviation below a tenth of one.
                    prop_assert!(*error <= 0.4 * count, "{first} {side:?}, token {token}: {error} of {count}");
                    if position as usize + token < Prism::FIRST_TOKENS {
                        prop_assert!(*error == 0.0, "{first} {side:?}, token {token}: {error}");
                    }
                }
            }
        }
        // Single pages are the same as all together.
        for ((placed, kind), whole) in placed.iter().zip(&kinds).zip(&back) {
            let mut alone = vec![0x5a; kind.bytes()];
            codecs.decode_frame(&placed.within(&frames), &mut PageMut::new(*kind, &mut alone)).expect("a page of it");
            prop_assert!(alone == *whole);
        }
    }

    #[test]
    fn every_level_has_the_same_frames_and_pages(kind in kinds(), other in kinds(), seed: u64, position: u32, rate in 0.05_f32..4.0) {
        let bases = bases(seed % 7, kind.shape.dim);
        let (codec, codecs) = known(prism(&bases, rate));
        let mut prng = Prng::new(seed);
        let mut pages = block(&mut prng, &bases, kind, position % 9000);
        // Values outside of all tables, and tokens with codes that are too large.
        for (kind, bytes) in &mut pages {
            let mut values = values_of(kind, bytes);
            for _ in 0..prng.below(3) {
                values[prng.below(kind.shape.values() as u64) as usize] = 10_f32.powi(prng.below(5) as i32);
            }
            *bytes = page_of(kind, &values);
        }
        let kinds: Vec<PageKind> = pages
            .iter()
            .map(|(kind, _)| PageKind { element: other.element, layout: Layout { order: other.layout.order, ..kind.layout }, ..*kind })
            .collect();
        let both = |level| at_level(level, || {
            let frames = encoded(&pages, &*codec, position);
            let back = decoded(&codecs, &kinds, &frames).expect("frames just made");
            (frames, back)
        });
        let plain = both(Level::Scalar);
        for level in Level::available() {
            prop_assert!(both(*level) == plain, "{:?}", level);
        }
    }

    /// Forged payloads: the same error, or the same pages.
    #[test]
    fn forged_payloads_decode_alike_at_every_level(kind in kinds(), seed: u64, position: u32) {
        let bases = bases(seed % 7, kind.shape.dim);
        let codec = prism(&bases, 1.0);
        let mut prng = Prng::new(seed);
        let group: Vec<(PageKind, Vec<u8>)> = block(&mut prng, &bases, kind, 0).into_iter()
            .filter(|(kind, _)| kind.side == Side::K && kind.layer < GROUP)
            .collect();
        let pages: Vec<Page<'_>> = group.iter().map(|(kind, bytes)| Page::new(*kind, bytes)).collect();
        let mut whole = Vec::new();
        codec.encode_group(&pages, position, &mut whole).expect("numbers");
        for round in 0..16 {
            let mut payload = whole.clone();
            match prng.below(4) {
                0 => payload.truncate(prng.below(payload.len() as u64 + 1) as usize),
                1 => payload.extend(prng.next_u64().to_le_bytes()),
                2 => payload[4..6].copy_from_slice(&(prng.below(40) as u16).to_le_bytes()),
                _ => {}
            }
            let changes = if round == 0 { payload.len() as u64 } else { prng.below(12) };
            for _ in 0..changes.min(4 * payload.len() as u64) {
                let at = prng.below(payload.len() as u64) as usize;
                payload[at] = prng.next_u64() as u8;
            }
            let frame = Frame {
                codec: CodecId::Prism,
                version: 1,
                element: kind.element,
                side: Side::K,
                shape: kind.shape,
                layer: 0,
                profile: PROFILE,
                payload: &payload,
            };
            let decoded = |level| at_level(level, || {
                let mut bytes = vec![0; kind.bytes()];
                codec.decode_group(&frame, &mut [PageMut::new(PageKind { layer: 1, ..kind }, &mut bytes)]).map(|()| bytes)
            });
            let plain = decoded(Level::Scalar);
            for level in Level::available() {
                prop_assert_eq!(&decoded(*level), &plain, "{:?}", level);
            }
        }
    }
}

fn usual(tokens: u16) -> PageKind {
    PageKind {
        shape: Shape { heads: HEADS, tokens, dim: 16 },
        element: Element::F16,
        layout: Layout { order: Order::TokenMajor, capacity: tokens },
        side: Side::K,
        layer: 0,
    }
}

/// The position is part of a frame, and keys at their own one take fewer bytes than at another.
#[test]
fn a_wrong_position_costs_bytes_and_no_values() {
    let bases = bases(1, 16);
    let (codec, codecs) = known(prism(&bases, 1.0));
    let pages = block(&mut Prng::new(9), &bases, usual(64), 4096);
    let kinds: Vec<PageKind> = pages.iter().map(|(kind, _)| *kind).collect();
    let (right, wrong) = (encoded(&pages, &*codec, 4096), encoded(&pages, &*codec, 77));
    assert!(right.len() < wrong.len(), "{} and {} bytes", right.len(), wrong.len());
    for frames in [right, wrong] {
        let back = decoded(&codecs, &kinds, &frames).expect("frames just made");
        for ((kind, bytes), back) in pages.iter().zip(&back) {
            let [before, after] = [bytes, back].map(|bytes| values_of(kind, bytes));
            let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
            let error = square(&mut before.iter().zip(&after).map(|(a, b)| a - b));
            assert!(error < 0.02 * square(&mut before.iter().copied()), "{kind:?}: {error}");
        }
    }
}

/// Tokens whose values no code describes stay bit for bit, and the others beside them are coded.
#[test]
fn tokens_with_huge_values_stay_as_they_are() {
    let bases = bases(2, 16);
    let (codec, codecs) = known(prism(&bases, 1.0));
    let mut pages = block(&mut Prng::new(3), &bases, usual(16), 64);
    let usual_bytes = encoded(&pages, &*codec, 64).len();
    for (kind, bytes) in &mut pages {
        let mut values = values_of(kind, bytes);
        // Token 5 of head 1.
        values[(16 + 5) * 16 + 3] = 60_000.0;
        *bytes = page_of(kind, &values);
    }
    let kinds: Vec<PageKind> = pages.iter().map(|(kind, _)| *kind).collect();
    let frames = encoded(&pages, &*codec, 64);
    assert!(frames.len() < usual_bytes * 3 / 2, "{} bytes, without {usual_bytes}", frames.len());
    let back = decoded(&codecs, &kinds, &frames).expect("frames just made");
    for ((kind, bytes), back) in pages.iter().zip(&back) {
        let [before, after] = [bytes, back].map(|bytes| values_of(kind, bytes));
        for head in 0..2 {
            let token = (head * 16 + 5) * 16..(head * 16 + 6) * 16;
            assert_eq!(before[token.clone()], after[token], "{kind:?}");
        }
        assert_ne!(before, after, "other tokens are coded");
    }
}

#[test]
fn groups_that_the_codec_cannot_describe_are_raw_pages() {
    let bases = bases(3, 16);
    let (codec, codecs) = known(prism(&bases, 1.0));
    let pages = block(&mut Prng::new(4), &bases, usual(16), 0);
    let kinds: Vec<PageKind> = pages.iter().map(|(kind, _)| *kind).collect();
    let ids = |frames: &[u8]| {
        let placed = codecs.split_block(&kinds, frames).expect("frames just made").0;
        placed.iter().map(|placed| placed.frame.codec as u8).collect::<Vec<u8>>()
    };
    assert_eq!(ids(&encoded(&pages, &*codec, 0)), [5; 10]);
    // A value that is not a number: V of the first group.
    let mut odd = pages.clone();
    odd[3].1[6..8].copy_from_slice(&half::f16::NAN.to_le_bytes());
    let frames = encoded(&odd, &*codec, 0);
    assert_eq!(ids(&frames), [5, 0, 5, 0, 5, 5, 5, 5, 5, 5]);
    assert_eq!(decoded(&codecs, &kinds, &frames).expect("frames just made")[3], odd[3].1);
    // Another codec for one layer of a group.
    let int8: Arc<dyn PageCodec> = Arc::new(SpecKv::default());
    let of_layer = |kind: &PageKind| if kind.layer == 3 { &*int8 } else { &*codec };
    let mixed: Vec<BlockPage<'_>> =
        pages.iter().map(|(kind, bytes)| BlockPage { kind, bytes, codec: of_layer(kind) }).collect();
    let mut frames = Vec::new();
    encode_block(&mixed, 0, &mut frames);
    assert_eq!(ids(&frames), [5, 5, 5, 5, 0, 0, 1, 1, 5, 5]);
    decoded(&codecs, &kinds, &frames).expect("frames just made");
    // A single page is none of its frames.
    let mut payload = Vec::new();
    assert!(codec.encode_payload(&Page::new(kinds[0], &pages[0].1), &mut payload).is_err());
}

#[test]
fn frames_of_other_groups_and_blocks_are_refused() {
    let bases = bases(4, 16);
    let (codec, codecs) = known(prism(&bases, 1.0));
    let pages = block(&mut Prng::new(5), &bases, usual(16), 0);
    let kinds: Vec<PageKind> = pages.iter().map(|(kind, _)| *kind).collect();
    let frames = encoded(&pages, &*codec, 0);
    (0..frames.len()).for_each(|end| assert!(codecs.split_block(&kinds, &frames[..end]).is_err(), "cut at {end}"));
    assert_eq!(
        Codecs::default().split_block(&kinds, &frames),
        Err(DecodeError::UnknownProfile(PROFILE)),
        "without the profile"
    );
    let placed = codecs.split_block(&kinds, &frames).expect("frames just made").0;
    let first = placed[0].within(&frames);
    for other in [
        PageKind { layer: 2, ..kinds[0] },
        PageKind { layer: 9, ..kinds[0] },
        PageKind { side: Side::V, ..kinds[0] },
        PageKind { shape: Shape { heads: 1, ..kinds[0].shape }, ..kinds[0] },
    ] {
        let mut bytes = vec![0; other.bytes()];
        let refused = codecs.decode_frame(&first, &mut PageMut::new(other, &mut bytes));
        assert_eq!(refused, Err(DecodeError::OtherPage), "{other:?}");
    }
    // The frame of the second group where the first should be.
    let moved = Frame { layer: 1, ..first };
    let mut bytes = vec![0; kinds[0].bytes()];
    assert_eq!(codecs.decode_frame(&moved, &mut PageMut::new(kinds[0], &mut bytes)), Err(DecodeError::OtherPage));
    // Pages of frames of their own in the middle of a group.
    let raw: Arc<dyn PageCodec> = Arc::new(Raw);
    let mut own = Vec::new();
    cenote_codec::encode(&*raw, &Page::new(kinds[0], &pages[0].1), &mut own);
    own.extend_from_slice(&frames);
    assert!(codecs.split_block(&kinds, &own).is_err());
}

#[test]
fn steps_that_numbers_cannot_hold_are_refused() {
    let bases = bases(5, 16);
    for steps in [[0.0, 1.0], [1.0, -1.0], [f32::NAN, 1.0], [1e-42, 1.0], [1e-30, 1.0]] {
        assert!(Prism::new(&bases, LAYERS.into(), steps, 1).is_none(), "{steps:?}");
    }
}
