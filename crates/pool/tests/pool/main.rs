//! The pool from outside: one program, so that each crate is linked to tests once.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod corrupted;
mod crash;
mod designs;
mod events;
mod group;
mod hostile;
mod hosts;
mod memory;
mod namespaces;
mod outside;
mod pool;
mod rack;
mod removals;
mod requests;
mod roots;
mod rows;
mod seals;
mod support;
mod swap;
mod together;
