//! The clients of a soak. They ask for documents with ends of their own, as tenants, and compare each answer
//! with the one that the same prompt gets without the region.

use super::engines::Place;
use super::tally::Tally;
use crate::commands::client::{StreamError, stream};
use cenote_base::prng::Prng;
use cenote_console::failure::Failure;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Documents of a model. Of the first ones there are the most requests.
const DOCUMENTS: u64 = 40;
/// Ends of a document.
const ENDS: u64 = 3;
/// A request's `cache_salt`.
pub const SALTS: [Option<&str>; 3] = [None, Some("red"), Some("blue")];
const DOCUMENT_TOKENS: Range<u64> = 192..640;
const END_TOKENS: Range<u64> = 1..32;
/// Token numbers that all models have.
const TOKENS: Range<u64> = 10..4000;
const MAX_TOKENS: u64 = 6;
/// Between a client's answer and its next request.
const PAUSE_MS: Range<u64> = 20..120;
/// Before the next request to a front without workers.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// A request without an answer for so long hangs.
const HANG: Duration = Duration::from_secs(120);

fn within(prng: &mut Prng, range: Range<u64>) -> u64 {
    range.start + prng.below(range.end - range.start)
}

/// Which prompt: a document and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prompt {
    document: u64,
    end: u64,
}

impl Prompt {
    /// Small numbers are drawn more often, as some documents are asked for more often.
    pub fn draw(prng: &mut Prng) -> Self {
        let document = prng.below(DOCUMENTS).min(prng.below(DOCUMENTS));
        Self { document, end: prng.below(ENDS) }
    }

    /// Its tokens, the same in all calls with this seed.
    pub fn tokens(self, seed: u64) -> Vec<u64> {
        let piece = |number: u64, length: Range<u64>| {
            let mut prng = Prng::at(seed, number);
            let length = within(&mut prng, length);
            (0..length).map(move |_| within(&mut prng, TOKENS)).collect::<Vec<_>>()
        };
        let mut tokens = piece(1000 + self.document, DOCUMENT_TOKENS);
        tokens.extend(piece(1_000_000 + self.document * ENDS + self.end, END_TOKENS));
        tokens
    }
}

/// Answers without the region, by model.
pub type References = Arc<Mutex<HashMap<(String, Prompt), String>>>;

/// One client of an engine.
pub struct Client {
    pub engine: &'static str,
    pub model: String,
    /// Whether kills end its requests.
    pub dies: bool,
    pub seed: u64,
    pub prng: Prng,
    pub place: watch::Receiver<Place>,
    pub references: References,
    pub tally: Arc<Tally>,
    pub stop: watch::Receiver<bool>,
}

struct Answer {
    text: String,
    first_ms: f64,
    prompt_tokens: u64,
    cached_tokens: u64,
}

impl Client {
    /// Asks until it shall stop.
    pub async fn run(mut self) -> Result<(), Failure> {
        let http = reqwest::Client::builder().timeout(HANG).no_proxy().build()?;
        let mut stop = self.stop.clone();
        loop {
            let place = self.place.borrow_and_update().clone();
            let Place::At { url, life, .. } = place else {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => return Ok(()),
                    _ = self.place.changed() => continue,
                }
            };
            let prompt = Prompt::draw(&mut self.prng);
            let salt = SALTS[self.prng.below(SALTS.len() as u64) as usize];
            let pause = self.ask_both(&http, &url, life, prompt, salt).await;
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Asks without the region if that answer is not known yet, then with it. Returns the pause after it.
    async fn ask_both(
        &mut self,
        http: &reqwest::Client,
        url: &str,
        life: u64,
        prompt: Prompt,
        salt: Option<&str>,
    ) -> Duration {
        let key = (self.model.clone(), prompt);
        let known = |this: &Self| this.references.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let mut body = json!({
            "model": self.model, "prompt": prompt.tokens(self.seed), "max_tokens": MAX_TOKENS, "temperature": 0,
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}, "use_pool": false,
        });
        if known(self).is_none() {
            match self.ask(http, url, life, &body).await {
                Ok(answer) => {
                    self.tally.count(|counts| counts.references += 1);
                    let mut references = self.references.lock().unwrap_or_else(PoisonError::into_inner);
                    references.entry(key.clone()).or_insert(answer.text);
                }
                Err(pause) => return pause,
            }
        }
        body["use_pool"] = true.into();
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        match self.ask(http, url, life, &body).await {
            Ok(answer) => {
                if known(self).is_some_and(|text| text != answer.text) {
                    self.tally.wrong(format!(
                        "{}: {prompt:?} with salt {salt:?} and {} cached tokens was answered with {:?}",
                        self.engine, answer.cached_tokens, answer.text
                    ));
                }
                self.tally.answered(answer.first_ms, answer.prompt_tokens, answer.cached_tokens);
                Duration::from_millis(within(&mut self.prng, PAUSE_MS))
            }
            Err(pause) => pause,
        }
    }

    /// One request. An error is the pause after a failure, which is counted.
    async fn ask(&self, http: &reqwest::Client, url: &str, life: u64, body: &Value) -> Result<Answer, Duration> {
        let asked = Instant::now();
        let mut answer = Answer { text: String::new(), first_ms: 0.0, prompt_tokens: 0, cached_tokens: 0 };
        let mut first = None;
        let streamed = stream(http, &format!("{url}/v1/completions"), body, |data| {
            first.get_or_insert_with(|| asked.elapsed());
            let event: Value = serde_json::from_slice(data).unwrap_or_default();
            answer.text.push_str(event["choices"][0]["text"].as_str().unwrap_or_default());
            if let Some(prompt_tokens) = event["usage"]["prompt_tokens"].as_u64() {
                answer.prompt_tokens = prompt_tokens;
                answer.cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
            }
        })
        .await;
        answer.first_ms = first.unwrap_or_else(|| asked.elapsed()).as_secs_f64() * 1e3;
        match streamed {
            Ok(()) => return Ok(answer),
            Err(_) if asked.elapsed() >= HANG => {
                self.tally.hang(format!("{}: a request got no answer in {} s", self.engine, HANG.as_secs()));
            }
            Err(StreamError::Refused(503, _)) => self.tally.count(|counts| counts.refused += 1),
            // The order to kill it came after the request, and its task may not have seen the end yet.
            Err(_) if self.dies => {
                self.tally.count(|counts| counts.ended_by_kills += 1);
                self.is_replaced(life).await;
            }
            Err(error) => {
                let failure = Failure::from(error);
                self.tally.fail(format!("{}: a request was lost: {failure}", self.engine));
            }
        }
        Err(REFUSED_PAUSE)
    }

    /// Waits until this process is gone. If it is not, kills did not end the request.
    async fn is_replaced(&self, life: u64) {
        let is_this = |place: &Place| matches!(place, Place::At { life: now, .. } if *now == life);
        let mut place = self.place.clone();
        if tokio::time::timeout(HANG, place.wait_for(|place| !is_this(place))).await.is_err() {
            self.tally.fail(format!("{}: a request was lost, and its server lives", self.engine));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn prompts_are_the_same_in_all_calls_and_share_documents() {
        let [first, second] = [0, 1].map(|end| Prompt { document: 3, end }.tokens(7));
        assert_eq!(first, Prompt { document: 3, end: 0 }.tokens(7));
        assert_ne!(first, Prompt { document: 3, end: 0 }.tokens(8));
        let shared = first.iter().zip(&second).take_while(|(one, other)| one == other).count() as u64;
        assert!(DOCUMENT_TOKENS.contains(&shared) && first != second, "{shared}");
        let mut prng = Prng::new(1);
        let drawn: Vec<Prompt> = (0..60_000).map(|_| Prompt::draw(&mut prng)).collect();
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len() as u64, DOCUMENTS * ENDS);
        assert!(drawn.iter().filter(|prompt| prompt.document < DOCUMENTS / 2).count() > 40_000);
    }
}
