//! The cache engine beside the codecs: one program, so that each crate is linked to tests once.

mod compare;
mod real;
