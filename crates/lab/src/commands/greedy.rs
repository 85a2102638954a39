//! Requests whose answers are as long as wanted and the same in each run.

use cenote_base::engine::{Event, Phase, Prompt};
use cenote_base::{Engine, Request, RequestId, SamplingParams, TokenId};
use cenote_console::failure::Failure;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longest time for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(600);

/// A request for exactly so many of the likeliest tokens.
pub fn request(id: u64, prompt: &[TokenId], output_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        prompt: Prompt::Tokens(prompt.to_vec()),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: Some(output_tokens),
            ignore_eos: true,
            ..SamplingParams::default()
        },
        phase: Phase::Whole,
        use_pool: true,
        cache_salt: None,
        tenant: None,
        priority: 0,
        label: None,
        continues_in_ms: None,
        retain: None,
        timeout_ms: TIMEOUT.as_millis() as u64,
    }
}

/// Submits a request; its events arrive in the channel.
pub fn submit(engine: &dyn Engine, request: Request) -> Result<Receiver<Event>, Failure> {
    let (sender, events) = channel();
    engine.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
    Ok(events)
}

/// Waits for the whole answer.
pub fn collect(events: &Receiver<Event>) -> Result<Vec<TokenId>, Failure> {
    let mut tokens = Vec::new();
    loop {
        match events.recv_timeout(TIMEOUT).map_err(|_| Failure::new("the engine gave no answer"))? {
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { .. } => return Ok(tokens),
            Event::Failed(error) => return Err(error.into()),
        }
    }
}
