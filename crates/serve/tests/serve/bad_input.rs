//! Invalid requests: each is refused with a status and the name of the invalid field.

use crate::support::client::{client, read};
use crate::support::fake::FakeEngine;
use crate::support::script::{MAX_MODEL_LEN, MODEL};
use crate::support::time::TestTime;
use crate::support::{TestServer, soon};
use cenote_serve::HttpConfig;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

async fn server() -> TestServer {
    TestServer::start(FakeEngine::new().shared(), HttpConfig::default()).await
}

/// A valid request with `changes` applied; null fields are sent as null.
fn changed(mut good: Value, changes: Value) -> Value {
    let (Value::Object(good), Value::Object(changes)) = (&mut good, changes) else { panic!("objects were meant") };
    good.extend(changes);
    Value::Object(good.clone())
}

fn is_openai_shaped(body: &Value) -> bool {
    let error = &body["error"];
    error["message"].is_string()
        && error["type"].is_string()
        && error.get("param").is_some()
        && error.get("code").is_some()
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = server().await;
    let completion = json!({"model": MODEL, "prompt": "x", "max_tokens": 4});
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4});
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let too_long = (0..MAX_MODEL_LEN).collect::<Vec<_>>();
    let cases = [
        (COMPLETIONS, json!({"prompt": null}), "prompt"),
        (COMPLETIONS, json!({"prompt": []}), "prompt"),
        (COMPLETIONS, json!({"prompt": 7}), "prompt"),
        (COMPLETIONS, json!({"prompt": {"text": "x"}}), "prompt"),
        (COMPLETIONS, json!({"prompt": [1, -1]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [1, 2.5]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [1, 4_294_967_296_u64]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": ["a", 1]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [[1], []]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [[1], ["a"]]}), "prompt[1][0]"),
        (COMPLETIONS, json!({"prompt": [true]}), "prompt[0]"),
        (COMPLETIONS, json!({"prompt": vec!["x"; 65]}), "prompt"),
        (COMPLETIONS, json!({"prompt": too_long}), "prompt"),
        (COMPLETIONS, json!({"prompt": "x".repeat(MAX_MODEL_LEN as usize)}), "prompt"),
        (COMPLETIONS, json!({"prompt": "x".repeat(MAX_MODEL_LEN as usize), "stream": true}), "prompt"),
        (COMPLETIONS, json!({"prompt": "x".repeat(200), "max_tokens": 100}), "max_tokens"),
        (COMPLETIONS, json!({"max_tokens": 0}), "max_tokens"),
        (COMPLETIONS, json!({"max_tokens": -1}), "max_tokens"),
        (COMPLETIONS, json!({"max_tokens": 1.5}), "max_tokens"),
        (COMPLETIONS, json!({"max_tokens": "many"}), "max_tokens"),
        (COMPLETIONS, json!({"max_tokens": MAX_MODEL_LEN + 1}), "max_tokens"),
        (COMPLETIONS, json!({"temperature": 2.1}), "temperature"),
        (COMPLETIONS, json!({"temperature": -0.1}), "temperature"),
        (COMPLETIONS, json!({"temperature": 1e300}), "temperature"),
        (COMPLETIONS, json!({"temperature": "hot"}), "temperature"),
        (COMPLETIONS, json!({"top_p": 0}), "top_p"),
        (COMPLETIONS, json!({"top_p": 1.01}), "top_p"),
        (COMPLETIONS, json!({"top_k": -2}), "top_k"),
        (COMPLETIONS, json!({"seed": 0.5}), "seed"),
        (COMPLETIONS, json!({"stop": ""}), "stop"),
        (COMPLETIONS, json!({"stop": ["a", ""]}), "stop[1]"),
        (COMPLETIONS, json!({"stop": ["a", 1]}), "stop[1]"),
        (COMPLETIONS, json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
        (COMPLETIONS, json!({"stop": 3}), "stop"),
        (COMPLETIONS, json!({"stream": "yes"}), "stream"),
        (COMPLETIONS, json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (COMPLETIONS, json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (COMPLETIONS, json!({"use_pool": "no"}), "use_pool"),
        (COMPLETIONS, json!({"ignore_eos": 1}), "ignore_eos"),
        (COMPLETIONS, json!({"n": 0}), "n"),
        (COMPLETIONS, json!({"n": 65}), "n"),
        (COMPLETIONS, json!({"n": 33, "prompt": ["a", "b"]}), "n"),
        (COMPLETIONS, json!({"n": "one"}), "n"),
        (COMPLETIONS, json!({"logprobs": 21}), "logprobs"),
        (COMPLETIONS, json!({"logprobs": true}), "logprobs"),
        (COMPLETIONS, json!({"logprobs": -1}), "logprobs"),
        (COMPLETIONS, json!({"top_logprobs": 2}), "top_logprobs"),
        (CHAT, json!({"logprobs": 1}), "logprobs"),
        (CHAT, json!({"top_logprobs": 2}), "top_logprobs"),
        (CHAT, json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (COMPLETIONS, json!({"frequency_penalty": 2.1}), "frequency_penalty"),
        (COMPLETIONS, json!({"presence_penalty": -2.1}), "presence_penalty"),
        (COMPLETIONS, json!({"presence_penalty": "much"}), "presence_penalty"),
        (COMPLETIONS, json!({"repetition_penalty": 0}), "repetition_penalty"),
        (COMPLETIONS, json!({"logit_bias": [1]}), "logit_bias"),
        (COMPLETIONS, json!({"logit_bias": {"five": 1}}), "logit_bias[five]"),
        (COMPLETIONS, json!({"logit_bias": {"5": 101}}), "logit_bias[5]"),
        (COMPLETIONS, json!({"logit_bias": {"5": "much"}}), "logit_bias[5]"),
        (COMPLETIONS, json!({"best_of": 2}), "best_of"),
        (COMPLETIONS, json!({"echo": true}), "echo"),
        (COMPLETIONS, json!({"suffix": "end"}), "suffix"),
        (CHAT, json!({"messages": null}), "messages"),
        (CHAT, json!({"messages": []}), "messages"),
        (CHAT, json!({"messages": "hello"}), "messages"),
        (CHAT, json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (CHAT, json!({"messages": [{"role": "user", "content": "x"}, {"role": "user"}]}), "messages[1].content"),
        (CHAT, json!({"messages": [{"role": "pope", "content": "x"}]}), "messages[0].role"),
        (CHAT, json!({"messages": [{"role": 5, "content": "x"}]}), "messages[0].role"),
        (
            CHAT,
            json!({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}),
            "messages[0].tool_calls",
        ),
        (CHAT, user(json!(5)), "messages[0].content"),
        (CHAT, user(json!(["x"])), "messages[0].content[0]"),
        (CHAT, user(json!([{"text": "x"}])), "messages[0].content[0].type"),
        (CHAT, user(json!([{"type": "text"}])), "messages[0].content[0].text"),
        (CHAT, user(json!([{"type": "text", "text": "x"}, {"type": "image_url"}])), "messages[0].content[1].type"),
        (CHAT, user(json!("x".repeat(MAX_MODEL_LEN as usize))), "messages"),
        (CHAT, json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (CHAT, json!({"max_completion_tokens": MAX_MODEL_LEN + 1}), "max_completion_tokens"),
        (CHAT, changed(user(json!("x".repeat(200))), json!({"max_completion_tokens": 100})), "max_completion_tokens"),
        (CHAT, json!({"top_logprobs": 3}), "top_logprobs"),
        (CHAT, json!({"tools": [{"type": "function"}]}), "tools"),
        (CHAT, json!({"tool_choice": "required"}), "tool_choice"),
        (CHAT, json!({"functions": [{}]}), "functions"),
        (CHAT, json!({"response_format": {"type": "json_object"}}), "response_format"),
        (CHAT, json!({"modalities": ["audio"]}), "modalities"),
        (CHAT, json!({"audio": {"voice": "x"}}), "audio"),
    ];
    for (path, changes, param) in cases {
        let good = if path == CHAT { &chat } else { &completion };
        let reply = server.post(path, &changed(good.clone(), changes.clone())).await;
        let body = reply.json();
        assert_eq!(reply.status, 400, "{changes}: {}", reply.text);
        assert!(is_openai_shaped(&body), "{changes}: {body}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{changes}");
        assert_eq!(body["error"]["param"], param, "{changes}: {body}");
        assert!(
            body["error"]["message"].as_str().is_some_and(|text| text.starts_with(&format!("{param}: "))),
            "{body}"
        );
    }
    for (path, good) in [(COMPLETIONS, completion), (CHAT, chat)] {
        let extras = json!({"user": "u", "metadata": {"a": "b"}, "store": false, "some_new_field": [1], "n": 1,
                            "stop": null, "temperature": null, "logit_bias": {}, "top_k": -1, "seed": -3});
        let reply = server.post(path, &changed(good, extras)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
}

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused() {
    let server = server().await;
    let deep = "[".repeat(100_000);
    for (body, param) in [
        ("", Value::Null),
        ("{", Value::Null),
        ("not json", Value::Null),
        ("[]", Value::Null),
        ("null", Value::Null),
        ("7", Value::Null),
        (deep.as_str(), Value::Null),
        (r#"{"model": "fake/model-1", "prompt": "x"} trailing"#, Value::Null),
        ("{}", json!("model")),
        (r#"{"model": 5}"#, json!("model")),
        (r#"{"model": null, "prompt": "x"}"#, json!("model")),
    ] {
        let sent =
            client().post(server.url(COMPLETIONS)).header("content-type", "application/json").body(body.to_owned());
        let reply = read(sent.send().await.expect("the server is there")).await;
        let shown = &body[..body.len().min(60)];
        assert_eq!(reply.status, 400, "{shown}");
        assert!(is_openai_shaped(&reply.json()), "{shown}");
        assert_eq!(reply.json()["error"]["param"], param, "{shown}: {}", reply.text);
    }
    let sent = client().post(server.url(COMPLETIONS)).header("content-type", "application/json").body(vec![0xff, 0xfe]);
    assert_eq!(read(sent.send().await.expect("the server is there")).await.status, 400);
}

/// Earlier, errors said `invalid type: string "many", expected u32` and `expected struct Body`.
#[tokio::test]
async fn errors_do_not_name_types_of_the_program() {
    let server = server().await;
    let good = json!({"model": MODEL, "prompt": "x", "messages": [{"role": "user", "content": "x"}]});
    let integer = "instead of an integer from 0 to 4294967295";
    for (changes, message) in [
        (json!({"max_tokens": "many"}), format!("max_tokens: a text {integer}")),
        (json!({"max_tokens": -1}), format!("max_tokens: -1 {integer}")),
        (json!({"max_tokens": 1.5}), format!("max_tokens: 1.5 {integer}")),
        (json!({"temperature": "hot"}), "temperature: a text instead of a number".to_owned()),
        (json!({"temperature": [1]}), "temperature: an array instead of a number".to_owned()),
        (json!({"stream": "yes"}), "stream: a text instead of true or false".to_owned()),
        (json!({"stream_options": true}), "stream_options: a boolean instead of an object".to_owned()),
        (json!({"messages": "hello"}), "messages: a text instead of an array".to_owned()),
        (json!({"messages": ["hello"]}), "messages[0]: a text instead of an object".to_owned()),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role: missing".to_owned()),
        (json!({"messages": [{"role": 1}]}), "messages[0].role: 1 instead of a text".to_owned()),
        (json!({"model": null}), "model: null instead of a text".to_owned()),
    ] {
        let reply = server.post(CHAT, &changed(good.clone(), changes.clone())).await;
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (400, &json!(message)), "{changes}");
    }
    let seed = server.post(CHAT, &changed(good.clone(), json!({"seed": 0.5}))).await.json();
    let words = seed["error"]["message"].as_str().expect("a text");
    assert!(words.starts_with("seed: 0.5 instead of an integer from -9223372036854775808 to "), "{words}");
    for (body, message) in [
        ("[]", "the body is not a request: an array instead of an object"),
        ("7", "the body is not a request: 7 instead of an object"),
        ("{}", "model: missing"),
        (r#"{"model": "a", "model": "b"}"#, "model: given more than once"),
    ] {
        let sent = client().post(server.url(CHAT)).header("content-type", "application/json").body(body);
        let reply = read(sent.send().await.expect("the server is there")).await;
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (400, &json!(message)), "{body}");
    }
}

#[tokio::test]
async fn the_rest_of_http_is_answered_in_openai_s_shape_too() {
    let server = server().await;
    let good = json!({"model": MODEL, "prompt": "x"}).to_string();
    let post = |path: &str| client().post(server.url(path));
    let json = |request: reqwest::RequestBuilder| request.header("content-type", "application/json; charset=utf-8");
    let huge = format!(r#"{{"model": "{MODEL}", "prompt": "{}"}}"#, "x".repeat(9 << 20));
    for (request, status, code) in [
        (post(COMPLETIONS).body(good.clone()), 415, Value::Null),
        (post(COMPLETIONS).header("content-type", "text/plain").body(good.clone()), 415, Value::Null),
        (json(post(COMPLETIONS)).body(huge), 413, Value::Null),
        (json(post(COMPLETIONS)).header("x-cenote-timeout-ms", "soon").body(good.clone()), 400, Value::Null),
        (json(post("/v1/embeddings")).body(good.clone()), 404, json!("unknown_url")),
        (json(post(COMPLETIONS)).body(r#"{"model": "gpt-4", "prompt": "x"}"#), 404, json!("model_not_found")),
        (client().get(server.url(COMPLETIONS)), 405, json!("method_not_allowed")),
        (client().delete(server.url("/health")), 405, json!("method_not_allowed")),
    ] {
        let reply = read(request.send().await.expect("the server is there")).await;
        assert_eq!(reply.status, status, "{}", reply.text);
        assert!(is_openai_shaped(&reply.json()), "{}", reply.text);
        assert_eq!(reply.json()["error"]["code"], code, "{}", reply.text);
    }
    let unknown = server.post(COMPLETIONS, &json!({"model": "gpt-4", "prompt": "x"})).await.json();
    assert_eq!(unknown["error"]["param"], "model");
}

#[tokio::test]
async fn an_engine_s_troubles_have_their_status() {
    let server = server().await;
    for stream in [false, true] {
        let ask = async |prompt: &str| {
            let body =
                json!({"model": MODEL, "prompt": prompt, "max_tokens": 20, "ignore_eos": true, "stream": stream});
            server.post(COMPLETIONS, &body).await
        };
        let full = ask("!overloaded").await;
        assert_eq!((full.status, full.headers["retry-after"].as_bytes()), (503, &b"2"[..]));
        let away = ask("!unavailable").await;
        assert_eq!((away.status, away.headers["retry-after"].as_bytes()), (503, &b"1"[..]));
        for prompt in ["!internal", "!vanish"] {
            let broken = ask(prompt).await;
            if stream {
                // The status was sent already: the stream carries the error and does not end with
                // "done".
                assert_eq!(broken.status, 200);
                assert!(is_openai_shaped(broken.chunks().last().expect("an error event")), "{}", broken.text);
                assert!(!broken.is_done());
            } else {
                assert_eq!((broken.status, broken.json()["error"]["type"].clone()), (500, json!("server_error")));
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up() {
    let (time, body_timeout) = (TestTime::start(), Duration::from_secs(20));
    let config = HttpConfig { body_timeout, ..HttpConfig::default() };
    let server = TestServer::start_at(time.clock(), FakeEngine::new().shared(), config).await;
    let mut socket = TcpStream::connect(server.address).await.expect("the server is there");
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.expect("the head is taken");
    time.awaited(body_timeout).await;
    time.advance(body_timeout);
    let mut answer = vec![0; 64];
    let length = soon("an answer", socket.read(&mut answer)).await.expect("an answer");
    assert!(String::from_utf8_lossy(&answer[..length]).starts_with("HTTP/1.1 408"));
}
