//! Sampling settings: choices, log-probabilities, penalties and bias. Workers give the answer of
//! one process.

use super::support::client::greedy;
use super::support::process::Server;
use super::support::{MODEL, tokens};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

async fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, mut answer) = server.client.send(path, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    for field in ["id", "created"] {
        answer[field] = Value::Null;
    }
    answer["usage"]["prompt_tokens_details"] = Value::Null;
    answer
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    let Value::Object(more) = more else { panic!("an object was meant") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    body
}

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|choice| choice["text"].as_str().expect("a text"))
        .collect()
}

/// The requests of this test, with the answers of one process.
async fn answers(server: &Server) -> Vec<Value> {
    let plain = greedy(&tokens(7, 40), 24);
    let warm = with(&plain, json!({ "temperature": 1, "seed": 5 }));
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "What is a cave?" }], "max_tokens": 6,
        "temperature": 0, "ignore_eos": true });
    let requests = [
        (COMPLETIONS, plain.clone()),
        (COMPLETIONS, warm.clone()),
        (COMPLETIONS, with(&warm, json!({ "n": 3 }))),
        (COMPLETIONS, with(&plain, json!({ "logprobs": 2 }))),
        (COMPLETIONS, with(&plain, json!({ "presence_penalty": 2, "frequency_penalty": 2 }))),
        (COMPLETIONS, with(&plain, json!({ "repetition_penalty": 1000 }))),
        (COMPLETIONS, with(&plain, json!({ "logit_bias": { "17": 100 } }))),
        ("/v1/chat/completions", with(&chat, json!({ "logprobs": true, "top_logprobs": 3 }))),
    ];
    let mut answers = Vec::new();
    for (path, body) in &requests {
        answers.push(ask(server, path, body).await);
    }
    answers
}

#[tokio::test]
async fn choices_logprobs_penalties_and_bias() {
    let server = Server::start(&["--no-pool"]).await;
    let answers = answers(&server).await;
    let [plain, warm, three, told, penalized, unrepeated, biased, chat] = &answers[..] else { panic!("eight answers") };

    let choices = texts(three);
    assert_eq!((choices.len(), choices[0]), (3, texts(warm)[0]), "the first choice is the one that comes alone");
    assert!(choices[1] != choices[0] && choices[2] != choices[1], "{choices:?}");
    assert_eq!(three["usage"]["prompt_tokens"], 40, "the choices share their prompt");
    assert_eq!(three["usage"]["completion_tokens"], 3 * 24);

    assert_eq!(texts(told), texts(plain), "to tell of tokens changes none");
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    let logprobs = &told["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap_or_else(|| panic!("{name}: {logprobs}")).clone();
    let (pieces, chosen, top, offsets) =
        (list("tokens"), list("token_logprobs"), list("top_logprobs"), list("text_offset"));
    assert_eq!([pieces.len(), chosen.len(), top.len(), offsets.len()], [24; 4]);
    let mut offset = 0;
    for at in 0..24 {
        let piece = pieces[at].as_str().expect("a text");
        let top = top[at].as_object().expect("an object");
        let best = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert!((1..=3).contains(&top.len()) && top[piece] == chosen[at], "{logprobs}");
        assert!(chosen[at].as_f64() == Some(best) && best < 0.0, "a greedy token is the likeliest: {logprobs}");
        assert_eq!(offsets[at], offset, "{logprobs}");
        offset += piece.chars().count();
    }

    assert_ne!(texts(penalized), texts(plain));
    assert_ne!(texts(unrepeated), texts(plain));
    assert_ne!(texts(biased), texts(plain));
    let content = chat["choices"][0]["logprobs"]["content"].as_array().expect("one for each token");
    assert_eq!(content.len(), 6);
    for token in content {
        let top = token["top_logprobs"].as_array().expect("an array");
        assert!(top.len() == 3 && top[0]["logprob"] == token["logprob"] && token["bytes"].is_array(), "{token}");
    }

    // A stream returns the same, piece by piece.
    let body = with(&greedy(&tokens(7, 40), 24), json!({ "logprobs": 2, "stream": true }));
    let mut streamed = Vec::new();
    for event in server.client.events(COMPLETIONS, &body).await {
        let logprobs = &event["choices"][0]["logprobs"];
        if !logprobs.is_null() {
            streamed.push((
                logprobs["tokens"][0].clone(),
                logprobs["token_logprobs"][0].clone(),
                logprobs["text_offset"][0].clone(),
            ));
        }
    }
    let whole: Vec<_> = (0..24).map(|at| (pieces[at].clone(), chosen[at].clone(), offsets[at].clone())).collect();
    assert_eq!(streamed, whole);
    server.stop().await;

    let workers = Server::start(&["--prefill", "1", "--decode", "1", "--region-size", "256MiB"]).await;
    assert_eq!(self::answers(&workers).await, answers);
    workers.stop().await;
}
