//! `/v1/chat/completions`: conversations.

use super::hints::Wishes;
use super::logprobs::LOGPROBS_MAX;
use super::request::{Message, type_name};
use super::{ApiError, Body, Call, Limits, unsupported};
use cenote_base::engine::{ChatEnd, ChatMessage, Conversation, Prompt};
use serde_json::Value;

/// Checks and translates a chat request.
pub(crate) fn chat_call(mut body: Body, limits: &Limits) -> Result<Call, ApiError> {
    body.check_model(limits)?;
    let messages = body.messages.take().ok_or_else(|| ApiError::invalid("messages", "missing"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "an empty conversation has nothing to continue"));
    }
    if !limits.has_chat_template {
        let fact = format!("model `{}` has no chat template; use /v1/completions", limits.model);
        return Err(ApiError::invalid("messages", fact));
    }
    let mut marked = Wishes::default();
    marked.add_messages(&messages)?;
    let turns = messages.into_iter().enumerate().map(|(at, message)| turn(at, message)).collect::<Result<_, _>>()?;
    let logprobs = logprobs(&body)?;
    let conversation = Conversation {
        messages: turns,
        end: end(&body)?,
        add_special_tokens: body.add_special_tokens.unwrap_or(false),
    };
    let mut call = body.call(limits, vec![Prompt::Chat(conversation)])?;
    call.sampling.logprobs = logprobs;
    call.wishes.add_all(&marked);
    Ok(call)
}

/// What follows the last message. As in vLLM, to continue it excludes a new answer.
fn end(body: &Body) -> Result<ChatEnd, ApiError> {
    match (body.continue_final_message.unwrap_or(false), body.add_generation_prompt.unwrap_or(true)) {
        (false, true) => Ok(ChatEnd::Answer),
        (false, false) => Ok(ChatEnd::Turn),
        (true, false) => Ok(ChatEnd::FinalMessage),
        (true, true) => {
            Err(ApiError::invalid("continue_final_message", "only together with add_generation_prompt: false"))
        }
    }
}

/// Number of most likely tokens that the client requested.
fn logprobs(body: &Body) -> Result<Option<u32>, ApiError> {
    let wanted = match &body.logprobs {
        None | Some(Value::Null) => false,
        Some(Value::Bool(wanted)) => *wanted,
        Some(other) => {
            return Err(ApiError::invalid("logprobs", format!("{} instead of a boolean", type_name(other))));
        }
    };
    match body.top_logprobs {
        Some(top) if top > LOGPROBS_MAX => {
            Err(ApiError::invalid("top_logprobs", format!("{top} tokens, at most {LOGPROBS_MAX}")))
        }
        Some(top) if top > 0 && !wanted => Err(ApiError::invalid("top_logprobs", "only together with logprobs: true")),
        top => Ok(wanted.then(|| top.unwrap_or(0))),
    }
}

fn turn(at: usize, message: Message) -> Result<ChatMessage, ApiError> {
    let name = format!("messages[{at}]");
    let role = match message.role.as_str() {
        "system" | "user" | "assistant" | "tool" => message.role,
        // The newer name of `system`; templates know the old one.
        "developer" => "system".to_owned(),
        other => {
            let fact = format!("`{other}` is not system, developer, user, assistant or tool");
            return Err(ApiError::invalid(format!("{name}.role"), fact));
        }
    };
    // The template receives role and content only.
    for field in ["name", "tool_calls", "function_call", "audio", "refusal", "reasoning", "reasoning_content", "prefix"]
    {
        let Some(value) = message.extra.get(field) else { continue };
        let is_nothing = match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if !is_nothing {
            return Err(unsupported::unsupported(format!("{name}.{field}"), value, "; leave it out"));
        }
    }
    Ok(ChatMessage { role, content: content(&format!("{name}.content"), message.content)? })
}

fn content(name: &str, content: Option<Value>) -> Result<String, ApiError> {
    match content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            parts.into_iter().enumerate().map(|(at, value)| part(&format!("{name}[{at}]"), value)).collect()
        }
        None | Some(Value::Null) => Err(ApiError::invalid(name, "missing")),
        Some(other) => Err(ApiError::invalid(name, format!("{} instead of a text or parts", type_name(&other)))),
    }
}

fn part(name: &str, value: Value) -> Result<String, ApiError> {
    let Value::Object(mut fields) = value else {
        return Err(ApiError::invalid(name, format!("{} instead of a part", type_name(&value))));
    };
    match fields.get("type") {
        Some(Value::String(kind)) if kind == "text" => {}
        Some(Value::String(kind)) => {
            let error = ApiError::invalid(format!("{name}.type"), format!("`{kind}` is not supported; only text is"));
            return Err(ApiError { code: Some("unsupported_parameter"), ..error });
        }
        Some(other) => {
            return Err(ApiError::invalid(format!("{name}.type"), format!("{} instead of a text", type_name(other))));
        }
        None => return Err(ApiError::invalid(format!("{name}.type"), "missing")),
    }
    match fields.remove("text") {
        Some(Value::String(text)) => Ok(text),
        Some(other) => {
            Err(ApiError::invalid(format!("{name}.text"), format!("{} instead of a text", type_name(&other))))
        }
        None => Err(ApiError::invalid(format!("{name}.text"), "missing")),
    }
}
