//! Codecs from outside: one program, so that each crate is linked to tests once.

mod frames;
mod levels;
mod prism;
