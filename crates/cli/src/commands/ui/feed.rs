//! One thread looks at the region; the streams of all pages share its looks.

use super::charts::{self, Chart, Point};
use crate::gauges::{self, Gauge, Look, Unit, counter_name};
use crate::observer::{Observed, Observer};
use crate::snapshot::Snapshot;
use axum::response::sse::Event;
use cenote_base::Clock;
use cenote_console::args::RegionArgs;
use cenote_console::failure::Failure;
use cenote_pool::Counter;
use futures::Stream;
use futures::stream::unfold;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Most pages at once.
pub const STREAMS_MAX: usize = 32;
/// Looks of which the charts have values.
const POINTS_MAX: usize = 300;
/// Shortest pause between two looks without a page: each look reads all descriptors.
const UNSEEN_EVERY: Duration = Duration::from_secs(10);
/// A page that lost its server asks again after this time.
const RETRY: Duration = Duration::from_secs(2);

/// A look's result.
#[derive(Clone)]
struct Shown {
    /// The look as JSON, or why there is none.
    snapshot: Result<Arc<str>, Arc<str>>,
    point: Option<Arc<str>>,
    look: Option<Arc<Look>>,
}

enum Message {
    /// A page was opened.
    Opened,
    End,
}

pub struct Feed {
    shown: watch::Receiver<Shown>,
    points: Arc<Mutex<VecDeque<Point>>>,
    charts: Arc<[Chart]>,
    /// Facts of the page that do not change.
    about: Value,
    seats: Arc<Semaphore>,
    messages: Sender<Message>,
}

impl Feed {
    /// Looks once, and goes on in a thread of its own until [`Self::end`].
    ///
    /// # Errors
    /// The region cannot be read.
    pub fn start(region: &RegionArgs, every: Duration, clock: Clock) -> Result<(Self, JoinHandle<()>), Failure> {
        let mut observer = Observer::open(region, clock)?;
        let first = observer.look()?;
        let charts: Arc<[Chart]> = charts::all().into();
        let points: Arc<Mutex<VecDeque<Point>>> = Arc::default();
        let (sender, shown) = watch::channel(Shown::of(Ok(first), &charts, &points));
        let (messages, received) = channel();
        let seats = Arc::new(Semaphore::new(STREAMS_MAX));
        let about = about(&region.source()?.to_string(), every);
        let feed = Self {
            shown,
            points: Arc::clone(&points),
            charts: Arc::clone(&charts),
            about,
            seats: Arc::clone(&seats),
            messages,
        };
        let looks = std::thread::Builder::new().name("looks".to_owned()).spawn(move || {
            while goes_on(&received, &seats, every, clock) {
                sender.send_replace(Shown::of(observer.look(), &charts, &points));
            }
        });
        Ok((feed, looks?))
    }

    /// Ends the thread and all streams.
    pub fn end(&self) {
        // Without its receiver, the thread has ended already.
        let _ = self.messages.send(Message::End);
    }

    /// The last look; `None`: the region could not be read.
    pub fn last(&self) -> Option<Arc<Look>> {
        self.shown.borrow().look.clone()
    }

    /// The looks from now on, after what the charts remember; `None`: too many pages are open.
    pub fn stream(&self) -> Option<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let seat = Arc::clone(&self.seats).try_acquire_owned().ok()?;
        let mut shown = self.shown.clone();
        let now = shown.borrow_and_update().clone();
        let mut about = self.about.clone();
        about["charts"] = json!(&*self.charts);
        about["points"] = json!(*locked(&self.points));
        let about = Event::default().event("about").retry(RETRY).data(about.to_string());
        let pending = [about].into_iter().chain(now.events()).collect();
        // Without its receiver, the thread has ended, and so does the stream.
        let _ = self.messages.send(Message::Opened);
        Some(unfold(Reader { pending, shown, _seat: seat }, Reader::next))
    }
}

/// Waits for the time of the next look; false at the end.
fn goes_on(messages: &Receiver<Message>, seats: &Semaphore, every: Duration, clock: Clock) -> bool {
    let is_seen = || seats.available_permits() < STREAMS_MAX;
    let began = clock.now_ns();
    loop {
        let pause = if is_seen() { every } else { every.max(UNSEEN_EVERY) };
        let due = clock.at(began.saturating_add(cenote_base::time::nanoseconds(pause)));
        match due.receive(messages) {
            Ok(Message::Opened) => {}
            Ok(Message::End) => return false,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return true,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return false,
        }
    }
}

fn locked(points: &Mutex<VecDeque<Point>>) -> MutexGuard<'_, VecDeque<Point>> {
    points.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shown {
    fn of(seen: Result<Observed, Failure>, charts: &[Chart], points: &Mutex<VecDeque<Point>>) -> Self {
        let written = seen.and_then(|seen| {
            let snapshot = serde_json::to_string(&Snapshot::of(&seen))?;
            let point = Point::of(charts, &seen);
            let text = serde_json::to_string(&point)?;
            Ok((snapshot, point, text, seen.look))
        });
        match written {
            Ok((snapshot, point, text, look)) => {
                let mut points = locked(points);
                points.push_back(point);
                let surplus = points.len().saturating_sub(POINTS_MAX);
                points.drain(..surplus);
                Self { snapshot: Ok(snapshot.into()), point: Some(text.into()), look: Some(look) }
            }
            Err(failure) => Self {
                snapshot: Err(json!({ "words": failure.to_string() }).to_string().into()),
                point: None,
                look: None,
            },
        }
    }

    fn events(&self) -> Vec<Event> {
        let event = |name: &str, data: &Arc<str>| Event::default().event(name).data(&**data);
        let first = match &self.snapshot {
            Ok(snapshot) => event("look", snapshot),
            Err(words) => event("gone", words),
        };
        [first].into_iter().chain(self.point.as_ref().map(|point| event("point", point))).collect()
    }
}

/// A page's stream.
struct Reader {
    pending: VecDeque<Event>,
    shown: watch::Receiver<Shown>,
    _seat: OwnedSemaphorePermit,
}

impl Reader {
    /// A slow page misses looks; none of them wait in memory.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.pending.is_empty() {
            self.shown.changed().await.ok()?;
            let shown = self.shown.borrow_and_update().clone();
            self.pending.extend(shown.events());
        }
        let event = self.pending.pop_front()?;
        Some((Ok(event), self))
    }
}

#[derive(Serialize)]
struct Column {
    name: &'static str,
    heading: &'static str,
    unit: &'static str,
    help: &'static str,
}

fn columns<T>(gauges: &[Gauge<T>]) -> Vec<Column> {
    let column = |gauge: &Gauge<T>| Column {
        name: gauge.name,
        heading: gauge.heading,
        unit: match gauge.unit {
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
            Unit::Share => "share",
        },
        help: gauge.help,
    };
    gauges.iter().map(column).collect()
}

fn about(region: &str, every: Duration) -> Value {
    let counters = Counter::ALL.iter().map(|&counter| json!({ "name": counter_name(counter), "help": counter.help() }));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "region": region,
        "every": every.as_secs_f64(),
        "points_max": POINTS_MAX,
        "columns": {
            "region": columns(gauges::REGION),
            "models": columns(gauges::MODEL),
            "hosts": columns(gauges::HOST),
        },
        "counters": counters.collect::<Vec<_>>(),
    })
}
