//! Clients: one for each session. A client asks a turn, reads its answer to the end, thinks, and asks the
//! next one. The next prompt is that of the trace: it does not contain the server's answer.
//!
//! A request that fails is counted with its reason, and ends its session: so a server that hangs costs each
//! session one timeout.

use super::plan::{Plan, Session};
use super::server::Server;
use crate::commands::client::{StreamError, stream};
use cenote_console::failure::Failure;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Longest reason of a failure that is kept, in characters.
const REASON_MAX: usize = 160;

/// How clients ask.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub output_tokens: u32,
    pub think_scale: f64,
    pub think_max: Duration,
    pub concurrency: Option<usize>,
    pub timeout: Duration,
}

/// A request and what became of it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Index of the session in the plan.
    pub session: usize,
    /// From 0.
    pub turn: usize,
    /// Or why there is no answer.
    pub answer: Result<Answer, String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// From the request to the first text.
    pub first: Duration,
    /// From the request to the end.
    pub whole: Duration,
    pub prompt_tokens: u64,
    /// `None` if the server does not say.
    pub cached_tokens: Option<u64>,
    /// Of the text.
    pub digest: blake3::Hash,
}

/// Asks all turns of a plan, and returns the requests of each session.
pub async fn replay(
    server: &Server,
    plan: &Arc<Plan>,
    pace: Pace,
    progress: impl Fn(u64) + Clone + Send + 'static,
) -> Result<Vec<Asked>, Failure> {
    let http = reqwest::Client::builder().timeout(pace.timeout).no_proxy().build()?;
    let seats = Arc::new(Semaphore::new(pace.concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for index in 0..plan.sessions.len() {
        let (seats, plan, progress) = (Arc::clone(&seats), Arc::clone(plan), progress.clone());
        let client = Client { http: http.clone(), url: format!("{}/v1/completions", server.url), pace };
        let model = server.model.clone();
        clients.spawn(async move {
            let session = &plan.sessions[index];
            tokio::time::sleep_until((begin + session.start.mul_f64(pace.think_scale)).into()).await;
            let _seat = seats.acquire().await;
            client.session(&plan, session, index, &model, progress).await
        });
    }
    let mut all = Vec::new();
    while let Some(joined) = clients.join_next().await {
        all.extend(joined.map_err(|error| Failure::new(format!("a client failed: {error}")))?);
    }
    all.sort_by_key(|one| (one.session, one.turn));
    Ok(all)
}

struct Client {
    http: reqwest::Client,
    url: String,
    pace: Pace,
}

impl Client {
    async fn session(
        &self,
        plan: &Plan,
        session: &Session,
        index: usize,
        model: &str,
        progress: impl Fn(u64),
    ) -> Vec<Asked> {
        let mut asked = Vec::with_capacity(session.turns());
        for (turn, think) in session.thinks.iter().enumerate() {
            if turn > 0 {
                tokio::time::sleep(think.mul_f64(self.pace.think_scale).min(self.pace.think_max)).await;
            }
            let body = json!({
                "model": model, "prompt": plan.prompt(session, turn), "max_tokens": self.pace.output_tokens,
                "temperature": 0, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
            });
            let answer = self.ask(&body).await.map_err(|error| {
                let reason: String = Failure::from(error).to_string();
                reason.chars().take(REASON_MAX).collect()
            });
            let has_failed = answer.is_err();
            asked.push(Asked { session: index, turn, answer });
            if has_failed {
                progress((session.turns() - turn) as u64);
                break;
            }
            progress(1);
        }
        asked
    }

    async fn ask(&self, body: &Value) -> Result<Answer, StreamError> {
        let asked = Instant::now();
        let (mut first, mut text, mut usage) = (None, blake3::Hasher::new(), Value::Null);
        stream(&self.http, &self.url, body, |data| {
            let at = asked.elapsed();
            let mut event: Value = serde_json::from_slice(data).unwrap_or_default();
            // The event of the usage has no choice.
            if let Some(piece) = event["choices"][0]["text"].as_str() {
                first.get_or_insert(at);
                text.update(piece.as_bytes());
            }
            if event["usage"].is_object() {
                usage = event["usage"].take();
            }
        })
        .await?;
        let whole = asked.elapsed();
        let Some(prompt_tokens) = usage["prompt_tokens"].as_u64() else {
            return Err(StreamError::Broken(Failure::new("the server's stream has no usage")));
        };
        let cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        // An answer without certain text has no first text; use its end.
        let first = first.unwrap_or(whole);
        Ok(Answer { first, whole, prompt_tokens, cached_tokens, digest: text.finalize() })
    }
}
