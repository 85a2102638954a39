//! Text to tokens and back: `tokenizer.json`, chat templates, incremental decoding, stop texts.

pub mod chat;
pub mod detokenizer;
pub mod stop;

use crate::error::{LoadError, read_json_if_present};
use cenote_base::{Clock, TokenId};
use chat::ChatTemplate;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

/// The tokenizer of a model directory.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Whether the decoder joins byte tokens (`<0xE2>`) into characters, as in Llama 2.
    byte_fallback: bool,
    /// Special tokens, which decoding omits.
    special: BTreeSet<TokenId>,
    chat: Option<ChatTemplate>,
}

/// The fields used from `tokenizer_config.json` and `special_tokens_map.json`.
#[derive(Deserialize, Default)]
struct TokenizerConfig {
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
    chat_template: Option<chat::Source>,
}

/// A special token: its text, or an object with the text in `content`.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl SpecialToken {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl Tokenizer {
    /// Loads the tokenizer of `dir`, and its chat template if there is one. Templates read the date from
    /// `clock`.
    ///
    /// # Errors
    /// `tokenizer.json` is missing or damaged, or the chat template cannot be parsed.
    pub fn load(dir: &Path, clock: Clock) -> Result<Self, LoadError> {
        let path = dir.join("tokenizer.json");
        // Read here because errors of the tokenizers crate do not name the file.
        let text = crate::error::read(&path)?;
        let inner: tokenizers::Tokenizer =
            text.parse().map_err(|error| LoadError::invalid(&path, format!("not a tokenizer: {error}")))?;
        let decoder = inner.get_decoder().and_then(|decoder| serde_json::to_string(decoder).ok()).unwrap_or_default();
        let config_path = dir.join("tokenizer_config.json");
        let config: TokenizerConfig = read_json_if_present(&config_path)?.unwrap_or_default();
        let map: TokenizerConfig = read_json_if_present(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let text_of = |token: Option<SpecialToken>, other: Option<SpecialToken>| {
            token.or(other).map(SpecialToken::into_text).unwrap_or_default()
        };
        let (bos, eos) = (text_of(config.bos_token, map.bos_token), text_of(config.eos_token, map.eos_token));
        let chat = ChatTemplate::load(dir, config.chat_template, bos, eos, clock)?;
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        Ok(Self { inner, byte_fallback: decoder.contains("\"ByteFallback\""), special, chat })
    }

    /// Encodes a text and adds the tokenizer's special tokens (BOS, for most Llamas).
    ///
    /// # Errors
    /// The tokenizer's error text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, String> {
        self.encode_with(text, true)
    }

    /// Encodes a text without adding special tokens: a chat template has written them, or the client wants none.
    ///
    /// # Errors
    /// The tokenizer's error text.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<TokenId>, String> {
        self.encode_with(text, false)
    }

    fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, String> {
        // `encode_fast` skips the offsets, which are not used.
        let encoding = self.inner.encode_fast(text, add_special_tokens).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes tokens to text, without special tokens.
    ///
    /// # Errors
    /// The tokenizer's error text.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, String> {
        self.inner.decode(tokens, true).map_err(|error| error.to_string())
    }

    /// Text of one token alone, special or not; empty if it cannot be decoded.
    #[must_use]
    pub fn piece(&self, token: TokenId) -> String {
        self.inner.decode(&[token], false).unwrap_or_default()
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub const fn chat(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Size of the vocabulary, added tokens included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether the vocabulary is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether decoding omits `token`: it is special or, as padding of the vocabulary, unassigned.
    fn is_skipped(&self, token: TokenId) -> bool {
        self.special.contains(&token) || self.inner.id_to_token(token).is_none()
    }

    /// Whether the decoder treats `token` as one byte of a character.
    fn is_byte_token(&self, token: TokenId) -> bool {
        self.byte_fallback
            && self.inner.id_to_token(token).is_some_and(|text| {
                text.strip_prefix("<0x")
                    .and_then(|rest| rest.strip_suffix('>'))
                    .is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
            })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The committed byte-level BPE tokenizer.
    pub fn fixture() -> Tokenizer {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        Tokenizer::load(&dir, Clock::stopped()).unwrap()
    }

    /// A tokenizer like Llama 2's: `▁` for a space, bytes as `<0xNN>`, one leading space stripped.
    pub fn byte_fallback() -> Tokenizer {
        let mut vocab: Vec<String> = ["<s>", "</s>", "▁", "a", "b", "▁a", "é"].map(str::to_owned).into();
        vocab.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let vocab: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, text)| (text, id.into())).collect();
        let special = |id: u32, text: &str| {
            serde_json::json!({"id": id, "content": text, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false})
        };
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [special(0, "<s>"), special(1, "</s>")],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true, "unk_token": "<s>"},
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        Tokenizer::load(dir.path(), Clock::stopped()).unwrap()
    }

    #[test]
    fn a_missing_or_damaged_tokenizer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = || Tokenizer::load(dir.path(), Clock::stopped()).err().expect("no tokenizer").to_string();
        assert!(error().contains("tokenizer.json") && error().contains("No such file"), "{}", error());
        for text in ["", "{", "{}", "[1]"] {
            std::fs::write(dir.path().join("tokenizer.json"), text).unwrap();
            assert!(error().contains("tokenizer.json: not a tokenizer"), "{}", error());
        }
    }

    #[test]
    fn byte_tokens_are_recognised_only_with_byte_fallback() {
        let tokenizer = byte_fallback();
        assert!(tokenizer.is_byte_token(7) && tokenizer.is_byte_token(262));
        assert!(!tokenizer.is_byte_token(3) && !fixture().is_byte_token(7));
    }
}
