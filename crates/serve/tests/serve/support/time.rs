//! Time that tests control, and that says what waits for it.

use super::soon;
use cenote_base::Clock;
use cenote_base::testing::ManualTime;
use cenote_base::time::TimeSource;
use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;

pub struct TestTime {
    time: &'static ManualTime,
    /// Looks of waiting tasks and threads, by the time that was still ahead of them.
    looks: watch::Sender<HashMap<Duration, u64>>,
}

impl TestTime {
    pub fn start() -> &'static Self {
        Box::leak(Box::new(Self { time: ManualTime::start(), looks: watch::Sender::new(HashMap::new()) }))
    }

    pub fn clock(&'static self) -> Clock {
        Clock::of(self)
    }

    pub fn advance(&self, by: Duration) {
        self.time.advance(by);
    }

    /// Returns when a wait is under way that ends after `ahead`. Tests give each timeout a length of
    /// its own, so that the length names the wait.
    pub async fn awaited(&self, ahead: Duration) {
        let count = |looks: &HashMap<Duration, u64>| looks.get(&ahead).copied().unwrap_or(0);
        let before = count(&self.looks.borrow());
        let mut looks = self.looks.subscribe();
        // By its second look, a task has also seen the bytes that were sent before.
        let waits = looks.wait_for(|looks| count(looks) >= before + 2);
        soon(&format!("a wait of {ahead:?}"), waits).await.expect("time does not end");
    }

    /// Lets `ahead` pass whenever something waits for that long, until `wait` ends.
    pub async fn pass_until<T>(&self, what: &str, ahead: Duration, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(soon(what, wait));
        loop {
            tokio::select! {
                biased;
                done = &mut wait => return done,
                () = self.awaited(ahead) => self.advance(ahead),
            }
        }
    }
}

impl TimeSource for TestTime {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn unix(&self) -> Duration {
        self.time.unix()
    }

    fn block_for(&self, ahead: Duration) -> Duration {
        self.looks.send_modify(|looks| *looks.entry(ahead).or_default() += 1);
        self.time.block_for(ahead)
    }
}
