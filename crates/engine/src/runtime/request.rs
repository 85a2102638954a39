//! What the engine knows of one request: its tokens, its text, and when it ends.

use crate::model::LoadedModel;
use crate::tokenizer::detokenizer::Detokenizer;
use crate::tokenizer::stop::StopMatcher;
use cenote_base::engine::{FinishReason, HandOver, Usage};
use cenote_base::{BlockHash, CacheSalt, EventSink, RequestId, SamplingParams, TokenId};

/// A validated, tokenized request on its way to the engine's thread.
pub(super) struct Admission {
    pub id: RequestId,
    pub prompt: Vec<TokenId>,
    /// Tokens another worker generated, and the rest of its hand-over.
    pub output: Vec<TokenId>,
    pub emitted_bytes: u64,
    /// `Some`: the hand-over says how many prompt tokens were cached.
    pub cached_tokens: Option<u32>,
    pub sampling: SamplingParams,
    pub seed: u64,
    pub prefill_only: bool,
    pub use_pool: bool,
    pub cache_salt: Option<CacheSalt>,
    pub deadline_ns: u64,
    /// Most tokens of prompt and output.
    pub max_num_tokens: usize,
    pub sink: EventSink,
}

/// A request that waits or runs.
pub(super) struct Running {
    /// The how many-th request that this engine took, from 0.
    pub sequence: u64,
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    pub sampling: SamplingParams,
    pub seed: u64,
    pub prefill_only: bool,
    pub use_pool: bool,
    /// Parent of the first block: of the request's salt, if it has one.
    pub root: Option<BlockHash>,
    pub max_num_tokens: usize,
    pub sink: EventSink,
    pub text: TextStream,
    /// Hashes of the first full blocks, as far as they are known.
    pub hashes: Vec<BlockHash>,
    /// Of those, how many blocks the store has: matched or saved.
    pub published: usize,
    /// Prompt tokens that were loaded when the request was first admitted; `None` until then.
    pub cached_tokens: Option<u32>,
    /// Why the request is over, once it is.
    pub finish: Option<FinishReason>,
}

impl Running {
    /// `root`: that of the request's salt in the store's names.
    pub fn new(admission: Admission, sequence: u64, root: Option<BlockHash>, model: &LoadedModel) -> Self {
        let mut text = TextStream::new(model, &admission.prompt, &admission.sampling.stop);
        let ended = !admission.sampling.ignore_eos && admission.output.last().is_some_and(|&last| ends(model, last));
        let spoken = admission.output.len() - usize::from(ended);
        text.resume(model, &admission.output[..spoken], admission.emitted_bytes);
        let prompt_len = admission.prompt.len();
        let mut tokens = admission.prompt;
        tokens.extend(admission.output);
        // A worker may die between its last token and telling that it was the last: then nothing is left to
        // generate here, only to say so.
        let finish = if ended || text.stopped {
            Some(FinishReason::Stop)
        } else {
            (tokens.len() >= admission.max_num_tokens).then_some(FinishReason::Length)
        };
        Self {
            sequence,
            tokens,
            prompt_len,
            sampling: admission.sampling,
            seed: admission.seed,
            prefill_only: admission.prefill_only,
            use_pool: admission.use_pool,
            root,
            max_num_tokens: admission.max_num_tokens,
            sink: admission.sink,
            text,
            hashes: Vec::new(),
            published: 0,
            cached_tokens: admission.cached_tokens,
            finish,
        }
    }

    /// Takes the next token; returns the text that became certain.
    pub fn push(&mut self, model: &LoadedModel, token: TokenId) -> String {
        self.tokens.push(token);
        let ends = !self.sampling.ignore_eos && ends(model, token);
        // The end-of-sequence token is not part of the text, whether or not the tokenizer calls it special.
        let text = if ends { String::new() } else { self.text.push(model, token) };
        self.finish = if ends || self.text.stopped {
            Some(FinishReason::Stop)
        } else if self.tokens.len() >= self.max_num_tokens {
            Some(FinishReason::Length)
        } else if self.prefill_only {
            Some(FinishReason::HandOver)
        } else {
            None
        };
        text
    }

    /// Tokens generated, by whichever worker.
    pub fn output(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    pub fn usage(&self) -> Usage {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Usage {
            prompt_tokens: count(self.prompt_len),
            completion_tokens: count(self.output().len()),
            cached_tokens: self.cached_tokens.unwrap_or(0),
        }
    }

    pub fn hand_over(&self) -> HandOver {
        HandOver {
            prompt_token_ids: self.tokens[..self.prompt_len].to_vec(),
            output_token_ids: self.output().to_vec(),
            emitted_bytes: self.text.emitted_bytes,
            seed: self.seed,
            cached_tokens: self.cached_tokens.unwrap_or(0),
        }
    }
}

/// Whether the model ends its output with this token.
fn ends(model: &LoadedModel, token: TokenId) -> bool {
    model.llama().config().eos_token_ids.contains(&token)
}

/// The text of a request's output as the client receives it.
pub(super) struct TextStream {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    pub stopped: bool,
    /// Bytes the client has.
    pub emitted_bytes: u64,
    /// Bytes that another worker already sent and that are still to be swallowed here.
    skip: u64,
    /// Text that became certain while resuming, not sent yet.
    pending: String,
}

impl TextStream {
    fn new(model: &LoadedModel, prompt: &[TokenId], stop: &[String]) -> Self {
        Self {
            detokenizer: Detokenizer::new(model.tokenizer(), prompt),
            stop: StopMatcher::new(stop),
            stopped: false,
            emitted_bytes: 0,
            skip: 0,
            pending: String::new(),
        }
    }

    /// Replays what another worker generated. The text is a function of the tokens, so what it held back
    /// is held back here too.
    fn resume(&mut self, model: &LoadedModel, output: &[TokenId], emitted_bytes: u64) {
        self.skip = emitted_bytes;
        for token in output {
            let text = self.push(model, *token);
            self.pending.push_str(&text);
        }
        self.emitted_bytes = emitted_bytes;
    }

    fn push(&mut self, model: &LoadedModel, token: TokenId) -> String {
        let text = self.detokenizer.push(model.tokenizer(), token);
        self.pass(&text)
    }

    /// The text held back, once no token follows: nothing behind a stop text, and nothing that a hand-over
    /// leaves to the next worker.
    pub fn finish(&mut self, model: &LoadedModel) -> String {
        let rest = if self.stopped { String::new() } else { self.detokenizer.finish(model.tokenizer()) };
        let text = self.pass(&rest);
        if self.stopped {
            return text;
        }
        let held = self.stop.finish();
        text + &self.counted(&held)
    }

    fn pass(&mut self, text: &str) -> String {
        if self.stopped {
            return self.counted("");
        }
        let passed = self.stop.push(text);
        self.stopped = passed.stopped;
        self.counted(&passed.text)
    }

    /// Swallows what the client has, counts what it will have.
    fn counted(&mut self, text: &str) -> String {
        let mut text = std::mem::take(&mut self.pending) + text;
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(text.len());
        // A hand-over that counts into the middle of a character is not one of ours; skip all of it.
        let skipped = (skipped..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        self.skip = self.skip.saturating_sub(skipped as u64);
        text.drain(..skipped);
        self.emitted_bytes += text.len() as u64;
        text
    }
}
