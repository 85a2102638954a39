//! Typed region offsets and cache-line structures.
//!
//! Every process maps the region at its own address, so structures in it refer to each other by
//! distance from the region's first byte (TraCT §4.3).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a cache line, the unit of flushing and of single-writer ownership.
pub const LINE: u64 = 64;

/// Distance in bytes from the start of a region to a `T`. It is unchecked, because offsets are also
/// read from regions: users of an offset check bounds and alignment.
pub struct Offset<T>(u64, PhantomData<fn() -> T>);

impl<T> Offset<T> {
    /// The offset `bytes` from the start of the region.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes, PhantomData)
    }

    /// Bytes from the start of the region.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The offset plus `bytes`. Saturates: an overflow ends outside of every region, where the
    /// fabric's check finds it.
    #[must_use]
    pub const fn add_bytes(self, bytes: u64) -> Self {
        Self::new(self.0.saturating_add(bytes))
    }

    /// The `n`-th element of an array of `T` that starts here. Saturates like
    /// [`Offset::add_bytes`].
    #[must_use]
    pub const fn index(self, n: u64) -> Self {
        self.add_bytes((size_of::<T>() as u64).saturating_mul(n))
    }

    /// The same offset with another type: a word of a line, the first field of a structure.
    #[must_use]
    pub const fn cast<U>(self) -> Offset<U> {
        Offset::new(self.0)
    }
}

// Derives would require these traits of `T`, but an offset is a number for any `T`.
impl<T> Clone for Offset<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Offset<T> {}

impl<T> PartialEq for Offset<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Offset<T> {}

impl<T> PartialOrd for Offset<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Offset<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> Hash for Offset<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T> fmt::Debug for Offset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

/// A structure that fills exactly one cache line: `#[repr(C, align(64))]`, 64 bytes, no padding,
/// every bit pattern valid (a region's bytes are input). Derive zerocopy's traits, then write `impl
/// Line for T {}` beside an [`assert_layout!`](crate::assert_layout).
pub trait Line: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The line as the eight words a [`Fabric`](crate::Fabric) stores.
    #[must_use]
    fn to_words(&self) -> [u64; 8] {
        const { assert!(size_of::<Self>() == LINE as usize, "a Line is one cache line") };
        <[u64; 8]>::read_from_bytes(self.as_bytes()).expect("both are 64 bytes")
    }

    /// The line that a [`Fabric`](crate::Fabric) loaded as eight words.
    #[must_use]
    fn from_words(words: &[u64; 8]) -> Self {
        const { assert!(size_of::<Self>() == LINE as usize, "a Line is one cache line") };
        Self::read_from_bytes(words.as_bytes()).expect("both are 64 bytes")
    }
}

/// Fails the build unless a mapped type has exactly this size, alignment and field offsets (TraCT
/// §4.3): `assert_layout!(Header, 64, 64, magic@0, version@8)`.
#[macro_export]
macro_rules! assert_layout {
    ($type:ty, $size:expr, $align:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(::core::mem::size_of::<$type>() == $size, concat!(stringify!($type), ": size"));
            assert!(::core::mem::align_of::<$type>() == $align, concat!(stringify!($type), ": alignment"));
            $(assert!(
                ::core::mem::offset_of!($type, $field) == $offset,
                concat!(stringify!($type), ": offset of ", stringify!($field))
            );)*
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Debug, PartialEq)]
    #[repr(C, align(64))]
    struct Sample {
        state: u64,
        small: [u32; 2],
        rest: [u64; 6],
    }
    impl Line for Sample {}
    assert_layout!(Sample, 64, 64, state @ 0, small @ 8, rest @ 16);

    #[test]
    fn a_line_keeps_its_words_in_field_order() {
        let line = Sample { state: 7, small: [1, 2], rest: [3, 4, 5, 6, 7, 8] };
        let words = line.to_words();
        assert_eq!(words, [7, 1 | 2 << 32, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Sample::from_words(&words), line);
    }

    #[test]
    fn an_overflow_never_wraps_into_the_region() {
        let array = Offset::<Sample>::new(128);
        assert_eq!(array.index(3).raw(), 128 + 192);
        assert_eq!(array.index(u64::MAX / 2).raw(), u64::MAX);
        assert_eq!(array.add_bytes(u64::MAX).raw(), u64::MAX);
        assert_eq!(array.cast::<u64>().index(1).raw(), 136);
    }
}
