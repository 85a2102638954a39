//! Compression of token ids: tokens that normalize alike have one id.
//!
//! Multipliers depend on the number of ids, so a map must be exactly that of training. The
//! normalization uses the functions of the `tokenizers` crate, which the published code calls too,
//! so both have the same Unicode tables.

use crate::error::MapError;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use tokenizers::normalizers::StripAccents;
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

/// Stands for a text of one space while its ends are stripped.
const LONE_SPACE: char = '\u{e000}';

/// The id of each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMap {
    ids: Vec<u32>,
    size: u64,
}

impl TokenMap {
    /// The map of a `tokenizer.json`, over all its tokens, added ones too.
    ///
    /// # Errors
    /// The tokenizer cannot be parsed, or cannot decode a token.
    pub fn of_tokenizer(json: &[u8]) -> Result<Self, MapError> {
        let tokenizer = Tokenizer::from_bytes(json).map_err(|error| MapError::Tokenizer(error.to_string()))?;
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut ids = Vec::new();
        for token in 0..tokenizer.get_vocab_size(true) as u32 {
            let undecodable = |why: String| MapError::Undecodable { token, why };
            let text = tokenizer.decode(&[token], false).map_err(|error| undecodable(error.to_string()))?;
            let key = if text.contains(char::REPLACEMENT_CHARACTER) {
                // Part of a character: there is nothing to normalize.
                tokenizer.id_to_token(token).ok_or_else(|| undecodable("it has no text".to_owned()))?
            } else {
                let normal = normalized(&text).map_err(undecodable)?;
                if normal.is_empty() { text } else { normal }
            };
            let next = known.len() as u32;
            ids.push(*known.entry(key).or_insert(next));
        }
        Self::of_ids(ids)
    }

    /// The map in which token `t` has the id `ids[t]`.
    ///
    /// # Errors
    /// The list is empty or has an id of `u32::MAX`.
    pub fn of_ids(ids: Vec<u32>) -> Result<Self, MapError> {
        let largest = ids.iter().copied().max().ok_or(MapError::Empty)?;
        if largest == u32::MAX {
            let token = ids.iter().position(|id| *id == largest).unwrap_or_default() as u32;
            return Err(MapError::IdTooLarge { token, id: largest });
        }
        Ok(Self { ids, size: u64::from(largest) + 1 })
    }

    /// The ids by token.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The number of ids: one more than the largest.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// SHA-256 of the ids as little-endian words of 32 bits.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for ids in self.ids.chunks(1024) {
            hash.update(ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
        }
        hash.finalize().into()
    }
}

/// The text under which tokens are alike: compatibility forms, accents, case and runs of blanks are
/// dropped.
fn normalized(text: &str) -> Result<String, String> {
    let mut string = NormalizedString::from(text);
    string.nfkc().nfd();
    StripAccents.normalize(&mut string).map_err(|error| error.to_string())?;
    string.lowercase();
    let text = with_single_spaces(string.get());
    let text = if text == " " { LONE_SPACE.to_string() } else { text };
    // A character U+E000 of the token itself becomes a space as well, as in the published code.
    Ok(text.trim().replace(LONE_SPACE, " "))
}

/// The text with one space for each run of spaces, tabs and line ends.
fn with_single_spaces(text: &str) -> String {
    let mut single = String::with_capacity(text.len());
    let mut in_run = false;
    for letter in text.chars() {
        let is_blank = matches!(letter, ' ' | '\t' | '\r' | '\n');
        if !is_blank {
            single.push(letter);
        } else if !in_run {
            single.push(' ');
        }
        in_run = is_blank;
    }
    single
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_normalized() {
        for (text, normal) in [
            (" The", "the"),
            ("Ünïcode", "unicode"),
            ("ﬁ", "fi"),
            ("  ", " "),
            (" \t\r\n ", " "),
            ("\n", " "),
            ("a\n\tb", "a b"),
            ("\u{a0}", " "),
            ("\u{2003}x\u{2003}", "x"),
            ("\u{b}\u{c}", ""),
            ("\u{301}", ""),
            ("ΑΣ", "ασ"),
            ("İ", "i"),
            ("a\u{e000}b", "a b"),
            ("\u{e000}", " "),
        ] {
            assert_eq!(normalized(text).unwrap(), normal, "{text:?}");
        }
    }

    #[test]
    fn a_list_of_ids_is_a_map() {
        let map = TokenMap::of_ids(vec![0, 1, 0, 2]).unwrap();
        assert_eq!((map.size(), map.ids()), (3, [0, 1, 0, 2].as_slice()));
        assert_eq!(TokenMap::of_ids(Vec::new()), Err(MapError::Empty));
        let error = TokenMap::of_ids(vec![5, u32::MAX]).unwrap_err();
        assert_eq!(error, MapError::IdTooLarge { token: 1, id: u32::MAX });
    }

    #[test]
    fn the_checksum_is_of_little_endian_words() {
        // SHA-256 of eight bytes: 1 and 256 as words.
        let map = TokenMap::of_ids(vec![1, 256]).unwrap();
        assert_eq!(map.sha256(), <[u8; 32]>::from(Sha256::digest([1, 0, 0, 0, 0, 1, 0, 0])));
        let long = TokenMap::of_ids((0..3000).collect()).unwrap();
        let bytes: Vec<u8> = (0..3000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(long.sha256(), <[u8; 32]>::from(Sha256::digest(bytes)));
    }

    #[test]
    fn a_damaged_tokenizer_is_refused() {
        let error = TokenMap::of_tokenizer(b"{}").unwrap_err();
        assert!(error.to_string().starts_with("not a tokenizer"), "{error}");
    }
}
