//! One submitted request: the call, its lines, its deadlines.

use super::Link;
use crate::time::before;
use cenote_base::engine::{EngineError, ErrorKind, Event};
use cenote_base::{Deadline, EventSink, Request};
use reqwest::Response;
use std::time::Duration;

/// Longest line; hand-overs carry whole prompts, hence the size.
const LINE_BYTES_MAX: usize = 64 << 20;
/// The worker enforces the deadline too, and its error says more, so the front waits this much
/// longer.
const DEADLINE_SLACK: Duration = Duration::from_millis(500);

/// Runs a request and forwards its tokens. Returns the last event, which the caller forwards, or
/// `None` if the receiver is gone.
pub(super) async fn run(link: &Link, request: &Request, events: &mut EventSink) -> Option<Event> {
    match follow(link, request, events).await {
        Ok(last) => last,
        Err(error) => Some(Event::Failed(error)),
    }
}

async fn follow(link: &Link, request: &Request, events: &mut EventSink) -> Result<Option<Event>, EngineError> {
    let deadline = link.clock.after(Duration::from_millis(request.timeout_ms).saturating_add(DEADLINE_SLACK));
    let send = link.client.post(link.url("submit")).json(request).send();
    let answer = within(link, deadline, "answer", send).await?.map_err(|error| gone(link, &error))?;
    let mut answer = accepted(link, deadline, answer).await?;
    let mut lines = Lines::default();
    loop {
        while let Some(line) = lines.next() {
            let Some(event) = parse(link, &line)? else { continue };
            match event {
                token @ Event::Token { .. } => {
                    if !events(token) {
                        return Ok(None);
                    }
                }
                last => return Ok(Some(last)),
            }
        }
        let piece = within(link, deadline, "line", answer.chunk()).await?.map_err(|error| gone(link, &error))?;
        let Some(piece) = piece else {
            let message = format!("worker at {}: the answer ended before the request did", link.address);
            return Err(EngineError::new(ErrorKind::Unavailable, message));
        };
        lines.push(&piece);
        if lines.0.len() > LINE_BYTES_MAX {
            let message = format!("worker at {}: a line of more than {LINE_BYTES_MAX} bytes", link.address);
            return Err(EngineError::new(ErrorKind::Internal, message));
        }
    }
}

/// Waits at most until the deadline, and at most for the longest silence.
async fn within<T>(
    link: &Link,
    deadline: Deadline,
    what: &str,
    wait: impl Future<Output = T>,
) -> Result<T, EngineError> {
    let idle_timeout = link.config.idle_timeout;
    before(deadline.min(link.clock.after(idle_timeout)), wait).await.ok_or_else(|| {
        if deadline.passed() {
            EngineError::new(ErrorKind::DeadlineExceeded, "the request's time is up")
        } else {
            let message = format!("worker at {}: no {what} for {} s", link.address, idle_timeout.as_secs_f64());
            EngineError::new(ErrorKind::Unavailable, message)
        }
    })
}

/// Sends the request. A refusal becomes this request's error.
async fn accepted(link: &Link, deadline: Deadline, answer: Response) -> Result<Response, EngineError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = within(link, deadline, "refusal", answer.bytes()).await?.map_err(|error| gone(link, &error))?;
    Err(serde_json::from_slice(&body).unwrap_or_else(|_| {
        let message = format!("worker at {}: submit answered {status}", link.address);
        EngineError::new(ErrorKind::Internal, message)
    }))
}

/// Blank lines are heartbeats.
fn parse(link: &Link, line: &[u8]) -> Result<Option<Event>, EngineError> {
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(line).map(Some).map_err(|error| {
        let message = format!("worker at {}: a line is not an event: {error}", link.address);
        EngineError::new(ErrorKind::Internal, message)
    })
}

fn gone(link: &Link, error: &reqwest::Error) -> EngineError {
    EngineError::new(ErrorKind::Unavailable, format!("worker at {}: {error}", link.address))
}

/// Splits bytes into lines.
#[derive(Default)]
struct Lines(Vec<u8>, usize);

impl Lines {
    fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let Some(length) = self.0[self.1..].iter().position(|byte| *byte == b'\n') else {
            // Do not search the searched part again when more of a long line arrives.
            self.1 = self.0.len();
            return None;
        };
        let rest = self.0.split_off(self.1 + length + 1);
        let mut line = std::mem::replace(&mut self.0, rest);
        self.1 = 0;
        line.pop();
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_wherever_the_pieces_break() {
        let whole = b"one\n\ntwo\nthree";
        for size in 1..=whole.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in whole.chunks(size) {
                lines.push(piece);
                found.extend(std::iter::from_fn(|| lines.next()));
            }
            assert_eq!(found, [b"one".to_vec(), Vec::new(), b"two".to_vec()], "pieces of {size}");
            assert_eq!(lines.0, b"three");
        }
    }
}
