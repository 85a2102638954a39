//! Failures are reported, and leave no request or block behind.

use crate::common::{
    Held, MemoryStore, collect, config, forwarded, greedy, model_dir, patience, prompt, request, run, start, submit,
};
use cenote_base::engine::{ChatMessage, ErrorKind, Event, HandOver, Phase, Prompt};
use cenote_base::testing::{PATIENCE, until};
use cenote_base::{Clock, Engine, Request, SamplingParams};
use cenote_engine::{EngineConfig, LoadedModel};
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn invalid_requests_name_their_field() {
    let dir = model_dir("gqa-tied");
    let config = EngineConfig { max_model_len: Some(64), ..config(dir.path()) };
    let engine = start(&config, None);
    let chat = |role: &str| Prompt::Chat(vec![ChatMessage { role: role.to_owned(), content: "hi".to_owned() }].into());
    let sampling = |change: fn(&mut SamplingParams)| {
        let mut sampling = greedy(4);
        change(&mut sampling);
        sampling
    };
    let tokens = |tokens: &[u32]| Prompt::Tokens(tokens.to_vec());
    for (prompt, sampling, field, words) in [
        (Prompt::Text(String::new()), greedy(4), "prompt", "empty"),
        (tokens(&[]), greedy(4), "prompt", "empty"),
        (tokens(&[1, 304]), greedy(4), "prompt", "token 304"),
        (tokens(&[1; 64]), greedy(1), "prompt", "64 tokens"),
        (tokens(&[1; 60]), greedy(5), "max_tokens", "room for 4"),
        (tokens(&[1]), greedy(0), "max_tokens", "is 0"),
        (tokens(&[1]), sampling(|s| s.temperature = 2.1), "temperature", "2.1"),
        (tokens(&[1]), sampling(|s| s.temperature = f32::NAN), "temperature", "NaN"),
        (tokens(&[1]), sampling(|s| s.top_p = 0.0), "top_p", "is 0"),
        (tokens(&[1]), sampling(|s| s.stop = vec![String::new()]), "stop", "0 bytes"),
        (Prompt::Chat(vec![].into()), greedy(4), "messages", "empty"),
        (chat("pirate"), greedy(4), "messages", "unknown role pirate"),
    ] {
        let error = run(&engine, request(prompt, sampling)).unwrap_err();
        let is_long = words == "64 tokens" || words == "room for 4";
        let kind = if is_long { ErrorKind::ContextLength } else { ErrorKind::InvalidRequest };
        assert_eq!((error.kind, error.field.as_deref()), (kind, Some(field)), "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    let hand_over = HandOver { prompt_token_ids: vec![1], output_token_ids: vec![999], ..HandOver::default() };
    let decode = Request { phase: Phase::Decode(hand_over), ..request(tokens(&[1]), greedy(4)) };
    assert_eq!(run(&engine, decode).unwrap_err().kind, ErrorKind::InvalidRequest);
    assert!(engine.drain(patience()), "refused requests are not in flight");
}

#[test]
fn a_model_without_template_refuses_chats() {
    let dir = model_dir("gqa-tied");
    std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let engine = start(&config(dir.path()), None);
    let error = run(
        &engine,
        request(Prompt::Chat(vec![ChatMessage { role: "user".into(), content: "hi".into() }].into()), greedy(4)),
    );
    let error = error.unwrap_err();
    assert_eq!(error.field.as_deref(), Some("messages"));
    assert!(error.message.contains("no chat template"), "{error}");
}

#[test]
fn a_timeout_ends_a_request() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let error = run(&engine, Request { timeout_ms: 0, ..request(prompt(1, 10), greedy(400)) }).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(engine.drain(patience()));
}

#[test]
fn aborted_and_abandoned_requests_free_their_blocks() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    // Aborted after the first token.
    let aborted = request(prompt(1, 40), greedy(400));
    let id = aborted.id;
    let held = Held::at_first_token(&engine, aborted);
    engine.abort(id);
    forwarded(&engine);
    let events = held.go();
    assert!(matches!(events.recv().unwrap(), Event::Token { .. }));
    assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), Event::Failed(error) if error.kind == ErrorKind::Aborted));
    // Abandoned: the sink returns false.
    let mut tokens = 0;
    let (done, ended) = channel();
    let sink = move |_: Event| {
        tokens += 1;
        if tokens == 3 {
            done.send(()).unwrap();
        }
        tokens < 3
    };
    engine.submit(request(prompt(2, 40), greedy(400)), Box::new(sink)).unwrap();
    ended.recv_timeout(PATIENCE).unwrap();
    assert!(ended.recv().is_err(), "the sink is dropped, not called again");
    assert!(engine.drain(patience()));
    // The engine's thread publishes its gauges when it becomes idle. A request refused while
    // draining does not wake the thread, so there is no event to wait for: poll.
    let free = || {
        let values = engine.stats().values;
        (values.get("kv_blocks_free").copied(), values.get("kv_blocks").copied())
    };
    until("free blocks", || (free().0.is_some() && free().0 == free().1).then_some(()));
}

#[test]
fn an_overloaded_engine_says_when_to_retry() {
    let dir = model_dir("gqa-tied");
    let config = EngineConfig { max_num_seqs: 1, max_waiting: 2, ..config(dir.path()) };
    let engine = start(&config, None);
    let new = |seed| request(prompt(seed, 40), greedy(300));
    // One runs, two wait.
    let first = Held::at_first_token(&engine, new(0));
    let waiting = [1, 2].map(|seed| submit(&engine, new(seed)).unwrap());
    let error = submit(&engine, new(3)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Overloaded);
    assert!(error.retry_after_ms.is_some());
    let running = first.go();
    assert!(std::iter::once(&running).chain(&waiting).all(|events| collect(events).unwrap().tokens.len() == 300));
}

#[test]
fn draining_finishes_running_requests_and_refuses_new_ones() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let held = Held::at_first_token(&engine, request(prompt(1, 40), greedy(100)));
    assert!(!engine.drain(Clock::system().after(Duration::ZERO)));
    let error = submit(&engine, request(prompt(2, 10), greedy(1))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let events = held.go();
    assert!(engine.drain(patience()));
    assert_eq!(collect(&events).unwrap().tokens.len(), 100);
}

#[test]
fn a_panic_in_a_step_ends_all_requests() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    run(&engine, request(prompt(1, 40), greedy(4))).unwrap();
    store.shared.lock().unwrap().explode = true;
    let events: Vec<_> = (2..5).map(|seed| submit(&engine, request(prompt(seed, 40), greedy(400)))).collect();
    for outcome in events.into_iter().map(|events| events.and_then(|events| collect(&events))) {
        let kind = outcome.unwrap_err().kind;
        assert!(matches!(kind, ErrorKind::Internal | ErrorKind::Unavailable), "{kind:?}");
    }
    assert!(engine.drain(patience()));
    assert_eq!(submit(&engine, request(prompt(9, 4), greedy(1))).unwrap_err().kind, ErrorKind::Unavailable);
}

#[test]
fn dropping_an_engine_ends_its_requests() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let events = submit(&engine, request(prompt(1, 40), greedy(400))).unwrap();
    drop(engine);
    match collect(&events) {
        Ok(outcome) => assert_eq!(outcome.tokens.len(), 400),
        Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable),
    }
}

#[test]
fn an_error_names_the_damaged_directory() {
    type Damage = fn(&std::path::Path);
    let cases: [(Damage, &str, &str); 6] = [
        (|dir| std::fs::remove_file(dir.join("tokenizer.json")).unwrap(), "tokenizer.json", "No such file"),
        (|dir| std::fs::remove_file(dir.join("config.json")).unwrap(), "config.json", "No such file"),
        (|dir| std::fs::remove_file(dir.join("model.safetensors")).unwrap(), "", "has neither model.safetensors"),
        (|dir| std::fs::write(dir.join("config.json"), "{").unwrap(), "config.json", "not valid JSON"),
        (
            |dir| {
                let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
                std::fs::write(dir.join("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
            },
            "model.safetensors",
            "cut off",
        ),
        (
            |dir| {
                let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
                let text = text.replace("\"intermediate_size\": 112", "\"intermediate_size\": 96");
                std::fs::write(dir.join("config.json"), text).unwrap();
            },
            "model.safetensors",
            "has shape [112, 64]; the configuration needs [96, 64]",
        ),
    ];
    for (damage, file, words) in cases {
        let dir = model_dir("gqa-tied");
        damage(dir.path());
        let error = LoadedModel::load(&config(dir.path())).err().expect("damage is an error").to_string();
        assert!(error.contains(file) && error.contains(words), "{error}");
        assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
    }
}

#[test]
fn an_error_names_the_setting_that_does_not_fit() {
    let dir = model_dir("gqa-tied");
    let base = config(dir.path());
    for (config, words) in [
        (EngineConfig { block_tokens: 20, ..base.clone() }, "block_tokens: 20"),
        (EngineConfig { max_model_len: Some(513), ..base.clone() }, "max_model_len: 513"),
        (EngineConfig { max_model_len: Some(1), ..base.clone() }, "max_model_len: 1"),
        (EngineConfig { max_model_len: Some(512), kv_blocks: Some(3), ..base.clone() }, "3 KV blocks"),
        (EngineConfig { kv_bytes: 10, ..base.clone() }, "kv_bytes: 10"),
        (EngineConfig { max_num_seqs: 0, ..base.clone() }, "max_num_seqs: 0"),
    ] {
        let error = LoadedModel::load(&config).err().expect("does not fit").to_string();
        assert!(error.contains(words), "{error}");
    }
    let small = LoadedModel::load(&EngineConfig { kv_blocks: Some(3), ..base }).unwrap();
    assert_eq!(small.max_model_len(), 48, "the default context is the capacity of the blocks");
}
