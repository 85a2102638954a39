//! A client of a server of completions that sends a load's requests at their times, and times the
//! answers.

use cenote_console::failure::Failure;
use cenote_serving_sim::Workload;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// One answer, as its client received it.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// Time of the request, from the load's start.
    pub asked: Duration,
    /// From the request to the first text.
    pub first: Duration,
    /// From the request to the end.
    pub whole: Duration,
}

/// Requests to one server.
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// A client of the server at `url`, as in `http://127.0.0.1:8000`. No answer takes more than `timeout`.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, Failure> {
        let http = reqwest::Client::builder().timeout(timeout).no_proxy().build()?;
        Ok(Self { http, url: url.trim_end_matches('/').to_owned() })
    }

    /// Text of a page of the server.
    pub async fn get(&self, path: &str) -> Result<String, Failure> {
        let url = format!("{}{path}", self.url);
        let response = self.http.get(&url).send().await?;
        let status = response.status();
        let text = response.text().await?;
        if status.is_success() { Ok(text) } else { Err(Failure::new(format!("{url}: the server answered {status}"))) }
    }

    /// Sends a load's requests at their times, a body for each, and waits for all answers, in the order
    /// of the load.
    pub async fn replay(
        &self,
        load: &Workload,
        bodies: Vec<Value>,
        progress: &dyn Fn(),
    ) -> Result<Vec<Answered>, Failure> {
        let mut asked = JoinSet::new();
        let begin = Instant::now();
        for (index, (request, body)) in load.requests().iter().zip(bodies).enumerate() {
            let at = Duration::from_nanos(request.arrival);
            let (http, url) = (self.http.clone(), format!("{}/v1/completions", self.url));
            asked.spawn(async move {
                tokio::time::sleep_until((begin + at).into()).await;
                (index, ask(&http, &url, &body, begin).await)
            });
        }
        let mut answers = vec![None; load.requests().len()];
        while let Some(joined) = asked.join_next().await {
            let (index, answer) = joined.map_err(|error| Failure::new(format!("a client failed: {error}")))?;
            answers[index] = Some(answer?);
            progress();
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// A completion that did not end well.
pub enum StreamError {
    /// The server answered with this status and text.
    Refused(u16, String),
    /// The connection or the stream broke off, or the server ended it with an error.
    Broken(Failure),
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Refused(status, text) => Self::new(format!("the server answered {status}: {text}")),
            StreamError::Broken(failure) => failure,
        }
    }
}

/// Sends a completion that streams, and hands on the data of each event until the end.
pub async fn stream(
    http: &reqwest::Client,
    url: &str,
    body: &Value,
    mut heard: impl FnMut(&[u8]),
) -> Result<(), StreamError> {
    let broken = |error: reqwest::Error| StreamError::Broken(error.into());
    let mut response = http.post(url).json(body).send().await.map_err(broken)?;
    if !response.status().is_success() {
        let status = response.status().as_u16();
        return Err(StreamError::Refused(status, response.text().await.unwrap_or_default()));
    }
    let (mut done, mut pending) = (false, Vec::new());
    while let Some(bytes) = response.chunk().await.map_err(broken)? {
        pending.extend_from_slice(&bytes);
        while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data: ") else { continue };
            if data.starts_with(b"[DONE]") {
                done = true;
            } else if data.starts_with(b"{\"error\"") {
                let text = String::from_utf8_lossy(data);
                return Err(StreamError::Broken(Failure::new(format!("the server ended a stream: {text}"))));
            } else {
                heard(data);
            }
        }
    }
    if done { Ok(()) } else { Err(StreamError::Broken(Failure::new("the server's stream broke off"))) }
}

async fn ask(http: &reqwest::Client, url: &str, body: &Value, begin: Instant) -> Result<Answered, Failure> {
    let asked = Instant::now();
    let mut first = None;
    stream(http, url, body, |_| {
        first.get_or_insert_with(|| asked.elapsed());
    })
    .await?;
    let whole = asked.elapsed();
    // An answer without certain text has no first text; use its end.
    Ok(Answered { asked: asked - begin, first: first.unwrap_or(whole), whole })
}
