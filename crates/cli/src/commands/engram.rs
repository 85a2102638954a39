//! `cenote engram`: n-gram embedding tables of models.

mod dequant;
mod rows;

use crate::args::{EngramCommands, TablesArgs};
use cenote_console::failure::Failure;
use cenote_engram::NgramConfig;
use serde::de::DeserializeOwned;
use std::path::Path;

pub fn run(command: &EngramCommands) -> Result<(), Failure> {
    match command {
        EngramCommands::Rows(args) => rows::run(args),
        EngramCommands::Dequant(args) => dequant::run(args),
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
    std::fs::read(path).map_err(|error| Failure::new(format!("{}: cannot read the file: {error}", path.display())))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    serde_json::from_slice(&read(path)?).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
