//! Memory, host areas and fabrics: one program, so that each crate is linked to tests once.
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod fabric;
mod host;
mod kernels;
mod region;
