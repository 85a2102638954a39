//! Ids of tokens, requests, blocks, hosts, workers and namespaces.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A token of a model's vocabulary.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// One request, unique within the process that assigned the id.
    RequestId(u64)
);
id!(
    /// Index of a block descriptor in a region; at most 40 bits (docs/internals/format.md).
    BlockIndex(u64)
);
id!(
    /// Number of reuses of a descriptor; 48 bits. If a reader sees the generation change, the block
    /// that it read is gone.
    Generation(u64)
);
id!(
    /// One cache-coherence domain, that is, one operating system. At most 64 per region.
    HostId(u8)
);
id!(
    /// Slot of a worker process within its host.
    WorkerSlot(u16)
);
id!(
    /// Row of a namespace in the region's namespace table.
    NamespaceId(u16)
);

impl Generation {
    /// Generations occupy 48 bits of a descriptor word and wrap there.
    pub const MASK: u64 = (1 << 48) - 1;

    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self((self.0 + 1) & Self::MASK)
    }
}
