//! Time as a value. Code that waits or takes timestamps gets a [`Clock`], so that tests and the
//! simulator control time. Every wait has a [`Deadline`] of a clock.
//!
//! Only rims name [`Clock::system`]: commands, bindings, sockets and `mem`. Clippy refuses it
//! elsewhere, as it refuses the standard library's clocks (`clippy.toml`).

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Condvar, LazyLock, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a [`Clock`] shows.
pub trait TimeSource: Send + Sync {
    /// Nanoseconds since the source's origin; never goes back.
    fn now_ns(&self) -> u64;

    /// Time since 1970, for reports, names of files and ages. It may go back.
    fn unix(&self) -> Duration;

    /// The longest real time for which a thread may block that waits for `ahead` of this source.
    /// Shorter than `ahead` where time passes without the machine's.
    fn block_for(&self, ahead: Duration) -> Duration {
        ahead
    }

    /// Looks at the source again and again until it shows `at_ns`. Where only the program lets time
    /// pass, the caller is the program, and the time passes at once.
    fn spin_until(&self, at_ns: u64) {
        while self.now_ns() < at_ns {
            std::hint::spin_loop();
        }
    }
}

/// A clock: a handle that is copied into all that waits.
#[derive(Clone, Copy)]
pub struct Clock(&'static dyn TimeSource);

impl Clock {
    /// The machine's monotonic clock. All handles of a process have one origin.
    #[must_use]
    pub fn system() -> Self {
        Self(&SystemTimeSource)
    }

    /// A clock that shows what `source` says.
    #[must_use]
    pub const fn of(source: &'static dyn TimeSource) -> Self {
        Self(source)
    }

    /// A clock on which no time passes, for work whose times nothing reads.
    #[must_use]
    pub fn stopped() -> Self {
        Self(&Stopped)
    }

    /// Nanoseconds since the clock's origin; never goes back.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        self.0.now_ns()
    }

    /// Time since 1970, for reports, names of files and ages. It may go back.
    #[must_use]
    pub fn unix(self) -> Duration {
        self.0.unix()
    }

    /// Nanoseconds since `then_ns` of this clock; zero before it.
    #[must_use]
    pub fn ns_since(self, then_ns: u64) -> u64 {
        self.now_ns().saturating_sub(then_ns)
    }

    /// Time since `then_ns` of this clock; zero before it.
    #[must_use]
    pub fn since(self, then_ns: u64) -> Duration {
        Duration::from_nanos(self.ns_since(then_ns))
    }

    /// The deadline `timeout` from now. One beyond the clock's range is never reached.
    #[must_use]
    pub fn after(self, timeout: Duration) -> Deadline {
        self.at(self.now_ns().saturating_add(nanoseconds(timeout)))
    }

    /// The deadline at `at_ns` of this clock.
    #[must_use]
    pub const fn at(self, at_ns: u64) -> Deadline {
        Deadline { at_ns, clock: self }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({} ns)", self.now_ns())
    }
}

/// Nanoseconds of a duration, as clocks count them.
#[must_use]
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The instant of a [`Clock`] at which a wait ends with a timeout.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at_ns: u64,
    clock: Clock,
}

impl Deadline {
    /// Its instant, in nanoseconds of its clock.
    #[must_use]
    pub const fn at_ns(self) -> u64 {
        self.at_ns
    }

    /// Its clock.
    #[must_use]
    pub const fn clock(self) -> Clock {
        self.clock
    }

    /// Remaining time of its clock; zero after the deadline.
    #[must_use]
    pub fn remaining(self) -> Duration {
        Duration::from_nanos(self.at_ns.saturating_sub(self.clock.now_ns()))
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn passed(self) -> bool {
        self.clock.now_ns() >= self.at_ns
    }

    /// The earlier of two deadlines of one clock.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        if other.at_ns < self.at_ns { other } else { self }
    }

    /// The longest real time for which a thread may block before it looks at the clock again. Zero
    /// after the deadline.
    #[must_use]
    pub fn block_for(self) -> Duration {
        match self.remaining() {
            Duration::ZERO => Duration::ZERO,
            ahead => self.clock.0.block_for(ahead),
        }
    }

    /// Waits without giving the processor up, for waits of microseconds.
    pub fn spin(self) {
        self.clock.0.spin_until(self.at_ns);
    }

    /// Waits on `changed` until `condition` is false or the deadline has passed. A poisoned lock is
    /// taken as it is.
    pub fn wait_while<'a, T>(
        self,
        changed: &Condvar,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            let patience = self.block_for();
            if patience.is_zero() {
                break;
            }
            guard = changed.wait_timeout(guard, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        guard
    }

    /// Receives a message, at the latest when the deadline passes.
    ///
    /// # Errors
    /// As of [`Receiver::recv_timeout`].
    pub fn receive<T>(self, receiver: &Receiver<T>) -> Result<T, RecvTimeoutError> {
        loop {
            let patience = self.block_for();
            match receiver.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) if !patience.is_zero() => {}
                received => return received,
            }
        }
    }
}

struct Stopped;

impl TimeSource for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }

    fn unix(&self) -> Duration {
        Duration::ZERO
    }
}

/// The machine's clocks.
struct SystemTimeSource;

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl TimeSource for SystemTimeSource {
    fn now_ns(&self) -> u64 {
        nanoseconds(ORIGIN.elapsed())
    }

    fn unix(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ManualTime;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    #[test]
    fn a_deadline_passes_when_its_clock_says_so() {
        let time = ManualTime::start();
        let deadline = time.clock().after(Duration::from_secs(5));
        assert_eq!((deadline.remaining(), deadline.passed()), (Duration::from_secs(5), false));
        time.advance(Duration::from_secs(4));
        assert_eq!(deadline.remaining(), Duration::from_secs(1));
        time.advance(Duration::from_secs(1));
        assert!(deadline.passed() && deadline.block_for().is_zero());
        assert!(!time.clock().after(Duration::MAX).passed(), "a timeout beyond the range is never");
    }

    #[test]
    fn a_thread_that_spins_lets_manual_time_pass() {
        let time = ManualTime::start();
        let deadline = time.clock().after(Duration::from_micros(3));
        deadline.spin();
        assert_eq!(time.now_ns(), 3_000);
        time.clock().at(1_000).spin();
        assert_eq!(time.now_ns(), 3_000, "time never goes back");
        let system = Clock::system().after(Duration::from_nanos(1));
        system.spin();
        assert!(system.passed());
    }

    #[test]
    fn waits_end_by_the_clock_alone() {
        let time = ManualTime::start();
        let deadline = time.clock().after(Duration::from_secs(3600));
        let (looks, (_sender, receiver)) = (Mutex::new(0), channel::<()>());
        let looks = &looks;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let looked = deadline.wait_while(&Condvar::new(), looks.lock().unwrap(), |looks| {
                    *looks += 1;
                    true
                });
                (*looked, deadline.receive(&receiver))
            });
            while *looks.lock().unwrap() < 3 {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished());
            time.advance(Duration::from_secs(3600));
            let (looked, received) = waiting.join().unwrap();
            assert!(looked >= 3);
            assert_eq!(received, Err(RecvTimeoutError::Timeout));
        });
    }

    #[test]
    fn a_message_is_received_before_and_after_the_deadline() {
        let (sender, receiver) = channel();
        let deadline = ManualTime::start().clock().after(Duration::ZERO);
        sender.send(7).unwrap();
        assert_eq!(deadline.receive(&receiver), Ok(7));
    }
}
