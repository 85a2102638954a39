//! The `cenote` binary as its users run it: real processes, real regions, real sockets.
//!
//! Every test creates its own regions and ends what it started, even if it fails. No test sleeps to
//! wait for something: it reads until an event, or polls until a deadline.

mod bad_http;
mod bad_regions;
mod browser;
mod codecs;
mod cold;
mod compared;
mod damaged_models;
mod demo;
mod diff;
mod endings;
mod engram;
mod engram_tables;
mod explain;
mod full_region;
mod generate;
mod killed_worker;
mod many_servers;
mod metrics;
mod on_call;
mod openai;
mod plan;
mod pool_commands;
mod pool_metrics;
mod reach;
mod sampling;
mod seals;
mod settings;
mod several_hosts;
mod shell;
mod support;
mod swapping;
mod tenants;
mod terminal;
mod top;
mod two_models;
mod ui;
mod ui_page;
mod whatif;
mod words;
mod worker_settings;
