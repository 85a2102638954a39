//! The tokenizer: byte-level BPE (so every string can be encoded), five special tokens, and the
//! matching chat template.

use std::path::Path;

use serde_json::json;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer, TokenizerBuilder};

use crate::error::{Error, Result, write_whole};

/// First token of every document and conversation; id 0.
pub const BOS: &str = "<|bos|>";
/// Last token of every document and turn; id 1.
pub const EOS: &str = "<|eos|>";
/// First token of a user's turn; id 2.
pub const USER: &str = "<|user|>";
/// First token of the assistant's turn; id 3.
pub const ASSISTANT: &str = "<|assistant|>";
/// First token of the system line; id 4.
pub const SYSTEM: &str = "<|system|>";
/// The special tokens in id order: the trainer numbers special tokens first, from 0.
pub const SPECIAL: [&str; 5] = [BOS, EOS, USER, ASSISTANT, SYSTEM];
/// Id of [`BOS`].
pub const BOS_ID: u32 = 0;
/// Id of [`EOS`].
pub const EOS_ID: u32 = 1;

/// Jinja template for `transformers` and vLLM. The training conversations have exactly its output
/// format (`dialogue.rs`).
pub const CHAT_TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\
{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|eos|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

/// Trains a BPE tokenizer of `vocab_size` tokens on `texts`.
pub fn train<'a>(texts: impl Iterator<Item = &'a str> + Send, vocab_size: usize) -> Result<Tokenizer> {
    let fail = |error: tokenizers::Error| Error::Tokenizer(error.to_string());
    if vocab_size < 256 + SPECIAL.len() {
        return Err(Error::Flag(format!("--vocab {vocab_size} is below 261: 256 bytes and 5 special tokens")));
    }
    let specials = SPECIAL.iter().map(|token| AddedToken::from(*token, true)).collect::<Vec<_>>();
    let mut trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(vocab_size)
        .min_frequency(2)
        .max_token_length(Some(16))
        .special_tokens(specials)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let bytes = ByteLevel::new(false, true, true);
    let add_bos = TemplateProcessing::builder()
        .try_single(format!("{BOS} $A").as_str())
        .and_then(|builder| builder.try_pair(format!("{BOS} $A $B:1").as_str()))
        .map_err(Error::Tokenizer)?
        .special_tokens(vec![(BOS, BOS_ID)])
        .build()
        .map_err(|error| Error::Tokenizer(error.to_string()))?;
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(bytes))
        .with_post_processor(Some(add_bos))
        .with_decoder(Some(bytes))
        .build()
        .map_err(fail)?;
    tokenizer.train(&mut trainer, texts).map_err(fail)?;
    let tokenizer = serde_json::to_string(&tokenizer).map_err(|error| Error::Tokenizer(error.to_string()))?;
    tokenizer.parse().map_err(fail)
}

/// Reads a `tokenizer.json`.
pub fn load(path: &Path) -> Result<Tokenizer> {
    Tokenizer::from_file(path).map_err(|error| Error::content(path, error))
}

/// Writes `tokenizer.json` and `tokenizer_config.json` to `folder`. `context` is in tokens.
pub fn save(tokenizer: &Tokenizer, folder: &Path, context: usize) -> Result<()> {
    let text = tokenizer.to_string(true).map_err(|error| Error::Tokenizer(error.to_string()))?;
    write_whole(&folder.join("tokenizer.json"), text.as_bytes())?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": BOS,
        "eos_token": EOS,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    write_whole(&folder.join("tokenizer_config.json"), format!("{config:#}\n").as_bytes())
}

/// Encodes `text`. Special tokens in it are recognised; none are added.
pub fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|error| Error::Tokenizer(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_round_trips_and_special_tokens_have_their_ids() {
        let tokenizer = train(["the pool, the region and the host"; 4].into_iter(), 300).unwrap();
        let text = "Ünknown → the pool\n\t\u{1F600}";
        assert_eq!(tokenizer.decode(&encode(&tokenizer, text).unwrap(), true).unwrap(), text);
        let ids = encode(&tokenizer, &SPECIAL.concat()).unwrap();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        assert_eq!(tokenizer.encode("the", true).unwrap().get_ids()[0], BOS_ID);
    }
}
