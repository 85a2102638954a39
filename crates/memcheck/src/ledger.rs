//! The results of a mutation campaign. With `--log` each is appended to a file, so that a campaign that was
//! ended goes on where it was.

use crate::Args;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::Path;

/// What the seeds say of a defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Some seed detects it, and is clean without it.
    Noticed,
    /// No seed detects it.
    Unnoticed,
    /// No seed detects it, in a function that is known for such effects.
    Rare,
    /// The seeds that fail do so without it, too.
    Unsound,
}

impl Word {
    const ALL: [Self; 4] = [Self::Noticed, Self::Unnoticed, Self::Rare, Self::Unsound];

    const fn name(self) -> &'static str {
        match self {
            Self::Noticed => "noticed",
            Self::Unnoticed => "UNNOTICED",
            Self::Rare => "rare",
            Self::Unsound => "UNSOUND",
        }
    }
}

/// Results by defect, in a file or only in memory.
pub struct Ledger {
    file: Option<File>,
    /// Begins each line of this build with these seeds.
    key: String,
    earlier: BTreeMap<String, Word>,
    words: Vec<Word>,
}

impl Ledger {
    /// The log of `args`, with what it has of this program and these seeds.
    ///
    /// # Errors
    /// The log or this program cannot be read.
    pub fn open(args: &Args) -> Result<Self, String> {
        let Some(path) = &args.log else {
            return Ok(Self { file: None, key: String::new(), earlier: BTreeMap::new(), words: Vec::new() });
        };
        let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let program = fs::read(&program).map_err(|error| at(&program, error))?;
        let mut hasher = DefaultHasher::new();
        // A sample runs fewer seeds, and what is rare stands in the sources below the working directory.
        let folder = std::env::current_dir().unwrap_or_default();
        (program, args.first, args.seeds(), args.design.name(), args.sample.is_some(), folder).hash(&mut hasher);
        let key = format!("{:016x}", hasher.finish());
        let text =
            if path.exists() { fs::read_to_string(path).map_err(|error| at(path, error))? } else { String::new() };
        let earlier = read(&text, &key);
        println!("{}: {} results of this build with these seeds", path.display(), earlier.len());
        let mut file = File::options().create(true).append(true).open(path).map_err(|error| at(path, error))?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").map_err(|error| at(path, error))?;
        }
        Ok(Self { file: Some(file), key, earlier, words: Vec::new() })
    }

    /// Takes the verdict on a defect from the log, or judges, prints and logs it.
    pub fn settle(&mut self, defect: &str, judge: impl FnOnce() -> (Word, String)) {
        if let Some(&word) = self.earlier.get(defect) {
            self.words.push(word);
            return;
        }
        let (word, text) = judge();
        self.words.push(word);
        println!("{:<9}  {defect} {text}", word.name());
        if let Some(file) = &mut self.file {
            let line = format!("{}\t{}\t{defect}\t{text}\n", self.key, word.name());
            if let Err(error) = file.write_all(line.as_bytes()) {
                eprintln!("the log cannot be written: {error}");
            }
        }
    }

    /// How many defects have this verdict.
    pub fn count(&self, word: Word) -> usize {
        self.words.iter().filter(|&&other| other == word).count()
    }
}

/// The verdicts in a log with this key, by defect. A torn last line has none.
fn read(text: &str, key: &str) -> BTreeMap<String, Word> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let verdict = |line: &str| {
        let mut parts = line.strip_prefix(key)?.strip_prefix('\t')?.split('\t');
        let (name, defect) = (parts.next()?, parts.next()?);
        let word = Word::ALL.into_iter().find(|word| word.name() == name)?;
        Some((defect.to_owned(), word))
    };
    whole.lines().filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_whole_lines_of_its_build() {
        let text = "a\tnoticed\t--without x\t--repeat 1\nb\tnoticed\t--without y\t\na\tUNNOTICED\t--without z\t(9 seeds)\n\
                    a\tnoticed\t--without tor";
        let wanted = [("--without x", Word::Noticed), ("--without z", Word::Unnoticed)];
        assert_eq!(read(text, "a"), wanted.map(|(defect, word)| (defect.to_owned(), word)).into());
        assert_eq!(read("", "a"), BTreeMap::new());
    }
}
