//! Errors of setup and administration. The serving path has none: there a failure is an outcome (a
//! miss, no room) and a counter.

use cenote_base::seal::{KeyId, Seal};
use cenote_base::units::ByteSize;
use cenote_mem::Flush;
use cenote_mem::host::{HostError, LockTimeout};
use thiserror::Error;

/// An error of creating, attaching or administering a pool.
#[derive(Debug, Error)]
pub enum PoolError {
    /// The first word is not a superblock's magic number.
    #[error("this is not a Cenote region: it starts with {found:#018x}, not with the magic number")]
    NotARegion {
        /// The first word.
        found: u64,
    },
    /// The magic number is missing: the creator has not finished, or died while it formatted.
    #[error("the region is empty or its creation never finished")]
    Unfinished,
    /// Another version of the format wrote the region.
    #[error("the region has format version {found}, this program has version {expected}")]
    Version {
        /// Version in the superblock.
        found: u64,
        /// The version of this build.
        expected: u64,
    },
    /// The version is the same, but the structures differ (a changed build).
    #[error(
        "another build made the region: it has layout {found:#018x}, this program has layout {expected:#018x}. Use a \
         region of another name, or take what is in this one along: `pool snapshot` with that build, `pool restore` \
         with this one"
    )]
    Layout {
        /// Layout word in the superblock.
        found: u64,
        /// The layout word of this build.
        expected: u64,
    },
    /// The region is sealed and no key was given.
    #[error(
        "the region is sealed (`{seal}`) with the key named {keys}; name the file that has it with --seal-key-file, \
         CENOTE_SEAL_KEY_FILE or `seal_key_file`"
    )]
    Sealed {
        /// How.
        seal: Seal,
        /// Names of its keys.
        keys: String,
    },
    /// The key that would seal is not one of the region's.
    #[error(
        "the region is sealed with the key named {keys}, and the first key of the file is named {given}; give the \
         region's key, or let the region take the new one with `cenote pool rotate`"
    )]
    OtherKey {
        /// Name of the first key.
        given: KeyId,
        /// Names of the region's keys.
        keys: String,
    },
    /// A key was given for a region without a seal.
    #[error(
        "a seal key is given, but the region is not sealed, so others could forge or read its content; create it anew \
         with --seal mac or --seal encrypt, or leave the key out"
    )]
    NotSealed,
    /// The hash seed differs from the requested one.
    #[error("the region was created with another hash seed than the one given")]
    Seed,
    /// The region needs another flush instruction than the one it was opened with.
    #[error("the region was made for flush instruction `{}`, but was opened with `{}`", recorded.name(), opened.name())]
    Flush {
        /// Recorded in the superblock.
        recorded: Flush,
        /// Of the fabric in use.
        opened: Flush,
    },
    /// The region is shorter than its superblock records.
    #[error("the region is {} long, but its superblock says {}", ByteSize(*mapped), ByteSize(*recorded))]
    Truncated {
        /// Bytes mapped.
        mapped: u64,
        /// Bytes recorded.
        recorded: u64,
    },
    /// A structure is corrupt.
    #[error("the region is damaged: {0}")]
    Damaged(String),
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// A block, an object or memory that does not fit into a chunk.
    #[error(
        "{} do not fit into one piece of memory: the region's chunks are {}; create the region with a larger chunk size",
        ByteSize(*block_bytes),
        ByteSize(*chunk_bytes)
    )]
    BlockTooLarge {
        /// Requested bytes.
        block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// A fixed table has no free row.
    #[error("the region's {table} table is full ({rows} rows){fact}")]
    TableFull {
        /// A further fact or the next step.
        fact: &'static str,
        /// Name of the table.
        table: &'static str,
        /// Rows of the table.
        rows: u64,
    },
    /// Live processes hold all worker slots of this host.
    #[error("all {slots} worker slots of host {host} are taken")]
    WorkersFull {
        /// Number of slots.
        slots: u64,
        /// Number of this host.
        host: u8,
    },
    /// Another machine or container has this host slot, or the file of the host's memory was removed
    /// while processes used it.
    #[error(
        "host slot {host} of the region is in use with another host memory: if another machine has it, give this one \
         another slot; processes of one machine, containers too, need one /dev/shm; if the host memory's file was \
         removed from there, end all processes that have the region open, then start them again"
    )]
    HostInUse {
        /// The slot.
        host: u8,
    },
    /// No free memory for an object.
    #[error("the region has no room for {} more", ByteSize(*.0))]
    NoRoom(u64),
    /// The lock's deadline passed.
    #[error("the {lock} lock of the region was not free within its deadline")]
    Lock {
        /// Name of the lock.
        lock: &'static str,
    },
    /// Another host declared this one dead. The next tick begins a new life.
    #[error("another host declared this one dead; try again after the next tick, which begins a new life")]
    DeclaredDead,
    /// A host that was declared dead was about to change the same thing, and may still do so.
    #[error(
        "a host that was declared dead may still change the same record; try again after its processes have returned \
         or it has joined anew"
    )]
    LeftToDead,
    /// This process is a forked child of the one that attached.
    #[error("this process inherited the region through fork, and is no member of it; open the region here")]
    Inherited,
    /// Opening the host's memory failed.
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
