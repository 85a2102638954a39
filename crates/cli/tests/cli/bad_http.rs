//! Invalid requests to the real engine: each gets a status, OpenAI's shape, and the field's name.

use super::support::MODEL;
use super::support::client::greedy;
use super::support::process::Server;
use super::support::tokens;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

async fn refusals(flags: &[&str]) {
    let server = Server::start(flags).await;
    let question = json!([{ "role": "user", "content": "What is a cenote?" }]);
    let with = |base: &Value, name: &str, value: Value| {
        let mut body = base.clone();
        body[name] = value;
        body
    };
    let completion = greedy(&tokens(1, 20), 4);
    let chat = json!({ "model": MODEL, "messages": question, "max_tokens": 4 });
    let cases = [
        (COMPLETIONS, with(&completion, "model", json!("no-such-model")), 404, "model"),
        (COMPLETIONS, with(&completion, "model", json!(7)), 400, "model"),
        (COMPLETIONS, json!({ "prompt": "x" }), 400, "model"),
        (COMPLETIONS, json!({ "model": MODEL }), 400, "prompt"),
        (COMPLETIONS, with(&completion, "prompt", json!("")), 400, "prompt"),
        (COMPLETIONS, with(&completion, "prompt", json!({ "text": "x" })), 400, "prompt"),
        (COMPLETIONS, with(&completion, "prompt", json!(vec![5; 5000])), 400, "prompt"),
        (COMPLETIONS, with(&completion, "prompt", json!("x, ".repeat(20_000))), 400, "prompt"),
        (COMPLETIONS, with(&completion, "prompt", json!([4_000_000])), 400, "prompt"),
        (COMPLETIONS, with(&completion, "prompt", json!([1, -1])), 400, "prompt[1]"),
        (COMPLETIONS, with(&completion, "max_tokens", json!(100_000)), 400, "max_tokens"),
        (COMPLETIONS, with(&completion, "max_tokens", json!(4090)), 400, "max_tokens"),
        (COMPLETIONS, with(&completion, "max_tokens", json!(0)), 400, "max_tokens"),
        (COMPLETIONS, with(&completion, "max_tokens", json!("many")), 400, "max_tokens"),
        (COMPLETIONS, with(&completion, "temperature", json!("hot")), 400, "temperature"),
        (COMPLETIONS, with(&completion, "temperature", json!(3)), 400, "temperature"),
        (COMPLETIONS, with(&completion, "top_p", json!(0)), 400, "top_p"),
        (COMPLETIONS, with(&completion, "stop", json!(7)), 400, "stop"),
        (COMPLETIONS, with(&completion, "n", json!(0)), 400, "n"),
        (COMPLETIONS, with(&completion, "logprobs", json!(21)), 400, "logprobs"),
        (COMPLETIONS, with(&completion, "logit_bias", json!({ "4000000": 1 })), 400, "logit_bias"),
        (COMPLETIONS, with(&completion, "best_of", json!(2)), 400, "best_of"),
        (COMPLETIONS, with(&completion, "stream_options", json!({})), 400, "stream_options"),
        (CHAT, json!({ "model": MODEL }), 400, "messages"),
        (CHAT, with(&chat, "messages", json!([])), 400, "messages"),
        (CHAT, with(&chat, "messages", json!([{ "role": 1, "content": "x" }])), 400, "messages[0].role"),
        (CHAT, with(&chat, "n", json!(65)), 400, "n"),
        (CHAT, with(&chat, "logprobs", json!(3)), 400, "logprobs"),
        (CHAT, with(&chat, "max_completion_tokens", json!(100_000)), 400, "max_completion_tokens"),
    ];
    for (path, body, status, param) in cases {
        // A refusal is the same with and without a stream.
        for stream in [false, true] {
            let mut body = body.clone();
            if stream && param != "stream_options" {
                body["stream"] = true.into();
            }
            let shown = body.to_string().chars().take(120).collect::<String>();
            let (got, answer) = server.client.send(path, body.to_string()).await;
            assert_eq!(got, status, "{path} {shown}: {answer}");
            expect_shape(&answer, &shown);
            assert_eq!(answer["error"]["param"], param, "{path} {shown}: {answer}");
            let too_long =
                shown.contains("x, x, x") || shown.contains("5,5,5,5") || answer.to_string().contains("context");
            let code = &answer["error"]["code"];
            assert_eq!(code == "context_length_exceeded", too_long, "{path} {shown}: {answer}");
        }
    }
    for text in ["", "{", "[]", "\"text\"", "{\"model\": \"demo\", \"prompt\": \"x\"} and more", "\u{0}"] {
        for path in [COMPLETIONS, CHAT] {
            let (status, answer) = server.client.send(path, text).await;
            assert_eq!(status, 400, "{text}: {answer}");
            expect_shape(&answer, text);
        }
    }
    assert!(!server.client.complete(&completion).await.text.is_empty(), "it serves on");
    server.stop().await;
}

fn expect_shape(answer: &Value, shown: &str) {
    let error = &answer["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{shown}: {answer}");
    assert_eq!(error["type"], "invalid_request_error", "{shown}: {answer}");
    let keys: BTreeSet<_> = error.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["code", "message", "param", "type"]), "{shown}: {answer}");
}

#[tokio::test]
async fn one_process_refuses_and_names_the_field() {
    refusals(&["--region-size", "64MiB"]).await;
}

#[tokio::test]
async fn workers_refuse_and_name_the_field() {
    refusals(&["--region-size", "64MiB", "--prefill", "1", "--decode", "1"]).await;
}
