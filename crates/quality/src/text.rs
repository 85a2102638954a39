//! A text of any length as windows of tokens, read on demand.

use crate::StudyError;
use cenote_base::TokenId;
use cenote_engine::tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::io::BufRead;

/// Bytes tokenized at a time; a piece extends to the end of its last line.
const PIECE_BYTES: usize = 64 << 10;

/// Consecutive windows of equal length. An incomplete window at the end of the text is dropped.
pub struct Windows<'a, R> {
    text: R,
    tokenizer: &'a Tokenizer,
    length: usize,
    tokens: VecDeque<TokenId>,
    ended: bool,
}

impl<'a, R: BufRead> Windows<'a, R> {
    /// Creates windows of `length` tokens.
    pub const fn new(text: R, tokenizer: &'a Tokenizer, length: usize) -> Self {
        Self { text, tokenizer, length, tokens: VecDeque::new(), ended: false }
    }

    fn read_piece(&mut self) -> Result<(), StudyError> {
        let unreadable = |error: std::io::Error| StudyError::Text(format!("the text cannot be read: {error}"));
        let mut piece = Vec::new();
        while piece.len() < PIECE_BYTES {
            if self.text.read_until(b'\n', &mut piece).map_err(unreadable)? == 0 {
                self.ended = true;
                break;
            }
        }
        let text = String::from_utf8_lossy(&piece);
        let tokens = self.tokenizer.encode_rendered(&text);
        self.tokens.extend(tokens.map_err(|error| StudyError::Text(format!("the text cannot be tokenized: {error}")))?);
        Ok(())
    }

    /// Returns the first `count` windows, or fewer if the text ends before.
    ///
    /// # Errors
    /// The text cannot be read or tokenized, or has fewer tokens than one window.
    pub fn take_some(&mut self, count: usize) -> Result<Vec<Vec<TokenId>>, StudyError> {
        let windows: Result<Vec<_>, _> = self.by_ref().take(count).collect();
        let windows = windows?;
        if windows.is_empty() {
            return Err(StudyError::Text(format!("the text has fewer than {} tokens", self.length)));
        }
        Ok(windows)
    }
}

impl<R: BufRead> Iterator for Windows<'_, R> {
    type Item = Result<Vec<TokenId>, StudyError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.tokens.len() < self.length && !self.ended {
            if let Err(error) = self.read_piece() {
                self.ended = true;
                return Some(Err(error));
            }
        }
        (self.tokens.len() >= self.length).then(|| Ok(self.tokens.drain(..self.length).collect()))
    }
}
