//! Pages of keys and values for checks, made to hurt. Those of the demo model are in
//! `tests/real.rs`, so that the checks do not need the engine.

use cenote_base::prng::Prng;
use cenote_codec::{Element, Layout, Order, Page, PageKind, PageMut, Shape, Side};
use half::f16;

/// A page of halves with its kind.
#[derive(Clone, Debug)]
pub struct TestPage {
    /// Where it is from, for messages.
    pub name: String,
    /// Shape, order and side.
    pub kind: PageKind,
    /// The halves, as the kind orders them.
    pub bytes: Vec<u8>,
}

impl TestPage {
    /// A page of values, `[head][token][channel]`, in an order.
    #[must_use]
    pub fn new(name: &str, side: Side, layer: u16, shape: Shape, order: Order, values: &[f16]) -> Self {
        let layout = Layout { order, capacity: shape.tokens };
        let kind = PageKind { shape, element: Element::F16, layout, side, layer };
        let mut bytes = vec![0; kind.bytes()];
        for (at, value) in values.iter().enumerate() {
            let (head, rest) = (at / shape.head_values(), at % shape.head_values());
            let place = layout.place(shape, head, rest / usize::from(shape.dim), rest % usize::from(shape.dim));
            bytes[2 * place..2 * place + 2].copy_from_slice(&value.to_le_bytes());
        }
        Self { name: name.to_owned(), kind, bytes }
    }

    /// The page for a codec.
    #[must_use]
    pub fn page(&self) -> Page<'_> {
        Page::new(self.kind, &self.bytes)
    }

    /// Zeros of the same kind, to decode into.
    #[must_use]
    pub fn empty(&self) -> Vec<u8> {
        vec![0; self.bytes.len()]
    }

    /// A page to decode into.
    #[must_use]
    pub fn page_mut<'a>(&self, bytes: &'a mut [u8]) -> PageMut<'a> {
        PageMut::new(self.kind, bytes)
    }

    /// The values, `[head][token][channel]`.
    #[must_use]
    pub fn values(&self) -> Vec<f16> {
        let shape = self.kind.shape;
        let mut values = Vec::with_capacity(shape.values());
        for head in 0..usize::from(shape.heads) {
            for token in 0..usize::from(shape.tokens) {
                for channel in 0..usize::from(shape.dim) {
                    let place = self.kind.layout.place(shape, head, token, channel);
                    values.push(f16::from_le_bytes([self.bytes[2 * place], self.bytes[2 * place + 1]]));
                }
            }
        }
        values
    }

    /// The same values in another order.
    #[must_use]
    pub fn ordered(&self, order: Order) -> Self {
        Self::new(&self.name, self.kind.side, self.kind.layer, self.kind.shape, order, &self.values())
    }
}

/// Approximately normal: mean 0, deviation 1.
pub fn bell(prng: &mut Prng) -> f32 {
    let sum: f64 = (0..6).map(|_| prng.next_f64()).sum();
    ((sum - 3.0) * std::f64::consts::SQRT_2) as f32
}

/// A random shape that all modules take.
pub fn any_shape(prng: &mut Prng) -> Shape {
    let dim = [32, 64, 64, 128, 40, 34, 96][prng.below(7) as usize];
    Shape { heads: 1 + prng.below(3) as u16, tokens: 1 + prng.below(20) as u16, dim }
}

/// Values that break arithmetic: zeros of both signs, subnormal numbers, the largest, and ties.
const ODD: [u16; 12] = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x3800, 0x0002];

/// A page of one of several kinds, chosen by the generator. Some have long runs of zeros, some have
/// values that are not finite.
pub fn any_page(prng: &mut Prng, shape: Shape) -> TestPage {
    let sort = prng.below(9);
    let level = [1.0, 1e-6, 3e4, 0.01][prng.below(4) as usize];
    let spike = prng.below(shape.values() as u64) as usize;
    let value = |prng: &mut Prng, at: usize| match sort {
        0 => f16::from_f32(level * bell(prng)),
        1 => f16::from_bits(ODD[prng.below(12) as usize]),
        // Mostly zeros.
        2 => f16::from_f32(if prng.below(40) == 0 { level * bell(prng) } else { 0.0 }),
        // Neighbours are equal, so differences are zeros.
        3 => f16::from_f32(level * ((at / 300) as f32 % 7.0 - 3.0)),
        // One value rules the scale.
        4 => f16::from_f32(if at == spike { 6e4 } else { bell(prng) }),
        // Any bits, also such that are not finite.
        5 => f16::from_bits(prng.next_u64() as u16),
        // Any finite bits.
        6 => f16::from_bits((prng.next_u64() as u16 & 0x83ff) | (prng.below(31) as u16) << 10),
        // Every second difference is zero.
        7 => f16::from_f32(level * (at / 2 % 5) as f32),
        _ => f16::from_f32(0.0),
    };
    let values: Vec<f16> = (0..shape.values()).map(|at| value(prng, at)).collect();
    TestPage::new(&format!("random page, sort {sort}"), Side::K, 0, shape, Order::TokenMajor, &values)
}
