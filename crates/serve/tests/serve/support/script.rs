//! A language model that is a pure function: token `n` depends on the prompt, the seed and `n`.
//!
//! It has the awkward properties of real ones: it holds text back, ends at stop texts that span
//! tokens, ends by itself, and its words have characters of several bytes.

use cenote_base::engine::{EngineError, Event, FinishReason, HandOver, Phase, Prompt, Request, Usage};
use cenote_base::{SamplingParams, TokenId, prng::Prng};

pub const MODEL: &str = "fake/model-1";
pub const MAX_MODEL_LEN: u32 = 256;
/// Ends the text; writes nothing.
const END: TokenId = 0;
/// Each has at least four characters, more than are ever held back, so text never shrinks.
const WORDS: &[&str] =
    &[" well", " über", " naïve", " 水の下で", " cave", " drip", "…drop", " stone", " échos", "-deep"];

pub fn tokenize(prompt: &Prompt) -> Vec<TokenId> {
    match prompt {
        Prompt::Tokens(ids) => ids.clone(),
        Prompt::Text(text) | Prompt::BareText(text) => text.bytes().map(TokenId::from).collect(),
        Prompt::Chat(chat) => chat
            .messages
            .iter()
            .flat_map(|turn| format!("<{}>{}\n", turn.role, turn.content).into_bytes())
            .map(TokenId::from)
            .collect(),
    }
}

fn token(prompt: &[TokenId], seed: u64, position: usize) -> TokenId {
    let prompt = prompt.iter().fold(seed, |sum, id| sum.wrapping_mul(31).wrapping_add(u64::from(*id)));
    Prng::at(prompt, position as u64).below(90) as TokenId
}

fn text(tokens: &[TokenId]) -> String {
    tokens.iter().filter(|id| **id != END).map(|id| WORDS[*id as usize % WORDS.len()]).collect()
}

/// The token at which these tokens end the request, if any.
fn end(tokens: &[TokenId], sampling: &SamplingParams, most: usize) -> Option<FinishReason> {
    let text = text(tokens);
    if sampling.stop.iter().any(|stop| text.contains(stop.as_str())) {
        return Some(FinishReason::Stop);
    }
    if tokens.last() == Some(&END) && !sampling.ignore_eos {
        return Some(FinishReason::Stop);
    }
    (tokens.len() >= most).then_some(FinishReason::Length)
}

/// Text that is certain after these tokens.
fn certain(tokens: &[TokenId], sampling: &SamplingParams, ended: bool) -> String {
    let mut text = text(tokens);
    if let Some(at) = sampling.stop.iter().filter_map(|stop| text.find(stop.as_str())).min() {
        text.truncate(at);
    } else if !ended {
        // As if the last few characters could still change, and as if every stop text were about to
        // follow.
        let held = tokens.last().map_or(0, |id| *id as usize % 4);
        let longest_stop = sampling.stop.iter().map(|stop| stop.chars().count() - 1).max().unwrap_or(0);
        for _ in 0..held.max(longest_stop) {
            text.pop();
        }
    }
    text
}

/// All events of an engine for `request`. `cached` is the number of the prompt's tokens in the
/// pool.
pub fn events(request: &Request, cached: impl Fn(&[TokenId]) -> u32) -> Vec<Event> {
    let (prompt, mut tokens, mut emitted, seed, found) = match &request.phase {
        Phase::Decode(given) => (
            given.prompt_token_ids.clone(),
            given.output_token_ids.clone(),
            given.emitted_bytes as usize,
            given.seed,
            given.cached_tokens,
        ),
        Phase::Whole | Phase::Prefill => {
            let prompt = tokenize(&request.prompt);
            let found = if request.use_pool { cached(&prompt) } else { 0 };
            (prompt, Vec::new(), 0, request.sampling.seed.unwrap_or(7), found)
        }
    };
    if prompt.len() >= MAX_MODEL_LEN as usize {
        let message = format!("{} tokens, the context has {MAX_MODEL_LEN}", prompt.len());
        return vec![Event::Failed(EngineError::context_length("prompt", message))];
    }
    let room = MAX_MODEL_LEN as usize - prompt.len();
    let most = request.sampling.max_tokens.map_or(room, |most| most as usize);
    if most > room {
        let message = format!("{most}, but prompt and output share {MAX_MODEL_LEN} tokens");
        return vec![Event::Failed(EngineError::context_length("max_tokens", message))];
    }
    let usage = |tokens: &[TokenId]| Usage {
        prompt_tokens: prompt.len() as u32,
        completion_tokens: tokens.len() as u32,
        cached_tokens: found,
    };
    let mut events = Vec::new();
    loop {
        if !tokens.is_empty()
            && let Some(reason) = end(&tokens, &request.sampling, most)
        {
            let text = certain(&tokens, &request.sampling, true)[emitted..].to_owned();
            events.push(Event::Finished { reason, text, usage: usage(&tokens), hand_over: None });
            return events;
        }
        if !tokens.is_empty() && request.phase == Phase::Prefill {
            let hand_over = HandOver {
                prompt_token_ids: prompt.clone(),
                output_token_ids: tokens.clone(),
                emitted_bytes: emitted as u64,
                seed,
                cached_tokens: found,
            };
            events.push(Event::Finished {
                reason: FinishReason::HandOver,
                text: String::new(),
                usage: usage(&tokens),
                hand_over: Some(hand_over),
            });
            return events;
        }
        tokens.push(token(&prompt, seed, tokens.len()));
        // Text that a stop text may cut off is certain only when the request has ended.
        let ended = end(&tokens, &request.sampling, most).is_some();
        let new = if ended { String::new() } else { certain(&tokens, &request.sampling, false).split_off_at(emitted) };
        emitted += new.len();
        events.push(Event::Token { token: tokens[tokens.len() - 1], text: new, logprobs: None });
    }
}

trait SplitOffAt {
    fn split_off_at(self, at: usize) -> String;
}

impl SplitOffAt for String {
    /// The end of the text from `at` on; empty if the text is shorter, because more was held back.
    fn split_off_at(self, at: usize) -> String {
        self.get(at..).unwrap_or_default().to_owned()
    }
}

/// The text and the reason of an undisturbed answer.
pub fn answer(prompt: &Prompt, sampling: &SamplingParams) -> (String, FinishReason, Usage) {
    let request = Request {
        id: cenote_base::RequestId(0),
        prompt: prompt.clone(),
        sampling: sampling.clone(),
        phase: Phase::Whole,
        use_pool: false,
        cache_salt: None,
        tenant: None,
        priority: 0,
        label: None,
        continues_in_ms: None,
        retain: None,
        timeout_ms: 1000,
    };
    let mut whole = String::new();
    for event in events(&request, |_| 0) {
        match event {
            Event::Token { text, .. } => whole.push_str(&text),
            Event::Finished { reason, text, usage, .. } => return (whole + &text, reason, usage),
            Event::Failed(error) => panic!("the script fails: {error}"),
        }
    }
    panic!("the script has no end")
}
