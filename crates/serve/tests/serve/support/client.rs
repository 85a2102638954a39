//! A small HTTP client: JSON calls and server-sent events.

use super::{TestServer, soon};
use reqwest::{Client, Response};
use serde_json::Value;

/// An answer read to its end.
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The payloads of the stream's events; comments are left out.
    pub fn events(&self) -> Vec<String> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// All events but `[DONE]`, parsed.
    pub fn chunks(&self) -> Vec<Value> {
        let events = self.events();
        let json = events.iter().filter(|event| *event != "[DONE]");
        json.map(|event| serde_json::from_str(event).expect("an event is JSON")).collect()
    }

    pub fn is_done(&self) -> bool {
        self.events().last().is_some_and(|last| last == "[DONE]")
    }
}

pub fn client() -> Client {
    Client::builder().no_proxy().build().expect("a client needs nothing")
}

pub async fn read(answer: Response) -> Reply {
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let text = soon("the answer's end", answer.text()).await.expect("the answer is whole");
    Reply { status, headers, text }
}

impl TestServer {
    pub async fn get(&self, path: &str) -> Reply {
        read(soon("an answer", client().get(self.url(path)).send()).await.expect("the server is there")).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        read(self.open(path, body).await).await
    }

    /// Sends a request and returns with the head of the answer.
    pub async fn open(&self, path: &str, body: &Value) -> Response {
        let sent = client().post(self.url(path)).json(body).send();
        soon("an answer", sent).await.expect("the server is there")
    }
}
