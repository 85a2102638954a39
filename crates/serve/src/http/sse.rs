//! A running request as server-sent events, in OpenAI's chunks.

use super::generate::Generation;
use crate::openai::{ApiError, Piece, Reply};
use crate::time::before;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event as SseEvent, Sse};
use axum::response::{IntoResponse, Response};
use cenote_base::Clock;
use cenote_base::engine::{Event, TokenLogprobs};
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

/// Tells nginx and other proxies not to buffer the stream.
const NO_BUFFERING: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// Starts the stream. Waits for the first event before it sends the status line, so that a request
/// that fails at once (prompt too long, region full) gets its 4xx or 5xx instead of a broken
/// stream.
pub(super) async fn respond(
    mut generation: Generation,
    reply: Reply,
    keep_alive: Duration,
    clock: Clock,
) -> Result<Response, ApiError> {
    let first = generation.next().await?;
    let mut feed = Feed { generation: Some(generation), reply, offsets: BTreeMap::new(), pending: VecDeque::new() };
    feed.take(first);
    let stream = futures::stream::unfold(feed, move |mut feed| async move {
        let event = match before(clock.after(keep_alive), feed.next()).await {
            Some(event) => event?,
            None => SseEvent::DEFAULT_KEEP_ALIVE,
        };
        Some((Ok::<_, Infallible>(event), feed))
    });
    let mut response = Sse::new(stream).into_response();
    response.headers_mut().insert(NO_BUFFERING.0, NO_BUFFERING.1);
    Ok(response)
}

/// The part of the stream that is not written yet.
struct Feed {
    /// `None` after the last event; the stream ends when `pending` is empty too.
    generation: Option<Generation>,
    reply: Reply,
    /// Choices with a sent opening chunk, and the characters of their tokens so far.
    offsets: BTreeMap<usize, usize>,
    pending: VecDeque<String>,
}

impl Feed {
    /// The next event of the stream. A caller that stops waiting loses none.
    async fn next(&mut self) -> Option<SseEvent> {
        while self.pending.is_empty() {
            // A token without certain text makes no chunk, hence the loop.
            match self.generation.as_mut()?.next().await {
                Ok(arrived) => self.take(arrived),
                Err(error) => self.break_off(&error),
            }
        }
        Some(SseEvent::default().data(self.pending.pop_front()?))
    }

    fn take(&mut self, arrived: Option<(usize, Event)>) {
        match arrived {
            Some((index, Event::Token { text, logprobs, .. })) => self.text(index, &text, logprobs.as_deref()),
            Some((index, Event::Finished { reason, text, .. })) => {
                self.text(index, &text, None);
                self.push(&self.reply.ending(index, reason));
            }
            Some((_, Event::Failed(error))) => self.break_off(&error.into()),
            None => self.finish(),
        }
    }

    fn text(&mut self, index: usize, text: &str, logprobs: Option<&TokenLogprobs>) {
        if let Entry::Vacant(new) = self.offsets.entry(index) {
            new.insert(0);
            if let Some(chunk) = self.reply.opening(index) {
                self.push(&chunk);
            }
        }
        if !text.is_empty() || logprobs.is_some() {
            let offset = self.offsets.get(&index).copied().unwrap_or(0);
            self.push(&self.reply.text(index, Piece { text, logprobs, offset }));
            self.offsets.insert(index, offset + logprobs.map_or(0, Piece::characters));
        }
    }

    fn finish(&mut self) {
        if let Some(generation) = self.generation.take() {
            if self.reply.include_usage {
                self.push(&self.reply.counts(generation.usage()));
            }
            self.pending.push_back("[DONE]".to_owned());
        }
    }

    /// An error in place of the rest of the stream, because the status was sent already. Without
    /// `[DONE]`, so that no client takes the text for complete.
    fn break_off(&mut self, error: &ApiError) {
        self.generation = None;
        self.push(&error.body());
    }

    fn push(&mut self, chunk: &Value) {
        self.pending.push_back(chunk.to_string());
    }
}
