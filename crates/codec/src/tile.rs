//! Tiles: sixteen tokens of sixteen channels of a head as `f32`, the unit in which codecs take values from pages and put
//! them there. All four orders keep sixteen of a tile's values together along one of its axes; here is which.

use crate::page::{self, Layout, Order, Page, PageKind, PageMut, Shape};

/// Tokens of a tile, and channels.
pub(crate) const EDGE: usize = 16;
/// Bytes of a row of 16-bit elements.
pub(crate) const ROW_BYTES: usize = 2 * EDGE;

/// Values by row. Of tokens and channels that the page does not have, they are zero when loaded, and ignored when stored.
#[derive(Clone)]
pub(crate) struct Tile(pub [f32; EDGE * EDGE]);

impl Tile {
    pub const ZERO: Self = Self([0.0; EDGE * EDGE]);
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// A row is a token, with its channels.
    Tokens,
    /// A row is a channel, with its tokens.
    Channels,
}

/// Which part of a page a tile is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub head: usize,
    /// The first token, and the first channel: multiples of sixteen.
    pub token: usize,
    pub channel: usize,
    /// How many of sixteen the page has.
    pub tokens: usize,
    pub channels: usize,
}

impl Span {
    /// The tile of a head that begins with this token and channel.
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

    /// Where a token's first channel is in `[head][token][channel]`.
    pub fn first_of(&self, shape: Shape, token: usize) -> usize {
        (self.head * usize::from(shape.tokens) + self.token + token) * usize::from(shape.dim) + self.channel
    }

    /// Rows that are there, and values of a row.
    pub const fn rows(&self, axis: Axis) -> (usize, usize) {
        match axis {
            Axis::Tokens => (self.tokens, self.channels),
            Axis::Channels => (self.channels, self.tokens),
        }
    }
}

/// Whether all tiles of a page are whole and lie one behind the other in the order of [`Span::all`], as rows one behind the
/// other.
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

/// How a tile lies in a page: rows of values that are side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRows {
    /// What they are.
    pub axis: Axis,
    /// Where the first value is, counted in values.
    pub place: usize,
    /// Values from one row to the next.
    pub stride: usize,
    /// How many there are, and values of each.
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

    /// Calls `each` with places of values in the page and in a tile whose rows are of `axis`.
    pub fn places(&self, axis: Axis, mut each: impl FnMut(usize, usize)) {
        for row in 0..self.count {
            for at in 0..self.len {
                let in_tile = if axis == self.axis { row * EDGE + at } else { at * EDGE + row };
                each(self.place + row * self.stride + at, in_tile);
            }
        }
    }
}

/// Which values a page has side by side.
const fn axis_of(order: Order) -> Axis {
    match order {
        Order::TokenMajor | Order::ValuePanels => Axis::Tokens,
        Order::ChannelMajor | Order::KeyPanels => Axis::Channels,
    }
}

impl Page<'_> {
    /// Which values the page has side by side.
    pub(crate) const fn axis(&self) -> Axis {
        axis_of(self.kind().layout.order)
    }

    /// The values of a tile.
    pub(crate) fn load_tile(&self, span: &Span, axis: Axis, tile: &mut Tile) {
        *tile = Tile::ZERO;
        let (element, bytes) = (self.kind().element, self.bytes());
        PageRows::of(self.kind(), span).places(axis, |place, at| tile.0[at] = page::load(element, bytes, place));
    }
}

impl PageMut<'_> {
    /// Which values the page has side by side.
    pub(crate) const fn axis(&self) -> Axis {
        axis_of(self.kind().layout.order)
    }

    /// Stores the values of a tile, rounded to the page's element type.
    pub(crate) fn store_tile(&mut self, span: &Span, axis: Axis, tile: &Tile) {
        let kind = *self.kind();
        let bytes = self.bytes_mut();
        PageRows::of(&kind, span).places(axis, |place, at| page::store(kind.element, bytes, place, tile.0[at]));
    }
}
