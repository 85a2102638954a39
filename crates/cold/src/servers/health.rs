//! Whether a server is asked at all. One that failed is left alone for a while, so that no request waits
//! for a server that is down, and a server that comes back is not met by all requests at once.

use cenote_base::{Clock, Deadline};
use std::time::Duration;

/// First and longest pause.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub struct Health {
    clock: Clock,
    /// Failures in a row that begin a pause. A cluster goes on without some of its nodes.
    failures_max: u32,
    failures: u32,
    pause: Duration,
    /// End of the pause; a trial is due then. `None`: there is none.
    until: Option<Deadline>,
    /// When a trial that is running counts as lost. `None`: none is.
    trial: Option<Deadline>,
}

impl Health {
    pub fn new(clock: Clock, failures_max: u32) -> Self {
        Self { clock, failures_max, failures: 0, pause: PAUSE_MIN, until: None, trial: None }
    }

    /// Whether requests may wait for the server.
    pub const fn is_good(&self) -> bool {
        self.until.is_none()
    }

    /// Whether a server that is left alone is to be tried again.
    pub fn trial_is_due(&self) -> bool {
        self.until.is_some_and(Deadline::passed) && self.trial.is_none_or(Deadline::passed)
    }

    /// Whether the caller may send something now, for at most `longest`. After a pause one caller may, and
    /// tells how it ended.
    pub fn may_send(&mut self, longest: Duration) -> bool {
        if self.trial_is_due() {
            self.trial = Some(self.clock.after(longest));
            return true;
        }
        self.is_good()
    }

    /// Ends the pause without a trial; few failures begin the next one.
    pub fn is_given_a_chance(&mut self) {
        (self.failures, self.until, self.trial) = (self.failures_max / 2, None, None);
    }

    pub fn has_answered(&mut self) {
        (self.failures, self.pause, self.until, self.trial) = (0, PAUSE_MIN, None, None);
    }

    /// A request was given up before it says something about the server.
    pub fn has_said_nothing(&mut self) {
        self.trial = None;
    }

    /// Requests that run at once fail at once: those of one outage begin one pause.
    pub fn has_failed(&mut self) {
        if self.until.is_some_and(|until| !until.passed()) {
            return;
        }
        self.trial = None;
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.failures_max {
            self.until = Some(self.clock.after(self.pause));
            self.pause = (2 * self.pause).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::testing::ManualTime;

    #[test]
    fn one_outage_begins_one_pause_and_one_trial_ends_it() {
        let time = ManualTime::start();
        let mut health = Health::new(time.clock(), 1);
        (0..5).for_each(|_| health.has_failed());
        time.advance(PAUSE_MIN - Duration::from_nanos(1));
        assert!(!health.may_send(PAUSE_MIN));
        time.advance(Duration::from_nanos(1));
        assert!(health.may_send(PAUSE_MIN) && !health.may_send(PAUSE_MIN), "one caller tries");
        assert!(!health.trial_is_due() && !health.is_good());
        health.has_said_nothing();
        assert!(health.may_send(PAUSE_MIN) && !health.may_send(PAUSE_MIN), "another one does");
        time.advance(PAUSE_MIN);
        assert!(health.may_send(PAUSE_MIN), "the trial is lost");
        health.has_failed();
        time.advance(2 * PAUSE_MIN - Duration::from_nanos(1));
        assert!(!health.may_send(PAUSE_MIN));
        time.advance(Duration::from_nanos(1));
        assert!(health.may_send(PAUSE_MIN));
        health.has_answered();
        assert!(health.may_send(PAUSE_MIN) && health.may_send(PAUSE_MIN));
    }

    #[test]
    fn a_server_that_fails_is_left_alone_longer_and_longer() {
        let time = ManualTime::start();
        let mut health = Health::new(time.clock(), 2);
        health.has_failed();
        assert!(health.is_good() && health.may_send(PAUSE_MIN), "one failure of a cluster");
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            health.has_failed();
            assert!(!health.is_good() && !health.may_send(PAUSE_MIN));
            time.advance(Duration::from_secs(seconds) - Duration::from_nanos(1));
            assert!(!health.may_send(PAUSE_MIN), "{seconds}");
            time.advance(Duration::from_nanos(1));
            assert!(health.trial_is_due() && !health.is_good(), "{seconds}");
        }
        health.has_answered();
        health.has_failed();
        assert!(health.is_good());
        health.has_failed();
        time.advance(PAUSE_MIN);
        assert!(health.trial_is_due(), "the pause is short again");
    }
}
