//! The part of its answer that a client has seen, and the request from which the next worker
//! continues.
//!
//! Plain state: events in, steps out. Text that a worker holds back (half a character, the start of
//! a stop text) was not forwarded and is not counted. Its tokens are, and the next worker sends the
//! text.

use cenote_base::engine::{EngineError, ErrorKind, Event, FinishReason, HandOver, Phase, Prompt, TokenLogprobs, Usage};
use cenote_base::{Request, RequestId, TokenId};

/// The state of one request across its workers.
pub(super) struct Progress {
    request: Request,
    seed: u64,
    split: bool,
    /// Known from a hand-over, or because the client sent tokens.
    prompt_token_ids: Option<Vec<TokenId>>,
    output_token_ids: Vec<TokenId>,
    /// All text accepted so far.
    text: String,
    /// End of the part of `text` that events have carried to the client.
    carry: String,
    /// Counts of the prefill, once one has finished.
    prefill: Option<Usage>,
    attempt: Attempt,
}

/// Position of the present worker in the answer. It starts after the forwarded part, or at the
/// beginning and repeats what the client has seen.
#[derive(Clone, Copy, Default)]
struct Attempt {
    tokens: usize,
    text_bytes: usize,
}

/// What the caller does with an event.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Forward it.
    Forward(Event),
    /// Drop it: the client has it.
    Known,
    /// The prefill is done; a decode worker continues.
    HandedOver,
    /// Forward it; it is the last.
    Done(Event),
    /// The worker failed; another may succeed.
    Failed(EngineError),
    /// The worker contradicts what the client has seen, which no retry repairs.
    Contradiction(EngineError),
}

impl Progress {
    pub(super) fn new(request: Request, split: bool) -> Self {
        let prompt_token_ids = match &request.prompt {
            Prompt::Tokens(ids) => Some(ids.clone()),
            Prompt::Text(_) | Prompt::BareText(_) | Prompt::Chat(_) => None,
        };
        Self {
            seed: request.sampling.seed.unwrap_or_default(),
            request,
            split,
            prompt_token_ids,
            output_token_ids: Vec::new(),
            text: String::new(),
            carry: String::new(),
            prefill: None,
            attempt: Attempt::default(),
        }
    }

    /// Whether the client has seen tokens.
    pub(super) fn has_begun(&self) -> bool {
        !self.output_token_ids.is_empty()
    }

    /// Number of accepted tokens; grows if an attempt made progress.
    pub(super) fn tokens(&self) -> usize {
        self.output_token_ids.len()
    }

    /// Whether the next worker continues from a hand-over.
    pub(super) fn is_handed_over(&self) -> bool {
        self.prefill.is_some() || (self.has_begun() && self.prompt_token_ids.is_some())
    }

    /// Cost of the next attempt: the prompt's size for a prefill, one for a decode. Texts count
    /// their bytes; costs are only compared.
    pub(super) fn cost(&self) -> u64 {
        if self.is_handed_over() {
            return 1;
        }
        let size = match &self.request.prompt {
            Prompt::Text(text) | Prompt::BareText(text) => text.len(),
            Prompt::Tokens(ids) => ids.len(),
            Prompt::Chat(chat) => chat.messages.iter().map(|message| message.content.len()).sum(),
        };
        size.max(1) as u64
    }

    /// The request for the next worker.
    pub(super) fn next_request(&mut self, id: RequestId, timeout_ms: u64) -> Request {
        let hand_over = match &self.prompt_token_ids {
            Some(prompt) if self.is_handed_over() => Some(HandOver {
                prompt_token_ids: prompt.clone(),
                output_token_ids: self.output_token_ids.clone(),
                emitted_bytes: self.text.len() as u64,
                seed: self.seed,
                cached_tokens: self.prefill.map_or(0, |usage| usage.cached_tokens),
            }),
            _ => None,
        };
        self.attempt = match hand_over {
            Some(_) => Attempt { tokens: self.output_token_ids.len(), text_bytes: self.text.len() },
            None => Attempt::default(),
        };
        let phase = match hand_over {
            Some(hand_over) => Phase::Decode(hand_over),
            None if self.split => Phase::Prefill,
            None => Phase::Whole,
        };
        Request { id, phase, timeout_ms, ..self.request.clone() }
    }

    /// Takes the present worker's next event.
    pub(super) fn accept(&mut self, event: Event) -> Step {
        match event {
            Event::Token { token, text, logprobs } => match self.token(token, &text, logprobs) {
                Ok(step) => step,
                Err(error) => Step::Contradiction(error),
            },
            Event::Finished { reason: FinishReason::HandOver, text, usage, hand_over } => {
                match self.hand_over(&text, usage, hand_over) {
                    Ok(()) => Step::HandedOver,
                    Err(error) => Step::Failed(error),
                }
            }
            Event::Finished { reason, text, usage, .. } => match self.finished(&text) {
                Ok(text) => Step::Done(Event::Finished { reason, text, usage: self.usage(usage), hand_over: None }),
                Err(error) => Step::Contradiction(error),
            },
            Event::Failed(error) => Step::Failed(error),
        }
    }

    fn token(&mut self, token: TokenId, text: &str, logprobs: Option<Box<TokenLogprobs>>) -> Result<Step, EngineError> {
        let at = self.attempt.tokens;
        let known = match self.output_token_ids.get(at) {
            Some(before) if *before != token => return Err(contradiction(&format!("token {at}"))),
            Some(_) => true,
            None => false,
        };
        self.take_text(text)?;
        self.attempt.tokens += 1;
        if known {
            return Ok(Step::Known);
        }
        self.output_token_ids.push(token);
        Ok(Step::Forward(Event::Token { token, text: std::mem::take(&mut self.carry), logprobs }))
    }

    /// Takes text at the attempt's position. Known text must be the same; new text is appended.
    fn take_text(&mut self, text: &str) -> Result<(), EngineError> {
        let known = self.text.get(self.attempt.text_bytes..).unwrap_or_default();
        let overlap = known.len().min(text.len());
        if known.as_bytes()[..overlap] != text.as_bytes()[..overlap] {
            return Err(contradiction(&format!("the text at byte {}", self.attempt.text_bytes)));
        }
        // If `known` ends within `text`, it ends with a complete character, and so does the common
        // part.
        let new = text.get(overlap..).unwrap_or_default();
        self.text.push_str(new);
        self.carry.push_str(new);
        self.attempt.text_bytes += text.len();
        Ok(())
    }

    fn finished(&mut self, text: &str) -> Result<String, EngineError> {
        self.take_text(text)?;
        if self.attempt.tokens < self.output_token_ids.len() || self.attempt.text_bytes < self.text.len() {
            return Err(contradiction("the length of the answer"));
        }
        Ok(std::mem::take(&mut self.carry))
    }

    fn hand_over(&mut self, text: &str, usage: Usage, hand_over: Option<HandOver>) -> Result<(), EngineError> {
        let internal =
            |fact: &str| EngineError::new(ErrorKind::Internal, format!("the prefill worker's hand-over {fact}"));
        let hand_over = hand_over.ok_or_else(|| internal("is missing"))?;
        if hand_over.seed != self.seed {
            return Err(internal("has another seed than the request"));
        }
        if !hand_over.output_token_ids.starts_with(&self.output_token_ids) {
            return Err(internal("has other tokens than its events"));
        }
        self.take_text(text)?;
        // Tokens without an event are included. The worker still sends their text.
        self.output_token_ids = hand_over.output_token_ids;
        self.prompt_token_ids = Some(hand_over.prompt_token_ids);
        self.prefill = Some(usage);
        Ok(())
    }

    /// The prompt's counts are the prefill's, because the decode worker's cached tokens come from
    /// the prefill.
    fn usage(&self, last: Usage) -> Usage {
        let prefill = self.prefill.unwrap_or(last);
        Usage {
            prompt_tokens: prefill.prompt_tokens,
            cached_tokens: prefill.cached_tokens,
            completion_tokens: last.completion_tokens,
        }
    }
}

fn contradiction(what: &str) -> EngineError {
    let message = format!("a worker that continued the request disagrees with its predecessor on {what}");
    EngineError::new(ErrorKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::SamplingParams;

    fn progress(split: bool) -> Progress {
        let request = Request {
            id: RequestId(1),
            prompt: Prompt::Text("x".into()),
            sampling: SamplingParams { seed: Some(9), ..SamplingParams::default() },
            phase: Phase::Whole,
            use_pool: true,
            cache_salt: None,
            tenant: None,
            priority: 0,
            label: None,
            continues_in_ms: None,
            retain: None,
            timeout_ms: 1000,
        };
        let mut progress = Progress::new(request, split);
        progress.next_request(RequestId(1), 1000);
        progress
    }

    fn token(token: TokenId, text: &str) -> Event {
        Event::Token { token, text: text.into(), logprobs: None }
    }

    fn hand_over(tokens: &[TokenId], seed: u64) -> Event {
        let output_token_ids = tokens.to_vec();
        Event::Finished {
            reason: FinishReason::HandOver,
            text: String::new(),
            usage: Usage { prompt_tokens: 3, completion_tokens: 1, cached_tokens: 2 },
            hand_over: Some(HandOver {
                prompt_token_ids: vec![1, 2, 3],
                output_token_ids,
                seed,
                ..HandOver::default()
            }),
        }
    }

    #[test]
    fn held_back_text_is_owed_by_the_next_worker() {
        let mut progress = progress(true);
        assert_eq!(progress.accept(token(5, "")), Step::Forward(token(5, "")));
        assert_eq!(progress.accept(hand_over(&[5], 9)), Step::HandedOver);
        let Phase::Decode(given) = progress.next_request(RequestId(2), 1000).phase else { panic!("a decode was due") };
        assert_eq!((given.output_token_ids, given.emitted_bytes, given.cached_tokens), (vec![5], 0, 2));
        assert_eq!(progress.accept(token(6, "first and second")), Step::Forward(token(6, "first and second")));
        let Phase::Decode(given) = progress.next_request(RequestId(3), 1000).phase else { panic!("a decode was due") };
        assert_eq!((given.output_token_ids, given.emitted_bytes), (vec![5, 6], 16));
    }

    #[test]
    fn a_replay_may_break_its_text_elsewhere() {
        let mut progress = progress(false);
        for (id, text) in [(1, "ab"), (2, "cé")] {
            assert_eq!(progress.accept(token(id, text)), Step::Forward(token(id, text)));
        }
        progress.next_request(RequestId(2), 1000);
        assert_eq!(progress.accept(token(1, "a")), Step::Known);
        // A known token with more text than before: the next event carries it to the client.
        assert_eq!(progress.accept(token(2, "bcéd")), Step::Known);
        assert_eq!(progress.accept(token(3, "e")), Step::Forward(token(3, "de")));
    }

    #[test]
    fn contradictions_are_seen_in_tokens_texts_and_lengths() {
        let usage = Usage::default();
        let end = || Event::Finished { reason: FinishReason::Stop, text: String::new(), usage, hand_over: None };
        for replay in [token(2, "ab"), token(1, "xy"), token(1, "abcdX"), end()] {
            let mut progress = progress(false);
            progress.accept(token(1, "ab"));
            progress.accept(token(2, "cde"));
            progress.next_request(RequestId(2), 1000);
            assert!(matches!(progress.accept(replay.clone()), Step::Contradiction(_)), "{replay:?}");
        }
    }

    #[test]
    fn a_hand_over_that_does_not_fit_is_a_failure_of_the_worker() {
        for (tokens, seed) in [(vec![6], 9), (vec![], 9), (vec![5], 8)] {
            let mut progress = progress(true);
            progress.accept(token(5, "a"));
            assert!(matches!(progress.accept(hand_over(&tokens, seed)), Step::Failed(_)), "{tokens:?} {seed}");
            assert!(!progress.is_handed_over());
        }
    }
}
