//! Incremental decoding: the text of a token sequence, piece by piece.
//!
//! A token is not a piece of text: a character may span several tokens, and decoders treat the
//! first token differently (Llama 2 strips a leading space). So, as in vLLM, a window of tokens is
//! decoded twice, without and with the new ones; the difference is the new text. The concatenation
//! of all pieces equals the decoding of all tokens at once, byte for byte.

use super::Tokenizer;
use cenote_base::TokenId;

/// Prompt tokens that precede the output in the decoding window, so that a leading space survives
/// (vLLM's `INITIAL_INCREMENTAL_DETOKENIZATION_OFFSET`).
const CONTEXT_TOKENS: usize = 5;

/// Decodes the output of one request.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    /// The context and the output so far, without skipped tokens.
    tokens: Vec<TokenId>,
    /// Start of the decoded window.
    window: usize,
    /// Tokens before this index have been turned into text.
    read: usize,
}

impl Detokenizer {
    /// Creates a decoder for the tokens after `prompt`.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, prompt: &[TokenId]) -> Self {
        let visible = prompt.iter().rev().filter(|token| !tokenizer.is_skipped(**token));
        let mut tokens: Vec<TokenId> = visible.take(CONTEXT_TOKENS).copied().collect();
        tokens.reverse();
        // A prompt of token ids may end within a character. Drop it, so that its bytes do not join
        // the output's.
        if tokens.iter().any(|token| tokenizer.is_byte_token(*token))
            || decode(tokenizer, &tokens).ends_with('\u{fffd}')
        {
            tokens.clear();
        }
        let read = tokens.len();
        Self { tokens, window: 0, read }
    }

    /// Appends a token; returns the text that became final, possibly empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: TokenId) -> String {
        if tokenizer.is_skipped(token) {
            return String::new();
        }
        self.tokens.push(token);
        // A run of byte tokens is decoded as a whole: one more byte can still invalidate all of it.
        if tokenizer.is_byte_token(token) { String::new() } else { self.advance(tokenizer, false) }
    }

    /// Returns the text held back, when no token follows. An incomplete character becomes U+FFFD,
    /// as in the decoding of all tokens at once.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        self.advance(tokenizer, true)
    }

    fn advance(&mut self, tokenizer: &Tokenizer, last: bool) -> String {
        let before = decode(tokenizer, &self.tokens[self.window..self.read]);
        let after = decode(tokenizer, &self.tokens[self.window..]);
        // U+FFFD at the end may be an incomplete character.
        if !last && after.ends_with('\u{fffd}') {
            return String::new();
        }
        let Some(text) = after.strip_prefix(before.as_str()).filter(|text| last || !text.is_empty()) else {
            return String::new();
        };
        self.window = self.read;
        self.read = self.tokens.len();
        text.to_owned()
    }
}

/// Decodes tokens; returns no text on an error, so that the client still receives the rest.
fn decode(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    tokenizer.decode(tokens).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{byte_fallback, fixture};
    use super::*;
    use proptest::prelude::*;

    fn pieces(tokenizer: &Tokenizer, prompt: &[TokenId], tokens: &[TokenId]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(tokenizer, prompt);
        let mut pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(tokenizer, *token)).collect();
        pieces.push(detokenizer.finish(tokenizer));
        pieces
    }

    #[test]
    fn a_piece_never_splits_a_character() {
        let tokenizer = fixture();
        let text = "Grüße 你好 🙂👩‍🚀 e\u{301}.";
        let tokens = tokenizer.encode_rendered(text).unwrap();
        assert!(tokens.len() > text.chars().count(), "some characters take several tokens");
        let pieces = pieces(&tokenizer, &[], &tokens);
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')));
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn a_leading_space_survives_after_a_prompt() {
        let tokenizer = byte_fallback();
        // "a" then "▁a": without the context, the decoder would strip the space.
        assert_eq!(pieces(&tokenizer, &[3], &[5, 5]).concat(), " a a");
        assert_eq!(pieces(&tokenizer, &[], &[5, 5]).concat(), "a a");
    }

    #[test]
    fn an_incomplete_character_at_the_end_of_the_prompt_is_dropped() {
        let tokenizer = fixture();
        let euro = tokenizer.encode_rendered("€").unwrap();
        let text = pieces(&tokenizer, &euro[..1], &tokenizer.encode_rendered("water").unwrap()).concat();
        assert_eq!(text, "water");
    }

    proptest! {
        #[test]
        fn pieces_concatenate_to_the_full_decoding(tokens in prop::collection::vec(0_u32..304, 0..40)) {
            let tokenizer = fixture();
            prop_assert_eq!(pieces(&tokenizer, &[], &tokens).concat(), tokenizer.decode(&tokens).unwrap());
        }

        #[test]
        fn pieces_concatenate_with_byte_tokens(tokens in prop::collection::vec(prop_oneof![0_u32..7, 190_u32..240], 0..20)) {
            let tokenizer = byte_fallback();
            prop_assert_eq!(pieces(&tokenizer, &[], &tokens).concat(), tokenizer.decode(&tokens).unwrap());
        }
    }
}
