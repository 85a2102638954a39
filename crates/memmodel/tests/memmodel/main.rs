//! The cache-line model: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]

mod conformance;
mod litmus;
