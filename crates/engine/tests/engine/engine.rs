//! The serving loop gives the same answers cold, warm, batched, preempted and handed over.

use crate::common::{
    MemoryStore, collect, config, crowd, greedy, model_dir, patience, prompt, request, run, start, submit_together,
};
use cenote_base::engine::{FinishReason, Phase, Prompt};
use cenote_base::testing::{ManualTime, until};
use cenote_base::{CacheSalt, Engine, Health, Request, SamplingParams, TokenId};
use cenote_engine::{ElementType, EngineConfig};
use cenote_store::Miss;
use std::time::Duration;

#[test]
fn text_is_identical_cold_warm_and_without_pool() {
    let dir = model_dir("gqa-tied");
    for dtype in [ElementType::F32, ElementType::Bf16] {
        let config = EngineConfig { dtype, ..config(dir.path()) };
        let store = MemoryStore::default();
        let (first, second) = (start(&config, Some(store.clone())), start(&config, Some(store)));
        let without = start(&config, None);
        for (seed, length) in [(1, 100), (2, 96), (3, 15), (4, 17), (5, 1)] {
            let new = || request(prompt(seed, length), greedy(40));
            let cold = run(&first, new()).unwrap();
            let warm = run(&second, new()).unwrap();
            let alone = run(&without, new()).unwrap();
            assert_eq!((cold.usage.cached_tokens, alone.usage.cached_tokens), (0, 0));
            // The last prompt token is always computed, so a prompt of whole blocks does not load
            // its last one.
            assert_eq!(warm.usage.cached_tokens as usize, (length - 1) / 16 * 16);
            assert_eq!((&cold.tokens, &cold.text), (&warm.tokens, &warm.text), "{dtype} {length}");
            assert_eq!((&cold.tokens, &cold.text), (&alone.tokens, &alone.text), "{dtype} {length}");
            assert_eq!((cold.tokens.len(), cold.reason), (40, FinishReason::Length));
            let aside = run(&second, cenote_base::Request { use_pool: false, ..new() }).unwrap();
            assert_eq!((aside.usage.cached_tokens, aside.tokens), (0, cold.tokens));
        }
        assert!(second.stats().values["pool_loads_total"] > 0.0);
    }
}

#[test]
fn requests_share_blocks_only_within_their_salt() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), Some(MemoryStore::default()));
    let salts = [None, CacheSalt::of(None, Some("red")), CacheSalt::of(Some("red"), None)];
    // The second prompt is shorter than a block: its first block becomes full during generation.
    for (seed, length, warm) in [(1, 40, 32), (2, 10, 32)] {
        let Prompt::Tokens(first) = prompt(seed, length) else { unreachable!() };
        let ask = |tokens: &[TokenId], cache_salt| {
            let request = request(Prompt::Tokens(tokens.to_vec()), greedy(30));
            run(&engine, cenote_base::Request { cache_salt, ..request }).unwrap()
        };
        let cold: Vec<_> = salts.iter().map(|&salt| ask(&first, salt)).collect();
        assert!(cold.iter().all(|answer| answer.usage.cached_tokens == 0 && answer.tokens == cold[0].tokens));
        let longer = [first, cold[0].tokens.clone()].concat();
        for &salt in &salts {
            assert!(ask(&longer, salt).usage.cached_tokens >= warm);
        }
        assert_eq!(ask(&longer, CacheSalt::of(None, Some("blue"))).usage.cached_tokens, 0);
    }
}

#[test]
fn generated_blocks_are_shared() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store));
    let Prompt::Tokens(mut tokens) = prompt(8, 30) else { unreachable!() };
    let first = run(&engine, request(Prompt::Tokens(tokens.clone()), greedy(40))).unwrap();
    // A second turn: the first prompt, the answer, and a new token.
    tokens.extend(first.tokens);
    tokens.push(5);
    let second = run(&engine, request(Prompt::Tokens(tokens), greedy(4))).unwrap();
    // Of the 70 earlier tokens, the last one's KV was never computed: 4 full blocks.
    assert_eq!(second.usage.cached_tokens, 64);
}

#[test]
fn results_do_not_depend_on_neighbours() {
    let dir = model_dir("gqa-untied-llama3");
    // A small token budget splits prompts into chunks; few blocks force preemption.
    let crowded = EngineConfig {
        max_num_batched_tokens: 24,
        kv_blocks: Some(14),
        max_model_len: Some(160),
        max_num_seqs: 8,
        ..config(dir.path())
    };
    let alone = start(&config(dir.path()), None);
    let late = MemoryStore::default();
    late.shared.lock().unwrap().pending = true;
    for store in [None, Some(MemoryStore::default()), Some(late)] {
        let engine = start(&crowded, store);
        let sampled = SamplingParams { temperature: 0.8, top_p: 0.9, seed: Some(3), ..greedy(40) };
        let requests: Vec<_> = (0..10)
            .map(|seed| {
                let sampling = if seed % 2 == 0 { greedy(40) } else { sampled.clone() };
                request(prompt(seed, 7 * seed as usize + 1), sampling)
            })
            .collect();
        let events = submit_together(&engine, &requests);
        for (request, events) in requests.into_iter().zip(events) {
            let together = collect(&events).unwrap();
            let by_itself = run(&alone, request).unwrap();
            assert_eq!((together.tokens, together.text), (by_itself.tokens, by_itself.text));
        }
        assert!(engine.drain(patience()));
        let stats = engine.stats().values;
        assert!(stats["preemptions_total"] > 0.0, "{stats:?}");
    }
}

#[test]
fn vanished_blocks_are_recomputed_and_saved_again() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    let new = || request(prompt(6, 100), greedy(20));
    let cold = run(&engine, new()).unwrap();
    let saved = store.shared.lock().unwrap().saved.clone();
    for (gone, cached, pending) in [(3, 48, false), (0, 0, false), (5, 80, false), (3, 48, true), (0, 0, true)] {
        store.shared.lock().unwrap().pending = pending;
        store.shared.lock().unwrap().vanish.insert(saved[gone]);
        let warm = run(&engine, new()).unwrap();
        assert_eq!(warm.usage.cached_tokens, cached);
        assert_eq!(warm.tokens, cold.tokens);
        assert!(store.shared.lock().unwrap().blocks.contains_key(&saved[gone]), "a recomputed block is saved again");
    }
}

#[test]
fn another_worker_continues_a_request() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let (prefill, decode) =
        (start(&config(dir.path()), Some(store.clone())), start(&config(dir.path()), Some(store.clone())));
    for sampling in [greedy(50), SamplingParams { temperature: 1.0, seed: Some(9), ..greedy(50) }] {
        let whole = request(prompt(11, 70), sampling);
        let want = run(&prefill, cenote_base::Request { use_pool: false, ..whole.clone() }).unwrap();
        let first = run(&prefill, cenote_base::Request { phase: Phase::Prefill, ..whole.clone() }).unwrap();
        assert_eq!((first.reason, first.tokens.len()), (FinishReason::HandOver, 1));
        let hand_over = first.hand_over.unwrap();
        assert_eq!(hand_over.emitted_bytes as usize, first.text.len());
        assert_eq!(store.shared.lock().unwrap().held.last().map(Vec::len), Some(4), "70 tokens fill four blocks");
        let loads = store.shared.lock().unwrap().loads;
        let rest =
            run(&decode, cenote_base::Request { phase: Phase::Decode(hand_over.clone()), ..whole.clone() }).unwrap();
        assert_eq!(store.shared.lock().unwrap().loads, loads + 4);
        assert_eq!([first.tokens.clone(), rest.tokens].concat(), want.tokens);
        assert_eq!(first.text.clone() + &rest.text, want.text);
        assert_eq!(rest.usage.completion_tokens, 50);
        assert_eq!(rest.usage.cached_tokens, hand_over.cached_tokens);

        // The decode worker dies after ten more tokens; the hand-over suffices for a third worker.
        let mut later = hand_over;
        later.output_token_ids = want.tokens[..11].to_vec();
        let resumed = run(&decode, cenote_base::Request { phase: Phase::Decode(later), ..whole }).unwrap();
        assert_eq!(resumed.tokens, want.tokens[11..]);
        assert_eq!(first.text + &resumed.text, want.text);
    }
}

/// A worker died between its last token and `Finished`. The next worker must generate no token.
/// It generated one token too many after a stop text, and refused the request if `max_tokens` was
/// used up.
#[test]
fn a_complete_hand_over_generates_no_token() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let cenote_base::engine::Prompt::Tokens(prompt_token_ids) = prompt(2, 20) else { panic!("a prompt of tokens") };
    let whole = request(prompt(2, 20), greedy(40));
    let text = run(&engine, whole).unwrap().text;
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let stopping = SamplingParams { stop: vec![stop], ..greedy(40) };
    for (sampling, reason) in [(greedy(40), FinishReason::Length), (stopping, FinishReason::Stop)] {
        let whole = request(prompt(2, 20), sampling);
        let want = run(&engine, whole.clone()).unwrap();
        assert_eq!(want.reason, reason);
        let hand_over = cenote_base::engine::HandOver {
            prompt_token_ids: prompt_token_ids.clone(),
            output_token_ids: want.tokens.clone(),
            ..Default::default()
        };
        let rest = run(&engine, cenote_base::Request { phase: Phase::Decode(hand_over), ..whole }).unwrap();
        assert_eq!((rest.tokens.len(), rest.reason), (0, reason));
        assert_eq!(rest.text, want.text, "nothing was sent before, so all of the text remains");
        assert_eq!(rest.usage.completion_tokens, want.usage.completion_tokens);
    }
}

#[test]
fn unseeded_requests_differ() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let new = || request(prompt(1, 10), SamplingParams { max_tokens: Some(20), ..SamplingParams::default() });
    assert_ne!(run(&engine, new()).unwrap().tokens, run(&engine, new()).unwrap().tokens);
}

#[test]
fn the_text_ends_before_a_stop_text() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let new = |stop: Vec<String>| request(prompt(2, 20), SamplingParams { stop, ..greedy(60) });
    let whole = run(&engine, new(vec![])).unwrap();
    let chars: Vec<char> = whole.text.chars().collect();
    // Five characters from the middle cross a token boundary somewhere; they need not be unique.
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 5].iter().collect();
    let stopped = run(&engine, new(vec!["never there".to_owned(), stop.clone()])).unwrap();
    assert_eq!(stopped.reason, FinishReason::Stop);
    assert_eq!(stopped.text, whole.text[..whole.text.find(&stop).unwrap()]);
    assert!(stopped.tokens.len() < whole.tokens.len());
}

#[test]
fn the_end_of_sequence_token_ends_the_text() {
    let dir = model_dir("gqa-tied");
    let whole = run(&start(&config(dir.path()), None), request(prompt(2, 20), greedy(30))).unwrap();
    let eos = whole.tokens[12];
    let at = whole.tokens.iter().position(|token| *token == eos).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), format!("{{\"eos_token_id\": [299, {eos}]}}")).unwrap();
    let engine = start(&config(dir.path()), None);
    let ended = run(&engine, request(prompt(2, 20), greedy(30))).unwrap();
    assert_eq!((ended.reason, &ended.tokens[..]), (FinishReason::Stop, &whole.tokens[..=at]));
    assert_eq!(ended.usage.completion_tokens as usize, at + 1);
    let on = run(&engine, request(prompt(2, 20), SamplingParams { ignore_eos: true, ..greedy(30) })).unwrap();
    assert_eq!(on.tokens, whole.tokens);
}

#[test]
fn text_and_chat_prompts_are_tokenized_as_by_transformers() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), None);
    let expected = std::fs::read_to_string(dir.path().join("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let tokenizer = engine.model().tokenizer();
    for case in expected["texts"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(case["text"].as_str().unwrap()).unwrap(), ids);
        assert_eq!(tokenizer.decode(&ids).unwrap(), case["decoded"].as_str().unwrap());
    }
    let chat = &expected["chat"];
    let messages: Vec<cenote_base::engine::ChatMessage> = serde_json::from_value(chat["messages"].clone()).unwrap();
    let rendered = tokenizer.chat().unwrap().render(&messages.clone().into()).unwrap();
    assert_eq!(rendered, chat["rendered"].as_str().unwrap());
    let ids: Vec<u32> = serde_json::from_value(chat["ids"].clone()).unwrap();
    assert_eq!(tokenizer.encode_rendered(&rendered).unwrap(), ids);

    let by_chat = run(&engine, request(Prompt::Chat(messages.into()), greedy(5))).unwrap();
    let by_tokens = run(&engine, request(Prompt::Tokens(ids.clone()), greedy(5))).unwrap();
    assert_eq!(by_chat.tokens, by_tokens.tokens);
    assert_eq!(by_chat.usage.prompt_tokens as usize, ids.len());
    assert!(engine.describe().has_chat_template);
}

/// Once, each step of the waiting counted.
#[test]
fn lookups_count_once_for_an_admitted_request() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let config = EngineConfig { kv_blocks: Some(8), max_model_len: Some(96), ..config(dir.path()) };
    let engine = start(&config, Some(store.clone()));
    // Each needs at least five of the eight KV blocks, so all but one wait.
    let requests: Vec<_> = (0..5).map(|_| request(prompt(3, 70), greedy(10))).collect();
    let (_, stats) = crowd(&engine, &requests);
    assert_eq!(stats["preemptions_total"], 0.0);
    let counts = || {
        let shared = store.shared.lock().unwrap();
        (shared.counted, shared.loads)
    };
    let (counted, loads) = counts();
    assert_eq!(counted, (5 * 4, loads), "hits are what was loaded");
    assert!(loads > 0);
    let recorded = || std::mem::take(&mut store.shared.lock().unwrap().recorded);
    assert_eq!(recorded(), [(4, 70, Some(10)); 5], "each once, with its answer");

    // A block that is gone is a hit that failed; those behind it were not asked for.
    let Prompt::Tokens(tokens) = prompt(3, 70) else { unreachable!() };
    let second = MemoryStore::names(&tokens)[1];
    store.shared.lock().unwrap().vanish.insert(second);
    run(&engine, request(prompt(3, 70), greedy(1))).unwrap();
    let ((asked, found), all) = counts();
    assert_eq!((asked - counted.0, found - counted.1, all - loads), (4, 2, 2));
    assert_eq!(recorded(), [(4, 70, Some(1))], "once, though its load failed");
}

/// Once for each request, by the client's name.
#[test]
fn an_admitted_request_names_the_first_block_that_the_store_lacks() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    let Prompt::Tokens(tokens) = prompt(3, 70) else { unreachable!() };
    let mut forked = tokens.clone();
    forked[40] ^= 1;
    let ask = |tokens: &[TokenId], label: Option<&str>| {
        let asked = request(Prompt::Tokens(tokens.to_vec()), greedy(1));
        run(&engine, Request { label: label.map(str::to_owned), ..asked }).unwrap();
        std::mem::take(&mut store.shared.lock().unwrap().missed)
    };
    let [cold] = &ask(&tokens, Some("mine"))[..] else { panic!("one request, one miss") };
    let first = MemoryStore::names(&tokens)[0];
    assert_eq!(*cold, Miss { request: "mine".to_owned(), tenant: None, blocks: 4, found: 0, fetched: 0, hash: first });
    assert_eq!(ask(&tokens, None), []);
    let [fork] = &ask(&forked, None)[..] else { panic!("one request, one miss") };
    assert_eq!((fork.found, fork.hash), (2, MemoryStore::names(&forked)[2]));
}

#[test]
fn an_idle_engine_reports_a_degraded_store() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let time = ManualTime::start();
    let engine = start(&EngineConfig { clock: time.clock(), ..config(dir.path()) }, Some(store.clone()));
    assert_eq!(engine.health(), Health::Ok);
    for health in [Health::degraded("the region is damaged"), Health::Ok] {
        store.shared.lock().unwrap().health = health.clone();
        // The engine may have begun its wait at any time before, and it reads once a second.
        until("the store's health", || {
            time.advance(Duration::from_secs(1));
            (engine.health() == health).then_some(())
        });
    }
}
