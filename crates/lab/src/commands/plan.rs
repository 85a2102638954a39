//! `cenote-lab plan`: what a load needs, before machines are bought.

mod rack;

use crate::args::PlanCommands;
use cenote_console::failure::Failure;

pub fn run(command: &PlanCommands) -> Result<(), Failure> {
    match command {
        PlanCommands::Rack(args) => rack::run(args),
    }
}
