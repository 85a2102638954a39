//! Tiers on real disks and stores: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]

mod full_disk;
mod s3;
