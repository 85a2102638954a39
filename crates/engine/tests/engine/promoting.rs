//! Requests that wait for blocks from a slower tier.

use crate::common::{
    Cost, Held, MemoryStore, collect, config, forwarded, greedy, model_dir, patience, prompt, request, run, start,
    start_exact, submit,
};
use cenote_base::engine::{ErrorKind, Prompt, Retain};
use cenote_base::testing::{ManualTime, until};
use cenote_base::{Engine, Request};
use cenote_engine::{EngineConfig, LlmEngine};
use cenote_store::Promotion;
use std::path::Path;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// An engine in manual time, and its store.
struct World {
    time: &'static ManualTime,
    store: MemoryStore,
    engine: LlmEngine,
}

impl World {
    fn start(dir: &Path) -> Self {
        Self::start_with(config(dir))
    }

    fn start_with(config: EngineConfig) -> Self {
        let (time, store) = (ManualTime::start(), MemoryStore::default());
        let engine = start(&EngineConfig { clock: time.clock(), ..config }, Some(store.clone()));
        Self { time, store, engine }
    }

    /// The next request, or the next announced turn, waits for a block, at most so long.
    fn promotion(&self, timeout: Duration) -> Promotion {
        let promotion = Promotion::of(1, self.time.clock().after(timeout));
        self.store.shared.lock().unwrap().promotions.push_back(promotion.clone());
        promotion
    }

    fn has_begun(&self) -> bool {
        self.store.shared.lock().unwrap().promotions.is_empty()
    }

    /// Waits until all promotions have begun.
    fn begun(&self) {
        until("the begin of a promotion", || self.has_begun().then_some(()));
    }

    /// The engine goes round at least once.
    fn go_round(&self) {
        // A request that keeps its KV for itself looks at no slower tier.
        run(&self.engine, Request { use_pool: false, ..request(prompt(3, 40), greedy(4)) }).unwrap();
    }
}

#[test]
fn a_promotion_without_an_answer_ends_with_its_deadline() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let promotion = world.promotion(20 * SECOND);
    let waits = submit(&world.engine, request(prompt(1, 40), greedy(4))).unwrap();
    world.begun();
    world.time.advance(20 * SECOND - Duration::from_nanos(1));
    world.go_round();
    assert!(!promotion.is_over() && waits.try_recv().is_err());
    world.time.advance(Duration::from_nanos(1));
    assert_eq!(collect(&waits).unwrap().tokens.len(), 4);
}

/// An idle engine looked at its promotions every millisecond.
#[test]
fn a_request_runs_when_its_last_block_arrives_and_no_time_passes() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let promotion = world.promotion(600 * SECOND);
    let waits = submit(&world.engine, request(prompt(1, 40), greedy(4))).unwrap();
    world.begun();
    promotion.one_done();
    assert_eq!(collect(&waits).unwrap().tokens.len(), 4);
}

#[test]
fn a_request_tells_which_of_its_blocks_came_from_a_slower_tier() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let asked = || request(prompt(1, 70), greedy(1));
    run(&world.engine, asked()).unwrap();
    // The store has the first block, the slower tier brings the next two, and the last one is lost.
    let Prompt::Tokens(tokens) = prompt(1, 70) else { unreachable!() };
    let names = MemoryStore::names(&tokens);
    let fetched: Vec<_> = {
        let mut shared = world.store.shared.lock().unwrap();
        shared.missed.clear();
        shared.blocks.remove(&names[3]);
        names[1..3].iter().map(|&name| (name, shared.blocks.remove(&name).expect("it was saved"))).collect()
    };
    let promotion = world.promotion(600 * SECOND);
    let waits = submit(&world.engine, asked()).unwrap();
    world.begun();
    world.store.shared.lock().unwrap().blocks.extend(fetched);
    promotion.one_done();
    collect(&waits).unwrap();
    let missed = std::mem::take(&mut world.store.shared.lock().unwrap().missed);
    let [miss] = &missed[..] else { panic!("one request, one miss: {missed:?}") };
    assert_eq!((miss.blocks, miss.found, miss.fetched, miss.hash), (4, 3, 2, names[3]));
}

/// A request's own timeout counted only when its promotion had ended.
#[test]
fn a_timeout_ends_a_request_that_waits_for_blocks() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let promotion = world.promotion(20 * SECOND);
    let hurried = Request { timeout_ms: 50, ..request(prompt(1, 40), greedy(4)) };
    let waits = submit(&world.engine, hurried).unwrap();
    world.begun();
    world.time.advance(Duration::from_millis(50));
    assert_eq!(collect(&waits).unwrap_err().kind, ErrorKind::DeadlineExceeded);
    assert!(!promotion.is_over());
    assert!(world.engine.drain(patience()));
}

#[test]
fn an_aborted_request_waits_no_longer_and_its_id_is_unique() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let promotion = world.promotion(600 * SECOND);
    let [first, second] = [request(prompt(1, 40), greedy(4)), request(prompt(2, 40), greedy(4))];
    let id = first.id;
    let waits = submit(&world.engine, first).unwrap();
    // The same id again: the first request keeps it.
    assert_eq!(run(&world.engine, Request { id, ..second.clone() }).unwrap_err().kind, ErrorKind::Internal);
    world.engine.abort(id);
    assert_eq!(collect(&waits).unwrap_err().kind, ErrorKind::Aborted);
    world.store.shared.lock().unwrap().promotions.push_back(promotion.clone());
    let waits = submit(&world.engine, second).unwrap();
    promotion.one_done();
    assert_eq!(collect(&waits).unwrap().tokens.len(), 4);
    assert!(world.engine.drain(patience()));
}

/// Its blocks had arrived, but the scheduler's queue was full, and the request was refused.
#[test]
fn a_request_whose_blocks_arrived_is_not_refused() {
    let dir = model_dir("gqa-tied");
    let config = EngineConfig { kv_blocks: Some(30), max_num_seqs: 4, max_waiting: 1, ..config(dir.path()) };
    let world = World::start_with(config);
    let running = Held::at_first_token(&world.engine, request(prompt(1, 40), greedy(400)));
    let promotion = world.promotion(600 * SECOND);
    let promoted = submit(&world.engine, request(prompt(2, 20), greedy(4))).unwrap();
    // There is no room for it beside the first.
    let waiting = submit(&world.engine, request(prompt(3, 440), greedy(4))).unwrap();
    forwarded(&world.engine);
    promotion.one_done();
    // The next turn finds the three messages, and has room for one request.
    let running = running.go();
    for (events, count) in [(running, 400), (promoted, 4), (waiting, 4)] {
        assert_eq!(collect(&events).unwrap().tokens.len(), count);
    }
    assert!(world.engine.drain(patience()));
}

/// The blocks of an announced turn are fetched without a request for them, and only when it is near: an
/// idle engine wakes for that.
#[test]
fn an_announced_turn_is_fetched_before_it_comes() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    // The first is for the request itself, the second for the turn.
    world.promotion(Duration::ZERO);
    let fetched = world.promotion(3600 * SECOND);
    let announced = Request { continues_in_ms: Some(60_000), ..request(prompt(4, 40), greedy(4)) };
    assert_eq!(run(&world.engine, announced).unwrap().tokens.len(), 4);
    world.time.advance(58 * SECOND - Duration::from_nanos(1));
    world.go_round();
    assert!(!world.has_begun(), "it is two seconds and a nanosecond away");
    world.time.advance(Duration::from_nanos(1));
    world.begun();
    let count = |name: &str| world.engine.stats().values[&format!("prefetch_{name}_total")];
    assert_eq!(count("hints_promoted"), 0.0);
    fetched.one_done();
    until("the turn's blocks", || (count("hints_promoted") == 1.0).then_some(()));
    assert_eq!(count("hints"), 1.0);
}

/// The time of a prompt's tokens decides whether a read from a slower tier pays.
#[test]
fn the_store_learns_how_long_computing_takes() {
    let dir = model_dir("gqa-tied");
    let store = MemoryStore::default();
    let engine = start_exact(config(dir.path()), Box::new(store.clone()));
    run(&engine, request(prompt(1, 100), greedy(20))).unwrap();
    assert!(engine.drain(patience()));
    let Cost { step, token } = Cost::default();
    let ns = (step + 100 * token).as_nanos() as u64;
    assert_eq!(store.shared.lock().unwrap().computed, (100, ns), "the prompt, and no single tokens");
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
    assert!(engine.drain(patience()));
    assert_eq!(store.shared.lock().unwrap().computed.0, 100);
}

/// With a slower tier a prompt was hashed three times before its first token: the engine asked what
/// could be promoted, promoted it, and looked it up.
#[test]
fn names_of_a_prompt_that_waits_are_computed_once() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let (naming, promotion) = (world.store.naming.clone(), world.promotion(600 * SECOND));
    // 70 tokens are four full blocks; 70 and 29 are six.
    let waits = submit(&world.engine, request(prompt(1, 70), greedy(30))).unwrap();
    world.begun();
    assert_eq!(naming.computed(), 4);
    promotion.one_done();
    assert_eq!(collect(&waits).unwrap().tokens.len(), 30);
    assert_eq!(naming.computed(), 6);
    // A hit has its names computed, and nothing else; a request that shares nothing has none.
    run(&world.engine, request(prompt(1, 70), greedy(1))).unwrap();
    assert_eq!(naming.computed(), 10);
    run(&world.engine, Request { use_pool: false, ..request(prompt(1, 70), greedy(1)) }).unwrap();
    assert_eq!(naming.computed(), 10);
}

/// An announced turn was hashed three times, too.
#[test]
fn names_of_an_announced_turn_are_those_of_the_last_one() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let naming = world.store.naming.clone();
    // The first is for the request itself, the second for the turn.
    world.promotion(Duration::ZERO);
    world.promotion(3600 * SECOND);
    let announced = Request { continues_in_ms: Some(60_000), ..request(prompt(1, 70), greedy(30)) };
    run(&world.engine, announced).unwrap();
    world.time.advance(58 * SECOND);
    world.begun();
    assert_eq!(naming.computed(), 6);
}

/// A request's wish is for the blocks that the store has of it, answer included, and reaches it at the end.
#[test]
fn a_wish_is_for_what_was_saved() {
    let dir = model_dir("gqa-tied");
    let world = World::start(dir.path());
    let retain = Retain { ms: 5000, priority: 3, session: Some(1) };
    let outcome = run(&world.engine, Request { retain: Some(retain), ..request(prompt(1, 70), greedy(30)) }).unwrap();
    let Prompt::Tokens(mut tokens) = prompt(1, 70) else { panic!("tokens") };
    tokens.extend(outcome.tokens);
    let names = MemoryStore::names(&tokens);
    let kept = world.store.shared.lock().unwrap().retained.clone();
    assert_eq!(kept, [(names[..kept[0].0.len()].to_vec(), retain)]);
    assert!((5..=6).contains(&kept[0].0.len()), "the prompt's four blocks and some of the answer: {}", kept[0].0.len());
    run(&world.engine, Request { use_pool: false, retain: Some(retain), ..request(prompt(1, 70), greedy(1)) }).unwrap();
    assert!(world.store.shared.lock().unwrap().retained[1].0.is_empty(), "it shares nothing");
}
