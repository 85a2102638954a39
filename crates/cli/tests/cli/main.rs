//! The `cenote` binary as people and programs use it: real processes, real regions, real sockets.
//!
//! Every test makes regions of its own and ends what it started, also when it fails. Nothing sleeps
//! to give something else time: a test reads until an event, or asks until a deadline.

mod bad_http;
mod bad_regions;
mod codecs;
mod damaged_models;
mod demo;
mod diff;
mod endings;
mod full_region;
mod generate;
mod killed_worker;
mod many_servers;
mod metrics;
mod openai;
mod pool_commands;
mod sampling;
mod settings;
mod several_hosts;
mod shell;
mod support;
mod swapping;
mod tenants;
mod terminal;
mod two_models;
mod words;
