//! `cenote ui`: a page that shows a region live in a browser. It looks from outside, as `top` does, and
//! changes nothing.

mod charts;
mod feed;
mod guard;
mod map;
#[cfg(test)]
mod tests;

use super::explain::{self, Asked, Explanation, Row};
use super::serve::{Signals, cannot_listen};
use crate::args::UiArgs;
use crate::observer::named;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use cenote_base::{CacheSalt, Clock};
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::whatif::Question;
use feed::Feed;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Longest body of a question about a prompt: half a million tokens of seven digits, or two million of one.
const QUESTION_MAX: usize = 4 << 20;
/// Longest wait for such a body.
const QUESTION_PATIENCE: Duration = Duration::from_secs(20);
/// Pause after which a stream without news gets a comment, so that a lost connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";
/// Tells nginx and other proxies not to buffer the stream.
const NO_BUFFERING: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");

struct Site {
    region: RegionArgs,
    feed: Feed,
    /// One question at a time: a long prompt's answer takes tens of megabytes.
    questions: Arc<Semaphore>,
}

pub fn run(args: &UiArgs) -> Result<(), Failure> {
    let region = named(&args.region, "ui")?;
    let name = region.source()?.to_string();
    let (feed, looks) = Feed::start(&region, args.every, Clock::system())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let served: Result<(), Failure> = runtime.block_on(async {
        let refused = |error| cannot_listen(args.listen, ["--listen", "port of --listen"], &error);
        let listener = TcpListener::bind(args.listen).await.map_err(refused)?;
        let mut signals = Signals::new()?;
        let address = listener.local_addr()?;
        let url = format!("http://{address}");
        output::say(&format!("the page of {name} is on {url}; Ctrl-C ends it"));
        if !address.ip().is_loopback() {
            output::say(
                "note: all that can reach this address can read names of models, processes and blocks, and ask which \
                 prompts were computed",
            );
        }
        output::print(&url)?;
        let site = Arc::new(Site { region, feed, questions: Arc::new(Semaphore::new(1)) });
        let shutdown = async {
            signals.first().await;
            site.feed.end();
        };
        cenote_serve::serve_pages(listener, routes(&site), Clock::system(), shutdown).await;
        Ok(())
    });
    served?;
    looks.join().map_err(|_| Failure::new("the thread that looks at the region has panicked"))
}

fn routes(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/map", get(map_of))
        .route("/explain", post(explain))
        .route("/whatif", get(whatif))
        .route("/health", get(health))
        .with_state(Arc::clone(site))
        .layer(middleware::from_fn(guard::check))
}

async fn page() -> Response {
    guard::page(include_str!("ui/page.html"))
}

/// The looks as server-sent events, with the facts of `top --once --json`.
async fn events(State(site): State<Arc<Site>>) -> Response {
    match site.feed.stream() {
        Some(stream) => {
            let stream = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
            ([NO_BUFFERING], stream).into_response()
        }
        None => refusal(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open", Some("close one")),
    }
}

/// The chunks of the last look.
async fn map_of(State(site): State<Arc<Site>>) -> Response {
    match site.feed.last() {
        Some(look) => Json(map::Map::of(&look)).into_response(),
        None => refusal(StatusCode::SERVICE_UNAVAILABLE, "the region cannot be read", None),
    }
}

/// 200 while the name leads to a region.
async fn health(State(site): State<Arc<Site>>) -> Response {
    match site.feed.last() {
        Some(_) => (StatusCode::OK, "ok\n").into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the region is not there\n").into_response(),
    }
}

/// What `pool whatif --json` prints, with its default sizes and policies. A replay takes a second or so, so one
/// goes on at a time, as of the questions about prompts.
async fn whatif(State(site): State<Arc<Site>>) -> Response {
    let Ok(_turn) = site.questions.clone().try_acquire_owned() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "another question is being answered", Some("ask again"));
    };
    let answered = tokio::task::spawn_blocking(move || super::whatif::answer(&site.region, &Question::default()));
    match answered.await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(failure)) => refusal(StatusCode::NOT_FOUND, &failure.to_string(), failure.advice()),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), None),
    }
}

/// A prompt, as the page asks for it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    /// As `pool explain --model`.
    model: Option<String>,
    /// As a file of `pool explain --tokens`.
    tokens: Option<String>,
    /// As a file of `pool explain --names`.
    names: Option<String>,
    cache_salt: Option<String>,
    key_salt: Option<String>,
}

impl Prompt {
    fn asked(&self) -> Result<Asked, Failure> {
        match (&self.tokens, &self.names) {
            (Some(tokens), None) => {
                let salt = CacheSalt::of(self.key_salt.as_deref(), self.cache_salt.as_deref());
                Ok(Asked::Tokens(explain::tokens("tokens", tokens)?, salt))
            }
            (None, Some(names)) => Ok(Asked::Names(explain::names("names", names)?)),
            _ => Err(Failure::new("give either tokens or names")),
        }
    }
}

/// What `pool explain --json` prints, with the rows of its table.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    explanation: Explanation,
    rows: Vec<Row>,
}

async fn explain(State(site): State<Arc<Site>>, headers: HeaderMap, body: Body) -> Response {
    // A page of another site can send other types without asking the browser for permission.
    if headers.get(CONTENT_TYPE).is_none_or(|kind| kind.as_bytes() != JSON.as_bytes()) {
        return refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type: must be application/json", None);
    }
    let body: Bytes = match tokio::time::timeout(QUESTION_PATIENCE, to_bytes(body, QUESTION_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let words = format!("a question has at most {} MiB", QUESTION_MAX >> 20);
            let hint = "`cenote pool explain --tokens FILE` takes longer prompts";
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, &words, Some(hint));
        }
        Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the question did not arrive in time", None),
    };
    let question: Prompt = match serde_json::from_slice(&body) {
        Ok(question) => question,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, &format!("no question: {error}"), None),
    };
    // A client that has left leaves its answer being computed, so the turn ends with that.
    let Ok(turn) = site.questions.clone().try_acquire_owned() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "another question is being answered", Some("ask again"));
    };
    let answered = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let model = question.model.as_deref().filter(|model| !model.is_empty());
        let explanation = Explanation::of(&site.region, model, || question.asked())?;
        let rows = explanation.rows();
        Ok::<_, Failure>(Answer { explanation, rows })
    });
    match answered.await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(failure)) => refusal(StatusCode::UNPROCESSABLE_ENTITY, &failure.to_string(), failure.advice()),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &format!("the region cannot be read: {error}"), None),
    }
}

/// A refusal, as the page shows it.
fn refusal(status: StatusCode, words: &str, hint: Option<&str>) -> Response {
    let mut response = (status, Json(json!({ "error": words, "hint": hint }))).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, axum::http::HeaderValue::from_static("1"));
    }
    response
}
