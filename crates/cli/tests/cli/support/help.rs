//! The structure of `--help`.

use super::process::Cenote;

/// Words that describe people where code should be the subject.
const PEOPLE: [&str; 5] = ["who", "whoever", "whose", "nobody", "somebody"];

/// Calls a program and all its subcommands with `--help`. Each page starts with a sentence,
/// explains every flag and every subcommand, and has at most 100 columns. Returns the number of
/// pages.
pub async fn expect_pages(program: impl Fn(&str) -> Cenote) -> usize {
    let mut open = vec![String::new()];
    let mut pages = 0;
    while let Some(path) = open.pop() {
        let outcome = program(&format!("{path} --help")).ok().await;
        assert_eq!(outcome.err, "", "{path}");
        let page = outcome.out;
        pages += 1;
        let first = page.lines().next().unwrap_or_default();
        assert!(first.starts_with(char::is_uppercase) && first.len() > 10, "`{path}` starts with `{first}`");
        let mut section = "";
        let mut lines = page.lines().peekable();
        while let Some(line) = lines.next() {
            assert!(line.chars().count() <= 100, "`{path}`: `{line}`");
            let mut words = line.split(|letter: char| !letter.is_alphanumeric());
            assert!(!words.any(|word| PEOPLE.contains(&word)), "`{path}` speaks of people: `{line}`");
            if !line.starts_with(' ') && line.ends_with(':') {
                section = line;
                continue;
            }
            let entry = line.strip_prefix("  ").filter(|rest| rest.starts_with(|letter: char| letter != ' '));
            if let (Some(entry), "Commands:") = (entry, section) {
                let (name, about) = entry.split_once(' ').unwrap_or((entry, ""));
                assert!(about.trim().starts_with(char::is_uppercase), "`{path} {name}` is not explained");
                if name != "help" {
                    open.push(format!("{path} {name}").trim().to_owned());
                }
            }
            let is_flag = line.trim_start().starts_with('-') && line.find('-').is_some_and(|at| at <= 6);
            if is_flag && section != "Commands:" {
                let same_line = line.trim_start().contains("  ");
                let next = lines.peek().is_some_and(|next| next.starts_with("          "));
                assert!(same_line || next, "`{path}`: `{line}` is not explained");
            }
        }
    }
    pages
}
