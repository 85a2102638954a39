//! N-gram tables: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]

mod published;
mod rules;
