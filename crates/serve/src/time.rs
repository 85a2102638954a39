//! Waits of async code by a [`Clock`]. On the machine's clock a wait is one timer of tokio; on a
//! clock with a time of its own, a wait looks at it as often as the clock asks.

use cenote_base::time::nanoseconds;
use cenote_base::{Clock, Deadline};
use hyper::rt::{Sleep, Timer};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A wait that its owner polls.
pub(crate) type Wait = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// Returns when the deadline has passed.
pub(crate) async fn sleep_until(deadline: Deadline) {
    while !deadline.passed() {
        let mut next_look = pin!(tokio::time::sleep(deadline.block_for()));
        // A poll for another reason looks at the clock as well, so that no wait outlasts its deadline.
        let look = |context: &mut Context<'_>| match deadline.passed() {
            true => Poll::Ready(()),
            false => next_look.as_mut().poll(context),
        };
        poll_fn(look).await;
    }
}

/// The result of `work`, or `None` if the deadline passes first.
pub(crate) async fn before<T>(deadline: Deadline, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep_until(deadline) => None,
    }
}

/// A [`Clock`] as hyper's timer.
pub(crate) struct ConnectionTimer {
    clock: Clock,
    origin_ns: u64,
    /// hyper counts in `Instant`, of which only differences matter here.
    origin: Instant,
}

impl ConnectionTimer {
    #[allow(clippy::disallowed_methods, reason = "an `Instant` has no other source; no time is read from it")]
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, origin_ns: clock.now_ns(), origin: Instant::now() }
    }
}

impl Timer for ConnectionTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(ConnectionWait(Box::pin(sleep_until(self.clock.after(duration)))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let after_origin = nanoseconds(deadline.saturating_duration_since(self.origin));
        let deadline = self.clock.at(self.origin_ns.saturating_add(after_origin));
        Box::pin(ConnectionWait(Box::pin(sleep_until(deadline))))
    }

    fn now(&self) -> Instant {
        self.origin + self.clock.since(self.origin_ns)
    }
}

struct ConnectionWait(Wait);

impl Future for ConnectionWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl Sleep for ConnectionWait {}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::testing::ManualTime;
    use futures::poll;
    use std::future::{pending, ready};

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn work_that_is_done_wins_over_a_passed_deadline() {
        let passed = ManualTime::start().clock().after(Duration::ZERO);
        assert_eq!(before(passed, ready(7)).await, Some(7));
        assert_eq!(before(passed, pending::<u8>()).await, None);
    }

    #[tokio::test]
    async fn waits_end_by_their_clock() {
        let time = ManualTime::start();
        let (timer, deadline) = (ConnectionTimer::new(time.clock()), time.clock().after(HOUR));
        let connection_deadline = timer.now() + HOUR;
        let waiting = tokio::spawn(before(deadline, pending::<()>()));
        let mut wait = pin!(sleep_until(deadline));
        let mut connection = timer.sleep_until(connection_deadline);
        assert!(poll!(&mut wait).is_pending() && poll!(&mut connection).is_pending());
        time.advance(HOUR - Duration::from_nanos(1));
        assert!(poll!(&mut wait).is_pending() && poll!(&mut connection).is_pending());
        assert!(timer.now() < connection_deadline);
        time.advance(Duration::from_nanos(1));
        assert!(poll!(&mut wait).is_ready() && poll!(&mut connection).is_ready());
        assert_eq!(timer.now(), connection_deadline);
        assert_eq!(waiting.await.expect("no panic"), None, "a wait that only its timer polls");
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "the clock under test")]
    async fn the_machine_s_clock_ends_waits_as_well() {
        let deadline = Clock::system().after(Duration::from_millis(1));
        assert_eq!(before(deadline, pending::<()>()).await, None);
        assert!(deadline.passed());
    }
}
