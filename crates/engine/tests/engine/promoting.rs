//! Requests that wait for blocks from a slower tier.

use crate::common::{MemoryStore, collect, config, greedy, model_dir, prompt, request, run, start, submit};
use cenote_base::engine::{ErrorKind, Event, Prompt};
use cenote_base::{Clock, Deadline, Engine, Request};
use cenote_engine::EngineConfig;
use cenote_store::Promotion;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn after(seconds: u64) -> Deadline {
    Clock::system().after(Duration::from_secs(seconds))
}

/// A store whose next requests wait for these promotions.
fn store_of(promotions: &[Promotion]) -> MemoryStore {
    let store = MemoryStore::default();
    store.shared.lock().unwrap().promotions.extend(promotions.iter().cloned());
    store
}

#[test]
fn a_promotion_without_an_answer_ends_with_its_deadline() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), Some(store_of(&[Promotion::of(1, after(0))])));
    assert_eq!(run(&engine, request(prompt(1, 40), greedy(4))).unwrap().tokens.len(), 4);
}

/// A request's own timeout counted only when its promotion had ended.
#[test]
fn a_timeout_ends_a_request_that_waits_for_blocks() {
    let dir = model_dir("gqa-tied");
    let engine = start(&config(dir.path()), Some(store_of(&[Promotion::of(1, after(20))])));
    let begin = Instant::now();
    let error = run(&engine, Request { timeout_ms: 50, ..request(prompt(1, 40), greedy(4)) }).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert!(engine.drain(after(60)));
}

#[test]
fn an_aborted_request_waits_no_longer_and_its_id_is_unique() {
    let dir = model_dir("gqa-tied");
    let promotion = Promotion::of(1, after(600));
    let engine = start(&config(dir.path()), Some(store_of(&[promotion.clone(), promotion.clone()])));
    let [first, second] = [request(prompt(1, 40), greedy(4)), request(prompt(2, 40), greedy(4))];
    let id = first.id;
    let waits = submit(&engine, first).unwrap();
    // The same id again: the first request keeps it.
    assert_eq!(run(&engine, Request { id, ..second.clone() }).unwrap_err().kind, ErrorKind::Internal);
    engine.abort(id);
    assert_eq!(collect(&waits).unwrap_err().kind, ErrorKind::Aborted);
    let waits = submit(&engine, second).unwrap();
    promotion.one_done();
    assert_eq!(collect(&waits).unwrap().tokens.len(), 4);
    assert!(engine.drain(after(60)));
}

/// Its blocks had arrived, but the scheduler's queue was full, and the request was refused.
#[test]
fn a_request_whose_blocks_arrived_is_not_refused() {
    let dir = model_dir("gqa-tied");
    let promotion = Promotion::of(1, after(600));
    let store = MemoryStore::default();
    let config = EngineConfig { kv_blocks: Some(30), max_num_seqs: 2, max_waiting: 1, ..config(dir.path()) };
    let engine = start(&config, Some(store.clone()));
    // Runs until it is released, at 10 ms for a token.
    let (release, released) = channel::<()>();
    let (sender, events) = channel();
    let sink = move |event| {
        let _ = released.recv_timeout(Duration::from_millis(10));
        sender.send(event).is_ok()
    };
    engine.submit(request(prompt(1, 40), greedy(400)), Box::new(sink)).unwrap();
    assert!(matches!(events.recv().unwrap(), Event::Token { .. }));
    store.shared.lock().unwrap().promotions.push_back(promotion.clone());
    let promoted = submit(&engine, request(prompt(2, 20), greedy(4))).unwrap();
    // There is no room for it beside the first.
    let waiting = submit(&engine, request(prompt(3, 440), greedy(4))).unwrap();
    let deadline = after(60);
    while engine.stats().values["requests_waiting"] < 2.0 {
        assert!(!deadline.passed(), "{:?}", engine.stats().values);
        std::thread::yield_now();
    }
    promotion.one_done();
    drop(release);
    for (events, count) in [(promoted, 4), (waiting, 4)] {
        assert_eq!(collect(&events).unwrap().tokens.len(), count);
    }
    assert!(engine.drain(after(60)));
}

/// The blocks of an announced turn are fetched without a request for them, and only when it is near.
#[test]
fn an_announced_turn_is_fetched_before_it_comes() {
    let dir = model_dir("gqa-tied");
    let over = || Promotion::of(1, after(0));
    let fetched = Promotion::of(1, after(600));
    for (ms, is_near) in [(1000, true), (3_600_000, false)] {
        // The first is for the request itself, the second for the turn.
        let store = store_of(&[over(), fetched.clone()]);
        let engine = start(&config(dir.path()), Some(store.clone()));
        let announced = Request { continues_in_ms: Some(ms), ..request(prompt(4, 40), greedy(4)) };
        assert_eq!(run(&engine, announced).unwrap().tokens.len(), 4);
        // One that keeps its KV for itself looks at no slower tier, and the engine goes round once more.
        let other = Request { use_pool: false, ..request(prompt(3, 40), greedy(4)) };
        run(&engine, other).unwrap();
        assert_eq!(store.shared.lock().unwrap().promotions.is_empty(), is_near, "{ms}");
        if is_near {
            fetched.one_done();
        }
        let deadline = after(60);
        while engine.stats().values["prefetch_hints_promoted_total"] != f64::from(u8::from(is_near)) {
            assert!(!deadline.passed(), "{:?}", engine.stats().values);
            std::thread::yield_now();
        }
        assert_eq!(engine.stats().values["prefetch_hints_total"], 1.0);
    }
}

/// The time of a prompt's tokens decides whether a read from a slower tier pays.
#[test]
fn the_store_learns_how_long_computing_takes() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    let computed = || store.shared.lock().unwrap().computed_tokens;
    run(&engine, request(prompt(1, 100), greedy(20))).unwrap();
    assert!(engine.drain(after(60)));
    assert_eq!(computed(), 100, "the prompt, and no single tokens");
}

#[test]
fn a_step_that_loads_is_no_measure_of_computing() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start(&config(dir.path()), Some(store.clone()));
    run(&engine, request(prompt(1, 100), greedy(2))).unwrap();
    let Prompt::Tokens(mut tokens) = prompt(1, 100) else { panic!("tokens") };
    tokens.extend(0..50);
    let outcome = run(&engine, request(Prompt::Tokens(tokens), greedy(2))).unwrap();
    assert_eq!(outcome.usage.cached_tokens, 96);
    assert!(engine.drain(after(60)));
    assert_eq!(store.shared.lock().unwrap().computed_tokens, 100);
}
