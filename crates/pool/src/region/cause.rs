//! Why blocks leave: in lines of removals, in counters and in reports.

use serde::Serialize;

/// Why a block left the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Cause {
    /// Other blocks needed its space.
    Evicted = 1,
    /// Its model was over its quota.
    Quota = 2,
    /// It did not have its checksum or its seal.
    Damaged = 3,
    /// All blocks of its model left: a caller forgot them, or the model's row has another model.
    Forgotten = 4,
    /// Garbage collection could not use it.
    Collected = 5,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Evicted, Self::Quota, Self::Damaged, Self::Forgotten, Self::Collected];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Quota => "quota",
            Self::Damaged => "damaged",
            Self::Forgotten => "forgotten",
            Self::Collected => "collected",
        }
    }

    /// Place in [`Cause::ALL`].
    pub(crate) fn place(self) -> usize {
        self as usize - 1
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u64 == number)
    }
}
