//! The crate from outside: real sockets, real processes, a scripted engine.
//!
//! One binary for all of them, because linking costs more than running.
#![allow(clippy::disallowed_methods, reason = "some tests drive real processes, and pass the machine's clock")]

mod api;
mod bad_input;
mod disagg;
mod health;
mod hostile;
mod lifecycle;
mod openai_client;
mod remote;
mod request_fields;
mod supervisor;
mod support;
mod tenants;
