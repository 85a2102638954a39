//! Merges flags, `CENOTE_*` variables and a TOML file.
//!
//! A flag beats a variable, a variable beats the file, the file beats the default. The file's
//! values become the flags' defaults, so they are parsed and checked as if typed. Keys have the
//! flags' names; top-level keys apply to every command with such a flag. A table named like a
//! command (`[serve]`, `[pool.create]`) applies to that command of `cenote`, and one below `[lab]`
//! (`[lab.bench.ttft]`) to that of `cenote-lab`.

use crate::failure::Failure;
use crate::input;
use cenote_mem::files;
use clap::Command;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Default settings file, in the working directory.
const FILE: &str = "cenote.toml";

/// Longest file that is obeyed: settings, or keys of clients.
const BYTES_MAX: u64 = 16 << 20;

/// Name of the table for `cenote-lab`.
const LAB: &str = "lab";

/// The part of the settings file that applies to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the table `[lab]`. Every key must belong to some flag.
    Product,
    /// The table `[lab]`, in which every key must belong to some flag, and the top-level keys that
    /// have a flag.
    Lab,
}

/// A settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether the user named it. Otherwise it lay in the working directory.
    pub named: bool,
}

/// Returns the command line with the settings file's values as defaults, and the file if there is
/// one.
///
/// Any user may have made a file of the working directory, and it decides which clients reach a server
/// and which KV it believes. So settings are read only from files of this user or root that no other user can
/// write. A named file may be a symbolic link.
///
/// # Errors
/// The file is not trusted, cannot be read, is not TOML, or has a key without a flag.
pub fn command_with_file(command: Command, part: Part) -> Result<(Command, Option<SettingsFile>), Failure> {
    let (path, named) = match file_named(std::env::args().skip(1)) {
        Some(path) => (path, true),
        None => (PathBuf::from(FILE), false),
    };
    let text = if named { read_obeyed(&path) } else { files::read_own_text(&path, BYTES_MAX) };
    match text {
        Ok(text) => Ok((apply(command, part, &path, &text)?, Some(SettingsFile { path, named }))),
        Err(error) if !named && error.kind() == ErrorKind::NotFound => Ok((command, None)),
        Err(error) => {
            let fact = input::fact(&path, &error);
            let failure = Failure::new(format!("{}: cannot read the settings file: {fact}", path.display()));
            Err(if named { failure } else { failure.hint("work in another folder, or name a file with --config") })
        }
    }
}

/// The text of a file that is obeyed, and that the user named: it may be a link, as mounted
/// configurations are, to a file of this user or root that no other user can write.
///
/// # Errors
/// The file is not trusted, is too long, or cannot be read.
pub fn read_obeyed(path: &Path) -> io::Result<String> {
    let file = files::open_input(path)?;
    files::check_own(&file, path)?;
    let mut text = String::new();
    let failed = |fact: String| io::Error::other(format!("{}: {fact}", path.display()));
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(failed(format!("it has more than {BYTES_MAX} bytes")));
    }
    Ok(text)
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

fn apply(command: Command, part: Part, path: &Path, text: &str) -> Result<Command, Failure> {
    let wrong = |fact: String| Failure::new(format!("{}: {fact}", path.display()));
    let mut file: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
    let lab = file.remove(LAB);
    match part {
        Part::Product => apply_table(command, &file, "", &mut Vec::new()).map_err(wrong),
        Part::Lab => {
            let lab = match lab {
                None => Table::new(),
                Some(Value::Table(lab)) => lab,
                Some(_) => return Err(wrong(format!("`{LAB}` must be a table"))),
            };
            let mut shared = Vec::new();
            for (key, value) in file {
                let id = key.replace('-', "_");
                if let Some(text) = text_of(&value).filter(|_| has_flag(&command, &id)) {
                    shared.push((id, text));
                }
            }
            apply_table(command, &lab, LAB, &mut shared).map_err(wrong)
        }
    }
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
    use clap::{Args, FromArgMatches, Parser, Subcommand};

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Commands,
    }

    #[derive(Subcommand)]
    enum Commands {
        Serve(ServeArgs),
        Doctor,
    }

    #[derive(Args)]
    struct ServeArgs {
        #[arg(long)]
        region: Option<String>,
        #[arg(long, default_value_t = 8000)]
        port: u16,
        #[arg(long, default_value_t = 64)]
        max_num_seqs: usize,
    }

    fn parse(part: Part, file: &str, line: &[&str]) -> Result<Cli, String> {
        use clap::CommandFactory;
        let command = apply(Cli::command(), part, Path::new("cenote.toml"), file).map_err(|f| f.to_string())?;
        let matches = command.try_get_matches_from(line).map_err(|e| e.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|e| e.to_string())
    }

    fn serve(part: Part, file: &str, line: &[&str]) -> ServeArgs {
        let Commands::Serve(serve) = parse(part, file, line).unwrap().command else { panic!("serve") };
        serve
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let file = "region = \"shm:from-file\"\n[serve]\nport = 9001\nmax-num-seqs = 5\n";
        let settings = serve(Part::Product, file, &["cenote", "serve"]);
        assert_eq!((settings.port, settings.max_num_seqs), (9001, 5));
        assert_eq!(settings.region.as_deref(), Some("shm:from-file"));
        assert_eq!(serve(Part::Product, file, &["cenote", "serve", "--port", "7"]).port, 7);
    }

    #[test]
    fn each_command_reads_its_own_tables_and_the_shared_keys() {
        let file = "region = \"shm:both\"\nother = 1\n[serve]\nport = 1\nunknown = 2\n[lab.serve]\nport = 2\n";
        let lab = serve(Part::Lab, file, &["cenote-lab", "serve"]);
        assert_eq!((lab.region.as_deref(), lab.port), (Some("shm:both"), 2));
        let product = file.replace("unknown = 2\n", "").replace("other = 1\n", "");
        assert_eq!(serve(Part::Product, &product, &["cenote", "serve"]).port, 1);
        let unknown = parse(Part::Lab, "[lab.serve]\nprot = 1\n", &["cenote-lab", "doctor"]).err().unwrap();
        assert!(unknown.contains("`lab.serve.prot` is not a setting"), "{unknown}");
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let error = |file: &str, command: &str| parse(Part::Product, file, &["cenote", command]).err().unwrap();
        assert!(error("[serve]\nprot = 1\n", "doctor").contains("`serve.prot` is not a setting"));
        assert!(error("port = [1]\n", "doctor").contains("`port` must be"));
        assert!(error("port = \n", "doctor").contains("cenote.toml"));
        assert!(error("[serve]\nport = \"many\"\n", "serve").contains("many"));
    }
}
