//! Decodes arbitrary bytes as frames and payloads.
#![no_main]

use cenote_codec::{
    Bases, Basis, Channels, CodecId, Codecs, Element, Frame, Groups, Layout, Oaken, Order, PageCodec, PageKind,
    PageMut, Prism, Profile, QPack, QPackZ, Shape, Side, SideProfile, SpecKv, Thresholds,
};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

const PROFILE: u32 = 7;

fn codecs(token_values: usize) -> Vec<Arc<dyn PageCodec>> {
    let oaken = |groups: &str| -> Arc<dyn PageCodec> {
        let groups: Groups = groups.parse().expect("groups");
        let sample: Vec<f32> = (-50..50_i16).map(f32::from).collect();
        let thresholds = Thresholds::of_sample(&groups, &sample);
        Arc::new(Oaken::new(groups, vec![[thresholds.clone(), thresholds]], PROFILE))
    };
    let channels = Channels { means: vec![0.5; token_values], steps: vec![0.25; token_values] };
    let side = SideProfile {
        means: channels.means.clone(),
        deviations: vec![1.0; token_values],
        steps: channels.steps.clone(),
        normal: vec![-2.0, -0.5, 0.0, 0.5, 2.0],
        ..SideProfile::default()
    };
    let profile = Profile { model: [0; 32], tokens: 0, prompts: 0, layers: vec![[side.clone(), side]], bases: None };
    // Rotated keys of one layer; an odd number of channels has no pairs.
    let dim = if token_values.is_multiple_of(2) { token_values } else { 2 };
    let basis = |side: Side| Basis {
        means: vec![0.5; dim],
        metric: vec![1.0; if side == Side::K { dim } else { dim * dim }],
        scales: vec![1e-4; dim],
        matrix: (0..dim * dim).map(|at| (at * 7919) as i16).collect(),
        deviations: (0..dim).map(|at| 40.0 / (1 + at) as f32).collect(),
        magnitudes: (0..dim).map(|at| 30.0 / (1 + at) as f32).collect(),
    };
    let bases = Bases { frequencies: vec![0.1; dim / 2], group: 1, groups: vec![[basis(Side::K), basis(Side::V)]] };
    vec![
        Arc::new(Prism::new(&bases, 1, Prism::steps(1.0), PROFILE).expect("steps are sound")),
        Arc::new(QPackZ::new(&profile, 1.0, PROFILE).expect("steps are sound")),
        Arc::new(cenote_codec::Raw),
        Arc::new(SpecKv::default()),
        oaken("4/90/6:5"),
        oaken("2/2/90/3/3:5"),
        Arc::new(QPack::new(vec![[channels.clone(), channels]], PROFILE)),
    ]
}

fuzz_target!(|input: &[u8]| {
    let [heads, tokens, dim, choice, payload @ ..] = input else { return };
    let shape =
        Shape { heads: u16::from(heads % 3) + 1, tokens: u16::from(tokens % 34) + 1, dim: u16::from(dim % 140) + 1 };
    let order = [Order::TokenMajor, Order::ChannelMajor, Order::KeyPanels, Order::ValuePanels][usize::from(choice % 4)];
    let element = [Element::F16, Element::Bf16, Element::F32][usize::from(choice / 4 % 3)];
    let layout = Layout { order, capacity: shape.tokens };
    let kind = PageKind { shape, element, layout, side: Side::K, layer: 0 };
    let mut bytes = vec![0; kind.bytes()];
    let mut page = PageMut::new(kind, &mut bytes);
    let mut known = Codecs::default();
    for codec in codecs(shape.token_values()) {
        let element = if codec.id() == CodecId::Raw { Element::Bf16 } else { element };
        let (codec_id, version, profile) = (codec.id(), codec.version(), codec.profile());
        let frame = Frame { codec: codec_id, version, element, side: Side::K, shape, layer: 0, profile, payload };
        let _ = codec.decode_payload(&frame, &mut page);
        known.add(codec);
    }
    let _ = known.decode(payload, &mut page);
});
