//! Commands in a page's blocks of `sh`, with their words.

use crate::markdown;

/// A command as a page prints it.
#[derive(Clone, Debug)]
pub struct Documented {
    page: String,
    line: usize,
    /// Without its comment, in one or several lines.
    pub text: String,
    /// Of the first simple command: until a pipe, `&&`, `&`, `;` or a redirection.
    words: Vec<String>,
}

impl Documented {
    /// Page and line.
    pub fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// The words, if the first names one of these programs.
    pub fn of_program(&self, programs: &[&str]) -> Option<&[String]> {
        let name = self.words.first()?.rsplit('/').next()?;
        programs.contains(&name).then_some(&self.words)
    }
}

/// The commands of each block.
///
/// # Errors
/// A quote does not end in its block; the message names page and line.
pub fn blocks(page: &str, text: &str) -> Result<Vec<Vec<Documented>>, String> {
    let mut blocks = Vec::new();
    for (first, block) in markdown::blocks(text, "sh") {
        let mut commands = Vec::new();
        let mut open = String::new();
        let mut begun = first;
        for (number, line) in block.lines().enumerate() {
            if open.is_empty() {
                begun = first + number;
            }
            open += line;
            let Some((kept, words)) = read(&open).filter(|_| is_whole(&open)) else {
                open.push('\n');
                continue;
            };
            if !kept.trim().is_empty() {
                commands.push(Documented { page: page.to_owned(), line: begun, text: kept, words });
            }
            open.clear();
        }
        if !open.is_empty() {
            return Err(format!("{page}:{begun}: this command does not end"));
        }
        blocks.push(commands);
    }
    Ok(blocks)
}

/// Whether a loop and a text for a command's input have their last line.
fn is_whole(text: &str) -> bool {
    let last = text.lines().last().unwrap_or_default();
    let tag = text.lines().next().and_then(|line| line.split_once("<<"));
    let tag = tag.map(|(_, tag)| tag.trim_matches(['\'', '"']));
    (!text.starts_with("for ") || last == "done") && tag.is_none_or(|tag| last == tag)
}

/// A command without its comment, and the words of its first simple command. `None`: it goes on in the next line.
fn read(text: &str) -> Option<(String, Vec<String>)> {
    let (mut kept, mut words, mut word) = (String::new(), Vec::new(), None::<String>);
    let mut is_first = true;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '#' && word.is_none() && (kept.is_empty() || kept.ends_with(char::is_whitespace)) {
            while rest.next_if(|&c| c != '\n').is_some() {}
            continue;
        }
        kept.push(c);
        match c {
            '\\' => {
                let escaped = rest.next()?;
                kept.push(escaped);
                if escaped != '\n' {
                    word.get_or_insert_default().push(escaped);
                }
                if rest.peek().is_none() && escaped == '\n' {
                    return None;
                }
            }
            '\'' | '"' => {
                let inner = word.get_or_insert_default();
                loop {
                    let next = rest.next()?;
                    kept.push(next);
                    if next == c {
                        break;
                    }
                    if next == '\\' && c == '"' {
                        let escaped = rest.next()?;
                        kept.push(escaped);
                        inner.push(escaped);
                    } else {
                        inner.push(next);
                    }
                }
            }
            '|' | '&' | ';' | '>' | '<' => {
                words.extend(word.take().filter(|_| is_first));
                is_first = false;
            }
            c if c.is_whitespace() => words.extend(word.take().filter(|_| is_first)),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.take().filter(|_| is_first));
    // Assignments before a command belong to its environment.
    let named = words.iter().position(|word| !is_assignment(word)).unwrap_or(words.len());
    words.drain(..named);
    Some((kept.trim_end().to_owned(), words))
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_a_shell_reads_them() {
        let page =
            "x\n\n```sh\na --b \"c d\" 'e' | f   # g\n# h\nX=1 i \\\n  j && k\nl '{\"m\":\n  1}'\n```\n\n```\nn\n```\n";
        let blocks = blocks("p.md", page).expect("it ends");
        let found: Vec<(String, Vec<&str>)> = blocks[0]
            .iter()
            .map(|command| (command.place(), command.words.iter().map(String::as_str).collect()))
            .collect();
        let place = |line: usize| format!("p.md:{line}");
        assert_eq!(
            found,
            [
                (place(4), vec!["a", "--b", "c d", "e"]),
                (place(6), vec!["i", "j"]),
                (place(8), vec!["l", "{\"m\":\n  1}"])
            ]
        );
        assert_eq!(blocks[0][0].text, "a --b \"c d\" 'e' | f");
        assert_eq!(blocks.len(), 1);
        assert!(super::blocks("p.md", "```sh\na 'b\n```\n").is_err());
        let several = "```sh\nfor x in a; do\n  b $x\ndone\ncat > c <<'D'\ne: f\nD\ng\n```\n";
        let lines: Vec<usize> =
            super::blocks("p.md", several).expect("it ends")[0].iter().map(|command| command.line).collect();
        assert_eq!(lines, [2, 5, 8]);
    }
}
