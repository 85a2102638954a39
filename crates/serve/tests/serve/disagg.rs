//! Streams over a fleet with workers that die at every possible moment: the client sees one answer,
//! the same as from one undisturbed engine.

use crate::support::client::{client, read};
use crate::support::fake::{FakeEngine, FakePool};
use crate::support::requests::{answer_of, collect, failure, request, submit, text_request, undisturbed};
use crate::support::script::{MODEL, answer};
use crate::support::time::TestTime;
use crate::support::{TestServer, connect, soon, start_worker};
use cenote_base::engine::{ErrorKind, Event, FinishReason, Phase, Prompt, Request};
use cenote_base::testing::PATIENCE;
use cenote_base::{Clock, Engine, RequestId, SamplingParams};
use cenote_serve::{Disaggregated, DisaggregatedConfig, Fleet, HttpConfig, Role, WorkerToken};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// A router without timeouts: only a new worker ends a pause.
fn over(fleet: Arc<Fleet>) -> Disaggregated {
    Disaggregated::new(fleet, DisaggregatedConfig::default(), Clock::stopped())
}

/// Such a router over these workers.
fn router(workers: &[(Role, &FakeEngine)]) -> Disaggregated {
    over(fleet(workers))
}

fn fleet(workers: &[(Role, &FakeEngine)]) -> Arc<Fleet> {
    let roles: Vec<_> = workers.iter().map(|(role, _)| *role).collect();
    let fleet = Fleet::new(&roles);
    for (slot, (_, engine)) in workers.iter().enumerate() {
        fleet.publish(slot, engine.shared());
    }
    fleet
}

/// Awkward requests: text and tokens, held-back text, a stop text, an answer that ends by itself.
fn requests() -> Vec<Request> {
    let mut stopping = text_request(2, 60);
    stopping.sampling.stop = vec!["drop che".into(), "e well".into(), "cave".into()];
    let mut ending = text_request(3, 200);
    ending.sampling.ignore_eos = false;
    vec![text_request(1, 12), stopping, ending, request(4, Prompt::Tokens((5..60).collect()), 10), text_request(5, 1)]
}

#[tokio::test]
async fn prefill_and_decode_together_give_the_answer_of_one_engine() {
    let (prefill, decode) = (FakeEngine::new(), FakeEngine::new());
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    for request in requests() {
        assert_eq!(answer_of(&router, request.clone()).await, undisturbed(&request), "{request:?}");
    }
    assert!(prefill.seen().borrow().iter().all(|request| request.phase == Phase::Prefill));
    assert!(decode.seen().borrow().iter().all(|request| matches!(request.phase, Phase::Decode(_))));
    // A request that ends with its first token never reaches a decode worker.
    assert_eq!(decode.seen().borrow().len(), requests().len() - 1);
}

#[tokio::test]
async fn cached_tokens_are_those_of_the_prefill() {
    let pool = FakePool::default();
    let [prefill, decode] = [(); 2].map(|()| FakeEngine::sharing(pool.clone(), 1000));
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    let cached = async |id| match answer_of(&router, request(id, Prompt::Text("p".repeat(40)), 5)).await.pop() {
        Some(Event::Finished { usage, .. }) => usage.cached_tokens,
        other => panic!("it ended with {other:?}"),
    };
    assert_eq!((cached(1).await, cached(2).await), (0, 32));
}

#[tokio::test]
async fn the_front_draws_a_seed_and_all_workers_get_it() {
    let (prefill, decode) = (FakeEngine::new(), FakeEngine::new());
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    let mut request = text_request(1, 8);
    request.sampling.seed = None;
    let events = answer_of(&router, request.clone()).await;
    request.sampling.seed = prefill.seen().borrow()[0].sampling.seed;
    assert!(request.sampling.seed.is_some());
    assert_eq!(events, undisturbed(&request));
    assert_eq!(decode.seen().borrow()[0].sampling.seed, request.sampling.seed);
}

#[tokio::test]
async fn a_decode_worker_may_die_at_any_event() {
    for request in requests() {
        let expected = undisturbed(&request);
        for events in 0..=expected.len() as u32 {
            let (prefill, first, second) = (FakeEngine::new(), FakeEngine::new(), FakeEngine::new());
            first.die_after(events);
            let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &first), (Role::Decode, &second)]);
            assert_eq!(answer_of(&router, request.clone()).await, expected, "death at {events}: {request:?}");
        }
    }
}

#[tokio::test]
async fn a_prefill_worker_may_die_at_any_event() {
    for request in requests() {
        for events in 0..3 {
            let (first, second, decode) = (FakeEngine::new(), FakeEngine::new(), FakeEngine::new());
            first.die_after(events);
            let router = router(&[(Role::Prefill, &first), (Role::Prefill, &second), (Role::Decode, &decode)]);
            assert_eq!(answer_of(&router, request.clone()).await, undisturbed(&request), "death at {events}");
        }
    }
}

#[tokio::test]
async fn a_combined_worker_may_die_at_any_event() {
    // The prompt is text and its tokens are unknown yet: the next worker starts from the beginning
    // and repeats known tokens, and none reaches the client twice.
    for request in requests() {
        let expected = undisturbed(&request);
        for events in 0..expected.len() as u32 {
            let (first, second) = (FakeEngine::new(), FakeEngine::new());
            first.die_after(events);
            let router = router(&[(Role::Whole, &first), (Role::Whole, &second)]);
            assert_eq!(answer_of(&router, request.clone()).await, expected, "death at {events}");
        }
    }
}

#[tokio::test]
async fn deaths_behind_sockets_look_the_same() {
    let request = text_request(1, 10);
    let expected = undisturbed(&request);
    for events in 0..expected.len() as u32 {
        let token = WorkerToken::draw().expect("random");
        let engines = [FakeEngine::new(), FakeEngine::new(), FakeEngine::new()];
        engines[1].die_after(events);
        let fleet = Fleet::new(&[Role::Prefill, Role::Decode, Role::Decode]);
        for (slot, engine) in engines.iter().enumerate() {
            let address = start_worker(engine.shared(), &token).await;
            let remote = connect(address, &token).await.expect("it answers");
            fleet.publish(slot, Arc::new(remote));
        }
        let router = over(fleet);
        assert_eq!(answer_of(&router, request.clone()).await, expected, "death at {events}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_requests_at_once_get_their_own_answers() {
    let token = WorkerToken::draw().expect("random");
    let roles = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode];
    let fleet = Fleet::new(&roles);
    for slot in 0..roles.len() {
        let address = start_worker(FakeEngine::new().shared(), &token).await;
        let remote = connect(address, &token).await.expect("it answers");
        fleet.publish(slot, Arc::new(remote));
    }
    let server = TestServer::start(Arc::new(over(fleet)), HttpConfig::default()).await;
    let client = client();
    let answers = (0..200).map(async |id| {
        let body = json!({"model": MODEL, "prompt": format!("request {id}"), "max_tokens": 20, "seed": id});
        let sent = client.post(server.url("/v1/completions")).json(&body).send();
        let reply = read(soon("an answer", sent).await.expect("the server is there")).await;
        let sampling = SamplingParams { max_tokens: Some(20), seed: Some(id), ..SamplingParams::default() };
        let (text, ..) = answer(&Prompt::Text(format!("request {id}")), &sampling);
        assert_eq!(reply.json()["choices"][0]["text"], text, "request {id}");
    });
    futures::future::join_all(answers).await;
    assert_eq!(server.state.running(), 0);
}

#[tokio::test]
async fn without_decode_workers_the_prefill_worker_decodes() {
    let (prefill, decode) = (FakeEngine::new(), FakeEngine::new());
    decode.die_after(4);
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    let request = text_request(1, 12);
    assert_eq!(answer_of(&router, request.clone()).await, undisturbed(&request));
    assert!(matches!(prefill.seen().borrow()[1].phase, Phase::Decode(_)));
}

#[tokio::test]
async fn a_lone_worker_that_is_restarted_again_and_again_still_answers() {
    let fleet = Fleet::new(&[Role::Whole]);
    let router = over(fleet.clone());
    let request = request(1, Prompt::Tokens(vec![3, 4, 5]), 40);
    let mut events = submit(&router, request.clone()).expect("it is taken");
    let mut deaths = 0;
    let lives = async {
        loop {
            let engine = FakeEngine::new();
            engine.die_after(4);
            let mut death = engine.death();
            fleet.publish(0, engine.shared());
            death.wait_for(|dead| *dead).await.expect("it lives until it dies");
            fleet.retract(0, "it died");
            deaths += 1;
        }
    };
    let answer = tokio::select! {
        () = lives => unreachable!("workers are restarted for ever"),
        answer = collect(&mut events) => answer,
    };
    assert_eq!(answer, undisturbed(&request));
    assert_eq!(deaths, 10);
}

#[tokio::test]
async fn a_replacement_that_disagrees_ends_the_stream_instead_of_changing_it() {
    let (honest, lying) = (FakeEngine::new(), FakeEngine::lying());
    honest.die_after(5);
    let router = router(&[(Role::Whole, &honest), (Role::Whole, &lying)]);
    let request = text_request(1, 12);
    let events = answer_of(&router, request.clone()).await;
    assert_eq!(events[..5], undisturbed(&request)[..5]);
    assert_eq!((events.len(), failure(&events).kind), (6, ErrorKind::Internal));
}

#[tokio::test]
async fn without_usable_workers_there_is_one_failure() {
    let (first, second) = (FakeEngine::new(), FakeEngine::new());
    first.die_after(4);
    second.die_after(4);
    let (time, config) = (TestTime::start(), DisaggregatedConfig::default());
    let (min, max) = (config.backoff_min, config.failures_in_a_row_max);
    let fleet = fleet(&[(Role::Whole, &first), (Role::Whole, &second)]);
    let router = Disaggregated::new(fleet, config, time.clock());
    let mut events = submit(&router, request(1, Prompt::Tokens(vec![1, 2]), 40)).expect("it is taken");
    // Each is tried once without a pause; the pauses before further tries double.
    for pause in (2..max).map(|failures| min * (1 << (failures - 1))) {
        time.awaited(pause).await;
        time.advance(pause);
    }
    let events = collect(&mut events).await;
    assert_eq!((events.len(), failure(&events).kind), (9, ErrorKind::Unavailable));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Failed(_))).count(), 1);
}

/// A pause that had passed before the router looked at it once made a request wait for news.
#[tokio::test]
async fn a_pause_of_no_time_tries_a_failed_worker_again_at_once() {
    let engine = FakeEngine::new();
    engine.die_after(4);
    let none = Duration::ZERO;
    let config = DisaggregatedConfig { backoff_min: none, backoff_max: none, ..DisaggregatedConfig::default() };
    let router = Disaggregated::new(fleet(&[(Role::Whole, &engine)]), config, Clock::stopped());
    let events = answer_of(&router, request(1, Prompt::Tokens(vec![1, 2]), 40)).await;
    assert_eq!((events.len(), failure(&events).kind), (5, ErrorKind::Unavailable));
    assert_eq!(engine.seen().borrow().len(), 6, "the worker was tried until the limit");
}

#[tokio::test]
async fn without_any_worker_a_request_waits_for_one_within_its_deadline() {
    let fleet = Fleet::new(&[Role::Whole]);
    let (time, config) = (TestTime::start(), DisaggregatedConfig::default());
    let (pause, patience) = (config.backoff_min, config.worker_wait);
    let router = Disaggregated::new(fleet.clone(), config, time.clock());
    assert!(router.describe().process_ids.is_empty());
    let late = Request { timeout_ms: 5000, ..text_request(1, 3) };
    let mut events = submit(&router, late).expect("it is taken");
    for wait in [pause, Duration::from_secs(5) - pause] {
        time.awaited(wait).await;
        time.advance(wait);
    }
    assert_eq!(failure(&collect(&mut events).await).kind, ErrorKind::DeadlineExceeded);
    let patient = Request { timeout_ms: 100_000, ..text_request(1, 3) };
    let mut events = submit(&router, patient).expect("it is taken");
    for wait in [pause, patience - pause] {
        time.awaited(wait).await;
        time.advance(wait);
    }
    let none = collect(&mut events).await;
    assert_eq!((failure(&none).kind, &*failure(&none).message), (ErrorKind::Unavailable, "no worker is alive"));
    let mut waiting = submit(&router, text_request(2, 3)).expect("it is taken");
    fleet.publish(0, FakeEngine::new().shared());
    assert_eq!(collect(&mut waiting).await, undisturbed(&text_request(2, 3)));
    assert!(!router.describe().process_ids.is_empty());
}

#[tokio::test]
async fn full_workers_before_the_first_token_are_reported_at_once() {
    let (first, second) = (FakeEngine::new(), FakeEngine::new());
    let router = router(&[(Role::Whole, &first), (Role::Whole, &second)]);
    let events = answer_of(&router, request(1, Prompt::Text("!overloaded".into()), 5)).await;
    let values = router.stats().values;
    assert_eq!((values["router_refused_total"], values["router_lost_total"]), (1.0, 0.0), "a refusal loses nothing");
    assert_eq!((failure(&events).kind, failure(&events).retry_after_ms), (ErrorKind::Overloaded, Some(1500)));
    assert_eq!((first.seen().borrow().len(), second.seen().borrow().len()), (1, 1));
}

#[tokio::test]
async fn an_invalid_request_is_not_tried_again() {
    let (first, second) = (FakeEngine::new(), FakeEngine::new());
    let router = router(&[(Role::Prefill, &first), (Role::Decode, &second)]);
    let events = answer_of(&router, request(1, Prompt::Text("x".repeat(300)), 5)).await;
    assert_eq!((failure(&events).kind, failure(&events).field.as_deref()), (ErrorKind::ContextLength, Some("prompt")));
    assert_eq!((first.seen().borrow().len(), second.seen().borrow().len()), (1, 0));
}

#[tokio::test]
async fn an_abort_reaches_the_worker_that_has_the_request() {
    let (prefill, decode) = (FakeEngine::new(), FakeEngine::gated());
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    let mut events = submit(&router, text_request(7, 20)).expect("it is taken");
    soon("the decode", decode.seen().wait_for(|seen| !seen.is_empty())).await.expect("it lives");
    router.abort(RequestId(7));
    assert_eq!(failure(&collect(&mut events).await).kind, ErrorKind::Aborted);
    soon("the worker's abort", decode.aborted().wait_for(|ids| !ids.is_empty())).await.expect("it lives");
}

#[tokio::test]
async fn load_is_spread_over_workers_of_a_role() {
    let workers = [FakeEngine::gated(), FakeEngine::gated(), FakeEngine::gated()];
    let router = router(&workers.each_ref().map(|worker| (Role::Whole, worker)));
    let mut waiting = Vec::new();
    for id in 0..9 {
        waiting.push(submit(&router, text_request(id, 3)).expect("it is taken"));
        let reached = async {
            let mut seen = workers.each_ref().map(FakeEngine::seen);
            while seen.iter_mut().map(|seen| seen.borrow_and_update().len()).sum::<usize>() <= id as usize {
                let changes = seen.iter_mut().map(|seen| Box::pin(seen.changed()));
                let _ = futures::future::select_all(changes).await;
            }
        };
        soon("the worker", reached).await;
    }
    assert_eq!(workers.each_ref().map(FakeEngine::running), [3, 3, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_was_taken_even_the_second_half() {
    let (prefill, decode) = (FakeEngine::gated(), FakeEngine::gated());
    let router = Arc::new(router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]));
    let mut events = submit(&*router, text_request(1, 6)).expect("it is taken");
    let draining = router.clone();
    let drained = tokio::task::spawn_blocking(move || draining.drain(Clock::system().after(PATIENCE)));
    soon("the prefill", prefill.seen().wait_for(|seen| !seen.is_empty())).await.expect("it lives");
    prefill.let_out(100);
    decode.let_out(100);
    assert_eq!(collect(&mut events).await, undisturbed(&text_request(1, 6)));
    assert!(soon("the drain", drained).await.expect("no panic"));
    assert!(submit(&*router, text_request(2, 6)).is_err());
    assert!(*prefill.is_draining().borrow() && *decode.is_draining().borrow());
}

#[tokio::test]
async fn the_router_counts_its_work() {
    let (prefill, first, second) = (FakeEngine::new(), FakeEngine::new(), FakeEngine::new());
    first.die_after(2);
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &first), (Role::Decode, &second)]);
    answer_of(&router, text_request(1, 9)).await;
    let values = router.stats().values;
    for (name, value) in [
        ("workers_configured", 3.0),
        ("workers_alive", 3.0),
        ("router_handed_over_total", 1.0),
        ("router_resumed_total", 1.0),
        ("router_lost_total", 0.0),
        ("fake_requests_total", 3.0),
    ] {
        assert_eq!(values.get(name), Some(&value), "{name}");
    }
}

#[tokio::test]
async fn counters_do_not_fall_when_a_worker_dies() {
    let fleet = Fleet::new(&[Role::Whole, Role::Whole]);
    let told = || fleet.stats().values.get("fake_requests_total").copied();
    assert_eq!(told(), None);
    let mut sum = 0.0;
    for _ in 0..3 {
        let engines = [FakeEngine::new(), FakeEngine::new()];
        for (slot, engine) in engines.iter().enumerate() {
            fleet.publish(slot, engine.shared());
            assert_eq!(told(), Some(sum), "a new worker begins at zero");
            let mut events = submit(engine, text_request(1, 3)).expect("it is taken");
            collect(&mut events).await;
            sum += 1.0;
            assert_eq!(told(), Some(sum));
        }
        fleet.retract(0, "it died");
        assert_eq!(told(), Some(sum));
    }
    assert_eq!(fleet.stats().values["workers_alive"], 1.0, "gauges are of the living");
}

/// KV that a prefill worker keeps for the next one is released when that one has sent a token, and
/// when the client leaves.
#[tokio::test]
async fn a_hand_over_is_released_when_it_is_done_with() {
    let (prefill, decode) = (FakeEngine::new(), FakeEngine::gated());
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    let mut released = prefill.released();
    let mut events = submit(&router, text_request(1, 9)).expect("it is taken");
    soon("the decode worker's request", decode.seen().wait_for(|seen| seen.len() == 1)).await.expect("it lives");
    assert!(released.borrow().is_empty(), "the decode worker has not read the KV yet");
    decode.let_out(1);
    soon("the release", released.wait_for(|released| released.len() == 1)).await.expect("it lives");
    decode.let_out(100);
    collect(&mut events).await;
    assert_eq!(released.borrow().len(), 1);

    let decode_again = FakeEngine::gated();
    let router = self::router(&[(Role::Prefill, &prefill), (Role::Decode, &decode_again)]);
    let events = submit(&router, text_request(2, 9)).expect("it is taken");
    soon("the decode worker's request", decode_again.seen().wait_for(|seen| seen.len() == 1)).await.expect("it lives");
    drop(events);
    router.abort(RequestId(2));
    soon("the release", released.wait_for(|released| released.len() == 2)).await.expect("it lives");
}

#[tokio::test]
async fn a_choice_that_stops_early_is_not_continued() {
    let (prefill, decode) = (FakeEngine::new(), FakeEngine::new());
    let router = router(&[(Role::Prefill, &prefill), (Role::Decode, &decode)]);
    let sampling = SamplingParams { stop: vec![" ".into()], ..text_request(1, 9).sampling };
    let request = Request { sampling, ..text_request(1, 9) };
    let events = answer_of(&router, request.clone()).await;
    assert_eq!(events, undisturbed(&request));
    assert!(matches!(events.last(), Some(Event::Finished { reason: FinishReason::Stop, .. })));
}
