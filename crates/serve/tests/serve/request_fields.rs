//! No field of vLLM's requests is ignored by accident.

use crate::support::TestServer;
use crate::support::fake::FakeEngine;
use crate::support::script::MODEL;
use cenote_base::engine::{ChatEnd, ChatMessage, Conversation, Prompt};
use cenote_serve::HttpConfig;
use cenote_serve::openai::{Body, is_known};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// The server once ignored eight of these that change the answer.
#[test]
fn each_field_of_vllm_s_requests_is_served_refused_or_listed_as_harmless() {
    let is_read = |name: &str| {
        let mut body = json!({"model": MODEL});
        if name != "model" {
            body[name] = Value::Null;
        }
        let body = Body::parse(body.to_string().as_bytes()).expect("null requests nothing");
        !body.extra.contains_key(name)
    };
    let lines = include_str!("vllm_request_fields.txt").lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.map(|line| line.split_once(' ').expect("a class and a name").1).collect();
    assert!(names.len() > 60, "{}", names.len());
    let unknown: Vec<_> = names.iter().filter(|name| !is_read(name) && !is_known(name)).collect();
    assert!(unknown.is_empty(), "neither read nor refused: {unknown:?}");
    assert!(!is_read("some_new_field") && !is_known("some_new_field"));
}

#[tokio::test]
async fn fields_that_change_the_answer_and_are_not_supported_are_refused() {
    let server = TestServer::start(FakeEngine::new().shared(), HttpConfig::default()).await;
    let completion = json!({"model": MODEL, "prompt": "x", "max_tokens": 4});
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4});
    let of_user = |field: &str, value: Value| {
        let mut message = json!({"role": "user", "content": "x"});
        message[field] = value;
        json!({"messages": [message]})
    };
    for (path, changes, param) in [
        (COMPLETIONS, json!({"truncate_prompt_tokens": 4}), "truncate_prompt_tokens"),
        (COMPLETIONS, json!({"bad_words": ["the", "<unk>"]}), "bad_words"),
        (COMPLETIONS, json!({"stop": ["a"], "include_stop_str_in_output": true}), "include_stop_str_in_output"),
        (COMPLETIONS, json!({"prompt_embeds": "AAAA"}), "prompt_embeds"),
        (COMPLETIONS, json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (COMPLETIONS, json!({"allowed_token_ids": [1, -1]}), "allowed_token_ids[1]"),
        (COMPLETIONS, json!({"add_special_tokens": "no"}), "add_special_tokens"),
        (COMPLETIONS, json!({"skip_special_tokens": false}), "skip_special_tokens"),
        (
            COMPLETIONS,
            json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}),
            "stream_options.continuous_usage_stats",
        ),
        (CHAT, json!({"continue_final_message": true}), "continue_final_message"),
        (CHAT, json!({"continue_final_message": true, "add_generation_prompt": true}), "continue_final_message"),
        (CHAT, json!({"chat_template_kwargs": {"enable_thinking": false}}), "chat_template_kwargs"),
        (CHAT, json!({"chat_template": "{{ 1 }}"}), "chat_template"),
        (CHAT, json!({"documents": [{"title": "t"}]}), "documents"),
        (CHAT, json!({"reasoning_effort": "low"}), "reasoning_effort"),
        (CHAT, of_user("name", json!("ann")), "messages[0].name"),
        (CHAT, of_user("reasoning_content", json!("so")), "messages[0].reasoning_content"),
        (CHAT, of_user("prefix", json!(true)), "messages[0].prefix"),
    ] {
        let mut body = if path == CHAT { chat.clone() } else { completion.clone() };
        body.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
        let reply = server.post(path, &body).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{changes}: {}", reply.text);
    }
    for harmless in [
        json!({"request_id": "a", "session_id": "b", "length_penalty": 2.0, "truncation_side": "left"}),
        json!({"include_stop_str_in_output": false, "bad_words": [], "truncate_prompt_tokens": null}),
    ] {
        let mut body = completion.clone();
        body.as_object_mut().expect("an object").extend(harmless.as_object().expect("an object").clone());
        assert_eq!(server.post(COMPLETIONS, &body).await.status, 200, "{harmless}");
    }
}

#[tokio::test]
async fn fields_that_are_supported_reach_the_engine() {
    let fake = FakeEngine::new();
    let server = TestServer::start(fake.clone().shared(), HttpConfig::default()).await;
    let turns = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let messages = vec![
        ChatMessage { role: "user".into(), content: "a".into() },
        ChatMessage { role: "assistant".into(), content: "b".into() },
    ];
    let conversation =
        |end, add_special_tokens| Prompt::Chat(Conversation { messages: messages.clone(), end, add_special_tokens });
    for (path, fields, prompt) in [
        (COMPLETIONS, json!({"prompt": "a", "add_special_tokens": false}), Prompt::BareText("a".into())),
        (COMPLETIONS, json!({"prompt": "a", "add_special_tokens": true}), Prompt::Text("a".into())),
        (COMPLETIONS, json!({"prompt": [5], "add_special_tokens": false}), Prompt::Tokens(vec![5])),
        (CHAT, json!({"messages": turns}), conversation(ChatEnd::Answer, false)),
        (CHAT, json!({"messages": turns, "add_generation_prompt": false}), conversation(ChatEnd::Turn, false)),
        (
            CHAT,
            json!({"messages": turns, "add_generation_prompt": false, "continue_final_message": true}),
            conversation(ChatEnd::FinalMessage, false),
        ),
        (CHAT, json!({"messages": turns, "add_special_tokens": true}), conversation(ChatEnd::Answer, true)),
    ] {
        let mut body = json!({"model": MODEL, "max_tokens": 2, "allowed_token_ids": [9, 3, 9]});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 200, "{fields}: {}", reply.text);
        let seen = fake.seen().borrow().last().cloned().expect("the engine was asked");
        assert_eq!(seen.prompt, prompt, "{fields}");
        assert_eq!(seen.sampling.allowed_token_ids, Some(vec![3, 9]));
    }
}

/// Hints change no answer, and reach the engine in one form.
#[tokio::test]
async fn wishes_to_keep_kv_reach_the_engine() {
    let fake = FakeEngine::new();
    let server = TestServer::start(fake.clone().shared(), HttpConfig::default()).await;
    let ephemeral = json!({"type": "ephemeral", "ttl": "1h"});
    let marked = json!([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": ephemeral}]}]);
    let unknown = json!({"actions": [{"action_type": "kv.explode", "action_version": "1.0"}]});
    for (path, fields, kept) in [
        (COMPLETIONS, json!({"prompt": "a"}), None),
        (COMPLETIONS, json!({"prompt": "a", "kv_hints": unknown}), None),
        (COMPLETIONS, json!({"prompt": "a", "cenote": {"retain": {"seconds": 5, "priority": 9}}}), Some((5000, 9))),
        (COMPLETIONS, json!({"prompt": "a", "prompt_cache_retention": "24h"}), Some((86_400_000, 0))),
        (CHAT, json!({"messages": marked, "session_id": "s"}), Some((3_600_000, 0))),
    ] {
        let mut body = json!({"model": MODEL, "max_tokens": 2});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 200, "{fields}: {}", reply.text);
        let seen = fake.seen().borrow().last().cloned().expect("the engine was asked").retain;
        assert_eq!(seen.map(|retain| (retain.ms, retain.priority)), kept, "{fields}");
        let has_session = seen.is_some_and(|retain| retain.session.is_some());
        assert_eq!(has_session, fields.get("session_id").is_some(), "{fields}");
    }
    // Choices of one prompt are no turns of a conversation.
    let two =
        json!({"model": MODEL, "max_tokens": 2, "prompt": "a", "n": 2, "session_id": "s", "cache_control": ephemeral});
    assert_eq!(server.post(COMPLETIONS, &two).await.status, 200);
    let seen = fake.seen().borrow().last().cloned().expect("the engine was asked").retain;
    assert_eq!(seen.expect("a wish").session, None);
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("\ncenote_http_hints_unknown_total 1\n"), "{metrics}");
    let wrong = json!({"model": MODEL, "prompt": "a", "cache_control": {"type": "ephemeral", "ttl": "soon"}});
    let reply = server.post(COMPLETIONS, &wrong).await;
    assert_eq!((reply.status, reply.text.contains("cache_control.ttl")), (400, true), "{}", reply.text);
}
