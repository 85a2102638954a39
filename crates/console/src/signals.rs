//! SIGINT and SIGTERM for commands that are not asynchronous, and the end of their reader.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals are caught from the creation of this value on, so that none is lost before the resource
/// that it would remove exists.
pub struct EndSignals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Catches SIGINT and SIGTERM from now on.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn catch() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let context = runtime.enter();
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        drop(context);
        Ok(Self { runtime, interrupt, terminate })
    }

    /// Pauses that end on the first signal.
    #[must_use]
    pub fn into_pauses(self) -> Pauses {
        let (end, ended) = channel();
        self.then(move |_| end.send(()).unwrap_or_default());
        Pauses(ended)
    }

    /// On the first signal, runs `act` on a thread of its own with the exit code of shells for it:
    /// 128 and the signal's number.
    pub fn then(mut self, act: impl FnOnce(u8) + Send + 'static) {
        std::thread::spawn(move || {
            let code = self.runtime.block_on(async {
                tokio::select! {
                    _ = self.interrupt.recv() => 130,
                    _ = self.terminate.recv() => 143,
                }
            });
            act(code);
        });
    }
}

/// The pauses of a command that goes on until a signal comes.
pub struct Pauses(Receiver<()>);

impl Pauses {
    /// Waits so long. Returns false if a signal has come.
    #[must_use]
    pub fn pause(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }

    /// As [`Pauses::pause`]. Also false if nobody reads the standard output any more, which a command that
    /// has nothing to print would not notice (`cenote pool events | head -1`).
    #[must_use]
    pub fn pause_while_read(&self, time: Duration) -> bool {
        !reader_has_gone() && self.pause(time) && !reader_has_gone()
    }
}

fn reader_has_gone() -> bool {
    let out = std::io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && polled[0].revents().intersects(gone)
}
