//! Memory, host areas and fabrics: one program, so that each crate is linked to tests once.
#![allow(clippy::disallowed_methods, reason = "processes of a host share its clock")]

mod fabric;
mod host;
mod region;
