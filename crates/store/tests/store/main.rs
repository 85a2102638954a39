//! Stores on a region: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]

mod cold;
mod region_store;
mod snapshot;
