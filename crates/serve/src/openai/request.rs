//! The request body of both generating endpoints, and their common checks.

use super::hints::{RetainField, Wishes};
use super::{ApiError, unsupported, words};
use axum::http::StatusCode;
use cenote_base::engine::{EngineDescription, Prompt};
use cenote_base::{SamplingParams, TokenId};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A request body, as the client wrote it. One type serves both endpoints, because nearly all
/// fields are shared, and nesting would lose the exact paths for error messages.
#[derive(Debug, Deserialize)]
pub struct Body {
    /// Model name.
    pub model: String,
    /// Completions: text, tokens, or an array of either. Left as JSON, so that errors name the
    /// element.
    #[serde(default)]
    pub prompt: Option<Value>,
    /// Chat: the conversation.
    #[serde(default)]
    pub messages: Option<Vec<Message>>,
    /// Most tokens to generate.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The newer name of `max_tokens`.
    #[serde(default)]
    pub max_completion_tokens: Option<u32>,
    /// 0 to 2.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// In (0, 1].
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Extension (vLLM): 0 or -1 keeps all.
    #[serde(default)]
    pub top_k: Option<i64>,
    /// -2 to 2.
    #[serde(default)]
    pub frequency_penalty: Option<f64>,
    /// -2 to 2.
    #[serde(default)]
    pub presence_penalty: Option<f64>,
    /// Extension (vLLM): above 0; 1 changes nothing.
    #[serde(default)]
    pub repetition_penalty: Option<f64>,
    /// By token id, written as text: -100 to 100.
    #[serde(default)]
    pub logit_bias: Option<Map<String, Value>>,
    /// Completions: a number of most likely tokens. Chat: whether to return log-probabilities.
    #[serde(default)]
    pub logprobs: Option<Value>,
    /// Chat: a number of most likely tokens.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// Choices per prompt.
    #[serde(default)]
    pub n: Option<u32>,
    /// Seed.
    #[serde(default)]
    pub seed: Option<i64>,
    /// Text or up to four texts.
    #[serde(default)]
    pub stop: Option<Value>,
    /// Server-sent events instead of one answer.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Options of the stream.
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// Extension (vLLM): continue after the end-of-sequence token.
    #[serde(default)]
    pub ignore_eos: Option<bool>,
    /// Extension: `false` keeps this request's KV out of the shared region.
    #[serde(default)]
    pub use_pool: Option<bool>,
    /// Extension (vLLM): share KV only with requests that have the same salt.
    #[serde(default)]
    pub cache_salt: Option<String>,
    /// Extension: hints that change no result.
    #[serde(default)]
    pub cenote: Option<Hints>,
    /// Extension (vLLM): the only tokens that may be chosen.
    #[serde(default)]
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Extension (vLLM): whether the tokenizer adds special tokens to a text. Completions: true if missing.
    /// Chat: false, because the template writes them.
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Chat, extension (vLLM): whether the prompt ends with the beginning of an answer; true if missing.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Chat, extension (vLLM): leave the last message open and continue it.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// All other fields, checked for those that must not be ignored.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a client knows about its next request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hints {
    /// Milliseconds from the end of this request until the conversation's next turn.
    #[serde(default)]
    pub continues_in_ms: Option<u64>,
    /// Keep this request's KV.
    #[serde(default)]
    pub retain: Option<RetainField>,
}

/// One turn of a conversation, as the client wrote it.
#[derive(Debug, Deserialize)]
pub struct Message {
    /// Role of the speaker.
    pub role: String,
    /// Text or an array of text parts.
    #[serde(default)]
    pub content: Option<Value>,
    /// All other fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Options of a stream.
#[derive(Debug, Deserialize)]
pub struct StreamOptions {
    /// Send a last chunk with token counts.
    #[serde(default)]
    pub include_usage: Option<bool>,
    /// Token counts in each chunk (vLLM). Not supported.
    #[serde(default)]
    pub continuous_usage_stats: Option<bool>,
}

/// A parsed request: what to ask of the engine and how to answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Prompts to continue.
    pub prompts: Vec<Prompt>,
    /// Choices per prompt, at least one.
    pub choices: usize,
    /// Sampling settings.
    pub sampling: SamplingParams,
    /// Answer as a stream.
    pub stream: bool,
    /// Send token counts at the end of the stream.
    pub include_usage: bool,
    /// Whether KV may be shared.
    pub use_pool: bool,
    /// The request's salt, not empty.
    pub cache_salt: Option<String>,
    /// Milliseconds until the conversation's next turn, if the client announced it.
    pub continues_in_ms: Option<u64>,
    /// What the client asks to keep.
    pub wishes: Wishes,
    /// The field in which the client wrote `max_tokens`, for errors about it.
    pub max_tokens_field: &'static str,
}

/// Limits of the served model.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Model name.
    pub model: String,
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Whether conversations can be rendered.
    pub has_chat_template: bool,
    /// Most prompts of one completions request.
    pub prompts_max: usize,
}

impl Limits {
    /// The limits of this engine.
    #[must_use]
    pub fn of(description: &EngineDescription, prompts_max: usize) -> Self {
        Self {
            model: description.model.clone(),
            max_model_len: description.max_model_len,
            has_chat_template: description.has_chat_template,
            prompts_max,
        }
    }
}

impl Body {
    /// Parses a body; the error names the field.
    ///
    /// # Errors
    /// Not JSON, or a field is missing or of the wrong type.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let body = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let cause = error.into_inner();
            if !cause.is_data() {
                return ApiError::malformed(format!("the body is not valid JSON: {cause}"));
            }
            let cause = cause.to_string();
            let fact = words::fact(&cause);
            match (path.as_str(), words::named_field(&cause)) {
                (".", None) => ApiError::malformed(format!("the body is not a request: {fact}")),
                (".", Some(field)) => ApiError::invalid(field, &fact),
                (path, None) => ApiError::invalid(path, &fact),
                // A repeated field ends its own path; a missing one has none.
                (path, Some(field)) if path.rsplit('.').next() == Some(field) => ApiError::invalid(path, &fact),
                (path, Some(field)) => ApiError::invalid(format!("{path}.{field}"), &fact),
            }
        })?;
        json.end().map_err(|error| ApiError::malformed(format!("the body is not valid JSON: {error}")))?;
        Ok(body)
    }

    /// Checks that the request names the served model.
    pub(super) fn check_model(&self, limits: &Limits) -> Result<(), ApiError> {
        if self.model == limits.model { Ok(()) } else { Err(unknown_model(&self.model, &limits.model)) }
    }

    /// Everything but the prompts, checked and translated.
    pub(super) fn call(self, limits: &Limits, prompts: Vec<Prompt>) -> Result<Call, ApiError> {
        unsupported::refuse(&self.extra)?;
        let stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !stream {
            return Err(ApiError::invalid("stream_options", "only allowed together with stream: true"));
        }
        if self.stream_options.as_ref().and_then(|options| options.continuous_usage_stats) == Some(true) {
            let field = "stream_options.continuous_usage_stats";
            return Err(unsupported::unsupported(field, &Value::Bool(true), "; leave it out or send false"));
        }
        if self.cache_salt.as_deref() == Some("") {
            return Err(ApiError::invalid(
                "cache_salt",
                "an empty text; leave it out to share with requests without one",
            ));
        }
        let choices = self.choices(limits, prompts.len())?;
        let wishes = Wishes::of(&self)?;
        let sampling = self.sampling(limits)?;
        let (max_tokens_field, _) = self.max_tokens_as_written();
        Ok(Call {
            prompts,
            choices,
            sampling,
            stream,
            include_usage: self.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            use_pool: self.use_pool.unwrap_or(true),
            cache_salt: self.cache_salt,
            continues_in_ms: self.cenote.and_then(|hints| hints.continues_in_ms),
            wishes,
            max_tokens_field,
        })
    }

    /// Choices per prompt. All choices together have the limit of prompts.
    fn choices(&self, limits: &Limits, prompts: usize) -> Result<usize, ApiError> {
        let most = limits.prompts_max / prompts.max(1);
        match self.n.unwrap_or(1) as usize {
            0 => Err(ApiError::invalid("n", "0 choices; at least 1")),
            n if n > most => Err(ApiError::invalid("n", format!("{n} choices for each prompt, at most {most} here"))),
            n => Ok(n),
        }
    }

    /// A penalty within OpenAI's range.
    fn penalty(name: &str, value: Option<f64>) -> Result<f32, ApiError> {
        let value = value.unwrap_or(0.0);
        if (-2.0..=2.0).contains(&value) {
            return Ok(value as f32);
        }
        Err(ApiError::invalid(name, format!("{value} is not in -2..=2")))
    }

    fn logit_bias(&self) -> Result<BTreeMap<TokenId, f32>, ApiError> {
        let given = self.logit_bias.iter().flatten();
        let each = given.map(|(token, bias)| {
            let name = || format!("logit_bias[{token}]");
            let id: TokenId = token.parse().map_err(|_| ApiError::invalid(name(), "the key is not a token id"))?;
            match bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)) {
                Some(bias) => Ok((id, bias as f32)),
                None => Err(ApiError::invalid(name(), format!("{bias} is not a number in -100..=100"))),
            }
        });
        each.collect()
    }

    fn allowed_tokens(&self) -> Result<Option<Vec<TokenId>>, ApiError> {
        let Some(mut allowed) = self.allowed_token_ids.clone() else { return Ok(None) };
        if allowed.is_empty() {
            return Err(ApiError::invalid("allowed_token_ids", "an empty array leaves nothing to choose"));
        }
        allowed.sort_unstable();
        allowed.dedup();
        Ok(Some(allowed))
    }

    fn sampling(&self, limits: &Limits) -> Result<SamplingParams, ApiError> {
        let defaults = SamplingParams::default();
        let temperature = self.temperature.map_or(defaults.temperature, |value| value as f32);
        if !(0.0..=2.0).contains(&temperature) {
            return Err(ApiError::invalid("temperature", format!("{temperature} is not in 0..=2")));
        }
        let top_p = self.top_p.map_or(defaults.top_p, |value| value as f32);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(ApiError::invalid("top_p", format!("{top_p} is not in (0, 1]")));
        }
        let top_k = match self.top_k.unwrap_or(0) {
            -1 => 0,
            value => u32::try_from(value)
                .map_err(|_| ApiError::invalid("top_k", format!("{value} is not a count of tokens, 0 or -1")))?,
        };
        let repetition_penalty = self.repetition_penalty.unwrap_or(1.0) as f32;
        if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
            return Err(ApiError::invalid("repetition_penalty", format!("{repetition_penalty} is not above 0")));
        }
        Ok(SamplingParams {
            frequency_penalty: Self::penalty("frequency_penalty", self.frequency_penalty)?,
            presence_penalty: Self::penalty("presence_penalty", self.presence_penalty)?,
            repetition_penalty,
            logit_bias: self.logit_bias()?,
            allowed_token_ids: self.allowed_tokens()?,
            logprobs: None,
            temperature,
            top_p,
            top_k,
            // Clients write seeds as signed numbers; only the bits matter.
            seed: self.seed.map(i64::cast_unsigned),
            stop: self.stop_texts()?,
            max_tokens: self.max_tokens(limits)?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
        })
    }

    /// The newer name wins.
    const fn max_tokens_as_written(&self) -> (&'static str, Option<u32>) {
        match self.max_completion_tokens {
            Some(value) => ("max_completion_tokens", Some(value)),
            None => ("max_tokens", self.max_tokens),
        }
    }

    fn max_tokens(&self, limits: &Limits) -> Result<Option<u32>, ApiError> {
        let (field, value) = self.max_tokens_as_written();
        let Some(value) = value else { return Ok(None) };
        if value == 0 {
            return Err(ApiError::invalid(field, "0 tokens cannot be generated; at least 1"));
        }
        if value > limits.max_model_len {
            let fact = format!("{value} is beyond this model's context of {} tokens", limits.max_model_len);
            return Err(ApiError::context_length(field, &fact));
        }
        Ok(Some(value))
    }

    fn stop_texts(&self) -> Result<Vec<String>, ApiError> {
        /// OpenAI's limit.
        const STOPS_MAX: usize = 4;
        let texts = match &self.stop {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::String(text)) => vec![("stop".to_owned(), text.clone())],
            Some(Value::Array(items)) if items.len() > STOPS_MAX => {
                return Err(ApiError::invalid("stop", format!("{} texts, at most {STOPS_MAX}", items.len())));
            }
            Some(Value::Array(items)) => {
                let named = items.iter().enumerate().map(|(at, item)| (format!("stop[{at}]"), item));
                named
                    .map(|(name, item)| match item {
                        Value::String(text) => Ok((name, text.clone())),
                        other => Err(ApiError::invalid(name, format!("{} instead of a text", type_name(other)))),
                    })
                    .collect::<Result<_, _>>()?
            }
            Some(other) => {
                return Err(ApiError::invalid("stop", format!("{} instead of a text or texts", type_name(other))));
            }
        };
        match texts.iter().find(|(_, text)| text.is_empty()) {
            Some((name, _)) => Err(ApiError::invalid(name.as_str(), "an empty text would stop everything")),
            None => Ok(texts.into_iter().map(|(_, text)| text).collect()),
        }
    }
}

/// 404: another model is served.
pub(crate) fn unknown_model(asked: &str, served: &str) -> ApiError {
    let message = format!("model: `{asked}` does not exist here; this server has `{served}`");
    ApiError {
        param: Some("model".to_owned()),
        code: Some("model_not_found"),
        ..ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }
}

/// A JSON value's type, in the client's words.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
