//! Floor 6: the parts that `cenote` and `cenote-lab` share. They parse flags and settings, print
//! tables and errors, create and attach regions, and start the reference engine.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "commands give the machine's clock to what they start")]

pub mod args;
pub mod codec_table;
pub mod cold;
pub mod demo_model;
pub mod engine;
pub mod facts;
pub mod failure;
pub mod input;
pub mod measure;
pub mod output;
pub mod peers;
pub mod profile;
pub mod program;
pub mod region;
pub mod settings;
pub mod shell;
pub mod signals;
pub mod stale;
pub mod tables;
pub mod usage;
pub mod whatif;
