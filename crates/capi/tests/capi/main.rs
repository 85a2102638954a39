//! The C calls: one program, so that each crate is linked to tests once.

mod boundary;
mod c;
mod calls;
mod fork;
