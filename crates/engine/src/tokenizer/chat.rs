//! Chat templates: Jinja with the settings and extensions of Hugging Face.
//!
//! A template is untrusted input. Its instructions are counted, and `bounds` counts the bytes that they
//! read and write, so every render ends soon and in bounded memory.

mod bounds;
mod python;
mod rewrite;

use crate::error::{LoadError, read};
use cenote_base::Clock;
use cenote_base::engine::{ChatEnd, ChatMessage, Conversation};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Deserialize;
use std::path::Path;

/// A parsed template with the special tokens that it may print.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// `chat_template` of `tokenizer_config.json`: one template, or several named ones.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Source {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
pub(super) struct Named {
    name: String,
    template: String,
}

const NAME: &str = "chat_template";
/// Most characters of a template's own error that a client receives.
const ERROR_CHARS_MAX: usize = 4096;

impl ChatTemplate {
    /// Loads `chat_template.jinja` or, without that file, the template of `tokenizer_config.json`.
    pub(super) fn load(
        dir: &Path,
        source: Option<Source>,
        bos_token: String,
        eos_token: String,
        clock: Clock,
    ) -> Result<Option<Self>, LoadError> {
        let file = dir.join("chat_template.jinja");
        let (path, text) = if file.exists() {
            (file.clone(), read(&file)?)
        } else {
            let path = dir.join("tokenizer_config.json");
            match source {
                None => return Ok(None),
                Some(Source::One(text)) => (path, text),
                Some(Source::Named(mut list)) => {
                    let at = list.iter().position(|named| named.name == "default");
                    match at.or_else(|| (list.len() == 1).then_some(0)) {
                        Some(at) => (path, list.swap_remove(at).template),
                        None => {
                            let fact = "`chat_template` has several templates, none of them named `default`";
                            return Err(LoadError::invalid(&path, fact));
                        }
                    }
                }
            }
        };
        let invalid = |error: &Error| LoadError::invalid(&path, format!("the chat template cannot be parsed: {error}"));
        Self::new(&text, bos_token, eos_token, clock).map(Some).map_err(|error| invalid(&error))
    }

    fn new(text: &str, bos_token: String, eos_token: String, clock: Clock) -> Result<Self, Error> {
        // The settings of transformers' Jinja environment. The rewritten template needs none.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        let mut environment = Environment::new();
        bounds::install(&mut environment);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| python::strftime(&format, clock.unix()));
        environment.set_fuel(Some(bounds::FUEL));
        environment.add_template_owned(NAME, rewrite::bounded(&without_generation_tags(text), &syntax)?)?;
        Ok(Self { environment, bos_token, eos_token })
    }

    /// Renders a conversation to a prompt.
    ///
    /// # Errors
    /// The template raised an exception, failed or made more than its bounds allow; or the final message
    /// is not in the prompt that it should end. The text gives the reason.
    pub fn render(&self, conversation: &Conversation) -> Result<String, String> {
        let one =
            |message: &ChatMessage| context! { role => message.role.as_str(), content => message.content.as_str() };
        let messages: Vec<Value> = conversation.messages.iter().map(one).collect();
        let bytes = conversation.messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        let rendered = bounds::budgeted(bytes, || {
            self.environment.get_template(NAME)?.render(context! {
                messages,
                bos_token => self.bos_token.as_str(),
                eos_token => self.eos_token.as_str(),
                add_generation_prompt => conversation.end == ChatEnd::Answer,
                tools => (),
                documents => (),
            })
        });
        let rendered = rendered.map_err(|error| {
            let text = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            text.chars().take(ERROR_CHARS_MAX).collect::<String>()
        })?;
        match (conversation.end, conversation.messages.last()) {
            (ChatEnd::FinalMessage, Some(last)) => open_ended(rendered, &last.content),
            _ => Ok(rendered),
        }
    }
}

/// The prompt up to the end of its final message, so that the model continues it (transformers'
/// `continue_final_message`). If the template has trimmed the message, so is the prompt's end.
fn open_ended(mut rendered: String, message: &str) -> Result<String, String> {
    let at = rendered.rfind(message.trim()).ok_or("its text does not contain the final message to continue")?;
    let kept = message.trim_start();
    let length = if rendered[at..].starts_with(kept) { kept.len() } else { message.trim().len() };
    rendered.truncate(at + length);
    Ok(rendered)
}

/// Removes the tags by which transformers marks assistant text for training. They do not affect
/// rendering.
fn without_generation_tags(text: &str) -> String {
    let mut text = text.to_owned();
    for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
        text = text.replace(&format!("{open} generation {close}"), &format!("{open} if true {close}"));
        text = text.replace(&format!("{open} endgeneration {close}"), &format!("{open} endif {close}"));
    }
    text
}

#[cfg(test)]
mod tests;
