//! Rules of every codec: pages decode within the stated bound, and other bytes than frames are
//! errors.

use cenote_base::prng::Prng;
use cenote_codec::profile::curve_of;
use cenote_codec::{
    Channels, CodecId, Codecs, Declined, DecodeError, Element, Frame, Groups, HEADER_BYTES, Layout, Oaken, OakenWriter,
    Order, Page, PageCodec, PageKind, PageMut, PageWriter, Profile, QPack, QPackZ, Shape, Side, SideProfile, SpecKv,
    SpecKvMode, Thresholds, encode,
};
use proptest::prelude::*;
use std::sync::Arc;

const PROFILE: u32 = 0x00c0_ffee;

/// Values like keys: bell-shaped, with a few channels far from zero.
fn sample(prng: &mut Prng, shape: Shape, spread: f32) -> Vec<f32> {
    let bell = |prng: &mut Prng| (0..4).map(|_| prng.below(2001) as f32 / 1000.0 - 1.0).sum::<f32>();
    let dim = shape.dim as usize;
    let values = (0..shape.values()).map(|at| {
        let channel = at % dim;
        let offset = if channel % 13 == 5 { 6.0 } else { 0.0 };
        spread * (bell(prng) + offset)
    });
    values.collect()
}

fn page_of(kind: PageKind, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; kind.bytes()];
    let mut page = PageMut::new(kind, &mut bytes);
    let heads = values.chunks_exact(kind.shape.head_values());
    heads.enumerate().for_each(|(head, values)| page.write_head(head, values));
    bytes
}

fn values_of(kind: PageKind, bytes: &[u8]) -> Vec<f32> {
    let page = Page::new(kind, bytes);
    let mut values = vec![0.0; kind.shape.values()];
    let heads = values.chunks_exact_mut(kind.shape.head_values());
    heads.enumerate().for_each(|(head, values)| page.read_head(head, values));
    values
}

fn oaken(groups: &str, values: &[f32]) -> Oaken {
    let groups: Groups = groups.parse().expect("groups");
    let thresholds = Thresholds::of_sample(&groups, values);
    Oaken::new(groups, vec![[thresholds.clone(), thresholds]; 2], PROFILE)
}

/// Means of the sample, and steps of a tenth of its spread, finer for some channels.
fn qpack(shape: Shape, spread: f32) -> QPack {
    let channel = |at: usize| at % shape.dim as usize;
    let channels = Channels {
        means: (0..shape.token_values()).map(|at| if channel(at) % 13 == 5 { 6.0 * spread } else { 0.0 }).collect(),
        steps: (0..shape.token_values()).map(|at| spread / (5 + channel(at) % 40) as f32).collect(),
    };
    QPack::new(vec![[channels.clone(), channels]; 2], PROFILE)
}

/// The same means and steps, with tables for that spread.
fn qpackz(shape: Shape, spread: f32) -> QPackZ {
    let channel = |at: usize| at % shape.dim as usize;
    let side = SideProfile {
        means: (0..shape.token_values()).map(|at| if channel(at) % 13 == 5 { 6.0 * spread } else { 0.0 }).collect(),
        deviations: vec![1.15 * spread; shape.token_values()],
        steps: (0..shape.token_values()).map(|at| spread / (5 + channel(at) % 40) as f32).collect(),
        normal: curve_of((-3000..=3000).map(|value| value as f32 / 1000.0).collect()),
        ..Default::default()
    };
    let profile = Profile { model: [0; 32], tokens: 0, prompts: 0, layers: vec![[side.clone(), side]; 2], bases: None };
    QPackZ::new(&profile, 1.0, PROFILE).expect("steps are sound")
}

fn kinds() -> impl Strategy<Value = PageKind> {
    let order = prop_oneof![
        Just(Order::TokenMajor),
        Just(Order::ChannelMajor),
        Just(Order::KeyPanels),
        Just(Order::ValuePanels)
    ];
    let element = prop_oneof![Just(Element::F16), Just(Element::Bf16), Just(Element::F32)];
    let side = prop_oneof![Just(Side::K), Just(Side::V)];
    let dim = prop_oneof![Just(64_u16), Just(128), Just(40), 1_u16..140];
    (1_u16..4, 1_u16..34, dim, 0_u16..9, order, element, side).prop_map(
        |(heads, tokens, dim, more, order, element, side)| PageKind {
            shape: Shape { heads, tokens, dim },
            element,
            layout: Layout { order, capacity: tokens + more },
            side,
            layer: 1,
        },
    )
}

/// The error of rounding to an element type.
fn rounding(element: Element, value: f32) -> f32 {
    match element {
        Element::F16 => value.abs() / 2048.0 + 6e-8,
        Element::Bf16 => value.abs() / 256.0,
        Element::F32 => 0.0,
    }
}

/// Encodes, decodes as another kind of page, and returns the codec and both pages' values.
fn round_trip(
    codec: &Arc<dyn PageCodec>,
    from: PageKind,
    values: &[f32],
    to: PageKind,
) -> (CodecId, Vec<f32>, Vec<f32>) {
    let bytes = page_of(from, values);
    let mut frame = Vec::new();
    let id = encode(codec.as_ref(), &Page::new(from, &bytes), &mut frame);
    let mut codecs = Codecs::default();
    codecs.add(Arc::clone(codec));
    let mut decoded = vec![0; to.bytes()];
    codecs.decode(&frame, &mut PageMut::new(to, &mut decoded)).expect("a frame just made");
    (id, values_of(from, &bytes), values_of(to, &decoded))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn raw_pages_come_back_bit_for_bit(kind in kinds(), seed: u64) {
        let mut prng = Prng::new(seed);
        let mut bytes = vec![0; kind.bytes()];
        bytes.iter_mut().for_each(|byte| *byte = prng.next_u64() as u8);
        let mut frame = Vec::new();
        prop_assert_eq!(encode(&cenote_codec::Raw, &Page::new(kind, &bytes), &mut frame), CodecId::Raw);
        prop_assert_eq!(frame.len(), HEADER_BYTES + kind.shape.values() * kind.element.bytes());
        // Padding is not stored: decoding into the same page changes nothing.
        let mut decoded = bytes.clone();
        Codecs::default().decode(&frame, &mut PageMut::new(kind, &mut decoded)).expect("a frame just made");
        prop_assert_eq!(decoded, bytes);
    }

    #[test]
    fn speckv_stays_within_half_a_scale(kind in kinds(), other in kinds(), seed: u64, spread in 1e-3_f32..100.0) {
        let values = sample(&mut Prng::new(seed), kind.shape, spread);
        let to = PageKind { element: other.element, layout: Layout { order: other.layout.order, ..kind.layout }, ..kind };
        for mode in [SpecKvMode::Int8, SpecKvMode::Delta, SpecKvMode::DeltaRle] {
            let codec: Arc<dyn PageCodec> = Arc::new(SpecKv { mode });
            let (_, before, after) = round_trip(&codec, kind, &values, to);
            let scale = before.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
            for (before, after) in before.iter().zip(&after) {
                let bound = scale * 0.5001 + rounding(to.element, *after);
                prop_assert!((before - after).abs() <= bound, "{before} became {after}, scale {scale}");
            }
        }
    }

    #[test]
    fn oaken_stays_within_a_step_of_its_group(kind in kinds(), seed: u64, spread in 1e-2_f32..10.0) {
        let values = sample(&mut Prng::new(seed), kind.shape, spread);
        let to = PageKind { element: Element::F32, ..kind };
        for groups in ["4/90/6:5", "90/10:5", "10/90:4", "2/2/90/3/3:5", "4/90/3/3:4"] {
            let codec = oaken(groups, &values);
            let thresholds = Thresholds::of_sample(codec.groups(), &values);
            let shared: Arc<dyn PageCodec> = Arc::new(codec);
            let (_, before, after) = round_trip(&shared, kind, &values, to);
            // No group is wider than its part of this page.
            let widest = before.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let inner = thresholds.intervals().first().expect("two groups at least");
            let reach = (2.0 * widest).max(inner.1 - inner.0);
            for (before, after) in before.iter().zip(&after) {
                let error = (before - after).abs();
                prop_assert!(error <= reach / 15.0 * 1.01 + widest / 500.0, "{groups}: {before} became {after}");
            }
        }
    }

    #[test]
    fn qpack_stays_within_half_a_step(kind in kinds(), other in kinds(), seed: u64, spread in 1e-2_f32..100.0) {
        let mut prng = Prng::new(seed);
        let mut values = sample(&mut prng, kind.shape, spread);
        // Some values are far from the profile.
        for _ in 0..prng.below(4) {
            let at = prng.below(values.len() as u64) as usize;
            values[at] = (prng.below(1000) as f32 - 500.0) * spread;
        }
        let to = PageKind { element: other.element, layout: Layout { order: other.layout.order, ..kind.layout }, ..kind };
        let codecs: [Arc<dyn PageCodec>; 2] =
            [Arc::new(qpack(kind.shape, spread)), Arc::new(qpackz(kind.shape, spread))];
        for codec in codecs {
            let (id, before, after) = round_trip(&codec, kind, &values, to);
            let dim = usize::from(kind.shape.dim);
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let step = if id == CodecId::Raw { 0.0 } else { spread / (5 + at % dim % 40) as f32 };
                let bound = (step * 0.501 + before.abs() / 1e5).max(before.abs() / 2048.0) + rounding(to.element, *after);
                prop_assert!((before - after).abs() <= bound, "{before} became {after}, step {step}");
            }
        }
    }

    /// Frames in between, after any number of tokens, equal those of encoding all tokens at once.
    #[test]
    fn pages_grow_in_pieces(kind in kinds(), seed: u64, spread in 1e-2_f32..10.0, odd in 0_u8..8) {
        let mut prng = Prng::new(seed);
        let shape = kind.shape;
        let mut rows = sample(&mut prng, shape, spread);
        let sampled = rows.clone();
        // One token may have a value that no codec takes.
        if odd == 0 {
            let at = prng.below(rows.len() as u64) as usize;
            rows[at] = f32::NAN;
        }
        let codecs: [Arc<dyn PageCodec>; 8] = [
            Arc::new(cenote_codec::Raw),
            Arc::new(SpecKv { mode: SpecKvMode::Int8 }),
            Arc::new(SpecKv { mode: SpecKvMode::Delta }),
            Arc::new(SpecKv { mode: SpecKvMode::DeltaRle }),
            Arc::new(oaken("4/90/6:5", &sampled)),
            Arc::new(oaken("2/2/90/3/3:5", &sampled)),
            Arc::new(qpack(shape, spread)),
            Arc::new(qpackz(shape, spread)),
        ];
        for codec in codecs {
            let mut known = Codecs::default();
            known.add(Arc::clone(&codec));
            let mut writer = PageWriter::new(codec.as_ref(), kind);
            let (mut frame, mut tokens) = (Vec::new(), 0);
            prop_assert_eq!(writer.frame(&mut frame), None);
            while tokens < usize::from(shape.tokens) {
                let more = 1 + prng.below((usize::from(shape.tokens) - tokens) as u64) as usize;
                writer.append(&rows[tokens * shape.token_values()..][..more * shape.token_values()]);
                tokens += more;
                if tokens < usize::from(shape.tokens) && prng.below(2) == 0 {
                    continue;
                }
                let so_far = PageKind { shape: Shape { tokens: tokens as u16, ..shape }, ..kind };
                prop_assert_eq!(writer.kind(), &so_far);
                let by_head = |at: usize| {
                    let (head, token) = (at / so_far.shape.head_values(), at / usize::from(shape.dim) % tokens);
                    rows[(token * usize::from(shape.heads) + head) * usize::from(shape.dim) + at % usize::from(shape.dim)]
                };
                let values: Vec<f32> = (0..so_far.shape.values()).map(by_head).collect();
                let bytes = page_of(so_far, &values);
                let mut at_once = Vec::new();
                let id = encode(codec.as_ref(), &Page::new(so_far, &bytes), &mut at_once);
                frame.clear();
                prop_assert_eq!(writer.frame(&mut frame), Some(id));
                prop_assert_eq!(&frame, &at_once, "{:?}, {} tokens", codec.id(), tokens);
                let decoded = [&frame, &at_once].map(|frame| {
                    let mut page = vec![0; so_far.bytes()];
                    known.decode(frame, &mut PageMut::new(so_far, &mut page)).map(|()| page)
                });
                prop_assert!(decoded[0].is_ok());
                prop_assert_eq!(&decoded[0], &decoded[1]);
            }
        }
    }

    /// A changed byte, a missing end or a longer frame is an error, without a panic.
    #[test]
    fn frames_that_are_not_whole_are_errors(kind in kinds(), seed: u64, flip in 1_u8..=255) {
        let mut prng = Prng::new(seed);
        let kind = PageKind { shape: Shape { tokens: kind.shape.tokens.min(3), ..kind.shape }, ..kind };
        let values = sample(&mut prng, kind.shape, 1.0);
        let bytes = page_of(kind, &values);
        let codecs: [Arc<dyn PageCodec>; 5] = [
            Arc::new(qpackz(kind.shape, 1.0)),
            Arc::new(cenote_codec::Raw),
            Arc::new(SpecKv::default()),
            Arc::new(oaken("4/90/6:5", &values)),
            Arc::new(qpack(kind.shape, 1.0)),
        ];
        for codec in codecs {
            let mut known = Codecs::default();
            known.add(Arc::clone(&codec));
            let mut frame = Vec::new();
            encode(codec.as_ref(), &Page::new(kind, &bytes), &mut frame);
            let mut decoded = vec![0; kind.bytes()];
            let mut decode = |frame: &[u8]| known.decode(frame, &mut PageMut::new(kind, &mut decoded));
            for at in 0..frame.len() {
                frame[at] ^= flip;
                prop_assert!(decode(&frame).is_err(), "byte {at}");
                frame[at] ^= flip;
                prop_assert!(decode(&frame[..at]).is_err(), "cut at {at}");
            }
            frame.push(0);
            prop_assert_eq!(decode(&frame), Err(DecodeError::Trailing(1)));
        }
    }

    /// Forged payloads with a valid checksum give an error or a page, without a panic.
    #[test]
    fn forged_payloads_do_no_harm(kind in kinds(), seed: u64) {
        let mut prng = Prng::new(seed);
        let values = sample(&mut prng, kind.shape, 1.0);
        let bytes = page_of(kind, &values);
        let codecs: [Arc<dyn PageCodec>; 6] = [
            Arc::new(qpackz(kind.shape, 1.0)),
            Arc::new(qpack(kind.shape, 1.0)),
            Arc::new(SpecKv { mode: SpecKvMode::Int8 }),
            Arc::new(SpecKv { mode: SpecKvMode::DeltaRle }),
            Arc::new(oaken("4/90/6:5", &values)),
            Arc::new(oaken("2/2/90/3/3:5", &values)),
        ];
        for codec in codecs {
            let mut frame = Vec::new();
            encode(codec.as_ref(), &Page::new(kind, &bytes), &mut frame);
            let whole = Frame::parse(&frame).expect("a frame just made");
            let mut decoded = vec![0; kind.bytes()];
            for _ in 0..20 {
                let mut payload = whole.payload.to_vec();
                match prng.below(4) {
                    0 => payload.truncate(prng.below(payload.len() as u64 + 1) as usize),
                    1 => payload.extend(prng.next_u64().to_le_bytes()),
                    _ => {}
                }
                for _ in 0..prng.below(8) {
                    let len = payload.len() as u64;
                    if len > 0 {
                        payload[prng.below(len) as usize] = prng.next_u64() as u8;
                    }
                }
                let forged = Frame { payload: &payload, ..whole };
                let _ = codec.decode_payload(&forged, &mut PageMut::new(kind, &mut decoded));
            }
        }
    }
}

#[test]
fn pages_with_values_that_are_not_finite_stay_raw() {
    let shape = Shape { heads: 1, tokens: 2, dim: 64 };
    let layout = Layout { order: Order::TokenMajor, capacity: 2 };
    let kind = PageKind { shape, element: Element::F16, layout, side: Side::K, layer: 0 };
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = sample(&mut Prng::new(1), shape, 1.0);
        let thresholds = values.clone();
        values[77] = odd;
        let codecs: [Arc<dyn PageCodec>; 4] = [
            Arc::new(SpecKv::default()),
            Arc::new(oaken("4/90/6:5", &thresholds)),
            Arc::new(qpack(shape, 1.0)),
            Arc::new(qpackz(shape, 1.0)),
        ];
        for codec in codecs {
            let (id, before, after) = round_trip(&codec, kind, &values, kind);
            assert_eq!(id, CodecId::Raw);
            assert_eq!(
                before.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                after.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn extreme_pages_decode_within_the_bounds() {
    let shape = Shape { heads: 2, tokens: 3, dim: 70 };
    let layout = Layout { order: Order::ChannelMajor, capacity: 16 };
    let kind = PageKind { shape, element: Element::F32, layout, side: Side::V, layer: 1 };
    let mut one_huge = vec![0.01; shape.values()];
    one_huge[100] = 60_000.0;
    let signed_zero = (0..shape.values()).map(|at| if at % 2 == 0 { 0.0 } else { -0.0 }).collect();
    for values in
        [vec![0.0; shape.values()], vec![-3.5; shape.values()], one_huge, signed_zero, vec![1e-42; shape.values()]]
    {
        let codecs: [Arc<dyn PageCodec>; 4] = [
            Arc::new(SpecKv::default()),
            Arc::new(oaken("4/90/6:5", &values)),
            Arc::new(qpack(shape, 1e-3)),
            Arc::new(qpackz(shape, 1e-3)),
        ];
        for codec in codecs {
            let (_, before, after) = round_trip(&codec, kind, &values, kind);
            let widest = before.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let worst = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Bounds are halves, of which the smallest is 6e-8; the largest step is 2e-4.
            assert!(worst <= (widest / 15.0).max(1e-4) + 6e-8, "{worst} of {widest}");
        }
    }
}

#[test]
fn a_page_grows_token_by_token() {
    let shape = Shape { heads: 2, tokens: 5, dim: 64 };
    let layout = Layout { order: Order::TokenMajor, capacity: 16 };
    let kind = |tokens| PageKind {
        shape: Shape { tokens, ..shape },
        element: Element::F32,
        layout: Layout { capacity: tokens, ..layout },
        side: Side::K,
        layer: 0,
    };
    let values = sample(&mut Prng::new(3), shape, 1.0);
    let codec = oaken("4/90/6:5", &values);
    let row = |token: usize| [0, 1].map(|head| values[(head * 5 + token) * 64..][..64].to_vec()).concat();
    let mut writer = OakenWriter::new(&codec, 0, Side::K, 2, 64);
    for tokens in 1..=5_u16 {
        let bad = vec![f32::NAN; 128];
        assert_eq!(writer.push(&bad), Err(Declined), "and nothing changes");
        writer.push(&row(usize::from(tokens) - 1)).expect("numbers");
        let mut grown = Vec::new();
        writer.payload(&mut grown);
        let heads = [0, 1].map(|head| values[head * 5 * 64..][..usize::from(tokens) * 64].to_vec()).concat();
        let bytes = page_of(kind(tokens), &heads);
        let mut at_once = Vec::new();
        codec.encode_payload(&Page::new(kind(tokens), &bytes), &mut at_once).expect("numbers");
        assert_eq!(grown, at_once, "{tokens} tokens");
    }
}

#[test]
fn frames_name_their_codec_profile_and_page() {
    let shape = Shape { heads: 1, tokens: 4, dim: 64 };
    let layout = Layout { order: Order::TokenMajor, capacity: 4 };
    let kind = PageKind { shape, element: Element::F32, layout, side: Side::K, layer: 1 };
    let values = sample(&mut Prng::new(5), shape, 1.0);
    let bytes = page_of(kind, &values);
    let mut frames = Vec::new();
    encode(&oaken("4/90/6:5", &values), &Page::new(kind, &bytes), &mut frames);
    let first = frames.len();
    encode(&SpecKv::default(), &Page::new(kind, &bytes), &mut frames);
    let (frame, rest) = Frame::split(&frames).expect("two frames");
    assert_eq!((frame.codec, frame.profile, frame.layer, frame.shape), (CodecId::Oaken, PROFILE, 1, shape));
    assert_eq!(rest.len(), frames.len() - first);
    let mut decoded = vec![0; kind.bytes()];
    let unknown = Codecs::default().decode(&frames[..first], &mut PageMut::new(kind, &mut decoded));
    assert_eq!(unknown, Err(DecodeError::UnknownProfile(PROFILE)));
    let other = PageKind { side: Side::V, ..kind };
    let mismatch = Codecs::default().decode(rest, &mut PageMut::new(other, &mut decoded));
    assert_eq!(mismatch, Err(DecodeError::OtherPage));
}
