//! Transcripts in a page: blocks of `console` with commands after `$ ` and `> `, and what they print.

/// A command and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Lines without their prompts.
    pub command: String,
    pub output: String,
}

/// The transcript of the section with this heading.
pub fn of_section(page: &str, heading: &str) -> Option<Vec<Step>> {
    let (from, to) = place(page, heading)?;
    let mut steps: Vec<Step> = Vec::new();
    for line in page[from..to].lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: String::new() });
        } else {
            let step = steps.last_mut()?;
            match line.strip_prefix("> ") {
                // A line that begins alike and comes after output is output.
                Some(more) if step.output.is_empty() => step.command += &format!("\n{more}"),
                _ => step.output += &format!("{line}\n"),
            }
        }
    }
    Some(steps)
}

/// The page with another transcript in this section.
pub fn with(page: &str, heading: &str, steps: &[Step]) -> Option<String> {
    let (from, to) = place(page, heading)?;
    let mut text = String::new();
    for step in steps {
        text += &format!("$ {}\n{}", step.command.replace('\n', "\n> "), step.output);
    }
    Some(format!("{}{text}{}", &page[..from], &page[to..]))
}

/// Where the content of a section's block begins and ends.
fn place(page: &str, heading: &str) -> Option<(usize, usize)> {
    const OPEN: &str = "```console\n";
    let section = page.find(&format!("\n## {heading}\n"))? + 1;
    let end = page[section + 3..].find("\n## ").map_or(page.len(), |at| section + 3 + at);
    let from = section + page[section..end].find(OPEN)? + OPEN.len();
    Some((from, from + page[from..end].find("```")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# P\n\n## One\n\nx\n\n```console\n$ a\n1\n$ b\\\n> c\n```\n\n## Two\n\n```console\n$ d\n> e\n2\n> f\n```\n";

    #[test]
    fn a_transcript_is_read_and_written() {
        let step = |command: &str, output: &str| Step { command: command.to_owned(), output: output.to_owned() };
        assert_eq!(of_section(PAGE, "One"), Some(vec![step("a", "1\n"), step("b\\\nc", "")]));
        let two = of_section(PAGE, "Two").expect("it is there");
        assert_eq!(two, [step("d\ne", "2\n> f\n")]);
        assert_eq!(with(PAGE, "Two", &two).as_deref(), Some(PAGE));
        let other = with(PAGE, "One", &[step("a\nb", "3\n")]).expect("it is there");
        assert!(other.contains("$ a\n> b\n3\n```\n\n## Two"), "{other}");
        assert_eq!(of_section(PAGE, "Three"), None);
    }
}
