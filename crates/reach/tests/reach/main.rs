//! Blocks of other hosts' regions: with a fake that tears, lies, hangs and dies, and with NIXL.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "some tests drive real sockets, and pass the machine's clock")]

mod churn;
mod lan;
mod lies;
mod nixl;
mod peers;
mod support;
