//! Stores on a region: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod cold;
mod region_store;
mod snapshot;
mod snapshot_seals;
mod support;
mod tenants;
mod upgrade;
