//! The engine from outside: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod common;
mod engine;
mod engram;
mod engram_reference;
mod failures;
mod invariance;
mod lazy;
mod near;
mod promoting;
mod sparse;
mod spill;
mod swap;
mod transformers;
