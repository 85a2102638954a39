//! Requests submitted directly to an engine, and their events.

use super::{script, soon};
use cenote_base::engine::{EngineError, Event, Phase, Prompt, Request};
use cenote_base::{Engine, RequestId, SamplingParams};
use tokio::sync::mpsc;

pub fn request(id: u64, prompt: Prompt, max_tokens: u32) -> Request {
    let sampling =
        SamplingParams { max_tokens: Some(max_tokens), seed: Some(11), ignore_eos: true, ..SamplingParams::default() };
    Request {
        id: RequestId(id),
        prompt,
        sampling,
        phase: Phase::Whole,
        use_pool: true,
        cache_salt: None,
        tenant: None,
        priority: 0,
        label: None,
        continues_in_ms: None,
        retain: None,
        timeout_ms: 30_000,
    }
}

pub fn text_request(id: u64, max_tokens: u32) -> Request {
    request(id, Prompt::Text(format!("request {id}")), max_tokens)
}

/// The events of an undisturbed engine.
pub fn undisturbed(request: &Request) -> Vec<Event> {
    script::events(request, |_| 0)
}

pub fn submit(engine: &dyn Engine, request: Request) -> Result<mpsc::UnboundedReceiver<Event>, EngineError> {
    let (sender, events) = mpsc::unbounded_channel();
    engine.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
    Ok(events)
}

/// All events up to the last.
pub async fn collect(events: &mut mpsc::UnboundedReceiver<Event>) -> Vec<Event> {
    let mut all = Vec::new();
    while let Some(event) = soon("an event", events.recv()).await {
        all.push(event);
    }
    all
}

pub async fn answer_of(engine: &dyn Engine, request: Request) -> Vec<Event> {
    collect(&mut submit(engine, request).expect("the engine takes it")).await
}

/// The error that these events end with.
pub fn failure(events: &[Event]) -> &EngineError {
    match events.last() {
        Some(Event::Failed(error)) => error,
        other => panic!("it ended with {other:?}"),
    }
}
