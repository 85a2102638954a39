//! One generating HTTP request: its engine requests, their events, and their abort if it ends
//! early.

use super::AppState;
use super::budget::Share;
use super::keys::Client;
use super::middleware::ACCESS;
use crate::openai::{Answer, ApiError, Call};
use crate::tenants::{Places, TenantState, Waiting};
use crate::time::before;
use cenote_base::engine::{Event, Phase, Request, Usage};
use cenote_base::{CacheSalt, Deadline, RequestId};
use std::iter::repeat_n;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::Span;

/// The engine enforces the deadline. The front gives up this much later.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// A running request. Dropping it aborts the choices that have not finished.
pub(super) struct Generation {
    state: Arc<AppState>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    /// The engine's request of each choice, until it ends.
    open: Vec<Option<RequestId>>,
    /// When each choice had its last token.
    last_token_ns: Vec<Option<u64>>,
    began_ns: u64,
    timeout: Duration,
    /// When the front gives up.
    deadline: Deadline,
    usage: Usage,
    /// Choices per prompt.
    choices: usize,
    /// All choices have finished and were counted.
    complete: bool,
    /// The engine has taken all choices.
    is_admitted: bool,
    tenant: Option<Arc<TenantState>>,
    /// Its place among its tenant's requests, until it is complete.
    place: Option<Places>,
    /// Counts as waiting at its tenant until the first token.
    waiting: Option<Waiting>,
    /// The request, for its line in the access log.
    span: Span,
}

impl Generation {
    /// Whether a request would be accepted now, before its content is known.
    pub(super) fn check_room(state: &AppState, client: &Client) -> Result<(), ApiError> {
        if state.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        if let Some(tenant) = &client.tenant
            && tenant.requests_max().is_some_and(|most| tenant.tally().running.get() >= most as u64)
        {
            return Err(Self::over_limit(tenant));
        }
        if state.places.available_permits() > 0 { Ok(()) } else { Err(Self::no_place(state)) }
    }

    fn no_place(state: &AppState) -> ApiError {
        state.metrics.refused("requests");
        ApiError::overloaded(format!("{} requests are running already", state.config.requests_max), 1)
    }

    /// Places among the tenant's requests.
    fn places_of(tenant: &TenantState, count: usize) -> Result<Places, ApiError> {
        Places::take(tenant.tally(), count, tenant.requests_max()).ok_or_else(|| Self::over_limit(tenant))
    }

    fn over_limit(tenant: &TenantState) -> ApiError {
        let (running, most) = (tenant.tally().running.get(), tenant.requests_max().unwrap_or_default());
        let fact = format!("this API key's tenant has {running} requests running; it may have {most}");
        ApiError::rate_limited(fact, 1)
    }

    /// Submits every prompt of `call`. `client`: what its key says.
    /// `share` is the body's part of the budget, returned when the engine has dropped the prompts.
    pub(super) fn start(
        state: &Arc<AppState>,
        call: Call,
        client: &Client,
        timeout: Duration,
        share: Option<Share>,
    ) -> Result<Self, ApiError> {
        Self::check_room(state, client)?;
        let place = state.places.clone().try_acquire_owned().map_err(|_| Self::no_place(state))?;
        // The place is freed when the engine drops the last sink, not when the client has read its
        // answer: a client that stops reading must not occupy one.
        let place = Arc::new((place, share));
        let count = call.prompts.len() * call.choices;
        let of_tenant = client.tenant.as_deref().map(|tenant| Self::places_of(tenant, count)).transpose()?;
        let salt = CacheSalt::of(client.salt.as_deref(), call.cache_salt.as_deref());
        let tenant = client.tenant.as_ref();
        let (sender, events) = mpsc::unbounded_channel();
        state.metrics.began();
        let mut generation = Self {
            state: state.clone(),
            events,
            open: vec![None; count],
            last_token_ns: vec![None; count],
            began_ns: state.clock.now_ns(),
            timeout,
            deadline: state.clock.after(timeout.saturating_add(DEADLINE_SLACK)),
            usage: Usage::default(),
            choices: call.choices,
            complete: false,
            is_admitted: false,
            tenant: client.tenant.clone(),
            place: of_tenant,
            waiting: tenant.map(|tenant| Waiting::begin(tenant.tally())),
            span: Span::current(),
        };
        state.metrics.unknown_hints(call.wishes.unknown);
        let retain = call.wishes.retain((client.salt.as_deref(), call.cache_salt.as_deref()), count == 1);
        // The last choice takes the prompt itself: a copy of a long one is worth avoiding.
        let prompts = call.prompts.into_iter().flat_map(|prompt| repeat_n(prompt, call.choices));
        for (index, (prompt, mut sampling)) in prompts.zip(repeat_n(call.sampling, count)).enumerate() {
            // Choices of one prompt must differ, and the first must equal the choice of a request
            // for one, as in vLLM.
            let choice = (index % call.choices) as u64;
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(choice));
            let id = state.name_request();
            generation.open[index] = Some(id);
            let request = Request {
                id,
                prompt,
                sampling,
                phase: Phase::Whole,
                use_pool: call.use_pool,
                cache_salt: salt,
                tenant: tenant.map(|tenant| tenant.key()),
                priority: tenant.map_or(0, |tenant| tenant.priority()),
                label: client.label.clone(),
                continues_in_ms: call.continues_in_ms,
                retain,
                timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            };
            let (sender, place) = (sender.clone(), place.clone());
            let sink = Box::new(move |event| {
                let _held = &place;
                sender.send((index, event)).is_ok()
            });
            state.engine.submit(request, sink)?;
        }
        generation.is_admitted = true;
        if let Some(tenant) = tenant {
            tenant.tally().requests.add(1);
        }
        Ok(generation)
    }

    /// The next event of any choice; `None` when all have finished. Updates metrics.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        if self.complete {
            return Ok(None);
        }
        let (index, event) = match before(self.deadline, self.events.recv()).await {
            Some(Some(arrived)) => arrived,
            Some(None) => return Err(ApiError::internal("the engine dropped the request without an answer")),
            None => {
                let message = format!("no answer within {} s", self.timeout.as_secs_f64());
                return Err(ApiError::deadline(message));
            }
        };
        match &event {
            Event::Token { .. } => self.token(index),
            Event::Finished { usage, .. } => {
                self.usage.completion_tokens += usage.completion_tokens;
                // All choices of a prompt share its count.
                if index.is_multiple_of(self.choices) {
                    self.usage.prompt_tokens += usage.prompt_tokens;
                    self.usage.cached_tokens += usage.cached_tokens;
                }
                self.close(index);
                if self.open.iter().all(Option::is_none) {
                    self.complete = true;
                    // The client's next request may come before this value is dropped.
                    self.place = None;
                    self.state.metrics.ended(self.age(), Some(self.usage));
                    if let Some(tenant) = &self.tenant {
                        tenant.tally().finished(self.usage);
                    }
                }
            }
            Event::Failed(error) => {
                self.close(index);
                return Err(error.clone().into());
            }
        }
        Ok(Some((index, event)))
    }

    /// Token counts of all choices; complete once [`Self::next`] has returned `None`.
    pub(super) const fn usage(&self) -> Usage {
        self.usage
    }

    /// Waits for all events.
    pub(super) async fn collect(mut self) -> Result<(Vec<Answer>, Usage), ApiError> {
        let mut answers = vec![Answer::default(); self.open.len()];
        while let Some((index, event)) = self.next().await? {
            match event {
                Event::Token { text, logprobs, .. } => {
                    answers[index].text.push_str(&text);
                    answers[index].logprobs.extend(logprobs.map(|logprobs| *logprobs));
                }
                Event::Finished { reason, text, .. } => {
                    answers[index].text.push_str(&text);
                    answers[index].reason = Some(reason);
                }
                Event::Failed(error) => return Err(error.into()),
            }
        }
        Ok((answers, self.usage))
    }

    fn token(&mut self, index: usize) {
        self.waiting = None;
        let now_ns = self.state.clock.now_ns();
        let after = |then_ns| Duration::from_nanos(now_ns - then_ns);
        match self.last_token_ns[index].replace(now_ns) {
            None => self.state.metrics.first_token(after(self.began_ns)),
            Some(last_ns) => self.state.metrics.next_token(after(last_ns)),
        }
    }

    fn age(&self) -> Duration {
        self.state.clock.since(self.began_ns)
    }

    fn close(&mut self, index: usize) {
        if let Some(id) = self.open[index].take() {
            self.state.forget_request(id);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        for id in self.open.iter_mut().filter_map(Option::take) {
            self.state.engine.abort(id);
            self.state.forget_request(id);
        }
        if !self.complete {
            self.state.metrics.ended(self.age(), None);
        }
        let Usage { prompt_tokens, cached_tokens, completion_tokens } = self.usage;
        let (ms, complete) = (self.age().as_millis() as u64, self.complete);
        if !self.is_admitted {
            // Its refusal has a line.
            return;
        }
        self.span.in_scope(|| {
            tracing::info!(
                target: ACCESS, complete, ms, prompt_tokens, cached_tokens, completion_tokens, "generated"
            );
        });
    }
}
