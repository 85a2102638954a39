//! Flags, `CENOTE_*` variables and a TOML file become one thing, here and nowhere else.
//!
//! A flag beats a variable, a variable beats the file, the file beats the default. The file's values are
//! put in as the flags' defaults, so they are parsed and checked as if typed. Keys have the flags' names;
//! top-level keys serve every command that has such a flag, and a table named like a command (`[serve]`,
//! `[pool.create]`) serves that command.

use crate::args::{Cli, with_headings};
use crate::failure::Failure;
use clap::{Command, CommandFactory};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Looked for in the working directory when no file is named.
const FILE: &str = "cenote.toml";

/// The command line with the settings file's values as defaults, and the file if there is one.
pub fn command_with_file() -> Result<(Command, Option<PathBuf>), Failure> {
    let command = with_headings(Cli::command());
    let (path, named) = match file_named(std::env::args().skip(1)) {
        Some(path) => (path, true),
        None => (PathBuf::from(FILE), false),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((apply(command, &path, &text)?, Some(path))),
        Err(_) if !named => Ok((command, None)),
        Err(error) => Err(Failure::new(format!("{}: cannot read the settings file: {error}", path.display()))),
    }
}

fn file_named(mut arguments: impl Iterator<Item = String>) -> Option<PathBuf> {
    while let Some(argument) = arguments.next() {
        if argument == "--config" {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = argument.strip_prefix("--config=") {
            return Some(PathBuf::from(path));
        }
    }
    std::env::var_os("CENOTE_CONFIG").map(PathBuf::from)
}

fn apply(command: Command, path: &Path, text: &str) -> Result<Command, Failure> {
    let wrong = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let file: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
    apply_table(command, &file, "", &mut Vec::new()).map_err(wrong)
}

/// `inherited`: keys of outer tables. Every key must belong to some flag.
fn apply_table(
    mut command: Command,
    table: &Table,
    name: &str,
    inherited: &mut Vec<(String, String)>,
) -> Result<Command, String> {
    let outer = inherited.len();
    let (commands, values): (Vec<_>, Vec<_>) =
        table.iter().partition(|(key, value)| value.is_table() && command.find_subcommand(key).is_some());
    for (key, value) in values {
        let id = key.replace('-', "_");
        if !has_flag(&command, &id) {
            return Err(format!("`{}` is not a setting", dotted(name, key)));
        }
        inherited.push((
            id,
            text_of(value)
                .ok_or_else(|| format!("`{}` must be a text, a number or a truth value", dotted(name, key)))?,
        ));
    }
    for (id, value) in inherited.iter() {
        if command.get_arguments().any(|flag| flag.get_id() == id.as_str()) {
            let value = value.clone();
            command = command.mut_arg(id, |flag| flag.default_value(value).required(false));
        }
    }
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let empty = Table::new();
    for sub_name in names {
        let sub_table = commands
            .iter()
            .find(|(key, _)| **key == sub_name)
            .and_then(|(_, value)| value.as_table())
            .unwrap_or(&empty);
        let sub = command.find_subcommand(&sub_name).expect("it was just listed").clone();
        let sub = apply_table(sub, sub_table, &dotted(name, &sub_name), inherited)?;
        command = command.mut_subcommand(&sub_name, |_| sub);
    }
    inherited.truncate(outer);
    Ok(command)
}

fn dotted(outer: &str, key: &str) -> String {
    if outer.is_empty() { key.to_owned() } else { format!("{outer}.{key}") }
}

/// Whether `command` or one below it has this flag.
fn has_flag(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|flag| flag.get_id() == id) || command.get_subcommands().any(|sub| has_flag(sub, id))
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Commands};
    use clap::FromArgMatches;

    fn parse(file: &str, line: &[&str]) -> Result<Cli, String> {
        let command = apply(Cli::command(), Path::new("cenote.toml"), file).map_err(|f| f.to_string())?;
        let matches = command.try_get_matches_from(line).map_err(|e| e.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|e| e.to_string())
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let file = "region = \"shm:from-file\"\n[serve]\nport = 9001\nmax-num-seqs = 5\n";
        let Commands::Serve(serve) = parse(file, &["cenote", "serve"]).unwrap().command else { panic!("serve") };
        assert_eq!((serve.port, serve.engine.max_num_seqs), (9001, 5));
        assert_eq!(serve.region.region.unwrap().to_string(), "shm:from-file");
        let Commands::Serve(serve) = parse(file, &["cenote", "serve", "--port", "7"]).unwrap().command else {
            panic!("serve")
        };
        assert_eq!(serve.port, 7);
    }

    #[test]
    fn what_is_no_setting_is_named() {
        assert!(
            parse("[serve]\nprot = 1\n", &["cenote", "doctor"]).unwrap_err().contains("`serve.prot` is not a setting")
        );
        assert!(parse("port = [1]\n", &["cenote", "doctor"]).unwrap_err().contains("`port` must be"));
        assert!(parse("port = \n", &["cenote", "doctor"]).unwrap_err().contains("cenote.toml"));
        assert!(parse("[serve]\nport = \"many\"\n", &["cenote", "serve"]).unwrap_err().contains("many"));
    }
}
