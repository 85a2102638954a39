//! The C calls: one program, so that each crate is linked to tests once.
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod boundary;
mod c;
mod calls;
mod fork;
