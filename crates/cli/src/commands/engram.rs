//! `cenote engram`: n-gram embedding tables of models.

mod dequant;
mod load;
mod rows;
mod tables;

use crate::args::{EngramCommands, TablesArgs};
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_engram::NgramConfig;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::ExitCode;

pub fn run(command: &EngramCommands) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        EngramCommands::Rows(args) => rows::run(args).map(done),
        EngramCommands::Dequant(args) => dequant::run(args).map(done),
        EngramCommands::Load(args) => load::run(args).map(done),
        EngramCommands::Info(args) => tables::info(args).map(done),
        EngramCommands::Check(args) => tables::check(args),
        EngramCommands::Drop(args) => tables::drop_all(args).map(done),
    }
}

/// The tables that the flags name, and the name for messages.
pub fn config_of(args: &TablesArgs) -> Result<(NgramConfig, String), Failure> {
    match (&args.model_config, args.preset) {
        (Some(path), _) => {
            let shown = path.display().to_string();
            let config = NgramConfig::parse(&read(path)?).map_err(|error| Failure::new(format!("{shown}: {error}")))?;
            Ok((config, shown))
        }
        (None, Some(preset)) => Ok((preset.config()?, "--preset".to_owned())),
        (None, None) => Err(Failure::new("no tables are named").hint("give --model-config or --preset")),
    }
}

pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    input::bytes(path).map_err(|error| Failure::new(format!("{}: cannot read the file: {error}", path.display())))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    serde_json::from_slice(&read(path)?).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
