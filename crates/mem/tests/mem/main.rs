//! Memory, host areas and fabrics: one program, so that each crate is linked to tests once.

mod fabric;
mod host;
mod region;
