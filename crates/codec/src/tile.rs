//! Tiles: sixteen tokens of sixteen channels of a head, the unit in which codecs load and store
//! values. In all four orders, sixteen values of a tile lie side by side along one of its axes.

use crate::page::{self, Layout, Order, Page, PageKind, PageMut, Shape};

/// Tokens and channels of a tile.
pub(crate) const EDGE: usize = 16;
/// Bytes of a row of 16-bit elements.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code for x86-64's vectors uses it"))]
pub(crate) const ROW_BYTES: usize = 2 * EDGE;

/// Values by row. Values that the page does not have are zero when loaded, and ignored when stored.
#[derive(Clone)]
pub(crate) struct Tile(pub [f32; EDGE * EDGE]);

impl Tile {
    pub const ZERO: Self = Self([0.0; EDGE * EDGE]);
}

/// The meaning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// A row is a token, with its channels.
    Tokens,
    /// A row is a channel, with its tokens.
    Channels,
}

/// The part of a page that a tile covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub head: usize,
    /// The first token and the first channel: multiples of sixteen.
    pub token: usize,
    pub channel: usize,
    /// Tokens and channels of the tile that the page has.
    pub tokens: usize,
    pub channels: usize,
}

impl Span {
    /// The tile of a head from a token and a channel on.
    pub fn at(shape: Shape, head: usize, token: usize, channel: usize) -> Self {
        let tokens = (usize::from(shape.tokens) - token).min(EDGE);
        let channels = (usize::from(shape.dim) - channel).min(EDGE);
        Self { head, token, channel, tokens, channels }
    }

    /// All tiles of a page: by head, then tokens, then channels.
    pub fn all(shape: Shape) -> impl Iterator<Item = Self> {
        let starts = |count: u16| (0..usize::from(count)).step_by(EDGE);
        (0..usize::from(shape.heads)).flat_map(move |head| {
            starts(shape.tokens)
                .flat_map(move |token| starts(shape.dim).map(move |channel| Self::at(shape, head, token, channel)))
        })
    }

    /// The place of a token's first channel in `[head][token][channel]`.
    pub fn first_of(&self, shape: Shape, token: usize) -> usize {
        (self.head * usize::from(shape.tokens) + self.token + token) * usize::from(shape.dim) + self.channel
    }

    /// The number of rows in the page, and the values of a row.
    pub const fn rows(&self, axis: Axis) -> (usize, usize) {
        match axis {
            Axis::Tokens => (self.tokens, self.channels),
            Axis::Channels => (self.channels, self.tokens),
        }
    }
}

/// Whether all tiles of a page are whole, and lie without gaps in the order of [`Span::all`].
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code for x86-64's vectors uses it"))]
pub(crate) const fn lie_in_a_row(kind: &PageKind) -> bool {
    let (Shape { tokens, dim, .. }, Layout { order, capacity }) = (kind.shape, kind.layout);
    let (edge, are_whole) = (EDGE as u16, tokens % EDGE as u16 == 0 && dim % EDGE as u16 == 0);
    are_whole
        && tokens == capacity
        && match order {
            Order::KeyPanels => true,
            Order::ChannelMajor | Order::ValuePanels => tokens == edge,
            Order::TokenMajor => dim == edge,
        }
}

/// The place of a tile in a page: rows of adjacent values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRows {
    /// The meaning of a row.
    pub axis: Axis,
    /// The place of the first value, counted in values.
    pub place: usize,
    /// Values from the start of a row to the start of the next.
    pub stride: usize,
    /// The number of rows, and values of a row.
    pub count: usize,
    pub len: usize,
}

impl PageRows {
    #[inline]
    pub fn of(kind: &PageKind, span: &Span) -> Self {
        let Layout { order, capacity } = kind.layout;
        let (axis, stride) = match order {
            Order::TokenMajor => (Axis::Tokens, kind.shape.dim.into()),
            Order::ValuePanels => (Axis::Tokens, EDGE),
            Order::ChannelMajor => (Axis::Channels, capacity.into()),
            Order::KeyPanels => (Axis::Channels, EDGE),
        };
        let place = kind.layout.place(kind.shape, span.head, span.token, span.channel);
        let (count, len) = span.rows(axis);
        Self { axis, place, stride, count, len }
    }

    /// Calls `each` with the place of each value in the page and in a tile with rows of `axis`.
    pub fn places(&self, axis: Axis, mut each: impl FnMut(usize, usize)) {
        for row in 0..self.count {
            for at in 0..self.len {
                let in_tile = if axis == self.axis { row * EDGE + at } else { at * EDGE + row };
                each(self.place + row * self.stride + at, in_tile);
            }
        }
    }
}

/// The axis along which values of a page are adjacent.
const fn axis_of(order: Order) -> Axis {
    match order {
        Order::TokenMajor | Order::ValuePanels => Axis::Tokens,
        Order::ChannelMajor | Order::KeyPanels => Axis::Channels,
    }
}

impl Page<'_> {
    /// The axis along which values are adjacent.
    pub(crate) const fn axis(&self) -> Axis {
        axis_of(self.kind().layout.order)
    }

    /// Loads a tile with rows of `axis`.
    pub(crate) fn load_tile(&self, span: &Span, axis: Axis, tile: &mut Tile) {
        *tile = Tile::ZERO;
        let (element, bytes) = (self.kind().element, self.bytes());
        PageRows::of(self.kind(), span).places(axis, |place, at| tile.0[at] = page::load(element, bytes, place));
    }
}

impl PageMut<'_> {
    /// The axis along which values are adjacent.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code for x86-64's vectors uses it"))]
    pub(crate) const fn axis(&self) -> Axis {
        axis_of(self.kind().layout.order)
    }

    /// Stores a tile with rows of `axis`, rounded to the element type.
    pub(crate) fn store_tile(&mut self, span: &Span, axis: Axis, tile: &Tile) {
        let kind = *self.kind();
        let bytes = self.bytes_mut();
        PageRows::of(&kind, span).places(axis, |place, at| page::store(kind.element, bytes, place, tile.0[at]));
    }
}
