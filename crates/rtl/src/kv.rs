//! Pages of keys and values for checks, made to hurt. Those of the demo model are in
//! `tests/real.rs`, so that the checks do not need the engine.

use cenote_base::prng::Prng;
use cenote_codec::{Element, Layout, Order, Page, PageKind, PageMut, Shape, Side};
use half::{bf16, f16};

/// A page of halves or bfloats with its kind.
#[derive(Clone, Debug)]
pub struct TestPage {
    /// Where it is from, for messages.
    pub name: String,
    /// Shape, order, side and element type.
    pub kind: PageKind,
    /// The values, as the kind orders them.
    pub bytes: Vec<u8>,
}

impl TestPage {
    /// A page of halves, `[head][token][channel]`, in an order.
    #[must_use]
    pub fn new(name: &str, side: Side, layer: u16, shape: Shape, order: Order, values: &[f16]) -> Self {
        let layout = Layout { order, capacity: shape.tokens };
        let kind = PageKind { shape, element: Element::F16, layout, side, layer };
        let bits: Vec<u16> = values.iter().map(|value| value.to_bits()).collect();
        Self::of_bits(name, kind, &bits)
    }

    /// A page of the values with these bits, `[head][token][channel]`.
    fn of_bits(name: &str, kind: PageKind, bits: &[u16]) -> Self {
        let (shape, layout) = (kind.shape, kind.layout);
        let mut bytes = vec![0; kind.bytes()];
        for (at, value) in bits.iter().enumerate() {
            let (head, rest) = (at / shape.head_values(), at % shape.head_values());
            let place = layout.place(shape, head, rest / usize::from(shape.dim), rest % usize::from(shape.dim));
            bytes[2 * place..2 * place + 2].copy_from_slice(&value.to_le_bytes());
        }
        Self { name: name.to_owned(), kind, bytes }
    }

    /// The page as bfloats: the nearest ones, or those with the same bits.
    #[must_use]
    pub fn as_bfloats(&self, nearest: bool) -> Self {
        let kind = PageKind { element: Element::Bf16, ..self.kind };
        let near = |bits: u16| bf16::from_f32(f16::from_bits(bits).to_f32()).to_bits();
        let bits: Vec<u16> = self.bits().into_iter().map(|bits| if nearest { near(bits) } else { bits }).collect();
        Self::of_bits(&format!("{} as bfloats", self.name), kind, &bits)
    }

    /// Whether the values are bfloats, as ports of modules want it.
    #[must_use]
    pub fn bf16(&self) -> u32 {
        u32::from(self.kind.element == Element::Bf16)
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

    /// Bits of the values, `[head][token][channel]`.
    #[must_use]
    pub fn bits(&self) -> Vec<u16> {
        let shape = self.kind.shape;
        let mut bits = Vec::with_capacity(shape.values());
        for head in 0..usize::from(shape.heads) {
            for token in 0..usize::from(shape.tokens) {
                for channel in 0..usize::from(shape.dim) {
                    let place = self.kind.layout.place(shape, head, token, channel);
                    bits.push(u16::from_le_bytes([self.bytes[2 * place], self.bytes[2 * place + 1]]));
                }
            }
        }
        bits
    }

    /// The values, `[head][token][channel]`.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        let value = |bits: u16| match self.kind.element {
            Element::Bf16 => bf16::from_bits(bits).to_f32(),
            _ => f16::from_bits(bits).to_f32(),
        };
        self.bits().into_iter().map(value).collect()
    }

    /// The same values in another order.
    #[must_use]
    pub fn ordered(&self, order: Order) -> Self {
        let layout = Layout { order, capacity: self.kind.shape.tokens };
        Self::of_bits(&self.name, PageKind { layout, ..self.kind }, &self.bits())
    }
}

/// Approximately normal: mean 0, deviation 1.
pub fn bell(prng: &mut Prng) -> f32 {
    let sum: f64 = (0..6).map(|_| prng.next_f64()).sum();
    ((sum - 3.0) * std::f64::consts::SQRT_2) as f32
}

/// A page of halves with such values, which has no long runs of zeros.
pub fn bell_page(prng: &mut Prng, shape: Shape) -> TestPage {
    let values: Vec<f16> = (0..shape.values()).map(|_| f16::from_f32(bell(prng))).collect();
    TestPage::new("page of bell-shaped values", Side::K, 0, shape, Order::TokenMajor, &values)
}

/// A random shape that all modules take.
pub fn any_shape(prng: &mut Prng) -> Shape {
    let dim = [32, 64, 64, 128, 40, 34, 96][prng.below(7) as usize];
    Shape { heads: 1 + prng.below(3) as u16, tokens: 1 + prng.below(20) as u16, dim }
}

/// Values that break arithmetic: zeros of both signs, subnormal numbers, the largest, and ties.
const ODD: [u16; 12] = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x3800, 0x0002];

/// A page of one of several kinds, chosen by the generator, every third of bfloats. Some have long runs of zeros, some have
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
    let page = TestPage::new(&format!("random page, sort {sort}"), Side::K, 0, shape, Order::TokenMajor, &values);
    match prng.below(6) {
        0 => page.as_bfloats(true),
        1 => page.as_bfloats(false),
        _ => page,
    }
}
