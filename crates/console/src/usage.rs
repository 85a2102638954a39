//! Errors of the command line. If a wrong value came from a variable or from the settings file, the
//! error names that variable or file instead of a flag.

use crate::failure::Failure;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use std::path::Path;

/// A better message than the parser's, or `None` if the parser's is good.
///
/// `file` is the settings file in use.
pub fn explain(error: &Error, command: &Command, arguments: &[String], file: Option<&Path>) -> Option<Failure> {
    match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => elsewhere(error, command, arguments, file),
        ErrorKind::UnknownArgument => negative(error, arguments),
        _ => None,
    }
}

/// The message for a value that is not on the command line.
fn elsewhere(error: &Error, command: &Command, arguments: &[String], file: Option<&Path>) -> Option<Failure> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    // Only a complete command can render its flags.
    let mut command = command.clone();
    command.build();
    let flag = called(&command, arguments).into_iter().find_map(|command| {
        command.get_arguments().find(|flag| flag.to_string() == *shown && flag.get_long().is_some())
    })?;
    let long = format!("--{}", flag.get_long()?);
    let is_secret = flag.is_hide_env_values_set();
    let fact = fact(error);
    if arguments.iter().any(|argument| argument.split('=').next() == Some(&long)) {
        // The parser would show the value.
        return is_secret.then(|| Failure::new(format!("{long}: {fact}")));
    }
    let variable = flag.get_env().filter(|name| std::env::var_os(name).is_some());
    if let Some(variable) = variable.and_then(|name| name.to_str()) {
        let given = if is_secret { variable.to_owned() } else { format!("{variable}={value}") };
        return Some(
            Failure::new(format!("{given}: {fact}")).hint(format!("change or unset {variable}, or give {long}")),
        );
    }
    let is_setting = flag.get_default_values().iter().any(|default| default.to_str() == Some(value));
    let (file, key) = (file.filter(|_| is_setting)?.display(), flag.get_long()?);
    let given = if is_secret { format!("`{key}`") } else { format!("`{key}` is `{value}`") };
    Some(Failure::new(format!("{file}: {given}: {fact}")).hint(format!("change it there, or give {long}")))
}

/// The reason that the value is wrong.
fn fact(error: &Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => format!("it must be one of {}", values.join(", ")),
        _ => "the value is missing".to_owned(),
    }
}

/// `--size -1GiB`: the parser takes it for a flag named `-1`.
fn negative(error: &Error, arguments: &[String]) -> Option<Failure> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_negative =
        |text: &str| text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let at = arguments.iter().position(|argument| is_negative(argument) && argument.starts_with(unknown.as_str()))?;
    let flag = arguments.get(at.checked_sub(1)?).filter(|flag| flag.starts_with("--"))?;
    Some(Failure::new(format!("{flag} {}: the value must not be negative", arguments[at])))
}

/// The called command and its parents, the innermost first.
fn called<'a>(command: &'a Command, arguments: &[String]) -> Vec<&'a Command> {
    let mut called = vec![command];
    for argument in arguments {
        if let Some(inner) = called[0].find_subcommand(argument) {
            called.insert(0, inner);
        }
    }
    called
}

/// Accepts `-1` as a value everywhere; its flag then reports what is wrong with it.
pub fn with_negative_values(command: Command) -> Command {
    let command = command
        .mut_args(|flag: Arg| if flag.get_action().takes_values() { flag.allow_negative_numbers(true) } else { flag });
    command.mut_subcommands(with_negative_values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::units::ByteSize;

    fn cenote() -> Command {
        let port = Arg::new("port").long("port").value_parser(clap::value_parser!(u16));
        let key = Arg::new("key").long("key").hide_env_values(true).value_parser(clap::value_parser!(u16));
        // A variable that every process has.
        let path = Arg::new("path").long("path").env("PATH").hide_env_values(true);
        let path = path.value_parser(clap::value_parser!(u16));
        let size = Arg::new("size").long("size").value_parser(clap::value_parser!(ByteSize));
        Command::new("cenote")
            .arg(Arg::new("log").long("log").global(true))
            .subcommand(Command::new("serve").arg(port).arg(key))
            .subcommand(Command::new("pool").subcommand(Command::new("create").arg(size)))
            .subcommand(Command::new("doctor"))
            .subcommand(Command::new("walk").arg(path))
    }

    fn told(line: &str, file: Option<&Path>) -> Option<String> {
        let command = with_negative_values(cenote());
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = command.clone().try_get_matches_from(["cenote"].into_iter().chain(line.split(' '))).unwrap_err();
        explain(&error, &command, &arguments, file).map(|failure| failure.to_string())
    }

    #[test]
    fn a_flag_on_the_command_line_is_reported_by_the_parser() {
        assert_eq!(told("serve --port many", None), None);
        assert_eq!(told("serve --port=many", None), None);
        assert_eq!(told("serve --prot 1", None), None);
        assert_eq!(told("pool create --size -1", None), None, "the parser of sizes tells it");
    }

    #[test]
    fn the_value_of_a_secret_flag_is_not_shown() {
        let message = told("walk", None).expect("the variable is no number");
        assert!(message.starts_with("PATH: invalid") && !message.contains('/'), "{message}");
        for line in ["serve --key s3cret", "serve --key=s3cret"] {
            let message = told(line, None).expect("the parser would show it");
            assert!(message.starts_with("--key: ") && !message.contains("s3cret"), "{message}");
        }
    }

    #[test]
    fn a_negative_value_is_no_flag() {
        assert_eq!(
            told("pool create --size -1GiB", None).as_deref(),
            Some("--size -1GiB: the value must not be negative")
        );
    }

    #[test]
    fn commands_are_found_by_their_arguments() {
        let command = cenote();
        let names = |line: &str| -> Vec<String> {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            called(&command, &arguments).iter().map(|command| command.get_name().to_owned()).collect()
        };
        assert_eq!(names("--log debug pool create --size 1"), ["create", "pool", "cenote"]);
        assert_eq!(names("doctor"), ["doctor", "cenote"]);
    }
}
