//! Validation and tokenization of a request before it reaches the engine's thread.
//!
//! Tokenizing a long prompt takes milliseconds and must not delay decoding. So it has its own
//! thread, and requests and aborts pass through that thread in order.

use super::request::Admission;
use crate::model::LoadedModel;
use cenote_base::engine::{ErrorKind, Phase, Prompt};
use cenote_base::{EngineError, EventSink, Request, SamplingParams, TokenId};
use cenote_store::Naming;
use std::hash::{BuildHasher, RandomState};

/// OpenAI allows at most 4 stop texts. This engine needs a bound, but not one that strict.
const MAX_STOPS: usize = 16;
/// Most bytes of a stop text. A longer one would only hold back output.
const MAX_STOP_BYTES: usize = 1024;
/// vLLM's default.
const MAX_LOGPROBS: u32 = 20;
/// Most biased tokens. More would make the request larger than any prompt.
const MAX_BIASES: usize = 1024;

/// Checks all parameters that need no tokenizer.
pub(super) fn check(request: &Request) -> Result<(), EngineError> {
    let sampling = &request.sampling;
    let refuse = |field, message: String| Err(EngineError::invalid(field, message));
    if !(0.0..=2.0).contains(&sampling.temperature) {
        return refuse("temperature", format!("is {}; it must be 0 to 2", sampling.temperature));
    }
    if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
        return refuse("top_p", format!("is {}; it must be above 0 and at most 1", sampling.top_p));
    }
    for (name, penalty) in
        [("frequency_penalty", sampling.frequency_penalty), ("presence_penalty", sampling.presence_penalty)]
    {
        if !(-2.0..=2.0).contains(&penalty) {
            return refuse(name, format!("is {penalty}; it must be -2 to 2"));
        }
    }
    if !(sampling.repetition_penalty > 0.0 && sampling.repetition_penalty.is_finite()) {
        return refuse("repetition_penalty", format!("is {}; it must be above 0", sampling.repetition_penalty));
    }
    if sampling.logit_bias.len() > MAX_BIASES {
        return refuse("logit_bias", format!("has {} tokens; at most {MAX_BIASES}", sampling.logit_bias.len()));
    }
    if let Some((token, bias)) = sampling.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(*bias)) {
        return refuse("logit_bias", format!("is {bias} for token {token}; it must be -100 to 100"));
    }
    if sampling.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
        return refuse("allowed_token_ids", "is empty; at least one token is chosen from".to_owned());
    }
    if sampling.logprobs.is_some_and(|top| top > MAX_LOGPROBS) {
        return refuse("logprobs", format!("is {}; at most {MAX_LOGPROBS}", sampling.logprobs.unwrap_or(0)));
    }
    if sampling.max_tokens == Some(0) {
        return refuse("max_tokens", "is 0; at least one token is generated".to_owned());
    }
    if sampling.stop.len() > MAX_STOPS {
        return refuse("stop", format!("has {} texts; at most {MAX_STOPS} are served", sampling.stop.len()));
    }
    if let Some(stop) = sampling.stop.iter().find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return refuse("stop", format!("has a text of {} bytes; texts have 1 to {MAX_STOP_BYTES}", stop.len()));
    }
    if matches!(request.phase, Phase::Decode(_)) {
        return Ok(());
    }
    match &request.prompt {
        Prompt::Text(text) | Prompt::BareText(text) if text.is_empty() => refuse("prompt", "is empty".to_owned()),
        Prompt::Tokens(tokens) if tokens.is_empty() => refuse("prompt", "is empty".to_owned()),
        Prompt::Chat(chat) if chat.messages.is_empty() => refuse("messages", "is empty".to_owned()),
        _ => Ok(()),
    }
}

/// Tokenizes, checks the token counts, and names the blocks. `naming`: of the store, if there is one. An error is returned with the sink that must receive it.
pub(super) fn admit(
    model: &LoadedModel,
    naming: Option<&Naming>,
    request: Request,
    deadline_ns: u64,
    sink: EventSink,
) -> Result<Admission, (EventSink, EngineError)> {
    let (prompt, output, emitted_bytes, given_seed, cached_tokens, prefill_only) = match request.phase {
        Phase::Decode(from) => {
            let HandOverParts { prompt, output, emitted_bytes, seed, cached_tokens } = from.into();
            (Ok((prompt, "prompt")), output, emitted_bytes, Some(seed), Some(cached_tokens), false)
        }
        phase => (tokenize(model, request.prompt), Vec::new(), 0, request.sampling.seed, None, phase == Phase::Prefill),
    };
    let checked = prompt.and_then(|(prompt, field)| {
        let max_num_tokens = check_lengths(model, &prompt, &output, &request.sampling, field)?;
        Ok((prompt, max_num_tokens))
    });
    let (prompt, max_num_tokens) = match checked {
        Ok(checked) => checked,
        Err(error) => return Err((sink, error)),
    };
    // std seeds its hash maps from the system's random source, which suffices for a sampling seed.
    let seed = given_seed.unwrap_or_else(|| RandomState::new().hash_one(request.id));
    // A tenant's names are of its own namespace. Without one it shares nothing.
    let naming = naming.filter(|_| request.use_pool).and_then(|naming| naming.of(request.tenant));
    let names = naming.map(|naming| {
        let mut names = naming.names(request.cache_salt.as_ref(), &prompt);
        if !output.is_empty() {
            names.extend(&[&prompt[..], &output].concat());
        }
        names
    });
    Ok(Admission {
        id: request.id,
        prompt,
        output,
        emitted_bytes,
        cached_tokens,
        sampling: request.sampling,
        seed,
        prefill_only,
        names,
        fetched_from: None,
        priority: request.priority,
        label: request.label,
        continues_in_ms: request.continues_in_ms,
        retain: request.retain,
        deadline_ns,
        max_num_tokens,
        sink,
    })
}

struct HandOverParts {
    prompt: Vec<TokenId>,
    output: Vec<TokenId>,
    emitted_bytes: u64,
    seed: u64,
    cached_tokens: u32,
}

impl From<cenote_base::engine::HandOver> for HandOverParts {
    fn from(from: cenote_base::engine::HandOver) -> Self {
        Self {
            prompt: from.prompt_token_ids,
            output: from.output_token_ids,
            emitted_bytes: from.emitted_bytes,
            seed: from.seed,
            cached_tokens: from.cached_tokens,
        }
    }
}

/// Tokenizes the prompt. Returns the tokens and the request field to name in errors about them.
fn tokenize(model: &LoadedModel, prompt: Prompt) -> Result<(Vec<TokenId>, &'static str), EngineError> {
    let tokenizer = model.tokenizer();
    match prompt {
        Prompt::Tokens(tokens) => Ok((tokens, "prompt")),
        Prompt::Text(text) => {
            tokenizer.encode(&text).map(|tokens| (tokens, "prompt")).map_err(|why| EngineError::invalid("prompt", why))
        }
        Prompt::BareText(text) => {
            let tokens = tokenizer.encode_rendered(&text);
            tokens.map(|tokens| (tokens, "prompt")).map_err(|why| EngineError::invalid("prompt", why))
        }
        Prompt::Chat(chat) => {
            let invalid = |why: String| EngineError::invalid("messages", why);
            let template = tokenizer.chat().ok_or_else(|| {
                invalid(format!("the model `{}` has no chat template; send a `prompt` instead", model.name()))
            })?;
            let text = template
                .render(&chat)
                .map_err(|why| invalid(format!("the chat template refused the messages: {why}")))?;
            let tokens =
                if chat.add_special_tokens { tokenizer.encode(&text) } else { tokenizer.encode_rendered(&text) };
            tokens.map(|tokens| (tokens, "messages")).map_err(invalid)
        }
    }
}

/// Checks token ids and lengths. Returns the most tokens that the request can reach, prompt
/// included. Errors about the prompt name `field`.
fn check_lengths(
    model: &LoadedModel,
    prompt: &[TokenId],
    output: &[TokenId],
    sampling: &SamplingParams,
    field: &str,
) -> Result<usize, EngineError> {
    let vocab_size = model.llama().config().vocab_size;
    let context = model.max_model_len();
    if prompt.is_empty() {
        return Err(EngineError::invalid(field, "has no token"));
    }
    if let Some(token) = prompt.iter().chain(output).find(|token| **token as usize >= vocab_size) {
        return Err(EngineError::invalid(field, format!("has token {token}; the vocabulary has {vocab_size}")));
    }
    if let Some(token) = sampling.logit_bias.keys().find(|token| **token as usize >= vocab_size) {
        return Err(EngineError::invalid("logit_bias", format!("has token {token}; the vocabulary has {vocab_size}")));
    }
    if let Some(token) = sampling.allowed_token_ids.iter().flatten().find(|token| **token as usize >= vocab_size) {
        let message = format!("has token {token}; the vocabulary has {vocab_size}");
        return Err(EngineError::invalid("allowed_token_ids", message));
    }
    if prompt.len() + 1 > context {
        let message =
            format!("has {} tokens; with one to generate, the context of {context} is too short", prompt.len());
        return Err(EngineError::context_length(field, message));
    }
    let wanted = match sampling.max_tokens {
        None => context,
        Some(max_tokens) => prompt.len().saturating_add(max_tokens as usize),
    };
    if wanted > context {
        let message = format!(
            "is {}; after a prompt of {} tokens the context of {context} has room for {}",
            wanted - prompt.len(),
            prompt.len(),
            context - prompt.len()
        );
        return Err(EngineError::context_length("max_tokens", message));
    }
    if prompt.len() + output.len() > wanted {
        let message = format!("the hand-over has {} output tokens, more than {}", output.len(), wanted - prompt.len());
        return Err(EngineError::new(ErrorKind::InvalidRequest, message));
    }
    Ok(wanted)
}
