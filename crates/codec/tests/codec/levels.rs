//! Every level equals the reference: frames byte for byte, decoded pages bit for bit, also for odd
//! pages and forged payloads.

use cenote_base::prng::Prng;
use cenote_codec::profile::curve_of;
use cenote_codec::{
    Channels, Codecs, Element, Frame, Groups, Layout, Level, Oaken, Order, Page, PageCodec, PageKind, PageMut, Profile,
    QPack, QPackZ, Raw, Shape, Side, SideProfile, SpecKv, SpecKvMode, Thresholds, at_level, encode,
};
use proptest::prelude::*;
use std::sync::Arc;

const PROFILE: u32 = 0xfeed;

fn kinds() -> impl Strategy<Value = PageKind> {
    let order = prop_oneof![
        Just(Order::TokenMajor),
        Just(Order::ChannelMajor),
        Just(Order::KeyPanels),
        Just(Order::ValuePanels)
    ];
    let element = prop_oneof![Just(Element::F16), Just(Element::Bf16), Just(Element::F32)];
    let dim = prop_oneof![Just(64_u16), Just(128), Just(40), 1_u16..140];
    let tokens = prop_oneof![Just(16_u16), Just(32), 1_u16..50];
    let more = prop_oneof![Just(0_u16), 1_u16..9];
    (1_u16..4, tokens, dim, more, order, element).prop_map(|(heads, tokens, dim, more, order, element)| PageKind {
        shape: Shape { heads, tokens, dim },
        element,
        layout: Layout { order, capacity: tokens + more },
        side: Side::V,
        layer: 0,
    })
}

/// The values of a page.
#[derive(Clone, Copy, Debug)]
enum Filling {
    /// Bell-shaped, with channels far from zero.
    Bell(f32),
    /// The same, with this value in some places.
    Odd(f32),
    /// One value.
    Equal(f32),
    /// Any bits.
    Bits,
}

/// Infinities, NaN, zeros of both signs, the smallest and largest numbers, the edges of halves, and
/// a value that gives small codes of INT8 ties of bfloats.
const ODD: [f32; 17] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    -0.0,
    0.0,
    1e-42,
    -3e-39,
    6e-8,
    -2.9e-8,
    f32::MAX,
    f32::MIN,
    65504.0,
    65519.996,
    65520.0,
    -65536.0,
    1e9,
    127.0 * 257.0 / 256.0,
];

fn fillings() -> impl Strategy<Value = Filling> {
    prop_oneof![
        4 => (1e-3_f32..50.0).prop_map(Filling::Bell),
        3 => prop::sample::select(&ODD[..]).prop_map(Filling::Odd),
        2 => prop_oneof![prop::sample::select(&ODD[..]), -9.0_f32..9.0].prop_map(Filling::Equal),
        1 => Just(Filling::Bits),
    ]
}

fn bell(prng: &mut Prng) -> f32 {
    (0..4).map(|_| prng.below(2001) as f32 / 1000.0 - 1.0).sum()
}

/// The bytes of a page, with random padding.
fn page_of(prng: &mut Prng, kind: PageKind, filling: Filling) -> Vec<u8> {
    let mut bytes = vec![0; kind.bytes()];
    bytes.iter_mut().for_each(|byte| *byte = prng.next_u64() as u8);
    let shape = kind.shape;
    let mut values = vec![0.0; shape.head_values()];
    let mut page = PageMut::new(kind, &mut bytes);
    for head in 0..shape.heads.into() {
        for (at, value) in values.iter_mut().enumerate() {
            let offset = if at % usize::from(shape.dim) % 13 == 5 { 6.0 } else { 0.0 };
            *value = match filling {
                Filling::Bell(spread) => spread * (bell(prng) + offset),
                Filling::Odd(odd) if prng.below(100) == 0 => odd,
                Filling::Odd(_) => bell(prng) + offset,
                Filling::Equal(value) => value,
                Filling::Bits => return bytes,
            };
        }
        page.write_head(head, &values);
    }
    bytes
}

fn codecs(prng: &mut Prng, shape: Shape) -> Vec<Arc<dyn PageCodec>> {
    let sample: Vec<f32> = (0..2000).map(|at| bell(prng) + if at % 13 == 5 { 6.0 } else { 0.0 }).collect();
    let oaken = |groups: &str| -> Arc<dyn PageCodec> {
        let groups: Groups = groups.parse().expect("groups");
        let thresholds = Thresholds::of_sample(&groups, &sample);
        Arc::new(Oaken::new(groups, vec![[thresholds.clone(), thresholds]], PROFILE))
    };
    let steps =
        (0..shape.token_values()).map(|_| 10_f32.powi(prng.below(5) as i32 - 3) * (1.0 + prng.next_f64() as f32));
    let steps = steps.collect();
    let means = (0..shape.token_values()).map(|_| bell(prng)).collect();
    let mut channels = Channels { means, steps };
    // Codes of some channels are ties of bfloats, and a zero may have either sign.
    for channel in 0..prng.below(3) as usize * shape.token_values() / 8 {
        (channels.means[channel], channels.steps[channel]) =
            if prng.below(4) == 0 { (-0.0, 1.0) } else { (257.0 / 256.0, 1.0 / 128.0) };
    }
    // Tables are too narrow for some channels: codes are escaped.
    let side = SideProfile {
        means: channels.means.clone(),
        deviations: channels.steps.iter().map(|step| step * (prng.below(16) + 1) as f32).collect(),
        steps: channels.steps.clone(),
        normal: curve_of((0..2000).map(|_| bell(prng)).collect()),
        ..SideProfile::default()
    };
    let profile = Profile { model: [0; 32], tokens: 0, prompts: 0, layers: vec![[side.clone(), side]], bases: None };
    let mut all: Vec<Arc<dyn PageCodec>> = vec![
        Arc::new(Raw),
        Arc::new(QPack::new(vec![[channels.clone(), channels]], PROFILE)),
        Arc::new(QPackZ::new(&profile, 1.0, PROFILE).expect("steps are sound")),
        oaken("4/90/6:5"),
        oaken("10/90:4"),
        oaken("90/10:5"),
        oaken("2/2/90/3/3:5"),
    ];
    for mode in [SpecKvMode::Int8, SpecKvMode::Delta, SpecKvMode::DeltaRle] {
        all.push(Arc::new(SpecKv { mode }));
    }
    all
}

/// The levels to compare with the reference.
fn levels() -> impl Iterator<Item = Level> {
    Level::available().iter().copied().filter(|&level| level != Level::Scalar)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn frames_and_pages_are_the_same(kind in kinds(), other in kinds(), filling in fillings(), seed: u64) {
        let mut prng = Prng::new(seed);
        let bytes = page_of(&mut prng, kind, filling);
        let to = PageKind { element: other.element, layout: Layout { order: other.layout.order, ..kind.layout }, ..kind };
        for codec in codecs(&mut prng, kind.shape) {
            let encoded = |level| at_level(level, || {
                let mut frame = Vec::new();
                encode(codec.as_ref(), &Page::new(kind, &bytes), &mut frame);
                frame
            });
            let frame = encoded(Level::Scalar);
            let mut known = Codecs::default();
            known.add(Arc::clone(&codec));
            let before = page_of(&mut prng, to, Filling::Bits);
            let decoded = |level| at_level(level, || {
                let mut page = before.clone();
                known.decode(&frame, &mut PageMut::new(to, &mut page)).map(|()| page)
            });
            let plain = decoded(Level::Scalar);
            prop_assert!(plain.is_ok());
            for level in levels() {
                prop_assert_eq!(&encoded(level), &frame, "{:?} at {:?}", codec.id(), level);
                prop_assert_eq!(&decoded(level), &plain, "{:?} at {:?}", codec.id(), level);
            }
        }
    }

    /// Forged payloads: the same error, or the same page.
    #[test]
    fn forged_payloads_decode_alike(kind in kinds(), filling in fillings(), seed: u64) {
        let mut prng = Prng::new(seed);
        let bytes = page_of(&mut prng, kind, filling);
        let before = page_of(&mut prng, kind, Filling::Bits);
        for codec in codecs(&mut prng, kind.shape) {
            let mut payload = Vec::new();
            if codec.encode_payload(&Page::new(kind, &bytes), &mut payload).is_err() {
                payload.resize(kind.shape.values() / 2, 0x5a);
            }
            let whole = payload;
            for round in 0..8 {
                let mut payload = whole.clone();
                match prng.below(4) {
                    0 => payload.truncate(prng.below(payload.len() as u64 + 1) as usize),
                    1 => payload.extend(prng.next_u64().to_le_bytes()),
                    _ => {}
                }
                let changes = if round == 0 { payload.len() as u64 } else { prng.below(12) };
                for _ in 0..changes.min(4 * payload.len() as u64) {
                    let at = prng.below(payload.len() as u64) as usize;
                    payload[at] = prng.next_u64() as u8;
                }
                let frame = Frame {
                    codec: codec.id(),
                    version: codec.version(),
                    element: kind.element,
                    side: kind.side,
                    shape: kind.shape,
                    layer: 0,
                    profile: codec.profile(),
                    payload: &payload,
                };
                let decoded = |level| at_level(level, || {
                    let mut page = before.clone();
                    codec.decode_payload(&frame, &mut PageMut::new(kind, &mut page)).map(|()| page)
                });
                let plain = decoded(Level::Scalar);
                for level in levels() {
                    prop_assert_eq!(&decoded(level), &plain, "{:?} at {:?}", codec.id(), level);
                }
            }
        }
    }
}

#[test]
fn at_level_forces_a_level_until_it_returns() {
    let fastest = Level::current();
    assert_eq!(Some(&fastest), Level::available().last());
    assert_eq!(at_level(Level::Scalar, Level::current), Level::Scalar);
    assert!(std::panic::catch_unwind(|| at_level(Level::Scalar, || panic!("inside"))).is_err());
    assert_eq!(Level::current(), fastest);
}
