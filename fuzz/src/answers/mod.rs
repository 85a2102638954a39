//! A peer whose answers are hostile: bytes of its region ([`Answers`]), and frames of the exchange before
//! them ([`Exchanging`]).
//!
//! Whatever a peer answers, a reader asks for a bounded number of bytes inside of the region, and a block
//! that it takes has the bytes that were published under its name. The ends of an exchange take few
//! bytes, end at their deadline, and believe a message only if it came whole from an end with the key.
//!
//! Not covered: a payload that is made to agree with its checksum under another name, by a peer that
//! knows the hash seed; names of blocks in other programs, which no checksum covers; NIXL.

mod exchange;
mod region;

pub use exchange::Exchanging;
pub use region::Answers;

/// Most memory that an input may take. The longest message has 4 MiB, and a batch of payloads 8 MiB.
pub const MEMORY_MAX: u64 = 40 << 20;
