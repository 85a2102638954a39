//! A client of `/v1/completions`, `/metrics` and `/health`.

use super::{MODEL, PATIENCE};
use cenote_base::TokenId;
use serde_json::{Value, json};

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
    request_id: Option<String>,
}

/// An answer to a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub cached_tokens: u64,
}

/// A greedy completion of exactly `max_tokens` tokens, as a request's body.
pub fn greedy(prompt: &[TokenId], max_tokens: u32) -> Value {
    json!({ "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true })
}

/// As [`Self::greedy`], without the region.
pub fn without_pool(mut body: Value) -> Value {
    body["use_pool"] = false.into();
    body
}

impl Client {
    pub fn new(url: &str) -> Self {
        let http = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build().expect("a client");
        Self { http, url: url.to_owned(), key: None, request_id: None }
    }

    /// As [`Self::greedy`], with an API key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// Requests have this id.
    pub fn with_request_id(&self, id: &str) -> Self {
        Self { request_id: Some(id.to_owned()), ..self.clone() }
    }

    fn post(&self, path: &str) -> reqwest::RequestBuilder {
        let mut request = self.http.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        if let Some(id) = &self.request_id {
            request = request.header("x-request-id", id);
        }
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends any body and returns the status and the answer, which must be JSON.
    pub async fn send(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let response = self.post(path).body(body).send().await.expect("the server answers");
        let status = response.status().as_u16();
        (status, response.json().await.expect("the answer is JSON"))
    }

    /// Sends a completion that must succeed.
    pub async fn complete(&self, body: &Value) -> Answer {
        let (status, answer) = self.send("/v1/completions", body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        Answer {
            text: answer["choices"][0]["text"].as_str().expect("a text").to_owned(),
            cached_tokens: answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count"),
        }
    }

    /// Starts a stream, which must be accepted.
    pub async fn stream(&self, mut body: Value) -> Stream {
        body["stream"] = true.into();
        let response = self.post("/v1/completions").body(body.to_string()).send().await.expect("the server answers");
        assert_eq!(response.status().as_u16(), 200);
        Stream { response, pending: Vec::new(), text: String::new() }
    }

    /// All events of a stream, which must end well.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.post(path).body(body.to_string()).send().await.expect("the server answers");
        let text = response.text().await.expect("the stream does not break");
        let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, events) = events.split_last().expect("an event");
        assert_eq!(*last, "[DONE]", "{text}");
        events.iter().map(|event| serde_json::from_str(event).expect("an event is JSON")).collect()
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        let request = self.http.get(format!("{}{path}", self.url));
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        request.send().await.expect("the server answers")
    }

    pub async fn health(&self) -> Value {
        self.get("/health").await.json().await.expect("JSON")
    }

    /// `None`: no server listens any more.
    pub async fn try_health(&self) -> Option<Value> {
        self.http.get(format!("{}/health", self.url)).send().await.ok()?.json().await.ok()
    }

    pub async fn metrics(&self) -> String {
        self.get("/metrics").await.text().await.expect("a text")
    }

    /// A metric without labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is missing:\n{text}")).parse().expect("a number")
    }
}

/// A stream of server-sent events. Dropping it closes the connection.
pub struct Stream {
    response: reqwest::Response,
    pending: Vec<u8>,
    /// The part of the answer's text that was read.
    pub text: String,
}

impl Stream {
    /// Reads the next event; false at the end, which must be a proper one.
    pub async fn next(&mut self) -> bool {
        loop {
            while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let Some(data) = line.strip_prefix(b"data: ") else { continue };
                if data.starts_with(b"[DONE]") {
                    return false;
                }
                let event: Value = serde_json::from_slice(data).expect("an event is JSON");
                assert!(event.get("error").is_none(), "the stream ended with {event}");
                self.text.push_str(event["choices"][0]["text"].as_str().expect("a text"));
                return true;
            }
            let piece = self.response.chunk().await.expect("the stream does not break");
            self.pending.extend(piece.expect("a stream ends with [DONE]"));
        }
    }

    /// Reads `count` events, which must exist.
    pub async fn read(&mut self, count: usize) {
        for _ in 0..count {
            assert!(self.next().await, "the stream ended early: {}", self.text);
        }
    }

    /// Reads to the end; returns the whole text.
    pub async fn rest(mut self) -> String {
        while self.next().await {}
        self.text
    }
}
