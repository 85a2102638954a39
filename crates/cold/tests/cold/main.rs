//! Tiers on real disks and stores: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod full_disk;
mod hostile;
mod s3;
mod seals;
mod servers;
