//! Chat templates: Jinja with the settings and extensions of Hugging Face.

use crate::error::{LoadError, read};
use cenote_base::Clock;
use cenote_base::engine::ChatMessage;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

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
        let mut environment = Environment::new();
        // The settings of transformers' Jinja environment.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |format: String| strftime(&format, clock.unix()));
        // A template is untrusted input: fuel bounds its run time.
        environment.set_fuel(Some(50_000_000));
        environment.add_template_owned(NAME, without_generation_tags(text))?;
        Ok(Self { environment, bos_token, eos_token })
    }

    /// Renders the messages to a prompt that ends where the assistant's answer begins.
    ///
    /// # Errors
    /// The template raised an exception or failed; the text gives the reason.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, String> {
        let one =
            |message: &ChatMessage| context! { role => message.role.as_str(), content => message.content.as_str() };
        let messages: Vec<Value> = messages.iter().map(one).collect();
        let rendered = self.environment.get_template(NAME).and_then(|template| {
            template.render(context! {
                messages,
                bos_token => self.bos_token.as_str(),
                eos_token => self.eos_token.as_str(),
                add_generation_prompt => true,
                tools => (),
                documents => (),
            })
        });
        rendered.map_err(|error| match error.detail() {
            Some(detail) => detail.to_owned(),
            None => error.to_string(),
        })
    }
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

/// Formats a time since 1970 with the `strftime` directives that chat templates use, in UTC. Other
/// directives stay unchanged.
fn strftime(format: &str, since_1970: Duration) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let seconds = since_1970.as_secs();
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // Days since 1 March of year 0, then eras of 400 years
    // (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('b') => out += &month_name[..3],
            Some('B') => out += month_name,
            Some('a') => out += &day_name[..3],
            Some('A') => out += day_name,
            Some('H') => out += &format!("{hour:02}"),
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.to_owned(), content: content.to_owned() }
    }

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate::new(text, "<s>".to_owned(), "</s>".to_owned(), Clock::stopped()).unwrap()
    }

    #[test]
    fn templates_access_messages_tokens_and_python_methods() {
        let chat = template(
            "{{ bos_token }}{% for m in messages %}\n  {% if m.content.startswith('x') %}\n!{% endif %}\n\
             {{ m['role'].upper() + ': ' + m.content.strip() }}{{ eos_token }}\n{% endfor %}\n\
             {% if add_generation_prompt and not tools %}A:{% endif %}",
        );
        let rendered = chat.render(&[message("user", " hi "), message("assistant", "x")]).unwrap();
        assert_eq!(rendered, "<s>USER: hi</s>\n!ASSISTANT: x</s>\nA:");
    }

    #[test]
    fn a_template_may_refuse_messages() {
        let chat = template("{{ raise_exception('roles must alternate') }}");
        assert_eq!(chat.render(&[message("user", "hi")]).unwrap_err(), "roles must alternate");
        assert!(ChatTemplate::new("{% if %}", String::new(), String::new(), Clock::stopped()).is_err());
    }

    #[test]
    fn fuel_stops_an_endless_template() {
        let chat = template("{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}");
        assert!(chat.render(&[]).is_err());
    }

    #[test]
    fn generation_tags_do_not_affect_rendering() {
        let chat = template("a {%- generation -%} b {%- endgeneration %} c");
        assert_eq!(chat.render(&[]).unwrap(), "ab c");
    }

    #[test]
    fn strftime_formats_dates_in_utc() {
        let at = |seconds: u64, format: &str| strftime(format, Duration::from_secs(seconds));
        assert_eq!(at(0, "%A %d %B %Y %H:%M:%S"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(at(951_782_400, "%a, %d %b %y"), "Tue, 29 Feb 00");
        assert_eq!(at(1_767_225_599, "%Y-%m-%d 100%% %q %"), "2025-12-31 100% %q %");
    }

    #[test]
    fn a_template_reads_the_date_of_its_clock() {
        let time = cenote_base::testing::ManualTime::start();
        let text = "{{ strftime_now('%d %b %Y') }}";
        let chat = ChatTemplate::new(text, String::new(), String::new(), time.clock()).unwrap();
        let date = |clock: Clock| strftime("%d %b %Y", clock.unix());
        let today = date(time.clock());
        assert_eq!(chat.render(&[]).unwrap(), today);
        time.advance(Duration::from_secs(86_400));
        assert_ne!(date(time.clock()), today);
        assert_eq!(chat.render(&[]).unwrap(), date(time.clock()));
    }

    #[test]
    fn several_templates_need_a_default() {
        let dir = tempfile::tempdir().unwrap();
        let load = |json: &str| {
            let source: Source = serde_json::from_str(json).unwrap();
            ChatTemplate::load(dir.path(), Some(source), String::new(), String::new(), Clock::stopped())
        };
        let two = r#"[{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]"#;
        assert_eq!(load(two).unwrap().unwrap().render(&[]).unwrap(), "d");
        assert!(load(r#"[{"name": "a", "template": "a"}, {"name": "b", "template": "b"}]"#).is_err());
        std::fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
        assert_eq!(load(two).unwrap().unwrap().render(&[]).unwrap(), "file");
    }
}
