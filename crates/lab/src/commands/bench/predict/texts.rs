//! The text that predictors learn from, and its held-out end.

use cenote_base::Clock;
use cenote_console::failure::Failure;
use cenote_console::input;
use cenote_engine::tokenizer::Tokenizer;
use std::path::Path;

/// The text of the demo model, beside the repository.
const USUAL: &str = "../../../shared/data/wikitext2_valid.txt";
/// Share of the text that is held out, as `cenote-train` holds it out.
const HELD_OUT: f64 = 0.05;
/// Tokens of a request.
const REQUEST: usize = 1024;
/// Requests of a quick run.
const QUICK: usize = 1;

/// A text in tokens.
pub struct Texts {
    /// Number of the tokenizer's tokens.
    pub vocabulary: usize,
    /// What predictors may learn from.
    pub known: Vec<u32>,
    /// The held-out end, cut into requests.
    pub requests: Vec<Vec<u32>>,
}

/// Whether there is a text.
pub enum Found {
    Texts(Texts),
    /// The reason why not.
    Missing(String),
}

impl Texts {
    /// Reads the named text, or else the one of the demo model, if it is there.
    pub fn read(dir: &Path, named: Option<&Path>, quick: bool) -> Result<Found, Failure> {
        let path = named.map_or_else(|| dir.join(USUAL), Path::to_path_buf);
        let text = match input::text(&path) {
            Ok(text) => text,
            Err(error) if named.is_none() => {
                return Ok(Found::Missing(format!("{}: {error}; name a text with --text", path.display())));
            }
            Err(error) => return Err(Failure::new(format!("{}: {error}", path.display()))),
        };
        let tokenizer = Tokenizer::load(dir, Clock::stopped())?;
        let encode = |text: &str| tokenizer.encode_rendered(text).map_err(Failure::new);
        let (known, held_out) = text.split_at(cut(&text));
        let (mut known, held_out) = (encode(known)?, encode(held_out)?);
        let mut requests: Vec<Vec<u32>> = held_out.chunks(REQUEST).map(<[u32]>::to_vec).collect();
        if quick {
            requests.truncate(QUICK);
            known.drain(..known.len() * 9 / 10);
        }
        if known.len() < REQUEST || requests.is_empty() {
            return Err(Failure::new(format!("{}: too short to learn from", path.display())));
        }
        Ok(Found::Texts(Self { vocabulary: tokenizer.len(), known, requests }))
    }
}

/// The first line end after the share that is not held out.
fn cut(text: &str) -> usize {
    let start = (text.len() as f64 * (1.0 - HELD_OUT)) as usize;
    let bytes = text.as_bytes();
    (start..text.len()).find(|at| *at > 0 && bytes[at - 1] == b'\n').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_held_out_end_begins_with_a_line() {
        let text = "é\n".repeat(400);
        let at = cut(&text);
        assert!(text[..at].ends_with('\n') && (0.94..0.97).contains(&(at as f64 / text.len() as f64)));
        assert_eq!(cut("no line end"), 11);
    }
}
