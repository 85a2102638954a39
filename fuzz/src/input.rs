//! A byte string as a source of decisions.

/// The rest of an input. At its end it yields zeros, so that every prefix is an input too.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub const fn is_spent(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below `bound`, which is not zero. Takes as few bytes as `bound` needs.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bytes = 8 - (bound - 1).leading_zeros() / 8;
        let number = (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()));
        number % bound
    }

    /// Whether a draw of one byte falls into the first `part` of 256.
    pub fn chance(&mut self, part: u8) -> bool {
        // An input that has ended takes no chances, so that it ends.
        !self.is_spent() && self.byte() < part
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
