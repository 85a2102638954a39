//! Tables in a region: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]

mod checkpoint;
mod deaths;
mod sharing;
mod support;
mod tables;
