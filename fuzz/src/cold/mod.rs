//! A directory of L4 and an object store whose bytes and answers are hostile.
//!
//! Whatever they are, a reader gets what was written under the name that it asks for, or a miss. Calls
//! end, read little, and take little memory. Bytes that are changed in their places cost the records
//! that have these bytes, and no other.
//!
//! Not covered: a record whose header, payload and sums are made to agree under another name, by a
//! program that has the key of the sums.

mod above;
mod blocks;
pub(crate) mod clock;
mod directory;
mod disk;
mod format;
mod objects;

pub use directory::{Aim, Directory, MEMORY_MAX};
pub use objects::{BUCKET_MEMORY_MAX, Bucket};
