//! `cenote-lab study`: the scheduler under pressure, prefetching, eviction and the division of memory, in
//! simulated time and in an engine.

mod agents;
mod budget;
mod compared;
mod engine;
mod oaken;
mod prefetch;
mod real;
mod record;
mod scale;
mod server;
mod sparse;
mod swap;
mod watermark;
mod watermark_real;
mod weights;

use crate::args::StudyCommands;
use cenote_console::failure::Failure;
use std::path::Path;

pub fn run(command: &StudyCommands) -> Result<(), Failure> {
    match command {
        StudyCommands::Watermark(args) => watermark::run(args),
        StudyCommands::Swap(args) => swap::run(args),
        StudyCommands::Engine(args) => engine::run(args),
        StudyCommands::Server(args) => server::run(args),
        StudyCommands::Prefetch(args) => prefetch::run(args),
        StudyCommands::Sparse(args) => sparse::run(args),
        StudyCommands::Agents(args) => agents::run(args),
        StudyCommands::Record(args) => record::run(args),
        StudyCommands::Budget(args) => budget::run(args),
        StudyCommands::Scale(args) => scale::run(args),
        StudyCommands::Oaken(args) => oaken::run(args),
        StudyCommands::Weights(args) => weights::run(args),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::new(format!("{}: cannot write it: {error}", path.display())))
}
