//! Pages as engines store them: values, element type and order.

use half::{bf16, f16};

/// Tokens or channels of a panel.
const PANEL: usize = 16;

/// The half of attention that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Keys, after rotary embedding.
    K,
    /// Values.
    V,
}

/// The element type of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE half.
    F16,
    /// Bfloat: the upper half of an `f32`.
    Bf16,
    /// IEEE single.
    F32,
}

impl Element {
    /// Bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The number of values of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// K or V heads.
    pub heads: u16,
    /// Tokens so far: a block that fills has fewer than its capacity.
    pub tokens: u16,
    /// Channels of a head.
    pub dim: u16,
}

impl Shape {
    /// Values of all heads.
    #[must_use]
    pub const fn values(self) -> usize {
        self.heads as usize * self.head_values()
    }

    /// Values of a head.
    #[must_use]
    pub const fn head_values(self) -> usize {
        self.tokens as usize * self.dim as usize
    }

    /// Values of a token, of all heads.
    #[must_use]
    pub const fn token_values(self) -> usize {
        self.heads as usize * self.dim as usize
    }
}

/// The order of values, with the fastest axis last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `[head][token][channel]`
    TokenMajor,
    /// `[head][channel][token]`
    ChannelMajor,
    /// `[head][token / 16][channel][token % 16]`: keys, for kernels with a key in each lane.
    KeyPanels,
    /// `[head][channel / 16][token][channel % 16]`, channels padded to whole panels: values, for
    /// kernels with a channel in each lane.
    ValuePanels,
}

/// The place of each value of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The order of values.
    pub order: Order,
    /// Room for tokens.
    pub capacity: u16,
}

impl Layout {
    /// Values from the start of a head to the start of the next.
    const fn head_stride(self, dim: usize) -> usize {
        let capacity = self.capacity as usize;
        match self.order {
            Order::TokenMajor | Order::ChannelMajor => capacity * dim,
            Order::KeyPanels => capacity.next_multiple_of(PANEL) * dim,
            Order::ValuePanels => capacity * dim.next_multiple_of(PANEL),
        }
    }

    /// Values of a page, with padding and room for tokens.
    #[must_use]
    pub const fn page_values(self, shape: Shape) -> usize {
        shape.heads as usize * self.head_stride(shape.dim as usize)
    }

    /// The place of a value, counted in values.
    #[must_use]
    pub const fn place(self, shape: Shape, head: usize, token: usize, channel: usize) -> usize {
        let (dim, capacity) = (shape.dim as usize, self.capacity as usize);
        head * self.head_stride(dim)
            + match self.order {
                Order::TokenMajor => token * dim + channel,
                Order::ChannelMajor => channel * capacity + token,
                Order::KeyPanels => token / PANEL * dim * PANEL + channel * PANEL + token % PANEL,
                Order::ValuePanels => channel / PANEL * capacity * PANEL + token * PANEL + channel % PANEL,
            }
    }
}

/// What all pages of a layer share: everything but the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKind {
    /// The number of values.
    pub shape: Shape,
    /// The element type.
    pub element: Element,
    /// The place of each value.
    pub layout: Layout,
    /// Keys or values.
    pub side: Side,
    /// The layer of the model, from 0.
    pub layer: u16,
}

impl PageKind {
    /// Bytes of a page.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.layout.page_values(self.shape) * self.element.bytes()
    }

    fn check(&self, len: usize) {
        assert!(self.shape.tokens <= self.layout.capacity, "the page has more tokens than its layout has room for");
        assert_eq!(len, self.bytes(), "the bytes do not fit the kind of page");
    }
}

/// A page to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    kind: PageKind,
    bytes: &'a [u8],
}

impl<'a> Page<'a> {
    /// A page in `bytes`.
    ///
    /// # Panics
    /// The number of bytes differs from that of the kind.
    #[must_use]
    pub fn new(kind: PageKind, bytes: &'a [u8]) -> Self {
        kind.check(bytes.len());
        Self { kind, bytes }
    }

    /// The kind of the page.
    #[must_use]
    pub const fn kind(&self) -> &PageKind {
        &self.kind
    }

    /// The bytes, with padding.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Loads the values of a head as `[token][channel]`.
    pub fn read_head(&self, head: usize, values: &mut [f32]) {
        let PageKind { shape, element, layout, .. } = self.kind;
        let dim = shape.dim as usize;
        for (token, row) in values.chunks_exact_mut(dim.max(1)).enumerate() {
            for (channel, value) in row.iter_mut().enumerate() {
                *value = load(element, self.bytes, layout.place(shape, head, token, channel));
            }
        }
    }
}

/// A page to be decoded into.
#[derive(Debug)]
pub struct PageMut<'a> {
    kind: PageKind,
    bytes: &'a mut [u8],
}

impl<'a> PageMut<'a> {
    /// A page in `bytes`. Decoding leaves padding and missing tokens as they are.
    ///
    /// # Panics
    /// The number of bytes differs from that of the kind.
    #[must_use]
    pub fn new(kind: PageKind, bytes: &'a mut [u8]) -> Self {
        kind.check(bytes.len());
        Self { kind, bytes }
    }

    /// The kind of the page.
    #[must_use]
    pub const fn kind(&self) -> &PageKind {
        &self.kind
    }

    /// The bytes, with padding.
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Stores the values of a head, `[token][channel]`, rounded to the page's element type.
    pub fn write_head(&mut self, head: usize, values: &[f32]) {
        let PageKind { shape, element, layout, .. } = self.kind;
        let dim = shape.dim as usize;
        for (token, row) in values.chunks_exact(dim.max(1)).enumerate() {
            for (channel, &value) in row.iter().enumerate() {
                store(element, self.bytes, layout.place(shape, head, token, channel), value);
            }
        }
    }
}

/// Loads the value at a place, counted in values.
#[inline]
pub(crate) fn load(element: Element, bytes: &[u8], place: usize) -> f32 {
    match element {
        Element::F16 => f16::from_le_bytes([bytes[2 * place], bytes[2 * place + 1]]).to_f32(),
        Element::Bf16 => bf16::from_le_bytes([bytes[2 * place], bytes[2 * place + 1]]).to_f32(),
        Element::F32 => f32::from_le_bytes(bytes[4 * place..4 * place + 4].try_into().expect("four bytes")),
    }
}

/// Stores a value, to nearest, ties to even.
#[inline]
pub(crate) fn store(element: Element, bytes: &mut [u8], place: usize, value: f32) {
    match element {
        Element::F16 => bytes[2 * place..2 * place + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Element::Bf16 => bytes[2 * place..2 * place + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        Element::F32 => bytes[4 * place..4 * place + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_place_of_its_own_in_every_order() {
        for order in [Order::TokenMajor, Order::ChannelMajor, Order::KeyPanels, Order::ValuePanels] {
            for (capacity, dim) in [(16, 64), (32, 40), (5, 3), (48, 16)] {
                let (shape, layout) = (Shape { heads: 2, tokens: capacity, dim }, Layout { order, capacity });
                let mut seen = vec![false; layout.page_values(shape)];
                for head in 0..2 {
                    for token in 0..capacity as usize {
                        for channel in 0..dim as usize {
                            let place = layout.place(shape, head, token, channel);
                            assert!(!std::mem::replace(&mut seen[place], true), "{layout:?} {shape:?}: {place} twice");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn written_values_are_read_back_and_padding_stays() {
        let shape = Shape { heads: 2, tokens: 3, dim: 5 };
        for element in [Element::F16, Element::Bf16, Element::F32] {
            let layout = Layout { order: Order::ValuePanels, capacity: 4 };
            let kind = PageKind { shape, element, layout, side: Side::V, layer: 0 };
            let mut bytes = vec![0xaa; kind.bytes()];
            let head: Vec<f32> = (0..15).map(|value| value as f32 - 7.0).collect();
            let mut page = PageMut::new(kind, &mut bytes);
            (0..2).for_each(|number| page.write_head(number, &head));
            let mut read = vec![0.0; 15];
            for number in 0..2 {
                Page::new(kind, &bytes).read_head(number, &mut read);
                assert_eq!(read, head);
            }
            let untouched =
                bytes.chunks(element.bytes()).filter(|value| value.iter().all(|&byte| byte == 0xaa)).count();
            assert_eq!(untouched, kind.bytes() / element.bytes() - 30);
        }
    }
}
