//! The OpenAI endpoints, as complete answers and as streams.

use crate::support::TestServer;
use crate::support::client::{Reply, client, read};
use crate::support::fake::FakeEngine;
use crate::support::script::{MODEL, answer};
use cenote_base::SamplingParams;
use cenote_base::engine::{ChatMessage, FinishReason, Prompt};
use cenote_base::testing::ManualTime;
use cenote_serve::{ApiKeys, HttpConfig};
use serde_json::{Value, json};

async fn server() -> TestServer {
    TestServer::start(FakeEngine::new().shared(), HttpConfig::default()).await
}

fn sampling(max_tokens: u32, seed: u64) -> SamplingParams {
    SamplingParams { max_tokens: Some(max_tokens), seed: Some(seed), ignore_eos: true, ..SamplingParams::default() }
}

fn streamed_text(reply: &Reply, index: u64) -> String {
    let chunks = reply.chunks();
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices").clone());
    let mine = choices.filter(|choice| choice["index"] == index);
    mine.map(|choice| {
        let text = choice.get("text").or_else(|| choice["delta"].get("content"));
        text.and_then(Value::as_str).unwrap_or_default().to_owned()
    })
    .collect()
}

#[tokio::test]
async fn a_completion_has_the_text_the_reason_and_the_counts() {
    let clock = ManualTime::start().clock();
    let server = TestServer::start_at(clock, FakeEngine::new().shared(), HttpConfig::default()).await;
    let body = json!({"model": MODEL, "prompt": "deep water", "max_tokens": 9, "seed": 3, "ignore_eos": true});
    let reply = server.post("/v1/completions", &body).await;
    let (text, reason, _) = answer(&Prompt::Text("deep water".into()), &sampling(9, 3));
    assert_eq!(reason, FinishReason::Length);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let got = reply.json();
    assert_eq!(got["object"], "text_completion");
    assert!(got["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    assert_eq!(got["model"], MODEL);
    assert_eq!(got["created"], clock.unix().as_secs());
    assert_eq!(got["choices"], json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": "length"}]));
    assert_eq!(
        got["usage"],
        json!({"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19,
               "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn the_default_of_a_completion_is_sixteen_tokens() {
    let reply =
        server().await.post("/v1/completions", &json!({"model": MODEL, "prompt": "x", "ignore_eos": true})).await;
    assert_eq!(reply.json()["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn cached_tokens_are_counted_unless_the_pool_is_off() {
    let server = server().await;
    let prompt = "a".repeat(40);
    let cached = async |use_pool: bool| {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 1, "use_pool": use_pool});
        server.post("/v1/completions", &body).await.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached(true).await, 0);
    assert_eq!(cached(true).await, 32);
    assert_eq!(cached(false).await, 0);
}

#[tokio::test]
async fn prompts_come_as_text_tokens_and_arrays_of_both() {
    let server = server().await;
    let texts = async |prompt: Value| {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 6, "seed": 5, "ignore_eos": true});
        let got = server.post("/v1/completions", &body).await.json();
        let choices = got["choices"].as_array().expect("choices").clone();
        assert!(choices.iter().enumerate().all(|(at, choice)| choice["index"] == at));
        let completion = got["usage"]["completion_tokens"].as_u64().expect("a count");
        assert_eq!(completion, 6 * choices.len() as u64);
        choices.iter().map(|choice| choice["text"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let (ab, cd) = (texts(json!("ab")).await, texts(json!("cd")).await);
    assert_ne!(ab, cd);
    assert_eq!(texts(json!([97, 98])).await, ab);
    assert_eq!(texts(json!(["ab", "cd"])).await, [ab.clone(), cd.clone()].concat());
    assert_eq!(texts(json!([[99, 100], [97, 98]])).await, [cd, ab].concat());
}

#[tokio::test]
async fn a_conversation_is_answered_by_the_assistant() {
    let server = server().await;
    let body = json!({"model": MODEL, "seed": 8, "max_completion_tokens": 7, "ignore_eos": true, "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "a cenote?"}]},
    ]});
    let turns = [("system", "Be brief."), ("user", "What is a cenote?")];
    let turns = turns.map(|(role, content)| ChatMessage { role: role.into(), content: content.into() });
    let (text, ..) = answer(&Prompt::Chat(turns.to_vec().into()), &sampling(7, 8));
    let got = server.post("/v1/chat/completions", &body).await.json();
    assert_eq!(got["object"], "chat.completion");
    assert!(got["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    assert_eq!(got["choices"][0]["message"], json!({"role": "assistant", "content": text, "refusal": null}));
    assert_eq!(got["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stop_text_ends_the_answer_before_it() {
    let server = server().await;
    let (free, ..) = answer(&Prompt::Text("stop here".into()), &sampling(40, 1));
    // A text across two words, so that it is held back token by token.
    let spaces: Vec<_> = free.match_indices(' ').map(|(at, _)| at).filter(|at| *at > 20).collect();
    let stop = &free[spaces[0] - 2..spaces[0] + 2];
    let expected = &free[..free.find(stop).expect("it is from there")];
    for stream in [false, true] {
        let body = json!({"model": MODEL, "prompt": "stop here", "max_tokens": 40, "seed": 1, "stop": [stop, "never"],
                          "ignore_eos": true, "stream": stream});
        let reply = server.post("/v1/completions", &body).await;
        let (text, reason) = if stream {
            let last = reply.chunks().pop().expect("chunks");
            (streamed_text(&reply, 0), last["choices"][0]["finish_reason"].clone())
        } else {
            let choice = &reply.json()["choices"][0];
            (choice["text"].as_str().expect("text").to_owned(), choice["finish_reason"].clone())
        };
        assert_eq!(text, expected);
        assert_eq!(reason, "stop");
    }
}

#[tokio::test]
async fn a_streamed_completion_has_openai_s_chunks() {
    let server = server().await;
    let body = json!({"model": MODEL, "prompt": "drip", "max_tokens": 8, "seed": 2, "ignore_eos": true, "stream": true,
                      "stream_options": {"include_usage": true}});
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert!(reply.is_done());
    let (text, ..) = answer(&Prompt::Text("drip".into()), &sampling(8, 2));
    assert_eq!(streamed_text(&reply, 0), text);
    let chunks = reply.chunks();
    let (last, rest) = chunks.split_last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 8);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == last["id"]));
    let reasons: Vec<_> = rest.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons.last(), Some(&json!("length")));
    assert!(reasons[..reasons.len() - 1].iter().all(Value::is_null));
}

#[tokio::test]
async fn a_streamed_conversation_opens_with_the_role_and_ends_with_the_reason() {
    let server = server().await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 2,
                      "ignore_eos": true, "stream": true});
    let reply = server.post("/v1/chat/completions", &body).await;
    assert!(reply.is_done());
    let chunks = reply.chunks();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk.get("usage").is_none()));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let last = &chunks[chunks.len() - 1]["choices"][0];
    assert_eq!((last["delta"].clone(), last["finish_reason"].clone()), (json!({}), json!("length")));
    let opened = chunks.iter().filter(|chunk| chunk["choices"][0]["delta"].get("role").is_some()).count();
    assert_eq!(opened, 1);
    let turn = ChatMessage { role: "user".into(), content: "hello".into() };
    assert_eq!(streamed_text(&reply, 0), answer(&Prompt::Chat(vec![turn].into()), &sampling(8, 2)).0);
}

#[tokio::test]
async fn a_stream_of_several_prompts_keeps_them_apart() {
    let server = server().await;
    let body = json!({"model": MODEL, "prompt": ["one", "two", "three"], "max_tokens": 12, "seed": 4,
                      "ignore_eos": true, "stream": true});
    let reply = server.post("/v1/completions", &body).await;
    assert!(reply.is_done());
    for (index, prompt) in ["one", "two", "three"].into_iter().enumerate() {
        let (text, ..) = answer(&Prompt::Text(prompt.into()), &sampling(12, 4));
        assert_eq!(streamed_text(&reply, index as u64), text);
    }
}

#[tokio::test]
async fn models_are_listed_and_found_with_their_slashes() {
    let server = server().await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], MODEL);
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).await.json()["id"], MODEL);
    let missing = server.get("/v1/models/other").await;
    assert_eq!((missing.status, missing.json()["error"]["code"].clone()), (404, json!("model_not_found")));
}

#[tokio::test]
async fn the_api_key_guards_all_but_health() {
    let config = HttpConfig { api_keys: ApiKeys::default().with("sesame"), ..HttpConfig::default() };
    let server = TestServer::start(FakeEngine::new().shared(), config).await;
    assert_eq!((server.get("/health").await.status, server.get("/ready").await.status), (200, 200));
    for path in ["/v1/models", "/metrics", "/nowhere"] {
        let refused = server.get(path).await;
        assert_eq!(
            (refused.status, refused.json()["error"]["code"].clone()),
            (401, json!("invalid_api_key")),
            "{path}"
        );
    }
    for (value, status) in
        [("Bearer sesame", 200), ("bearer sesame", 200), ("Bearer sesam", 401), ("sesame", 401), ("", 401)]
    {
        let answer = client().get(server.url("/v1/models")).header("authorization", value).send().await;
        assert_eq!(read(answer.expect("the server is there")).await.status, status, "{value}");
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let server = server().await;
    let made = server.get("/health").await;
    assert!(made.headers["x-request-id"].to_str().is_ok_and(|id| id.starts_with("req-")));
    let answer = client().get(server.url("/health")).header("x-request-id", "mine").send().await;
    assert_eq!(answer.expect("the server is there").headers()["x-request-id"], "mine");
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let server = server().await;
    let body = json!({"model": MODEL, "prompt": "count me", "max_tokens": 5, "ignore_eos": true});
    server.post("/v1/completions", &body).await;
    server.post("/v1/completions", &json!({"model": "other", "prompt": "x"})).await;
    let reply = server.get("/metrics").await;
    assert!(reply.headers["content-type"].to_str().is_ok_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
    for line in [
        r#"cenote_http_requests_total{endpoint="/v1/completions",status="200"} 1"#,
        r#"cenote_http_requests_total{endpoint="/v1/completions",status="404"} 1"#,
        "cenote_http_prompt_tokens_total 8",
        "cenote_http_generated_tokens_total 5",
        "cenote_http_cached_tokens_total 0",
        "cenote_http_requests_running 0",
        "cenote_http_time_to_first_token_seconds_count 1",
        "cenote_http_inter_token_latency_seconds_count 4",
        "cenote_http_request_duration_seconds_count 1",
        "# TYPE cenote_http_time_to_first_token_seconds histogram",
        "# TYPE cenote_fake_requests_total counter",
        "cenote_fake_requests_total 1",
        "# TYPE cenote_fake_running gauge",
    ] {
        assert!(reply.text.lines().any(|got| got == line), "`{line}` is missing in\n{}", reply.text);
    }
    // Every series belongs to a family that is announced once.
    let announced: Vec<_> =
        reply.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let unique: std::collections::HashSet<_> = announced.iter().collect();
    assert_eq!(unique.len(), announced.len());
    for line in reply.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = line.split([' ', '{']).next().expect("a name");
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(announced.contains(&family) || announced.contains(&name), "{line}");
    }
}
