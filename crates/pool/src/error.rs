//! What can go wrong before and beside serving. In the serving path nothing here occurs: there, what does
//! not hold is an outcome (a miss, no room) and a counter.

use cenote_base::units::ByteSize;
use cenote_mem::Flush;
use cenote_mem::host::{HostError, LockTimeout};
use thiserror::Error;

/// An error of creating, attaching or administering a pool.
#[derive(Debug, Error)]
pub enum PoolError {
    /// The first bytes are not a superblock's.
    #[error("this is not a Cenote region: it starts with {found:#018x}, not with the magic number")]
    NotARegion {
        /// First word found.
        found: u64,
    },
    /// The magic number is still missing: whoever creates the region has not finished, or died at it.
    #[error("the region is empty or its creation never finished")]
    Unfinished,
    /// Written by another version of the format.
    #[error("the region has format version {found}, this program has version {expected}")]
    Version {
        /// Version in the superblock.
        found: u64,
        /// Our version.
        expected: u64,
    },
    /// Same version, but other structures (a build that was changed).
    #[error("the region has layout {found:#018x}, this program has layout {expected:#018x}")]
    Layout {
        /// Layout word in the superblock.
        found: u64,
        /// Our layout word.
        expected: u64,
    },
    /// The hash seed differs from the one that was asked for.
    #[error("the region was created with another hash seed than the one given")]
    Seed,
    /// The region needs another flush instruction than the one it was opened with.
    #[error("the region was made for flush instruction `{}`, but was opened with `{}`", recorded.name(), opened.name())]
    Flush {
        /// In the superblock.
        recorded: Flush,
        /// Of the fabric.
        opened: Flush,
    },
    /// The region is shorter than its superblock says.
    #[error("the region is {} long, but its superblock says {}", ByteSize(*mapped), ByteSize(*recorded))]
    Truncated {
        /// Bytes mapped.
        mapped: u64,
        /// Bytes recorded.
        recorded: u64,
    },
    /// A structure that must hold does not.
    #[error("the region is damaged: {0}")]
    Damaged(String),
    /// A configuration that cannot work.
    #[error("{0}")]
    Config(String),
    /// A block, an object or memory that does not fit into a chunk.
    #[error(
        "{} do not fit into one piece of memory: the region's chunks are {}; create the region with a larger chunk size",
        ByteSize(*block_bytes),
        ByteSize(*chunk_bytes)
    )]
    BlockTooLarge {
        /// Bytes that were asked for.
        block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// A fixed table has no free row.
    #[error("the region's {table} table is full ({rows} rows){fact}")]
    TableFull {
        /// What else is to be known of it.
        fact: &'static str,
        /// Which table.
        table: &'static str,
        /// Its rows.
        rows: u64,
    },
    /// All worker slots of this host are taken by live processes.
    #[error("all {slots} worker slots of host {host} are taken")]
    WorkersFull {
        /// Slots.
        slots: u64,
        /// This host.
        host: u8,
    },
    /// No free memory for an object.
    #[error("the region has no room for {} more", ByteSize(*.0))]
    NoRoom(u64),
    /// A lock was not to be had in time.
    #[error("the {lock} lock of the region was not free within its deadline")]
    Lock {
        /// Which lock.
        lock: &'static str,
    },
    /// Other hosts hold this one dead, and may have taken its memory over.
    #[error("this host was declared dead, and what it had allocated may be another host's; allocate it again")]
    DeclaredDead,
    /// The process that attached has forked, and this is the child.
    #[error("this process inherited the region through fork, and is no member of it; open the region here")]
    Inherited,
    /// Host-local memory.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl PoolError {
    pub(crate) fn lock(lock: &'static str) -> impl FnOnce(LockTimeout) -> Self {
        move |timeout| match timeout {
            LockTimeout::Inherited { .. } => Self::Inherited,
            LockTimeout::Passed { .. } => Self::Lock { lock },
        }
    }
}
