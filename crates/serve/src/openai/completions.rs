//! `/v1/completions`: the prompt's four forms.

use super::logprobs::LOGPROBS_MAX;
use super::request::type_name;
use super::{ApiError, Body, Call, Limits};
use cenote_base::TokenId;
use cenote_base::engine::Prompt;
use serde_json::Value;

/// OpenAI's default of this endpoint.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// Checks and translates a completions request.
pub(crate) fn completions_call(mut body: Body, limits: &Limits) -> Result<Call, ApiError> {
    body.check_model(limits)?;
    let mut prompts = prompts(body.prompt.take(), limits)?;
    if body.add_special_tokens == Some(false) {
        prompts = prompts.into_iter().map(bare).collect();
    }
    let logprobs = logprobs(&body)?;
    let mut call = body.call(limits, prompts)?;
    call.sampling.logprobs = logprobs;
    call.sampling.max_tokens.get_or_insert(MAX_TOKENS_DEFAULT);
    Ok(call)
}

/// The prompt without special tokens. Tokens are used as they are in any case.
fn bare(prompt: Prompt) -> Prompt {
    match prompt {
        Prompt::Text(text) => Prompt::BareText(text),
        other => other,
    }
}

/// Number of most likely tokens that the client requested.
fn logprobs(body: &Body) -> Result<Option<u32>, ApiError> {
    if body.top_logprobs.is_some_and(|top| top > 0) {
        return Err(ApiError::invalid("top_logprobs", "is of chat completions; here logprobs is a number"));
    }
    let Some(value) = body.logprobs.as_ref().filter(|value| !value.is_null()) else { return Ok(None) };
    let top = value.as_u64().and_then(|top| u32::try_from(top).ok()).filter(|top| *top <= LOGPROBS_MAX);
    let fact = || format!("{value} is not a number of tokens in 0..={LOGPROBS_MAX}");
    top.map(Some).ok_or_else(|| ApiError::invalid("logprobs", fact()))
}

fn prompts(prompt: Option<Value>, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    match prompt {
        None | Some(Value::Null) => Err(ApiError::invalid("prompt", "missing")),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) => match items.first() {
            None => Err(ApiError::invalid("prompt", "an empty array has nothing to continue")),
            Some(Value::Number(_)) => Ok(vec![Prompt::Tokens(tokens("prompt", &items, limits)?)]),
            Some(Value::String(_) | Value::Array(_)) => several(items, limits),
            Some(other) => Err(not_a_prompt("prompt[0]", other)),
        },
        Some(other) => Err(not_a_prompt("prompt", &other)),
    }
}

fn several(items: Vec<Value>, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    if items.len() > limits.prompts_max {
        let fact = format!("{} prompts, at most {} in one request", items.len(), limits.prompts_max);
        return Err(ApiError::invalid("prompt", fact));
    }
    let each = items.into_iter().enumerate().map(|(at, item)| {
        let name = format!("prompt[{at}]");
        match item {
            Value::String(text) => Ok(Prompt::Text(text)),
            Value::Array(ids) if ids.is_empty() => Err(ApiError::invalid(name, "an empty array of tokens")),
            Value::Array(ids) => tokens(&name, &ids, limits).map(Prompt::Tokens),
            other => Err(not_a_prompt(&name, &other)),
        }
    });
    each.collect()
}

fn tokens(name: &str, items: &[Value], limits: &Limits) -> Result<Vec<TokenId>, ApiError> {
    // One more token must fit. Texts are measured by the engine, which alone can tokenize them.
    if items.len() >= limits.max_model_len as usize {
        let fact = format!("{} tokens, but prompt and output share {} tokens", items.len(), limits.max_model_len);
        return Err(ApiError::context_length(name, &fact));
    }
    let each = items.iter().enumerate().map(|(at, item)| {
        item.as_u64().and_then(|id| TokenId::try_from(id).ok()).ok_or_else(|| {
            let shown = if item.is_number() { item.to_string() } else { type_name(item).to_owned() };
            ApiError::invalid(format!("{name}[{at}]"), format!("{shown} is not a token id"))
        })
    });
    each.collect()
}

fn not_a_prompt(name: &str, value: &Value) -> ApiError {
    let fact =
        format!("{} instead of a text, an array of texts, tokens, or an array of token arrays", type_name(value));
    ApiError::invalid(name, fact)
}
