//! Which locks exist, and the proof that a caller holds one.

use crate::region::layout::SHARDS;
use std::ops::Deref;

/// A lock by its name. The lock order is [`Name::Membership`] → [`Name::Heap`] → one other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Worker slots of this host, and this host's lines about itself and other hosts.
    Membership,
    /// Free lists, reservations and eviction of this host.
    Heap,
    /// Namespace and object tables.
    Tables,
    /// Owners of chunks.
    Chunks,
    /// One shard of the index.
    Shard(u64),
    /// A lock that users of the pool share.
    User(u64),
}

impl Name {
    /// The mutex in the host's memory.
    pub fn mutex(self) -> u32 {
        match self {
            Self::Membership => 0,
            Self::Heap => 1,
            Self::Tables => 2,
            Self::Chunks => 3,
            Self::Shard(shard) => 4 + u32::try_from(shard).expect("fewer than 2^32 shards"),
            Self::User(number) => 4 + (SHARDS + number) as u32,
        }
    }

    /// The lock's number in the region, if hosts contend for it.
    pub const fn between_hosts(self) -> Option<u64> {
        match self {
            Self::Membership | Self::Heap => None,
            Self::Shard(shard) => Some(shard),
            Self::Chunks => Some(SHARDS),
            Self::Tables => Some(SHARDS + 1),
            Self::User(number) => Some(SHARDS + 2 + number),
        }
    }

    /// The name of a lock's number in the region.
    pub const fn of_number(lock: u64) -> Self {
        match lock {
            0..SHARDS => Self::Shard(lock),
            SHARDS => Self::Chunks,
            _ if lock == SHARDS + 1 => Self::Tables,
            _ => Self::User(lock - SHARDS - 2),
        }
    }
}

/// A lock as a type, so that a function can demand a proof that its caller holds it.
pub(crate) trait Lock: Copy {
    fn name(self) -> Name;
}

macro_rules! lock {
    ($($(#[$doc:meta])* $kind:ident $(($number:ty))?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $kind $((pub $number))?;
    )*};
}

lock! {
    /// [`Name::Membership`].
    Membership;
    /// [`Name::Heap`].
    Heap;
    /// [`Name::Tables`].
    Tables;
    /// [`Name::Chunks`].
    Chunks;
    /// [`Name::Shard`]. The plain design has one lock, the first shard's.
    Shard(u64);
    /// [`Name::User`].
    User(u64);
}

impl Lock for Membership {
    fn name(self) -> Name {
        Name::Membership
    }
}

impl Lock for Heap {
    fn name(self) -> Name {
        Name::Heap
    }
}

impl Lock for Tables {
    fn name(self) -> Name {
        Name::Tables
    }
}

impl Lock for Chunks {
    fn name(self) -> Name {
        Name::Chunks
    }
}

impl Lock for Shard {
    fn name(self) -> Name {
        Name::Shard(self.0)
    }
}

impl Lock for User {
    fn name(self) -> Name {
        Name::User(self.0)
    }
}

/// Proof that the caller holds a lock. Only [`super::Locks`] makes one; a guard dereferences to it.
pub(crate) struct Holds<L> {
    lock: L,
}

impl<L: Lock> Holds<L> {
    pub(super) const fn new(lock: L) -> Self {
        Self { lock }
    }
}

impl<L> Deref for Holds<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.lock
    }
}

impl Holds<User> {
    /// The lock's number among those of users.
    pub const fn number(&self) -> u64 {
        self.lock.0
    }
}

/// What a holder is about to change, in one word, so that no reader sees half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intent(u64);

impl Intent {
    /// Nothing.
    pub(super) const NONE: Self = Self(0);
    /// Anything that the lock protects.
    pub const ALL: Self = Self(1);

    /// The buckets of a probe that begins at bucket `home` of the shard; in other locks one thing
    /// that the holder is about to write ([`super::Locks::name`]).
    pub const fn probe(home: u64) -> Self {
        Self(home + 2)
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    /// The bucket where the probe begins, or the thing; `None` stands for everything.
    pub const fn home(self) -> Option<u64> {
        self.0.checked_sub(2)
    }
}
